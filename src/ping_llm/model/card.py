"""The model card: a description of an export for readers who do not know its origin."""

import json
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from ping_llm import __version__
from ping_llm.errors import PingError
from ping_llm.files import read_yaml
from ping_llm.model.export import Exported
from ping_llm.rows.manifest import open_index
from ping_llm.tokens import vocab

_LINES = 20

GRAMMAR = (
    "Measurement ::= MEASUREMENT Field{2..}    fields in any order, each at most once",
    "Src, Dst    ::= ROLE byte{4 or 16}  |  ROLE byte{1..n-1} PREFIX_END",
    "Time        ::= TIME_ABS byte{8}  |  TIME_DELTA1 byte  |  TIME_DELTA4 byte{4}    seconds, big-endian",
    "Result      ::= RTT byte{2 or 8, by the encoding}  |  FAILED",
    "A measurement without a source has that of the one before it.",
)


def model_card(model: Exported, run: Path | None) -> str:
    """Return Markdown with the front matter that Hugging Face reads."""
    config, tokens = model.config, model.tokens
    record = _json(run / "run.json") if run is not None else {}
    metrics = _last_metrics(run / "metrics.jsonl") if run is not None else {}
    data = _data(run) if run is not None else []
    lines = [
        "---",
        "license: apache-2.0",
        "library_name: transformers",
        "tags: [network, latency, time-series, ping-llm]",
        "---",
        "",
        "# A ping-llm model of Internet latency",
        "",
        f"A decoder-only Transformer (Llama architecture, {config.parameters:,} parameters: "
        f"{config.layers} layers of {config.width}, {config.heads} heads of {config.head_dim}, "
        f"{config.max_length} tokens) that holds the joint distribution of pings: "
        "who measured whom, when, and what came back.",
        "",
        "## Use",
        "",
        "```python",
        "import ping_llm",
        'model = ping_llm.load("THIS FOLDER")',
        'model.rtt("192.0.2.1", "198.51.100.7").distribution.quantile([0.05, 0.5, 0.95])',
        "```",
        "",
        "It also loads as `transformers.AutoModelForCausalLM`. There is no text tokenizer: tokens are below.",
        "A context begins with PAD (0), which is never predicted.",
        "",
        "## Data and training",
        "",
        *_table([*_training(record), *data] or [("run", "not recorded")]),
        "",
        "## Metrics",
        "",
        *_table(_metrics(metrics) or [("loss", "not recorded")]),
        "",
        "## Tokens",
        "",
        f"{vocab.VOCABULARY_SIZE} tokens: {vocab.BYTE0} roles, then one per byte ({vocab.BYTE0} + byte).",
        f"RTT encoding: `{tokens.get('rtt_encoding')}`. `tokens.json` has all options, "
        "docs/formats.md of ping-llm the details.",
        "",
        "```",
        *GRAMMAR,
        "```",
        "",
        *_table([(str(number), name) for number, name in enumerate(vocab.ROLE_NAMES)], ("id", "role")),
        "",
        "## Limits",
        "",
        "It knows the sources, destinations and times of its data; far from them it guesses from prefixes. "
        "Addresses of volunteers' probes may be reconstructed from it: treat it as you treat its data.",
        "",
        f"Exported by ping-llm {__version__} from `{(run or model.origin).resolve().name}`.",
        "",
    ]
    return "\n".join(lines)


def _training(record: dict[str, Any]) -> list[tuple[str, str]]:
    keys = (("run", "name"), ("configuration", "config"), ("steps", "steps"), ("last written", "updated"))
    return [(name, str(record[key])) for name, key in keys if record.get(key) is not None]


def _data(run: Path) -> list[tuple[str, str]]:
    """Facts about the training data from the manifest and index of its rows, if these still exist."""
    settings = read_yaml(run / "config.yml") if (run / "config.yml").is_file() else {}
    rows = Path(str(settings.get("network_train_files") or run / "rows"))
    manifest = _json(rows / "manifest.json")
    if "counts" not in manifest:
        return []
    counts = manifest["counts"]
    lines = [
        ("data", f"{counts['measurements']:,} measurements in {counts['rows']:,} rows of single sources"),
        ("dataset fingerprint", f"`{manifest['fingerprint']}`"),
    ]
    index = rows / manifest["index"]["file"]
    if index.is_file() and counts["rows"]:
        times = open_index(index, manifest["index"].get("sha256"))
        span = (
            datetime.fromtimestamp(int(time) / 1e6, UTC)
            for time in (times.first_time.min(), times.last_time.max())
        )
        lines.insert(1, ("time", " to ".join(f"{time:%Y-%m-%d %H:%M} UTC" for time in span)))
    return lines


def _metrics(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for kind, values in metrics.items():
        name = "training" if kind == "train" else "held out" if kind == "eval" else kind
        over = f", mean of the last {values['lines']}" if values["lines"] > 1 else ""
        rows.append((f"loss, {name} (nats a token{over})", f"{values['loss']:.4f}"))
        for field, bits in ((field, bits) for field, bits in values["bits"].items() if bits):
            what = "a measurement" if field == "total" else f"of it {field}"
            rows.append((f"bits {what}, {name}", f"{bits:.2f}"))
    return rows


def _table(rows: list[tuple[str, str]], header: tuple[str, str] = ("", "")) -> list[str]:
    return [f"| {header[0]} | {header[1]} |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes()) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise PingError(f"cannot read {path}: {error}") from error
    return content if isinstance(content, dict) else {}


def _last_metrics(path: Path) -> dict[str, Any]:
    """Loss and bits by kind of record; for training the mean of the last lines, as one batch is noisy."""
    lines: dict[str, list[dict[str, Any]]] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                values = json.loads(line)
            except ValueError:
                continue  # the last line of an interrupted run
            if isinstance(values, dict) and isinstance(values.get("loss"), float):
                lines.setdefault(values.get("kind", "train"), []).append(values)
    return {kind: _mean(found[-_LINES:] if kind == "train" else found[-1:]) for kind, found in lines.items()}


def _mean(lines: list[dict[str, Any]]) -> dict[str, Any]:
    bits = lines[-1].get("bits", {})
    return {
        "lines": len(lines),
        "loss": fmean(line["loss"] for line in lines),
        "bits": {field: fmean(line.get("bits", {}).get(field, 0.0) for line in lines) for field in bits},
    }
