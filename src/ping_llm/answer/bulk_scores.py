"""`query score --out`: the score of every measurement of a file.

Every result is compared with the answer given all earlier measurements of the input and of the run's data.
The input takes about 100 bytes per measurement in memory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ping_llm.answer.bulk import Job, digest
from ping_llm.answer.conditions import COLUMNS
from ping_llm.answer.files import read_columns
from ping_llm.answer.report import NEEDS, results
from ping_llm.errors import UsageError
from ping_llm.measurements.addresses import unpack
from ping_llm.measurements.columns import NO_TIME, Columns
from ping_llm.model import export

if TYPE_CHECKING:
    from ping_llm.answer.model import Model

_LEVELS = (0.05, 0.5, 0.95)

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


@dataclass(frozen=True)
class ScoreJob(Job):
    """Scores of measurements; `run` must not be None."""

    step, command, made, items = "score", "score", "scores", "measurements"

    def open(self) -> "Model":
        from ping_llm.answer.model import Model

        assert self.run is not None
        return Model.load(self.run, data=self.data)

    def read(self) -> tuple[Columns, np.ndarray]:
        assert self.run is not None
        known = [COLUMNS[name] for name in export.optional_fields(self.run)]
        measured = read_columns(self.path, needs=NEEDS, optional=known)
        if (measured.time == NO_TIME).any():
            raise UsageError(
                f"{self.path} has measurements without event_time, and --out writes a file per day: fill in "
                "event_time, or score without --out"
            )
        return measured, measured.time

    def key(self, given: Columns) -> dict[str, Any]:
        columns = (given.time, given.src, given.dst, given.rtt, *given.optional().values())
        return {"measurements": len(given), "sha256": digest(columns)}

    def table(self, model: "Model", given: Columns, rows: np.ndarray) -> pa.Table:
        return pa.concat_tables([_table(given, part) for part in results(model, given, rows)])

    def summary(self, tables: Iterable[pa.Table], count: int) -> dict[str, Any]:
        bits = tails = outer = 0.0
        for found in tables:
            bits += float(found["bits"].to_numpy().sum())
            tail = found["tail"].to_numpy()
            tails += float((tail < 0.1).sum())
            outer += float((tail < 0.01).sum())
        return {
            "mean_bits": round(bits / max(count, 1), 6),
            "outside_90": round(tails / max(count, 1), 6),
            "outside_99": round(outer / max(count, 1), 6),
        }


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
