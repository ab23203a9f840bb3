"""Speed of building rows, compared with DuckDB's sort of the same measurements and with an earlier design.

    limit   the same columns, sorted by a hash of the source and the time, streamed as Arrow and discarded
    ordered the same within the build's memory limit, with each batch checked, encoded and written as by the
            build: a build that leaves sorting to DuckDB
    legacy  an earlier streaming design, re-created on a part of the data: list-of-struct aggregation to
            Parquet, Python dicts, an Arrow IPC blob nested in another, partial files merged record by record

Each runs in a process of its own, so that the peak memory is its own; imports and kernels are loaded before
the clock starts. They take turns, and the best of each counts: on a shared machine the rest is noise.
"""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ping_llm.bench.memory import peak_rss_mib
from ping_llm.errors import PingError
from ping_llm.measurements.schema import DAY_US
from ping_llm.paths import sql_path
from ping_llm.progress import Progress


@dataclass(frozen=True)
class BenchOptions:
    """Options of the benchmark."""

    measurements: int = 5_000_000
    data: Path | None = None  # existing measurements; None: simulated
    hot: int = 0  # number of measurements of one more source
    legacy_measurements: int = 200_000
    workers: int = 0
    memory_limit: str = "4GB"
    repeats: int = 2
    only_build: bool = False
    scratch: Path | None = None


def bench(options: BenchOptions) -> dict[str, Any]:
    """Run all contestants and return their figures."""
    with tempfile.TemporaryDirectory(prefix="ping-llm-bench-", dir=options.scratch) as name:
        scratch = Path(name)
        data = options.data or _simulated(options, scratch)
        builds, sorts, ordered = [], [], []
        with Progress("bench", 3 * options.repeats + 1, "runs") as progress:
            for _ in range(options.repeats):
                builds.append(_child("build", data, scratch / "rows", options.workers, options.memory_limit))
                shutil.rmtree(scratch / "rows", ignore_errors=True)
                progress.advance(note=f"build {builds[-1]['per_s']:,.0f}/s")
                if not options.only_build:
                    sorts.append(_child("sort", data, options.workers))
                    progress.advance(note=f"sort {sorts[-1]['per_s']:,.0f}/s")
                    words = (data, scratch / "ordered", options.workers, options.memory_limit)
                    ordered.append(_child("ordered", *words))
                    shutil.rmtree(scratch / "ordered", ignore_errors=True)
                    progress.advance(note=f"sort and encode {ordered[-1]['per_s']:,.0f}/s")
            legacy = None
            if not options.only_build:
                legacy = _child("legacy", data, scratch, options.legacy_measurements)
        return _report(builds, sorts, ordered, legacy)


def _report(
    builds: list[dict], sorts: list[dict], ordered: list[dict], legacy: dict | None
) -> dict[str, Any]:
    best = max(builds, key=lambda one: one["per_s"])
    report = {
        "measurements": best["measurements"],
        "measurements_per_s": round(best["per_s"]),
        "seconds": round(best["seconds"], 2),
        "cpu_seconds": round(best["cpu_seconds"], 2),
        "peak_rss_mib": max(one["peak_rss_mib"] for one in builds),
        "bytes_in": best["bytes_in"],
        "bytes_out": best["bytes_out"],
        "rows": best["rows"],
        "runs": {"build": [round(one["per_s"]) for one in builds]},
    }
    if sorts and legacy:
        limit = max(one["per_s"] for one in sorts)
        report |= {
            "duckdb_sort_per_s": round(limit),
            "duckdb_sort_cpu_seconds": round(min(one["cpu_seconds"] for one in sorts), 2),
            "fraction_of_limit": round(best["per_s"] / limit, 3),
            "duckdb_sort_and_encode_per_s": round(max(one["per_s"] for one in ordered)),
            "duckdb_sort_and_encode_cpu_seconds": round(min(one["cpu_seconds"] for one in ordered), 2),
            "duckdb_sort_and_encode_peak_rss_mib": max(one["peak_rss_mib"] for one in ordered),
            "legacy_per_s": round(legacy["per_s"]),
            "legacy_measurements": legacy["measurements"],
            "speedup_over_legacy": round(best["per_s"] / legacy["per_s"], 1),
        }
        report["runs"]["duckdb_sort"] = [round(one["per_s"]) for one in sorts]
        report["runs"]["duckdb_sort_and_encode"] = [round(one["per_s"]) for one in ordered]
    return report


def _simulated(options: BenchOptions, scratch: Path) -> Path:
    from ping_llm.simulate import WorldOptions, simulate

    simulate(scratch / "measurements", WorldOptions(measurements=options.measurements))
    if options.hot:
        _write_hot(scratch / "measurements" / "hot.parquet", options.hot)
    return scratch / "measurements"


def _write_hot(path: Path, count: int) -> None:
    """Write `count` measurements of a single source in one day, as of an anchor, not in order of time."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    schema = pa.schema(
        [
            ("event_time", pa.timestamp("us", tz="UTC")),
            ("src_addr", pa.string()),
            ("dst_addr", pa.string()),
            ("rtt", pa.float64()),
        ]
    )
    targets = [f"198.51.100.{last}" for last in range(250)]
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, count, 1 << 20):
            size = min(1 << 20, count - start)
            columns = [
                pa.array(1_700_000_000_000_000 + rng.integers(0, DAY_US, size), schema.field(0).type),
                pa.array(["192.0.2.1"] * size),
                pa.DictionaryArray.from_arrays(rng.integers(0, 250, size, np.int32), targets).cast(
                    pa.string()
                ),
                pa.array(np.round(rng.lognormal(3, 1, size), 3)),
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def _child(*words: Any) -> dict[str, Any]:
    command = [sys.executable, "-m", "ping_llm.bench.rows", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise PingError(f"the benchmark of {words[0]} failed; its output is above")
    return json.loads(done.stdout)


def _timed(count: int, begun: float, cpu: float) -> dict[str, Any]:
    seconds = time.perf_counter() - begun
    return {
        "measurements": count,
        "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu,
        "per_s": count / seconds,
        "peak_rss_mib": peak_rss_mib(),
    }


def build_once(data: Path, out: Path, workers: int, memory_limit: str) -> dict[str, Any]:
    from ping_llm.rows.build import RunOptions, build

    _warm_up()
    begun, cpu = time.perf_counter(), time.process_time()
    manifest = build([data], out, run=RunOptions(workers=workers, memory_limit=memory_limit))
    timed = _timed(manifest["counts"]["in"], begun, cpu)
    sizes = {
        "bytes_in": manifest["source"]["bytes"],
        "bytes_out": sum(path.stat().st_size for path in out.rglob("*") if path.is_file()),
        "rows": manifest["counts"]["rows"],
    }
    return timed | sizes


def _warm_up() -> None:
    """Load every kernel by a build of a few measurements."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ping_llm.rows.build import build

    with tempfile.TemporaryDirectory() as name:
        few = pa.table(
            {
                "event_time": pa.array([5, 3, 4], pa.timestamp("us")),
                "src_addr": ["192.0.2.1", "192.0.2.1", "2001:db8::1"],
                "dst_addr": ["192.0.2.2", "192.0.2.2", "2001:db8::2"],
                "rtt": [1.0, 2.0, 3.0],
            }
        )
        pq.write_table(few, Path(name) / "few.parquet")
        build([Path(name) / "few.parquet"], Path(name) / "rows")


def _all_of(data: Path) -> str:
    """Return every Parquet file below a folder as a SQL list."""
    return "[" + ", ".join(map(sql_path, sorted(data.rglob("*.parquet")))) + "]"


def _sorted_by_duckdb(select: str, data: Path, threads: int, **config: Any) -> Any:
    """Sort measurements by a hash of the source and by time; return an Arrow reader."""
    import duckdb

    query = (
        f"{select} FROM read_parquet({_all_of(data)}, union_by_name = true, hive_partitioning = false) "
        "ORDER BY hash(src_addr), event_time"
    )
    return duckdb.connect(config={"threads": threads, **config}).sql(query).to_arrow_reader(1 << 17)


def _threads(workers: int) -> int:
    return workers or len(os.sched_getaffinity(0))


def sort_once(data: Path, workers: int) -> dict[str, Any]:
    """Time the limit: DuckDB sorts the same columns and returns them as Arrow."""
    columns = "event_time, src_addr, dst_addr, ip_version, rtt, msm_id, size, packet_error_count, probe_id"
    begun, cpu = time.perf_counter(), time.process_time()
    count = sum(batch.num_rows for batch in _sorted_by_duckdb(f"SELECT {columns}", data, _threads(workers)))
    return _timed(count, begun, cpu)


def ordered_once(data: Path, out: Path, workers: int, memory_limit: str) -> dict[str, Any]:
    """Time DuckDB's sort, with one shard per thread written from its output."""
    import numpy as np

    from ping_llm.rows.inputs import select
    from ping_llm.rows.plan import RowOptions, parse_bytes
    from ping_llm.rows.shard import ShardWriter
    from ping_llm.rows.sortable import from_batch

    _warm_up()
    out.mkdir()
    begun, cpu = time.perf_counter(), time.process_time()
    threads, longest = _threads(workers), RowOptions().max_measurements
    config = {"memory_limit": f"{parse_bytes(memory_limit)}B", "temp_directory": str(out)}
    columns = select(next(data.rglob("*.parquet")))  # as the build reads them
    reader = _sorted_by_duckdb(columns, data, threads, **config)
    reading = threading.Lock()

    def encode(shard: int) -> int:
        with ShardWriter(out / f"{shard}.arrayrecord", longest, False) as writer:
            while True:
                with reading:
                    batch = next(reader, None)
                if batch is None:
                    return writer.finish()[0].measurements
                words = from_batch(batch).words
                writer.add(words, np.arange(len(words)))
                writer.end_row()  # cheaper than carrying it over, for one row in thousands

    with ThreadPoolExecutor(threads) as pool:
        count = sum(pool.map(encode, range(threads)))
    return _timed(count, begun, cpu)


def legacy_once(data: Path, scratch: Path, measurements: int) -> dict[str, Any]:
    """Time the earlier streaming design with two workers, on the first measurements of the data."""
    import duckdb

    folder = Path(tempfile.mkdtemp(prefix="legacy-", dir=scratch))
    connection = duckdb.connect(config={"threads": 2})
    connection.execute(
        f"COPY (SELECT * FROM read_parquet({_all_of(data)}, union_by_name = true, "
        f"hive_partitioning = false) LIMIT {measurements}) TO '{folder}/part.parquet'"
    )
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    processes = multiprocessing.get_context("spawn")
    loaded = processes.Barrier(3)
    with processes.Pool(2, _legacy_start, (loaded,)) as pool:
        loaded.wait()
        begun, cpu = time.perf_counter(), time.process_time()
        # 1. Aggregate each source to a list of structs, on disk as Parquet.
        connection.execute(
            f"""COPY (
                SELECT src_addr, list(struct_pack(event_time, dst_addr, ip_version, rtt, msm_id, size,
                    packet_error_count) ORDER BY event_time) AS measurements
                FROM {sql_path(folder / "part.parquet")} GROUP BY src_addr
            ) TO '{folder}/grouped.parquet' (ROW_GROUP_SIZE 2048)"""
        )
        # 2. Workers turn row groups into dicts, dicts into a blob, blobs into partial files.
        partials = pool.starmap(_legacy_worker, [(folder, worker, 2) for worker in range(2)])
    # 3. Merge the partial files, record by record.
    writer = ArrayRecordWriter(str(folder / "merged.arrayrecord"), "group_size:1")
    for partial, count in partials:
        reader = ArrayRecordReader(partial)
        for place in range(count):
            writer.write(reader.read([place])[0])
        reader.close()
    writer.close()
    return _timed(measurements, begun, cpu)


def _legacy_start(loaded: Any) -> None:
    """Load what a worker needs before the clock starts."""
    import pyarrow.parquet  # noqa: F401
    from array_record.python import array_record_module  # noqa: F401

    loaded.wait()


def _legacy_worker(folder: Path, worker: int, workers: int) -> tuple[str, int]:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from array_record.python.array_record_module import ArrayRecordWriter

    path = str(folder / f"partial-{worker}.arrayrecord")
    writer = ArrayRecordWriter(path, "group_size:1")
    grouped = pq.ParquetFile(folder / "grouped.parquet")
    count = 0
    for group in range(worker, grouped.num_row_groups, workers):
        for row in grouped.read_row_group(group).to_pylist():
            inner = pa.RecordBatch.from_pylist(row["measurements"])
            outer = pa.RecordBatch.from_pylist(
                [{"src_addr": row["src_addr"], "count": inner.num_rows, "measurements": _stream(inner)}]
            )
            writer.write(_stream(outer))
            count += 1
    writer.close()
    return path, count


def _stream(batch: Any) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _main(words: list[str]) -> None:
    mode, data, *rest = words
    if mode == "build":
        found = build_once(Path(data), Path(rest[0]), int(rest[1]), rest[2])
    elif mode == "sort":
        found = sort_once(Path(data), int(rest[0]))
    elif mode == "ordered":
        found = ordered_once(Path(data), Path(rest[0]), int(rest[1]), rest[2])
    else:
        found = legacy_once(Path(data), Path(rest[0]), int(rest[1]))
    print(json.dumps(found))


if __name__ == "__main__":
    _main(sys.argv[1:])
