"""The outcome of an evaluation in words: one verdict per test, and what a simpler method does better.

Two scores decide, CRPS and bits per result, because both judge the whole distribution. A difference of up
to 1 % counts as level.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeGuard

_TITLES = {
    "later": "Pairs seen in training",
    "pairs": "New pairs of known ends",
    "destinations": "New destinations",
}

METHODS = {
    "global": "one histogram of all results",
    "by source": "the source's own results",
    "by destination": "the destination's own results",
    "prefixes": "the median between prefixes",
    "vivaldi": "Vivaldi coordinates",
    "dmfsgd": "matrix factorisation",
    "neighbours": "similar sources",
    "boosted": "gradient boosting",
    "embeddings": "learned embeddings",
    "relations": "related results",
    "relations tuned": "related results, tuned",
    "pair trained": "the pair's median in training",
    "pair hour": "the pair's median at that hour",
    "pair median": "the pair's median",
    "pair weighted": "the pair's weighted mean",
    "pair recent": "the median of the pair's last 8",
    "pair last": "the pair's last value",
    "network": "the network alone",
    "model": "the model",
    "stack": "the network mixed with simple methods",
    "truth": "the simulator's own distribution",
}


def main_tests(tests: Iterable[str]) -> list[str]:
    """Choose one test per kind of question; of new sources the one with 10 known measurements, else the last.

    Of new destinations it is the test without known measurements.
    """
    chosen: dict[str, str] = {}
    for test in tests:
        kind = kind_of(test)
        if chosen.get(kind) not in ("sources, 10 known", "destinations"):
            chosen[kind] = test
    return list(chosen.values())


def kind_of(test: str) -> str:
    """Return the kind of a test: "sources" for "sources, 10 known"."""
    return test.split(",")[0]


def title_of(test: str) -> str:
    """Return a test's name in words."""
    known = re.fullmatch(r"(sources|destinations), (\d+) known", test)
    if known is None:
        return _TITLES.get(test, test)
    count = int(known[2])
    return f"New {known[1]} with {count or 'no'} known measurement{'' if count <= 1 else 's'}"


def method_words(method: str, test: str) -> str:
    """Return a method in words, followed by its name if that differs."""
    if method in ("network", "model", "stack"):
        return METHODS[method]
    words = METHODS.get(method)
    if method.startswith("pair ") and test != "later":  # fallback for a pair without earlier results
        words = "the source's median" if test == "destinations" else "the destination's median"
    return f"{words} ({method})" if words else method


def number(value: float) -> str:
    """Format a number with three digits, so that 1 % can be seen."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3}f}"


def titles_of(tests: list[str]) -> str:
    """Return the names of tests in words, those of new sources as one."""
    counts = [m[1] for test in tests if (m := re.fullmatch(r"sources, (\d+) known", test))]
    words = [title_of(test) for test in tests if kind_of(test) != "sources" or not counts]
    if counts:
        words.append(f"new sources with {', '.join(counts)} known")
    return ", ".join(word[0].lower() + word[1:] for word in words)


#: Judged method: the first of these that the report has. "stack" is the network mixed with simple methods.
SUBJECTS = ("stack", "model", "network")

#: Scores that decide a verdict.
DECISIVE = ("crps_ms", "bits")

#: Ratio of two scores above which the method with the lower one wins.
MARGIN = 1.01

#: Range of the coverage of a 90 % interval; outside, it is called too narrow or too wide.
_COVERAGE = (0.85, 0.95)

#: Numbers of questions and sources below which a sentence names them, since figures are uncertain.
_FEW_QUESTIONS, _FEW_SOURCES = 100, 10

#: Name of the simulator's own distribution: it is the lower bound of every score and does not compete.
_TRUTH = "truth"

Outcome = Literal["better", "level", "worse", "alone", "no subject", "no replies"]


class Best(NamedTuple):
    """The method with the least value of a metric."""

    method: str
    value: float


class Loss(NamedTuple):
    """A decisive score in which another method is better."""

    method: str
    metric: str
    ours: float
    theirs: float


@dataclass(frozen=True)
class Verdict:
    """The result of the subject on one test.

    Attributes:
      test: name in the report, such as "sources, 10 known".
      title: name in words.
      sentence: the verdict, plain text.
      subject: what was judged; None if this test has only baselines.
      figures: the subject's figures; empty without a subject.
      best_other: by metric, the best method besides the subject and the truth.
      losses: decisive scores in which another method is better by more than 1 %.
      outcome: "better" than all others, "level" with the best, "worse" than one of them; "alone" without
        others, "no subject" with baselines only, "no replies" without a figure to compare.
    """

    test: str
    title: str
    sentence: str
    subject: str | None
    figures: Mapping
    best_other: Mapping[str, Best]
    losses: tuple[Loss, ...]
    outcome: Outcome

    @property
    def wins(self) -> bool:
        return self.outcome == "better"

    @property
    def kind(self) -> str:
        return kind_of(self.test)


def subject_of(result: Mapping) -> str | None:
    """Return the method that the report is about; None if it has baselines only."""
    names = {name for split in result["splits"].values() for name in split}
    return next((name for name in SUBJECTS if name in names), None)


def verdicts(result: Mapping) -> list[Verdict]:
    """Return one verdict per test, in the report's order."""
    subject = subject_of(result)
    asked = (result.get("data") or {}).get("asked") or {}
    return [
        _verdict(test, methods, subject, asked.get(test) or {}) for test, methods in result["splits"].items()
    ]


def main_verdicts(found: list[Verdict]) -> list[Verdict]:
    """Return one verdict per kind of question and, if that is not a loss, the first loss of the kind."""
    main = main_tests(verdict.test for verdict in found)
    lost = {verdict.kind for verdict in found if verdict.test in main and verdict.losses}
    chosen = []
    for verdict in found:
        if verdict.losses and verdict.kind not in lost:
            lost.add(verdict.kind)
            chosen.append(verdict)
        elif verdict.test in main:
            chosen.append(verdict)
    return chosen


def headline(result: Mapping) -> list[str]:
    """Return lines of plain text: the outcome, one sentence per kind of question, then the report's notes.

    If the run was trained on the tests, the first line is the warning.
    """
    found = verdicts(result)
    sentences = [verdict.sentence for verdict in main_verdicts(found)]
    return [*filter(None, [result.get("warning")]), overall(found), *sentences, *notes(result)]


def notes(result: Mapping) -> list[str]:
    return [str(note) for note in result.get("notes") or ()]


def lost_to(result: Mapping) -> dict[str, dict]:
    """Return the loss in each test that another method wins: {"method", "metric", "ours", "theirs"}.

    If several scores are lost, it is the one with the largest ratio.
    """
    return {
        verdict.test: max(verdict.losses, key=lambda loss: _ratio(loss.ours, loss.theirs))._asdict()
        for verdict in verdicts(result)
        if verdict.losses
    }


def overall(found: list[Verdict]) -> str:
    """Return the first line: the number of tests by outcome, and every method that the subject lost to."""
    subject = next((verdict.subject for verdict in found if verdict.subject), None)
    if subject is None:
        return "No run was evaluated: these are the simple methods only."
    judged = [verdict for verdict in found if verdict.outcome in ("better", "level", "worse")]
    silent = sum(verdict.outcome == "no replies" for verdict in found)
    rest = f" {_tests(silent)} without a reply." if silent else ""
    if not judged:
        return "There is nothing to compare." + rest
    name = {"stack": "The answer (stack)", "model": "The model", "network": "The network"}[subject]
    lost: dict[str, list[str]] = {}
    for verdict in judged:
        for loss in verdict.losses:
            tests = lost.setdefault(method_words(loss.method, verdict.test), [])
            if verdict.test not in tests:
                tests.append(verdict.test)
    counts = {
        kind: sum(verdict.outcome == kind for verdict in judged) for kind in ("better", "level", "worse")
    }
    good = [
        f"{words} in {counts[kind]}"
        for kind, words in (("better", "best"), ("level", "level with the best"))
        if counts[kind]
    ]
    if not lost:
        return f"{name} is {' and '.join(good)} of {_tests(len(judged))}." + rest
    better = "; ".join(f"{method} for {titles_of(tests)}" for method, tests in lost.items())
    own = f" {name} is {' and '.join(good)}." if good else ""
    return (
        f"A simpler method does better in {counts['worse']} of {_tests(len(judged))}: {better}.{own}" + rest
    )


def best_of(methods: Mapping[str, Mapping], metric: str, without: str | None = None) -> Best | None:
    """Return the method with the least value of a metric; the truth does not compete."""
    values = {
        name: part[metric]
        for name, part in methods.items()
        if name not in (_TRUTH, without) and _is_number(part.get(metric))
    }
    if not values:
        return None
    method = min(values, key=lambda name: values[name])
    return Best(method, values[method])


def _verdict(test: str, methods: Mapping[str, Mapping], subject: str | None, asked: Mapping) -> Verdict:
    subject = subject if subject in methods else None
    figures = methods[subject] if subject else {}
    found = ((metric, best_of(methods, metric, subject)) for metric in ("medae_ms", "mae_ms", *DECISIVE))
    best = {metric: other for metric, other in found if other is not None}
    losses: tuple[Loss, ...] = ()
    outcome: Outcome
    if subject is None:
        outcome, text = "no subject", _best_sentence(test, methods, best, asked)
    elif not _is_number(figures.get("medae_ms")):
        outcome, text = "no replies", _nothing(figures)
    else:
        losses, won = _compare(figures, best)
        compared = any(metric in best for metric in DECISIVE)
        outcome = "worse" if losses else "better" if won else "level" if compared else "alone"
        count = len(methods.keys() - {_TRUTH})
        comparison = _comparison(test, best, losses, outcome, count)
        text = f"{_subject_figures(test, figures, best)}{comparison}{_few(figures, asked)}"
    title = title_of(test)
    sentence = f"For {title[0].lower()}{title[1:]}, {text}"
    return Verdict(test, title, sentence, subject, figures, best, losses, outcome)


def _compare(figures: Mapping, best: Mapping[str, Best]) -> tuple[tuple[Loss, ...], bool]:
    """Return the decisive scores that are lost, and whether one is won."""
    losses, won = [], False
    for metric in DECISIVE:
        if metric not in best or not _is_number(figures.get(metric)):
            continue
        ours, other = figures[metric], best[metric]
        if ours > MARGIN * other.value:
            losses.append(Loss(other.method, metric, ours, other.value))
        won |= other.value > MARGIN * ours
    return tuple(losses), won


def _subject_figures(test: str, figures: Mapping, best: Mapping[str, Best]) -> str:
    text = f"typical error {number(figures['medae_ms'])} ms{_inside(figures)}"
    if "medae_ms" in best:
        other = best["medae_ms"]
        text += f"; {number(other.value)} ms with {method_words(other.method, test)}"
    return text + "."


def _comparison(
    test: str, best: Mapping[str, Best], losses: tuple[Loss, ...], outcome: Outcome, count: int
) -> str:
    if losses:
        by_method: dict[str, list[str]] = {}
        for loss in losses:
            by_method.setdefault(loss.method, []).append(_against(loss))
        parts = (f"{method_words(method, test)}, {', '.join(all_)}" for method, all_ in by_method.items())
        return f" Better here: {'; '.join(parts)}."
    if outcome == "better":
        return f" Best of {count} methods by CRPS and bits."
    if outcome == "level":
        nearest = next(best[metric] for metric in DECISIVE if metric in best)
        return f" Level with {method_words(nearest.method, test)} by CRPS and bits."
    return ""


def _best_sentence(
    test: str, methods: Mapping[str, Mapping], best: Mapping[str, Best], asked: Mapping
) -> str:
    """Return the sentence of a test without a subject, on its best method."""
    first = best.get("crps_ms")
    if first is None:
        return _nothing(next(iter(methods.values()), {}))
    figures = methods[first.method]
    text = f"the best method is {method_words(first.method, test)}: CRPS {number(first.value)} ms"
    if _is_number(figures.get("medae_ms")):
        text += f", typical error {number(figures['medae_ms'])} ms"
    text += _inside(figures)
    bits = best.get("bits")
    if bits is not None and bits.method != first.method:
        text += f"; by bits it is {method_words(bits.method, test)}"
    return f"{text}.{_few(figures, asked)}"


def _inside(figures: Mapping) -> str:
    share = (figures.get("coverage") or {}).get("90%")
    if not _is_number(share):
        return ""
    low, high = _COVERAGE
    share = round(share, 2)
    remark = " (too narrow)" if share < low else " (too wide)" if share > high else ""
    return f", {100 * share:.0f} % of replies inside its 90 % interval{remark}"


def _nothing(figures: Mapping) -> str:
    count = figures.get("measurements")
    asked = f"none of {count:,} questions" if count else "no question"
    return f"{asked} got a reply: there is no error to measure."


def _few(figures: Mapping, asked: Mapping) -> str:
    """Return a remark if there are few questions or sources."""
    count, sources = figures.get("measurements"), asked.get("sources")
    if not count:
        return ""
    questions = f"{count:,} question{'' if count == 1 else 's'}"
    if sources and sources < _FEW_SOURCES:
        return f" ({questions} from only {sources} source{'' if sources == 1 else 's'}.)"
    return f" (Only {questions}.)" if count < _FEW_QUESTIONS else ""


def _against(loss: Loss) -> str:
    ours, theirs = number(loss.ours), number(loss.theirs)
    return (
        f"CRPS {theirs} ms against {ours} ms" if loss.metric == "crps_ms" else f"{theirs} bits against {ours}"
    )


def _tests(count: int) -> str:
    return f"{count} test{'' if count == 1 else 's'}"


def _ratio(ours: float, theirs: float) -> float:
    return ours / theirs if theirs else math.inf


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)
