"""Texts that `fit` and `calibrate` print at the end."""

from pathlib import Path
from typing import Any

from ping_llm.answer.questions import AMOUNTS, NAMES
from ping_llm.answer.stack import Stack
from ping_llm.evaluate.report import HEADLINES, leaderboard
from ping_llm.evaluate.verdict import headline
from ping_llm.tables import table


def summary_text(result: dict[str, Any], run: Path) -> str:
    """Text with the verdict, leaderboards, and three questions as commands that work as pasted."""
    lines = ["", *headline(result), ""]
    for metric, title, digits in HEADLINES:
        header, rows = leaderboard(result, metric, digits)
        lines += [f"{title} (* best)", table(rows, header), ""]
    if result["final"]:
        lines += [
            "Then the model was trained further on all the data: the figures above are of the model before.",
            "",
        ]
    lines.append("Ask it:")
    for one in result["examples"]:
        command = f"ping-llm query rtt {run} --src {one['src']} --dst {one['dst']} --at {one['at']}"
        lines.append(f"  {command}   # {one['about']}")
    seconds = result["seconds"]
    spent = ", ".join(f"{step} {value:.0f} s" for step, value in seconds.items())
    lines += [
        "",
        f"{sum(seconds.values()) / 60:.0f} minutes: {spent}",
        f"report: {run / 'report/report.html'}",
    ]
    return "\n".join(lines)


def stack_text(stack: Stack) -> str:
    """Table of the weights by kind of question, for the largest amount of context, and the calibration."""
    rows = []
    for kind, name in enumerate(NAMES):
        weights = stack.weights[(kind + 1) * AMOUNTS - 1]
        order = sorted(zip(weights, stack.components, strict=True), reverse=True)
        shown = ", ".join(f"{component} {weight:.2f}" for weight, component in order if weight >= 0.05)
        figures = stack.about.get("held_out", {}).get(name, {})
        rows.append(
            (
                name,
                figures.get("questions", 0),
                figures.get("ends", 0),
                f"{figures['inside_90']:.0%}" if figures else "",
                f"{stack.scale[kind]:.2f}",
                shown,
            )
        )
    return table(rows, ("kind of question", "held out", "ends", "in 90 %", "scale", "weights"))
