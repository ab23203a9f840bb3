"""Every question as a command, on a model with random weights."""

import json
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from ping_llm.answer.context import as_microseconds
from ping_llm.cli import app
from ping_llm.cli import query as query_commands
from ping_llm.errors import PingError, UsageError
from ping_llm.model import export
from ping_llm.model.random import random_tensors

query_commands.register(app)
SRC, DST = "192.0.2.1", "198.51.100.7"


@pytest.fixture(scope="module")
def run(tmp_path_factory, engine):
    folder = tmp_path_factory.mktemp("run")
    export.write(engine.config, random_tensors(engine.config, seed=5, scale=3.0), {}, folder / "export")
    return folder


@pytest.fixture
def past(tmp_path):
    path = tmp_path / "past.csv"
    path.write_text(
        "event_time,src_addr,dst_addr,rtt\n"
        + "".join(f"2024-05-01T0{n}:00:00Z,{SRC},{DST},{20 + n}\n" for n in range(5))
    )
    return path


def ask(*arguments):
    result = CliRunner().invoke(app, ["query", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_rtt(run, past, tmp_path):
    asked = ("rtt", run, "--src", SRC, "--dst", DST, "--at", "2024-05-02", "--context", past)
    values = json.loads(ask(*asked, "--json", "--below", 100, "--png", tmp_path / "a.png"))
    assert values["context"] == {"given": 5, "used": 5}
    assert 0 < values["failure"] < 1
    assert values["quantiles"]["0.05"] <= values["quantiles"]["0.5"] <= values["quantiles"]["0.95"]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    text = ask(*asked)
    assert "no reply" in text
    assert "█" in text


def test_pairs(run, tmp_path):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text(f"src_addr,dst_addr\n{SRC},{DST}\n2001:db8::1,2001:db8::/32\n")
    lines = [json.loads(line) for line in ask("rtt", run, "--pairs", pairs, "--json").splitlines()]
    assert [line["dst_addr"] for line in lines] == [DST, "2001:db8::/32"]
    alone = json.loads(ask("rtt", run, "--src", SRC, "--dst", DST, "--json"))
    assert lines[0]["failure"] == pytest.approx(alone["failure"], rel=1e-4)


def test_complete_inverse_generate_and_score(run, past):
    found = json.loads(ask("complete", run, "--src", SRC, "--dst", "198.51.100.?", "--top", 3, "--json"))
    assert len(found["completions"]) == 3
    drawn = json.loads(ask("complete", run, "--src", SRC, "--dst", "198.51.100.?", "--samples", 4, "--json"))
    assert len(drawn["samples"]) == 4
    near = ask("inverse", run, "--src", SRC, "--rtt", "5-50", "--within", "198.51.100.?", "--top", 3)
    assert "together" in near
    made = json.loads(ask("generate", run, "--src", SRC, "--context", past, "--measurements", 2, "--json"))
    assert len(made["histories"][0]) == 2
    assert made == json.loads(
        ask("generate", run, "--src", SRC, "--context", past, "--measurements", 2, "--json")
    )
    assert "result" in ask("score", run, past)


@pytest.mark.parametrize("name", ["AS3333", "country:NL", "localhost"])
def test_a_search_takes_names_for_where_to_search(run, tmp_path, name):
    """As the server does; the host name has the IP version of the source."""
    (tmp_path / "places.csv").write_text("prefix,country,asn\n198.51.100.0/24,NL,3333\n")
    prefix = "127.0.0.1" if name == "localhost" else "198.51.100.0/24"
    inverse = ("inverse", run, "--src", SRC, "--rtt", "5-50", "--top", 2, "--places", tmp_path / "places.csv")
    complete = ("complete", run, "--src", SRC, "--top", 2, "--places", tmp_path / "places.csv")
    # A whole address cannot be completed.
    questions = [(*inverse, "--within")] + ([] if name == "localhost" else [(*complete, "--dst")])
    for question in questions:
        words = ["query", *map(str, question)]
        named = CliRunner().invoke(app, [*words, name, "--json"], catch_exceptions=False)
        assert named.stderr == f"note: {name} is {prefix}\n"
        assert json.loads(named.stdout) == json.loads(ask(*question, prefix, "--json"))


def test_every_question_can_be_drawn(run, past, tmp_path):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("src_addr,dst_addr\n" + f"{SRC},{DST}\n" * 2)
    near = ("--src", SRC, "--dst", "198.51.100.?")
    asked = {
        "consistency": ("rtt", run, *near, "--consistency"),
        "pairs": ("rtt", run, "--pairs", pairs),
        "complete": ("complete", run, *near),
        "samples": ("complete", run, *near, "--samples", 9),
        "inverse": ("inverse", run, "--src", SRC, "--rtt", "5-50", "--within", "198.51.100.?"),
        "score": ("score", run, past),
        "anomalies": ("score", run, past, "--anomalies", 2),
        "generate": ("generate", run, "--src", SRC, "--histories", 2, "--measurements", 3),
    }
    for name, arguments in asked.items():
        path = tmp_path / "pictures" / f"{name}.png"
        ask(*arguments, "--png", path)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_what_does_not_fit_is_said_by_every_question(run, tmp_path):
    long = tmp_path / "long.csv"
    long.write_text(
        "event_time,src_addr,dst_addr,rtt\n"
        + "".join(f"2024-05-01T{n:02}:00:00Z,{SRC},{DST},{20 + n}\n" for n in range(24))
    )
    known = ("--src", SRC, "--context", long, "--at", "2024-05-01T22:00:00Z")
    for question in (
        ("rtt", run, "--dst", DST),
        ("complete", run, "--dst", "198.51.100.?"),
        ("inverse", run, "--rtt", "5-50", "--within", "198.51.100.?", "--top", 2),
        ("generate", run, "--measurements", 2),
    ):
        text = ask(*question, *known)
        assert "2 of 24 known measurements were left out: they are not earlier" in text
        assert "the least relevant" in text


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        (("rtt", "RUN", "--src", SRC), UsageError, "--src and --dst, or --pairs"),
        (("rtt", "/nowhere", "--src", SRC, "--dst", DST), PingError, "does not exist"),
        (("inverse", "RUN", "--src", SRC, "--rtt", "near"), UsageError, "must be a range in ms"),
        (("score", "RUN", "/nowhere.csv"), UsageError, "does not exist"),
        (("score", "RUN", "x.csv", "--anomalies", "0"), UsageError, "at least 1"),
        (("generate", "RUN", "--histories", "0"), UsageError, "at least 1"),
        (("rtt", "RUN", "--pairs", "x.csv", "--below", "9"), UsageError, "for a single question"),
        (("complete", "--src", SRC), UsageError, r"RUN must be named.*`ping-llm fit DATA --run RUN`"),
        (("inverse", "--src", SRC, "--rtt", "5-50"), UsageError, "base.* knows no addresses"),
        (("generate",), UsageError, "RUN must be named"),
    ],
)
def test_bad_commands_get_a_sentence(run, arguments, error, sentence):
    arguments = [str(run) if one == "RUN" else one for one in arguments]
    with pytest.raises(error, match=sentence):
        CliRunner().invoke(app, ["query", *arguments], catch_exceptions=False)


def test_importing_the_package_is_cheap_and_loading_needs_no_maxtext(run):
    program = (
        "import sys, ping_llm; before = 'jax' in sys.modules\n"
        f"ping_llm.load({str(run)!r})\n"
        "print(before, [name for name in ('maxtext', 'orbax', 'flax', 'torch') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "False []"


@pytest.mark.parametrize(
    ("text", "range_ms"),
    [("10-20", (10, 20)), ("10..20", (10, 20)), ("<20", (0, 20)), ("20", (0, 20)), ("0-20ms", (0, 20))],
)
def test_ranges_as_people_write_them(text, range_ms):
    assert query_commands._range(text) == range_ms


@pytest.mark.parametrize("text", ["20-10", "a-b", "", "1-2-3", "-5"])
def test_ranges_that_are_none(text):
    with pytest.raises(UsageError, match="--rtt must"):
        query_commands._range(text)


def test_now_is_a_time():
    before = time.time()
    assert before - 1 <= as_microseconds(" now ") / 1e6 <= time.time() + 1


@pytest.mark.parametrize("text", ["inf", "nan", "-1", "1e308", "9999999999999", 10**400])
def test_times_that_are_none_get_a_sentence(text):
    with pytest.raises(UsageError, match="the time must be within 1970 to 2100"):
        as_microseconds(text)
