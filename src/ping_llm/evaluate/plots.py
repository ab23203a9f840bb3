"""The report's pictures."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from ping_llm.evaluate import metrics
from ping_llm.evaluate.scores import Scores
from ping_llm.evaluate.verdict import main_tests, title_of
from ping_llm.files import whole_file
from ping_llm.measurements.columns import Columns
from ping_llm.pages import tidy_figure

AllScores = Mapping[str, Mapping[str, Scores]]

_STYLE = {
    "stack": ("black", 2.4),
    "model": ("black", 2.4),
    "network": ("#7a00cc", 2.0),
    "truth": ("tab:gray", 2.0),
}
#: Methods with a PIT histogram: those of all methods would hide each other.
_PIT_METHODS = ("stack", "model", "network", "pair last", "dmfsgd", "global", "truth")


def draw(out: Path, result: dict, scores: AllScores, asked: Mapping[str, Columns]) -> list[tuple[str, str]]:
    """Write the PNGs; return the file name and caption of each."""
    pictures = [
        ("error_cdf.png", "Share of the replies whose absolute error is below x", _error_cdf),
        (
            "calibration.png",
            "Share of results below a predicted quantile; the diagonal is right",
            _calibration,
        ),
        (
            "pit.png",
            "Where results fall in their predicted distribution; flat is right (bars end at 3)",
            _pit,
        ),
        ("context.png", "Median absolute error by number of known measurements", _context),
    ]
    done = []
    for name, caption, function in pictures:
        figure = function(result, scores, asked)
        if figure is None:
            continue
        tidy_figure(figure, legend_below=False)
        with whole_file(out / name) as aside:
            figure.savefig(aside, format="png", dpi=110, bbox_inches="tight")
        plt.close(figure)
        done.append((name, caption))
    return done


def _panels(tests: list[str]):
    """Make one panel per test, two per row: four would be too small to read on a phone."""
    columns = min(2, len(tests))
    rows = -(-len(tests) // columns)
    figure, grid = plt.subplots(rows, columns, figsize=(4.6 * columns, 3.5 * rows), squeeze=False)
    figure.subplots_adjust(hspace=0.4)
    axes = list(grid.flat)
    for axis in axes[len(tests) :]:
        axis.remove()
    for axis, name in zip(axes, tests, strict=False):
        axis.set_title(title_of(name), fontsize=10)
        axis.grid(alpha=0.3)
    return figure, axes[: len(tests)]


def _line(axis, name: str, index: int, x, y, **more) -> None:
    colour, width = _STYLE.get(name, (plt.get_cmap("tab20")(index % 20), 1.2))
    axis.plot(x, y, color=colour, lw=width, label=name, **more)


def _error_cdf(result: dict, scores: AllScores, asked: Mapping[str, Columns]):
    tests = main_tests(scores)
    figure, axes = _panels(tests)
    for axis, test in zip(axes, tests, strict=True):
        replied = asked[test].replied
        for index, (name, part) in enumerate(scores[test].items()):
            error = np.sort(metrics.absolute_error(part.point, asked[test].rtt)[replied])
            _line(axis, name, index, np.maximum(error, 0.01), (np.arange(len(error)) + 1) / len(error))
        axis.set_xscale("log")
        axis.set_xlim(0.05, 500)
        axis.set_xlabel("absolute error, ms")
    axes[-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _calibration(result: dict, scores: AllScores, asked: Mapping[str, Columns]):
    tests = main_tests(scores)
    figure, axes = _panels(tests)
    levels = np.linspace(0, 1, 41)
    for axis, test in zip(axes, tests, strict=True):
        replied = asked[test].replied
        axis.plot([0, 1], [0, 1], color="black", lw=0.7, ls=":")
        for index, (name, part) in enumerate(scores[test].items()):
            _line(axis, name, index, levels, metrics.calibration_curve(part.pit[replied], levels))
        axis.set_xlabel("predicted probability")
    axes[0].set_ylabel("observed share")
    axes[-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _pit(result: dict, scores: AllScores, asked: Mapping[str, Columns]):
    tests = main_tests(scores)
    figure, axes = _panels(tests)
    for axis, test in zip(axes, tests, strict=True):
        shown = [name for name in _PIT_METHODS if name in scores[test]]
        for index, name in enumerate(shown or list(scores[test])[:4]):
            share = np.array(result["splits"][test][name].get("pit", []))
            if len(share):
                edges = np.linspace(0, 1, len(share) + 1)
                colour, width = _STYLE.get(name, (plt.get_cmap("tab10")(index), 1.4))
                axis.stairs(share * len(share), edges, color=colour, lw=width, label=name)
        axis.axhline(1, color="black", lw=0.7, ls=":")
        axis.set_ylim(0, 3)
        axis.set_xlabel("F(result)")
    axes[-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _context(result: dict, scores: AllScores, asked: Mapping[str, Columns]):
    known = [name for name in scores if name.startswith("sources")]
    sizes = result["by_context_size"]
    panels = (["New sources"] if known else []) + list(sizes)
    if not panels:
        return None
    figure, axes = _panels(panels)
    if known:
        counts = [int(name.split()[1]) for name in known]
        for index, name in enumerate(scores[known[0]]):
            values = [result["splits"][test][name].get("medae_ms", np.nan) for test in known]
            _line(axes[0], name, index, counts, values, marker="o", ms=3)
        axes[0].set_xlabel("known measurements of the source")
    asked_alone = "network" if any("network" in methods for methods in scores.values()) else "model"
    for axis, test in zip(axes[len(panels) - len(sizes) :], sizes, strict=True):
        counts = [int(size) for size in sizes[test]]
        values = [part.get("medae_ms", np.nan) for part in sizes[test].values()]
        _line(axis, asked_alone, 0, counts, values, marker="o", ms=3)
        axis.set_xlabel("measurements in the context")
    for axis in axes:
        axis.set_xscale("symlog", linthresh=1)
        axis.set_ylim(bottom=0)
    axes[0].set_ylabel("median absolute error, ms")
    lines, names = axes[0].get_legend_handles_labels()
    axes[-1].legend(lines, names, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
