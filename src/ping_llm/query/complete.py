"""Completing a partial address, and finding who is how far away."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ping_llm.addresses import MAPPED_PREFIX, Prefix
from ping_llm.errors import UsageError
from ping_llm.query.address_tree import AddressTree, Completions
from ping_llm.query.context import Question, address_tokens, time_tokens
from ping_llm.tokens import vocab
from ping_llm.tokens.vocab import BYTE0, RTT, Field

if TYPE_CHECKING:
    from ping_llm.query.model import Model

#: An inverse search puts the asked range of RTTs into so many parts of equal probability.
STRATA = 16


@dataclass(frozen=True)
class Inverse:
    """Who lies within a range of RTTs.

    Attributes:
      completions: destinations with P(destination | source, RTT in the range).
      probability: P(a reply within the range | source), whatever the destination.
    """

    completions: Completions
    probability: float


def nothing(version: int) -> Prefix:
    """The prefix that says no more than the version."""
    return Prefix(MAPPED_PREFIX + bytes(4) if version == 4 else bytes(16), 0)


def destination_tree(model: "Model", question: Question, within: Prefix, depth: int) -> AddressTree:
    """P(destination | source, time, context)."""
    bare = replace(question, dst=None)
    tail = role_tokens(within, Field.DST)
    prompt = model.prompts([bare], order=(Field.SRC, Field.TIME), tail=tail)[0]
    cache = model.engine.prefill([prompt.ids])
    return AddressTree(model.engine, cache, np.ones(1), within, depth, prompt.notes)


def source_tree(
    model: "Model", dst: Prefix | None, seconds: int | None, within: Prefix, depth: int
) -> AddressTree:
    """P(source | destination, time)."""
    ids = [vocab.MEASUREMENT]
    if dst is not None:
        ids += address_tokens(dst, Field.DST)
    if seconds is not None:
        ids += time_tokens(seconds, None)
    ids += role_tokens(within, Field.SRC)
    return AddressTree(model.engine, model.engine.prefill([np.array(ids)]), np.ones(1), within, depth)


def inverse(
    model: "Model", question: Question, low: float, high: float, within: Prefix, depth: int, count: int
) -> Inverse:
    """P(destination | source, RTT in [low, high), context), the most probable first.

    The RTT is stated before the destination. The range is cut into parts of equal probability, each stated
    by its middle: a sum over RTTs, exact where the range is a single code.
    """
    if not 0 <= low < high:
        raise UsageError(f"the range {low:g} to {high:g} ms is empty: give two RTTs, the smaller first")
    bare = replace(question, dst=None)
    order = (Field.SRC, Field.TIME)
    prompts = model.prompts([bare], order=order)
    _, distribution = next(model.distributions(prompts))
    inside = float(distribution.between(low, high))
    if inside <= 0:
        raise UsageError(f"the model holds {low:g} to {high:g} ms for impossible")
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
    return Inverse(tree.top(count), inside * (1 - distribution.failure))


def role_tokens(within: Prefix, field: Field) -> list[int]:
    """The role and the known bytes of an address that goes on."""
    whole = Prefix(within.packed, within.address_bits)
    return [address_tokens(whole, field)[0], *(BYTE0 + byte for byte in within.known_bytes)]


def _stated(model: "Model", question: Question, code: int) -> np.ndarray:
    tail = [RTT, *(BYTE0 + byte for byte in model.encoding.to_bytes(code))]
    return model.prompts([question], order=(Field.SRC, Field.TIME), tail=tail, answer=18)[0].ids


def _known_log_probability(model: "Model", cache: object, known: bytes) -> np.ndarray:
    """Of each row: log P(the known bytes), PREFIX_END masked."""
    tokens = [BYTE0 + byte for byte in known]
    rows = len(cache)  # type: ignore[arg-type]
    after = cache.tail[:, -1:]  # type: ignore[attr-defined]
    if len(known) > 1:
        suffixes = np.broadcast_to(np.array(tokens[:-1], np.int32), (rows, 1, len(known) - 1))
        after = np.concatenate([after, model.engine.branch(cache, suffixes)[:, 0]], axis=1)  # type: ignore[arg-type]
    after = after[..., BYTE0:].astype(np.float64)
    chosen = after[:, np.arange(len(known)), list(known)] - np.logaddexp.reduce(after, axis=-1)
    return chosen.sum(axis=1)


#: km per ms one way in fibre: two thirds of the speed of light.
FIBRE_KM_PER_MS = 199.86
EARTH_KM = 6371.0


def least_rtt_ms(here: Sequence[float], there: Sequence[float]) -> float:
    """No packet goes and comes back faster than light in straight fibre. Places are (latitude, longitude)."""
    phi1, lambda1, phi2, lambda2 = map(math.radians, (*here, *there))
    half = (
        math.sin((phi2 - phi1) / 2) ** 2
        + math.cos(phi1) * math.cos(phi2) * math.sin((lambda2 - lambda1) / 2) ** 2
    )
    return 2 * (2 * EARTH_KM * math.asin(math.sqrt(min(half, 1.0)))) / FIBRE_KM_PER_MS
