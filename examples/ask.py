"""Query a model: one question, many questions, and how unusual a result is.

    ping-llm demo                          # or any run of `ping-llm fit`
    python examples/ask.py runs/demo 80.248.148.119 218.184.153.7

Needs ping-llm[query].
"""

import sys

import ping_llm


def main(run: str, src: str, dst: str) -> None:
    model = ping_llm.load(run)

    answer = model.rtt(src, dst)
    low, middle, high = answer.distribution.quantile([0.05, 0.5, 0.95])
    print(f"{src} → {dst}: median {middle:.1f} ms, 90 % between {low:.1f} and {high:.1f} ms")
    print(f"no reply: {answer.failure:.1%}; P(RTT < 50 ms | reply) = {answer.distribution.cdf(50.0):.1%}")

    # Many at once: a table of pandas, polars or pyarrow, or a dictionary of columns. Prefixes are allowed.
    network = dst.rpartition(".")[0] + ".0/24"
    answers = model.rtt({"src_addr": [src, src], "dst_addr": [dst, network]})
    for row in answers.to_pylist():
        between = f"{row['q0.05']:.1f} and {row['q0.95']:.1f} ms"
        print(f"{row['dst_addr']}: best guess {row['point']:.1f} ms, 90 % between {between}")

    # How unusual 500 ms would be: bits of its millisecond bin, and the two-sided tail probability.
    print(f"500 ms: {answer.distribution.bits(500.0):.1f} bits, tail {answer.distribution.tail(500.0):.2g}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python examples/ask.py RUN SRC DST")
    main(*sys.argv[1:])
