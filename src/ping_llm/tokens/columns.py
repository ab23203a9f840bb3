"""The compiled encoder for columns of measurements, with the same output as the reference."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.measurements.addresses import is_ipv4
from ping_llm.measurements.throughput import UNKNOWN_THROUGHPUT
from ping_llm.measurements.throughput_kernels import throughput_code
from ping_llm.tokens import codec
from ping_llm.tokens.rtt import RttEncoding, rtt_encoding
from ping_llm.tokens.statement import EncodeError, Statement
from ping_llm.tokens.vocab import (
    DEFAULT_FIELDS,
    DST_IPV4,
    DST_IPV6,
    LARGEST_PROBE_ID,
    LARGEST_SECONDS,
    LARGEST_SIZE,
    LEAST_FIELDS,
    MEASUREMENT,
    OPTIONAL,
    SRC_IPV4,
    SRC_IPV6,
    Field,
)

#: Value in a row of `order` after its last field.
NO_FIELD = 255

#: `src_known` or `dst_known` of an address that is not stated.
NOT_STATED = -1

_SRC, _DST, _TIME, _RESULT, _SIZE, _ERRORS, _MSM_ID, _PROBE_ID, _THROUGHPUT = map(int, Field)


@dataclass(frozen=True)
class StatementColumns:
    """n statements of one or many contexts, as columns. Unknown numbers are -1, an unknown rtt is NaN.

    Attributes:
      order: uint8 [n, 9], the fields to state, in order, then NO_FIELD. Unknown optional fields get no
        tokens, and neither do probe ids of more than four bytes.
      first: bool [n], whether the statement begins a context, and so inherits nothing.
      src, dst: uint8 [n, 16], packed.
      src_known, dst_known: int8 [n], 0 for a whole address, otherwise the number of bytes of its prefix.
      seconds: int64 [n], since 1970.
      rtt: float64 [n], in ms, -1 for no reply.
      size, errors, msm_id, probe_id: int64 [n].
      throughput: float64 [n], in Mbit/s.
    """

    order: np.ndarray
    first: np.ndarray
    src: np.ndarray
    src_known: np.ndarray
    dst: np.ndarray
    dst_known: np.ndarray
    seconds: np.ndarray
    rtt: np.ndarray
    size: np.ndarray
    errors: np.ndarray
    msm_id: np.ndarray
    probe_id: np.ndarray
    throughput: np.ndarray

    def __len__(self) -> int:
        return len(self.rtt)

    @classmethod
    def empty(cls, count: int) -> "StatementColumns":
        """Columns to fill in, with no known values and no stated fields."""
        return cls(
            order=np.full((count, len(Field)), NO_FIELD, np.uint8),
            first=np.zeros(count, bool),
            src=np.zeros((count, 16), np.uint8),
            src_known=np.full(count, NOT_STATED, np.int8),
            dst=np.zeros((count, 16), np.uint8),
            dst_known=np.full(count, NOT_STATED, np.int8),
            seconds=np.full(count, -1, np.int64),
            rtt=np.full(count, np.nan),
            size=np.full(count, -1, np.int64),
            errors=np.full(count, -1, np.int64),
            msm_id=np.full(count, -1, np.int64),
            probe_id=np.full(count, -1, np.int64),
            throughput=np.full(count, -1.0),
        )

    def state(self, optional: Collection[str] = (), timed: bool = True) -> None:
        """Fill in `order` as in questions: source (once per context), destination, time, optional, result.

        Args:
          optional: Names of the optional fields to state where they are known.
          timed: Whether to state times where they are known.
        """
        further = [field for name, field in OPTIONAL.items() if name in optional]
        for first in (True, False):
            for has_time in (True, False):
                rows = (self.first == first) & ((self.seconds >= 0) == has_time)
                order = [Field.SRC] * first + [Field.DST] + [Field.TIME] * (has_time and timed)
                order += [*further, Field.RESULT]
                self.order[rows, : len(order)] = order

    @classmethod
    def from_contexts(cls, contexts: Sequence[Sequence[Statement]]) -> "StatementColumns":
        """Convert contexts of plain statements to columns."""
        columns = cls.empty(sum(map(len, contexts)))
        row = 0
        for context in contexts:
            for index, statement in enumerate(context):
                columns.first[row] = index == 0
                columns.order[row, : len(statement.order)] = statement.order
                for address, packed, known in (
                    (statement.src, columns.src, columns.src_known),
                    (statement.dst, columns.dst, columns.dst_known),
                ):
                    if address is not None:
                        packed[row] = np.frombuffer(address.packed, np.uint8)
                        known[row] = 0 if address.is_whole else address.bits // 8
                for value, column in (
                    (statement.seconds, columns.seconds),
                    (statement.rtt, columns.rtt),
                    (statement.size, columns.size),
                    (statement.errors, columns.errors),
                    (statement.msm_id, columns.msm_id),
                    (statement.probe_id, columns.probe_id),
                    (statement.throughput, columns.throughput),
                ):
                    if value is not None:
                        column[row] = value
                row += 1
        return columns


def encode_columns(
    columns: StatementColumns, encoding: RttEncoding | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Encode every statement.

    Returns:
      ids int32 [total], and offsets int64 [n + 1]: statement i is ids[offsets[i] : offsets[i + 1]].

    Raises:
      EncodeError: names the first row with a value that has no tokens; nothing is encoded.
    """
    encoding = encoding or rtt_encoding()
    _check(columns)
    c = columns
    addresses = (c.src, c.src_known, c.dst, c.dst_known)
    numbers = (c.seconds, c.rtt, c.size, c.errors, c.msm_id, c.probe_id, c.throughput)
    offsets = np.zeros(len(c) + 1, np.int64)
    _measure(offsets, c.order, c.first, *addresses, *numbers, encoding.id)
    np.cumsum(offsets, out=offsets)
    ids = np.empty(offsets[-1], np.int32)
    _write(ids, offsets, c.order, c.first, *addresses, *numbers, encoding.id, encoding.clip_limit_ms)
    return ids, offsets


def columns_of(
    src: np.ndarray,
    dst: np.ndarray,
    time: np.ndarray,
    rtt: np.ndarray,
    *,
    size: np.ndarray | None = None,
    errors: np.ndarray | None = None,
    msm_id: np.ndarray | None = None,
    probe_id: np.ndarray | None = None,
    throughput: np.ndarray | None = None,
    first: np.ndarray | None = None,
    order: Sequence[Field] = DEFAULT_FIELDS,
) -> StatementColumns:
    """Convert columns of probe rows (time in µs, whole addresses), with the same order for all rows.

    Without `first`, all rows are one context.
    """
    count = len(rtt)
    columns = StatementColumns.empty(count)
    columns.order[:, : len(order)] = np.array(order, np.uint8)
    columns.first[:1] = True
    if first is not None:
        columns.first[:] = first
    columns.src[:], columns.dst[:] = src, dst
    columns.src_known[:] = columns.dst_known[:] = 0
    columns.seconds[:] = np.asarray(time, np.int64) // 1_000_000
    columns.rtt[:] = rtt
    given = (
        (columns.size, size), (columns.errors, errors), (columns.msm_id, msm_id),
        (columns.probe_id, probe_id), (columns.throughput, throughput),
    )  # fmt: skip
    for column, values in given:
        if values is not None:
            column[:] = values
    return columns


def _check(c: StatementColumns) -> None:
    stated = np.stack([(c.order == field).sum(axis=1) for field in Field], axis=1)

    def refuse(rows: np.ndarray, sentence: str, values: np.ndarray | None = None) -> None:
        if rows.any():
            row = int(rows.argmax())
            text = sentence if values is None else sentence.format(values[row])
            raise EncodeError(f"measurement {row}: {text}")

    bad_order = ((c.order >= len(Field)) & (c.order != NO_FIELD)).any(axis=1)
    refuse(bad_order | (stated > 1).any(axis=1), "its order names a field twice, or one that there is not")
    for name, packed, known, field in (
        ("source", c.src, c.src_known, Field.SRC),
        ("destination", c.dst, c.dst_known, Field.DST),
    ):
        count = np.where(is_ipv4(packed), 4, 16) if len(c) else np.zeros(0)
        bad = (known >= count) | (known < NOT_STATED) | ((known == NOT_STATED) & (stated[:, field] > 0))
        refuse(
            bad, f"a {name} of {{}} known bytes: 0 is all, otherwise 1 to 3 of IPv4, 1 to 15 of IPv6", known
        )
    bad = (c.seconds < -1) | (c.seconds > LARGEST_SECONDS) | ((c.seconds < 0) & (stated[:, Field.TIME] > 0))
    refuse(bad, f"a time of {{}} s is outside 0 to {LARGEST_SECONDS} s since 1970", c.seconds)
    number = (c.rtt >= 0) & (c.rtt < np.inf)
    unknown = np.isnan(c.rtt) & (stated[:, Field.RESULT] == 0)
    bad = ~(number | (c.rtt == -1) | unknown)
    refuse(bad, "an rtt of {} ms is neither -1 (no reply) nor a finite number from 0 up", c.rtt)
    refuse((c.size < -1) | (c.size > LARGEST_SIZE), "a size of {} bytes is outside 0 to 65535", c.size)
    refuse(c.errors < -1, "a count of {} packet errors is negative", c.errors)
    refuse(c.msm_id < -1, "a measurement id of {} is negative", c.msm_id)
    refuse(c.probe_id < -1, "a probe id of {} is negative", c.probe_id)
    bad = ~((c.throughput >= 0) & (c.throughput < np.inf) | (c.throughput == UNKNOWN_THROUGHPUT))
    refuse(bad, "a throughput of {} Mbit/s is not a finite number from 0 up", c.throughput)
    for name, field in OPTIONAL.items():
        stated[getattr(c, name) < 0, field] = 0
    stated[c.probe_id > LARGEST_PROBE_ID, Field.PROBE_ID] = 0
    refuse(stated.sum(axis=1) < LEAST_FIELDS, "it states fewer than two fields")


@kernel
def _measure(
    lengths, order, first, src, src_known, dst, dst_known, seconds, rtt, size, errors, msm_id, probe_id,
    throughput, encoding_id,
):  # fmt: skip
    previous = np.int64(-1)
    for row in range(len(rtt)):
        if first[row]:
            previous = np.int64(-1)
        length = 1
        for field in order[row]:
            if field == _SRC:
                length += codec.address_length(src[row], src_known[row])
            elif field == _DST:
                length += codec.address_length(dst[row], dst_known[row])
            elif field == _TIME:
                length += codec.time_length(seconds[row], previous)
                previous = seconds[row]
            elif field == _RESULT:
                length += codec.result_length(rtt[row], encoding_id)
            elif field == _SIZE:
                length += codec.size_length(size[row])
            elif field == _ERRORS:
                length += codec.errors_length(errors[row])
            elif field == _MSM_ID:
                length += codec.msm_id_length(msm_id[row])
            elif field == _PROBE_ID:
                length += codec.probe_id_length(probe_id[row])
            elif field == _THROUGHPUT:
                length += codec.throughput_length(throughput_code(throughput[row]))
        lengths[row + 1] = length


@kernel
def _write(
    out,
    offsets,
    order,
    first,
    src,
    src_known,
    dst,
    dst_known,
    seconds,
    rtt,
    size,
    errors,
    msm_id,
    probe_id,
    throughput,
    encoding_id,
    clip_limit_ms,
):
    previous = np.int64(-1)
    for row in range(len(rtt)):
        if first[row]:
            previous = np.int64(-1)
        position = offsets[row]
        out[position] = MEASUREMENT
        position += 1
        for field in order[row]:
            if field == _SRC:
                position = codec.put_address(out, position, SRC_IPV4, SRC_IPV6, src[row], src_known[row])
            elif field == _DST:
                position = codec.put_address(out, position, DST_IPV4, DST_IPV6, dst[row], dst_known[row])
            elif field == _TIME:
                position = codec.put_time(out, position, seconds[row], previous)
                previous = seconds[row]
            elif field == _RESULT:
                position = codec.put_result(out, position, rtt[row], encoding_id, clip_limit_ms)
            elif field == _SIZE:
                position = codec.put_size(out, position, size[row])
            elif field == _ERRORS:
                position = codec.put_errors(out, position, errors[row])
            elif field == _MSM_ID:
                position = codec.put_msm_id(out, position, msm_id[row])
            elif field == _PROBE_ID:
                position = codec.put_probe_id(out, position, probe_id[row])
            elif field == _THROUGHPUT:
                position = codec.put_throughput(out, position, throughput_code(throughput[row]))
        if position != offsets[row + 1]:
            raise AssertionError("a length function and its put function disagree")
