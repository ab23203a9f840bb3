"""`query score --out`: calibrated scores as Parquet by day, shared by the tasks of a cluster.

A day is a unit of work: its file appears when it is complete, and days that are there are not scored again.
Every result is compared with the answer that all earlier measurements of the input and of the run's data
give, whichever task scores it, so the bytes do not depend on the tasks. Each task holds the input's
measurements in memory, about 100 bytes each.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.answer.files import read_columns
from ping_llm.answer.report import NEEDS, results
from ping_llm.errors import PingError, UsageError
from ping_llm.files import whole_file, write_json
from ping_llm.measurements.addresses import unpack
from ping_llm.measurements.columns import NO_TIME, Columns
from ping_llm.model.packaged import base_folder
from ping_llm.progress import Progress
from ping_llm.spark_session import each_on_spark

if TYPE_CHECKING:
    from ping_llm.answer.model import Model

_DAY_US = 86_400_000_000
_LEVELS = (0.05, 0.5, 0.95)
_SUMMARY, _KEY = "score.json", ".score.json"

SCHEMA = pa.schema(
    [
        pa.field("event_time", pa.timestamp("us", tz="UTC")),
        pa.field("src_addr", pa.string()),
        pa.field("dst_addr", pa.string()),
        pa.field("rtt", pa.float64()),
        pa.field("bits", pa.float64()),
        pa.field("tail", pa.float64()),
        pa.field("failure", pa.float64()),
        pa.field("p5", pa.float64()),
        pa.field("p50", pa.float64()),
        pa.field("p95", pa.float64()),
        pa.field("kind", pa.string()),
        pa.field("row", pa.int64()),
    ],
    metadata={"ping_llm.scores": "1"},
)


def score_days(
    model: "Model", run: Path, path: Path, out: Path, step: str | None = None, task: int = 0, tasks: int = 1
) -> dict[str, Any] | None:
    """Score measurements into OUT/date=YYYY-MM-DD/part-0.parquet, or go on with that.

    Args:
      step: `score` for the share of a task, `finish` for the summary; None for both.

    Returns:
      the summary; None after a step `score`.

    Raises:
      UsageError: measurements without times, or a folder that holds something else.
      PingError: at `finish`, days are missing.
    """
    if step not in (None, "score", "finish") or not 0 <= task < tasks:
        raise UsageError(f"--step {step}, --task {task} of {tasks}: steps are score and finish, tasks from 0")
    measured, days, each = _read(path)
    _claim(out, run, measured)
    if step != "finish":
        # The largest first, dealt in turn.
        order = sorted(each, key=lambda day: (-int((days == day).sum()), day))[task::tasks]
        with Progress("measurements", int(np.isin(days, order).sum())) as progress:
            for day in order:
                rows = np.flatnonzero(days == day)
                if not _file(out, day).exists():
                    _score_day(model, measured, rows, _file(out, day))
                progress.advance(len(rows))
    if step == "score":
        return None
    return _finish(out, each, len(measured))


def score_on_spark(
    run: Path, data: Path | bool, path: Path, out: Path, master: str | None = None
) -> dict[str, Any]:
    """The same on Spark, a day per partition; a worker loads the model and the input once.

    Args:
      data: of `Model.load`, on the workers.
      master: such as yarn; None: what spark-submit or the environment says.
    """
    measured, _, each = _read(path)
    _claim(out, run, measured)
    waiting = [day for day in each if not _file(out, day).exists()]
    if waiting:
        work = partial(_score_on_worker, run, data, path, out, waiting)
        each_on_spark("ping-llm score", master, len(waiting), work)
    return _finish(out, each, len(measured))


def _score_on_worker(
    run: Path, data: Path | bool, path: Path, out: Path, waiting: Sequence[int], number: int
) -> None:
    file = _file(out, waiting[number])
    if not file.exists():
        model, measured, days = _loaded(run, data, path)
        _score_day(model, measured, np.flatnonzero(days == waiting[number]), file)


@lru_cache(maxsize=1)
def _loaded(run: Path, data: Path | bool, path: Path) -> "tuple[Model, Columns, np.ndarray]":
    from ping_llm.answer.model import Model

    return Model.load(run, data=data), *_read(path)[:2]


def _read(path: Path) -> tuple[Columns, np.ndarray, list[int]]:
    """Measurements, the day of each, and the days."""
    measured = read_columns(path, needs=NEEDS)
    if (measured.time == NO_TIME).any():
        raise UsageError(
            f"{path} has measurements without a time, which no day holds; score it without --out"
        )
    days = measured.time // _DAY_US
    return measured, days, np.unique(days).tolist()


def _file(out: Path, day: int) -> Path:
    return out / f"date={np.datetime64(day, 'D')}" / "part-0.parquet"


def _claim(out: Path, run: Path, measured: Columns) -> None:
    """Keep in the folder what it is about, so that days of other input or of another run are not mixed."""
    digest = hashlib.sha256()
    for column in (measured.time, measured.src, measured.dst, measured.rtt):
        digest.update(np.ascontiguousarray(column))
    key = {
        "format": 1,
        "run": str((base_folder(run) or run).resolve()),
        "measurements": len(measured),
        "sha256": digest.hexdigest(),
    }
    # Another task may be about to write the same.
    if not (out / _KEY).exists() and (not out.exists() or all(one.name[0] == "." for one in out.iterdir())):
        write_json(out / _KEY, key)
        return
    try:
        same = json.loads((out / _KEY).read_text()) == key
    except (OSError, ValueError):
        raise UsageError(f"{out} holds something else than scores; name another --out") from None
    if not same:
        raise UsageError(
            f"{out} holds the scores of other measurements or of another run; name another --out"
        )


def _score_day(model: "Model", measured: Columns, rows: np.ndarray, file: Path) -> None:
    parts = [_table(measured, part) for part in results(model, measured, rows)]
    with whole_file(file) as aside:
        pq.write_table(pa.concat_tables(parts).combine_chunks(), aside, compression="zstd")


def _table(measured: Columns, part: Any) -> pa.Table:
    asked = measured.take(part.row)
    quantiles = part.expected.quantile(np.array(_LEVELS))
    columns: Sequence[Any] = [
        pa.array(asked.time, pa.int64()).cast(SCHEMA.field("event_time").type),
        unpack(asked.src), unpack(asked.dst), part.rtt, part.bits, part.tail, part.expected.failure,
        *np.asarray(quantiles, np.float64).T, part.kind, part.row,
    ]  # fmt: skip
    return pa.table(
        [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for column, field in zip(columns, SCHEMA, strict=True)
        ],
        schema=SCHEMA,
    )


def _finish(out: Path, days: Sequence[int], measurements: int) -> dict[str, Any]:
    missing = [day for day in days if not _file(out, day).exists()]
    if missing:
        raise PingError(
            f"{len(missing)} of {len(days)} days are not scored yet (such as "
            f"{np.datetime64(missing[0], 'D')}); run the step `score` of all tasks"
        )
    bits = tails = outer = 0.0
    for day in days:
        found = pq.read_table(_file(out, day), columns=["bits", "tail"], partitioning=None)
        bits += float(found["bits"].to_numpy().sum())
        tail = found["tail"].to_numpy()
        tails += float((tail < 0.1).sum())
        outer += float((tail < 0.01).sum())
    summary = {
        "measurements": measurements,
        "days": len(days),
        "mean_bits": round(bits / max(measurements, 1), 6),
        "outside_90": round(tails / max(measurements, 1), 6),
        "outside_99": round(outer / max(measurements, 1), 6),
    }
    write_json(out / _SUMMARY, summary)
    return summary
