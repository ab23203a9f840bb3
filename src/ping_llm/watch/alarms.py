"""Alarms of pairs, and groups of alarms that share a destination, a source or a network.

An event is a JSON object with an increasing number: an alarm begins or ends; a group begins, grows to twice
its size, or ends.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ping_llm.measurements.addresses import Prefix, is_ipv4, unpack_one
from ping_llm.measurements.schema import DAY_US, HOUR_US
from ping_llm.measurements.times import time_text
from ping_llm.watch.options import WatchOptions
from ping_llm.watch.past import NETWORK_BYTES, Past
from ping_llm.watch.sequential import DIRECTIONS, LOSS

#: What alarms can share, most specific first: column of a pair, and words before its value in a sentence.
_SHARED = {
    "dst": "sources to",
    "src": "destinations from",
    "dst_network": "pairs to",
    "src_network": "pairs from",
}


@dataclass
class Alarm:
    """A change of one pair that has not ended.

    Attributes:
      onset, raised: estimated start of the change, and time at which it was certain, µs since 1970.
      expected: 5 %, median and 95 % of the expected replies, ms.
      observed: median of the replies since the onset, ms; None without any.
      results, lost: number of results since the onset, and of those without a reply.
      last: time of the pair's last result.
      calm, calm_since: evidence that the change has ended (`sequential.calmer`), and time of its start.
    """

    pair: int
    direction: int
    onset: int
    raised: int
    expected: tuple[float, float, float]
    expected_failure: float
    observed: float | None
    results: int
    lost: int
    last: int
    calm: float = 0.0
    calm_since: int = 0
    group: int | None = None
    number: int = 0

    @property
    def change_ms(self) -> float | None:
        return None if self.observed is None else self.observed - self.expected[1]


def alarm_of(saved: dict[str, Any]) -> Alarm:
    """Return the alarm that was saved as JSON."""
    return Alarm(**saved | {"expected": tuple(saved["expected"])})


@dataclass
class Group:
    """Alarms that share the address or network in the column `shared`."""

    number: int
    shared: str
    key: int
    direction: int
    onset: int
    members: list[int] = field(default_factory=list)
    watched: int = 0
    announced: int = 0
    active: int = 0
    change_ms: float | None = None


def network_text(packed: bytes) -> str:
    ipv4 = bool(is_ipv4(np.frombuffer(packed, np.uint8)[None])[0])
    known = NETWORK_BYTES[4] - 12 if ipv4 else NETWORK_BYTES[6]
    return str(Prefix.of(np.frombuffer(packed, np.uint8), known))


class Alarms:
    """Active alarms, their groups, and the events that report them, in the order of the stream."""

    def __init__(self, past: Past, options: WatchOptions):
        self._past, self._options = past, options
        self.active: dict[int, Alarm] = {}
        self.groups: dict[int, Group] = {}
        self.events = 0
        self.raised = 0
        self._pairs_of: dict[str, np.ndarray] = {}

    def count_pairs(self, now: int) -> None:
        """Count the pairs of each address and network that had a result within the last day."""
        size, row = self._past.pairs.size, self._past.pairs
        heard = row["heard"][:size] > now - DAY_US
        self._pairs_of = {shared: np.bincount(row[shared][:size][heard]) for shared in _SHARED}

    def _event(self, kind: str, time: int, **more: Any) -> dict[str, Any]:
        self.events += 1
        return {"event": kind, "number": self.events, "time": time_text(time // 1_000_000), **more}

    def names(self, pair: int) -> tuple[str, str]:
        row = self._past.pairs
        return tuple(unpack_one(self._past.address(int(row[end][pair]))) for end in ("src", "dst"))  # type: ignore[return-value]

    def _about(self, alarm: Alarm) -> dict[str, Any]:
        src, dst = self.names(alarm.pair)
        return {
            "alarm": alarm.number,
            "src": src,
            "dst": dst,
            "change": DIRECTIONS[alarm.direction],
            "since": time_text(alarm.onset // 1_000_000),
            "expected_ms": [round(value, 3) for value in alarm.expected],
            "expected_no_reply": round(alarm.expected_failure, 4),
            "observed_ms": None if alarm.observed is None else round(alarm.observed, 3),
            "change_ms": None if alarm.change_ms is None else round(alarm.change_ms, 3),
            "results": alarm.results,
            "lost": alarm.lost,
            "group": alarm.group,
        }

    def tell(self, alarm: Alarm) -> dict[str, Any]:
        """Return the event that reported an active alarm."""
        return {
            "event": "alarm",
            "number": alarm.number,
            "time": time_text(alarm.raised // 1_000_000),
            **self._about(alarm),
        }

    def begin(self, alarm: Alarm) -> list[dict[str, Any]]:
        self.raised += 1
        alarm.number = self.raised
        self.active[alarm.pair] = alarm
        joined = self._join(alarm)
        events = [self._event("alarm", alarm.raised, **self._about(alarm))]
        if joined is not None and len(joined.members) >= max(2 * joined.announced, self._options.group_least):
            grown = joined.announced > 0
            joined.announced = len(joined.members)
            name = "group grown" if grown else "group"
            events.append(self._event(name, alarm.raised, **self._about_group(joined)))
        return events

    def end(self, alarm: Alarm, time: int, why: str) -> list[dict[str, Any]]:
        """End an alarm.

        Args:
          why: `back to normal`, `new level accepted`, `no more results` or `another change`.
        """
        known = self.active.pop(alarm.pair)
        alarm.number, alarm.group = known.number, known.group
        hours = round((time - alarm.onset) / HOUR_US, 2)
        events = [self._event("end", time, why=why, hours=hours, **self._about(alarm))]
        if alarm.group is not None:
            group = self.groups[alarm.group]
            group.active -= 1
            if group.active <= 0:
                hours = round((time - group.onset) / HOUR_US, 2)
                events.append(
                    self._event("group end", time, why=why, hours=hours, **self._about_group(group))
                )
                del self.groups[group.number]
        return events

    def _about_group(self, group: Group) -> dict[str, Any]:
        keys = self._past.networks.keys if group.shared.endswith("network") else self._past.addresses.keys
        name = (
            network_text(keys[group.key]) if group.shared.endswith("network") else unpack_one(keys[group.key])
        )
        return {
            "group": group.number,
            "shared": group.shared.replace("_", " "),
            "of": name,
            "change": DIRECTIONS[group.direction],
            "since": time_text(group.onset // 1_000_000),
            "alarms": len(group.members),
            "watched": group.watched,
            "change_ms": None if group.change_ms is None else round(group.change_ms, 3),
        }

    def _near(self, one: int, other: int) -> bool:
        return abs(one - other) <= self._options.group_hours * HOUR_US

    def _join(self, alarm: Alarm) -> Group | None:
        """Add an alarm to a group, or to a new one with alarms that had none; return the group, if any."""
        pairs = self._past.pairs
        for group in self.groups.values():
            near = group.direction == alarm.direction and self._near(group.onset, alarm.onset)
            if near and int(pairs[group.shared][alarm.pair]) == group.key:
                self._add(group, [alarm])
                return group
        best: tuple[int, str, list[Alarm], int] | None = None
        for shared in _SHARED:
            key = int(pairs[shared][alarm.pair])
            alike = [
                other
                for other in self.active.values()
                if other.group is None
                and other.direction == alarm.direction
                and int(pairs[shared][other.pair]) == key
                and self._near(other.onset, alarm.onset)
            ]
            watched = max(self._watched(shared, key), len(alike))
            enough = len(alike) >= self._options.group_least
            if enough and len(alike) >= self._options.group_share * watched and (
                best is None or len(alike) > best[0]
            ):  # fmt: skip
                best = len(alike), shared, alike, key
        if best is None:
            return None
        number = max(self.groups, default=0) + 1
        number = max(number, self.raised)  # numbers of groups do not repeat after an end
        onset = min(other.onset for other in best[2])
        group = self.groups[number] = Group(number, best[1], best[3], alarm.direction, onset)
        self._add(group, best[2])
        return group

    def _watched(self, shared: str, key: int) -> int:
        counts = self._pairs_of.get(shared, np.zeros(0, np.int64))
        return int(counts[key]) if key < len(counts) else 0

    def _add(self, group: Group, alarms: list[Alarm]) -> None:
        for alarm in alarms:
            alarm.group = group.number
            group.members.append(alarm.number)
        group.active += len(alarms)
        group.watched = max(self._watched(group.shared, group.key), len(group.members))
        changes = [
            other.change_ms
            for other in self.active.values()
            if other.group == group.number and other.change_ms is not None
        ]
        group.change_ms = float(np.median(changes)) if changes else None

    def renumber(self, moved: np.ndarray) -> None:
        """Apply the new numbers of pairs and addresses after `Past.forget`, which kept pairs with alarms."""
        for alarm in self.active.values():
            alarm.pair = int(moved[alarm.pair])
        self.active = {alarm.pair: alarm for alarm in self.active.values()}
        self._pairs_of = {}
        for group in self.groups.values():
            member = next(alarm for alarm in self.active.values() if alarm.group == group.number)
            group.key = int(self._past.pairs[group.shared][member.pair])

    def save(self) -> dict[str, Any]:
        """Return the alarms as JSON."""
        return {
            "active": [asdict(alarm) for alarm in self.active.values()],
            "groups": [asdict(group) for group in self.groups.values()],
            "events": self.events,
            "raised": self.raised,
            "pairs_of": {shared: counts.tolist() for shared, counts in self._pairs_of.items()},
        }

    def restore(self, saved: dict[str, Any]) -> None:
        self.active = {each["pair"]: alarm_of(each) for each in saved["active"]}
        self.groups = {each["number"]: Group(**each) for each in saved["groups"]}
        self.events, self.raised = saved["events"], saved["raised"]
        self._pairs_of = {shared: np.array(counts) for shared, counts in saved["pairs_of"].items()}


def sentence(event: dict[str, Any]) -> str:
    """Return an event as a sentence."""
    kind = event["event"]
    change = _change_text(event)
    if kind.startswith("group"):
        what = {column.replace("_", " "): words for column, words in _SHARED.items()}[event["shared"]]
        text = (
            f"{event['alarms']} of {event['watched']} {what} {event['of']}: {change} since {event['since']}"
        )
        return f"{event['time']} {kind.upper()} {text}" + (
            f"; over after {event['hours']:g} h ({event['why']})" if kind == "group end" else ""
        )
    low, middle, high = event["expected_ms"]
    expected = f"expected {middle:.1f} ms ({low:.1f} to {high:.1f})"
    if event["change"] == DIRECTIONS[LOSS]:
        expected = f"expected {event['expected_no_reply']:.1%} lost"
    text = f"{event['time']} {kind.upper()} {event['src']} → {event['dst']}: {change}"
    if kind == "end":
        return f"{text}, over after {event['hours']:g} h: {event['why']}"
    return f"{text} since {event['since']}, {event['results']} results; {expected}"


def _change_text(event: dict[str, Any]) -> str:
    if event["change"] == DIRECTIONS[LOSS]:
        return "no reply" if "lost" not in event else f"{event['lost']} of {event['results']} without reply"
    change = event["change_ms"]
    by = "" if change is None else f" by {abs(change):.1f} ms"
    if "observed_ms" in event and event["observed_ms"] is not None:
        by += f" to {event['observed_ms']:.1f} ms"
    return f"RTT {event['change']}{by}"
