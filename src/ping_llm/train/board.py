"""Events for TensorBoard, written in the calling thread.

tensorboardX passes events to a thread through a queue of ten. On a full disk the thread ends, the queue
fills, and the next `add_scalar` waits forever and ignores signals. A step has some twenty numbers: writing
them takes less than a millisecond, so no thread is used here. An error ends the events, not the training.
"""

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import directory_check

_FLUSH_S = 10.0


class Board:
    """The part of tensorboardX's SummaryWriter that MaxText uses. The file is made with the first event."""

    def __init__(self, logdir: str, purge_step: int | None = None):
        """
        Args:
            logdir: folder of the events.
            purge_step: TensorBoard discards events of earlier files from this step on.
        """
        self.logdir, self.purge_step = logdir, purge_step
        self._events: EventsWriter | None = None
        self._over = False
        self._flushed = time.monotonic()

    def add_scalar(self, tag: str, value: Any, step: int | None = None) -> None:
        self._write(lambda: self._add(Event(summary=summary.scalar(tag, value)), step))

    def add_scalars(self, tag: str, values: dict[str, Any], step: int | None = None) -> None:
        for name, value in values.items():
            self.add_scalar(f"{tag}/{name}", value, step)

    def add_text(self, tag: str, text: str, step: int | None = None) -> None:
        self._write(lambda: self._add(Event(summary=summary.text(tag, text)), step))

    def flush(self) -> None:
        self._write(lambda: self._events and self._events.flush())

    def close(self) -> None:
        self._write(lambda: self._events and self._events.close())
        self._over = True

    def _write(self, action: Callable[[], Any]) -> None:
        if self._over:
            return
        try:
            action()
        except Exception as error:  # errors of the disk, or of a client of cloud storage
            self._over = True
            self._let_go()
            with contextlib.suppress(OSError):
                print(f"warning: the TensorBoard events in {self.logdir} end here: {error}", file=sys.stderr)

    def _let_go(self) -> None:
        """Close the file without the events that could not be written; its `close` would try that again."""
        if self._events is not None:
            with contextlib.suppress(Exception):
                self._events._py_recordio_writer.close()
        self._events = None

    def _add(self, event: Event, step: int | None) -> None:
        if self._events is None:
            directory_check(self.logdir)
            suffix = "" if self.purge_step is None else ".resumed"
            self._events = EventsWriter(f"{self.logdir}/events", suffix)
            if self.purge_step is not None:
                self._stamped(Event(file_version="brain.Event:2"), self.purge_step)
                self._stamped(Event(session_log=SessionLog(status=SessionLog.START)), self.purge_step)
        self._stamped(event, step)
        if time.monotonic() - self._flushed >= _FLUSH_S:
            self._events.flush()
            self._flushed = time.monotonic()

    def _stamped(self, event: Event, step: int | None) -> None:
        assert self._events is not None
        event.wall_time = time.time()
        if step is not None:
            event.step = int(step)
        self._events.write_event(event)
