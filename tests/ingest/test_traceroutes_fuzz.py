"""Hops of any content: no crash, all accounted for, and what a plain reading of one hop says."""

import json
from collections import Counter
from statistics import median

import numpy as np
import pytest
from atlas_results import OTHER_ROUTER, ROUTER, TARGET, ping, reply, traceroute, write_lines
from hostile_inputs import assert_good, block_of, json_values
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ping_llm.ingest import atlas, traceroutes
from ping_llm.ingest.accounting import FATES
from ping_llm.ingest.columns import NOT_PING, NOT_USED, TRACEROUTE, is_reject
from ping_llm.ingest.options import IngestOptions
from ping_llm.ingest.run import ingest
from ping_llm.ingest.traceroutes import read_traceroutes
from ping_llm.measurements.addresses import is_public, pack_one, unpack_one
from ping_llm.measurements.rules import ACCEPTED, REASONS, judge

few = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))

origins = st.sampled_from([ROUTER, OTHER_ROUTER, TARGET, "10.0.0.1", "2a00::1", "fe80::1", "", "x", None])
rtts = st.floats(0, 5).map(lambda rtt: round(rtt, 1)) | st.sampled_from(["1.5", -1, 4e6, "x", None])
marks = st.dictionaries(
    st.sampled_from(["late", "dup", "edst", "err", "x", "error", "ttl"]), st.just(1), max_size=2
)
likely = st.builds(lambda rtt, origin: reply(rtt, origin), st.floats(0, 5), st.sampled_from([ROUTER, TARGET]))
replies = likely | st.builds(lambda rtt, origin, marks: reply(rtt, origin, **marks), rtts, origins, marks)
lists = st.lists(replies | st.just({"x": "*"}) | st.sampled_from([{}, 5, None]), min_size=1, max_size=5)

#: What a hop without a usable reply is: the first of these that one of its replies is.
PRECEDENCE = {
    "bad_rtt": "bad_rtt", "bad_address": "bad_destination", "other_address": "not_last",
    "private": "private", "err": "err", "edst": "edst", "no_address": "no_address", "late": "late",
    "dup": "dup", "error": "error", "lost": "silent",
}  # fmt: skip
NAME_OF = {code: reason.value for reason, code in NOT_USED.items()} | {
    code: reason.value for code, reason in enumerate(REASONS, 1)
}


def plain_fate(value, wanted, only_wanted):
    """What one reply is; "used" if it may count."""
    if not isinstance(value, dict):
        return "bad_rtt"
    for mark in ("late", "dup", "edst", "err"):
        if mark in value:
            return mark
    if "rtt" not in value and ("x" in value or "error" in value):
        return "lost" if "x" in value else "error"
    if not value.get("from"):
        return "no_address"
    try:
        if not 0 <= float(value["rtt"]) <= 3_600_000:
            return "bad_rtt"
    except (KeyError, ValueError, TypeError):
        return "bad_rtt"
    try:
        packed = pack_one(value["from"])
    except ValueError:
        return "bad_address"
    if not is_public(np.frombuffer(packed, np.uint8)[None])[0]:
        return "private"
    return "other_address" if only_wanted and value["from"] != wanted else "used"


def plain_hop(values, wanted, only_wanted):
    """The outcome of one hop, its lost packets, and the fates of its replies."""
    fates = [plain_fate(value, wanted, only_wanted) for value in values]
    lost = fates.count("lost")
    usable = [value["from"] for value, fate in zip(values, fates, strict=True) if fate == "used"]
    bad = {"bad_rtt", "bad_address"} & set(fates)
    if bad or not usable:
        reason = next(PRECEDENCE[fate] for fate in PRECEDENCE if fate in fates)
        return reason, lost, Counter("rejected" if fate == "used" else fate for fate in fates)
    most = max(Counter(usable).values())
    address = wanted if wanted in usable else next(one for one in usable if usable.count(one) == most)
    own = [
        float(value["rtt"])
        for value, fate in zip(values, fates, strict=True)
        if fate == "used" and value["from"] == address
    ]
    counted = Counter(fates)
    counted["used"] = len(own)
    counted["other_address"] += len(usable) - len(own)
    return (address, median(own)), lost, +counted


@few
@given(st.lists(lists, min_size=1, max_size=4), st.sampled_from([None, TARGET]), st.booleans())
@example([[reply(1.0, TARGET), reply(2.0), reply(3.0)]], TARGET, False)
@example([[reply(1.0), reply(2.0, OTHER_ROUTER)]], None, True)
def test_hops_add_up_as_a_plain_reading_says(values, wanted, only_wanted):
    preferred = np.zeros((len(values), 16), np.uint8)
    if wanted:
        preferred[:] = np.frombuffer(pack_one(wanted), np.uint8)
    added = traceroutes.add_up(values, preferred, only_wanted)
    counted: Counter[str] = Counter()
    for index, hop in enumerate(values):
        outcome, lost, fates = plain_hop(hop, wanted, only_wanted)
        counted += fates
        assert added.lost[index] == lost
        if added.verdict[index] == ACCEPTED:
            assert (unpack_one(added.address[index].tobytes()), added.rtt[index]) == outcome
        else:
            assert NAME_OF[added.verdict[index]] == outcome
    assert +Counter(dict(zip(FATES, added.fates.tolist(), strict=True))) == counted


broken_replies = st.lists(
    st.dictionaries(
        st.sampled_from(["from", "rtt", "x", "late", "dup", "err", "edst", "error", "ttl", "icmpext"]),
        json_values | origins | rtts,
        max_size=4,
    )
    | json_values
    | replies,
    max_size=4,
)
broken_hops = (
    st.builds(
        lambda number, listed: {"hop": number, "result": listed}, json_values, broken_replies | json_values
    )
    | st.dictionaries(st.sampled_from(["hop", "result", "error"]), json_values, max_size=3)
    | json_values
)
keys = (
    "timestamp",
    "from",
    "src_addr",
    "dst_addr",
    "addr",
    "af",
    "pf",
    "msm_id",
    "size",
    "prb_id",
    "type",
    "result",
)
printed = st.lists(
    st.sampled_from(["1", "2", "*", "ms", "1.5", "NEWLINE", "!H", "!", ROUTER, f"({TARGET})", "x", "é"]),
    max_size=25,
).map(lambda words: f"traceroute to a ({TARGET}), 32 hops NEWLINE {' '.join(words)}")
broken = st.builds(
    lambda listed, changes, removed: {
        key: value for key, value in (traceroute(*listed) | changes).items() if key not in removed
    },
    st.lists(broken_hops | lists, max_size=4),
    st.dictionaries(st.sampled_from(keys), json_values, max_size=2)
    | printed.map(lambda text: {"result": text}),
    st.lists(st.sampled_from(keys), max_size=2),
)


@few
@given(
    st.lists(broken | json_values, min_size=1, max_size=4),
    st.sampled_from(["hops", "last"]),
    st.sampled_from(["auto", "from", "src_addr"]),
)
def test_broken_hops_are_accounted_for(values, choice, source):
    options = IngestOptions(source=source, traceroutes=choice)
    texts = [json.dumps(value).encode() for value in [*values, ping()]]
    read = atlas.read_block(block_of(texts), options)
    judge(read.columns)
    assert_good(read.columns)
    assert set(np.flatnonzero(read.columns.verdict == TRACEROUTE)) == set(read.traceroutes)
    found = [result for result in values if isinstance(result, dict) and result.get("type") == "traceroute"]
    assert len(read.traceroutes) >= len(found)
    if not read.traceroutes:
        return
    block = read_traceroutes(list(read.traceroutes.values()), options)
    columns = block.columns
    assert_good(columns)
    assert (columns.rtt[columns.verdict == ACCEPTED] >= 0).all()
    assert is_public(columns.dst[columns.verdict == ACCEPTED]).all()
    used = np.isin(columns.verdict, list(NOT_USED.values()))
    assert (used | is_reject(columns.verdict) | (columns.verdict == ACCEPTED)).all()
    assert (columns.verdict != NOT_PING).all()
    # Each traceroute is one reject, or as many rows as it has hops.
    rows = np.bincount(block.owners, minlength=len(read.traceroutes))
    whole = [row for row, hop in enumerate(block.hops) if hop is None and rows[block.owners[row]] == 1]
    assert block.taken_apart >= len(rows) - len(whole)
    for owner, result in enumerate(read.traceroutes.values()):
        if rows[owner] != 1 and isinstance(result["result"], list):
            assert rows[owner] == len(result["result"])
    for row in np.flatnonzero(is_reject(columns.verdict)).tolist():
        assert block.raw(row) is None or json.loads(block.raw(row)) is not None


def test_broken_hops_from_end_to_end(tmp_path):
    """A thousand hops, some cut or bent at random: a run counts each once."""
    noise = np.random.default_rng(5)
    texts = []
    for number in range(300):
        hop = [reply(float(noise.integers(1, 9)), origin) for origin in (ROUTER, "10.0.0.1", TARGET)]
        text = bytearray(json.dumps(traceroute(hop, hop[1:2], hop[2:], timestamp=number)).encode())
        for _ in range(noise.integers(0, 3)):
            text[noise.integers(len(text))] = noise.choice(list(b'"{}[]:,x1.-'))
        texts.append(bytes(text))
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"\n".join(texts) + b"\n" + write_lines([ping()]))
    total = ingest([str(path)], tmp_path / "out", IngestOptions(traceroutes="hops")).total
    total.check("the run")
    assert total.kinds["ping"] == 1
    assert total.rejected > 50
    assert total.kinds["last"] > 100
    assert total.results == 301 + sum(
        max(len(result["result"]) - 1, 0) for result in parsed(texts) if result is not None
    )


def parsed(texts):
    """The traceroutes that are taken apart, by what the run says of whole ones."""
    for text in texts:
        block = atlas.read_block(block_of([text]), IngestOptions(traceroutes="hops"))
        if block.traceroutes:
            read = read_traceroutes(list(block.traceroutes.values()), IngestOptions(traceroutes="hops"))
            yield block.traceroutes[0] if read.taken_apart else None


@pytest.mark.parametrize("choice", ["hops", "last"])
def test_the_rest_of_a_truncated_file_is_kept(tmp_path, choice):
    text = write_lines(
        [traceroute([reply(1.0)], [reply(9.0, TARGET)], timestamp=index) for index in range(5)]
    )
    path = tmp_path / "results.jsonl"
    path.write_bytes(text[:-40])
    report = ingest([str(path)], tmp_path / "out", IngestOptions(traceroutes=choice))
    assert report.total.kinds["last"] == 4
    assert report.total.rejects == {"truncated": 1}
    assert len(report.troubles) == 1
