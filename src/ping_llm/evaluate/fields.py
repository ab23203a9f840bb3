"""Likelihood of whole measurements under a model: by field and by order of the fields, with and without time;
accuracy of address bytes; and exact matches of completed addresses.

Measurements are scored alone, without a context, since only then all four fields are stated. The bits of the
result are over the codes of the RTT encoding, not over milliseconds as in the tests. The bits of a field
include the token that names it, so they include the choice of the order; `any_order` is -log2 of the sum over
all orders, the likelihood of the measurement itself.

A completion is given some bytes of the address and the other end. The completions are the exact most probable
ones (best-first search), as `ping-llm query complete` lists them.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np

from ping_llm.answer.conditions import COLUMNS
from ping_llm.answer.model import Model
from ping_llm.evaluate.inputs import evenly_spaced
from ping_llm.measurements.addresses import Prefix, is_ipv4
from ping_llm.measurements.columns import Columns
from ping_llm.progress import Progress
from ping_llm.tokens import vocab
from ping_llm.tokens.columns import StatementColumns, encode_columns
from ping_llm.tokens.vocab import BYTE0, Field

_NAMES = {Field.SRC: "src", Field.DST: "dst", Field.TIME: "time", Field.RESULT: "result"} | {
    field: name for name, field in vocab.OPTIONAL.items()
}

#: Number of sequences that are scored together.
_ROWS = 64


def by_order(model: Model, asked: Columns) -> dict:
    """Return the mean bits per measurement of every order of the fields, in total and by field."""
    with_time = list(permutations((Field.SRC, Field.DST, Field.TIME, Field.RESULT)))
    without = list(permutations((Field.SRC, Field.DST, Field.RESULT)))
    out: dict = {"measurements": len(asked)}
    for title, orders in (("with_time", with_time), ("without_time", without)):
        totals, parts = np.empty((len(orders), len(asked))), {}
        for number, order in enumerate(orders):
            ids, log2 = _scored(model, asked, order)
            field = vocab.fields_of(ids)
            totals[number] = -log2.sum(axis=1)
            parts[" ".join(_NAMES[f] for f in order)] = {"total": float(totals[number].mean())} | {
                _NAMES[f]: float(-np.where(field == int(f), log2, 0).sum(axis=1).mean())
                for f in sorted(order)
            }
        least = totals.min(axis=0)
        any_order = least - np.log2((2.0 ** (least - totals)).sum(axis=0))
        out[title] = {"any_order": float(any_order.mean()), "by_order": parts}
        out[title]["by_field"] = {
            _NAMES[f]: float(np.mean([part[_NAMES[f]] for part in parts.values()])) for f in sorted(orders[0])
        }
    return out | _all_fields(model, asked)


def _all_fields(model: Model, asked: Columns) -> dict:
    """Return bits by field of measurements that state all the model's fields, in the order of questions.

    `result_without` is the bits of the result if the optional fields are not stated before it. Empty for a
    model that was trained without optional fields.
    """
    if not model.optional_fields:
        return {}
    usual = (Field.SRC, Field.DST, Field.TIME) if model.has_time else (Field.SRC, Field.DST)
    order = (*usual, *(vocab.OPTIONAL[name] for name in model.optional_fields), Field.RESULT)
    ids, log2 = _scored(model, asked, order)
    field = vocab.fields_of(ids)
    by_field = {_NAMES[f]: float(-np.where(field == int(f), log2, 0).sum(axis=1).mean()) for f in order}
    ids, log2 = _scored(model, asked, (*usual, Field.RESULT))
    without = float(-np.where(vocab.fields_of(ids) == int(Field.RESULT), log2, 0).sum(axis=1).mean())
    return {"all_fields": {"by_field": by_field, "result_without": without}}


def address_bytes(model: Model, asked: Columns) -> dict:
    """Return shares of the bytes that the model predicts correctly, by position, given all bytes before it.

    Position p is also the number of bytes that are known already. The destination is predicted given the
    source, the source given the destination.
    """
    out: dict = {}
    orders = {"src": (Field.DST, Field.SRC), "dst": (Field.SRC, Field.DST)}
    for name, order in orders.items():
        for version, chosen in (("IPv4", is_ipv4(asked.src)), ("IPv6", ~is_ipv4(asked.src))):
            if not chosen.any():
                continue
            part = asked.take(chosen)
            ids = _tokens(model, part, order)
            width = 4 if version == "IPv4" else 16
            start = (
                ids.shape[1] - width
            )  # the predicted address comes last, and all rows have the same length
            best, given = [], []
            for begin in range(0, len(ids), _ROWS):
                rows = ids[begin : begin + _ROWS]
                logits = model.engine.logits(*_inputs(rows))[: len(rows), start:, BYTE0:]
                truth = rows[:, start:] - BYTE0
                best.append(logits.argmax(axis=-1) == truth)
                shifted = logits - logits.max(axis=-1, keepdims=True)
                chances = np.exp(shifted) / np.exp(shifted).sum(axis=-1, keepdims=True)
                given.append(np.take_along_axis(chances, truth[..., None], axis=-1)[..., 0])
            right, chance = np.concatenate(best), np.concatenate(given)
            out[f"{name} {version}"] = {
                "measurements": len(part),
                "byte_accuracy": [float(share) for share in right.mean(axis=0)],
                "byte_bits": [float(bits) for bits in -np.log2(np.maximum(chance, 1e-12)).mean(axis=0)],
                # Share whose bytes from here on are all the most likely ones: greedy completion finds them.
                "greedy_exact_match": [float(right[:, p:].all(axis=1).mean()) for p in range(width)],
            }
    return out


def _tokens(model: Model, asked: Columns, order: tuple[Field, ...]) -> np.ndarray:
    """Encode each measurement alone, with its fields in this order: int32 [n, longest], PAD at the end."""
    columns = StatementColumns.empty(len(asked))
    columns.first[:] = True
    columns.order[:, : len(order)] = order
    columns.src[:], columns.dst[:] = asked.src, asked.dst
    columns.src_known[:] = columns.dst_known[:] = 0
    if Field.TIME in order:
        columns.seconds[:] = asked.time // 1_000_000
    if Field.RESULT in order:
        columns.rtt[:] = asked.rtt
    for name, optional in vocab.OPTIONAL.items():
        if optional in order:
            getattr(columns, name)[:] = asked.column(COLUMNS[name])
    ids, offsets = encode_columns(columns, model.encoding)
    length = np.diff(offsets)
    out = np.full((len(asked), int(length.max())), vocab.PAD, np.int32)
    inside = np.arange(out.shape[1]) < length[:, None]
    out[inside] = ids
    return out


def _inputs(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs (shifted right), positions and segments, padded to _ROWS: one shape is compiled."""
    inputs = np.zeros((_ROWS, ids.shape[1]), np.int32)
    inputs[: len(ids), 1:] = ids[:, :-1]
    segments = np.zeros_like(inputs)
    segments[: len(ids)] = ids != vocab.PAD
    segments[len(ids) :] = 1
    positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), inputs.shape)
    return inputs, positions, segments


def _scored(model: Model, asked: Columns, order: tuple[Field, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens, and log2 of each token's probability (0 for PAD)."""
    ids = _tokens(model, asked, order)
    parts = []
    for begin in range(0, len(ids), _ROWS):
        rows = ids[begin : begin + _ROWS]
        inputs, positions, segments = _inputs(rows)
        targets = np.zeros_like(inputs)
        targets[: len(rows)] = rows
        scores = model.engine.log_probabilities(inputs, targets, positions, segments)[: len(rows)]
        parts.append(np.where(rows != vocab.PAD, scores, 0.0))
    return ids, np.concatenate(parts) / np.log(2)


#: Numbers of most probable completions that are searched for the right address.
AT = (1, 5, 10)

#: Numbers of known bytes, by IP version.
KNOWN_BYTES = {4: (0, 1, 2, 3), 6: (0, 2, 4, 6, 8, 12)}


def exact_matches(
    model: Model, asked: Columns, questions: int, known_bytes: Mapping[int, Sequence[int]] = KNOWN_BYTES
) -> dict:
    """Return exact-match shares, {"dst IPv4": {"questions", "by_known_bytes": {"0": {"at_1", …}, …}}, …}.

    Args:
      asked: measurements whose addresses are completed, one end at a time.
      questions: largest number per field and IP version, evenly spaced.
      known_bytes: numbers of address bytes that are given, by IP version.
    """
    out: dict = {}
    jobs = []
    for field in ("src", "dst"):
        for version in (4, 6):
            rows = np.flatnonzero(is_ipv4(asked.src) == (version == 4))
            part = evenly_spaced(asked.take(rows), questions)
            if len(part):
                jobs.append((field, version, part))
    total = sum(len(part) * len(known_bytes[version]) for _, version, part in jobs)
    with Progress("completions", total, "searches") as progress:
        for field, version, part in jobs:
            by_known: dict = {}
            for known in known_bytes[version]:
                places = []
                for src, dst in zip(part.src, part.dst, strict=True):
                    places.append(_place(model, src, dst, field, known))
                    progress.advance()
                by_known[str(known)] = {f"at_{at}": float(np.mean([p < at for p in places])) for at in AT}
            out[f"{field} IPv{version}"] = {"questions": len(part), "by_known_bytes": by_known}
    return out


def _place(model: Model, src: np.ndarray, dst: np.ndarray, field: str, known: int) -> int:
    """Return the right address's rank among the most probable completions, from 0; max(AT) if missing."""
    ends = {"src": Prefix.of(src), "dst": Prefix.of(dst)}
    right = ends[field]
    ends[field] = Prefix.of(src if field == "src" else dst, known)
    best = model.complete(ends["src"], ends["dst"], field=field, count=max(AT), passes=256).best
    return next((place for place, one in enumerate(best) if one.address == right), max(AT))
