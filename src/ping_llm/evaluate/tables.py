"""The report's tables, and its chart of methods by kind of question.

The chart is HTML and CSS, so that its text keeps its size on a phone and its colours follow the page.
"""

import html
import math
from collections.abc import Mapping
from statistics import median

from ping_llm.evaluate.verdict import SUBJECTS, best_of, main_tests, number, subject_of, title_of

#: Metrics of the leaderboards: key in the report, title, and digits. Less is better for all of them.
HEADLINES = (
    ("medae_ms", "Median absolute error, ms", 2),
    ("mae_ms", "Mean absolute error, ms", 2),
    ("crps_ms", "CRPS, ms", 2),
    ("bits", "Bits per result", 3),
)

TABLE_STYLE = """
tr.subject td { background: var(--tint); font-weight: 600; } td.best { color: var(--good); font-weight: 700; }
td small { font-weight: 400; white-space: nowrap; }
"""


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return an HTML table; cells are HTML, the first of a row is its name; the subject's row is marked."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    names = [row[0] for row in rows]
    subject = next((name for name in SUBJECTS if name in names), None)
    body = []
    for row in rows:
        cells = "".join(cell if cell.startswith("<td") else f"<td>{cell}</td>" for cell in row)
        body.append(f"<tr class={'subject' if row[0] == subject else 'other'}>{cells}</tr>")
    rows_html = "".join(body)
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{rows_html}</tbody></table></div>"


def leaderboard(result: dict, metric: str, digits: int) -> str:
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
            best = best_of(split, metric)
            kind = " class=best" if best and best.method == method else ""
            row.append(f"<td{kind}>{part[metric]:.{digits}f}{small}</td>")
        rows.append(row)
    if metric == "bits" and any("entropy_bits" in split.get("truth", {}) for split in splits.values()):
        entropies = (split.get("truth", {}).get("entropy_bits") for split in splits.values())
        rows.append(["the truth's entropy", *("" if e is None else f"{e:.{digits}f}" for e in entropies)])
    asked = result["data"]["asked"]
    sizes = [[key, *(f"{asked[name][key]:,}" for name in splits)] for key in ("questions", "sources")]
    return table(["method", *splits], [*rows, *sizes])


def choices(splits: dict) -> str:
    """Return how often each method chose the fastest of ten destinations, and the cost, as a table."""
    tests = [name for name, split in splits.items() if any("choice" in part for part in split.values())]
    rows = []
    for method in dict.fromkeys(name for test in tests for name in splits[test]):
        row = [html.escape(method)]
        for test in tests:
            made = splits[test].get(method, {}).get("choice")
            row.append("" if made is None else f"{made['right']:.0%}, {made['regret_ms']:.1f} ms")
        rows.append(row)
    sets = [
        next(str(part["choice"]["sets"]) for part in splits[test].values() if "choice" in part)
        for test in tests
    ]
    text = (
        "<p>Of ten destinations of a source, the one with the least expected RTT is chosen (no reply costs "
        "1,000 ms): how often it was the fastest, and how much slower it was on average.</p>"
    )
    return text + table(["method", *tests], [*rows, ["sets of ten", *sets]]) if tests else ""


def details(split: tuple[str, dict]) -> str:
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
    return f"<h3>{html.escape(name)}: coverage of intervals, errors, failures</h3>" + table(header, rows)


def stack(kinds: dict) -> str:
    """Return the weights of each kind of question with the most context, and the calibration, as a table."""
    text = (
        "<p>Fitted on questions that were held out of the training. The weights are those of questions with "
        "the most known measurements. The network is first blurred by a normal of the given spread in log "
        "RTT; the mixture's distribution function F becomes σ(shift + scale · logit F).</p>"
    )
    rows = []
    for name, kind in kinds.items():
        order = sorted(kind["weights"][-1].items(), key=lambda item: -item[1])
        shown = ", ".join(f"{component} {weight:.2f}" for component, weight in order if weight >= 0.02)
        numbers = [f"{kind[key]:.2f}" for key in ("spread", "shift", "scale")]
        rows.append(
            [
                html.escape(name),
                html.escape(shown),
                *numbers,
                html.escape(", ".join(dict.fromkeys(kind["point"]))),
            ]
        )
    return text + table(["kind of question", "weights", "spread", "shift", "scale", "single number"], rows)


def strata(name: str, methods: dict, kinds: tuple[str, ...]) -> str:
    any_strata = next(iter(methods.values()))["strata"]
    groups = [(k, group) for k in kinds for group, part in any_strata[k].items() if part["measurements"]]
    rows = []
    for method, part in methods.items():
        values = [part["strata"][kind][group].get("medae_ms") for kind, group in groups]
        rows.append([html.escape(method), *("" if value is None else f"{value:.2f}" for value in values)])
    title = f"<h3>{html.escape(name)}: median absolute error, ms</h3>"
    return title + table(["method", *(group for _, group in groups)], rows)


def by_context_size(sizes: dict) -> str:
    rows = []
    for test, parts in sizes.items():
        for size, part in parts.items():
            figures = [f"{part[key]:.{digits}f}" for key, _, digits in HEADLINES if key in part]
            given = "full" if int(size) >= 1000 else size  # more than any context holds
            rows.append([html.escape(test), given, f"{part['measurements']:,}", *figures])
    return table(["test", "given", "questions", *(title for _, title, _ in HEADLINES)], rows)


def likelihood_tables(figures: dict) -> list[str]:
    """Return tables of the bits of every order of the fields, fewest first, with and without time."""
    parts = [
        f"<p>{figures['measurements']:,} measurements, each without context. A field's bits hold the "
        "token that names it; those of the result are over the codes of the RTT encoding.</p>"
    ]
    for key, title in (("with_time", "With time"), ("without_time", "Without time")):
        part = figures[key]
        fields = list(part["by_field"])
        orders = sorted(part["by_order"].items(), key=lambda item: item[1]["total"])
        rows = [
            [order, f"{bits['total']:.2f}", *(f"{bits[field]:.2f}" for field in fields)]
            for order, bits in orders
        ]
        mean = ["mean of the orders", ""] + [f"{part['by_field'][field]:.2f}" for field in fields]
        either = ["in any order", f"{part['any_order']:.2f}", *("" for _ in fields)]
        parts += [f"<h3>{title}</h3>", table(["order", "total", *fields], [either, mean, *rows])]
    if "all_fields" in figures:
        bits = figures["all_fields"]["by_field"] | {
            "result, if no optional field is stated": figures["all_fields"]["result_without"]
        }
        rows = [[name, f"{value:.2f}"] for name, value in bits.items()]
        parts += ["<h3>With all fields, in the order of questions</h3>", table(["field", "bits"], rows)]
    return parts


def address_tables(addresses: dict) -> list[str]:
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
            parts += [title, table(["", *positions], rows)]
        if "exact_match" in part:
            by_known = part["exact_match"]["by_known_bytes"]
            keys = list(next(iter(by_known.values())))
            rows = [
                [key.replace("_", " "), *(f"{shares[key]:.0%}" for shares in by_known.values())]
                for key in keys
            ]
            title = f"{html.escape(name)}, {part['exact_match']['questions']:,} questions, by known bytes"
            parts += [f"<h3>{title}: exact match</h3>", table(["exact match", *by_known], rows)]
    return parts


def proof(data: dict) -> str:
    keys = list(next(iter(data["tests"].values())))
    rows = [[html.escape(name), *(f"{part[key]:,}" for key in keys)] for name, part in data["tests"].items()]
    return table(["test", *(key.replace("_", " ") for key in keys)], rows)


#: Metrics of the chart: key in the report, name on the switch, unit of the axis.
METRICS = (
    ("crps_ms", "CRPS", "ms"),
    ("bits", "Bits per result", "bits"),
    ("medae_ms", "Typical error", "ms"),
)

#: Largest end of an axis, in medians of the methods' values: one bad method does not squeeze the others.
_LONGEST = 3.0

PANEL_STYLE = """
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
.panel { margin: 0; padding: .8rem 1rem; background: var(--card); border-radius: 8px; min-width: 0; }
.panel h3 { margin: 0; }
.panel table { width: 100%; margin-top: .5rem; font-size: .87rem; line-height: 1.35; }
.panel th, .panel td { background: none; border: 0; padding: .1rem 0; vertical-align: middle; }
.panel th { text-align: left; font-weight: 400; white-space: nowrap; padding-right: .8rem; }
.panel td.value { padding-left: .8rem; white-space: nowrap; }
.panel td.track { position: relative; width: 100%; height: 1.4rem; border-right: 1px solid var(--line);
  background: repeating-linear-gradient(to right, var(--line) 0 1px, transparent 1px var(--step)); }
.track i { position: absolute; top: 50%; transform: translate(-50%, -50%); }
.track .range { height: 2px; transform: translate(0, -50%); background: var(--soft); opacity: .55; }
.track .dot { width: 9px; height: 9px; border-radius: 50%; background: var(--soft); }
.track .off { font-style: normal; transform: translate(-100%, -50%); color: var(--soft); padding-right: 2px; }
.track .ours { width: 0; height: 100%; border-left: 1px dashed var(--accent); }
.panel tr.subject th, .panel tr.subject td { font-weight: 700; color: var(--accent); }
.panel tr.subject td.value { background: none; }
.subject .dot { width: 13px; height: 13px; background: var(--accent); }
.subject .range { height: 3px; background: var(--accent); }
.panel .best:not(.subject) .value { font-weight: 700; color: var(--good); }
.panel .best:not(.subject) .dot { background: var(--good); }
.panel .truth th, .panel .truth td { color: var(--soft); font-style: italic; }
.panel .truth .dot { background: var(--page); border: 2px solid var(--soft); }
.panel tr.ticks td { background: none; border: 0; font-size: .8rem; color: var(--soft); height: 1.2rem; }
.ticks .track i { font-style: normal; }
.switch { position: absolute; opacity: 0; }
.switch + label { display: inline-block; padding: .2rem .8rem; margin: 0 .3rem .8rem 0; cursor: pointer;
  border: 1px solid var(--line); border-radius: 1rem; }
.switch:checked + label { color: var(--page); background: var(--accent); border-color: var(--accent); }
.switch:focus-visible + label { outline: 2px solid var(--accent); outline-offset: 2px; }
""" + "".join(f"#show-{key}:not(:checked) ~ .{key} {{ display: none; }}\n" for key, _, _ in METRICS)


def picture(result: Mapping) -> str:
    """Return a panel per kind of question with sorted methods; a switch without script selects the metric."""
    subject = subject_of(result)
    tests = main_tests(result["splits"])
    asked = (result.get("data") or {}).get("asked") or {}
    parts = []
    for index, (metric, name, _) in enumerate(METRICS):
        checked = "" if index else " checked"
        parts.append(
            f'<input class=switch type=radio name=metric id="show-{metric}"{checked}>'
            f'<label for="show-{metric}">{name}</label>'
        )
    for metric, _, unit in METRICS:
        panels = (
            _panel(test, result["splits"][test], metric, unit, subject, asked.get(test) or {})
            for test in tests
        )
        parts.append(f'<div class="panels {metric}">{"".join(panels)}</div>')
    return f"<div>{''.join(parts)}</div>"


def _panel(
    test: str, methods: Mapping[str, Mapping], metric: str, unit: str, subject: str | None, asked: Mapping
) -> str:
    counts = ", ".join(f"{asked[key]:,} {key}" for key in ("questions", "sources") if key in asked)
    title = f"<h3>{html.escape(title_of(test))}</h3><small>{counts}</small>"
    values = {name: part[metric] for name, part in methods.items() if part.get(metric) is not None}
    if not values:
        return f"<figure class=panel>{title}<p>No replies.</p></figure>"
    bounds = {name: (methods[name].get("intervals") or {}).get(metric) for name in values}
    low, high, step = axis(
        list(values.values()), [b for b in bounds.values() if b], values.get(subject or "")
    )

    def place(value: float) -> float:
        return min(max(100 * (value - low) / (high - low), 0.0), 100.0)

    best = best_of(methods, metric)
    ours = f'<i class=ours style="left:{place(values[subject]):.2f}%"></i>' if subject in values else ""
    rows = []
    for name in sorted(values, key=lambda name: values[name]):
        kind = "subject" if name == subject else "truth" if name == "truth" else ""
        kind += " best" if best and name == best.method else ""
        marks = ours
        if (within := bounds[name]) is not None:
            left, right = place(within[0]), place(within[1])
            marks += f'<i class=range style="left:{left:.2f}%;width:{right - left:.2f}%"></i>'
        if values[name] > high:
            marks += '<i class=off style="left:100%">▸</i>'
        else:
            marks += f'<i class=dot style="left:{place(values[name]):.2f}%"></i>'
        rows.append(
            f'<tr class="{kind.strip()}"><th scope=row>{html.escape(name)}</th><td class=track>{marks}</td>'
            f"<td class=value>{number(values[name])}</td></tr>"
        )
    ticks = "".join(
        f'<i style="left:{place(low + index * step):.2f}%">{low + index * step:g}</i>'
        for index in range(round((high - low) / step) + 1)
    )
    rows.append(f"<tr class=ticks><th></th><td class=track>{ticks}</td><td class=value>{unit}</td></tr>")
    grid = 100 * step / (high - low)
    return f'<figure class=panel>{title}<table style="--step:{grid:.4f}%">{"".join(rows)}</table></figure>'


def axis(values: list[float], bounds: list[list[float]], ours: float | None) -> tuple[float, float, float]:
    """Return both ends of an axis and the step of its ticks, all round numbers."""
    low, high = min([*values, *(b[0] for b in bounds)]), max([*values, *(b[1] for b in bounds)])
    high = min(high, max(_LONGEST * median(values), 1.2 * (ours or 0.0)))
    if low < high / 3:
        low = 0.0
    rough = max(high - low, 1e-3) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    low = math.floor(low / step) * step
    return low, max(math.ceil(high / step - 1e-9), math.floor(low / step) + 1) * step, step
