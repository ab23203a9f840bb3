"""`base`, the model in the package: it was not trained on the data that it is queried about.

It answers from given measurements: rows or files (`about`), or the context of a question. They are shown to
its network, simple methods are fitted to them, and the recipe holds the weight of each.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from ping_llm.answer.address_queries import Known
from ping_llm.answer.answering import RAW, STACK, RttAnswer
from ping_llm.answer.context import Context, Question
from ping_llm.answer.explain import LEFT_OUT, MOST, Explanation, Influence
from ping_llm.answer.files import read_columns
from ping_llm.answer.model import Model
from ping_llm.answer.past import Data
from ping_llm.answer.plan import Plan
from ping_llm.answer.rank import Ranking
from ping_llm.answer.recipe import MOST_MEASUREMENTS, Recipe
from ping_llm.answer.stack import NETWORK, Stack
from ping_llm.errors import PingError, UsageError
from ping_llm.interchange import is_table
from ping_llm.measurements.addresses import unpack_one
from ping_llm.measurements.columns import NO_TIME, Columns
from ping_llm.measurements.ids import Filter, hashed
from ping_llm.measurements.schema import NO_REPLY
from ping_llm.model import export
from ping_llm.model.packaged import NAME, packaged
from ping_llm.rows.manifest import MANIFEST_FILE, load_manifest
from ping_llm.splits.novelty import Novelty
from ping_llm.tables import counted

if TYPE_CHECKING:
    from ping_llm.model.engine import Engine

#: Largest number of measurements read into memory: 56 bytes each, and as much again for the methods.
MOST_READ = 20_000_000

#: Limits of an explanation without the measurements of one other source: largest number of such sources, and
#: of measurements. Methods are fitted again for each source, which takes one second for 20,000 measurements.
_MOST_OTHERS = 5
_MOST_REFITTED = 20_000

#: Usual range of the median RTT, ms. A median outside is possible, but more often means another unit.
_USUAL_MS = (0.25, 5000.0)

_GIVE = "(--data ROWS or FILE, or --context FILE; in Python data=… or context=…)"


class _LateEngine:
    """Engine that is created on first use: answers by `relations` need neither the engine nor JAX."""

    def __init__(self, model: export.Exported):
        self.config, self._model = model.config, model

    @cached_property
    def _engine(self) -> "Engine":
        return Model._engine(self._model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class BaseModel(Model):
    """The packaged model. `about` returns a copy that answers from given measurements."""

    knows_addresses = False
    recipe: Recipe
    #: The measurements that it answers from, oldest first, and the stacks fitted to the oldest of them, by
    #: number of measurements.
    _known: Columns
    _stacks: dict[int, Stack]
    #: Hashes of the pairs of `_known`, ascending, and the measurement of each; None until they are needed.
    _ends: tuple[np.ndarray, np.ndarray] | None = None

    @staticmethod
    def _check_installed() -> None:
        import safetensors  # noqa: F401

    @staticmethod
    def _engine(model: export.Exported) -> "Engine":
        return cast("Engine", _LateEngine(model))

    @classmethod
    def packaged(cls) -> "BaseModel":
        """Load the packaged model."""
        return cls.at(packaged())

    @classmethod
    def at(cls, folder: Path, data: "bool | Known" = True) -> "BaseModel":
        """Load from an export with a recipe.

        Args:
          data: the measurements to answer from, or a path of them. True: the data that the model was tuned
            to, if it was tuned and they still exist. False: none.
        """
        model = cls._loaded(folder)
        kept, model.stack = model.stack, None
        model.recipe = Recipe.load(folder)
        if isinstance(data, str | Path):
            return model.about(read_data(Path(data)))
        if not isinstance(data, bool):
            return model.about(_columns(data))
        if data:
            model._remember(folder)
        return model if model.data is None else model.about(model.data.columns(), kept)

    def about(self, measurements: Columns, kept: Stack | None = None) -> "BaseModel":
        """Return a copy of the model that answers from these measurements.

        Args:
          kept: stack saved by `save_methods` for the same measurements.
        """
        if not len(measurements):
            raise PingError(
                "the packaged model needs at least one measurement to answer from, and the data have none"
            )
        model = copy(self)
        model._known = measurements.sorted_by_time()
        model.stack = self.recipe.stack(model._known, self, kept)
        model._stacks = {len(measurements): model.stack}
        model.data, model._ends = Data.of(measurements), None
        if len(measurements) > MOST_MEASUREMENTS:
            model.data_note = (
                f"the packaged model compares with the newest {MOST_MEASUREMENTS:,} of "
                f"{len(measurements):,} measurements; `ping-llm fit` learns from all"
            )
        middle = float(np.median(replies)) if len(replies := measurements.rtt[measurements.replied]) else 1.0
        if not _USUAL_MS[0] <= middle <= _USUAL_MS[1]:
            unit = "seconds" if middle < 1 else "microseconds"
            model.doubts = (
                *self.doubts,
                f"the RTTs given have a median of {middle:.3g} ms: are they {unit}? RTTs must be in ms",
            )
        return model

    def save_methods(self, folder: Path) -> None:
        """Save the simple methods that were fitted to the data; the network needs no fitting."""
        assert self.stack is not None
        methods = {name: method for name, method in self.stack.methods.items() if name != NAME}
        trained = Novelty.of(self._known, Filter)
        replace(self.stack, methods=methods, trained=trained, network_trained=trained).save(folder)

    @property
    def of_contexts(self) -> "BaseModel":
        """Copy without data: each question is answered from its own context alone, as in `rtt`."""
        model = copy(self)
        model.data, model.stack = None, None
        return model

    def rtt(self, src: Any, dst: Any = None, at: Any = None, context: Any = None, **how: Any) -> Any:
        """Answer as `Model.rtt`. The context may hold measurements of any sources, and all are used."""
        if context is None or is_table(src):
            return super().rtt(src, dst, at, context, **how)
        return self.about(_columns(context)).rtt(src, dst, at, **how)

    def rank(self, src: Any, dst: Any, at: Any = None, context: Any = None, **how: Any) -> Ranking:
        """Rank as `Model.rank`. The context may hold measurements of any sources, and all are used."""
        if context is None:
            return super().rank(src, dst, at, **how)
        return self.about(_columns(context)).rank(src, dst, at, **how)

    def explain(self, question: Question, *, left_out: int = LEFT_OUT) -> Explanation:
        """Explain as `Model.explain`, and add the answer without the measurements of other sources."""
        if self.data is None:
            if question.context is None or not len(question.context):
                raise UsageError(self._nothing)
            known = self.about(question.context.columns())
            return known.explain(replace(question, context=None), left_out=left_out)
        made = super().explain(question, left_out=left_out)
        made = self._with_others(made, replace(question, context=None))
        own = self.data.context(question, MOST) if question.context is None else question.context
        if not len(own):
            return made
        (answer,) = self.about(own.columns()).rtt_many([replace(question, context=None)])
        alone = Influence.of("nothing of other sources", made.answer, answer)
        return replace(made, alternatives=(*made.alternatives, alone))

    def _with_others(self, made: Explanation, question: Question) -> Explanation:
        """Add the answers without the measurements of one other source to the destination."""
        if question.dst is None or len(self._known) > _MOST_REFITTED:
            return made
        src, dst = (np.frombuffer(end.packed, np.uint8) for end in (question.src, question.dst))
        to_dst = (self._known.dst == dst).all(axis=1) & (self._known.src != src).any(axis=1)
        newest = self._known.src[to_dst][::-1]
        _, first = np.unique(newest, axis=0, return_index=True)
        found = []
        for other in newest[np.sort(first)[:_MOST_OTHERS]]:
            theirs = to_dst & (self._known.src == other).all(axis=1)
            if theirs.all():
                continue  # nothing would be left to answer from
            (answer,) = self.about(self._known.take(~theirs)).rtt_many([question])
            words = f"all but {counted(int(theirs.sum()), 'measurement')} of {unpack_one(other.tobytes())}"
            found.append(Influence.of(f"{words} to {question.dst}", made.answer, answer))
        several = sorted((*made.measurements, *found), key=lambda influence: -influence.bits)
        return replace(made, measurements=tuple(several))

    def plan(
        self, questions: Any, budget: int, candidates: Any = None, *, data: Any = None, **how: Any
    ) -> Plan:
        """Plan as `Model.plan`."""
        if data is None:
            return super().plan(questions, budget, candidates, **how)
        return self._on(data).plan(questions, budget, candidates, **how)

    def rtt_stream(
        self,
        questions: Sequence[Question],
        *,
        data: Data | str | Path | None = None,
        raw: bool = False,
        method: str = STACK,
        all_orders: bool = False,
    ) -> Iterator[tuple[int, RttAnswer]]:
        """Answer as `Model.rtt_stream`; `raw` and `network` mean the network alone, with crossed contexts."""
        if all_orders:
            raise UsageError(
                "all_orders must not be given for the packaged model: its prompts have one order of fields"
            )
        if data is not None:
            return self._on(data).rtt_stream(questions, raw=raw, method=method)
        if self.stack is None:
            return self._from_contexts(questions, raw, method)
        return self._from_stacks(
            questions, self.recipe.network if raw or method in (RAW, NETWORK) else method
        )

    def _from_stacks(self, questions: Sequence[Question], method: str) -> Iterator[tuple[int, RttAnswer]]:
        time = [NO_TIME if question.time is None else question.time for question in questions]
        for rows, stack in self.stacks(np.array(time, np.int64)):
            then = copy(self)
            then.stack = stack
            for number, answer in Model.rtt_stream(then, [questions[row] for row in rows], method=method):
                notes = filter(None, (self._all_later(answer.question), self._reverse(answer)))
                answer = replace(answer, notes=(*answer.notes, *notes))
                yield int(rows[number]), _from_data(answer, self.recipe)

    def _all_later(self, question: Question) -> str | None:
        """Note that the question is earlier than everything that is known, or None."""
        if question.time is None or self._known.time[0] < question.time:
            return None
        return (
            f"none of the {counted(len(self._known), 'measurement')} given is earlier than the question, and "
            "only earlier ones are used: this answer rests on none"
        )

    def _reverse(self, answer: RttAnswer) -> str | None:
        """Note on earlier results of the opposite direction of a pair that was not measured, or None."""
        src, dst = answer.question.src, answer.question.dst
        if answer.rests_on["pair_measurements"] or dst is None or not (src.is_whole and dst.is_whole):
            return None
        if self._ends is None:
            pairs = hashed(self._known.dst, after=hashed(self._known.src))
            order = np.argsort(pairs)
            self._ends = pairs[order], order
        first, second = (np.frombuffer(end.packed, np.uint8)[None] for end in (dst, src))
        wanted = hashed(second, after=hashed(first))[0]
        pairs, order = self._ends
        low, high = np.searchsorted(pairs, wanted, "left"), np.searchsorted(pairs, wanted, "right")
        rows = order[low:high]
        if answer.question.time is not None:
            rows = rows[self._known.time[rows] < answer.question.time]
        if not len(rows):
            return None
        rtt = self._known.rtt[rows]
        replies = rtt[rtt != NO_REPLY]
        median = f", median {np.median(replies):.4g} ms" if len(replies) else ""
        return f"the reverse pair was measured: {_replies(len(replies))}{median}"

    def stacks(self, time: np.ndarray) -> Iterator[tuple[np.ndarray, Stack]]:
        """Yield (indices of the questions, their stack), fitted only to measurements before the questions.

        The data have a few nested oldest parts. The methods of a question are fitted to the largest part
        whose measurements are all earlier than the question.

        Args:
          time: int64 [n], µs since 1970 or NO_TIME, of each question.
        """
        if self.stack is None:
            return
        known = np.searchsorted(self._known.time, time, side="left")
        known = np.where(time == NO_TIME, len(self._known), known)
        sizes = _part_sizes(len(self._known))
        part = sizes[np.searchsorted(sizes, known, side="right") - 1]
        for size in np.unique(part).tolist():
            if size not in self._stacks:
                self._stacks[size] = self.recipe.stack(self._known.take(slice(0, size)), self, learn=False)
            yield np.flatnonzero(part == size), self._stacks[size]

    def _on(self, data: Data | str | Path) -> "BaseModel":
        return self.about(data.columns() if isinstance(data, Data) else read_data(Path(data)))

    @property
    def _nothing(self) -> str:
        """Error for a question without measurements to answer from."""
        if self.recipe.is_tuned:
            return (
                "a run that was tuned with --minutes 0 answers from measurements: use the run's data, or "
                f"give others {_GIVE}"
            )
        return (
            "the packaged model has never seen your network: give it earlier measurements to answer from "
            f"{_GIVE}"
        )

    def _knows_no_addresses(self, *arguments: Any, **options: Any) -> NoReturn:
        if self.recipe.is_tuned:
            raise UsageError(
                "this run was tuned with --minutes 0 and knows no addresses, it only infers RTTs: to "
                "complete, invert, generate or score addresses, fit a run with minutes of training "
                "(`ping-llm fit DATA --run RUN --minutes 20`)"
            )
        raise UsageError(
            "the packaged model knows no addresses, it only infers RTTs: to complete, invert, generate or "
            "score addresses, fit a model (`ping-llm fit`)"
        )

    complete = sample_addresses = inverse = generate = scorer = _knows_no_addresses

    def _from_contexts(
        self, questions: Sequence[Question], raw: bool, method: str
    ) -> Iterator[tuple[int, RttAnswer]]:
        """Answer each question from its own context alone, independent of the other questions."""
        groups: dict[int, list[int]] = {}
        for index, question in enumerate(questions):
            if question.context is None or not len(question.context):
                raise UsageError(self._nothing)
            groups.setdefault(id(question.context), []).append(index)
        for chosen in groups.values():
            known = questions[chosen[0]].context
            assert known is not None
            asked = [replace(questions[index], context=None) for index in chosen]
            for number, answer in self.about(known.columns()).rtt_stream(asked, raw=raw, method=method):
                yield chosen[number], answer


def _replies(count: int) -> str:
    return "1 reply" if count == 1 else f"{count:,} replies"


def _part_sizes(count: int) -> np.ndarray:
    """Sizes of the oldest parts, int64, ascending from 0 to `count`.

    Each size is four fifths of the next, above 2,000 half of the next, because fits take time.
    """
    sizes = [count]
    while sizes[-1]:
        sizes.append(sizes[-1] // 2 if sizes[-1] > 2000 else sizes[-1] * 4 // 5)
    return np.array(sizes[::-1], np.int64)


def _from_data(answer: RttAnswer, recipe: Recipe) -> RttAnswer:
    """Mark an answer as given by the packaged model: its "trained on" figures are about the given data."""
    marks = {"packaged": True} | ({"tuned": True} if recipe.is_tuned else {})
    return replace(answer, rests_on=answer.rests_on | marks)


def _columns(known: Known) -> Columns:
    return (known if isinstance(known, Context) else Context.from_measurements(known)).columns()


def read_data(path: Path, src: str | None = None) -> Columns:
    """Read measurements in any form: rows, or files that `ingest` reads.

    Args:
      src: the address where ping, fping or mtr was run, for the output of one of them.
    """
    if (path / MANIFEST_FILE).exists():
        count = int(load_manifest(path)["counts"]["measurements"])
        if count > MOST_READ:
            raise PingError(
                f"{path} has {count:,} measurements; the packaged model holds at most {MOST_READ:,} in "
                "memory: `ping-llm fit` makes a model of them"
            )
        return Data(path).columns()
    return read_columns(path, src=src)
