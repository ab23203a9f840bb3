"""The model card: what an export says about itself to somebody who finds it."""

import json
from pathlib import Path
from typing import Any

from ping_llm import __version__
from ping_llm.model.export import Exported
from ping_llm.tokens import vocab


def model_card(model: Exported, run: Path | None) -> str:
    """Markdown with the front matter that Hugging Face reads."""
    config, tokens = model.config, model.tokens
    record = _json(run / "run.json") if run is not None else {}
    metrics = _last_metrics(run / "metrics.jsonl") if run is not None else {}
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
        *_table(_training(record, metrics)),
        "",
        "## Tokens",
        "",
        f"{vocab.VOCABULARY_SIZE} tokens: {vocab.BYTE0} roles, then one a byte value ({vocab.BYTE0} + byte).",
        f"RTT encoding: `{tokens.get('rtt_encoding')}`. `tokens.json` has all options; the grammar is in "
        "docs/formats.md of ping-llm.",
        "",
        *_table([(str(number), name) for number, name in enumerate(vocab.ROLE_NAMES)], ("id", "role")),
        "",
        "## Limits",
        "",
        "It knows the sources, destinations and times of its data; far from them it guesses from prefixes. "
        "Addresses of volunteers' probes may be reconstructed from it: treat it as you treat its data.",
        "",
        f"Exported by ping-llm {__version__} from `{model.origin.name}`.",
        "",
    ]
    return "\n".join(lines)


def _training(record: dict[str, Any], metrics: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        (name, str(record[key]))
        for name, key in (("run", "name"), ("configuration", "config"), ("steps", "steps"), ("data", "data"),
                          ("dataset fingerprint", "fingerprint"), ("finished", "updated"))
        if record.get(key) is not None
    ]  # fmt: skip
    for kind, values in metrics.items():
        rows.append((f"last {kind} loss (nats a token)", f"{values['loss']:.4f}"))
        if total := values.get("bits", {}).get("total"):
            rows.append((f"last {kind} bits a measurement", f"{total:.2f}"))
    return rows or [("run", "not recorded")]


def _table(rows: list[tuple[str, str]], header: tuple[str, str] = ("", "")) -> list[str]:
    return [f"| {header[0]} | {header[1]} |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


def _last_metrics(path: Path) -> dict[str, Any]:
    """The last line of each kind (train, eval) that has a loss."""
    last: dict[str, Any] = {}
    if path.is_file():
        for line in path.read_text().splitlines():
            try:
                values = json.loads(line)
            except ValueError:
                continue  # the last line of an interrupted run
            if isinstance(values.get("loss"), float):
                last[values.get("kind", "train")] = values
    return last
