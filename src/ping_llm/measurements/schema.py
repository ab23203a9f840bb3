"""What a measurement is: its Arrow schema, the bounds of its values, and the reasons of rejects.

`rules.py` has the rules. Every room may rely on them: a measurement in the table has two addresses of one IP
version, a time that tokens can carry and an RTT that every encoding accepts.
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

#: One hour. The largest RTT seen in 35 billion Atlas results is 302,282 ms.
MAX_RTT_MS = 3_600_000.0

#: Times are whole seconds in tokens: from 1970 up to, not including, 2100.
MIN_TIME = datetime(1970, 1, 1, tzinfo=UTC)
END_TIME = datetime(2100, 1, 1, tzinfo=UTC)
MIN_TIME_US = 0
END_TIME_US = int(END_TIME.timestamp()) * 1_000_000
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US

#: An IP packet cannot be larger, and the SIZE token has two bytes.
MAX_SIZE = 65_535

#: Packets of one result. Atlas sends 3 to 16; the ERRORS token saturates at 255.
MAX_PACKET_ERRORS = 2**31 - 1

#: 100 Tbit/s, more than any path carries: bit/s in the place of Mbit/s are noticed at the first fast link.
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

#: What a measurement was made by, in the order of its codes: a ping, or a traceroute, to a router on the way
#: (`hop`) or to its destination (`last`). Routers answer late on purpose: a hop's RTT is not a ping's.
KINDS = ("ping", "hop", "last")
PING, HOP, LAST = range(3)

#: Version 2 of the table. It is written where some measurement is not a ping; without `kind`, all are pings.
MEASUREMENTS_WITH_KIND = MEASUREMENTS.append(pa.field("kind", pa.string(), nullable=False)).with_metadata(
    {"ping_llm.measurements": "2"}
)

#: Mbit/s that were measured together with the RTT.
THROUGHPUT = "throughput_mbps"

#: Version 3, where some measurement has a throughput.
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
    """Every reason for which a traceroute's hop is good and yet no measurement, in order of precedence."""

    NOT_LAST = "not_last"  # only destinations are wanted, and this is none
    PRIVATE = "private"  # the address that answered is not public
    ERR = "err"  # the answer is an ICMP error: unreachable, prohibited
    EDST = "edst"  # the answer is about a packet to another destination
    NO_ADDRESS = "no_address"  # an answer does not say who sent it
    LATE = "late"  # only answers to packets of earlier hops
    DUP = "dup"  # only second answers
    ERROR = "error"  # nothing was sent
    SILENT = "silent"  # nothing came back


class Reject(StrEnum):
    """Every reason for which an input record is not a measurement. Closed: a new one is added here first."""

    UNPARSABLE = "unparsable"  # not JSON, not a row of the table
    TRUNCATED = "truncated"  # the input ends in the middle of it
    TOO_LARGE = "too_large"  # a record longer than the parser's bound
    TOO_DEEP = "too_deep"  # JSON nested beyond the parser's bound
    NOT_AN_OBJECT = "not_an_object"  # JSON, but not an object
    MISSING_TIME = "missing_time"
    BAD_TIME = "bad_time"  # not a number, not finite, or outside 1970–2100
    MISSING_SOURCE = "missing_source"
    BAD_SOURCE = "bad_source"  # not an IP address
    MISSING_DESTINATION = "missing_destination"  # unresolved name (dnserr) included
    BAD_DESTINATION = "bad_destination"
    MIXED_VERSIONS = "mixed_versions"  # source and destination of different IP versions
    WRONG_VERSION = "wrong_version"  # ip_version contradicts the addresses
    MISSING_RTT = "missing_rtt"  # neither a reply nor a loss: no packet was sent
    BAD_RTT = "bad_rtt"  # NaN, infinite, negative other than -1, or over an hour
    BAD_FIELD = "bad_field"  # an optional column of a wrong type or range
    TOO_FAST = "too_fast"  # sooner than light allows between the places of its ends


def table_version(columns: Collection[str]) -> int:
    """The lowest version of the table that has these columns."""
    if THROUGHPUT in columns:
        return 3
    return 2 if "kind" in columns else 1


def kind_names(codes: np.ndarray) -> pa.StringArray:
    """The column `kind` of codes, uint8 [n]."""
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(KINDS)).cast(pa.string())


@dataclass(frozen=True)
class Measurement:
    """One ping: the public, one-at-a-time face of a row of the table."""

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
