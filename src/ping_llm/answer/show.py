"""Formatting of answers as text and as JSON."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ping_llm.answer.conditions import COLUMNS
from ping_llm.answer.distribution import RttDistribution, RttDistributions
from ping_llm.answer.results import Completions, Inverse, RttAnswer
from ping_llm.measurements.schema import NO_REPLY
from ping_llm.measurements.times import moment_text, time_text
from ping_llm.tables import counted, table

if TYPE_CHECKING:
    from ping_llm.answer.complete import Consistency
    from ping_llm.answer.generate import Generated

LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_BARS = 14
_WIDTH = 40
_BLOCKS = " ▏▎▍▌▋▊▉█"


def rtt_values(answer: RttAnswer, below: float | None = None) -> dict[str, Any]:
    """Values of an answer for JSON; RTTs in ms. docs/queries.md describes every key."""
    distribution, question = answer.distribution, answer.question
    values: dict[str, Any] = {
        "src_addr": str(question.src),
        "dst_addr": str(question.dst),
        "event_time": None if question.time is None else moment_text(question.time),
        "failure": distribution.failure,
        "point": distribution.point,
        "median": distribution.median,
        "mean": distribution.mean,
        "quantiles": {f"{level:g}": float(distribution.quantile(level)) for level in LEVELS},
        "method": answer.method,
        "calibrated": answer.calibrated,
        "rests_on": answer.rests_on,
        "context": {"given": answer.context_given, "used": answer.context_used},
        "notes": list(answer.notes),
    }
    if question.conditions:
        values["conditions"] = question.conditions.stated
    if below is not None:
        of_replies = float(distribution.cdf(below))
        values["below"] = {
            "ms": below,
            "probability": of_replies * (1 - distribution.failure),
            "of_replies": of_replies,
        }
    return values


def observed_values(distribution: RttDistribution, rtt: float) -> dict[str, Any]:
    """Scores of an observed result, as in `evaluate --answers`; None where it is NaN."""
    if np.isnan(rtt):
        return {"rtt": None, "bits": None, "crps": None}
    crps = None
    if rtt != NO_REPLY:
        one = RttDistributions(distribution.edges[None], distribution.levels, np.zeros(1))
        crps = float(one.crps(np.array([rtt]))[0])
    return {"rtt": rtt, "bits": distribution.bits(rtt), "crps": crps}


def rtt_text(answer: RttAnswer, below: float | None = None) -> str:
    """An answer as text: its basis, the probability of no reply, quantiles and a histogram."""
    distribution, question = answer.distribution, answer.question
    when = "" if question.time is None else f" at {moment_text(question.time)}"
    stated = f", {question.conditions}" if question.conditions else ""
    lines = [f"{question.src} → {question.dst}{when}{stated}", *basis(answer)]
    lines += [f"note: {note}" for note in answer.notes]
    low, high = distribution.quantile([0.05, 0.95])
    lines += [
        "",
        f"best guess {ms(distribution.point)} · 90 % of replies between {ms(low)} and {ms(high)} · "
        f"no reply {percent(distribution.failure)}",
    ]
    quantiles = distribution.quantile(LEVELS)
    cells = [f"{100 * level:g} %: {ms(value)}" for level, value in zip(LEVELS, quantiles, strict=True)]
    lines += [f"share of replies below   {' · '.join(cells)}"]
    lines += [f"median {ms(distribution.median)} · mean {ms(distribution.mean)}"]
    if below is not None:
        share = float(distribution.cdf(below))
        lines.append(
            f"P(a reply in less than {below:g} ms) = {percent(share * (1 - distribution.failure))}, "
            f"{percent(share)} of the replies"
        )
    return "\n".join([*lines, "", histogram(distribution)])


def basis(answer: RttAnswer) -> list[str]:
    """Lines on what the answer is based on; the first line says if an end has never been measured."""
    known = answer.rests_on
    if not known:
        used = (
            f"{answer.context_used} measurements of the source" if answer.context_used else "no measurement"
        )
        return [f"the network alone, not calibrated; its context was {used}"]
    lines = []
    packaged = known.get("packaged", False)
    source = answer.knows_source
    if not source and not known["destination_trained"]:
        lines.append(
            "UNKNOWN ENDS: neither the source nor the destination has been measured; "
            "this is little more than the distribution of all RTTs"
        )
    elif not source:
        lines.append("unknown source: nothing has been measured from it")
    elif not answer.knows_destination:
        near = " (its network has)" if known["destination_network_trained"] else ", nor its network"
        lines.append(f"unknown destination: it has not been measured{near}")
    if packaged:
        tuned = ", tuned to these data" if known.get("tuned") else ""
        lines.append(
            f"base, the packaged model{tuned}: trained on other data, it answers from the measurements given"
        )
    pair, others = known["pair_measurements"], known["source_measurements"] - known["pair_measurements"]
    lines.append(
        f"based on {counted(pair, 'earlier measurement')} of this pair, {others:,} of the source to other "
        f"destinations, {known['destination_measurements']:,} of all sources to the destination "
        f"{'in the data' if packaged else 'in training'}"
    )
    if known["pair_observed"]:
        seen = known["pair_observed"]
        lines.append(
            f"this pair's replies so far: median {ms(seen['median'])}, {ms(seen['min'])} to {ms(seen['max'])}"
        )
    trained = [
        f"{name} {'yes' if known[f'{key}_trained'] else 'no'}"
        for name, key in (
            ("pair", "pair"), ("source", "source"), ("destination", "destination"),
            ("source network", "source_network"), ("destination network", "destination_network"),
        )
    ]  # fmt: skip
    # Of whole addresses: a prefix is never listed, though measurements in it are answered from.
    if all(end is None or end.is_whole for end in (answer.question.src, answer.question.dst)):
        lines.append(f"{'in the data' if packaged else 'trained on'}: {', '.join(trained)}")
    calibration = "not calibrated"
    if answer.calibrated:
        elsewhere = packaged and not known.get("tuned")
        calibration = "calibrated on held-out questions" + (" of other studies" if elsewhere else "")
    lines.append(f"kind of question: {known['kind']} · method: {answer.method} ({calibration})")
    return lines


def histogram(distribution: RttDistribution) -> str:
    """Histogram of the central 98 %, with bins of equal width, or of equal ratio if the range is wide."""
    edges = bar_edges(distribution)
    shares = distribution.between(edges[:-1], edges[1:])
    labels = [f"{ms(low)} – {ms(high)}" for low, high in itertools.pairwise(edges)]
    width = max(map(len, labels))
    largest = max(shares.max(), 1e-9)
    return "\n".join(
        f"{label.rjust(width)}  {_bar(share / largest)} {percent(share)}"
        for label, share in zip(labels, shares, strict=True)
    )


def consistency_values(gap: "Consistency") -> dict[str, Any]:
    return {
        "consistency": {
            "distance": gap.distance,
            "covered": gap.covered,
            "median_ms": gap.direct.median,
            "mixture_median_ms": gap.mixture.median,
        }
    }


def consistency_text(gap: "Consistency") -> str:
    return (
        f"mixture over its addresses ({percent(gap.covered)} of the prefix): "
        f"median {ms(gap.mixture.median)}, no reply {percent(gap.mixture.failure)}; "
        f"the distribution functions differ by at most {gap.distance:.3f}"
    )


def completions_values(answer: Completions) -> dict[str, Any]:
    return {
        "completions": [
            {"address": str(one.address), "probability": one.probability}
            | ({} if one.in_range is None else {"in_range": one.in_range})
            | (
                {}
                if one.measured is None
                else {"pair_measurements": one.measured, "pair_observed": one.observed}
            )
            for one in answer.best
        ],
        "covered": answer.covered,
        "bound": answer.bound,
        "exact": answer.exact,
        "notes": list(answer.notes),
    }


def inverse_values(answer: Inverse, limits: Sequence[float | None] | None, high: float) -> dict[str, Any]:
    values = {"probability": answer.probability, **completions_values(answer.completions)}
    if limits is not None:
        for one, limit in zip(values["completions"], limits, strict=True):
            one["least_rtt_ms"] = limit
            one["possible"] = limit is None or limit <= high
    return values


def completions_text(
    answer: Completions, limits: Sequence[float | None] | None = None, high: float = 0.0
) -> str:
    rows = []
    for place, one in enumerate(answer.best):
        row = [str(one.address), f"{percent(one.probability):>7}", _bar(one.probability).rstrip()]
        if one.in_range is not None:
            row[1:1] = [
                f"{percent(one.in_range):>7}",
                f"{one.measured:,}" if one.measured else "",
                "" if one.observed is None else ms(one.observed["median"]),
            ]
        if limits is not None:
            least = limits[place]
            row.append(
                "" if least is None else f"light takes {ms(least)}" + (": impossible" if least > high else "")
            )
        rows.append(row)
    lines = [f"note: {note}" for note in answer.notes]
    if rows and answer.best[0].in_range is not None:
        # P(in range) of each destination, and in the last column its share of the range's probability.
        header = ["destination", "P(in range)", "measured", "median", "share of the range"]
        header += [""] * (len(rows[0]) - len(header))
        lines.append(table(rows, header))
    else:
        lines += [table(rows)] if rows else []
    lines.append(f"together {percent(answer.covered)}; any other at most {percent(answer.bound)}")
    if not answer.exact:
        lines.append(
            "note: the search was cut short (--passes): others may be as probable as the last of these"
        )
    return "\n".join(lines)


def generated_values(made: "Generated") -> dict[str, Any]:
    return {"histories": _histories(made), "notes": list(made.notes)}


def _histories(made: "Generated") -> list[list[dict[str, Any]]]:
    return [
        [
            {
                "event_time": None if one.seconds is None else time_text(one.seconds),
                "src_addr": None if one.src is None else str(one.src),
                "dst_addr": None if one.dst is None else str(one.dst),
                "rtt": one.rtt,
                **{COLUMNS[name]: getattr(one, name) for name in made.optional},
            }
            for one in statements
        ]
        for statements in made.histories
    ]


def generated_text(made: "Generated") -> str:
    further = [COLUMNS[name] for name in made.optional]
    rows = [
        [
            number,
            one["event_time"] or "",
            one["src_addr"] or "",
            one["dst_addr"] or "",
            "" if one["rtt"] is None else "no reply" if one["rtt"] == NO_REPLY else ms(one["rtt"]),
            *("" if one[column] is None else one[column] for column in further),
        ]
        for number, statements in enumerate(_histories(made))
        for one in statements
    ]
    lines = [f"note: {note}" for note in made.notes]
    header = ("history", "time", "source", "destination", "result", *further)
    lines.append(table(rows, header) if rows else "nothing")
    return "\n".join(lines)


def pairs_text(answers: Sequence[dict[str, Any]]) -> str:
    """Table with one line per question, from `rtt_values`."""
    levels = ("0.05", "0.5", "0.95")
    rows = [
        (
            one["src_addr"],
            one["dst_addr"],
            one["event_time"] or "",
            f"{percent(one['failure']):>8}",
            *(f"{ms(one['quantiles'][level]):>8}" for level in levels),
            f"{ms(one['point']):>8}",
            one["rests_on"].get("kind", ""),
        )
        for one in answers
    ]
    header = ("source", "destination", "time", "no reply", "5 %", "median", "95 %", "best guess", "kind")
    return table(rows, header) if rows else "nothing"


def bar_edges(distribution: RttDistribution, bars: int = _BARS) -> np.ndarray:
    low, high = distribution.quantile([0.01, 0.99])
    high = max(high, low + 0.01)
    if high > 8 * max(low, 0.01):
        return np.geomspace(max(low, 0.01), high, bars + 1)
    return np.linspace(low, high, bars + 1)


def _bar(share: float) -> str:
    eighths = round(share * _WIDTH * 8)
    text = "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()
    return text.ljust(_WIDTH)


def ms(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f} ms"
    return f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 or share == 0 else "< 0.1 %"
