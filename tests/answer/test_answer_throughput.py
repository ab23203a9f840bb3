"""From a CSV file with throughputs to answers that depend on them: every step is the program's own."""

import json
from datetime import UTC, datetime

import jax
import numpy as np
import pytest
from test_answer_fields import taught
from typer.testing import CliRunner

from ping_llm.cli import app
from ping_llm.cli import query as query_commands
from ping_llm.ingest.run import ingest
from ping_llm.model import export
from ping_llm.rows.build import build
from ping_llm.rows.store import RowStore

query_commands.register(app)

FIELDS = "src,dst,rtt,size,errors,msm_id,probe_id,throughput"
COLUMNS = "event_time,src_addr,dst_addr,rtt,size,packet_error_count,msm_id,probe_id,throughput_mbps"
SOURCES = [f"192.0.2.{number}" for number in (1, 2)]
TARGETS = [f"198.51.100.{number}" for number in (1, 2)]
#: A slow transfer fills the queue before it: 40 ms more.
SLOW, FAST, QUEUE = 2.0, 900.0, 40.0
START = 1_714_521_600


def base_rtt(source: int, target: int) -> float:
    return 20.0 + 15.0 * source + 6.0 * target


def tensors_of(model) -> dict[str, np.ndarray]:
    """The weights as an export has them: what `transformer.prepare` was given."""
    config, params = model.config, jax.tree.map(np.asarray, model.engine._params)
    heads, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    tensors = {"model.embed_tokens": params["embedding"], "model.norm": params["norm"]}
    tensors["lm_head"] = params["head"].T
    for index in range(config.layers):
        at, layer = f"model.layers.{index}", {name: array[index] for name, array in params["layers"].items()}
        for name, part in zip("qkv", np.split(layer["qkv"].T, [heads, heads + kv]), strict=True):
            tensors[f"{at}.self_attn.{name}_proj"] = part
        for name, part in zip(("gate", "up"), np.split(layer["gate_up"].T, 2), strict=True):
            tensors[f"{at}.mlp.{name}_proj"] = part
        tensors |= {
            f"{at}.input_layernorm": layer["attention_norm"],
            f"{at}.post_attention_layernorm": layer["mlp_norm"],
            f"{at}.self_attn.o_proj": layer["out"].T,
            f"{at}.mlp.down_proj": layer["down"].T,
        }
    return {f"{name}.weight": np.ascontiguousarray(array) for name, array in tensors.items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("throughput")
    random = np.random.default_rng(4)
    lines = [COLUMNS]
    for number in range(2000):
        source, target = random.integers(0, 2, 2)
        slow = random.random() < 0.5
        rtt = base_rtt(source, target) * random.normal(1, 0.01) + QUEUE * slow
        when = datetime.fromtimestamp(START + 20 * number, UTC).isoformat()
        mbps = "" if random.random() < 0.1 else SLOW if slow else FAST
        row = (when, SOURCES[source], TARGETS[target], f"{rtt:.3f}", 64, 0, 1000 + target, 7 + source, mbps)
        lines.append(",".join(map(str, row)))
    (folder / "measured.csv").write_text("\n".join(lines) + "\n")
    ingest([str(folder / "measured.csv")], folder / "table", workers=1)
    build([folder / "table"], folder / "rows")
    model = taught(RowStore(folder / "rows"), FIELDS, steps=600)
    tokens = export.token_schema(model.tokens["context"])
    export.write(model.config, tensors_of(model), tokens, folder / "run" / "export")
    return folder


def answered(run, *words: str) -> dict:
    words = ("query", *words, "--json")
    return json.loads(CliRunner().invoke(app, list(words), catch_exceptions=False).stdout)


@pytest.mark.slow
def test_the_rtt_given_the_throughput(run):
    assert json.loads((run / "run" / "export" / "tokens.json").read_text())["format"] == 3
    for source in range(2):
        for target in range(2):
            ends = ("--src", SOURCES[source], "--dst", TARGETS[target])
            words = ("rtt", str(run / "run"), *ends, "--no-data", "--raw", "--throughput")
            fast, slow = (answered(run, *words, str(mbps)) for mbps in (FAST, SLOW))
            assert slow["conditions"] == {"throughput": SLOW}
            expected = base_rtt(source, target) + QUEUE
            np.testing.assert_allclose(slow["quantiles"]["0.5"], expected, rtol=0.1)
            np.testing.assert_allclose(slow["quantiles"]["0.5"] - fast["quantiles"]["0.5"], QUEUE, atol=12)


@pytest.mark.slow
def test_the_throughput_given_the_rtt(run):
    """Bits of the field of what fits the result, and of what does not; and samples that have it."""
    when = datetime.fromtimestamp(START, UTC).isoformat()
    row = f"{when},{SOURCES[0]},{TARGETS[0]},20.0,64,0,1000,7"
    path = run / "asked.csv"
    path.write_text("\n".join([COLUMNS, *(f"{row},{mbps}" for mbps in (FAST, 333.0))]) + "\n")
    words = ["query", "score", str(run / "run"), str(path), "--raw", "--no-data", "--json"]
    printed = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    usual, odd = (json.loads(line)["bits"]["throughput"] for line in printed.splitlines())
    assert usual < 4 < odd - 4, (usual, odd)
    words = ("--src", SOURCES[0], "--histories", "20", "--measurements", "1", "--no-data")
    made = answered(run, "generate", str(run / "run"), *words)["histories"]
    known = [one["throughput_mbps"] for (one,) in made if one["throughput_mbps"] is not None]
    assert len(known) > 8
    assert np.mean([min(abs(one / mbps - 1) for mbps in (SLOW, FAST)) < 0.05 for one in known]) > 0.7
