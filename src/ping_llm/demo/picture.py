"""One question's answer beside the truth, as a PNG."""

from pathlib import Path

import numpy as np

from ping_llm.files import whole_file


def draw_answer(
    path: Path,
    title: str,
    edges: np.ndarray,
    model: np.ndarray,
    truth: np.ndarray,
    observed: float,
) -> None:
    """Probabilities of bins given a reply.

    Args:
      edges: [n + 1] ms.
      model, truth: [n] probability of each bin.
      observed: the held-out RTT, ms, or -1.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4), dpi=120)
    axes.stairs(model, edges, fill=True, alpha=0.45, color="#1f77b4", label="model")
    axes.stairs(truth, edges, color="#d62728", linewidth=1.5, label="truth")
    if observed >= 0:
        axes.axvline(observed, color="black", linestyle=":", label=f"measured: {observed:.1f} ms")
    axes.set(xlabel="RTT, ms", ylabel="probability of each bin", title=title, xlim=(edges[0], edges[-1]))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.tight_layout()
    with whole_file(path) as aside:
        figure.savefig(aside, format="png")
    pyplot.close(figure)
