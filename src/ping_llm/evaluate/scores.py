"""Scores of answers: one record per query, and summaries with intervals.

The records are stored. Every figure of the report is computed from them, so a new figure needs no new
answers.
"""

import sys
import zipfile
import zlib
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path

import numpy as np

from ping_llm.answer.distribution import Predictive
from ping_llm.answer.rank import TIMEOUT_MS
from ping_llm.evaluate import metrics
from ping_llm.evaluate.metrics import Bootstrap
from ping_llm.files import whole_file
from ping_llm.measurements import addresses
from ping_llm.measurements.columns import Columns
from ping_llm.measurements.ids import Ids
from ping_llm.measurements.schema import HOUR_US, KINDS

#: Levels of the stored quantiles of an answer: the median and the ends of the 90, 80 and 50 % intervals.
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
_INTERVALS = {0.5: (2, 4), 0.8: (1, 5), 0.9: (0, 6)}
#: Levels that both `evaluate --answers` and `query rtt --json` write.
ANSWER_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)

#: Lower bounds of the RTT ranges, ms; the last range is open.
RTT_RANGES = (0, 10, 30, 60, 100, 150, 200, 300)


@dataclass(frozen=True)
class Scores:
    """Scores of answers, [n] each."""

    point: np.ndarray
    failure: np.ndarray
    bits: np.ndarray
    crps: np.ndarray
    pit: np.ndarray
    quantiles: np.ndarray  # [n, len(LEVELS)]

    @classmethod
    def of(cls, answers: Predictive, rtt: np.ndarray) -> "Scores":
        reply = np.maximum(rtt, 0.0)
        return cls(
            answers.point,
            answers.failure,
            answers.bits(rtt),
            answers.crps(reply),
            answers.cdf(reply),
            answers.quantile(list(LEVELS)),
        )

    @classmethod
    def concatenate(cls, parts: list["Scores"]) -> "Scores":
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))

    def take(self, index: np.ndarray) -> "Scores":
        return Scores(*(getattr(self, f.name)[index] for f in fields(self)))

    def save(self, path: Path) -> None:
        with whole_file(path) as aside, aside.open("wb") as file:
            np.savez_compressed(file, **{f.name: getattr(self, f.name) for f in fields(self)})

    @classmethod
    def stored(cls, path: Path, questions: int) -> "Scores | None":
        """Read the saved scores of this number of questions; None if the file is missing or damaged."""
        try:
            # Opened here, because np.load does not close a file whose zip directory is truncated.
            with path.open("rb") as file, np.load(file) as stored:
                found = cls(**{f.name: stored[f.name] for f in fields(cls)})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            say_damaged(path, error)
            return None
        if any(getattr(found, f.name).shape[:1] != (questions,) for f in fields(cls)):
            say_damaged(path, f"it must hold {questions:,} answers")
            return None
        return found


def say_damaged(path: Path, why: object) -> None:
    print(f"warning: {path} is damaged ({why}); it is computed again", file=sys.stderr)


def summary(scores: Scores, test: Columns, bootstrap: Bootstrap | None = None) -> dict:
    """Return every figure of a method on a test; `intervals` has 95 % bounds of the main ones, by source."""
    replied = test.replied
    out: dict = {"measurements": len(test), "replies": int(replied.sum())}
    if not replied.any():
        return out
    reply, rtt = scores.take(replied), test.rtt[replied]
    error = metrics.absolute_error(reply.point, rtt)
    relative = metrics.relative_error(reply.point, rtt)
    out |= {
        "bits": float(scores.bits.mean()),
        "medae_ms": float(np.median(error)),
        "mae_ms": float(error.mean()),
        "mse": metrics.mean_squared_error(reply.point, rtt),
        "crps_ms": float(reply.crps.mean()),
        "relative_error": {f"p{p}": float(np.percentile(relative, p)) for p in metrics.RELATIVE_PERCENTILES},
        "coverage": {
            f"{share:.0%}": metrics.coverage(reply.quantiles[:, low], reply.quantiles[:, high], rtt)
            for share, (low, high) in _INTERVALS.items()
        },
        "interval_90_width_ms": float(np.median(reply.quantiles[:, 6] - reply.quantiles[:, 0])),
        "ece": metrics.expected_calibration_error(reply.pit),
        "pit": [round(float(share), 5) for share in metrics.pit_histogram(reply.pit)],
        "failure": {
            "brier": metrics.brier(scores.failure, ~replied),
            "log_loss_bits": metrics.log_loss_bits(scores.failure, ~replied),
            "auc": _finite(metrics.auc(scores.failure, ~replied)),
            "calibration_error": metrics.failure_calibration_error(scores.failure, ~replied),
            "rate": float((~replied).mean()),
        },
    }
    expected = (1 - scores.failure) * scores.quantiles[:, 3] + scores.failure * TIMEOUT_MS
    true = np.where(replied, np.minimum(test.rtt, TIMEOUT_MS), TIMEOUT_MS)
    chosen = metrics.choice(expected, true, sources_of(test), Ids(test.dst).of_rows)
    if chosen is not None:
        out["choice"] = chosen
    if bootstrap is not None:
        low, high = _INTERVALS[0.9]
        inside = (reply.quantiles[:, low] <= rtt) & (rtt <= reply.quantiles[:, high])
        out["intervals"] = {
            "bits": bootstrap.mean(scores.bits),
            "medae_ms": bootstrap.median(error, replied),
            "mae_ms": bootstrap.mean(error, replied),
            "crps_ms": bootstrap.mean(reply.crps, replied),
            "relative_error_p50": bootstrap.median(relative, replied),
            "coverage_90%": bootstrap.mean(inside.astype(np.float64), replied),
            "brier": bootstrap.mean((scores.failure - ~replied) ** 2),
        }
    return out


def strata(scores: Scores, test: Columns) -> dict:
    """Return the main figures by IP version, range of the measured RTT, and hour of the day (UTC).

    Also by kind of measurement, if there is more than one.
    """
    ipv4 = addresses.is_ipv4(test.src)
    hour = (test.time // HOUR_US) % 24
    step = np.searchsorted(RTT_RANGES, np.maximum(test.rtt, 0), side="right") - 1
    names = [f"{a}–{b} ms" for a, b in pairwise(RTT_RANGES)]
    names.append(f"{RTT_RANGES[-1]} ms and more")
    out = {
        "ip_version": {n: short(scores, test, ipv4 == four) for n, four in (("IPv4", True), ("IPv6", False))},
        "rtt": {name: short(scores, test, test.replied & (step == i)) for i, name in enumerate(names)},
        "hour": {f"{h:02d}": short(scores, test, hour == h) for h in range(24)},
    }
    kind = test.column("kind")
    if len(np.unique(kind)) > 1:
        out["kind"] = {name: short(scores, test, kind == code) for code, name in enumerate(KINDS)}
    return out


def short(scores: Scores, test: Columns, chosen: np.ndarray) -> dict:
    """Return the main figures of the chosen questions."""
    replied = chosen & test.replied
    if not replied.any():
        return {"measurements": int(chosen.sum())}
    error = metrics.absolute_error(scores.point, test.rtt)[replied]
    return {
        "measurements": int(chosen.sum()),
        "bits": float(scores.bits[chosen].mean()),
        "medae_ms": float(np.median(error)),
        "mae_ms": float(error.mean()),
        "crps_ms": float(scores.crps[replied].mean()),
    }


def sources_of(test: Columns) -> np.ndarray:
    return Ids(test.src).of_rows


def _finite(value: float) -> float | None:
    return None if np.isnan(value) else value
