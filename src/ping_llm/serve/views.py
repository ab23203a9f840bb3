"""Endpoints for views of the page: known ends, names, pasted contexts, series, maps."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from fastapi import Depends, Query, Request, Response

from ping_llm.answer.conditions import COLUMNS, LARGEST, Conditions
from ping_llm.answer.context import Question
from ping_llm.answer.known_ends import KnownEnds, network_of
from ping_llm.errors import UsageError
from ping_llm.measurements.addresses import Prefix
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.schema import HOUR_US
from ping_llm.measurements.times import moment_text
from ping_llm.serve import pasted
from ping_llm.serve.model_thread import ModelThread
from ping_llm.serve.names import Ends, RequestNames, noted
from ping_llm.serve.options import LIMITS, ServeOptions
from ping_llm.serve.reading import JSON, json_response, media_type, read_body, unless_gone
from ping_llm.serve.refusals import Refused
from ping_llm.serve.requests import (
    ADDRESS,
    ONE_ADDRESS,
    ConditionsBody,
    ContextText,
    body_of,
    moment,
    parse,
    question_of,
    within,
)

if TYPE_CHECKING:
    from ping_llm.answer.answering import RttAnswer
    from ping_llm.answer.model import Model

#: Quantile levels of the expected band in a series and in a map.
_BAND = (0.05, 0.5, 0.95)
#: Number of points of a forecast: one per half hour of a day.
_FORECAST = 48


def _condition(name: str) -> Any:
    of_body = ConditionsBody.model_fields[name]
    return Query(None, ge=0, le=LARGEST[COLUMNS[name]], description=of_body.description)


def _conditions(
    size: int | None = _condition("size"),
    errors: int | None = _condition("errors"),
    msm_id: int | None = _condition("msm_id"),
    probe_id: int | None = _condition("probe_id"),
    throughput: float | None = _condition("throughput"),
) -> Conditions:
    return Conditions(size, errors, msm_id, probe_id, throughput)


class Views:
    def __init__(self, thread: ModelThread, options: ServeOptions, names: RequestNames):
        self._thread, self._limits, self._names = thread, options.limits, names
        self._places = names.places

    async def context(self, request: Request) -> Response:
        if media_type(request) != JSON:
            raise Refused(415, f"this path takes one object as {JSON}")
        raw = await read_body(request, self._limits)

        def read() -> dict[str, Any]:
            return pasted.read(body_of(ContextText, parse(raw)).text).as_dict()

        return json_response(await asyncio.to_thread(read))

    async def ends(
        self,
        field: Literal["src", "dst"] = "src",
        starts: str = Query("", max_length=LIMITS.text),
        src: str | None = Query(
            None, max_length=LIMITS.text, description=f"only destinations of this source: {ONE_ADDRESS}"
        ),
        version: Literal["4", "6"] | None = None,
        limit: int = Query(20, ge=1, le=LIMITS.items),
    ) -> Response:
        if self._thread.model.data is None:
            return json_response({"ends": [], "known": None})
        known = await asyncio.to_thread(self._known)
        asked = Ends(None, None) if field == "src" else await self._names.pair(src, None)

        def find() -> dict[str, Any]:
            of = known.sources if field == "src" else known.destinations
            if asked.src is not None:
                end = question_of(asked.src, None, None, None).src
                if not end.is_whole:
                    raise Refused(422, "src must be an address, not a prefix", "src")
                of = known.of_source(end)
            wanted = None if version is None else int(version)
            found = of.starting(starts.strip().lower(), wanted, limit)
            return {"ends": found, "known": known.as_dict()} | noted(asked.notes)

        return json_response(await asyncio.to_thread(find))

    async def names(
        self,
        name: str = Query(max_length=LIMITS.text, description=ADDRESS),
        end: Literal["source", "destination"] = "destination",
        version: Literal["4", "6"] | None = None,
    ) -> Response:
        found = await self._names.one(name, end, None if version is None else int(version))
        return json_response({"name": found.text, "addresses": found.addresses, "note": found.note})

    def _known(self) -> KnownEnds:
        known = self._names.known()
        if known is None:
            raise Refused(422, "the server has no measurements: start it with --data ROWS")
        return known

    async def series(
        self,
        request: Request,
        src: str = Query(max_length=LIMITS.text, description=ADDRESS),
        dst: str = Query(max_length=LIMITS.text, description=ADDRESS),
        begin: str | None = Query(None, alias="from", max_length=LIMITS.text),
        end: str | None = Query(None, alias="to", max_length=LIMITS.text),
        limit: int = Query(200, ge=1, le=LIMITS.items),
        forecast: int = Query(0, ge=0, le=168, description="hours after the newest measurement"),
        given: Conditions = Depends(_conditions),
    ) -> Response:
        ends = await self._names.pair(src, dst)
        assert ends.src is not None
        question = question_of(ends.src, ends.dst, None, None)
        assert question.dst is not None
        for field, address in (("src", question.src), ("dst", question.dst)):
            if not address.is_whole:
                raise Refused(422, f"{field} of a series must be an address, not the prefix {address}", field)
        low = 0 if begin is None else within("from", moment, begin)
        high = None if end is None else within("to", moment, end)
        find = self._thread.call(lambda model: _measured(model, question, low, high))
        measured: Columns = await unless_gone(request, find)
        newest = measured.take(slice(max(len(measured) - limit, 0), None))
        rtt = newest.rtt.tolist()
        times = newest.time.tolist()
        if forecast and times:
            step = forecast * HOUR_US // _FORECAST
            times += [times[-1] + step * (place + 1) for place in range(_FORECAST)]
        asked = [Question(question.src, question.dst, time, None, given) for time in times]

        def point(index: int, answer: "RttAnswer") -> dict[str, Any]:
            values = {"event_time": moment_text(times[index])} | _expected(answer)
            if index < len(rtt):
                result = rtt[index]
                values |= {
                    "rtt": result,
                    "bits": answer.distribution.bits(result),
                    "tail": answer.distribution.tail(result),
                }
            return values

        points = await unless_gone(request, self._thread.ask(asked, point))
        return json_response(
            {
                "src_addr": str(question.src),
                "dst_addr": str(question.dst),
                "measured": len(measured),
                "points": points[: len(rtt)],
                "forecast": points[len(rtt) :],
            }
            | noted(ends.notes)
        )

    async def map(
        self,
        request: Request,
        src: str = Query(max_length=LIMITS.text, description=ADDRESS),
        at: str | None = Query(None, max_length=LIMITS.text),
        limit: int = Query(200, ge=1, le=LIMITS.items),
        given: Conditions = Depends(_conditions),
    ) -> Response:
        ends = await self._names.pair(src, None)
        assert ends.src is not None
        source = question_of(ends.src, None, at, None)
        found = await asyncio.to_thread(self._destinations, source.src.version, limit)
        asked = [Question(source.src, one, source.time, None, given) for one, _ in found]

        def point(index: int, answer: "RttAnswer") -> dict[str, Any]:
            dst, count = found[index]
            place = None if self._places is None else self._places.of(dst)
            return {
                "dst_addr": str(dst),
                "network": str(network_of(dst.packed) if dst.is_whole else dst),
                "latitude": None if place is None else place[0],
                "longitude": None if place is None else place[1],
                "measurements": count,
                "kind": answer.rests_on.get("kind"),
            } | _expected(answer)

        points = await unless_gone(request, self._thread.ask(asked, point))
        here = None if self._places is None else self._places.of(source.src)
        return json_response(
            {
                "src_addr": str(source.src),
                "event_time": None if source.time is None else moment_text(source.time),
                "has_places": self._places is not None,
                "latitude": None if here is None else here[0],
                "longitude": None if here is None else here[1],
                "destinations": points,
            }
            | noted(ends.notes)
        )

    def _destinations(self, version: int, limit: int) -> Sequence[tuple[Prefix, int | None]]:
        """Return the most measured destinations with counts; without data, the prefixes of the places."""
        if self._thread.model.data is None and self._places is not None:
            return [(prefix, None) for prefix in self._places.prefixes if prefix.version == version][:limit]
        of = self._known().destinations
        found = of.starting("", version, limit)
        return [(question_of(one["address"], None, None, None).src, one["measurements"]) for one in found]


def _expected(answer: "RttAnswer") -> dict[str, Any]:
    quantiles = answer.distribution.quantile(_BAND)
    return {
        "failure": answer.failure,
        "expected": {f"{one:g}": float(value) for one, value in zip(_BAND, quantiles, strict=True)},
    }


def _measured(model: "Model", question: Question, low: int, high: int | None) -> Columns:
    """Return all measurements of a pair in the server's data within [low, high) µs, oldest first."""
    if model.data is None:
        raise UsageError("the server has no measurements: start it with --data ROWS")
    assert question.dst is not None
    every = model.data.history([question]).columns
    chosen = (every.dst == np.frombuffer(question.dst.packed, np.uint8)).all(axis=1) & (every.time >= low)
    if high is not None:
        chosen &= every.time < high
    return every.take(chosen).sorted_by_time()
