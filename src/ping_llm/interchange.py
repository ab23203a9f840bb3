"""Tables of other libraries in and out: pandas, polars, pyarrow, or whatever speaks Arrow's C stream.

None of them is imported here but pyarrow: a table brings its own library along.
"""

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa


@runtime_checkable
class Table(Protocol):
    """A table that can be read as a stream of Arrow record batches (the Arrow PyCapsule interface)."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def is_table(value: object) -> bool:
    """Whether `to_arrow` reads it. A dictionary of columns is one as well."""
    return isinstance(value, Table | dict) or _is_pandas(value) or hasattr(value, "__arrow_c_array__")


def to_arrow(value: Any) -> "pa.Table":
    """A pyarrow table of any table, its texts as plain strings."""
    import pyarrow as pa

    if _is_pandas(value):
        table = pa.Table.from_pandas(value, preserve_index=False)
    else:
        table = value if isinstance(value, pa.Table) else pa.table(value)
    # Polars hands out string views, pandas large strings and dictionaries: one type is enough to handle.
    fields = [field.with_type(pa.string()) if _is_text(field.type) else field for field in table.schema]
    return table.cast(pa.schema(fields)) if fields else table


def like(table: "pa.Table", original: Any) -> Any:
    """The table as one of the library that `original` is of; pyarrow's own where that is not known."""
    if _is_pandas(original):
        frame = table.to_pandas()
        frame.index = original.index
        return frame
    library = sys.modules.get(type(original).__module__.partition(".")[0])
    from_arrow = getattr(type(original), "from_arrow", None) or getattr(library, "from_arrow", None)
    return table if from_arrow is None else from_arrow(table)


def write_beside(table: "pa.Table", folder: Path) -> Path:
    """The table as a Parquet file beside a folder, named by its content: another table is another input."""
    import pyarrow.parquet as pq

    from ping_llm.files import whole_file

    path = folder.parent / f"{folder.name}-input-{_digest(table)}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with whole_file(path) as aside:
            pq.write_table(table, aside)
    return path


def _digest(table: "pa.Table") -> str:
    digest = hashlib.sha256()
    for column in table.combine_chunks().columns:
        for buffer in (buffer for chunk in column.chunks for buffer in chunk.buffers()):
            digest.update(buffer if buffer is not None else b"-")
    return digest.hexdigest()[:8]


def _is_text(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_pandas(value: object) -> bool:
    # Since 2.2 pandas has the stream as well; its own way also drops the index, which is no column.
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)
