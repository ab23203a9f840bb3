"""What a query may look back on, against the plain rule."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ping_llm.measurements.columns import NO_TIME, Columns, Queries
from ping_llm.measurements.history import History

_end, _time = st.integers(1, 4), st.integers(1, 9)
_measured = st.tuples(_end, _end, _time, st.sampled_from([-1.0, 5.0, 6.0]))
_asked = st.lists(st.tuples(_end, _end, _time | st.just(NO_TIME)), min_size=1, max_size=6)


def _packed(numbers) -> np.ndarray:
    out = np.zeros((len(numbers), 16), np.uint8)
    out[:, 15] = numbers
    return out


@settings(max_examples=80, deadline=None)
@given(
    st.lists(_measured, max_size=40), st.lists(_asked, min_size=1, max_size=4), st.none() | st.integers(0, 5)
)
def test_a_query_looks_back_on_what_is_earlier(measured, calls, limit):
    src, dst, time, rtt = (np.array([row[n] for row in measured]) for n in range(4))
    columns = Columns(time.astype(np.int64), _packed(src), _packed(dst), rtt.astype(np.float64))
    history = History(columns, limit)
    # Several calls about one history: what the first looked for is not all that the next ones want.
    for asked in calls:
        queries = Queries(
            *(
                part(column)
                for part, column in zip(
                    (lambda t: np.array(t, np.int64), _packed, _packed),
                    ([a[2] for a in asked], [a[0] for a in asked], [a[1] for a in asked]),
                    strict=True,
                )
            )
        )
        found = [
            history.of_source(queries),
            history.results_of_pair(queries),
            history.replies_of_pair(queries),
        ]
        for index, (source, destination, at) in enumerate(asked):
            earlier = [row for row in measured if row[0] == source and (at == NO_TIME or row[2] < at)]
            # Which of several at one time the limit leaves is not part of the rule: compare without them.
            earlier.sort(key=lambda row: row[2])
            source_rows = earlier if limit is None else earlier[len(earlier) - min(limit, len(earlier)) :]
            oldest = source_rows[0][2] if source_rows else 10
            of_pair = [row for row in earlier if row[1] == destination and row[2] >= oldest]
            plain = [source_rows, of_pair, [row for row in of_pair if row[3] != -1.0]]
            for ranges, rows in zip(found, plain, strict=True):
                low, high = ranges.low[index], ranges.high[index]
                assert ranges.columns.time[low:high].tolist() == [row[2] for row in rows]
            for ranges, rows in zip(found[1:], plain[1:], strict=True):
                low, high = ranges.low[index], ranges.high[index]
                assert sorted(ranges.columns.rtt[low:high].tolist()) == sorted(row[3] for row in rows)
                assert (ranges.columns.dst[low:high, 15] == destination).all()
