"""The Python workers of Spark, for tests that kill one."""

import os
from pathlib import Path


def spark_workers():
    """Python workers of Spark below this process: children of a daemon, which is a Python too."""
    parents, python = {}, set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if b"pyspark.daemon" in (path / "cmdline").read_bytes():
                python.add(int(path.name))
        except OSError:
            continue

    def is_below(one):
        while one in parents and one != os.getpid():
            one = parents[one]
        return one == os.getpid()

    return [one for one in python if parents[one] in python and is_below(one)][:1]
