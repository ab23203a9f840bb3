"""Each endpoint turns a body into questions, has the model thread answer them, and sends JSON."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
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

#: Lines of an NDJSON body that a score looks back on, besides the server's data.
_LOOK_BACK = 10_000
#: Seconds after which a stream asks for room in the queue again.
_PAUSE = 0.05


class _Stream(Response):
    """Hands the connection to an NDJSON stream."""

    def __init__(self, stream: NdjsonStream):
        super().__init__()
        self._stream = stream

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._stream(scope, receive, send)


class Endpoints:
    def __init__(self, thread: ModelThread, options: ServeOptions):
        self._thread, self._options, self._limits = thread, options, options.limits

    async def rtt(self, request: Request) -> Response:
        if media_type(request) == NDJSON:
            return _Stream(NdjsonStream(request.receive, self._rtt_lines, self._limits))
        raw = await read_body(request, self._limits)
        is_list, bodies, questions = await _apart(raw, _rtt_questions)
        answers = await unless_gone(request, self._ask(bodies, questions))
        return json_response(answers if is_list else answers[0])

    def _ask(self, bodies: Sequence[RttBody], questions: Sequence[Question]) -> Awaitable[list[Any]]:
        def values(index: int, answer: "RttAnswer") -> dict[str, Any]:
            made = show.rtt_values(answer, bodies[index].below)
            points = bodies[index].curve
            return made if points is None else made | {"curve": curve(answer.distribution, points)}

        methods = list(dict.fromkeys(body.method for body in bodies))
        if len(methods) > 1:
            raise Refused(422, "the questions of a list must have the same method", "[0].method")
        return self._thread.ask(questions, values, method=methods[0] if methods else "stack")

    async def _rtt_lines(self, number: int, lines: list[bytes]) -> list[Any]:
        """Answers to some lines; a line that is wrong has its error in the place of the answer."""
        out: list[Any] = [None] * len(lines)
        good: dict[str, list[tuple[int, RttBody, Question]]] = {}

        def read() -> None:
            for place, line in enumerate(lines):
                try:
                    body = body_of(RttBody, parse(line))
                    good.setdefault(body.method, []).append((place, body, _question(body)))
                except Refused as refused:
                    out[place] = refused.values() | {"line": number + place + 1}

        await asyncio.to_thread(read)
        for several in good.values():
            answers = await self._patiently(several)
            for (place, _, _), answer in zip(several, answers, strict=True):
                out[place] = answer.values() if isinstance(answer, Refused) else answer
                if isinstance(answer, Refused):
                    out[place]["line"] = number + place + 1
        return out

    async def _patiently(self, several: Sequence[tuple[int, RttBody, Question]]) -> list[Any]:
        """Answers, or what is wrong with each question; a stream waits for room in the queue."""
        try:
            bodies, questions = [body for _, body, _ in several], [question for _, _, question in several]
            return await self._when_room(lambda: self._ask(bodies, questions))
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
        sources = [body.src] if isinstance(body.src, str) else body.src
        if len(sources) * len(body.dst) > self._limits.items:
            raise Refused(
                422, f"sources times candidates must be at most {self._limits.items:,}, not "
                f"{len(sources) * len(body.dst):,}", "dst",
            )  # fmt: skip
        if body.context is not None and len(sources) > 1:
            raise Refused(422, "a context holds the measurements of one source: give one src", "context")
        questions = [
            question_of(
                src, dst, body.at, body.context,
                ("src" if isinstance(body.src, str) else f"src[{row}]", f"dst[{column}]"),
            )
            for row, src in enumerate(sources)
            for column, dst in enumerate(body.dst)
        ]  # fmt: skip
        count = len(body.dst)

        def finish(answers: list["RttAnswer"]) -> dict[str, Any]:
            by_source = [answers[start : start + count] for start in range(0, len(answers), count)]
            return ranking.rank(
                by_source, body.dst, objective_ms=body.objective_ms, timeout_ms=body.timeout_ms,
                group=body.group,
            ).as_dict()  # fmt: skip

        asked = self._thread.ask(questions, lambda index, answer: answer, method=body.method, finish=finish)
        return json_response(await unless_gone(request, asked))

    async def inverse(self, request: Request) -> Response:
        body = await self._one(request, InverseBody)
        question = question_of(body.src, body.within, body.at, body.context, ("src", "within"))

        def find(model: "Model") -> dict[str, Any]:
            found = model.inverse(
                question.src, body.low, body.high, _seconds(question), _known(model, question),
                within=question.dst, count=body.top, bits=body.bits, passes=body.passes,
            )  # fmt: skip
            return show.inverse_values(found, None, body.high)

        return json_response(await unless_gone(request, self._thread.call(find)))

    async def complete(self, request: Request) -> Response:
        body = await self._one(request, CompleteBody)
        if body.field == "dst" and body.src is None:
            raise Refused(422, "src must be given to complete a destination", "src")
        if body.field == "src" and body.context is not None:
            raise Refused(422, "a context needs field dst: its source is known", "context")
        question = None
        if body.src is not None:
            question = question_of(body.src, body.dst, body.at, body.context)
        at = None if body.at is None else within("at", moment, body.at) / 1_000_000

        def find(model: "Model") -> dict[str, Any]:
            known = _known(model, question) if question is not None and body.field == "dst" else None
            found = model.complete(
                body.src, body.dst, at, known, field=body.field, count=body.top, bits=body.bits,
                version=body.version, passes=body.passes,
            )  # fmt: skip
            return show.completions_values(found)

        return json_response(await unless_gone(request, self._thread.call(find)))

    async def score(self, request: Request) -> Response:
        if media_type(request) == NDJSON:
            lines = _ScoreLines(self._thread, self._when_room)
            return _Stream(NdjsonStream(request.receive, lines.answer, self._limits))
        is_list, measured = await _apart(await read_body(request, self._limits), _score_columns)
        if not len(measured):
            return json_response([])
        made = await unless_gone(request, self._thread.call(lambda model: _scores(model, measured, 0)))
        return json_response(made if is_list else made[0])

    async def model(self) -> Response:
        return json_response(await asyncio.to_thread(about.describe, self._thread.model, self._options))

    async def _one[T: Body](self, request: Request, kind: type[T]) -> T:
        if media_type(request) == NDJSON:
            raise Refused(415, f"this path takes one object as {JSON}")
        return await _apart(await read_body(request, self._limits), lambda raw: body_of(kind, parse(raw)))


#: Longer bodies are read in a thread of their own: 4 MiB of contexts take half a second.
_LONG = 1 << 16


async def _apart[T](raw: bytes, read: Callable[[bytes], T]) -> T:
    """Read a body without keeping other requests waiting."""
    return read(raw) if len(raw) < _LONG else await asyncio.to_thread(read, raw)


def _rtt_questions(raw: bytes) -> tuple[bool, list[RttBody], list[Question]]:
    """Whether the body is a list, and its questions."""
    values = parse(raw)
    if not isinstance(values, list):
        body = body_of(RttBody, values)
        return False, [body], [_question(body)]
    bodies = bodies_of(RttBody, values)
    return True, bodies, [within(f"[{place}]", _question, body) for place, body in enumerate(bodies)]


def _score_columns(raw: bytes) -> tuple[bool, Columns]:
    values = parse(raw)
    if isinstance(values, list):
        return True, columns_of(bodies_of(ScoreBody, values))
    return False, _only(columns_of, [body_of(ScoreBody, values)])


def _only[**P, T](make: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Without the place in a list, where the body is none."""
    try:
        return make(*arguments, **options)
    except Refused as refused:
        raise Refused(refused.status, refused.message, refused.path.removeprefix("[0].")) from None


class _ScoreLines:
    """Scores of an NDJSON body: each line given those before it, at most `_LOOK_BACK`."""

    def __init__(
        self, thread: ModelThread, when_room: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
    ):
        self._thread, self._when_room = thread, when_room
        self._past = Columns.empty()

    async def answer(self, number: int, lines: list[bytes]) -> list[Any]:
        out: list[Any] = [None] * len(lines)
        good: list[tuple[int, MeasurementBody]] = []
        for place, line in enumerate(lines):
            try:
                body = body_of(ScoreBody, parse(line))
                _only(columns_of, [body])
                good.append((place, body))
            except Refused as refused:
                out[place] = refused.values() | {"line": number + place + 1}
        if not good:
            return out
        known = self._past
        every = Columns.concatenate([known, columns_of([body for _, body in good])])

        def start() -> Awaitable[Any]:
            return self._thread.call(lambda model: _scores(model, every, len(known)))

        for (place, _), values in zip(good, await self._when_room(start), strict=True):
            out[place] = values | {"row": number + place}
        self._past = every.take(slice(max(len(every) - _LOOK_BACK, 0), None))
        return out


def _scores(model: "Model", measured: Columns, first: int) -> list[dict[str, Any]]:
    """The scores of all measurements from `first` on."""
    return [
        result_values(measured, part, place)
        for part in results(model, measured, np.arange(first, len(measured)))
        for place in range(len(part.row))
    ]


def curve(distribution: "RttDistribution", points: int | Literal["all"]) -> dict[str, Any]:
    """Points (ms, share of the replies below), closer together in the tails; or all, which is exact."""
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


def _question(body: RttBody) -> Question:
    return question_of(body.src, body.dst, body.at, body.context)


def _seconds(question: Question) -> float | None:
    return None if question.time is None else question.time / 1_000_000


def _known(model: "Model", question: Question) -> Context | None:
    """Earlier measurements for a question to the network alone, chosen as `query` chooses them."""
    if question.context is not None or model.data is None:
        return question.context
    found = model.data.context(question, max(model.config.max_length // 11, 4))
    return found if len(found) else None
