"""The definition of a measurement: Arrow schema, limits of its values, and reasons for rejection.

`rules.py` has the rules. All other modules may rely on them: a measurement in the table has two addresses of
one IP version, a time that tokens can represent and an RTT that every encoding accepts.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa

#: RTT of a measurement that got no reply.
NO_REPLY = -1.0

#: Largest RTT: one hour. The largest RTT seen in 35 billion Atlas results is 302,282 ms.
MAX_RTT_MS = 3_600_000.0

#: Range of times: from 1970 up to, not including, 2100. Tokens represent whole seconds of it.
MIN_TIME = datetime(1970, 1, 1, tzinfo=UTC)
END_TIME = datetime(2100, 1, 1, tzinfo=UTC)
MIN_TIME_US = 0
END_TIME_US = int(END_TIME.timestamp()) * 1_000_000
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US

#: Largest packet size: an IP packet cannot be larger, and the SIZE token has two bytes.
MAX_SIZE = 65_535

#: Largest number of packet errors per result. Atlas sends 3 to 16 packets; the ERRORS token saturates at 255.
MAX_PACKET_ERRORS = 2**31 - 1

#: Largest throughput: 100 Tbit/s, more than any path carries. Values in bit/s instead of Mbit/s exceed it at
#: the first fast link.
MAX_THROUGHPUT_MBPS = 100_000_000.0

MEASUREMENTS = pa.schema(
    [
        pa.field("event_time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("src_addr", pa.string(), nullable=False),
        pa.field("dst_addr", pa.string(), nullable=False),
        pa.field("ip_version", pa.uint8(), nullable=False),
        pa.field("rtt", pa.float64(), nullable=False),
        pa.field("msm_id", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("packet_error_count", pa.int64()),
        pa.field("probe_id", pa.int64()),
    ],
    metadata={"ping_llm.measurements": "1"},
)

#: Kinds of measurement, in the order of their codes: a ping, or a traceroute result, from a router on the
#: path (`hop`) or from the destination (`last`). Routers delay their replies on purpose, so the RTT of a hop
#: is not comparable to that of a ping.
KINDS = ("ping", "hop", "last")
PING, HOP, LAST = range(3)

#: Version 2 of the table, written if some measurement is not a ping; without `kind`, all are pings.
MEASUREMENTS_WITH_KIND = MEASUREMENTS.append(pa.field("kind", pa.string(), nullable=False)).with_metadata(
    {"ping_llm.measurements": "2"}
)

#: Name of the column of the throughput, in Mbit/s, measured together with the RTT.
THROUGHPUT = "throughput_mbps"

#: Version 3 of the table, written if some measurement has a throughput.
MEASUREMENTS_WITH_THROUGHPUT = MEASUREMENTS_WITH_KIND.append(
    pa.field(THROUGHPUT, pa.float64())
).with_metadata({"ping_llm.measurements": "3"})

#: The schema of each version of the table.
TABLE_VERSIONS = {1: MEASUREMENTS, 2: MEASUREMENTS_WITH_KIND, 3: MEASUREMENTS_WITH_THROUGHPUT}
LAST_VERSION = 3

REQUIRED_COLUMNS = ("event_time", "src_addr", "dst_addr", "rtt")
#: Optional columns of integers. `throughput_mbps` and `kind` are optional too, and of other types.
OPTIONAL_COLUMNS = ("ip_version", "msm_id", "size", "packet_error_count", "probe_id")


def is_rtt(rtt: Any) -> Any:
    """Whether numbers (one, or an array) can be the RTT of a measurement. NaN cannot."""
    return (rtt == NO_REPLY) | ((rtt >= 0) & (rtt <= MAX_RTT_MS))


class NotUsed(StrEnum):
    """Reasons why a valid hop of a traceroute is not used as a measurement, in order of precedence."""

    NOT_LAST = "not_last"  # only destinations are wanted, and the hop is not the destination
    PRIVATE = "private"  # the replying address is not public
    ERR = "err"  # the reply is an ICMP error: unreachable, prohibited
    EDST = "edst"  # the reply is about a packet to another destination
    NO_ADDRESS = "no_address"  # a reply does not state its sender
    LATE = "late"  # only replies to packets of earlier hops
    DUP = "dup"  # only duplicate replies
    ERROR = "error"  # no packet was sent
    SILENT = "silent"  # no reply


class Reject(StrEnum):
    """Reasons why an input record is not a measurement. The list is complete; new reasons are added here."""

    UNPARSABLE = "unparsable"  # not JSON, not a row of the table
    TRUNCATED = "truncated"  # the input ends in the middle of the record
    TOO_LARGE = "too_large"  # a record longer than the parser's bound
    TOO_DEEP = "too_deep"  # JSON nested beyond the parser's bound
    NOT_AN_OBJECT = "not_an_object"  # JSON, but not an object
    MISSING_TIME = "missing_time"
    BAD_TIME = "bad_time"  # not a number, not finite, or outside 1970–2100
    MISSING_SOURCE = "missing_source"
    BAD_SOURCE = "bad_source"  # not an IP address
    MISSING_DESTINATION = "missing_destination"  # including an unresolved name (dnserr)
    BAD_DESTINATION = "bad_destination"
    MIXED_VERSIONS = "mixed_versions"  # source and destination of different IP versions
    WRONG_VERSION = "wrong_version"  # ip_version contradicts the addresses
    MISSING_RTT = "missing_rtt"  # neither a reply nor a loss: no packet was sent
    BAD_RTT = "bad_rtt"  # NaN, infinite, negative other than -1, or over an hour
    BAD_FIELD = "bad_field"  # an optional column has a wrong type or is out of range
    TOO_FAST = "too_fast"  # the RTT is shorter than light in fibre needs between the places of the ends


def table_version(columns: Collection[str]) -> int:
    """The lowest version of the table format that has these columns."""
    if THROUGHPUT in columns:
        return 3
    return 2 if "kind" in columns else 1


def kind_names(codes: np.ndarray) -> pa.StringArray:
    """Convert codes of kinds, uint8 [n], to the column `kind`."""
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(KINDS)).cast(pa.string())


@dataclass(frozen=True)
class Measurement:
    """One ping: a row of the table as an object, for the public API."""

    event_time: datetime
    src_addr: str
    dst_addr: str
    rtt: float
    msm_id: int | None = None
    size: int | None = None
    packet_error_count: int | None = None
    probe_id: int | None = None
    throughput_mbps: float | None = None

    @property
    def failed(self) -> bool:
        return self.rtt == NO_REPLY
