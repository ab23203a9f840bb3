"""Memory figures of the benchmarks have one unit."""

import os
import subprocess
import sys

from ping_llm.bench.memory import peak_rss_mib, rss_mib

_PROGRAM = """
import os
from ping_llm.bench.memory import peak_rss_mib, rss_mib
before = peak_rss_mib(), rss_mib(os.getpid())
filled = b"x" * (200 << 20)
print(peak_rss_mib() - before[0], rss_mib(os.getpid()) - before[1])
"""


def test_memory_is_in_mib():
    """200 MiB are 200, not 210 as in MB."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert all(abs(float(figure) - 200) < 4 for figure in done.stdout.split())


def test_the_peak_is_that_of_the_process_alone():
    """A process that starts another one does not lend it its own peak."""
    filled = b"x" * (200 << 20)
    program = "from ping_llm.bench.memory import peak_rss_mib; print(peak_rss_mib())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < len(filled) >> 20 <= peak_rss_mib()
    assert rss_mib(os.getpid()) <= peak_rss_mib() + 1
