"""report.json, report.html and the PNGs: the same figures for programs and for people."""

import base64
import html
import json
from collections.abc import Mapping
from pathlib import Path

from ping_llm.errors import PingError
from ping_llm.evaluate.columns import Columns
from ping_llm.evaluate.scores import Scores
from ping_llm.files import write_json, write_text

#: What the leaderboards show: key in the report, title, and digits. Less is better in all of them.
HEADLINES = (
    ("medae_ms", "Median absolute error, ms", 2),
    ("mae_ms", "Mean absolute error, ms", 2),
    ("crps_ms", "CRPS, ms", 2),
    ("bits", "Bits per result", 3),
)

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1200px; color: #222 }
table { border-collapse: collapse; margin: .6em 0 1.6em } th, td { padding: .2em .7em; text-align: right }
th:first-child, td:first-child { text-align: left } thead th { border-bottom: 1px solid #999 }
tr.model td { background: #f3f3f3; font-weight: 600 } td.best { color: #0a6b2d; font-weight: 700 }
small { color: #777; font-weight: 400 } small, td:first-child { white-space: nowrap }
img { max-width: 100% } .scroll { overflow-x: auto }
"""


def write(
    out: Path, result: dict, scores: Mapping[str, Mapping[str, Scores]], asked: Mapping[str, Columns]
) -> None:
    from ping_llm.evaluate import plots

    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "report.json", result)
    pictures = plots.draw(out, result, scores, asked)
    write_text(out / "report.html", _page(out, result, pictures))


def read(path: Path) -> dict:
    """A report from its folder or its report.json."""
    file = path / "report.json" if path.is_dir() else path
    try:
        report = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise PingError(f"{file}: not a report: {error}") from None
    if not isinstance(report, dict) or "splits" not in report:
        raise PingError(f"{file}: not a report of ping-llm evaluate")
    return report


def best_of(split: Mapping[str, dict], metric: str) -> str | None:
    """The method with the least value; the truth does not compete."""
    values = {name: part[metric] for name, part in split.items() if metric in part and name != "truth"}
    return min(values, key=lambda name: values[name]) if values else None


def leaderboard(result: dict, metric: str, digits: int) -> tuple[list[str], list[list[str]]]:
    """Header and rows of text, methods × splits; * marks the best of a column."""
    splits = result["splits"]
    methods = list(dict.fromkeys(name for split in splits.values() for name in split))
    rows = []
    for method in methods:
        row = [method]
        for split in splits.values():
            value = split.get(method, {}).get(metric)
            mark = "*" if best_of(split, metric) == method else ""
            row.append("" if value is None else f"{value:.{digits}f}{mark}")
        rows.append(row)
    return ["method", *splits], rows


def _page(out: Path, result: dict, pictures: list[tuple[str, str]]) -> str:
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>ping-llm evaluation</title>",
        f"<style>{_STYLE}</style><h1>Evaluation</h1>",
        f"<p>Run: {html.escape(str(result['run'] or 'none, baselines only'))}. Data: "
        f"{result['data']['fingerprint']}, {result['data']['train']:,} measurements to train on. "
        "Intervals are 95 %, by drawing sources: where these are few, they are wide and rough, and "
        "of a single source there is none. "
        "The best of a column is green; less is better.</p>",
    ]
    for metric, title, digits in HEADLINES:
        parts += [f"<h2>{title}</h2>", _leaderboard_html(result, metric, digits)]
    for name, caption in pictures:
        data = base64.b64encode((out / name).read_bytes()).decode()
        parts += [f"<h3>{html.escape(caption)}</h3>", f'<img alt="" src="data:image/png;base64,{data}">']
    parts += ["<h2>Calibration, relative error and failures</h2>", *map(_details, result["splits"].items())]
    if result["calibration"]:
        parts += ["<h2>What is made of the model's answers</h2>", _calibration(result["calibration"])]
    parts.append("<h2>By IP version and RTT</h2>")
    parts += [_strata(name, split, ("ip_version", "rtt")) for name, split in result["splits"].items()]
    parts.append("<h2>By hour of the day (UTC)</h2>")
    parts += [_strata(name, split, ("hour",)) for name, split in result["splits"].items()]
    if result["by_context_size"]:
        parts += ["<h2>The model by context size</h2>", _context(result["by_context_size"])]
    if result.get("likelihood"):
        parts += ["<h2>Bits of whole measurements</h2>", *_likelihood(result["likelihood"])]
    if result.get("addresses"):
        parts += ["<h2>Addresses</h2>", *_addresses(result["addresses"])]
    parts += ["<h2>What the tests share with the training data</h2>", _proof(result["data"])]
    return "\n".join(parts) + "\n"


def _table(header: list[str], rows: list[list[str]], marked: frozenset[str] = frozenset({"model"})) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = []
    for row in rows:
        cells = "".join(cell if cell.startswith("<td") else f"<td>{cell}</td>" for cell in row)
        body.append(f"<tr class={'model' if row[0] in marked else 'other'}>{cells}</tr>")
    rows_html = "".join(body)
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{rows_html}</tbody></table></div>"


def _leaderboard_html(result: dict, metric: str, digits: int) -> str:
    splits = result["splits"]
    methods = list(dict.fromkeys(name for split in splits.values() for name in split))
    rows = []
    for method in methods:
        row = [html.escape(method)]
        for split in splits.values():
            part = split.get(method, {})
            if metric not in part:
                row.append("")
                continue
            bounds = (part.get("intervals") or {}).get(metric)
            small = f"<br><small>{bounds[0]:.{digits}f}–{bounds[1]:.{digits}f}</small>" if bounds else ""
            kind = " class=best" if best_of(split, metric) == method else ""
            row.append(f"<td{kind}>{part[metric]:.{digits}f}{small}</td>")
        rows.append(row)
    if metric == "bits" and any("entropy_bits" in split.get("truth", {}) for split in splits.values()):
        entropies = (split.get("truth", {}).get("entropy_bits") for split in splits.values())
        rows.append(["the truth's entropy", *("" if e is None else f"{e:.{digits}f}" for e in entropies)])
    asked = result["data"]["asked"]
    sizes = [[key, *(f"{asked[name][key]:,}" for name in splits)] for key in ("questions", "sources")]
    return _table(["method", *splits], [*rows, *sizes])


def _details(split: tuple[str, dict]) -> str:
    name, methods = split
    header = ["method", "50 %", "80 %", "90 %", "width of 90 %, ms", "ECE", "rel. p50", "p75", "p90", "p95"]
    header += ["Brier", "log loss, bits", "AUC"]
    rows = []
    for method, part in methods.items():
        if "coverage" not in part:
            continue
        failure = part["failure"]
        cells = [f"{share:.1%}" for share in part["coverage"].values()]
        cells += [f"{part['interval_90_width_ms']:.1f}", f"{part['ece']:.3f}"]
        cells += [f"{value:.3f}" for value in part["relative_error"].values()]
        auc = "" if failure["auc"] is None else f"{failure['auc']:.3f}"
        cells += [f"{failure['brier']:.4f}", f"{failure['log_loss_bits']:.3f}", auc]
        rows.append([html.escape(method), *cells])
    return f"<h3>{html.escape(name)}: coverage of intervals, errors, failures</h3>" + _table(header, rows)


def _calibration(kinds: dict) -> str:
    text = (
        "<p>Fitted on what was held out of its training: the distribution is blurred by a normal of this "
        "deviation in log RTT, and so much of the training marginal is mixed in.</p>"
    )
    rows = [[html.escape(name), *(f"{value:g}" for value in kind.values())] for name, kind in kinds.items()]
    return text + _table(["about a", "spread", "share of the marginal", "questions"], rows)


def _strata(name: str, methods: dict, kinds: tuple[str, ...]) -> str:
    any_strata = next(iter(methods.values()))["strata"]
    groups = [(k, group) for k in kinds for group, part in any_strata[k].items() if part["measurements"]]
    rows = []
    for method, part in methods.items():
        values = [part["strata"][kind][group].get("medae_ms") for kind, group in groups]
        rows.append([html.escape(method), *("" if value is None else f"{value:.2f}" for value in values)])
    title = f"<h3>{html.escape(name)}: median absolute error, ms</h3>"
    return title + _table(["method", *(group for _, group in groups)], rows)


def _context(sizes: dict) -> str:
    rows = []
    for test, parts in sizes.items():
        for size, part in parts.items():
            figures = [f"{part[key]:.{digits}f}" for key, _, digits in HEADLINES if key in part]
            given = "full" if int(size) >= 1000 else size  # more than any context holds
            rows.append([html.escape(test), given, f"{part['measurements']:,}", *figures])
    return _table(["test", "given", "questions", *(title for _, title, _ in HEADLINES)], rows)


def _likelihood(likelihood: dict) -> list[str]:
    """Every order of the fields, cheapest first, with and without time."""
    parts = [
        f"<p>{likelihood['measurements']:,} measurements, each without context. A field's bits hold the "
        "token that names it; those of the result are over the codes of the RTT encoding.</p>"
    ]
    for key, title in (("with_time", "With time"), ("without_time", "Without time")):
        part = likelihood[key]
        fields = list(part["by_field"])
        orders = sorted(part["by_order"].items(), key=lambda item: item[1]["total"])
        rows = [
            [order, f"{bits['total']:.2f}", *(f"{bits[field]:.2f}" for field in fields)]
            for order, bits in orders
        ]
        mean = ["mean of the orders", ""] + [f"{part['by_field'][field]:.2f}" for field in fields]
        either = ["in any order", f"{part['any_order']:.2f}", *("" for _ in fields)]
        parts += [f"<h3>{title}</h3>", _table(["order", "total", *fields], [either, mean, *rows])]
    return parts


def _addresses(addresses: dict) -> list[str]:
    parts = [
        "<p>One end is asked about, the other is known. Byte accuracy is that of the first guess, given all "
        "bytes before it. Exact match: the right address is among the 1, 5 or 10 most probable completions "
        "of so many known bytes.</p>"
    ]
    for name, part in addresses.items():
        if "byte_accuracy" in part:
            rows = [
                ["byte accuracy", *(f"{share:.0%}" for share in part["byte_accuracy"])],
                ["bits", *(f"{bits:.2f}" for bits in part["byte_bits"])],
            ]
            positions = [str(position) for position in range(len(part["byte_accuracy"]))]
            title = f"<h3>{html.escape(name)}, {part['measurements']:,} questions, by position</h3>"
            parts += [title, _table(["", *positions], rows)]
        if "exact_match" in part:
            by_known = part["exact_match"]["by_known_bytes"]
            keys = list(next(iter(by_known.values())))
            rows = [
                [key.replace("_", " "), *(f"{shares[key]:.0%}" for shares in by_known.values())]
                for key in keys
            ]
            title = f"{html.escape(name)}, {part['exact_match']['questions']:,} questions, by known bytes"
            parts += [f"<h3>{title}: exact match</h3>", _table(["exact match", *by_known], rows)]
    return parts


def _proof(data: dict) -> str:
    keys = list(next(iter(data["tests"].values())))
    rows = [[html.escape(name), *(f"{part[key]:,}" for key in keys)] for name, part in data["tests"].items()]
    return _table(["test", *(key.replace("_", " ") for key in keys)], rows)
