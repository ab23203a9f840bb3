"""What the watcher says of each result, and when it raises an alarm."""

import json
from dataclasses import replace

import numpy as np
import pytest
from watch_streams import MINUTE, START, addresses, fed, steady

from ping_llm.answer.context import Context, Question
from ping_llm.answer.model import Model
from ping_llm.measurements.addresses import Prefix
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.schema import NO_REPLY
from ping_llm.watch import expect
from ping_llm.watch.options import WatchOptions
from ping_llm.watch.results import DUPLICATED, JUMPED, LATE, USED
from ping_llm.watch.store import result_values
from ping_llm.watch.watcher import Watcher


@pytest.fixture(scope="module")
def alone(run):
    return Model.load(run, data=False)


def test_a_fresh_answer_is_that_of_rtt_many(alone, world):
    """With --refresh 1 every result gets the answer of `Model.rtt_many` for what was kept before it."""
    stream = world.train.sorted_by_time().take(slice(0, 150))
    options = WatchOptions(refresh=1, pair_results=5, source_results=8)
    seen, _ = fed(Watcher(alone, options), stream, 40)
    past: dict[bytes, list[tuple[int, bytes, float]]] = {}
    questions = []
    for row in range(len(stream)):
        src, dst, time = stream.src[row].tobytes(), stream.dst[row].tobytes(), int(stream.time[row])
        mine = past.setdefault(src, [])
        own = [each for each in mine if each[1] == dst][-5:]
        others = [each for each in mine[-8:] if each[1] != dst]
        known = sorted([each for each in own + others if each[0] < time], key=lambda each: each[0])
        packed = np.frombuffer(b"".join(each[1] for each in known), np.uint8).reshape(-1, 16)
        times, rtts = np.array([e[0] for e in known], np.int64), np.array([e[2] for e in known], np.float64)
        ends = [Prefix.of(np.frombuffer(end, np.uint8)) for end in (src, dst)]
        questions.append(Question(*ends, time, Context.of(src, packed, times, rtts)))
        mine.append((time, dst, float(stream.rtt[row])))
        mine.sort(key=lambda each: each[0])
    for row, answer in enumerate(expect.steady(alone).rtt_many(questions)):
        if not seen[row].fresh:  # a pair under suspicion keeps its answer
            continue
        expected, rtt = answer.distribution, float(stream.rtt[row])
        assert seen[row].expected == pytest.approx(expected.quantile([0.05, 0.5, 0.95]).tolist())
        assert seen[row].failure == pytest.approx(expected.failure)
        assert seen[row].judged.tail == pytest.approx(expected.tail(rtt))
        assert seen[row].judged.bits == pytest.approx(expected.bits(rtt))
    assert sum(each.fresh for each in seen) > 100


def test_output_does_not_depend_on_batches(alone):
    stream = steady(addresses(6, "192.0"), addresses(4, "198.51"), 60)
    changed = np.where((np.arange(len(stream)) > 900) & (stream.dst[:, 15] == 1), 60.0, 0.0)
    stream = replace(stream, rtt=stream.rtt + changed)

    def told(batch):
        seen, events = fed(Watcher(alone, WatchOptions()), stream, batch)
        return [json.dumps(result_values(each)) for each in seen], events

    whole = told(len(stream))
    assert any(event["event"] == "group" for event in whole[1])
    for batch in (1, 7, 100):
        assert told(batch) == whole


def test_a_saved_watcher_goes_on_as_if_nothing_had_happened(alone):
    stream = steady(addresses(5, "192.0"), addresses(5, "198.51"), 70)
    stream = replace(stream, rtt=stream.rtt + np.where(np.arange(len(stream)) > 1000, 40.0, 0.0))
    whole = fed(Watcher(alone), stream)
    first = Watcher(alone)
    begin = fed(first, stream.take(slice(0, 1100)))
    arrays, saved = first.save()
    again = Watcher(alone)
    again.restore({name: array.copy() for name, array in arrays.items()}, json.loads(json.dumps(saved)))
    end = fed(again, stream.take(slice(1100, None)))
    assert [result_values(each) for each in begin[0] + end[0]] == [result_values(each) for each in whole[0]]
    assert begin[1] + end[1] == whole[1]
    assert whole[1]


def test_a_change_is_found_grouped_and_ended(alone):
    """All sources to one destination rise by 50 ms for 30 rounds: one group, found soon, ended soon."""
    sources, destinations = addresses(8, "192.0"), addresses(4, "198.51")
    stream = steady(sources, destinations, 120, seed=1)
    round_ = np.arange(len(stream)) // 32
    hit = (
        (stream.dst == np.frombuffer(destinations[2], np.uint8)).all(axis=1) & (round_ >= 60) & (round_ < 90)
    )
    _, events = fed(Watcher(alone), replace(stream, rtt=stream.rtt + np.where(hit, 50.0, 0.0)))
    alarms = [event for event in events if event["event"] == "alarm"]
    assert {event["dst"] for event in alarms} == {"198.51.0.3"}
    assert {event["change"] for event in alarms} == {"rose"}
    assert len(alarms) == 8
    assert all(35 < event["change_ms"] < 65 for event in alarms)
    groups = [event for event in events if event["event"] == "group"]
    assert [(event["shared"], event["of"], event["watched"]) for event in groups] == [
        ("dst", "198.51.0.3", 8)
    ]
    ends = [event for event in events if event["event"] == "end"]
    assert [event["why"] for event in ends] == ["back to normal"] * 8
    assert events[-1]["event"] == "group end"
    assert max(event["hours"] for event in ends) < 45 * 10 / 60
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))


def test_an_outage_is_found_and_a_single_late_packet_is_not(alone):
    stream = steady(addresses(4, "192.0"), addresses(3, "198.51"), 100, seed=2)
    round_, src = np.arange(len(stream)) // 12, stream.src[:, 15]
    rtt = np.where((src == 2) & (round_ >= 60), NO_REPLY, stream.rtt)
    rtt = np.where((src == 1) & (round_ == 50), 5000.0, rtt)  # one late packet per destination
    _, events = fed(Watcher(alone, WatchOptions(accept_hours=5)), replace(stream, rtt=rtt))
    alarms = [event for event in events if event["event"] == "alarm"]
    assert {(event["src"], event["change"]) for event in alarms} == {("192.0.0.2", "lost")}
    assert len(alarms) == 3
    (group,) = [event for event in events if event["event"] == "group"]
    assert group["shared"] == "src"
    ends = [event for event in events if event["event"] == "end"]
    assert {event["why"] for event in ends} == {"new level accepted"}


def test_late_repeated_and_misdated_results_are_counted(alone):
    stream = steady(addresses(2, "192.0"), addresses(2, "198.51"), 30)
    odd = stream.take(np.array([100, 100, 40, 101]))
    time = odd.time.copy()
    time[1] = START + 100 * 24 * 60 * MINUTE  # a source's clock is wrong
    time[2] += 1  # a result that comes late
    odd = replace(odd, time=time)
    mixed = Columns.concatenate([stream.take(slice(0, 110)), odd, stream.take(slice(110, None))])
    watcher = Watcher(alone)
    seen, _ = fed(watcher, mixed)
    assert [each.taken for each in seen[110:114]] == [DUPLICATED, JUMPED, LATE, DUPLICATED]
    assert [each.taken for each in seen[114:]] == [USED] * 10
    assert watcher.counts[LATE] == watcher.counts[JUMPED] == 1
    assert watcher.counts[DUPLICATED] == 2
    assert len(seen) == len(mixed)


def test_a_stream_whose_time_moves_is_followed(alone):
    """After a gap of a month, and when the first result was dated wrongly, the others set the time."""
    stream = steady(addresses(2, "192.0"), addresses(2, "198.51"), 40)
    gap = np.where(np.arange(len(stream)) >= 80, 30 * 24 * 60 * MINUTE, 0)
    gap[0] = 3650 * 24 * 60 * MINUTE
    watcher = Watcher(alone)
    seen, _ = fed(watcher, replace(stream, time=stream.time + gap))
    jumped = [number for number, each in enumerate(seen) if each.taken == JUMPED]
    assert jumped == [*range(1, 20), *range(80, 99)]


def test_memory_is_bounded(alone):
    """Pairs that were not heard of for the longest time are forgotten; those that are heard are not."""
    regular = steady(addresses(2, "192.0"), addresses(2, "198.51"), 1500)
    passing = steady(addresses(50, "203.0"), addresses(60, "198.51", 7), 1, seed=3)
    passing = replace(passing, time=START + np.arange(len(passing)) * 3 * MINUTE)
    stream = Columns.concatenate([regular, passing]).sorted_by_time()
    watcher = Watcher(alone, WatchOptions(most_pairs=100, refresh=10_000, refresh_hours=1e6))
    seen, _ = fed(watcher, stream)
    assert len(seen) == len(stream)
    assert len(watcher.past) <= 100 + 1024
    assert watcher.counts["forgotten pairs"] > 1500
    for src in addresses(2, "192.0"):
        for dst in addresses(2, "198.51"):
            pair = watcher.past._pair_keys.find(src + dst)
            assert int(watcher.past.pairs["results"][pair]) == 1500
