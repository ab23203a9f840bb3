"""Conversion from and to tables of other libraries: pandas, polars, pyarrow, or any Arrow C stream.

Only pyarrow is imported here; the library of a table is already loaded.
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
    """Whether `to_arrow` can read the value. A dictionary of columns is also a table."""
    return isinstance(value, Table | dict) or _is_pandas(value) or hasattr(value, "__arrow_c_array__")


def to_arrow(value: Any) -> "pa.Table":
    """Convert any table to a pyarrow table, with all text columns as plain strings."""
    import pyarrow as pa

    if _is_pandas(value):
        table = pa.Table.from_pandas(value, preserve_index=False)
    else:
        table = value if isinstance(value, pa.Table) else pa.table(value)
    # Polars gives string views, pandas large strings and dictionaries; callers handle one string type only.
    fields = [field.with_type(pa.string()) if _is_text(field.type) else field for field in table.schema]
    return table.cast(pa.schema(fields)) if fields else table


def like(table: "pa.Table", original: Any) -> Any:
    """Convert the table to the library of `original`; unchanged (pyarrow) if that library is unknown."""
    if _is_pandas(original):
        frame = table.to_pandas()
        frame.index = original.index
        return frame
    library = sys.modules.get(type(original).__module__.partition(".")[0])
    from_arrow = getattr(type(original), "from_arrow", None) or getattr(library, "from_arrow", None)
    return table if from_arrow is None else from_arrow(table)


def write_beside(table: "pa.Table", folder: Path) -> Path:
    """Write the table to a Parquet file beside a folder and return its path.

    The name contains a digest of the content, so that a different table is a different input.
    """
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
    # pandas has the Arrow stream since 2.2, but from_pandas also drops the index, which is not a column.
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)
