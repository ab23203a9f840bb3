"""What is kept of the past agrees with plain lists."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from watch_streams import addresses

from ping_llm.watch.past import DUPLICATE, NOT_KEPT, Past

RESULTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 40), st.sampled_from([1.0, 2.0, -1.0])),
    max_size=120,
)
SOURCES, DESTINATIONS = addresses(4, "192.0"), addresses(4, "198.51")


def plain(results, most):
    """The newest `most` different (time, rtt), and what `push` says of each."""
    kept, said = [], []
    for time, rtt in results:
        if (time, rtt) in kept:
            said.append(DUPLICATE)
        elif len(kept) == most and time < kept[0][0]:
            said.append(NOT_KEPT)
        else:
            place = sum(1 for each in kept if each[0] <= time)
            kept.insert(place, (time, rtt))
            said.append(place if len(kept) <= most else place - 1)
            if len(kept) > most:
                del kept[0]
    return kept, said


@settings(max_examples=60)
@given(RESULTS)
def test_kept_results_are_the_newest(results):
    past = Past(6, 10, {})
    said = {}
    for src, dst, time, rtt in results:
        pair, _ = past.pair_of(SOURCES[src], DESTINATIONS[dst])
        said.setdefault(pair, []).append(past.push(pair, time, rtt))
    for src in range(4):
        for dst in range(4):
            own = [(time, rtt) for a, b, time, rtt in results if (a, b) == (src, dst)]
            if not own:
                continue
            pair, _ = past.pair_of(SOURCES[src], DESTINATIONS[dst])
            kept, expected = plain(own, 6)
            count = int(past.pairs["count"][pair])
            found = zip(
                past.pairs["times"][pair, :count].tolist(),
                past.pairs["rtts"][pair, :count].tolist(),
                strict=True,
            )
            assert list(found) == kept
            assert said[pair] == expected


@settings(max_examples=40)
@given(RESULTS, st.integers(1, 8))
def test_forgetting_pairs_leaves_the_others_as_they_were(results, most):
    past = Past(6, 10, {"more": (np.int32, 2, 0)})
    for number, (src, dst, time, rtt) in enumerate(results):
        pair, _ = past.pair_of(SOURCES[src], DESTINATIONS[dst])
        past.push(pair, time, rtt)
        past.pairs["heard"][pair] = number
    before = {
        pair: (past.address(int(past.pairs["src"][pair])), past.address(int(past.pairs["dst"][pair])),
               [part.tolist() for part in past.context(pair, 30)])
        for pair in range(len(past))
    }  # fmt: skip
    newest = sorted(range(len(past)), key=lambda pair: -int(past.pairs["heard"][pair]))
    moved = past.forget(most)
    if moved is None:
        assert len(past) <= most
        return
    assert [pair for pair in range(len(moved)) if moved[pair] >= 0] == sorted(
        newest[: max(1, most * 9 // 10)]
    )
    again = Past(6, 10, {"more": (np.int32, 2, 0)})
    again.restore({name: column.copy() for name, column in past.save().items()})
    for old, (src, dst, context) in before.items():
        if moved[old] >= 0:
            for each in (past, again):
                pair, _ = each.pair_of(src, dst)
                assert pair == moved[old]
                assert [part.tolist() for part in each.context(pair, 30)] == context
