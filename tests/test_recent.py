"""The cache of values used last."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from ping_llm.recent import Recent


@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 7)), max_size=60),
)
def test_it_keeps_what_was_used_last_within_its_bound(most, steps):
    """Against a plain list of (key, size), the least recently used first."""
    recent: Recent[int, bytes] = Recent(most, len)
    plain: OrderedDict[int, bytes] = OrderedDict()
    for is_put, key, size in steps:
        if not is_put:
            assert recent.get(key) == plain.get(key)
            if key in plain:
                plain.move_to_end(key)
            continue
        value = bytes([key]) * size
        recent.put(key, value)
        if size > most:
            continue
        plain.pop(key, None)
        plain[key] = value
        while sum(map(len, plain.values())) > most:
            plain.popitem(last=False)
    assert len(recent) == len(plain)
    assert all(recent.get(key) == value for key, value in plain.items())


def test_what_is_not_kept_is_made_once():
    made = []

    def make():
        made.append(len(made))
        return f"value {len(made)}"

    kept = Recent(2)
    assert [kept.get_or("a", make), kept.get_or("a", make)] == ["value 1", "value 1"]
    assert (kept.get_or("b", make), kept.get_or("c", make), kept.get_or("a", make)) == (
        "value 2", "value 3", "value 4",
    )  # fmt: skip
