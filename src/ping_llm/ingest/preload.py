"""Imports and compiles everything that workers need, once, in the fork server that then forks them.

A worker started as a new process takes 1.3 s and 200 MB, nearly all of it for libraries and compiled kernels.
A forked one starts at once and shares those pages. Forking is safe here: the fork server runs one thread (and
one of jemalloc, which supports forks).
"""

import importlib.abc
import os
import sys
from typing import Any

# OpenBLAS would start one thread per core when NumPy is imported; nothing here multiplies matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


class _WithoutPandas(importlib.abc.MetaPathFinder):
    """Hide pandas, which nothing here uses: pyarrow imports it if installed (80 MB and half a second)."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("workers do without pandas", name=name)


def _warm_up() -> None:
    """Load the kernels needed for nearly all files, by reading one result."""
    import numpy as np

    from ping_llm.ingest import atlas, days, parts, reader, traceroutes
    from ping_llm.ingest.options import IngestOptions
    from ping_llm.ingest.records import whole_block
    from ping_llm.measurements import addresses
    from ping_llm.measurements.rules import judge

    text = (
        b'{"type":"ping","from":"192.0.2.1","sent":1,"rcvd":1,"size":64,"result":[{"rtt":1.5}],"msm_id":1,'
        b'"prb_id":1,"src_addr":"192.0.2.1","dst_addr":"192.0.2.2","af":4,"timestamp":1}'
    )
    columns = atlas.read_block(whole_block(text), IngestOptions()).columns
    judge(columns)
    rows = parts.part_rows(reader.JudgedBlock(columns), np.zeros(1, np.int64), 0, 0)
    days.measurement_rows(rows)
    traceroutes.add_up(
        [[{"from": "192.0.2.1", "rtt": 1.5}]], np.zeros((1, 16), np.uint8), only_preferred=False
    )
    addresses.pack(["192.0.2.1"])


sys.meta_path.insert(0, _WithoutPandas())
_warm_up()
