"""An edge export on a small device: its model, and the command of its runner.

This module and all that it imports run with NumPy and onnxruntime alone; `edge_export.py` packs them.
"""

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ping_llm.answer import show
from ping_llm.answer.conditions import LARGEST, WHOLE, Conditions, allowed, array_of
from ping_llm.answer.context import Context, Question, as_microseconds
from ping_llm.answer.rtt_model import RttModel
from ping_llm.answer.stack import FOLDER, Stack
from ping_llm.errors import PingError
from ping_llm.files import read_object
from ping_llm.measurements.addresses import is_ipv4_one, pack_one
from ping_llm.measurements.columns import NO_TIME
from ping_llm.measurements.schema import MAX_RTT_MS, is_rtt
from ping_llm.model.config import ModelConfig
from ping_llm.model.edge import GRAPH, INT8_GRAPH, EdgeEngine
from ping_llm.tokens.rtt import DEFAULT_CLIP_LIMIT_MS, RttEncoding, rtt_encoding

if TYPE_CHECKING:
    from ping_llm.model.engine import Engine

#: Formats of tokens.json that can be read, as in other exports (`model.export.FORMAT`).
_FORMATS = (1, 2, 3)

CONFIG, TOKENS, VERDICT = "config.json", "tokens.json", "verdict.json"


def is_edge(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and (folder / GRAPH).is_file()


def load(folder: Path, *, int8: bool = False, threads: int = 0) -> RttModel:
    """Load the model of an edge export.

    Args:
      int8: whether to run the graph with 8-bit weights.
      threads: threads of the network; 0: one per core.
    """
    if not is_edge(folder):
        raise PingError(f"{folder} is not an edge export: `ping-llm export RUN --to edge` writes one")
    config = ModelConfig.from_llama(read_object(folder / CONFIG), str(folder / CONFIG))
    tokens = read_object(folder / TOKENS)
    if tokens.get("format") not in _FORMATS:
        raise PingError(f"{folder / TOKENS} has format {tokens.get('format')}; it must be 1 or 2")
    if not isinstance(tokens.get("context", {}), dict):
        raise PingError(f"{folder / TOKENS}: context is {tokens['context']!r}; it must be an object")
    engine = EdgeEngine(config, folder / (INT8_GRAPH if int8 else GRAPH), threads)
    stack = Stack.load(folder / FOLDER)
    model = RttModel(cast("Engine", engine), encoding_of(tokens, folder), tokens, folder, stack)
    model.lost_to = lost_to(folder / FOLDER)
    return model


def encoding_of(tokens: dict[str, Any], origin: Path) -> RttEncoding:
    """Return the RTT encoding of a model."""
    try:
        return rtt_encoding(
            tokens.get("rtt_encoding", "compact"), tokens.get("clip_limit_ms") or DEFAULT_CLIP_LIMIT_MS
        )
    except ValueError as error:
        raise PingError(f"{origin}: {error}") from None


def lost_to(stack: Path | None) -> dict[str, dict[str, Any]]:
    """Read which simple methods were better in the run's report; `fit` writes this to the stack's folder."""
    path = None if stack is None else stack / VERDICT
    return json.loads(path.read_text())["lost_to"] if path is not None and path.is_file() else {}


def read_context(path: Path) -> Context:
    """Read earlier measurements from a CSV file with the columns src_addr, dst_addr, rtt and, where known,
    event_time and those of conditions.
    """
    src, dst, time, rtt = [], [], [], []
    also: dict[str, list[float]] = {name: [] for name in LARGEST}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file, strict=True)
            missing = {"src_addr", "dst_addr", "rtt"} - set(rows.fieldnames or ())
            if missing:
                raise PingError(f"{path} has no column {', '.join(sorted(missing))}")
            for row in rows:
                try:
                    ends = pack_one(row["src_addr"]), pack_one(row["dst_addr"])
                    if is_ipv4_one(ends[0]) != is_ipv4_one(ends[1]):
                        raise ValueError("src_addr and dst_addr are not of the same IP version")
                    result = float(row["rtt"])
                    if not is_rtt(result):
                        raise ValueError(f"rtt {result} is neither -1 (no reply) nor 0 to {MAX_RTT_MS:g} ms")
                    when = row.get("event_time")
                    time.append(as_microseconds(when) if when else NO_TIME)
                    for name, largest in LARGEST.items():
                        value = (int if name in WHOLE else float)(row.get(name) or -1)
                        if not (value == -1 or 0 <= value <= largest):
                            raise ValueError(f"{name} {value} must be {allowed(name)}")
                        also[name].append(value)
                except (PingError, ValueError, TypeError) as error:
                    raise PingError(f"{path}, line {rows.line_num}: {error}") from None
                src.append(ends[0])
                dst.append(ends[1])
                rtt.append(result)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PingError(f"cannot read {path}: {error}") from None
    packed = [np.frombuffer(b"".join(ends), np.uint8).reshape(-1, 16) for ends in (src, dst)]
    numbers = {name: array_of(name, values) for name, values in also.items()}
    return Context.of(packed[0], packed[1], np.array(time, np.int64), np.array(rtt), also=numbers)


def main(folder: Path, arguments: Sequence[str] | None = None) -> int:
    """Run the command of the runner: `python rtt.pyz --src … --dst …`."""
    parser = argparse.ArgumentParser(
        prog="rtt.pyz", description="RTT distribution and probability of no reply between two addresses."
    )
    parser.add_argument("--src", required=True, help="Source: an address or a prefix such as 203.0.113.0/24.")
    parser.add_argument("--dst", required=True, help="Destination: as --src.")
    parser.add_argument("--at", help="Time: 2024-05-01T12:00:00Z, seconds since 1970, or now.")
    parser.add_argument(
        "--context", type=Path,
        help="CSV file of earlier measurements of the source: src_addr, dst_addr, rtt (ms, -1: no reply) "
        "and event_time.",
    )  # fmt: skip
    trained = "if the model was trained on it."
    parser.add_argument("--size", type=int, help=f"Payload of the packets in bytes, {trained}")
    parser.add_argument("--errors", type=int, help=f"Packets that were not answered, {trained}")
    parser.add_argument("--msm-id", type=int, help=f"Atlas measurement, {trained}")
    parser.add_argument("--probe", type=int, help=f"Atlas probe, {trained}")
    parser.add_argument(
        "--throughput", type=float, metavar="MBPS", help=f"Mbit/s measured with the RTT, {trained}"
    )
    parser.add_argument("--raw", action="store_true", help="Answer with the network alone, not calibrated.")
    parser.add_argument("--int8", action="store_true", help="Run the graph with 8-bit weights.")
    parser.add_argument("--threads", type=int, default=0, help="Threads.  [default: one per core]")
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    asked = parser.parse_args(arguments)
    try:
        known = None if asked.context is None else read_context(asked.context)
        conditions = Conditions(asked.size, asked.errors, asked.msm_id, asked.probe, asked.throughput)
        question = Question.of(asked.src, asked.dst, asked.at, known, conditions)
        model = load(folder, int8=asked.int8, threads=asked.threads)
        (answer,) = model.rtt_many([question], raw=asked.raw)
    except PingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(show.rtt_values(answer)) if asked.json else show.rtt_text(answer))
    return 0
