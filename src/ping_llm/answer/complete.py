"""Completion of partial addresses, inverse search by RTT, and consistency of prefixes with their addresses.

A model trained on prefixes and on whole addresses can answer for 203.0.113.0/24 in two ways: directly, and
as the mixture of its answers for the addresses. Training does not force the two to agree;
`prefix_consistency` measures the distance between them.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ping_llm.answer.address_tree import AddressTree
from ping_llm.answer.conditions import NO_CONDITIONS, Conditions
from ping_llm.answer.context import Question
from ping_llm.answer.distribution import RttDistribution, mix
from ping_llm.answer.prompts import address_tokens
from ping_llm.answer.results import INVERSE_PASSES
from ping_llm.answer.results import Inverse as Inverse
from ping_llm.errors import UsageError
from ping_llm.measurements.addresses import MAPPED_PREFIX, Prefix
from ping_llm.tokens import vocab
from ping_llm.tokens.reference import encode_optional, encode_time
from ping_llm.tokens.vocab import BYTE0, RTT, Field

if TYPE_CHECKING:
    from ping_llm.answer.model import Model


#: Number of parts of equal probability into which an inverse search divides the RTT range.
STRATA = 16


def nothing(version: int) -> Prefix:
    """The prefix of length 0 of an IP version."""
    return Prefix(MAPPED_PREFIX + bytes(4) if version == 4 else bytes(16), 0)


def destination_tree(model: "Model", question: Question, within: Prefix, depth: int) -> AddressTree:
    """Search tree for P(destination | source, time, context)."""
    bare = replace(question, dst=None)
    tail = role_tokens(within, Field.DST)
    prompt = model.prompts([bare], order=(Field.SRC, Field.TIME), tail=tail)[0]
    cache = model.engine.prefill([prompt.ids])
    return AddressTree(model.engine, cache, np.ones(1), within, depth, prompt.notes)


def source_tree(
    model: "Model",
    dst: Prefix | None,
    seconds: int | None,
    within: Prefix,
    depth: int,
    conditions: Conditions = NO_CONDITIONS,
) -> AddressTree:
    """Search tree for P(source | destination, time, conditions)."""
    model.check_conditions(conditions)
    ids = [vocab.MEASUREMENT]
    if dst is not None:
        ids += address_tokens(dst, Field.DST)
    if seconds is not None:
        ids += encode_time(seconds, None)
    for name, value in conditions.stated.items():
        ids += encode_optional(vocab.OPTIONAL[name], value)
    ids += role_tokens(within, Field.SRC)
    return AddressTree(model.engine, model.engine.prefill([np.array(ids)]), np.ones(1), within, depth)


def inverse(
    model: "Model",
    question: Question,
    low: float,
    high: float,
    within: Prefix,
    depth: int,
    count: int,
    passes: int = INVERSE_PASSES,
) -> Inverse:
    """Return destinations by P(destination | source, RTT in [low, high), context), highest first.

    The prompt states the RTT before the destination. The range is divided into parts of equal probability,
    and each part is stated by its middle. The result is a sum over these RTTs, exact where the range is a
    single code.
    """
    if not 0 <= low < high:
        raise UsageError(
            f"the range {low:g} to {high:g} ms is empty: the first RTT must be smaller than the second"
        )
    bare = replace(question, dst=None)
    order = (Field.SRC, Field.TIME)
    prompts = model.prompts([bare], order=order)
    _, distribution = next(model.distributions(prompts))
    inside = float(distribution.between(low, high))
    if inside <= 0:
        raise UsageError(
            f"the model gives no probability to RTTs from {low:g} to {high:g} ms from {question.src}: "
            "give a wider range"
        )
    levels = float(distribution.cdf(low)) + (np.arange(STRATA) + 0.5) / STRATA * inside
    codes = [model.encoding.encode(float(rtt)) for rtt in distribution.quantile(levels)]
    distinct, counts = np.unique(np.array(codes, np.uint64), return_counts=True)
    weights = counts / STRATA
    starts = [_stated(model, bare, int(code)) for code in distinct]
    role = role_tokens(nothing(within.version), Field.DST)
    ends = [np.concatenate([start, role]) for start in starts]
    cache = model.engine.prefill(ends)
    if within.known_bytes:
        weights = weights * np.exp(_known_log_probability(model, cache, within.known_bytes))
        weights /= weights.sum()
        full = role_tokens(within, Field.DST)
        cache = model.engine.prefill([np.concatenate([start, full]) for start in starts])
    tree = AddressTree(model.engine, cache, weights, within, depth, prompts[0].notes)
    return Inverse(tree.top(count, passes), inside * (1 - distribution.failure))


#: Candidates per requested destination that are weighted by their calibrated RTTs.
CANDIDATES = 4


def weighed(
    model: "Model", found: Inverse, question: Question, low: float, high: float, count: int
) -> Inverse:
    """Reweight with the calibrated P(RTT in the range | source, destination) instead of the network's.

    By Bayes, P(dst | range) is proportional to P(dst) · P(range | dst). The network's own P(range | dst) is
    divided out and the calibrated one multiplied in; the total of the candidates is unchanged.
    """
    best = found.completions.best
    asked = [replace(question, dst=one.address) for one in best]
    stacked = model.rtt_many(asked)
    calibrated, bare = (
        np.array([(1 - a.failure) * float(a.distribution.between(low, high)) for a in answers])
        for answers in (stacked, model.rtt_many(asked, method="network"))
    )
    # A factor above 100 is noise in the network's estimates of very improbable results.
    shares = np.array([one.probability for one in best]) * np.clip(
        calibrated / np.maximum(bare, 1e-6), 0.01, 100
    )
    shares *= found.completions.covered / max(shares.sum(), 1e-300)
    order = np.argsort(-shares, kind="stable")
    listed = tuple(
        replace(
            best[index],
            probability=float(shares[index]),
            in_range=float(calibrated[index]),
            measured=stacked[index].rests_on["pair_measurements"],
            observed=stacked[index].rests_on["pair_observed"],
        )
        for index in order[:count]
    )
    bound = max(found.completions.bound, *(float(share) for share in shares[order[count:]]), 0.0)
    return replace(found, completions=replace(found.completions, best=listed, bound=bound))


def with_chances(model: "Model", found: Inverse, question: Question, low: float, high: float) -> Inverse:
    """Add the network's P(RTT in the range) to each destination, for a run without a stack."""
    best = found.completions.best
    answers = model.rtt_many([replace(question, dst=one.address) for one in best])
    listed = tuple(
        replace(one, in_range=(1 - answer.failure) * float(answer.distribution.between(low, high)))
        for one, answer in zip(best, answers, strict=True)
    )
    return replace(found, completions=replace(found.completions, best=listed))


def role_tokens(within: Prefix, field: Field) -> list[int]:
    """Tokens of the role and of the known bytes of an address to be completed."""
    whole = Prefix(within.packed, within.address_bits)
    return [address_tokens(whole, field)[0], *(BYTE0 + byte for byte in within.known_bytes)]


def _stated(model: "Model", question: Question, code: int) -> np.ndarray:
    tail = [RTT, *(BYTE0 + byte for byte in model.encoding.to_bytes(code))]
    return model.prompts([question], order=(Field.SRC, Field.TIME), tail=tail, answer=18)[0].ids


def _known_log_probability(model: "Model", cache: object, known: bytes) -> np.ndarray:
    """log P(known bytes) of each row, with PREFIX_END masked."""
    tokens = [BYTE0 + byte for byte in known]
    rows = len(cache)  # type: ignore[arg-type]
    after = cache.tail[:, -1:]  # type: ignore[attr-defined]
    if len(known) > 1:
        suffixes = np.broadcast_to(np.array(tokens[:-1], np.int32), (rows, 1, len(known) - 1))
        after = np.concatenate([after, model.engine.branch(cache, suffixes)[:, 0]], axis=1)  # type: ignore[arg-type]
    after = after[..., BYTE0:].astype(np.float64)
    chosen = after[:, np.arange(len(known)), list(known)] - np.logaddexp.reduce(after, axis=-1)
    out: np.ndarray = chosen.sum(axis=1)
    return out


@dataclass(frozen=True)
class Consistency:
    """The direct answer for a prefix, compared with the mixture over its addresses.

    Attributes:
      direct, mixture: the two distributions.
      covered: share of the prefix's probability in the addresses of the mixture.
      distance: largest difference of the two distribution functions (Kolmogorov–Smirnov), 0 to 1.
    """

    direct: RttDistribution
    mixture: RttDistribution
    covered: float
    distance: float


def prefix_consistency(model: "Model", question: Question, most: int = 64) -> Consistency:
    """Compare P(rtt | prefix) with the mixture over the `most` most probable addresses of the prefix."""
    if question.dst is None or question.dst.is_whole:
        raise UsageError(f"the destination must be a prefix, not {question.dst}")
    direct = model.rtt_many([question])[0].distribution
    tree = destination_tree(model, question, question.dst, question.dst.address_bits // 8)
    parts = tree.top(most).best
    answers = model.rtt_many([replace(question, dst=part.address) for part in parts])
    shares = [part.probability for part in parts]
    mixture = mix([answer.distribution for answer in answers], shares)
    edges = np.union1d(direct.edges, mixture.edges)
    distance = float(np.abs(direct.cdf(edges) - mixture.cdf(edges)).max())
    return Consistency(direct, mixture, float(sum(shares)), distance)
