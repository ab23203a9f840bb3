"""Reasons why a run's answers cannot be meaningful, for warnings of `train`, `query` and `doctor`."""

from pathlib import Path

from ping_llm.doctor import Finding
from ping_llm.errors import PingError, UsageError
from ping_llm.model import export, ledger
from ping_llm.rows.manifest import load_manifest
from ping_llm.rows.store import RowStore

#: Smallest number of measurements that a fit accepts; a model trained on fewer only repeats them.
FEWEST_MEASUREMENTS = 300
#: Smallest number of training steps; before it, the learning rate has hardly risen.
FEWEST_STEPS = 100


def about_data(measurements: int) -> str | None:
    """Return a warning if these are too few measurements to learn from."""
    if measurements >= FEWEST_MEASUREMENTS:
        return None
    return (
        f"only {measurements:,} measurements to learn from: answers cannot be meaningful below "
        f"{FEWEST_MEASUREMENTS}"
    )


def about_steps(steps: int) -> str | None:
    """Return a warning if these are too few training steps."""
    if steps >= FEWEST_STEPS:
        return None
    return f"trained for {steps:,} steps only: answers cannot be meaningful below {FEWEST_STEPS}"


def measurements_of(rows: str | Path) -> int | None:
    """Number of measurements of probe rows; None if they cannot be read."""
    try:
        return int(load_manifest(Path(rows))["counts"]["measurements"])
    except (PingError, OSError, KeyError, TypeError, ValueError):
        return None


def doubts(source: str | Path) -> tuple[str, ...]:
    """Warnings about a run whose answers cannot be meaningful; none if nothing is known of its training."""
    known = export.run_facts(Path(source))
    found = []
    if isinstance(known.get("step"), int):
        found.append(about_steps(known["step"] + 1))
    data = known.get("data") or {}
    if data.get("rows") and (measurements := measurements_of(data["rows"])) is not None:
        found.append(about_data(measurements))
    return tuple(filter(None, found))


def examine_run(run: Path) -> list[Finding]:
    """Check whether a run's answers can be meaningful, and whether the files that they need exist."""
    facts = export.run_facts(run)
    if not facts:
        raise UsageError(f"{run} is not a run: it has no {export.RUN}")
    steps = int(facts.get("step", -1)) + 1
    kept = ledger.steps(run / "checkpoints")
    fault = ledger.Ledger(run).fault(kept[-1]) if kept else "none"
    stack = (run / export.STACK / "stack.json").is_file()
    doubt = about_steps(steps)
    findings = [
        Finding("training", f"{facts.get('state')}, {steps:,} steps", "broken" if doubt else "ok",
                doubt or "meaningful answers", "train on" if doubt else ""),
        Finding("newest checkpoint", fault or f"step {kept[-1]:,}", "broken" if fault else "ok",
                "answers and resuming", "an earlier checkpoint is used if there is one" if fault else ""),
        Finding("stack", "yes" if stack else "none", "ok" if stack else "missing", "calibrated answers",
                "" if stack else f"ping-llm calibrate {run} --data MEASUREMENTS"),
    ]  # fmt: skip
    for name, purpose in (
        ("data", "rows it was trained on"),
        ("context_data", "rows that answers look back on"),
    ):
        if name not in facts:
            continue
        rows = facts[name].get("rows", "")
        try:
            same = RowStore(rows).fingerprint == facts[name].get("fingerprint")
            found, state = (rows, "ok") if same else (f"{rows} has changed", "differs")
        except (PingError, OSError):
            found, state = f"not at {rows}", "missing"
        few = measurements_of(rows)
        doubt = None if few is None else about_data(few)
        findings.append(Finding(purpose, found, "broken" if doubt else state, doubt or "contexts of answers"))
    return findings
