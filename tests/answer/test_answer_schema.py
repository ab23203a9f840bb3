"""What queries and decisions print as JSON: keys and types, all documented (queries.md, decisions.md)."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ping_llm.cli import app
from ping_llm.cli import decide as decide_commands
from ping_llm.cli import query as query_commands
from ping_llm.measurements.addresses import unpack_one
from ping_llm.measurements.parquet import write_measurements

DOCS, DECISIONS_DOCS = (
    (Path(__file__).parents[2] / "docs" / page).read_text() for page in ("queries.md", "decisions.md")
)
NUMBER, TEXT, TIME, FLAG = (float, int), str, (str, type(None)), bool
OBSERVED = {"median": NUMBER, "min": NUMBER, "max": NUMBER}
RTT = {
    "src_addr": TEXT, "dst_addr": TEXT, "event_time": TIME, "failure": NUMBER, "point": NUMBER,
    "median": NUMBER, "mean": NUMBER, "method": TEXT, "calibrated": FLAG, "notes": [TEXT],
    "quantiles": dict.fromkeys(("0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99"), NUMBER),
    "context": {"given": int, "used": int},
    "rests_on": {
        "kind": TEXT, "pair_measurements": int, "source_measurements": int, "destination_measurements": int,
        "pair_observed": OBSERVED, "pair_trained": FLAG, "source_trained": FLAG, "destination_trained": FLAG,
        "source_network_trained": FLAG, "destination_network_trained": FLAG,
    },
}  # fmt: skip
COMPLETIONS = {
    "completions": [{"address": TEXT, "probability": NUMBER}],
    "covered": NUMBER, "bound": NUMBER, "exact": FLAG, "notes": [TEXT],
}  # fmt: skip
IN_RANGE = {"in_range": NUMBER, "pair_measurements": int, "pair_observed": (dict, type(None))}
SCORE = {
    "event_time": TIME, "src_addr": TEXT, "dst_addr": TEXT, "row": int, "rtt": NUMBER, "bits": NUMBER,
    "tail": NUMBER, "failure": NUMBER, "point": NUMBER, "kind": TEXT,
    "expected": dict.fromkeys(("0.05", "0.5", "0.95"), NUMBER),
}  # fmt: skip
RAW = {name: SCORE[name] for name in ("event_time", "src_addr", "dst_addr", "row", "rtt")} | {
    "known": int, "bits": dict.fromkeys(("start", "src", "dst", "time", "result", "total"), NUMBER),
}  # fmt: skip
MADE = {"event_time": TIME, "src_addr": TIME, "dst_addr": TIME, "rtt": (float, type(None))}

#: Words after RUN → schema of the whole output, or of each line.
QUERIES = {
    ("rtt", "--src", "SRC", "--dst", "DST", "--at", "2024-01-06T00:00:00Z"): RTT,
    ("rtt", "--src", "SRC", "--dst", "DST", "--below", "50"):
        RTT | {"below": {"ms": NUMBER, "probability": NUMBER, "of_replies": NUMBER}},
    ("rtt", "--pairs", "FILE"): RTT | {"rtt": NUMBER, "bits": NUMBER, "crps": (float, type(None))},
    ("complete", "--src", "SRC", "--bits", "8", "--top", "2"): COMPLETIONS,
    ("complete", "--src", "SRC", "--bits", "8", "--samples", "2"): {"samples": [TEXT]},
    ("inverse", "--src", "SRC", "--rtt", "0-200", "--bits", "8", "--top", "2"):
        COMPLETIONS | {"probability": NUMBER, "completions": [COMPLETIONS["completions"][0] | IN_RANGE]},
    ("score", "FILE"): SCORE,
    ("score", "FILE", "--anomalies", "2"): [SCORE],
    ("score", "FILE", "--above", "0.5"): [SCORE],
    ("score", "FILE", "--raw"): RAW,
    ("generate", "--src", "SRC", "--measurements", "2"): {"histories": [[MADE]], "notes": [TEXT]},
}  # fmt: skip

INFLUENCE = {"rests_on": TEXT, "median_ms": NUMBER, "moved_ms": NUMBER, "bits": NUMBER}
DECISIONS = {
    ("rank", "--src", "SRC", "--dst", "DST", "--slo", "50"): {
        "candidates": [{
            "dst": TEXT, "expected_ms": NUMBER, "fastest": NUMBER, "below": NUMBER, "no_reply": NUMBER,
            "regret_ms": NUMBER, "quantiles_ms": dict.fromkeys(("0.05", "0.5", "0.95"), NUMBER),
        }],
        "nobody": NUMBER, "timeout_ms": NUMBER, "objective_ms": NUMBER, "notes": [TEXT],
    },
    ("explain", "--src", "SRC", "--dst", "DST", "--top", "1"):
        {"median_ms": NUMBER, "measurements": [INFLUENCE], "alternatives": [INFLUENCE]},
    ("plan", "--src", "SRC", "--dst", "DST", "--budget", "1"): {
        "measurements": [{"src_addr": TEXT, "dst_addr": TEXT, "drop": NUMBER}],
        "questions": int, "candidates": int, "before": NUMBER, "after": NUMBER, "by": TEXT, "budget": int,
        "is_exhausted": FLAG,
    },
    ("matrix", "--src", "SRC", "--dst", "DST", "--out", "OUT"):
        {"sources": int, "destinations": int, "files": [TEXT]},
}  # fmt: skip


def check(value, schema, place="") -> None:
    if isinstance(schema, dict):
        assert isinstance(value, dict), place
        assert value.keys() == schema.keys(), place
        for key, part in schema.items():
            check(value[key], part, f"{place}.{key}")
    elif isinstance(schema, list):
        assert isinstance(value, list), place
        for part in value:
            check(part, schema[0], f"{place}[]")
    else:
        assert isinstance(value, schema), (place, value)


def keys_of(schema) -> set[str]:
    if isinstance(schema, list):
        return keys_of(schema[0])
    if not isinstance(schema, dict):
        return set()
    return set(schema) | {key for part in schema.values() for key in keys_of(part)}


@pytest.fixture(scope="module")
def words(world, rows, tmp_path_factory):
    """A known pair that has replied, and a file of its measurements."""
    if not any(group.name == "query" for group in app.registered_groups):
        query_commands.register(app)
    decide_commands.register(app)
    later = world.test("later")
    known = later.take(later.replied)
    mine = (known.src == known.src[0]).all(axis=1) & (known.dst == known.dst[0]).all(axis=1)
    file = tmp_path_factory.mktemp("schema") / "file.parquet"
    write_measurements(known.take(mine).take(slice(0, 5)), file)
    return {
        "SRC": unpack_one(known.src[0].tobytes()),
        "DST": unpack_one(known.dst[0].tobytes()),
        "FILE": str(file),
        "OUT": str(file.with_name("matrix")),
    }


@pytest.mark.parametrize("query", QUERIES, ids=" ".join)
def test_what_is_printed(query, words, run, rows):
    command = ["query", query[0], str(run), *(words.get(word, word) for word in query[1:])]
    done = CliRunner().invoke(app, [*command, "--data", str(rows), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    schema = QUERIES[query]
    lines = "--pairs" in query or (query[0] == "score" and isinstance(schema, dict))
    printed = [json.loads(line) for line in done.stdout.splitlines()] if lines else [json.loads(done.stdout)]
    assert printed
    for value in printed:
        check(value, schema)


@pytest.mark.parametrize("decision", DECISIONS, ids=" ".join)
def test_what_a_decision_prints(decision, words, run, rows):
    command = [decision[0], str(run), *(words.get(word, word) for word in decision[1:])]
    done = CliRunner().invoke(app, [*command, "--data", str(rows), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    check(json.loads(done.stdout), DECISIONS[decision])


@pytest.mark.parametrize(("schemas", "docs"), [(QUERIES, DOCS), (DECISIONS, DECISIONS_DOCS)])
def test_every_key_is_documented(schemas, docs):
    keys = {key for schema in schemas.values() for key in keys_of(schema)}
    missing = [
        key for key in sorted(keys) if f"`{key}`" not in docs and f".{key}`" not in docs and key[0] != "0"
    ]
    assert not missing
