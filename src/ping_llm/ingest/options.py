"""What a user can choose about ingesting, with every default and every bound in one place."""

from dataclasses import asdict, dataclass
from typing import Any

from ping_llm.errors import UsageError

RTT_CHOICES = ("avg", "min", "max", "each")
SOURCE_CHOICES = ("auto", "from", "src_addr")

#: Decompressed text is handled about this much at a time. 1 MiB is some 2,000 results: with 20,000 the parsed
#: objects leave the cache and parsing takes 1.7 times as long.
BLOCK_BYTES = 1 << 20

#: A record longer than this is not a ping (16 packets make 2 KB) but an accident or an attack: it is skipped
#: while it is read, never held.
MAX_RECORD_BYTES = 4 << 20

#: orjson's own bound; deeper JSON does not parse.
MAX_DEPTH = 1024

#: How much of a rejected record is kept. All real results fit whole.
RAW_BYTES = 8 << 10

#: Rows of a row group in the output, and in the intermediate parts.
ROW_GROUP_ROWS = 131_072
PART_GROUP_ROWS = 65_536
REJECT_GROUP_ROWS = 4_096
#: Rows sorted at a time when the parts become the table: about 500 bytes each at the peak of the sort.
#: A single day may be larger; then DuckDB spills to the work folder.
SORT_ROWS = 1_000_000

#: DuckDB's memory, all workers together, and the workers that sort at a time: sorting, a worker takes 130 MB
#: for itself; reading, 55 MB.
SORT_MEMORY_MB = 400
SORT_WORKERS = 4

#: Workers by default, one a core up to this: eight take 0.9 GB together, and memory is to stay below 1 GB.
MOST_WORKERS = 8


@dataclass(frozen=True)
class IngestOptions:
    """What decides the output: two runs with equal options and inputs write equal bytes.

    Attributes:
      rtt: `avg`, `min` or `max` over a result's packets that count, or `each`: one measurement a packet.
      source: `auto` (src_addr if public, else from), `from` or `src_addr`.
    """

    rtt: str = "avg"
    source: str = "auto"

    def __post_init__(self) -> None:
        if self.rtt not in RTT_CHOICES:
            raise UsageError(f"--rtt {self.rtt} is not one of {', '.join(RTT_CHOICES)}")
        if self.source not in SOURCE_CHOICES:
            raise UsageError(f"--source {self.source} is not one of {', '.join(SOURCE_CHOICES)}")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
