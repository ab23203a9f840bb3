"""One measurement as stated by tokens, and the error for values that have no tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC

from ping_llm.errors import PingError
from ping_llm.measurements.addresses import Prefix, pack_one
from ping_llm.measurements.schema import NO_REPLY, Measurement
from ping_llm.tokens.vocab import (
    DEFAULT_FIELDS,
    LARGEST_MSM_ID,
    LARGEST_PROBE_ID,
    LARGEST_SECONDS,
    LARGEST_SIZE,
    LEAST_FIELDS,
    Field,
)


class EncodeError(PingError):
    """A value that has no tokens."""


@dataclass(frozen=True)
class Statement:
    """The values that a measurement states, and their order.

    A decoded statement also has its inherited source: then `src` is known, but SRC is not in `order`. None
    means unknown. `rtt` is in ms, -1 for no reply; `seconds` count from 1970; `throughput` is in Mbit/s.
    """

    order: tuple[Field, ...]
    src: Prefix | None = None
    dst: Prefix | None = None
    seconds: int | None = None
    rtt: float | None = None
    size: int | None = None
    errors: int | None = None
    msm_id: int | None = None
    probe_id: int | None = None
    throughput: float | None = None

    def value(self, field: Field) -> Prefix | int | float | None:
        usual = (self.src, self.dst, self.seconds, self.rtt)
        return (*usual, self.size, self.errors, self.msm_id, self.probe_id, self.throughput)[field]


def whole(packed: bytes) -> Prefix:
    """A whole address as a prefix."""
    address = Prefix(packed, 128)
    return Prefix(packed, address.address_bits)


def cut(address: Prefix, known_bytes: int) -> Prefix:
    """Cut an address to its first `known_bytes` bytes; 0 keeps it whole."""
    if known_bytes == 0:
        return address
    count = address.address_bits // 8
    if not 1 <= known_bytes < count:
        raise EncodeError(f"a prefix of {address} must have 1 to {count - 1} bytes, not {known_bytes}")
    kept = 16 - count + known_bytes
    return Prefix(address.packed[:kept] + bytes(16 - kept), 8 * known_bytes)


def state(measurement: Measurement, order: Sequence[Field] = DEFAULT_FIELDS) -> Statement:
    """The statement for a measurement of the public API, with whole addresses and all known values."""
    time = measurement.event_time
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return Statement(
        order=tuple(order),
        src=whole(pack_one(measurement.src_addr)),
        dst=whole(pack_one(measurement.dst_addr)),
        seconds=math.floor(time.timestamp()),
        rtt=measurement.rtt,
        size=measurement.size,
        errors=measurement.packet_error_count,
        msm_id=measurement.msm_id,
        probe_id=measurement.probe_id,
        throughput=measurement.throughput_mbps,
    )


def check(statement: Statement) -> tuple[Field, ...]:
    """Check a statement; return the fields to write, in order, without unknown optional ones.

    Raises:
      EncodeError: a value of the statement has no tokens.
    """
    s = statement
    for name, address in (("source", s.src), ("destination", s.dst)):
        if address is not None and (address.bits % 8 or not 8 <= address.bits <= address.address_bits):
            raise EncodeError(f"the {name} {address} must end at a byte")
    if s.seconds is not None and not 0 <= s.seconds <= LARGEST_SECONDS:
        raise EncodeError(f"a time of {s.seconds} s is outside 0 to {LARGEST_SECONDS} s since 1970")
    if s.rtt is not None and s.rtt != NO_REPLY and not (math.isfinite(s.rtt) and s.rtt >= 0):
        raise EncodeError(f"an rtt of {s.rtt} ms is neither -1 (no reply) nor a finite number from 0 up")
    if s.size is not None and not 0 <= s.size <= LARGEST_SIZE:
        raise EncodeError(f"a size of {s.size} bytes is outside 0 to {LARGEST_SIZE}")
    if s.errors is not None and s.errors < 0:
        raise EncodeError(f"a count of {s.errors} packet errors is negative")
    if s.msm_id is not None and not 0 <= s.msm_id <= LARGEST_MSM_ID:
        raise EncodeError(f"a measurement id of {s.msm_id} is outside 0 to 2^63 - 1")
    if s.probe_id is not None and not 0 <= s.probe_id <= LARGEST_PROBE_ID:
        raise EncodeError(f"a probe id of {s.probe_id} is outside 0 to {LARGEST_PROBE_ID}")
    if s.throughput is not None and not (math.isfinite(s.throughput) and s.throughput >= 0):
        raise EncodeError(f"a throughput of {s.throughput} Mbit/s is not a finite number from 0 up")
    if len(set(s.order)) != len(s.order):
        raise EncodeError("a measurement states each field at most once")
    for field in s.order:
        if field <= Field.RESULT and s.value(field) is None:
            raise EncodeError(f"the order names {field.name}, but the measurement has none")
    order = tuple(field for field in s.order if s.value(field) is not None)
    if len(order) < LEAST_FIELDS:
        raise EncodeError(f"a measurement states at least {LEAST_FIELDS} fields, this one {len(order)}")
    return order
