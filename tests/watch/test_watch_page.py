"""The page of a watch."""

from ping_llm.measurements.schema import DAY_US
from ping_llm.watch.page import LastDay, Status, page_html
from ping_llm.watch.results import Output


def group(number: int) -> dict[str, object]:
    return {
        "event": "group", "number": number, "time": "2024-05-01T00:00:00Z", "since": "2024-05-01T00:00:00Z",
        "shared": "dst", "of": "192.0.2.1", "change": "rose", "alarms": number, "watched": number,
        "change_ms": None,
    }  # fmt: skip


def test_the_newest_events_stay_on_the_page_whatever_their_age():
    day, now = LastDay(), 20_000 * DAY_US
    day.add(Output(events=[group(number) for number in range(1, 1003)]), now)
    day.add(Output(), now + 3 * DAY_US)
    restored = LastDay()
    restored.restore(day.save())
    status = Status(now + 3 * DAY_US, {}, dict(restored.hours), tuple(restored.events), ())
    page = page_html(status, "run")
    assert "Newest 1,000 events" in page
    assert [number for number in (1, 2, 3, 1002) if f" {number} of {number} sources to" in page] == [3, 1002]
