"""Answers as text and as JSON."""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ping_llm.query.address_tree import Completions
from ping_llm.query.complete import Inverse
from ping_llm.query.consistency import Consistency
from ping_llm.query.distribution import RttDistribution
from ping_llm.query.generate import Generated
from ping_llm.query.model import RttAnswer
from ping_llm.schema import NO_REPLY
from ping_llm.tables import table

LEVELS = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
#: Of the year 9999.
LAST_SECOND = int(datetime.max.replace(tzinfo=UTC).timestamp())
_BARS = 14
_WIDTH = 40
_BLOCKS = " ▏▎▍▌▋▊▉█"


def rtt_values(answer: RttAnswer, below: float | None = None) -> dict[str, Any]:
    """What a program reads."""
    distribution, question = answer.distribution, answer.question
    values: dict[str, Any] = {
        "src": str(question.src),
        "dst": str(question.dst),
        "at": None if question.seconds is None else time_text(question.seconds),
        "failure": distribution.failure,
        "mean_ms": distribution.mean,
        "central_mean_ms": distribution.central_mean(),
        "quantiles_ms": {f"{level:g}": float(distribution.quantile(level)) for level in LEVELS},
        "context": {"given": answer.context_given, "used": answer.context_used},
        "notes": list(answer.notes),
    }
    if below is not None:
        of_replies = float(distribution.cdf(below))
        values["below"] = {
            "ms": below,
            "probability": of_replies * (1 - distribution.failure),
            "of_replies": of_replies,
        }
    return values


def rtt_text(answer: RttAnswer, below: float | None = None) -> str:
    """What a person reads: the probability of failure, quantiles and a histogram."""
    distribution, question = answer.distribution, answer.question
    when = "" if question.seconds is None else f" at {time_text(question.seconds)}"
    lines = [f"{question.src} → {question.dst}{when}"]
    if answer.context_given:
        lines.append(f"in the light of {answer.context_used} measurements")
    lines += [f"note: {note}" for note in answer.notes]
    lines.append(f"no reply   {percent(distribution.failure)}")
    quantiles = distribution.quantile(LEVELS)
    cells = [f"{100 * level:g} %: {ms(value)}" for level, value in zip(LEVELS, quantiles, strict=True)]
    lines.append("a reply takes less than")
    lines.append("  " + " · ".join(cells))
    central = distribution.central_mean()
    lines.append(f"  mean of the central 99 %: {ms(central)} (of all, to an hour: {ms(distribution.mean)})")
    if below is not None:
        share = float(distribution.cdf(below))
        lines.append(
            f"P(a reply in less than {below:g} ms) = {percent(share * (1 - distribution.failure))}, "
            f"{percent(share)} of the replies"
        )
    return "\n".join([*lines, "", histogram(distribution)])


def histogram(distribution: RttDistribution) -> str:
    """Bars over the central 98 %, evenly spaced where the range is narrow and by ratio where it is wide."""
    edges = bar_edges(distribution)
    shares = distribution.between(edges[:-1], edges[1:])
    labels = [f"{ms(low)} – {ms(high)}" for low, high in itertools.pairwise(edges)]
    width = max(map(len, labels))
    largest = max(shares.max(), 1e-9)
    return "\n".join(
        f"{label.rjust(width)}  {_bar(share / largest)} {percent(share)}"
        for label, share in zip(labels, shares, strict=True)
    )


def consistency_values(gap: Consistency) -> dict[str, Any]:
    return {
        "consistency": {
            "distance": gap.distance,
            "covered": gap.covered,
            "median_ms": gap.direct.median,
            "mixture_median_ms": gap.mixture.median,
        }
    }


def consistency_text(gap: Consistency) -> str:
    return (
        f"mixed over its addresses ({percent(gap.covered)} of the prefix): "
        f"median {ms(gap.mixture.median)}, no reply {percent(gap.mixture.failure)}; "
        f"the distribution functions differ by at most {gap.distance:.3f}"
    )


def completions_values(answer: Completions) -> dict[str, Any]:
    return {
        "completions": [{"address": str(one.address), "probability": one.probability} for one in answer.best],
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
        if limits is not None:
            least = limits[place]
            row.append(
                "" if least is None else f"light takes {ms(least)}" + (": impossible" if least > high else "")
            )
        rows.append(row)
    lines = [f"note: {note}" for note in answer.notes]
    lines += [table(rows)] if rows else []
    lines.append(f"together {percent(answer.covered)}; every other at most {percent(answer.bound)}")
    if not answer.exact:
        lines.append("note: too many are about as probable; the search ended early, the list may miss some")
    return "\n".join(lines)


def generated_values(made: Generated) -> dict[str, Any]:
    return {"histories": _histories(made), "notes": list(made.notes)}


def _histories(made: Generated) -> list[list[dict[str, Any]]]:
    return [
        [
            {
                "event_time": None if one.seconds is None else time_text(one.seconds),
                "src_addr": None if one.src is None else str(one.src),
                "dst_addr": None if one.dst is None else str(one.dst),
                "rtt": one.rtt,
            }
            for one in statements
        ]
        for statements in made.histories
    ]


def generated_text(made: Generated) -> str:
    rows = [
        [
            number,
            one["event_time"] or "",
            one["src_addr"] or "",
            one["dst_addr"] or "",
            "" if one["rtt"] is None else "no reply" if one["rtt"] == NO_REPLY else ms(one["rtt"]),
        ]
        for number, statements in enumerate(_histories(made))
        for one in statements
    ]
    lines = [f"note: {note}" for note in made.notes]
    lines.append(table(rows, ("history", "time", "source", "destination", "result")) if rows else "nothing")
    return "\n".join(lines)


def pairs_text(answers: Sequence[dict[str, Any]]) -> str:
    """One line a question, of what `rtt_values` gives."""
    levels = ("0.05", "0.5", "0.95")
    rows = [
        (
            one["src"],
            one["dst"],
            one["at"] or "",
            f"{percent(one['failure']):>8}",
            *(f"{ms(one['quantiles_ms'][level]):>8}" for level in levels),
            one["context"]["used"],
        )
        for one in answers
    ]
    header = ("source", "destination", "time", "no reply", "5 %", "median", "95 %", "known")
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


def time_text(seconds: int) -> str:
    if seconds >= LAST_SECOND:  # eight bytes can say more than a calendar
        return f"{seconds} s"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
