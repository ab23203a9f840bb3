"""report.html: opens with the verdict, escapes what it is given, fetches nothing."""

import re
from html.parser import HTMLParser

import pytest

from ping_llm.evaluate import report
from ping_llm.evaluate.tables import axis, picture

SILENT = {"measurements": 12, "replies": 0}
STRATA = {
    "ip_version": {"IPv4": {"measurements": 500, "medae_ms": 2.0}},
    "rtt": {"0–10 ms": {"measurements": 500, "medae_ms": 2.0}},
    "hour": {"00": {"measurements": 500, "medae_ms": 2.0}},
}


def figures(crps: float, bits: float = 5.0, medae: float = 2.0) -> dict:
    return {
        "measurements": 500,
        "replies": 490,
        "crps_ms": crps,
        "bits": bits,
        "medae_ms": medae,
        "mae_ms": 2 * medae,
        "coverage": {"50%": 0.5, "80%": 0.8, "90%": 0.9},
        "interval_90_width_ms": 30.0,
        "ece": 0.01,
        "relative_error": {"p50": 0.1, "p75": 0.2, "p90": 0.3, "p95": 0.4},
        "failure": {"brier": 0.01, "log_loss_bits": 0.1, "auc": None},
        "intervals": {"crps_ms": [0.8 * crps, 1.2 * crps], "bits": None},
    }


def result_of(splits: dict, run: str | None = "runs/menog", **more) -> dict:
    return {
        "run": run,
        "calibration": None,
        "data": {
            "fingerprint": "0123",
            "train": 1000,
            "timed": True,
            "asked": {test: {"questions": 500, "sources": 40} for test in splits},
            "tests": {test: {"measurements": 500} for test in splits},
        },
        "splits": {
            test: {name: part | {"strata": STRATA} for name, part in methods.items()}
            for test, methods in splits.items()
        },
        "by_context_size": {},
        **more,
    }


class Balance(HTMLParser):
    """Fails on a tag that is closed without having been opened, or never closed."""

    VOID = frozenset({"meta", "img", "br", "input"})

    def __init__(self):
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}>"
        assert self.open.pop() == tag


@pytest.fixture
def page(tmp_path) -> str:
    (tmp_path / "one.png").write_bytes(b"\x89PNG")
    splits = {
        "later": {
            "global": figures(30.0),
            "pair last": figures(6.2),
            "network": figures(7.0),
            "stack": figures(6.5),
        },
        "sources, 0 known": {"global": figures(30.0), "stack": figures(20.0)},
        "sources, 10 known": {"global": figures(30.0), "stack": figures(20.0)},
        "destinations": {"global": SILENT, "stack": SILENT},
    }
    return report.page(tmp_path, result_of(splits, notes=["Trained for <20> minutes."]), [("one.png", "One")])


def test_the_verdict_comes_first_then_the_picture_the_tests_and_the_tables(page):
    order = [
        "A simpler method does better in 1 of 3 tests: the pair&#x27;s last value (pair last)",
        "<b>For pairs seen in training</b>, typical error",
        "Trained for &lt;20&gt; minutes.",
        "Methods by kind of question",
        "The tests",
        "How to read the figures",
        "<h3>Median absolute error, ms</h3>",
        "<h3>Mean absolute error, ms</h3>",
        "<h3>CRPS, ms</h3>",
        "<h3>Bits per result</h3>",
        "data:image/png;base64,",
        "Calibration, relative error and failures</h2>",
        "By IP version and RTT</h2>",
        "By hour of the day (UTC)</h2>",
        "What the tests share with the training data</h2>",
    ]
    places = [page.find(text) for text in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)


def test_the_page_is_whole_and_fetches_nothing(page):
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert not re.search(r"""(src|href)\s*=\s*["']?(?!["']?(data:image/png;|#))""", page)
    assert not re.search(r"https?:|url\(|@import|<link|<script|<iframe", page)
    targets = re.findall(r'href="#([^"]+)"', page)
    assert targets
    for target in targets:
        assert f'id="{target}"' in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page


def test_the_outcome_of_each_kind_is_marked(page):
    kinds = re.findall(r'<li class="([^"]+)">', page)
    assert kinds == ["worse", "better", "no-replies", "better"]  # the last is the folded one
    assert page.index("<details>") < page.rindex('<li class="better">')
    assert page.count("<tr class=subject><td>stack</td>") >= 4
    assert "<tr class=subject><td>network</td>" not in page


def test_names_are_escaped(tmp_path):
    bad = "<img src=x onerror=alert(1)>"
    result = result_of({bad: {bad: figures(5.0), "model": figures(6.0)}}, run=bad, notes=[bad])
    result["data"]["fingerprint"] = bad
    page = report.page(tmp_path, result, [])
    assert "<img" not in page
    assert page.count("&lt;img src=x") > 10


def test_baselines_only(tmp_path):
    page = report.page(tmp_path, result_of({"later": {"global": figures(30.0)}}, run=None), [])
    assert "No run was evaluated" in page
    assert "class=ours" not in page
    assert '<tr class="best"><th scope=row>global</th>' in page


def test_panels_sort_methods_and_mark_what_is_beyond_the_axis():
    methods = {"global": figures(5000.0), "a": figures(12.0), "model": figures(10.0), "truth": figures(1.0)}
    first, bits, error = picture(result_of({"later": methods})).split("<figure")[1:]
    assert re.findall(r"<th scope=row>(.*?)</th>", first) == ["truth", "model", "a", "global"]
    assert '<tr class="truth">' in first
    assert '<tr class="subject best">' in first
    assert first.count("▸") == 1
    assert "5,000" in first
    assert first.count("class=range") == 4
    assert "class=range" not in bits  # it has no interval
    assert "▸" not in error
    assert "No replies." in picture(result_of({"later": {"model": SILENT}}))


@pytest.mark.parametrize(
    ("values", "bounds", "ours", "expected"),
    [
        ([7.0, 35.0], [[5.0, 40.0]], 7.0, (0.0, 40.0, 10.0)),
        ([7.12, 7.48], [], None, (7.1, 7.5, 0.1)),
        ([0.0, 0.0], [], 0.0, (0.0, 0.0005, 0.0005)),
    ],
)
def test_axes_end_at_round_numbers(values, bounds, ours, expected):
    assert axis(values, bounds, ours) == pytest.approx(expected)
