"""Options of the contexts, with all defaults."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from ping_llm.errors import UsageError
from ping_llm.measurements.schema import KINDS
from ping_llm.rows import MAX_CONTEXTS_PER_ROW, MEASUREMENTS_PER_CONTEXT
from ping_llm.tokens.rtt import DEFAULT_CLIP_LIMIT_MS, RTT_ENCODINGS, rtt_encoding
from ping_llm.tokens.vocab import OPTIONAL, OPTIONAL_LENGTHS

#: Names of the fields in the option `fields`.
REQUIRED_FIELDS = ("src", "dst", "rtt")
OPTIONAL_FIELDS = ("time", *OPTIONAL)

#: Probabilities become 32-bit thresholds, so that kernel and oracle compare integers.
ONE = 1 << 32


@dataclass(frozen=True)
class ContextOptions:
    """Options that determine the contexts of a dataset. Equal options and seeds give the same stream.

    Attributes:
        repeat_source: probability that a measurement after the first states the shared source again.
        prefix_probability: probability that an address is cut to a prefix: drawn once per context for the
            source, separately for each destination.
        source_prefix_probability: a different probability for the source; -1: the same.
        unnamed_source_probability: share of contexts that do not state their source, but
            `addresses.unnamed`.
        ordered_fields: share of contexts whose measurements all state their fields in the order of prompts:
            source, destination, time, optional fields, result. In other contexts each measurement has a
            random order.
        focus_probability: share of focused contexts among those that do not hold their whole row: the row
            does not fit, or has more than `measurements_per_context`. Crossed contexts are not counted.
        focus_destinations: largest number of destinations of a focused context; the number is uniform from 1.
        wide_probability: share of wide contexts, with as many destinations as possible, among the same
            contexts as for `focus_probability`. The others are windows.
        crossed_probability: share of contexts about a pair: results of its source, results of other sources
            to its destination, and results that connect both. They state no time, and need all measurements
            in memory, 24 bytes each.
        scramble_probability: share of contexts in which every address is replaced by a pseudonym that keeps
            prefixes (`measurements.scramble`), under a key of the context.
        timestamps_all: share of contexts whose measurements all have a time, in order.
        timestamps_part: share of contexts in which 10 to 90 % of the measurements have no time. The other
            contexts state no times.
        measurements_per_context: a row of n measurements gives ceil(n / this) contexts per epoch; a row that
            gives a single context is used whole if it fits.
        max_contexts_per_row: largest number of contexts per row, so that a few busy probes do not dominate.
        max_context_tokens: largest number of tokens per context; 0: the length of the sequences.
        max_segments: largest number of contexts per sequence. Attention kernels also have a limit; set both
            to the same value.
        kinds: kinds of measurements to use, any of ping,hop,last; empty: all.
        fields: fields that a measurement states: src,dst,rtt and any of time,size,errors,msm_id,
            probe_id,throughput.
        rtt_encoding: compact, float64, micros, log or clipped.
        clip_limit_ms: the largest RTT of `clipped`, ms.
    """

    repeat_source: float = 0.1
    prefix_probability: float = 0.1
    source_prefix_probability: float = -1.0
    unnamed_source_probability: float = 0.0
    ordered_fields: float = 0.0
    focus_probability: float = 0.5
    focus_destinations: int = 4
    wide_probability: float = 0.0
    crossed_probability: float = 0.0
    scramble_probability: float = 0.0
    timestamps_all: float = 0.4
    timestamps_part: float = 0.3
    measurements_per_context: int = MEASUREMENTS_PER_CONTEXT
    max_contexts_per_row: int = MAX_CONTEXTS_PER_ROW
    max_context_tokens: int = 0
    max_segments: int = 32
    kinds: str = ""
    fields: str = "src,dst,rtt,time"
    rtt_encoding: str = "compact"
    clip_limit_ms: float = DEFAULT_CLIP_LIMIT_MS

    def __post_init__(self) -> None:
        for name in (
            "repeat_source",
            "prefix_probability",
            "unnamed_source_probability",
            "ordered_fields",
            "focus_probability",
            "wide_probability",
            "crossed_probability",
            "scramble_probability",
            "timestamps_all",
            "timestamps_part",
        ):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise UsageError(f"{name} is {value}: a probability lies between 0 and 1")
        if self.source_prefix_probability != -1.0 and not 0.0 <= self.source_prefix_probability <= 1.0:
            raise UsageError(
                f"source_prefix_probability is {self.source_prefix_probability}: a probability lies between "
                "0 and 1, and -1 means that of the destinations"
            )
        if self.timestamps_all + self.timestamps_part > 1.0 + 1e-9:
            raise UsageError(
                f"timestamps_all {self.timestamps_all} and timestamps_part {self.timestamps_part} "
                "are more than 1 together; what remains of 1 is the share without any time"
            )
        if self.focus_probability + self.wide_probability > 1.0 + 1e-9:
            raise UsageError(
                f"focus_probability {self.focus_probability} and wide_probability {self.wide_probability} "
                "are more than 1 together; what remains of 1 is the share of windows"
            )
        for name in (
            "measurements_per_context",
            "max_contexts_per_row",
            "max_segments",
            "focus_destinations",
        ):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.max_context_tokens < 0:
            raise UsageError(f"max_context_tokens is {self.max_context_tokens}: 0 means no limit of its own")
        if any(name not in KINDS for name in self.kind_names):
            raise UsageError(
                f"kinds is {self.kinds!r}: it may name {', '.join(KINDS)}, with commas between; "
                "empty means all"
            )
        names = self.field_names
        unknown = [name for name in names if name not in REQUIRED_FIELDS + OPTIONAL_FIELDS]
        missing = [name for name in REQUIRED_FIELDS if name not in names]
        if unknown or missing or len(set(names)) != len(names):
            raise UsageError(
                f"fields is {self.fields!r}: it must name {', '.join(REQUIRED_FIELDS)} and may name "
                f"{', '.join(OPTIONAL_FIELDS)}, each once, with commas between"
            )
        if self.rtt_encoding not in RTT_ENCODINGS:
            raise UsageError(
                f"there is no RTT encoding {self.rtt_encoding!r}: choose one of {', '.join(RTT_ENCODINGS)}"
            )
        try:
            rtt_encoding(self.rtt_encoding, self.clip_limit_ms)
        except ValueError as error:
            raise UsageError(str(error)) from None

    @property
    def kind_names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.kinds.split(",")) if self.kinds else ()

    @property
    def field_names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.fields.split(","))

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def digest(self) -> str:
        """Digest of all options, twelve hexadecimal digits.

        Options that were added later are included only if they are not at their defaults, because older
        streams are unchanged.
        """
        later = {
            "source_prefix_probability": -1.0,
            "unnamed_source_probability": 0.0,
            "ordered_fields": 0.0,
            "focus_destinations": 4,
            "wide_probability": 0.0,
            "crossed_probability": 0.0,
            "scramble_probability": 0.0,
            "kinds": "",
        }
        stated = {name: value for name, value in self.as_dict().items() if later.get(name) != value}
        if self.ordered_fields > 0 and not set(OPTIONAL).isdisjoint(self.field_names):
            stated["result"] = "last"  # in older versions the result came before the optional fields
        text = json.dumps(stated, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class Parameters(NamedTuple):
    """The options in the form that kernels need: probabilities are thresholds for 32 random bits."""

    repeat_source: int
    prefix: int
    source_prefix: int
    unnamed_source: int
    ordered: int
    focus: int
    focus_destinations: int
    wide: int
    crossed: int
    scramble: int
    all_times: int
    part_times: int
    per_context: int
    per_row: int
    max_tokens: int
    max_segments: int
    time: int  # 1 if times may be stated
    size: int
    errors: int
    msm_id: int
    probe_id: int
    throughput: int
    encoding: int
    result_length: int  # tokens of the longest result
    extra_length: int  # tokens of the optional fields, when all are known
    clip_limit_ms: float

    @classmethod
    def of(cls, options: ContextOptions, length: int) -> "Parameters":
        names = options.field_names
        encoding = rtt_encoding(options.rtt_encoding, options.clip_limit_ms)
        all_times = round(options.timestamps_all * ONE)
        part_times = min(round(options.timestamps_part * ONE), ONE - all_times)
        if "time" not in names:
            all_times = part_times = 0
        parameters = cls(
            repeat_source=round(options.repeat_source * ONE),
            prefix=round(options.prefix_probability * ONE),
            source_prefix=round(_source_prefix(options) * ONE),
            unnamed_source=round(options.unnamed_source_probability * ONE),
            ordered=round(options.ordered_fields * ONE),
            focus=round(options.focus_probability * ONE),
            focus_destinations=options.focus_destinations,
            wide=round(options.wide_probability * ONE),
            crossed=round(options.crossed_probability * ONE),
            scramble=round(options.scramble_probability * ONE),
            all_times=all_times,
            part_times=part_times,
            per_context=options.measurements_per_context,
            per_row=options.max_contexts_per_row,
            max_tokens=min(options.max_context_tokens or length, length),
            max_segments=options.max_segments,
            time=int("time" in names),
            size=int("size" in names),
            errors=int("errors" in names),
            msm_id=int("msm_id" in names),
            probe_id=int("probe_id" in names),
            throughput=int("throughput" in names),
            encoding=encoding.id,
            result_length=1 + encoding.bytes,
            extra_length=sum(tokens for name, tokens in OPTIONAL_LENGTHS.items() if name in names),
            clip_limit_ms=float(options.clip_limit_ms),
        )
        if parameters.max_tokens < parameters.longest_measurement:
            raise UsageError(
                f"a context of {parameters.max_tokens} tokens cannot hold the longest measurement, which "
                f"takes {parameters.longest_measurement}: make the sequences (or max_context_tokens) longer"
            )
        return parameters

    @property
    def longest_measurement(self) -> int:
        """Number of tokens of an IPv6 measurement with all fields, which must fit into every sequence."""
        return 1 + 17 + 17 + self.result_length + self.extra_length + 9 * self.time


def _source_prefix(options: ContextOptions) -> float:
    own = options.source_prefix_probability
    return options.prefix_probability if own < 0 else own
