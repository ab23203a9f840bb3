"""Latency and throughput of rtt questions, compared with MaxText.

The answer is exact: the probability of each of the encoding's codes given 32 measurements. Our engine reads
the context once, and then one more token per first byte. So does MaxText's own decode engine: a prefill, an
insert into one slot per first byte, and one step of all slots. If it does not run, the comparison is with
MaxText's forward without a cache: one whole sequence per first byte. Both have random weights of the same
sizes, since the time does not depend on the weights.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ping_llm.answer.context import Context, Question
from ping_llm.bench.memory import peak_rss_mib
from ping_llm.measurements.addresses import MAPPED_PREFIX
from ping_llm.model.config import ModelConfig
from ping_llm.tokens.statement import whole
from ping_llm.tokens.vocab import BYTE0

#: 2.0 million parameters.
CONFIG = ModelConfig(layers=5, width=192, heads=3, kv_heads=1, head_dim=64, mlp_width=512, max_length=512)


@dataclass(frozen=True)
class QueryBench:
    """Options of the benchmark."""

    repeats: int = 200
    batch: int = 64
    context: int = 32
    #: Number of sequences of MaxText's forward that are timed; a whole question has one per first byte.
    maxtext_rows: int = 8
    maxtext: bool = True


def questions(count: int, context: int, seed: int = 0) -> list[Question]:
    """Make questions about IPv4 pairs, each with its own context."""
    generator = np.random.default_rng(seed)

    def addresses(many: int) -> np.ndarray:
        packed = np.tile(np.frombuffer(MAPPED_PREFIX + bytes(4), np.uint8), (many, 1))
        packed[:, 12:] = generator.integers(1, 255, (many, 4))
        return packed

    made = []
    for source in addresses(count):
        dst = addresses(context)
        time_us = 1_700_000_000_000_000 + np.cumsum(generator.integers(1, 200, context)) * 1_000_000
        past = Context.of(source, dst, time_us, generator.gamma(2.0, 30.0, context))
        later = int(time_us[-1]) + 60_000_000
        made.append(Question(whole(source.tobytes()), whole(dst[0].tobytes()), later, past))
    return made


def measure(bench: QueryBench) -> dict[str, Any]:
    """Run the benchmark and return its figures."""
    from ping_llm.answer.model import Model
    from ping_llm.answer.rtt import grid_of
    from ping_llm.model.export import write
    from ping_llm.model.random import random_tensors

    with tempfile.TemporaryDirectory(prefix="ping-llm-bench-") as folder:
        write(CONFIG, random_tensors(CONFIG), {}, Path(folder))
        startup = _startup(Path(folder))
        model = Model.load(folder)
    asked = questions(max(bench.repeats, bench.batch), bench.context)
    tokens = len(model.prompts(asked[:1])[0].ids)
    model.rtt_many(asked[:1])
    seconds = [_timed(partial(model.rtt_many, [one])) for one in asked[: bench.repeats]]
    model.rtt_many(asked[: bench.batch])
    batch = min(_timed(lambda: model.rtt_many(asked[: bench.batch])) for _ in range(3))
    model.rtt_scores(asked[: bench.batch])
    scores = min(_timed(lambda: model.rtt_scores(asked[: bench.batch])) for _ in range(3))
    figures: dict[str, Any] = {
        "p50_ms": 1000 * float(np.quantile(seconds, 0.5)),
        "p99_ms": 1000 * float(np.quantile(seconds, 0.99)),
        "queries_per_s": bench.batch / batch,
        "medians_per_s": bench.batch / scores,
        "startup_s": startup["load_s"],
        "first_answer_s": startup["answer_s"],
        "peak_rss_mib": peak_rss_mib(),
        "parameters": CONFIG.parameters,
        "context_measurements": bench.context,
        "context_tokens": tokens,
        "cores": len(os.sched_getaffinity(0)),
    }
    if bench.maxtext:
        ways = grid_of(model.encoding).first_bytes
        # MaxText prints what it lacks, and stdout is for the figures.
        with contextlib.redirect_stdout(sys.stderr):
            theirs, way = _maxtext_seconds(bench.maxtext_rows, tokens + 1, ways)
        figures |= {
            "maxtext_ms": 1000 * theirs,
            "maxtext_way": way,
            "speedup_over_maxtext": theirs / float(np.quantile(seconds, 0.5)),
        }
    return figures


def _timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _startup(folder: Path) -> dict[str, float]:
    """Return seconds from a new Python to a loaded model, and to a first answer (compiled before)."""
    program = (
        "import time; t = time.perf_counter()\n"
        "import ping_llm\n"
        f"model = ping_llm.load({str(folder)!r}); loaded = time.perf_counter() - t\n"
        "model.rtt('192.0.2.1', '198.51.100.7'); print(loaded, time.perf_counter() - t)"
    )
    best = []
    for _ in range(2):
        out = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        best.append(tuple(float(value) for value in out.split()))
    load, answer = min(best)
    return {"load_s": load, "answer_s": answer}


def _maxtext_seconds(rows: int, length: int, ways: int) -> tuple[float, str]:
    """Return the median seconds that MaxText takes for one question, compiled, and how it answers."""
    sizes = {
        "base_emb_dim": CONFIG.width,
        "base_num_decoder_layers": CONFIG.layers,
        "base_num_query_heads": CONFIG.heads,
        "base_num_kv_heads": CONFIG.kv_heads,
        "head_dim": CONFIG.head_dim,
        "base_mlp_dim": CONFIG.mlp_width,
        "vocab_size": CONFIG.vocabulary,
    }
    prompt = np.random.default_rng(0).integers(1, CONFIG.vocabulary, length).astype(np.int32)
    try:
        from ping_llm.model.engine import padded_length
        from ping_llm.train.maxtext_seam import bare_decoder

        decode = bare_decoder(padded_length(length), ways, **sizes)
        following = BYTE0 + np.arange(ways)
        decode(prompt, following)
        seconds = float(np.median([_timed(lambda: decode(prompt, following)) for _ in range(10)]))
        return seconds, f"decode engine: prefill, {ways} slots, one step"
    except Exception as error:  # MaxText's interface may differ in another version
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    # The logits before the first byte are in each of the sequences: the context needs none of its own.
    way = f"forward without cache, {ways} sequences (timed on {rows}); the decode engine fails: {reason}"
    return _forward_seconds(rows, prompt, sizes) * ways / rows, way


def _forward_seconds(rows: int, prompt: np.ndarray, sizes: dict[str, int]) -> float:
    """Return the seconds of MaxText's forward over `rows` whole sequences."""
    import jax

    from ping_llm.train import maxtext_seam

    length = len(prompt)
    forward = maxtext_seam.bare_forward(**sizes, max_target_length=length, per_device_batch_size=rows)
    inputs = np.tile(prompt, (rows, 1))
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), inputs.shape)
    jax.block_until_ready(forward(inputs, positions))
    return min(_timed(lambda: jax.block_until_ready(forward(inputs, positions))) for _ in range(3))
