"""A stream that must never change unnoticed: a run resumes only if the batches of its seed stay what they
were.

tests/golden/contexts.json holds the first batch of rows that are plain arithmetic. If a change of the stream
is meant, raise batches.STATE_VERSION, so that old states are refused, and write the file anew:
    PING_LLM_WRITE_GOLDEN=1 pytest tests/contexts/test_contexts_golden.py
"""

import json
import os
from pathlib import Path

import numpy as np

from ping_llm.contexts.batches import Batches
from ping_llm.contexts.memory_rows import MemoryRows
from ping_llm.contexts.options import ContextOptions
from ping_llm.contexts.reference_batches import ReferenceBatches
from ping_llm.rows.block import RowBlock

GOLDEN = Path(__file__).parents[1] / "golden" / "contexts.json"
SHAPE = {"batch_size": 3, "length": 192, "seed": 7}


def arithmetic_rows() -> MemoryRows:
    counts = np.array([1, 3, 12, 40, 75])
    src, dst, time, rtt = [], [], [], []
    for row, count in enumerate(counts):
        head = (
            bytes(10) + b"\xff\xff" + bytes([192, 0, 2])
            if row % 2 == 0
            else bytes.fromhex("20010db8") + bytes(11)
        )
        src.append(head + bytes([row + 1]))
        for index in range(count):
            dst.append(head + bytes([100 + index * index % 7]))
            time.append((1_700_000_000 + 97 * index * (row + 1)) * 1_000_000)
            rtt.append(-1.0 if index % 11 == 5 else 10 * row + index / 8)
    return MemoryRows(RowBlock.from_columns(src, counts, time, dst, rtt))


def test_the_first_batch_is_the_golden_one():
    rows = arithmetic_rows()
    with Batches(rows, threads=0, **SHAPE) as batches:
        batch = next(batches)
        state = batches.get_state()
    content = {
        "state": {
            name: state[name] for name in ("version", "batch", "epoch", "position", "within", "options")
        },
        "targets": batch["targets"].tolist(),
        "targets_segmentation": batch["targets_segmentation"].tolist(),
    }
    if os.environ.get("PING_LLM_WRITE_GOLDEN"):
        lines = (json.dumps(name) + ": " + json.dumps(value) for name, value in content.items())
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert content == json.loads(GOLDEN.read_text())
    plain = next(iter(ReferenceBatches(rows, ContextOptions(), **SHAPE)))
    assert plain["targets"].tolist() == content["targets"]
