"""The state folder of a watch, and its output files.

    STATE/state.npz            the state of the watch, and the size of each file below at that time
          results-00000.jsonl  each result with its expectation, a million per file
          alarms.jsonl         events: beginnings and ends of alarms and groups
          rejects.jsonl        lines that are not measurements
          inbox-*.jsonl        data from a pipe or a URL that are not in the state yet
          page.html            the last day

The output files grow with every batch; the state is written at intervals. After a kill, the output files are
cut back to their sizes in the state, and the lines of the input since then are read again. The output
continues as it would have without the kill, so no result is lost and none occurs twice.
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson

from ping_llm.errors import PingError
from ping_llm.files import whole_file
from ping_llm.measurements.addresses import unpack_one
from ping_llm.measurements.times import time_text
from ping_llm.watch.lines import Rejected
from ping_llm.watch.results import USED, Output, Seen

FORMAT = 1
_PER_FILE = 1_000_000
_FILES = ("alarms.jsonl", "rejects.jsonl")


@lru_cache(200_000)
def address_text(packed: bytes) -> str:
    return unpack_one(packed)


def result_values(seen: Seen) -> dict[str, Any]:
    """Return a result as JSON."""
    out: dict[str, Any] = {
        "n": seen.number,
        "time": time_text(seen.time // 1_000_000),
        "src": address_text(seen.src),
        "dst": address_text(seen.dst),
        "rtt": seen.rtt,
        "taken": seen.taken,
    }
    if seen.expected is None or seen.judged is None or seen.failure is None:
        return out
    out["expected_ms"] = [round(value, 3) for value in seen.expected]
    out["no_reply"] = round(seen.failure, 5)
    out["tail"] = float(f"{seen.judged.tail:.4g}")
    out["bits"] = round(seen.judged.bits, 3)
    out["fresh"] = seen.fresh
    return out


def result_text(seen: Seen) -> str:
    """Return a result as a line of text."""
    result = "no reply" if seen.rtt < 0 else f"{seen.rtt:.1f} ms"
    text = (
        f"{time_text(seen.time // 1_000_000)} {address_text(seen.src)} → {address_text(seen.dst)}: {result}"
    )
    if seen.expected is None or seen.judged is None or seen.failure is None:
        return f"{text} ({seen.taken})"
    low, middle, high = seen.expected
    more = "" if seen.taken == USED else f" ({seen.taken})"
    return (
        f"{text}, expected {middle:.1f} ms ({low:.1f} to {high:.1f}), {seen.failure:.1%} lost; "
        f"tail {seen.judged.tail:.2g}, {seen.judged.bits:.1f} bits{more}"
    )


class Store:
    """Writes the files of a state folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, int] = {}
        self._sizes: dict[str, int] = {}

    def load(self) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Return arrays and JSON of the last state, or None, and cut the output files back to it."""
        path = self.folder / "state.npz"
        if not path.exists():
            self._cut({})
            return None
        try:
            with np.load(path, allow_pickle=False) as loaded:
                arrays = {name: loaded[name] for name in loaded.files}
            saved = orjson.loads(arrays.pop("json").tobytes())
            if saved["format"] != FORMAT:
                raise PingError(f"{path} has format {saved['format']}, this version reads {FORMAT}")
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise PingError(f"{path} is not the state of a watch ({error}); name another --state") from error
        self._cut(saved["sizes"])
        return arrays, saved

    def _cut(self, sizes: dict[str, int]) -> None:
        for path in sorted(self.folder.glob("results-*.jsonl")) + [self.folder / name for name in _FILES]:
            if not path.exists():
                continue
            size = sizes.get(path.name, 0)
            if path.stat().st_size < size:
                raise PingError(f"{path} is shorter than when the state was written; name another --state")
            if not size and path.name.startswith("results-"):
                path.unlink()
            else:
                os.truncate(path, size)
        self._sizes = dict(sizes)

    def add(self, output: Output, rejected: list[Rejected]) -> None:
        """Append the output of a batch."""
        parts: dict[str, list[bytes]] = {}
        for seen in output.seen:
            name = f"results-{seen.number // _PER_FILE:05d}.jsonl"
            parts.setdefault(name, []).append(orjson.dumps(result_values(seen)))
        for event in output.events:
            parts.setdefault("alarms.jsonl", []).append(orjson.dumps(event))
        for each in rejected:
            parts.setdefault("rejects.jsonl", []).append(orjson.dumps(each.as_dict()))
        for name, lines in parts.items():
            self._append(name, b"\n".join([*lines, b""]))

    def _append(self, name: str, data: bytes) -> None:
        if name not in self._files:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._files[name] = os.open(self.folder / name, flags, 0o644)
        view = memoryview(data)
        while view:
            view = view[os.write(self._files[name], view) :]
        self._sizes[name] = self._sizes.get(name, 0) + len(data)

    def save(self, arrays: dict[str, np.ndarray], saved: dict[str, Any]) -> None:
        """Write the state, after everything added before is safe in the files."""
        for descriptor in self._files.values():
            os.fsync(descriptor)
        content = orjson.dumps(saved | {"format": FORMAT, "sizes": self._sizes})
        with whole_file(self.folder / "state.npz") as aside, aside.open("wb") as file:
            np.savez(file, json=np.frombuffer(content, np.uint8), **cast(Any, arrays))

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files = {}
