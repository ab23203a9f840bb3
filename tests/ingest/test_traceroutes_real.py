"""Real traceroutes: hop by hop against ripe.atlas.sagan, and the account of a whole file."""

import gzip
import logging
from collections import Counter
from pathlib import Path
from statistics import median

import numpy as np
import orjson
import pytest

from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.run import ingest
from ping_llm.ingest.traceroutes import read_traceroutes
from ping_llm.measurements.addresses import is_public, pack_one, unpack
from ping_llm.measurements.rules import ACCEPTED
from ping_llm.measurements.schema import LAST

FILE = Path(__file__).parents[2] / "../shared/data/atlas/maramap-traceroutes-2022.jsonl.gz"

pytestmark = pytest.mark.skipif(not FILE.exists(), reason=f"no real traceroutes: {FILE.name} is missing")


def test_every_hop_of_a_real_file_is_accounted_for(tmp_path):
    results = [orjson.loads(line) for line in gzip.decompress(FILE.read_bytes()).splitlines()]
    report = ingest([str(FILE)], tmp_path / "hops", IngestOptions(traceroutes="hops"))
    total = report.total
    assert total.traceroutes == len(results) == 9_338
    hops = [hop for result in results for hop in result["result"]]
    assert total.results == len(hops)
    replies = [reply for hop in hops for reply in hop.get("result", [])]
    assert total.replies.total() == len(replies)
    # 208,688 RTTs, as the data's own description says.
    with_rtt = total.replies.total() - sum(total.replies[fate] for fate in ("lost", "late", "no_address"))
    assert with_rtt == sum("rtt" in reply for reply in replies) == 208_688
    assert total.not_used["error"] == sum("error" in hop for hop in hops)
    assert total.measurements + total.duplicates == 57_452
    last = ingest([str(FILE)], tmp_path / "last", IngestOptions(traceroutes="last")).total
    assert (last.results, last.kinds["last"]) == (total.results, total.kinds["last"])
    assert last.kinds["hop"] == 0


def test_sagan_reads_the_same_hops():
    sagan = pytest.importorskip("ripe.atlas.sagan", reason="ripe.atlas.sagan is not installed")
    logging.getLogger("ripe.atlas.sagan").setLevel(logging.CRITICAL)
    lines = gzip.decompress(FILE.read_bytes()).splitlines()
    results = [orjson.loads(line) for line in lines]
    block = read_traceroutes(results, IngestOptions(traceroutes="hops"))
    columns, texts = block.columns, unpack(block.columns.dst).to_pylist()
    public = Public()
    row = 0
    seen: Counter[str] = Counter()
    quiet = sagan.TracerouteResult.ACTION_IGNORE
    for result in results:
        theirs = sagan.TracerouteResult(result, on_error=quiet, on_malformation=quiet)
        assert theirs.total_hops == len(result["result"])
        for hop in theirs.hops:
            # sagan drops late replies; what it calls errors has `err`. It does not know of dup and edst.
            usable = [
                packet
                for packet in hop.packets
                if packet.origin
                and packet.rtt is not None
                and not packet.is_error
                and not {"dup", "edst"} & packet.raw_data.keys()
                and public(packet.origin)
            ]
            if columns.verdict[row] != ACCEPTED:
                assert not usable
                seen["not used"] += 1
            else:
                own = [packet.rtt for packet in usable if packet.origin == texts[row]]
                assert columns.rtt[row] == pytest.approx(median(own), abs=0.0005 + 1e-9)
                if len(own) == sum(bool(packet.rtt) for packet in hop.packets):
                    # Nothing but replies from one address: sagan's own median of the hop.
                    assert columns.rtt[row] == pytest.approx(hop.median_rtt, abs=0.001)
                    seen["same median"] += 1
                counts = Counter(packet.origin for packet in usable)
                reached = hop is theirs.hops[-1] and theirs.destination_ip_responded
                assert (columns.kind[row] == LAST) == reached
                if reached:
                    assert texts[row] == theirs.destination_address
                else:
                    assert counts[texts[row]] == max(counts.values())
                lost = sum("x" in packet.raw_data for packet in hop.packets)
                assert columns.packet_error_count[row] == lost
                seen["measured"] += 1
            row += 1
    assert row == len(columns)
    assert seen["same median"] > 0.95 * seen["measured"]
    assert seen["not used"] > 0.1 * row


class Public:
    """Is an address public? Each is asked once."""

    def __init__(self):
        self._known = {}

    def __call__(self, text):
        if text not in self._known:
            packed = np.frombuffer(pack_one(text), np.uint8)[None]
            self._known[text] = bool(is_public(packed)[0])
        return self._known[text]
