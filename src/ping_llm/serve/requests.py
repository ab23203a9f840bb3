"""Request bodies: their fields and limits, and their conversion to questions."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ping_llm.answer.conditions import COLUMNS, LARGEST, Conditions, array_of
from ping_llm.answer.context import Context, Question, as_microseconds, as_prefix
from ping_llm.answer.results import INVERSE_PASSES, PASSES
from ping_llm.errors import PingError, UsageError
from ping_llm.measurements.addresses import Prefix, is_ipv4_one, pack_one
from ping_llm.measurements.columns import NO_TIME, Columns
from ping_llm.measurements.schema import MAX_RTT_MS, THROUGHPUT, is_rtt
from ping_llm.serve.options import LIMITS
from ping_llm.serve.refusals import Refused


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, str_max_length=LIMITS.text, allow_inf_nan=False)


Time = Annotated[str | int | float, Field(description="2024-05-01T12:00:00Z, or seconds since 1970")]
#: Texts accepted as an address in a question.
ADDRESS = (
    "an address, a prefix (203.0.113.0/24, 203.0.113.?) or a name: AS3333, NL, probe:1234; a host name if "
    "the server resolves them"
)
Address = Annotated[str, Field(description=ADDRESS, json_schema_extra={"format": "address-or-prefix"})]
ONE_ADDRESS = "an address, or a name that stands for one: probe:1234, AS3333, a host name"
_NAMED = Field(
    description=ONE_ADDRESS,
    json_schema_extra={"format": "address"},
)
WholeAddress = Annotated[str, Field(json_schema_extra={"format": "address"})]


def _number(what: str, column: str) -> Any:
    return Field(None, ge=0, le=LARGEST[column], description=what)


class MeasurementBody(Body):
    """One measurement, with the column names of the measurements table."""

    dst_addr: WholeAddress
    rtt: float = Field(description="ms; -1: no reply")
    src_addr: WholeAddress | None = Field(None, description="by default the question's source")
    event_time: Time | None = None
    size: int | None = _number("bytes of the payload", "size")
    packet_error_count: int | None = _number("packets that were not answered", "packet_error_count")
    msm_id: int | None = _number("Atlas measurement", "msm_id")
    probe_id: int | None = _number("Atlas probe", "probe_id")
    throughput_mbps: float | None = _number("Mbit/s measured with the RTT", THROUGHPUT)


_CONDITION = ", if the model was trained on it"


class ConditionsBody(Body):
    """Conditions that a question may state besides addresses and time."""

    size: int | None = _number("bytes of the payload" + _CONDITION, "size")
    errors: int | None = _number("packets that were not answered" + _CONDITION, "packet_error_count")
    msm_id: int | None = _number("Atlas measurement" + _CONDITION, "msm_id")
    probe_id: int | None = _number("Atlas probe" + _CONDITION, "probe_id")
    throughput: float | None = _number("Mbit/s measured with the RTT" + _CONDITION, THROUGHPUT)

    @property
    def conditions(self) -> Conditions:
        return Conditions(self.size, self.errors, self.msm_id, self.probe_id, self.throughput)


ContextBody = Annotated[
    list[MeasurementBody],
    Field(
        max_length=LIMITS.context,
        description="earlier measurements of the source, in place of those of the server's data",
    ),
]


class RttBody(ConditionsBody):
    """Distribution of the RTT from a source to a destination."""

    src: Address
    dst: Address
    at: Time | None = None
    context: ContextBody | None = None
    below: float | None = Field(None, description="ms: also give P(rtt < below)")
    method: str = Field("stack", description="stack, network, raw or a simple method of the run")
    curve: Annotated[int, Field(ge=3, le=1000)] | Literal["all"] | None = Field(
        None, description="also give the distribution as about this many points, or as all that it has"
    )


class RankBody(ConditionsBody):
    """Ranking of candidate destinations for one or several sources."""

    src: Address | Annotated[list[Address], Field(min_length=1, max_length=LIMITS.items)]
    dst: list[Address] = Field(min_length=1, max_length=LIMITS.items, description="candidates")
    at: Time | None = None
    context: ContextBody | None = None
    objective_ms: float | None = None
    timeout_ms: float = 1000.0
    group: Literal["mean", "worst"] = "mean"
    method: str = "stack"


class InverseBody(ConditionsBody):
    """Most probable destinations at an RTT of low to high ms from a source."""

    src: Address
    low: float
    high: float
    at: Time | None = None
    context: ContextBody | None = None
    within: Address | None = None
    top: int = Field(10, ge=1, le=LIMITS.top)
    passes: int = Field(INVERSE_PASSES, ge=1, le=INVERSE_PASSES)
    bits: int | None = Field(None, ge=8, le=128)


class CompleteBody(ConditionsBody):
    """Most probable completions of a partial address."""

    src: Address | None = None
    dst: Address | None = None
    field: Literal["dst", "src"] = "dst"
    at: Time | None = None
    context: ContextBody | None = None
    top: int = Field(10, ge=1, le=LIMITS.top)
    passes: int = Field(PASSES, ge=1, le=PASSES)
    bits: int | None = Field(None, ge=8, le=128)
    version: Literal[4, 6] | None = None


class ScoreBody(MeasurementBody):
    """Measurement whose result is to be scored."""

    src_addr: Annotated[str, _NAMED]  # type: ignore[assignment]
    dst_addr: Annotated[str, _NAMED]


class ContextText(BaseModel):
    """Read a context from a text: CSV, RIPE Atlas JSON, or the output of ping."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field(max_length=LIMITS.body)


def parse(raw: bytes) -> Any:
    """Parse the JSON of a body; refuse one that is nested too deep."""
    try:
        values = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"the body must be JSON: {error}") from None
    level = [values]
    for _ in range(LIMITS.nesting + 1):
        level = [
            child
            for one in level
            for child in (one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())
            if isinstance(child, dict | list)
        ]
        if not level:
            return values
    raise Refused(400, f"the body must not be nested more than {LIMITS.nesting} levels deep")


def body_of[T: BaseModel](kind: type[T], values: Any) -> T:
    """Validate one object of a body."""
    if not isinstance(values, dict):
        raise Refused(422, "must be a JSON object")
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_input=False), kind, values) from None


def _refusal(problems: Sequence[Any], kind: type[BaseModel], values: Any) -> Refused:
    """Return the refusal of the first invalid field. A field of several types has one problem per type."""
    # A misspelt field is both unknown and missing; the one that was sent says more.
    problems = sorted(problems, key=lambda one: one["type"] != "extra_forbidden")
    path = _path(problems[0], values)
    of_field = [one for one in problems if _path(one, values) == path]
    if of_field[0]["type"] == "extra_forbidden":
        inside = "[" in path or "." in path
        # Inherited fields, the conditions, are listed last.
        names = sorted(kind.model_fields, key=lambda name: name not in kind.__annotations__)
        listed = "" if inside else f"; there are {', '.join(names)}"
        return Refused(422, f"there is no such field{listed}", path)
    return Refused(422, sentence(of_field), path)


#: What must hold for a field, by pydantic's type of the problem.
_RULES = {
    "missing": "must be given",
    "string_type": "must be a text",
    "string_too_long": "must have at most {max_length:,} characters",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "list_type": "must be a list",
    "model_type": "must be a JSON object",
    "too_long": "must have at most {max_length:,} items, not {actual_length:,}",
    "too_short": "must have at least {min_length:,} item",
    "greater_than_equal": "must be at least {ge:,}",
    "less_than_equal": "must be at most {le:,}",
    "literal_error": "must be {expected}",
}


def sentence(problems: Sequence[Any]) -> str:
    """Return what must hold for a field, from the problems that pydantic found in it."""
    rules = []
    for one in problems:
        rule = _RULES.get(one["type"])
        rules.append(str(one["msg"]) if rule is None else rule.format(**one.get("ctx", {})))
    return ", or ".join(dict.fromkeys(rules)).replace(", or must be ", " or ")


def _path(problem: Any, values: Any) -> str:
    """Return the path of a problem in the body, without the types that pydantic tried."""
    out = ""
    for part in problem["loc"]:
        if isinstance(part, int):
            out += f"[{part}]"
            values = values[part] if isinstance(values, list) and part < len(values) else None
        elif isinstance(values, dict) and (part in values or problem["type"] == "missing"):
            out += f".{part[:64]}" if out else part[:64]
            values = values.get(part)
    return out


def bodies_of[T: Body](kind: type[T], values: Any) -> list[T]:
    """Validate a list of objects."""
    if len(values) > LIMITS.items:
        raise Refused(
            422,
            f"a list may have {LIMITS.items:,} items, this one has {len(values):,}: "
            "send one per line as application/x-ndjson",
        )
    return [within(f"[{place}]", body_of, kind, value) for place, value in enumerate(values)]


def within[**P, T](path: str, make: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a function; add the path of this field to its refusals and errors."""
    try:
        return make(*arguments, **options)
    except Refused as refused:
        raise refused.below(path) from None
    except PingError as error:
        raise Refused(422, str(error), path) from None


def moment(at: str | int | float) -> int:
    """Return a time as µs since 1970."""
    try:
        return as_microseconds(at)
    except (OverflowError, ValueError):  # infinity, NaN, and times beyond the calendar
        raise UsageError(
            f"the time must be like 2024-05-01T12:00:00Z or seconds since 1970, not {at!r}"
        ) from None


def question_of(
    src: str,
    dst: str | None,
    at: str | int | float | None,
    context: Sequence[MeasurementBody] | None,
    names: tuple[str, str] = ("src", "dst"),
    conditions: Conditions | None = None,
) -> Question:
    source = within(names[0], as_prefix, src, "source")
    destination = None if dst is None else within(names[1], as_prefix, dst, "destination")
    question = within(names[1], Question.of, source, destination, conditions=conditions)
    time = None if at is None else within("at", moment, at)
    known = None if context is None else context_of(context, source)
    question = replace(question, time=time, context=known)
    within("context", question.check_context)
    return question


def context_of(measurements: Sequence[MeasurementBody], source: Prefix) -> Context:
    """Return a context, in the order of its times."""
    default = source.packed if source.is_whole else None
    columns = within("context", columns_of, measurements, default)
    return Context.of_columns(columns)


def columns_of(measurements: Sequence[MeasurementBody], source: bytes | None = None) -> Columns:
    """Return measurements as columns; `source` is the source of those that name none."""
    packed: list[bytes] = []
    times, rtts = [], []
    for place, one in enumerate(measurements):
        packed += within(f"[{place}]", _ends, one, source)
        times.append(
            NO_TIME if one.event_time is None else within(f"[{place}].event_time", moment, one.event_time)
        )
        if not is_rtt(one.rtt):
            raise Refused(
                422, f"rtt {one.rtt:g} must be -1 (no reply) or 0 to {MAX_RTT_MS:g} ms", f"[{place}].rtt"
            )
        rtts.append(one.rtt)
    ends = np.frombuffer(b"".join(packed), np.uint8).reshape(-1, 2, 16)
    also = {
        name: array_of(name, [getattr(one, name) for one in measurements])
        for name in COLUMNS.values()
        if any(getattr(one, name) is not None for one in measurements)
    }
    return Columns(np.array(times, np.int64), ends[:, 0], ends[:, 1], np.array(rtts, np.float64), **also)


def _ends(one: MeasurementBody, source: bytes | None) -> list[bytes]:
    if one.src_addr is None and source is None:
        raise Refused(422, "src_addr must be given where the question's source is a prefix", "src_addr")
    src = source if one.src_addr is None else within("src_addr", _packed, one.src_addr)
    dst = within("dst_addr", _packed, one.dst_addr)
    assert src is not None
    if is_ipv4_one(src) != is_ipv4_one(dst):
        raise Refused(422, "src_addr and dst_addr must have the same IP version", "dst_addr")
    return [src, dst]


def _packed(text: str) -> bytes:
    try:
        return pack_one(text)
    except ValueError:
        raise UsageError(f"{text!r} is not an IP address") from None
