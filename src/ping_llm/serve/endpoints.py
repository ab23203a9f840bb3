"""Endpoints: each converts a body to questions, has the model thread answer them, and sends JSON."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from fastapi import Request, Response

from ping_llm.answer import rank as ranking
from ping_llm.answer import show
from ping_llm.answer.context import Context, Question
from ping_llm.answer.report import result_values, results
from ping_llm.measurements.columns import Columns
from ping_llm.serve import about
from ping_llm.serve.model_thread import ModelThread
from ping_llm.serve.names import Ends, RequestNames, noted
from ping_llm.serve.ndjson import NdjsonStream
from ping_llm.serve.options import ServeOptions
from ping_llm.serve.reading import JSON, NDJSON, json_response, media_type, read_body, unless_gone
from ping_llm.serve.refusals import Refused
from ping_llm.serve.requests import (
    Body,
    CompleteBody,
    InverseBody,
    MeasurementBody,
    RankBody,
    RttBody,
    ScoreBody,
    bodies_of,
    body_of,
    columns_of,
    moment,
    parse,
    question_of,
    within,
)

if TYPE_CHECKING:
    from ping_llm.answer.answering import RttAnswer
    from ping_llm.answer.distribution import RttDistribution
    from ping_llm.answer.model import Model

#: Number of earlier lines of an NDJSON body that a score uses, besides the server's data.
_LOOK_BACK = 10_000
#: Seconds after which a stream tries again to enter a full queue.
_PAUSE = 0.05


class _Stream(Response):
    """Hands the connection to an NDJSON stream."""

    def __init__(self, stream: NdjsonStream):
        super().__init__()
        self._stream = stream

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._stream(scope, receive, send)


class Endpoints:
    def __init__(self, thread: ModelThread, options: ServeOptions, names: RequestNames):
        self._thread, self._options, self._limits, self._names = thread, options, options.limits, names

    async def rtt(self, request: Request) -> Response:
        if media_type(request) == NDJSON:
            return _Stream(NdjsonStream(request.receive, self._rtt_lines, self._limits))
        raw = await read_body(request, self._limits)
        is_list, bodies = await _apart(raw, lambda raw: _bodies(RttBody, raw))
        ends = await self._names.pairs([(body.src, body.dst) for body in bodies])
        asked = await _apart(raw, lambda raw: _each(is_list, self._asked, bodies, ends))
        answers = await unless_gone(request, self._ask(asked))
        return json_response(answers if is_list else answers[0])

    def _ask(self, asked: Sequence["_Asked"]) -> Awaitable[list[Any]]:
        def values(index: int, answer: "RttAnswer") -> dict[str, Any]:
            body = asked[index].body
            made = show.rtt_values(replace(answer, notes=(*asked[index].notes, *answer.notes)), body.below)
            return made if body.curve is None else made | {"curve": curve(answer.distribution, body.curve)}

        methods = list(dict.fromkeys(one.body.method for one in asked))
        if len(methods) > 1:
            raise Refused(422, "the questions of a list must have the same method", "[0].method")
        questions = [one.question for one in asked]
        return self._thread.ask(questions, values, method=methods[0] if methods else "stack")

    def _asked(self, body: RttBody, ends: Ends | Refused) -> "_Asked":
        if isinstance(ends, Refused):
            raise ends
        self._check_context(body.context)
        assert ends.src is not None
        question = question_of(ends.src, ends.dst, body.at, body.context, conditions=body.conditions)
        return _Asked(body, question, ends.notes)

    def _check_context(self, context: Sequence[MeasurementBody] | None) -> None:
        if context is not None and not context and not self._thread.model.knows_addresses:
            raise Refused(
                422, "context must have at least one measurement for the packaged model base; without "
                "context, it answers from the server's data", "context",
            )  # fmt: skip

    async def _rtt_lines(self, number: int, lines: list[bytes]) -> list[Any]:
        """Return one answer per line; for an invalid line, its error."""
        out: list[Any] = [None] * len(lines)
        bodies = await asyncio.to_thread(_lines, RttBody, number, lines, out)
        ends = await self._names.pairs([(body.src, body.dst) for body in bodies.values()])
        good: dict[str, list[tuple[int, _Asked]]] = {}

        def read() -> None:
            for (place, body), each in zip(bodies.items(), ends, strict=True):
                with _line(out, number, place):
                    good.setdefault(body.method, []).append((place, self._asked(body, each)))

        await asyncio.to_thread(read)
        for several in good.values():
            answers = await self._patiently([asked for _, asked in several])
            for (place, _), answer in zip(several, answers, strict=True):
                with _line(out, number, place):
                    if isinstance(answer, Refused):
                        raise answer
                    out[place] = answer
        return out

    async def _patiently(self, several: Sequence["_Asked"]) -> list[Any]:
        """Return the answer or the refusal of each question; wait for room in the queue."""
        try:
            return await self._when_room(lambda: self._ask(several))
        except Refused as refused:
            if refused.status == 503:
                raise
            if len(several) == 1:
                return [Refused(refused.status, refused.message)]
            return [answer for one in several for answer in await self._patiently([one])]

    async def _when_room(self, start: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                answer = start()
            except Refused as refused:
                if refused.status != 503 or self._thread.closed:
                    raise
                await asyncio.sleep(_PAUSE)
            else:
                return await answer

    async def rank(self, request: Request) -> Response:
        body = await self._one(request, RankBody)
        given = [body.src] if isinstance(body.src, str) else body.src
        self._check_size(given, body.dst)
        self._check_context(body.context)
        sources, candidates, notes = await self._names.lists(
            [("src" if isinstance(body.src, str) else f"src[{row}]", src) for row, src in enumerate(given)],
            [(f"dst[{column}]", dst) for column, dst in enumerate(body.dst)],
        )
        self._check_size(sources, candidates)
        if body.context is not None and len(sources) > 1:
            raise Refused(422, "a context holds the measurements of one source: give one src", "context")
        questions = [
            question_of(
                src, dst, body.at, body.context,
                ("src" if isinstance(body.src, str) else f"src[{row}]", f"dst[{column}]"), body.conditions,
            )
            for row, src in enumerate(sources)
            for column, dst in enumerate(candidates)
        ]  # fmt: skip

        def finish(answers: list["RttAnswer"]) -> dict[str, Any]:
            return ranking.of_answers(
                answers, candidates, objective_ms=body.objective_ms, timeout_ms=body.timeout_ms,
                group=body.group, notes=notes,
            ).as_dict()  # fmt: skip

        asked = self._thread.ask(questions, lambda index, answer: answer, method=body.method, finish=finish)
        return json_response(await unless_gone(request, asked))

    def _check_size(self, sources: Sequence[str], candidates: Sequence[str]) -> None:
        if len(sources) * len(candidates) > self._limits.items:
            raise Refused(
                422, f"sources times candidates must be at most {self._limits.items:,}, not "
                f"{len(sources) * len(candidates):,}", "dst",
            )  # fmt: skip

    async def inverse(self, request: Request) -> Response:
        body = await self._one(request, InverseBody)
        fields = ("src", "within")
        ends = await self._names.pair(body.src, body.within, fields)
        assert ends.src is not None
        question = question_of(ends.src, ends.dst, body.at, body.context, fields, body.conditions)

        def find(model: "Model") -> dict[str, Any]:
            found = model.inverse(
                question.src, body.low, body.high, _seconds(question), _known(model, question),
                within=question.dst, count=body.top, bits=body.bits, passes=body.passes,
                conditions=body.conditions,
            )  # fmt: skip
            return _prefixed(show.inverse_values(found, None, body.high), ends)

        return json_response(await unless_gone(request, self._thread.call(find)))

    async def complete(self, request: Request) -> Response:
        body = await self._one(request, CompleteBody)
        if body.field == "dst" and body.src is None:
            raise Refused(422, "src must be given to complete a destination", "src")
        if body.field == "src" and body.context is not None:
            raise Refused(
                422,
                "a context must not be given with field src: it has measurements of a known source",
                "context",
            )
        question = None
        ends = await self._names.pair(body.src, body.dst)
        if ends.src is not None:
            question = question_of(ends.src, ends.dst, body.at, body.context)
        at = None if body.at is None else within("at", moment, body.at) / 1_000_000

        def find(model: "Model") -> dict[str, Any]:
            known = _known(model, question) if question is not None and body.field == "dst" else None
            found = model.complete(
                ends.src, ends.dst, at, known, field=body.field, count=body.top, bits=body.bits,
                version=body.version, passes=body.passes, conditions=body.conditions,
            )  # fmt: skip
            return _prefixed(show.completions_values(found), ends)

        return json_response(await unless_gone(request, self._thread.call(find)))

    async def score(self, request: Request) -> Response:
        if media_type(request) == NDJSON:
            lines = _ScoreLines(self._thread, self._names, self._when_room)
            return _Stream(NdjsonStream(request.receive, lines.answer, self._limits))
        raw = await read_body(request, self._limits)
        is_list, bodies = await _apart(raw, lambda raw: _bodies(ScoreBody, raw))
        if not bodies:
            return json_response([])
        ends = await self._names.pairs([(one.src_addr, one.dst_addr) for one in bodies], _SCORED)
        scored = _each(is_list, _scored, bodies, ends)
        plain = [body for body, _ in scored]
        measured = await _apart(raw, lambda raw: columns_of(plain) if is_list else _only(columns_of, plain))
        made = await unless_gone(request, self._thread.call(lambda model: _scores(model, measured, 0)))
        made = [values | noted(notes) for values, (_, notes) in zip(made, scored, strict=True)]
        return json_response(made if is_list else made[0])

    async def model(self) -> Response:
        return json_response(await asyncio.to_thread(about.describe, self._thread.model, self._options))

    async def _one[T: Body](self, request: Request, kind: type[T]) -> T:
        if media_type(request) == NDJSON:
            raise Refused(415, f"this path takes one object as {JSON}")
        return await _apart(await read_body(request, self._limits), lambda raw: body_of(kind, parse(raw)))


#: Bytes from which a body is read in another thread: 4 MiB of contexts take half a second.
_LONG = 1 << 16


async def _apart[T](raw: bytes, read: Callable[[bytes], T]) -> T:
    """Read a body without blocking other requests."""
    return read(raw) if len(raw) < _LONG else await asyncio.to_thread(read, raw)


def _bodies[T: Body](kind: type[T], raw: bytes) -> tuple[bool, list[T]]:
    """Return whether the body is a list, and its objects."""
    values = parse(raw)
    if isinstance(values, list):
        return True, bodies_of(kind, values)
    return False, [body_of(kind, values)]


def _lines[T: Body](kind: type[T], number: int, lines: list[bytes], out: list[Any]) -> dict[int, T]:
    """Return the objects of valid lines by index; write the errors of the others to `out`."""
    found = {}
    for place, line in enumerate(lines):
        with _line(out, number, place):
            found[place] = body_of(kind, parse(line))
    return found


@contextlib.contextmanager
def _line(out: list[Any], number: int, place: int) -> Iterator[None]:
    """Make a refusal within the block the answer to the line."""
    try:
        yield
    except Refused as refused:
        out[place] = refused.values() | {"line": number + place + 1}


def _each[T: Body, Made](
    is_list: bool,
    make: Callable[[T, Ends | Refused], Made],
    bodies: Sequence[T],
    ends: Sequence[Ends | Refused],
) -> list[Made]:
    """Call a function for each body; in a list, a refusal names the index of the body."""
    return [
        within(f"[{place}]", make, body, each) if is_list else make(body, each)
        for place, (body, each) in enumerate(zip(bodies, ends, strict=True))
    ]


@dataclass(frozen=True)
class _Asked:
    """The question of a body, with notes on what its names stand for."""

    body: RttBody
    question: Question
    notes: tuple[str, ...]


#: Field names of the source and the destination of a measurement.
_SCORED = ("src_addr", "dst_addr")


def _scored(body: ScoreBody, ends: Ends | Refused) -> tuple[ScoreBody, tuple[str, ...]]:
    """Return the measurement with addresses for its names, and notes on what the names stand for."""
    if isinstance(ends, Refused):
        raise ends
    return body.model_copy(update={"src_addr": ends.src, "dst_addr": ends.dst}), ends.notes


def _prefixed(values: dict[str, Any], ends: Ends) -> dict[str, Any]:
    """Return an answer whose first notes say what the names stand for."""
    return values | {"notes": [*ends.notes, *values["notes"]]}


def _only[**P, T](make: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a function for a body that is not a list: refusals have no index."""
    try:
        return make(*arguments, **options)
    except Refused as refused:
        raise Refused(refused.status, refused.message, refused.path.removeprefix("[0].")) from None


class _ScoreLines:
    """Scores the lines of an NDJSON body, each given the lines before it, at most `_LOOK_BACK`."""

    def __init__(
        self,
        thread: ModelThread,
        names: RequestNames,
        when_room: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
    ):
        self._thread, self._names, self._when_room = thread, names, when_room
        self._past = Columns.empty()

    async def answer(self, number: int, lines: list[bytes]) -> list[Any]:
        out: list[Any] = [None] * len(lines)
        bodies = _lines(ScoreBody, number, lines, out)
        ends = await self._names.pairs([(one.src_addr, one.dst_addr) for one in bodies.values()], _SCORED)
        good: list[tuple[int, MeasurementBody, tuple[str, ...]]] = []
        for (place, body), each in zip(bodies.items(), ends, strict=True):
            with _line(out, number, place):
                plain, notes = _scored(body, each)
                _only(columns_of, [plain])
                good.append((place, plain, notes))
        if not good:
            return out
        known = self._past
        every = Columns.concatenate([known, columns_of([body for _, body, _ in good])])

        def start() -> Awaitable[Any]:
            return self._thread.call(lambda model: _scores(model, every, len(known)))

        for (place, _, notes), values in zip(good, await self._when_room(start), strict=True):
            out[place] = values | {"row": number + place} | noted(notes)
        self._past = every.take(slice(max(len(every) - _LOOK_BACK, 0), None))
        return out


def _scores(model: "Model", measured: Columns, first: int) -> list[dict[str, Any]]:
    """Return the scores of all measurements from index `first` on."""
    return [
        result_values(measured, part, place)
        for part in results(model, measured, np.arange(first, len(measured)))
        for place in range(len(part.row))
    ]


def curve(distribution: "RttDistribution", points: int | Literal["all"]) -> dict[str, Any]:
    """Return points (ms, share of the replies below), denser in the tails; or all points, which is exact."""
    if points == "all":
        return {
            "ms": distribution.edges.tolist(),
            "below": distribution.levels.tolist(),
            "guess": distribution.guess,
            "unresolved": distribution.unresolved,
        }
    tails = [0.001, 0.002, 0.005, 0.995, 0.998, 0.999]
    levels = np.unique(np.concatenate([tails, np.linspace(0.0, 1.0, points)[1:-1]]))
    return {"ms": distribution.quantile(levels).tolist(), "below": levels.tolist()}


def _seconds(question: Question) -> float | None:
    return None if question.time is None else question.time / 1_000_000


def _known(model: "Model", question: Question) -> Context | None:
    """Return earlier measurements for a question to the network alone, chosen as by `ping-llm query`."""
    if question.context is not None or model.data is None:
        return question.context
    found = model.data.context(question, max(model.config.max_length // 11, 4))
    return found if len(found) else None
