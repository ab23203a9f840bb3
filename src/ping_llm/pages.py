"""Layout of HTML pages and of figures.

Pages are self-contained and load nothing: one stylesheet for small and large screens, light and dark.
"""

import html
from typing import Any

STYLE = """
:root { color-scheme: light dark; --text: #1c2430; --soft: #5b6675; --page: #fff; --card: #f5f7f9;
  --line: #d9dfe5; --accent: #1a5fb4; --tint: #e8f0fa; --good: #1a7f37; --warn: #9a6700; --bad: #b42318; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e8ee; --soft: #9aa5b3; --page: #15181c; --card: #1e2228; --line: #353c45;
  --accent: #78aeed; --tint: #1d2c40; --good: #57c278; --warn: #d8a52f; --bad: #f2837a; }
  img { filter: invert(.9) hue-rotate(180deg); } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 70rem;
  margin: 2rem auto 4rem; padding: 0 1rem; -webkit-text-size-adjust: 100%; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; } h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
p { margin: .4rem 0; max-width: 52rem; } .note, small { color: var(--soft); }
.note { overflow-wrap: anywhere; }
a { color: var(--accent); } img { max-width: 100%; height: auto; border-radius: 4px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem 1.1rem .15rem 0; text-align: right; vertical-align: top; }
th { font-weight: 600; border-bottom: 1px solid var(--line); vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; white-space: nowrap; position: sticky; left: 0;
  background: var(--page); }
.scroll { overflow-x: auto; } .columns { display: flex; flex-wrap: wrap; gap: 0 3rem; }
"""


def document(title: str, body: str, style: str = "") -> str:
    """A complete HTML page with `body`; `style` is appended to the stylesheet."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}{style}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def tidy_figure(figure: Any, legend_below: bool = True) -> None:
    """Label logarithmic axes with plain numbers ("40", not "4 × 10¹"), and move the legend off the data.

    Args:
      legend_below: Whether to move legends below the plot, for figures with a constrained layout.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() != "log":
                continue
            axis.set_major_formatter(lambda value, _: f"{value:,g}")
            low, high = sorted(axis.get_view_interval())
            if low > 0 and high < 50 * low:  # one or two powers of ten alone are too few labels
                axis.set_minor_locator(LogLocator(subs=(2, 5)))
                axis.set_minor_formatter(lambda value, _: f"{value:,g}")
            else:
                axis.set_minor_formatter(NullFormatter())
        legend = axes.get_legend()
        if legend is not None and legend_below:
            names = [text.get_text() for text in legend.get_texts()]
            handles = legend.legend_handles
            legend.remove()
            columns = max(1, min(len(names), 100 // max(map(len, names))))
            figure.legend(
                handles, names, loc="outside lower center", ncols=columns, fontsize=8, frameon=False
            )
