"""Pre-tokenized contexts, one per record, packed by Grain: the usual approach, for comparison.

It fixes the draws of one epoch, takes about 0.9 bytes per token on disk, and Grain processes each context
separately. `ping-llm bench loader` measures the cost.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ping_llm.contexts.batches import Batches
from ping_llm.contexts.fill import NOTE_COUNT, NOTE_LENGTH
from ping_llm.contexts.options import ContextOptions
from ping_llm.contexts.units import FilledUnit
from ping_llm.errors import PingError
from ping_llm.files import whole_file, write_json
from ping_llm.progress import Progress
from ping_llm.tokens.vocab import tokens_format

SCHEMA = pa.schema([pa.field("tokens", pa.list_(pa.uint16())), pa.field("length", pa.int32())])
DESCRIPTION = "pretokenized.json"
FILE = "contexts-00000.parquet"

#: Number of sequences that Grain packs at a time, as many as in a unit.
PACKING_BINS = 256


def version_of(options: ContextOptions) -> int:
    """The version of the description, which is that of the tokens."""
    return tokens_format(options.field_names)


def contexts_of(filled: FilledUnit) -> pa.Table:
    """A table of the contexts of a unit, one record per context."""
    written = filled.notes[..., NOTE_COUNT] > 0
    lengths = filled.notes[..., NOTE_LENGTH][written]
    ids = filled.targets[filled.segments > 0].astype(np.uint16)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = pa.ListArray.from_arrays(offsets, ids)
    return pa.table([tokens, pa.array(lengths, pa.int32())], schema=SCHEMA)


def pretokenize(batches: Batches, out: Path) -> dict[str, Any]:
    """Write the contexts of a finite stream, in its order, and a description, which is returned."""
    if batches.stream.epochs is None:
        raise PingError("a stream without end cannot be written out; give a number of epochs")
    out.mkdir(parents=True, exist_ok=True)
    contexts = tokens = 0
    with (
        whole_file(out / FILE) as aside,
        pq.ParquetWriter(aside, SCHEMA, compression="zstd") as writer,
        Progress("pretokenize", unit="contexts") as progress,
    ):
        for unit in batches.units():
            table = contexts_of(unit)
            writer.write_table(table)
            contexts += len(table)
            tokens += int(np.count_nonzero(unit.targets))
            progress.advance(len(table))
    description = {
        "format": "ping-llm pretokenized contexts",
        "version": version_of(batches.stream.options),
        "contexts": contexts,
        "tokens": tokens,
        "options": batches.stream.options.as_dict(),
        "stream": batches.stream.identity(),
    }
    write_json(out / DESCRIPTION, description)
    return description


class PretokenizedBatches:
    """Batches with the keys of `Batches`, made by Grain's own per-example pipeline."""

    def __init__(
        self, path: str | Path, *, batch_size: int, length: int, max_segments: int = 32, seed: int = 0
    ):
        import grain

        file = Path(path) / FILE
        if not file.is_file():
            raise PingError(f"there is no {file}; `ping-llm pretokenize ROWS --out {path}` makes it")
        dataset = grain.experimental.ParquetIterDataset(str(file)).map(_targets)
        dataset = grain.experimental.FirstFitPackIterDataset(
            dataset,
            length_struct={"targets": length},
            num_packing_bins=PACKING_BINS,
            seed=seed,
            max_sequences_per_bin=max_segments,
        )
        self._dataset = dataset.map(_shifted).batch(batch_size, drop_remainder=False)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return iter(self._dataset)


def _targets(record: dict[str, Any]) -> dict[str, np.ndarray]:
    return {"targets": record["tokens"].astype(np.int32)}


def _shifted(packed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A packed record as a batch line, whose inputs are the targets shifted right within each segment."""
    targets = packed["targets"].astype(np.int32)
    segments = packed["targets_segment_ids"].astype(np.int32)
    positions = packed["targets_positions"].astype(np.int32)
    inputs = np.zeros_like(targets)
    inputs[1:] = np.where(segments[1:] == segments[:-1], targets[:-1], 0)
    return {
        "inputs": inputs,
        "targets": targets,
        "inputs_position": positions,
        "targets_position": positions,
        "inputs_segmentation": segments,
        "targets_segmentation": segments,
    }
