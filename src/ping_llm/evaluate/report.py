"""The report: report.json for programs, report.html and PNGs for people, with the same figures."""

import base64
import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ping_llm.errors import PingError, UsageError
from ping_llm.evaluate import tables, verdict
from ping_llm.evaluate.scores import Scores
from ping_llm.evaluate.tables import HEADLINES
from ping_llm.evaluate.verdict import METHODS, kind_of, main_tests, title_of
from ping_llm.files import write_json, write_text
from ping_llm.measurements.columns import Columns
from ping_llm.pages import document

_STYLE = """
.lead { font-size: 1.15rem; font-weight: 600; line-height: 1.4; margin: 1.2rem 0; }
.verdicts { list-style: none; padding: 0; margin: 0 0 1rem; display: grid; gap: .6rem 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.verdicts li { background: var(--card); border-left: 5px solid var(--side, var(--line)); padding: .6rem 1rem;
  border-radius: 4px; }
.better { --side: var(--good); } .level { --side: var(--warn); } .worse { --side: var(--bad); }
.badge { float: right; margin-left: 1rem; font-size: .8rem; font-weight: 700; color: var(--side); }
nav { margin: 1.2rem 0; line-height: 1.9; } nav a { margin-right: 1rem; white-space: nowrap; }
details { margin: .6rem 0; } summary { cursor: pointer; } details .verdicts { margin-top: .6rem; }
dl { display: grid; grid-template-columns: 13rem 1fr; gap: .5rem 1.5rem; max-width: 60rem; }
dt { font-weight: 600; } dd { margin: 0; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .7rem; } }
"""

_BADGES = {"better": "best", "level": "level", "worse": "beaten"}

_TESTS = {
    "later": "The pair was measured in the training data; the question is about a measurement held out of "
    "them{later}. Every earlier measurement may be used, also of the same pair.",
    "pairs": "Source and destination were both measured in the training data, but not with each other. Every "
    "earlier measurement of other pairs may be used.",
    "sources": "The source is not in the training data. Only its newest measurements to other destinations "
    "may be used, as many as the name of the test says.",
    "destinations": "The destination is not in the training data, and no measurement of it may be used. The "
    "source is known. Where the name of the test says so, that many other sources have measured it once, "
    "and methods learn from these results too.",
}

_FIGURES = {
    "Typical error": "Median absolute error of the one number that a method answers with: half of the "
    "replies are closer.",
    "CRPS": "Continuous ranked probability score in ms: the distance of the predicted distribution from the "
    "result. It rewards being right, and being no surer than justified. Of a single number it is the "
    "absolute error.",
    "Bits per result": "Minus log2 of the probability that was given to what happened: no reply, or the "
    "reply's 1-ms bin. One bit less is twice the probability.",
    "90 % interval": "From the 5 % to the 95 % quantile of an answer. It should contain 90 % of the replies: "
    "with fewer it is too narrow, with more too wide.",
    "Best, level, beaten": "CRPS and bits decide. An answer is beaten if another method has a lower value of "
    "either by more than 1 %, best if it has itself a lower value of either by more than 1 %, else level.",
    "95 % interval of a figure": "From a bootstrap that draws sources with all of their measurements. With "
    "few sources it is wide and rough; with one there is none.",
}


def write(
    out: Path, result: dict, scores: Mapping[str, Mapping[str, Scores]], asked: Mapping[str, Columns]
) -> None:
    from ping_llm.evaluate import plots

    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "report.json", result)
    pictures = plots.draw(out, result, scores, asked)
    write_text(out / "report.html", page(out, result, pictures))


def read(path: Path) -> dict:
    """Read a report from its folder or its report.json."""
    file = path / "report.json" if path.is_dir() else path
    try:
        report = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise PingError(f"{file}: not a report: {error}") from None
    if not isinstance(report, dict) or "splits" not in report:
        raise PingError(f"{file}: not a report of ping-llm evaluate")
    return report


def leaderboard(result: dict, metric: str, digits: int) -> tuple[list[str], list[list[str]]]:
    """Return the header and rows of a text table, methods × splits; * marks the best of a column."""
    splits = result["splits"]
    methods = list(dict.fromkeys(name for split in splits.values() for name in split))
    rows = []
    for method in methods:
        row = [method]
        for split in splits.values():
            value = split.get(method, {}).get(metric)
            best = verdict.best_of(split, metric)
            mark = "*" if best and best.method == method else ""
            row.append("" if value is None else f"{value:.{digits}f}{mark}")
        rows.append(row)
    return ["method", *splits], rows


def page(out: Path, result: dict, pictures: list[tuple[str, str]]) -> str:
    """Return report.html: the verdict, methods by kind of question, explanations, tables.

    Args:
      out: folder of the pictures.
      result: the report.
      pictures: file name and caption of each.
    """
    data = result["data"]
    run = f"Run {result['run']}" if result["run"] else "Baselines only"
    about = f"{run}. Data {data['fingerprint']}, {data['train']:,} measurements to train on."
    parts = [
        "<h1>Evaluation</h1>",
        f"<p class=note>{_text(about)}</p>",
        *_opening(result),
        '<h2 id="methods">Methods by kind of question</h2>',
        "<p>Less is better; the best method of a panel is on top. A dot is a method's value, a bar its 95 % "
        "interval, a dashed line the evaluated answer. ▸ lies beyond the axis.</p>",
        tables.picture(result),
        *_explanations(result),
    ]
    sections = list(_sections(out, result, pictures))
    links = (f'<a href="#section-{index}">{title}</a>' for index, (title, _) in enumerate(sections))
    parts.append(f"<h2>Tables and further pictures</h2><nav>{' '.join(links)}</nav>")
    for index, (title, body) in enumerate(sections):
        parts += [f'<h2 id="section-{index}">{title}</h2>', *body]
    return document("ping-llm evaluation", "\n".join(parts), _STYLE + tables.TABLE_STYLE + tables.PANEL_STYLE)


def _opening(result: dict) -> list[str]:
    """Return the verdict as HTML: its first line, a sentence per kind of question, the notes."""
    found = verdict.verdicts(result)
    shown = verdict.main_verdicts(found)
    first = result.get("warning") or verdict.overall(found)
    parts = [f"<p class=lead>{_text(first)}</p>", _cards(shown)]
    others = [one for one in found if one not in shown]
    if others:
        parts.append(
            f"<details><summary>New sources, other tests ({len(others)})</summary>{_cards(others)}</details>"
        )
    parts += [f"<p>{_text(note)}</p>" for note in verdict.notes(result)]
    return parts


def _cards(found: list[verdict.Verdict]) -> str:
    cards = []
    for one in found:
        badge = _BADGES.get(one.outcome)
        mark = f"<span class=badge>{badge}</span>" if badge else ""
        start, _, rest = one.sentence.partition(", ")
        kind = one.outcome.replace(" ", "-")
        cards.append(f'<li class="{kind}">{mark}<b>{_text(start)}</b>, {_text(rest)}</li>')
    return f"<ul class=verdicts>{''.join(cards)}</ul>"


def _explanations(result: dict) -> list[str]:
    data = result["data"]
    later = ", later in time" if data.get("timed") else ""
    tests = []
    for test in main_tests(result["splits"]):
        kind = kind_of(test)
        title = "New sources" if kind == "sources" else title_of(test)
        names = [name for name in result["splits"] if kind_of(name) == kind]
        asked = ", ".join(f"{data['asked'][test][key]:,} {key}" for key in ("questions", "sources"))
        words = _TESTS.get(kind, "").format(later=later)
        where = f"In the tables: {'; '.join(names)}. {asked[0].upper()}{asked[1:]}."
        tests.append((title, f"{_text(words)} <small>{_text(where)}</small>"))
    methods = dict.fromkeys(name for split in result["splits"].values() for name in split)
    in_words = [(name, _text(METHODS[name])) for name in methods if name in METHODS]
    return [
        '<h2 id="tests">The tests</h2>',
        "<p>All methods answer the same questions about measurements that were held out.</p>",
        _definitions(tests),
        '<h2 id="figures">How to read the figures</h2>',
        _definitions([(name, _text(words)) for name, words in _FIGURES.items()]),
        "<details><summary>The methods in words</summary>" + _definitions(in_words) + "</details>",
    ]


def _sections(out: Path, result: dict, pictures: list[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and body of each section of tables and pictures."""
    splits = result["splits"]
    body = ["<p>The best of a column is green; less is better. Small: 95 % intervals.</p>"]
    for metric, title, digits in HEADLINES:
        body += [f"<h3>{title}</h3>", tables.leaderboard(result, metric, digits)]
    yield "Leaderboards", body
    body = []
    for name, caption in pictures:
        png = base64.b64encode((out / name).read_bytes()).decode()
        text = html.escape(caption)
        body += [f"<h3>{text}</h3>", f'<img alt="{text}" src="data:image/png;base64,{png}">']
    yield "Errors and calibration in pictures", body
    choices = tables.choices(splits)
    if choices:
        yield "Choosing the fastest of ten destinations", [choices]
    yield "Calibration, relative error and failures", [tables.details(split) for split in splits.items()]
    if result.get("stack"):
        yield "Weights and calibration of the stack", [tables.stack(result["stack"])]
    yield (
        "By IP version and RTT",
        [tables.strata(name, split, ("ip_version", "rtt")) for name, split in splits.items()],
    )
    yield (
        "By hour of the day (UTC)",
        [tables.strata(name, split, ("hour",)) for name, split in splits.items()],
    )
    of_kinds = {
        name: split for name, split in splits.items() if "kind" in next(iter(split.values()))["strata"]
    }
    if of_kinds:
        yield (
            "By kind of measurement",
            [tables.strata(name, split, ("kind",)) for name, split in of_kinds.items()],
        )
    if result.get("options", {}).get("places"):
        yield (
            "By distance and by pair of countries",
            [tables.strata(name, split, ("distance", "country_pair")) for name, split in splits.items()],
        )
    if result.get("by_context_size"):
        yield "The network by the size of its context", [tables.by_context_size(result["by_context_size"])]
    if result.get("likelihood"):
        yield "Bits of whole measurements", tables.likelihood_tables(result["likelihood"])
    if result.get("addresses"):
        yield "Addresses", tables.address_tables(result["addresses"])
    yield "What the tests share with the training data", [tables.proof(result["data"])]


def _definitions(items: list[tuple[str, str]]) -> str:
    """Return an HTML list of terms (text) and their definitions (HTML)."""
    return f"<dl>{''.join(f'<dt>{html.escape(term)}</dt><dd>{words}</dd>' for term, words in items)}</dl>"


def _text(text: str) -> str:
    """Return text as HTML, with a no-break space between a number and its unit."""
    return re.sub(r"(\d) (ms|%|bits)", "\\1\u00a0\\2", html.escape(text))


METRICS = ("medae_ms", "mae_ms", "mse", "crps_ms", "bits", "ece", "interval_90_width_ms")


def compare(paths: Sequence[Path], metric: str) -> dict:
    """Return one metric of every method on every split of the reports.

    Returns:
      {"metric", "reports": [names], "same_data": bool, "rows": [{"split", "method", "values", "intervals"}]}
      with one value and one interval per report, None where it is missing.
    """
    if metric not in METRICS:
        raise UsageError(f"there is no metric {metric!r}; choose from: {', '.join(METRICS)}")
    reports = [read(path) for path in paths]
    splits = list(dict.fromkeys(split for one in reports for split in one["splits"]))
    rows = []
    for split in splits:
        methods = list(dict.fromkeys(m for one in reports for m in one["splits"].get(split, {})))
        for method in methods:
            parts = [one["splits"].get(split, {}).get(method, {}) for one in reports]
            values = [part.get(metric) for part in parts]
            bounds = [(part.get("intervals") or {}).get(metric) for part in parts]
            rows.append({"split": split, "method": method, "values": values, "intervals": bounds})
    fingerprints = {one["data"]["fingerprint"] for one in reports}
    return {
        "metric": metric,
        "reports": _report_names(paths),
        "same_data": len(fingerprints) == 1,
        "rows": rows,
    }


def cells(row: dict) -> list[str]:
    """Return a row's values and intervals as text; * marks the least value if they differ."""
    values = [value for value in row["values"] if value is not None]
    differ = len(set(values)) > 1
    out = []
    for value, bounds in zip(row["values"], row["intervals"], strict=True):
        mark = "*" if differ and value == min(values) else ""
        within = f" ({bounds[0]:.2f}–{bounds[1]:.2f})" if bounds else ""
        out.append("" if value is None else f"{value:.3f}{mark}{within}")
    return out


def _report_names(paths: Sequence[Path]) -> list[str]:
    """Return the names of the folders, or whole paths if two names are equal."""
    folders = [path if path.is_dir() else path.parent for path in paths]
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]
