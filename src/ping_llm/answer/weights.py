"""Weights of a stack: how far each component is trusted, by kind of question and amount of context."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ping_llm.answer import network, own_past
from ping_llm.answer.distribution import RttDistributions, bits_of
from ping_llm.answer.grid import FLOOR_MS, GRID, SHIFTS, blurred, shifts
from ping_llm.answer.questions import AMOUNTS, CELLS, KINDS, Evidence
from ping_llm.answer.stack import NETWORK
from ping_llm.measurements.schema import NO_REPLY
from ping_llm.splits.novelty import Novelty

#: Blurs of the network to choose from, by kind.
SPREADS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.75)

#: Equal weights count as much as this many held-out ends; a kind's weights as this many for each amount.
#: Halves of the held-out ends of MENOG, judged on each other: 0.05 bits apart for 1 to 5 and for 3 to 15.
_PRIOR_ENDS = 3.0
_KIND_ENDS = 3.0
_ITERATIONS = 300
_RATE = 0.3
#: What log2 of the mean CRPS counts beside bits. Starlink without a network, two other divisions than the
#: report's, against the best single method in hindsight: with 1, CRPS 0.986 and bits -0.322; with 3, 0.969
#: and -0.315.
_CRPS_SHARE = 3.0

#: What knows a pair's own past.
_PAST = ("pair weighted", "pair recent", "pair last")

#: Smaller weights are dropped: they cost time and change nothing.
_LEAST_WEIGHT = 0.01


@dataclass(frozen=True)
class Held:
    """Every component on every held-out question: failure and F at the ends of the result's bin and at it."""

    rtt: np.ndarray  # [n]
    known: Evidence
    ends: np.ndarray  # [n], number of the end that is new (source, destination) or of the pair
    failure: np.ndarray  # [n, components]
    below: np.ndarray  # [n, components, 3]: F(bin), F(bin + 1), F(result)
    products: np.ndarray  # [n, components, components]: w'Ew is the CRPS of a mixture with reply weights w
    curves: network.Curves | None
    points: np.ndarray | None = None  # [n, components]: each one's own single number, ms
    results: np.ndarray | None = None  # [n, NEWEST]: the pair's newest results
    past: np.ndarray | None = None  # [n, components]: each one's log-likelihood of them

    @property
    def asked(self) -> np.ndarray:
        """bool [KINDS]: whether there is a question of the kind."""
        return np.bincount(self.known.kind, minlength=KINDS) > 0

    def ends_by_kind(self) -> np.ndarray:
        """int64 [KINDS]."""
        return np.array([len(np.unique(self.ends[self.known.kind == kind])) for kind in range(KINDS)])

    def without_network(self) -> "Held":
        """Without the first component."""
        failure, below, products = self.failure[:, 1:], self.below[:, 1:], self.products[:, 1:, 1:]
        points, past = (None if each is None else each[:, 1:] for each in (self.points, self.past))
        return replace(
            self, failure=failure, below=below, products=products, curves=None, points=points, past=past
        )

    @classmethod
    def concatenate(cls, several: Sequence["Held"]) -> "Held":
        """Questions of several splits; an end of one is another than that of the next."""
        ends, start = [], 0
        for held in several:
            ends.append(held.ends + start)
            start += int(held.ends.max(initial=0)) + 1
        joined = {
            name: np.concatenate([getattr(held, name) for held in several])
            for name in ("rtt", "failure", "below", "products")
        }
        for name in ("points", "results", "past"):
            known_of = [each for held in several if (each := getattr(held, name)) is not None]
            if len(known_of) == len(several):
                joined[name] = np.concatenate(known_of)
        known = Evidence.concatenate([held.known for held in several])
        return cls(**joined, known=known, ends=np.concatenate(ends), curves=None)


def bin_ends(rtt: np.ndarray) -> np.ndarray:
    """[n, 3]: both ends of the millisecond bin, and the result itself; of a failure, zeros."""
    reply = np.maximum(rtt, 0.0)
    return np.stack([np.floor(reply), np.floor(reply) + 1, reply], axis=1)


#: Products of curves are summed over every so many points of the grid: 600, which is within 1 % of all.
COARSE = 7


def products_of(curves: np.ndarray, rtt: np.ndarray) -> np.ndarray:
    """∫ (F_i - [x ≥ y]) (F_j - [x ≥ y]) dx for all pairs of components, [n, components, components].

    CRPS is quadratic in the weights of a mixture: the diagonal holds the components' own. A result without
    a reply has none: zeros.
    """
    grid = GRID[::COARSE]
    off = curves.astype(np.float64) - (grid >= np.maximum(rtt, 0.0)[:, None])[:, None]
    off[rtt == NO_REPLY] = 0.0
    width = np.gradient(grid)
    out: np.ndarray = np.einsum("nig,njg->nij", off * width, off, optimize=True)
    return out


def _blurred_at(levels: np.ndarray, at: np.ndarray, spread: float) -> np.ndarray:
    """F at a few points after a blur, [n, 3]; `grid.blurred` does whole curves."""
    factors = np.exp(-spread * shifts())
    out = np.empty(at.shape)
    for row in range(len(levels)):
        moved = (at[row][:, None] + FLOOR_MS) * factors - FLOOR_MS
        out[row] = np.interp(moved.ravel(), GRID, levels[row], left=0.0).reshape(-1, SHIFTS).mean(axis=1)
    return out


def _probability(held: Held) -> np.ndarray:
    """P(result), [n, components]."""
    return _probability_of(held.rtt, held.failure, held.below)


def _probability_of(rtt: np.ndarray, failure: np.ndarray, below: np.ndarray) -> np.ndarray:
    inside = np.maximum(below[..., 1] - below[..., 0], 0.0)
    return np.where((rtt == NO_REPLY)[:, None], failure, (1 - failure) * inside)


def fit_weights(
    held: Held, components: Sequence[str], more: Held | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The network's blur by kind, and the weights by cell.

    Args:
      held: every component on the questions that were held out of the network's training.
      more: the simple methods on questions of further splits, which the network cannot be asked because it
        was trained on their answers. How far the network is trusted is decided by `held` alone; how far one
        simple method against the others, by both, each counting as many as it has ends.
    """
    has_network = components[0] == NETWORK
    spread, probability = np.zeros(KINDS), _probability(held)
    if has_network:
        spread = _blur_network(held, probability)
    together = _by_cell(held, probability)
    if more is not None:
        simple = _by_cell(Held.concatenate([held.without_network() if has_network else held, more]))
        apart = simple
        if has_network:
            # Of two components the network starts with the share that it has among all of them, not a half.
            start = np.array([1.0, len(components) - 1.0]) / len(components)
            own = _by_cell(*_against_network(held, probability, simple), start)[:, :1]
            apart = np.concatenate([own, (1 - own) * simple], axis=1)
        share = _share_of(more, held)[:, None]
        together = share * apart + (1 - share) * together
    _trust_the_past(together, held, components)
    together[together < _LEAST_WEIGHT] = 0.0
    return spread, together / together.sum(axis=1, keepdims=True)


def _blur_network(held: Held, probability: np.ndarray) -> np.ndarray:
    """Choose the blur of each kind, and blur the network's values in `held` and `probability`."""
    assert held.curves is not None
    spread = np.zeros(KINDS)
    prior = _prior_of_kinds(held, probability)
    for kind in range(KINDS):
        rows = np.flatnonzero(held.known.kind == kind)
        best = None
        for candidate in SPREADS if len(rows) else ():
            tried, below = probability[rows], None
            if candidate > 0:
                below = _blurred_at(held.curves.levels[rows], bin_ends(held.rtt[rows]), candidate)
                own = _probability_of(held.rtt[rows], held.failure[rows, :1], below[:, None])
                tried = np.concatenate([own, tried[:, 1:]], axis=1)
            weights = best_weights(tried, held.products[rows], held.ends[rows], prior[kind], _PRIOR_ENDS)
            bits = float(bits_of(tried @ weights).mean())
            if best is None or bits < best[0] - 1e-4:
                best = (bits, candidate, tried, below)
        if best is not None and best[3] is not None:
            _, spread[kind], probability[rows], held.below[rows, 0] = best
            if held.past is not None and held.results is not None:
                curves = blurred(held.curves.levels[rows].astype(np.float64), np.full(len(rows), best[1]))
                answers = RttDistributions(np.broadcast_to(GRID, curves.shape), curves, np.zeros(len(rows)))
                held.past[rows, 0] = own_past.log_likelihood(answers, held.results[rows])
    asked = held.asked
    for kind in np.flatnonzero(~asked).tolist():
        spread[kind] = max((spread[other] for other in _nearest(kind, asked)), default=0.0)
    return spread


def _prior_of_kinds(held: Held, probability: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
    """Where each kind starts. What is new in any way is alike: those kinds lean on all of them together."""
    count = probability.shape[1]
    equal = np.full(count, 1.0 / count) if start is None else start
    new = np.flatnonzero(held.known.kind != Novelty.KNOWN_PAIR)
    of_new = best_weights(probability[new], held.products[new], held.ends[new], equal, _PRIOR_ENDS)
    prior = np.tile(of_new, (KINDS, 1))
    prior[Novelty.KNOWN_PAIR] = equal
    return prior


def _by_cell(
    held: Held, probability: np.ndarray | None = None, start: np.ndarray | None = None
) -> np.ndarray:
    """Weights of every kind and amount, [CELLS, components], drawn towards `start` or equal ones."""
    probability = _probability(held) if probability is None else probability
    prior = _prior_of_kinds(held, probability, start)
    asked, by_kind = held.asked, prior.copy()
    out = np.empty((CELLS, probability.shape[1]))
    for kind in np.flatnonzero(asked).tolist():
        rows = held.known.kind == kind
        by_kind[kind] = best_weights(
            probability[rows], held.products[rows], held.ends[rows], prior[kind], _PRIOR_ENDS
        )
        for amount in range(AMOUNTS):
            alike = held.known.amount == amount
            chosen = alike & rows
            towards = by_kind[kind]
            if kind in _NEW_SOURCES:
                # What can be said of a new source turns on how much it has measured, named or not.
                pooled = alike & np.isin(held.known.kind, _NEW_SOURCES)
                towards = best_weights(
                    probability[pooled], held.products[pooled], held.ends[pooled], towards, _PRIOR_ENDS
                )
            out[kind * AMOUNTS + amount] = best_weights(
                probability[chosen], held.products[chosen], held.ends[chosen], towards, _KIND_ENDS
            )
    for kind in np.flatnonzero(~asked).tolist():
        present = _nearest(kind, asked)
        out[kind * AMOUNTS : (kind + 1) * AMOUNTS] = by_kind[present or [kind]].mean(axis=0)
    return out


def moved_weights(held: Held, by_cell: np.ndarray, as_ends: float) -> np.ndarray:
    """Weights that were fitted elsewhere, moved by these questions; [CELLS, components].

    Args:
      by_cell: the weights elsewhere.
      as_ends: how many held-out ends of a kind they count as.
    """
    probability = _probability(held)
    out = by_cell.copy()
    for kind in np.flatnonzero(held.asked).tolist():
        rows = held.known.kind == kind
        for amount in range(AMOUNTS):
            cell, chosen = kind * AMOUNTS + amount, rows & (held.known.amount == amount)
            of_kind = best_weights(
                probability[rows], held.products[rows], held.ends[rows], by_cell[cell], as_ends
            )
            out[cell] = best_weights(
                probability[chosen], held.products[chosen], held.ends[chosen], of_kind, _KIND_ENDS
            )
    out[out < _LEAST_WEIGHT] = 0.0
    out /= out.sum(axis=1, keepdims=True)
    return out


def fit_past_power(
    held: Held, by_cell: np.ndarray, components: Sequence[str], usual: float = own_past.DEFAULT
) -> float:
    """The power of a pair's own results (`own_past`) with the least bits + log2 mean CRPS.

    As for weights, questions count as many as they have ends; a power that is half or twice the usual one is
    one standard deviation from it.
    """
    assert held.past is not None
    rows = np.flatnonzero((held.known.kind == Novelty.KNOWN_PAIR) & (held.past < 0).any(axis=1))
    if not len(rows):
        return usual
    probability = np.maximum(_probability(held)[rows], 2.0**-40)
    size, costs = len(np.unique(held.ends[rows])), []
    for power in own_past.POWERS:
        weights = own_past.tempered(by_cell[held.known.cell[rows]], held.past[rows], components, power)
        nats = -np.log(np.einsum("nc,nc->n", probability, weights)).mean()
        crps = np.einsum("nc,ncd,nd->n", weights, held.products[rows], weights).mean()
        nats += _CRPS_SHARE * np.log(max(float(crps), 1e-12))
        costs.append(size * float(nats) + 0.5 * np.log2(power / usual) ** 2)
    return own_past.POWERS[int(np.argmin(costs))]


def _nearest(kind: int, asked: np.ndarray) -> list[int]:
    """The nearest kinds that were asked about, for a kind of which nothing was held out."""
    for others in _NEAREST[kind]:
        present = [other for other in others if asked[other]]
        if present:
            return present
    return []


def _against_network(held: Held, probability: np.ndarray, simple: np.ndarray) -> tuple[Held, np.ndarray]:
    """The same questions with two components: the network, and the mixture of the simple methods."""
    weights = simple[held.known.cell]
    mixture = np.einsum("nc,nc->n", probability[:, 1:], weights)
    own, cross, others = held.products[:, 0, 0], held.products[:, 0, 1:], held.products[:, 1:, 1:]
    products = np.empty((len(held.rtt), 2, 2))
    products[:, 0, 0] = own
    products[:, 0, 1] = products[:, 1, 0] = np.einsum("nc,nc->n", cross, weights)
    products[:, 1, 1] = np.einsum("nc,ncd,nd->n", weights, others, weights)
    return replace(held, products=products), np.stack([probability[:, 0], mixture], axis=1)


def _share_of(more: Held, held: Held) -> np.ndarray:
    """[CELLS]: of the ends of each kind, the share that is not in `held`."""
    further, own = more.ends_by_kind(), held.ends_by_kind()
    return np.repeat(further / np.maximum(further + own, 1), AMOUNTS)


def _trust_the_past(weights: np.ndarray, held: Held, components: Sequence[str]) -> None:
    """Where no known pair was held out, half of the trust goes to the methods that know a pair's own past."""
    past = [number for number, name in enumerate(components) if name in _PAST]
    if held.asked[Novelty.KNOWN_PAIR] or not past:
        return
    cells = slice(Novelty.KNOWN_PAIR * AMOUNTS + 1, (Novelty.KNOWN_PAIR + 1) * AMOUNTS)
    weights[cells] /= 2
    weights[cells, past] += 0.5 / len(past)


_K, _P, _S, _D, _E = (
    Novelty.KNOWN_PAIR, Novelty.NEW_PAIR, Novelty.NEW_SOURCE, Novelty.NEW_DESTINATION, Novelty.NEW_ENDS,
)  # fmt: skip
_U = Novelty.COUNT
_NEW_SOURCES = (_S, _E, _U)
#: For each kind, groups of kinds to learn from instead, the nearest first.
_NEAREST = {
    _K: ((_P,), (_S, _D, _U)),
    _P: ((_S, _D), (_U,), (_K,)),
    _S: ((_U,), (_E,), (_P,), (_D,), (_K,)),
    _D: ((_P,), (_S,), (_U,), (_K,)),
    _E: ((_S, _D, _U), (_P,), (_K,)),
    _U: ((_S,), (_E,), (_P,), (_D,), (_K,)),
}


def best_weights(
    probability: np.ndarray, products: np.ndarray, ends: np.ndarray, prior: np.ndarray, prior_ends: float
) -> np.ndarray:
    """Weights with the least bits + log2 mean CRPS, drawn towards the prior: [components].

    Questions of the same end are alike, so all of them together count as many as there are ends. Found by
    exponentiated gradient descent, which keeps weights positive and their sum 1.
    """
    size = len(np.unique(ends))
    if not size:
        return prior.copy()
    probability = np.maximum(probability, 2.0**-40)
    mean_products = products.mean(axis=0)
    pull = prior_ends / size
    weights = prior.copy()
    for step in range(_ITERATIONS):
        # Nats: of the results, of the mean CRPS (a quadratic form of the mean products), of the prior.
        gradient = -(probability / (probability @ weights)[:, None]).mean(axis=0)
        pulled = mean_products @ weights
        gradient += _CRPS_SHARE * 2 * pulled / max(float(weights @ pulled), 1e-12)
        gradient -= pull * prior / np.maximum(weights, 1e-9)
        moved = weights * np.exp(-_RATE / (1 + step / 100) * np.clip(gradient - gradient @ weights, -20, 20))
        weights = moved / moved.sum()
    return weights
