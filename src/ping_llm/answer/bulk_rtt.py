"""`query rtt --pairs --out`: the RTT distribution of every pair of a file, as quantiles."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ping_llm.answer import show
from ping_llm.answer.bulk import Job, digest
from ping_llm.answer.context import Question
from ping_llm.answer.files import read_questions
from ping_llm.answer.results import RttAnswer
from ping_llm.errors import UsageError
from ping_llm.measurements.columns import NO_TIME
from ping_llm.model import export

if TYPE_CHECKING:
    from ping_llm.answer.answering import SimpleModel
    from ping_llm.answer.model import Model

SCHEMA = pa.schema(
    [
        pa.field("event_time", pa.timestamp("us", tz="UTC")),
        pa.field("src_addr", pa.string()),
        pa.field("dst_addr", pa.string()),
        pa.field("failure", pa.float64()),
        pa.field("point", pa.float64()),
        pa.field("mean", pa.float64()),
        *(pa.field(f"p{100 * level:g}", pa.float64()) for level in show.LEVELS),
        pa.field("kind", pa.string()),
        pa.field("context_used", pa.int64()),
        pa.field("notes", pa.list_(pa.string())),
        pa.field("rtt", pa.float64()),
        pa.field("bits", pa.float64()),
        pa.field("crps", pa.float64()),
        pa.field("row", pa.int64()),
    ],
    metadata={"ping_llm.answers": "1"},
)

#: Questions, and the RTTs that were observed, if any.
_Given = tuple[list[Question], np.ndarray | None]


@dataclass(frozen=True)
class RttJob(Job):
    """Answers to a table of pairs.

    Attributes:
      method: as for `query rtt`; without a run, a simple method that is fitted to `data`.
      raw: whether to use the network alone, without calibration.
    """

    method: str = "stack"
    raw: bool = False

    step, command, made, items = "answer", "rtt", "answers", "questions"
    # A question takes about 0.02 s (docs/serve.md), so a lost worker costs at most 17 minutes of one core.
    part_rows = 50_000

    def open(self) -> "Model | SimpleModel":
        from ping_llm.answer.answering import SimpleModel
        from ping_llm.answer.model import Model

        if self.run is not None:
            return Model.load(self.run, data=self.data)
        if not isinstance(self.data, Path):
            raise UsageError(
                "without a run, a simple method needs --data: the rows or the file that it is fitted to"
            )
        return SimpleModel(self.method, self.data)

    def read(self) -> tuple[_Given, np.ndarray]:
        known = () if self.run is None else export.optional_fields(self.run)
        questions, observed = read_questions(self.path, known)
        times = (NO_TIME if one.time is None else one.time for one in questions)
        return (questions, observed), np.fromiter(times, np.int64, len(questions))

    def key(self, given: _Given) -> dict[str, Any]:
        questions, observed = given
        texts = "\n".join(
            f"{one.src} {one.dst} {one.time} {one.conditions}".rstrip() for one in questions
        ).encode()
        columns = [np.frombuffer(texts, np.uint8), *([] if observed is None else [observed])]
        return {
            "data": str(self.data.resolve()) if isinstance(self.data, Path) else self.data,
            "method": self.method,
            "raw": self.raw,
            "questions": len(questions),
            "sha256": digest(columns),
        }

    def table(self, model: "Model | SimpleModel", given: _Given, rows: np.ndarray) -> pa.Table:
        questions, observed = given
        asked = [questions[row] for row in rows.tolist()]
        made: list[dict[str, Any]] = [{}] * len(rows)
        for index, answer in self._answers(model, asked):
            row = int(rows[index])
            made[index] = _values(answer, row, np.nan if observed is None else float(observed[row]))
        return pa.Table.from_pylist(made, SCHEMA)

    def _answers(
        self, model: "Model | SimpleModel", asked: list[Question]
    ) -> Iterable[tuple[int, RttAnswer]]:
        from ping_llm.answer.answering import SimpleModel

        if isinstance(model, SimpleModel):
            return model.rtt_stream(asked)
        return model.rtt_stream(asked, raw=self.raw, method=self.method)

    def summary(self, tables: Iterable[pa.Table], count: int) -> dict[str, Any]:
        bits = observed = 0.0
        for found in tables:
            known = found["bits"].drop_null().to_numpy()
            bits += float(known.sum())
            observed += len(known)
        return {"observed": int(observed), "mean_bits": round(bits / observed, 6) if observed else None}


def _values(answer: RttAnswer, row: int, rtt: float) -> dict[str, Any]:
    values = show.rtt_values(answer)
    levels = {f"p{100 * level:g}": values["quantiles"][f"{level:g}"] for level in show.LEVELS}
    return levels | {
        "event_time": answer.question.time,
        "src_addr": values["src_addr"],
        "dst_addr": values["dst_addr"],
        "failure": values["failure"],
        "point": values["point"],
        "mean": values["mean"],
        "kind": answer.rests_on.get("kind"),
        "context_used": answer.context_used,
        "notes": list(answer.notes),
        "row": row,
        **show.observed_values(answer.distribution, rtt),
    }
