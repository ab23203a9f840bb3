"""Resident memory of a process in MiB, the unit of every memory figure of the benchmarks."""

import re
import resource
from pathlib import Path


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process, MiB."""
    found = _status_mib(pid, "VmRSS")
    return float("nan") if found is None else found


def peak_rss_mib() -> int:
    """Return the peak resident memory of this process alone, MiB."""
    found = _status_mib("self", "VmHWM")
    if found is None:  # not every kernel has it; this figure includes the parent's memory at the start
        found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return round(found)


def _status_mib(pid: int | str, field: str) -> float | None:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) / 1024 if found else None
