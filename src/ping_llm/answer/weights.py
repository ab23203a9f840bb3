"""Weights of a stack's components, by kind of question and amount of context."""

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

#: Candidate blurs of the network's curves, standard deviations in log RTT; one is chosen per kind.
SPREADS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.75)

#: Strength of the priors, in held-out ends: of equal weights for a kind, and of a kind's weights for each
#: amount. With halves of MENOG's held-out ends, each scored by weights from the other, values of 1 to 5 and
#: of 3 to 15 are 0.05 bits apart.
_PRIOR_ENDS = 3.0
_KIND_ENDS = 3.0
_ITERATIONS = 300
_RATE = 0.3
#: Weight of log2 of the mean CRPS against bits. On Starlink without a network, with two divisions other than
#: the report's, relative to the best single method in hindsight: with 1, CRPS 0.986 and bits -0.322; with 3,
#: 0.969 and -0.315.
_CRPS_SHARE = 3.0

#: Components that use a pair's own past, of which those present share half of the weight where no known pair
#: was held out.
_PAST = ("pair weighted", "pair recent", "pair last")

#: Smaller weights are dropped: they cost time and change nothing.
_LEAST_WEIGHT = 0.01


@dataclass(frozen=True)
class Held:
    """Answers of every component to every held-out question, reduced to what fitting needs."""

    rtt: np.ndarray  # [n]
    known: Evidence
    ends: np.ndarray  # [n], number of the new end (source, destination), or of the pair
    failure: np.ndarray  # [n, components]
    below: np.ndarray  # [n, components, 3]: F(bin), F(bin + 1), F(result)
    products: np.ndarray  # [n, components, components]: w'Ew is the CRPS of a mixture with reply weights w
    curves: network.Curves | None
    points: np.ndarray | None = None  # [n, components]: point estimate of each component, ms
    results: np.ndarray | None = None  # [n, NEWEST]: newest results of the pair
    past: np.ndarray | None = None  # [n, components]: log-likelihood of these results by each component

    @property
    def asked(self) -> np.ndarray:
        """Whether there is a question of each kind, bool [KINDS]."""
        return np.bincount(self.known.kind, minlength=KINDS) > 0

    def ends_by_kind(self) -> np.ndarray:
        """Number of different ends of each kind, int64 [KINDS]."""
        return np.array([len(np.unique(self.ends[self.known.kind == kind])) for kind in range(KINDS)])

    def without_network(self) -> "Held":
        """Return a copy without the first component."""
        failure, below, products = self.failure[:, 1:], self.below[:, 1:], self.products[:, 1:, 1:]
        points, past = (None if each is None else each[:, 1:] for each in (self.points, self.past))
        return replace(
            self, failure=failure, below=below, products=products, curves=None, points=points, past=past
        )

    @classmethod
    def concatenate(cls, several: Sequence["Held"]) -> "Held":
        """Join the questions of several splits; ends of different splits count as different."""
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
    """Both ends of the millisecond bin, and the result itself, [n, 3]; for a failure those of 0 ms."""
    reply = np.maximum(rtt, 0.0)
    return np.stack([np.floor(reply), np.floor(reply) + 1, reply], axis=1)


#: Step between the grid points over which products of curves are summed: 600 points, whose sums are within
#: 1 % of those over all.
COARSE = 7


def products_of(curves: np.ndarray, rtt: np.ndarray) -> np.ndarray:
    """∫ (F_i - [x ≥ y]) (F_j - [x ≥ y]) dx for all pairs of components, [n, components, components].

    The CRPS of a mixture is quadratic in its weights: the diagonal holds the CRPS of the components. For a
    failure, all products are zero.
    """
    grid = GRID[::COARSE]
    off = curves.astype(np.float64) - (grid >= np.maximum(rtt, 0.0)[:, None])[:, None]
    off[rtt == NO_REPLY] = 0.0
    width = np.gradient(grid)
    out: np.ndarray = np.einsum("nig,njg->nij", off * width, off, optimize=True)
    return out


def _blurred_at(levels: np.ndarray, at: np.ndarray, spread: float) -> np.ndarray:
    """F at a few points after a blur, [n, 3]; `grid.blurred` is for whole curves."""
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
    """Fit the network's blur by kind, and the weights by cell.

    Args:
      held: answers of every component to questions that were held out of the network's training.
      more: answers of the simple methods to questions of further splits. The network cannot be used for them,
        because it was trained on their results. The network's weight is decided by `held` alone; the
        weights of the simple methods relative to each other by both, in proportion to their ends.
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
            # With two components the network's prior is its equal share among all components, not a half.
            start = np.array([1.0, len(components) - 1.0]) / len(components)
            own = _by_cell(*_against_network(held, probability, simple), start)[:, :1]
            apart = np.concatenate([own, (1 - own) * simple], axis=1)
        share = _share_of(more, held)[:, None]
        together = share * apart + (1 - share) * together
    _trust_the_past(together, held, components)
    together[together < _LEAST_WEIGHT] = 0.0
    return spread, together / together.sum(axis=1, keepdims=True)


def _blur_network(held: Held, probability: np.ndarray) -> np.ndarray:
    """Choose the blur of each kind; the network's values in `held` and `probability` are blurred in place."""
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
    """Prior weights of each kind: for all kinds but known pairs, the weights fitted on all of these."""
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
    """Weights of every kind and amount, [CELLS, components], shrunk to `start` or to equal weights."""
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
                # All kinds with a new source are pooled first (see `_NEW_SOURCES`).
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
    """Adjust weights that were fitted on other data by these questions; [CELLS, components].

    Args:
      by_cell: the weights from other data.
      as_ends: strength of these weights, as a number of held-out ends: against all questions of a kind (of a
        new source: of an amount), and then against those of a kind and amount.
    """
    probability = _probability(held)
    out = by_cell.copy()
    for kind in np.flatnonzero(held.asked).tolist():
        of_kind = held.known.kind == kind
        for amount in range(AMOUNTS):
            cell, alike = kind * AMOUNTS + amount, held.known.amount == amount
            pooled = alike & np.isin(held.known.kind, _NEW_SOURCES) if kind in _NEW_SOURCES else of_kind
            for rows in (pooled, of_kind & alike):
                out[cell] = best_weights(
                    probability[rows], held.products[rows], held.ends[rows], out[cell], as_ends
                )
    out[out < _LEAST_WEIGHT] = 0.0
    out /= out.sum(axis=1, keepdims=True)
    return out


def fit_past_power(
    held: Held, by_cell: np.ndarray, components: Sequence[str], usual: float = own_past.DEFAULT
) -> float:
    """Choose the power of a pair's own results (`own_past`) with the least bits + 3 · log2 of the mean CRPS.

    As for weights, the questions together count as many as they have ends. The prior is normal in log2 of the
    power: half or twice the usual power is one standard deviation away.
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
    """Nearest kinds with held-out questions, for a kind without any."""
    for others in _NEAREST[kind]:
        present = [other for other in others if asked[other]]
        if present:
            return present
    return []


def _against_network(held: Held, probability: np.ndarray, simple: np.ndarray) -> tuple[Held, np.ndarray]:
    """Reduce questions to two components: the network, and the mixture of the simple methods."""
    weights = simple[held.known.cell]
    mixture = np.einsum("nc,nc->n", probability[:, 1:], weights)
    own, cross, others = held.products[:, 0, 0], held.products[:, 0, 1:], held.products[:, 1:, 1:]
    products = np.empty((len(held.rtt), 2, 2))
    products[:, 0, 0] = own
    products[:, 0, 1] = products[:, 1, 0] = np.einsum("nc,nc->n", cross, weights)
    products[:, 1, 1] = np.einsum("nc,ncd,nd->n", weights, others, weights)
    return replace(held, products=products), np.stack([probability[:, 0], mixture], axis=1)


def _share_of(more: Held, held: Held) -> np.ndarray:
    """Share of the ends of each kind that are in `more` instead of `held`, [CELLS]."""
    further, own = more.ends_by_kind(), held.ends_by_kind()
    return np.repeat(further / np.maximum(further + own, 1), AMOUNTS)


def _trust_the_past(weights: np.ndarray, held: Held, components: Sequence[str]) -> None:
    """If no known pair was held out, give half of its weight to methods that use a pair's own past."""
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
#: Kinds with a new source: answers depend mostly on its number of measurements.
_NEW_SOURCES = (_S, _E, _U)
#: Groups of kinds to learn from instead, the nearest first, by kind.
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
    """Find the weights with the least bits + 3 · log2 of the mean CRPS, shrunk to a prior; [components].

    Questions of the same end are alike, so all questions together count as many as they have ends. The
    method is exponentiated gradient descent, which keeps weights positive and their sum at 1.
    """
    size = len(np.unique(ends))
    if not size:
        return prior.copy()
    probability = np.maximum(probability, 2.0**-40)
    mean_products = products.mean(axis=0)
    pull = prior_ends / size
    weights = prior.copy()
    for step in range(_ITERATIONS):
        # Gradient in nats: of the results, of the mean CRPS (quadratic in the mean products), of the prior.
        gradient = -(probability / (probability @ weights)[:, None]).mean(axis=0)
        pulled = mean_products @ weights
        gradient += _CRPS_SHARE * 2 * pulled / max(float(weights @ pulled), 1e-12)
        gradient -= pull * prior / np.maximum(weights, 1e-9)
        moved = weights * np.exp(-_RATE / (1 + step / 100) * np.clip(gradient - gradient @ weights, -20, 20))
        weights = moved / moved.sum()
    return weights
