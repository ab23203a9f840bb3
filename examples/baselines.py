"""Compare simple methods, and a run if there is one, on held-out measurements.

    ping-llm simulate world -n 20000
    python examples/baselines.py world report            # add a run as a third argument

Needs ping-llm[query].
"""

import sys

import ping_llm

METHODS = ("global", "by source", "by destination", "prefixes", "pair median", "pair last")


def main(data: str, out: str, run: str | None = None) -> None:
    report = ping_llm.evaluate(data, out, run, queries=200, baselines=METHODS)
    for test, figures in report["splits"].items():
        best = min(figures, key=lambda name: figures[name]["bits"])
        print(f"{test}: best is {best} with {figures[best]['bits']:.2f} bits per result")
    print(f"open {out}/report.html")


if __name__ == "__main__":
    main(*sys.argv[1:])
