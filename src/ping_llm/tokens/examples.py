"""A few measurements that between them have every form tokens know."""

from datetime import UTC, datetime

from ping_llm.addresses import parse_prefix
from ping_llm.tokens.statement import Statement
from ping_llm.tokens.vocab import DEFAULT_FIELDS, Field

_NOON = int(datetime(2024, 5, 1, 12, tzinfo=UTC).timestamp())
_SRC, _DST, _TIME, _RESULT = DEFAULT_FIELDS


def _state(order: tuple[Field, ...], src: str, dst: str, seconds: int, rtt: float, **more: int) -> Statement:
    return Statement(order, parse_prefix(src), parse_prefix(dst), seconds, rtt, **more)


def examples() -> list[tuple[str, list[Statement]]]:
    """Titled contexts. Addresses are those set aside for documentation."""
    probe, target = "192.0.2.1", "198.51.100.7"
    return [
        (
            "the source stands once; times are absolute, then deltas; fields come in any order",
            [
                _state((_SRC, _DST, _TIME, _RESULT), probe, target, _NOON, 12.345),
                _state((_DST, _TIME, _RESULT), probe, target, _NOON + 60, 302_281.66),
                _state((_RESULT, _DST, _TIME), probe, "203.0.113.9", _NOON + 3660, -1.0),
                _state((_TIME, _DST, _RESULT), probe, target, _NOON + 30, 0.001),
                _state((_DST, _RESULT), probe, target, _NOON, 0.0),
            ],
        ),
        (
            "addresses cut to a prefix",
            [
                _state((_SRC, _DST, _RESULT), "192.0.2.0/24", target, _NOON, 20.5),
                _state((_DST, _RESULT), "192.0.2.0/24", "198.0.0.0/8", _NOON, 20.25),
            ],
        ),
        (
            "IPv6, whole and cut; an IPv4-mapped address is IPv4",
            [
                _state((_SRC, _DST, _RESULT), "2001:db8::1", "2001:db8:ffff::53", _NOON, 239.0),
                _state((_SRC, _RESULT, _DST), "2001:db8::/32", "2001:db8:ffff::/48", _NOON, 240.125),
                _state((_SRC, _RESULT), "::ffff:192.0.2.1", target, _NOON, 4.096),
            ],
        ),
        (
            "the optional fields; 255 errors are 255 or more",
            [
                _state(
                    (_SRC, _DST, _RESULT, Field.SIZE, Field.ERRORS, Field.MSM_ID),
                    *(probe, target, _NOON, -1.0),
                    size=1000,
                    errors=300,
                    msm_id=1001,
                )
            ],
        ),
    ]
