"""A loaded model, with one method per kind of query."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np

from ping_llm.answer import edge
from ping_llm.answer import plan as planning
from ping_llm.answer import rank as ranking
from ping_llm.answer import rtt as rtt_query
from ping_llm.answer.address_queries import Address, AddressQueries, Known, Time
from ping_llm.answer.answering import STACK, RttAnswer
from ping_llm.answer.conditions import Given
from ping_llm.answer.context import (
    Context,
    Question,
)
from ping_llm.answer.explain import LEFT_OUT, Explanation, explain
from ping_llm.answer.names import NameIndex, Names
from ping_llm.answer.past import Data
from ping_llm.answer.plan import Measure, Plan
from ping_llm.answer.rank import Ranking
from ping_llm.answer.rtt import RttScores
from ping_llm.answer.rtt_model import RttModel
from ping_llm.answer.stack import Stack
from ping_llm.answer.table import LEVELS, rtt_table
from ping_llm.errors import PingError, UsageError
from ping_llm.interchange import Table, is_table
from ping_llm.measurements.addresses import Prefix
from ping_llm.model import export
from ping_llm.model.doubts import doubts
from ping_llm.model.packaged import base_folder

if TYPE_CHECKING:
    from ping_llm.model.engine import Engine


class Model(RttModel, AddressQueries):
    """Weights, tokens, engine, and the stack that turns them into calibrated answers.

    `ping_llm.load` makes one.

    Attributes:
      stack: None for a run that was never calibrated; its answers are those of the network alone.
      data: probe rows from which questions without a context take one; None: no data.
      data_note: reason why the data recorded in the run are not used, if so.
      doubts: sentences about a training that was too short or had too little data.
      lost_to: the simple method that was better, by test of the run's report, where one was.
      places: tables or databases of places, for names such as AS3333.
    """

    places: Sequence[Path] = ()
    _names: tuple[Sequence[Path], Data | None, Names] | None = None

    @property
    def of_contexts(self) -> "Model":
        """The model for questions with their own context."""
        return self

    @property
    def names(self) -> Names:
        """Resolver of names: host names, and names found in the places and the data."""
        # A copy of a model may have other data.
        if self._names is None or self._names[0] is not self.places or self._names[1] is not self.data:
            self._names = (self.places, self.data, Names(NameIndex(self.places, self.data)))
        return self._names[2]

    @classmethod
    def load(cls, source: str | Path, *, data: bool | Known = True) -> "Model":
        """Load a run, a checkpoint, an export, or `base`, the model in the package.

        Args:
          data: probe rows from which contexts are taken, or measurements in memory (for `base`: measurements
            in any form). True: the rows recorded in the run, if they still exist; False: none.
        """
        if (folder := base_folder(source)) is not None:
            from ping_llm.answer.base import BaseModel

            return BaseModel.at(folder, data)
        if edge.is_edge(Path(source)):
            loaded = cls._of(edge.load(Path(source)))
        else:
            loaded = cls._loaded(source)
        if isinstance(data, (str, Path)):
            loaded.data = loaded.open_data(data)
        elif not isinstance(data, bool):
            known = data if isinstance(data, Context) else Context.from_measurements(data)
            if not len(known):
                raise PingError("the data have no measurement: use False for none")
            loaded.data = Data.of(known.columns(), loaded.optional_columns)
        elif data:
            loaded._remember(Path(source))
        return loaded

    @classmethod
    def _loaded(cls, source: str | Path) -> Self:
        """Load everything except data."""
        cls._check_installed()
        model = export.read(source)
        encoding = edge.encoding_of(model.tokens, model.origin)
        engine = cls._engine(model)
        stack = None if model.stack is None else Stack.load(model.stack)
        loaded = cls(engine, encoding, model.tokens, model.origin, stack)
        loaded.lost_to = edge.lost_to(model.stack)
        loaded.doubts = doubts(source)
        return loaded

    @staticmethod
    def _check_installed() -> None:
        """Import what is needed, so that a missing package is reported before an error in the run."""
        import ping_llm.model.engine  # noqa: F401

    @staticmethod
    def _engine(model: export.Exported) -> "Engine":
        from ping_llm.model.engine import Engine, keep_compiled  # imported late: an edge export needs no JAX

        keep_compiled()
        return Engine(model.config, model.tensors)

    @classmethod
    def _of(cls, other: RttModel) -> Self:
        loaded = cls(other.engine, other.encoding, other.tokens, other.origin, other.stack)
        loaded.lost_to = other.lost_to
        return loaded

    def _remember(self, run: Path) -> None:
        """Open the rows that the run was fitted on, if they exist and are unchanged."""
        wanted = export.remembered_data(run)
        if wanted is None:
            return
        try:
            found = self.open_data(wanted["rows"])
        except PingError:
            self.data_note = f"the run's data are not at {wanted['rows']}: answers do not use it"
            return
        if found.fingerprint != wanted["fingerprint"]:
            self.data_note = f"{wanted['rows']} has changed since the run: answers do not use it"
            return
        self.data = found

    @overload
    def rtt(
        self,
        src: Address,
        dst: Address,
        at: Time | None = None,
        context: Known | None = None,
        *,
        data: Data | str | Path | None = None,
        raw: bool = False,
        method: str = STACK,
        all_orders: bool = False,
        conditions: Given = None,
    ) -> RttAnswer: ...

    @overload
    def rtt(
        self,
        src: Table,
        *,
        context: Context | Table | None = None,
        data: Data | str | Path | None = None,
        raw: bool = False,
        method: str = STACK,
        all_orders: bool = False,
        quantiles: Sequence[float] = LEVELS,
    ) -> Any: ...

    def rtt(
        self,
        src: Address | Table,
        dst: Address | None = None,
        at: Time | None = None,
        context: Known | None = None,
        *,
        data: Data | str | Path | None = None,
        raw: bool = False,
        method: str = STACK,
        all_orders: bool = False,
        quantiles: Sequence[float] = LEVELS,
        conditions: Given = None,
    ) -> Any:
        """Return P(rtt, failure | src, dst, time, context), as evaluated.

        Given a table (pandas, polars, pyarrow) of `src_addr`, `dst_addr` and, where known, `event_time`, it
        returns a table of the same library with the columns `failure`, `point`, `q0.05`, `q0.5`, `q0.95`
        (ms) and `kind` added. `context` may then be a table as well; each question uses the measurements of
        its own source. Columns of conditions (`size`, `msm_id`, `probe_id`, `throughput_mbps`) are used where
        the model was trained on them.

        Args:
          src, dst: addresses, prefixes such as 203.0.113.0/24 or 203.0.113.?, or names that stand for one:
            a host name, `AS3333`, `country:NL`, `probe:1234` (see `ping_llm.addresses`).
          at: a datetime, seconds since 1970 or an ISO text.
          context: earlier measurements of the same source (for `base` and tuned runs: of any sources): a list
            of `Measurement` or of dictionaries, a table, or a file that `ingest` reads; by default those of
            `data`.
          data: probe rows from which contexts are taken; by default the model's own.
          raw: the exact distribution of the network alone, not calibrated.
          method: `stack`, `network` or a simple method that the run has.
          all_orders: with raw: average over the orders in which the question's fields can be stated.
          quantiles: levels of the quantiles, for a table.
          conditions: further known values, such as {"size": 1000}: any of `size`, `errors`, `msm_id`,
            `probe_id` and `throughput` (Mbit/s) that the model was trained on.
        """
        if is_table(src):
            how = {"data": data, "raw": raw, "method": method, "all_orders": all_orders}
            return rtt_table(self, src, context, quantiles, conditions=conditions, **how)
        if dst is None or not isinstance(src, str | Prefix):
            raise UsageError("ask with a source and a destination, or with a table of src_addr and dst_addr")
        ends = self.names.ends(src, dst)
        assert ends.src is not None
        question = Question.of(ends.src, ends.dst, at, context, conditions)
        answer = self.rtt_many([question], data=data, raw=raw, method=method, all_orders=all_orders)[0]
        return replace(answer, notes=(*ends.notes, *answer.notes))

    def rtt_scores(
        self,
        questions: Sequence[Question],
        observed: np.ndarray | None = None,
        levels: Sequence[float] = (0.5,),
    ) -> RttScores:
        """Return P(failure), bits of observed results and quantiles; exact, much cheaper than distributions.

        Args:
          questions: questions, each with a context of its own if any.
          observed: float64 [n], ms, -1 for no reply.
          levels: levels of the quantiles.
        """
        return rtt_query.scores(self.engine, self.encoding, self.prompts(questions), observed, levels)

    def rank(
        self,
        src: Address | Sequence[Address],
        dst: Sequence[Address],
        at: Time | None = None,
        context: Known | None = None,
        *,
        objective_ms: float | None = None,
        timeout_ms: float = ranking.TIMEOUT_MS,
        group: ranking.Group = "mean",
        data: Data | str | Path | None = None,
        method: str = STACK,
        conditions: Given = None,
    ) -> Ranking:
        """Rank destinations: the fastest for a source, or the best for several sources.

        Args:
          src: one source, or several; a name, as for `rtt`, may stand for up to 20.
          dst: the candidates; names as for `src`.
          context: past measurements of the source, if there is only one.
          objective_ms: an RTT; the ranking then has P(reply within it).
          timeout_ms: cost of no reply, ms.
          group: how to combine several sources: their `mean`, or the `worst` of them.
          conditions: as for `rtt`.
        """
        given = [src] if isinstance(src, str | Prefix) else src
        sources, candidates, notes = self.names.lists(given, dst)
        questions = [
            Question.of(one, other, at, context, conditions) for one in sources for other in candidates
        ]
        answers = self.rtt_many(questions, data=data, method=method)
        return ranking.of_answers(
            answers, candidates, objective_ms=objective_ms, timeout_ms=timeout_ms, group=group, notes=notes
        )

    def explain(self, question: Question, *, left_out: int = LEFT_OUT) -> Explanation:
        """Return the answer, and the answers without each measurement that it is based on."""
        return explain(self, question, self.data, left_out)

    def plan(
        self,
        questions: Sequence[Question],
        budget: int,
        candidates: Sequence[Question] | None = None,
        *,
        by: Measure = "bits",
        data: Data | str | Path | None = None,
    ) -> Plan:
        """Choose the pairs to measure next, so that questions can be answered with most certainty.

        Args:
          questions: pairs that answers are needed for, with their conditions if any.
          budget: number of measurements.
          candidates: pairs that can be measured; by default those of the questions.
          by: what to reduce: the entropy (`bits`), or the expected CRPS in ms (`crps`).
          data: probe rows with the sources' earlier measurements; by default the model's own.
        """
        rows = self.data if data is None else self.open_data(data)
        possible = questions if candidates is None else candidates
        return planning.plan(self, questions, possible, budget, by=by, data=rows)
