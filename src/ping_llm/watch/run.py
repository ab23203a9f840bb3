"""`ping-llm watch`: read, judge, write and report results until the input or the user ends it."""

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ping_llm.files import remove_unfinished, write_text
from ping_llm.locks import only_writer
from ping_llm.progress import StatusLine
from ping_llm.watch.inputs import Files, Inbox
from ping_llm.watch.lines import measurements_of
from ping_llm.watch.page import LastDay, Status, metrics_text, page_html
from ping_llm.watch.results import Output
from ping_llm.watch.store import Store
from ping_llm.watch.watcher import Watcher
from ping_llm.watch.web import Pages, Webhook

if TYPE_CHECKING:
    from ping_llm.answer.conditions import Conditions
    from ping_llm.answer.model import Model
    from ping_llm.watch.options import WatchOptions

#: Seconds between two saved states, and between two reads of an input without new data.
_SAVE_SECONDS, _IDLE_SECONDS = 10.0, 0.2
#: Seconds that the webhook has for the remaining events when the input ends.
_LAST_SECONDS = 10.0


@dataclass(frozen=True)
class Outside:
    """Outputs of a watch besides its files.

    Attributes:
      tell: called with each batch, after it was written.
      metrics_port: port of `/metrics` and the page; None: no port is opened.
    """

    tell: Callable[[Output], None]
    host: str = "127.0.0.1"
    metrics_port: int | None = None
    webhook: str | None = None
    save_seconds: float = _SAVE_SECONDS


class Watch:
    """A watch and its state folder."""

    def __init__(
        self, model: "Model", options: "WatchOptions", source: Files, state: Path, outside: Outside,
        conditions: "Conditions | None" = None,
    ):  # fmt: skip
        self._source, self._outside, self._state = source, outside, state
        self.watcher, self.day = Watcher(model, options, conditions), LastDay()
        self._origin = str(model.origin)
        self._rejected = 0
        self._ended = False
        self._line, self._reported = StatusLine(time.monotonic()), -1
        self._started, self._results_before = time.monotonic(), 0

    def run(self) -> dict[str, int | float]:
        """Watch until the end of the input, SIGINT or SIGTERM; return the counters."""
        with only_writer(self._state, "watch"):
            remove_unfinished(self._state, "state.npz", "page.html")
            store = Store(self._state)
            self._restore(store)
            self._source.start()
            self._publish()
            pages = webhook = None
            before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
            try:
                pages = self._serve()
                if self._outside.webhook is not None:
                    webhook = Webhook(self._outside.webhook, self._state, self.watcher.alarms.events)
                self._loop(store, webhook)
                self._save(store, webhook)
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
                self._source.close()
                store.close()
                if webhook is not None:
                    webhook.close(_LAST_SECONDS)
                if pages is not None:
                    pages.close()
        self._report(time.monotonic(), last=True)
        return self.counts(webhook)

    def _serve(self) -> Pages | None:
        if self._outside.metrics_port is None:
            return None
        texts = {
            "/metrics": lambda: ("text/plain; version=0.0.4; charset=utf-8", metrics_text(self._status)),
            "/": lambda: ("text/html; charset=utf-8", page_html(self._status, self._origin)),
            "/healthz": lambda: ("text/plain", "ok\n"),
        }
        pages = Pages(self._outside.host, self._outside.metrics_port, texts)
        print(f"metrics and page at http://{self._outside.host}:{pages.port}/", file=sys.stderr)
        return pages

    def _stop(self, *_: object) -> None:
        self._ended = True

    def _restore(self, store: Store) -> None:
        loaded = store.load()
        if loaded is None:
            return
        arrays, saved = loaded
        self.watcher.restore(arrays, saved["watcher"])
        self._source.restore(saved["source"])
        self.day.restore(saved["day"])
        self._rejected = saved["rejected"]
        self._results_before = self.watcher.counts["results"]

    def _loop(self, store: Store, webhook: Webhook | None) -> None:
        saved, dirty, wait = time.monotonic(), False, self._outside.save_seconds
        while not self._ended:
            done = self._source.ended  # checked before reading, so that no data are missed
            chunk = self._source.read()
            if chunk is not None:
                columns, rejected = measurements_of(chunk)
                output = self.watcher.add(columns)
                store.add(output, rejected)
                self._rejected += len(rejected)
                self.day.add(output, self.watcher.clock.now)
                self._outside.tell(output)
                if output.events and webhook is not None:
                    webhook.wake()
                self._publish(webhook)
                dirty = True
            now = time.monotonic()
            if dirty and now - saved >= wait:
                self._save(store, webhook)
                saved, dirty = time.monotonic(), False
                # A large state is saved less often, so that saving takes at most a twentieth of the time.
                wait = max(self._outside.save_seconds, 20 * (saved - now))
            if self._line.due(now):
                self._report(now)
            if chunk is None:
                if done:
                    return
                time.sleep(_IDLE_SECONDS)

    def _save(self, store: Store, webhook: Webhook | None) -> None:
        arrays, watcher = self.watcher.save()
        store.save(
            arrays,
            {"watcher": watcher, "source": self._source.save(), "day": self.day.save(),
             "rejected": self._rejected, "run": self._origin},
        )  # fmt: skip
        self._source.committed()
        self._publish(webhook)
        write_text(self._state / "page.html", page_html(self._status, self._origin))

    def counts(self, webhook: Webhook | None = None) -> dict[str, int | float]:
        watcher = self.watcher
        seconds = max(time.monotonic() - self._started, 1e-9)
        out: dict[str, int | float] = {
            **watcher.counts,
            "rejected": self._rejected,
            "restarted files": self._source.restarted,
            "reconnects": self._source.reconnects if isinstance(self._source, Inbox) else 0,
            "alarms": watcher.alarms.raised,
            "active alarms": len(watcher.alarms.active),
            "groups": len(watcher.alarms.groups),
            "pairs": len(watcher.past),
            "results per day": round(watcher.results_per_day),
            "results per second": round((watcher.counts["results"] - self._results_before) / seconds, 1),
            "stream time seconds": max(watcher.clock.now, 0) // 1_000_000,
        }
        return out if webhook is None else out | webhook.counts

    def _publish(self, webhook: Webhook | None = None) -> None:
        """Store the current status for the threads that serve it."""
        trouble = self._source.trouble if isinstance(self._source, Inbox) else None
        alarms = self.watcher.alarms
        active: tuple[dict[str, Any], ...] = tuple(alarms.tell(alarm) for alarm in alarms.active.values())
        self._status = Status(
            self.watcher.clock.now, self.counts(webhook), dict(self.day.hours), tuple(self.day.events),
            active, trouble,
        )  # fmt: skip

    def _report(self, now: float, last: bool = False) -> None:
        """Write the line of status; at the end, not once more where it was written after the last result."""
        results = self.watcher.counts["results"] + self._rejected
        if not last or self._line.is_terminal or results != self._reported:
            self._line.write(self._progress(), now, last)
        self._reported = results

    def _progress(self) -> str:
        counts = self.counts()
        parts = [f"watch: {counts['results']:,} results", f"{counts['results per second']:,.0f}/s"]
        parts.append(f"{counts['pairs']:,} pairs")
        parts.append(f"{counts['alarms']:,} alarms, {counts['active alarms']:,} going on")
        odd = {name: counts[name] for name in ("late", "duplicate", "clock jump", "rejected") if counts[name]}
        return " · ".join([*parts, *(f"{count:,} {name}" for name, count in odd.items())])
