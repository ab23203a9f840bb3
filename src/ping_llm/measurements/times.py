"""Times as text: ISO 8601 in UTC."""

from datetime import UTC, datetime

#: The last that the calendar has.
LAST_SECOND = int(datetime.max.replace(tzinfo=UTC).timestamp())


def time_text(seconds: int) -> str:
    """Seconds since 1970 as text. Eight bytes can hold times beyond the calendar: those stay numbers."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{seconds} s after 1970"


def moment_text(micros: int) -> str:
    """µs since 1970 as text, with a fraction only where there is one."""
    seconds, fraction = divmod(micros, 1_000_000)
    text = time_text(seconds)
    return text if not fraction else f"{text.removesuffix('Z')}.{fraction:06d}Z"
