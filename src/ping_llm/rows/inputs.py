"""The input of a build: Parquet files with the columns of a measurement."""

from collections.abc import Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path

import duckdb

from ping_llm.errors import PingError, UsageError
from ping_llm.schema import OPTIONAL_COLUMNS, REQUIRED_COLUMNS

_INTEGERS = frozenset(
    ["TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"]
)
_TIMES = frozenset({"TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"})


@dataclass(frozen=True)
class Inputs:
    """Files of one schema."""

    files: tuple[Path, ...]
    select: str  # the SQL that brings any accepted schema to one form, without its FROM

    def sql(self, files: Sequence[Path] | None = None) -> str:
        names = ", ".join("'" + str(file).replace("'", "''") + "'" for file in files or self.files)
        return f"{self.select} FROM read_parquet([{names}], hive_partitioning = false, union_by_name = true)"


def find_inputs(places: Sequence[str | Path]) -> Inputs:
    """Files, folders (searched in depth, Hive partitions included) and globs → Inputs."""
    files: dict[Path, None] = {}
    for place in places:
        for file in _files_at(str(place)):
            files[file.resolve()] = None
    ordered = tuple(sorted(files))
    return Inputs(ordered, _select(ordered))


def _files_at(place: str) -> list[Path]:
    path = Path(place)
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [file for file in path.rglob("*.parquet") if not file.name.startswith((".", "_"))]
    elif has_magic(place):
        found = [Path(name) for name in glob(place, recursive=True) if Path(name).is_file()]
    else:
        raise UsageError(f"{place} does not exist; give Parquet files, folders or globs of them")
    if not found:
        raise UsageError(f"{place} has no Parquet files; `ping-llm ingest` makes them from raw results")
    return found


def _select(files: Sequence[Path]) -> str:
    connection = duckdb.connect()
    names = ", ".join("'" + str(file).replace("'", "''") + "'" for file in files)
    try:
        described = connection.execute(
            f"DESCRIBE SELECT * FROM read_parquet([{names}], hive_partitioning = false, union_by_name = true)"
        ).fetchall()
    except duckdb.Error as error:
        raise PingError(f"cannot read the input as Parquet: {str(error).splitlines()[0]}") from error
    types = {name: str(kind) for name, kind, *_ in described}
    for name in REQUIRED_COLUMNS:
        if name not in types:
            raise PingError(
                f"{files[0]}: there is no column {name}; a measurement needs {', '.join(REQUIRED_COLUMNS)}"
            )
    chosen = [
        _time(types["event_time"]),
        _text("src_addr", types),
        _text("dst_addr", types),
        _rtt(types["rtt"]),
        *(_integer(name, types) for name in OPTIONAL_COLUMNS),
    ]
    return "SELECT " + ", ".join(chosen)


def _time(kind: str) -> str:
    if kind not in _TIMES:
        raise PingError(f"column event_time has type {kind}; it must be a timestamp")
    # Infinite times exist in Parquet; -1 is refused by the rules.
    if kind == "TIMESTAMP_NS":
        return "CASE WHEN isfinite(event_time) THEN epoch_ns(event_time) // 1000 ELSE -1 END AS event_time"
    return "CASE WHEN event_time IS NULL THEN NULL WHEN isfinite(event_time) THEN epoch_us(event_time) ELSE -1 END AS event_time"


def _text(name: str, types: dict[str, str]) -> str:
    if types[name] != "VARCHAR":
        raise PingError(f"column {name} has type {types[name]}; it must be text")
    return name


def _rtt(kind: str) -> str:
    if kind not in _INTEGERS | {"FLOAT", "DOUBLE"} and not kind.startswith("DECIMAL"):
        raise PingError(f"column rtt has type {kind}; it must be a number of milliseconds")
    return "CAST(rtt AS DOUBLE) AS rtt"


def _integer(name: str, types: dict[str, str]) -> str:
    kind = types.get(name)
    if kind is None or kind == '"NULL"':
        return f"CAST(NULL AS BIGINT) AS {name}"
    if kind not in _INTEGERS:
        raise PingError(f"column {name} has type {kind}; it must be an integer")
    if kind == "UBIGINT":  # too large for an int64 is a broken rule, not unknown
        return (
            f"CASE WHEN {name} IS NULL THEN NULL ELSE coalesce(TRY_CAST({name} AS BIGINT), -2) END AS {name}"
        )
    return f"CAST({name} AS BIGINT) AS {name}"
