"""Pictures: numbers as numbers, and legends where no data are."""

import matplotlib
import numpy as np
import pytest

from ping_llm.pages import tidy_figure

matplotlib.use("Agg")


@pytest.mark.parametrize(("low", "high"), [(30.0, 90.0), (1.0, 10_000.0), (0.02, 0.9)])
def test_ticks_are_numbers_and_the_legend_is_off_the_data(low, high):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(layout="constrained")
    axes.plot(np.geomspace(low, high, 20), np.arange(20), label="measured")
    axes.set_xscale("log")
    axes.legend()
    tidy_figure(figure)
    figure.canvas.draw()
    ticks = [*axes.xaxis.get_ticklabels(), *axes.xaxis.get_ticklabels(minor=True)]
    left, right = axes.get_xlim()
    shown = [tick for tick in ticks if tick.get_text() and left <= tick.get_position()[0] <= right]
    assert len(shown) >= 2
    for tick in shown:
        assert float(tick.get_text().replace(",", "")) == pytest.approx(tick.get_position()[0])
    assert axes.get_legend() is None
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["measured"]
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())
    pyplot.close(figure)
