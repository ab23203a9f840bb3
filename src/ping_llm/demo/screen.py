"""The demo's last screen."""

from typing import Any

from ping_llm.tables import table


def last_screen(summary: dict[str, Any], run: str) -> str:
    """What was learned, against the truth and against the simple ways; an answer; what to try next."""
    learned = summary["medae_ms"] * 2 <= summary["global_median_medae_ms"]
    ratio = summary["global_median_medae_ms"] / summary["medae_ms"]
    verdict = (
        f"The model's median error is {ratio:.1f} times smaller than the global median's: it has learned."
        if learned
        else f"The model's median error is only {ratio:.1f} times smaller than the global median's, and 2 "
        "is the least that this demo expects: it has NOT learned enough."
    )
    bits = [
        ("the truth (no model can do better)", summary["true_entropy_bits"]),
        ("the model", summary["bits_per_measurement"]),
        ("order 0 (one histogram for all)", summary["order0_bits"]),
    ]
    errors = [
        ("the pair's own history (its median)", summary["pair_history_medae_ms"]),
        ("the model", summary["medae_ms"]),
        ("global median", summary["global_median_medae_ms"]),
    ]
    example = summary["example"]
    return "\n".join(
        [
            "",
            f"ping-llm demo · {summary['questions']} held-out measurements of probes it has seen · "
            f"{summary['seconds']:.0f} s in all",
            "",
            "Bits per result (over 1-ms bins, failures included)",
            _indent(table([(name, f"{value:6.2f}") for name, value in bits])),
            "",
            "Median absolute error of the RTT, ms",
            _indent(table([(name, f"{value:6.2f}") for name, value in errors])),
            "",
            verdict,
            "",
            f"An example: {example['src']} → {example['dst']} at {example['at']}",
            _indent(
                f"model  median {example['model_median_ms']:.1f} ms, 80 % between "
                f"{example['model_p10_ms']:.1f} and {example['model_p90_ms']:.1f}, "
                f"P(no reply) {example['model_failure']:.3f}\n"
                f"truth  median {example['true_median_ms']:.1f} ms, 80 % between "
                f"{example['true_p10_ms']:.1f} and {example['true_p90_ms']:.1f}, "
                f"P(no reply) {example['true_failure']:.3f}\n"
                f"picture: {run}/answer.png"
            ),
            "",
            "What to try next",
            f"  .venv/bin/ping-llm query rtt {run} --src {example['src']} --dst {example['dst']}"
            f" --at {example['at']} --from-data {run}/rows",
            f"  .venv/bin/ping-llm batches show {run}/rows",
            "  .venv/bin/ping-llm tokens show",
            "  .venv/bin/ping-llm --help",
            "",
        ]
    )


def _indent(text: str) -> str:
    return "\n".join("  " + line for line in text.splitlines())
