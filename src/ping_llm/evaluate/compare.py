"""Reports side by side."""

from collections.abc import Sequence
from pathlib import Path

from ping_llm.errors import UsageError
from ping_llm.evaluate import report

METRICS = ("medae_ms", "mae_ms", "mse", "crps_ms", "bits", "ece", "interval_90_width_ms")


def compare(paths: Sequence[Path], metric: str) -> dict:
    """One metric of every method on every split that all reports can be asked about.

    Returns:
      {"metric", "reports": [names], "same_data": bool, "rows": [{"split", "method", "values", "intervals"}]}
      with one value and one interval a report, None where it does not have it.
    """
    if metric not in METRICS:
        raise UsageError(f"there is no metric {metric!r}; choose from: {', '.join(METRICS)}")
    reports = [report.read(path) for path in paths]
    splits = list(dict.fromkeys(split for one in reports for split in one["splits"]))
    rows = []
    for split in splits:
        methods = list(dict.fromkeys(m for one in reports for m in one["splits"].get(split, {})))
        for method in methods:
            parts = [one["splits"].get(split, {}).get(method, {}) for one in reports]
            values = [part.get(metric) for part in parts]
            bounds = [(part.get("intervals") or {}).get(metric) for part in parts]
            rows.append({"split": split, "method": method, "values": values, "intervals": bounds})
    fingerprints = {one["data"]["fingerprint"] for one in reports}
    return {
        "metric": metric,
        "reports": _names(paths),
        "same_data": len(fingerprints) == 1,
        "rows": rows,
    }


def cells(row: dict) -> list[str]:
    """A row's values as text, with their intervals; * marks the least where they differ."""
    values = [value for value in row["values"] if value is not None]
    differ = len(set(values)) > 1
    out = []
    for value, bounds in zip(row["values"], row["intervals"], strict=True):
        mark = "*" if differ and value == min(values) else ""
        within = f" ({bounds[0]:.2f}–{bounds[1]:.2f})" if bounds else ""
        out.append("" if value is None else f"{value:.3f}{mark}{within}")
    return out


def _names(paths: Sequence[Path]) -> list[str]:
    """The folders' names; whole paths where those do not tell reports apart."""
    folders = [path if path.is_dir() else path.parent for path in paths]
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]
