"""What `relation_kernels` must come to, from dictionaries, for data small enough to look at whole."""

import ipaddress
from math import cos, exp, log, log1p, pi, sin, sqrt

import numpy as np

from ping_llm.answer.methods import relation_kernels as kernels

EXPECTED = (0.5, 0.4, 0.25, 0.1)
LEVELS = {4: (8, 16, 24), 6: (32, 48, 64)}


def common(one, other):
    if one.version != other.version:
        return 0
    bits = one.max_prefixlen - (int(one) ^ int(other)).bit_length()
    return sum(bits >= level for level in LEVELS[one.version])


def log_of(rtt):
    return log(rtt + 0.1)


class Oracle:
    """Questions about pairs of addresses (`ipaddress`), from the medians of known pairs.

    Args:
      numbers: the number of each address, by side: in this order the kernel looks through ends.
    """

    def __init__(self, medians, sources, destinations, spread):
        self.cells = {pair: log_of(rtt) for pair, rtt in medians.items()}
        self.sides, self.spread = (sources, destinations), spread

    def of(self, side, end):
        """The results of an end: by its other end, in the order of their numbers."""
        found = {pair[1 - side]: v for pair, v in self.cells.items() if pair[side] == end}
        return dict(sorted(found.items(), key=lambda item: self.sides[1 - side][item[0]]))

    def near(self, side, asked, much):
        found = [end for end in self.sides[side] if end != asked and common(end, asked) == much]
        return sorted(found, key=self.sides[side].get)[:6]

    def agreement(self, own, side, end):
        pairs = [(own[other], value) for other, value in self.of(side, end).items() if other in own]
        off = [mine - theirs for mine, theirs in pairs]
        return (
            len(off), sum(off), sum(x * x for x in off), sum(map(abs, off)),
            sum(exp(mine) - exp(theirs) for mine, theirs in pairs),
        )  # fmt: skip

    def mean(self, side, end, left_out, otherwise):
        values = [v for other, v in self.of(side, end).items() if other not in left_out]
        return (sum(values) / len(values), len(values)) if values else (otherwise, 0)

    def described(self, kind, value, agreed, mean, several, overall, commons):
        shared, total, square, absolute, linear = agreed
        shift = total / (shared + 1)
        out = np.zeros(kernels.RESULT)
        out[kind] = 1
        out[4:13] = (
            value - 3.7, value - mean, value + shift - 3.7, shift, log1p(shared) / 3,
            (absolute + 0.5) / (shared + 1), log(max(exp(value) + linear / (shared + 1), 0.3)) - value,
            mean - overall, log1p(several) / 4,
        )  # fmt: skip
        out[13 + commons[0]] = out[17 + commons[1]] = 1
        out[21] = sqrt(max(square / (shared + 1) - shift * shift, 0))
        return out

    def question(self, source, destination, row=None, column=None):
        """Results and question; `row`, `column`: what is shown of a new end, else all that is known."""
        hidden = (row is not None, column is not None)
        row = {o: v for o, v in (self.of(0, source) if row is None else row).items() if o != destination}
        column = {
            o: v for o, v in (self.of(1, destination) if column is None else column).items() if o != source
        }
        others = [
            value for pair, value in self.cells.items()
            if pair != (source, destination)
            and not (hidden[0] and pair[0] == source) and not (hidden[1] and pair[1] == destination)
        ]  # fmt: skip
        overall = sum(others) / len(others) if others else 3.7
        results = np.zeros((kernels.SHOWN, kernels.RESULT))
        places = (0, kernels.COLUMN, kernels.COLUMN + kernels.ROW)
        effects = []
        for kind, (shown, own, side, asked, across) in enumerate(
            [(column, row, 0, source, destination), (row, column, 1, destination, source)]
        ):
            near = [end for much in (3, 2, 1) for end in self.near(side, asked, much)]
            ordered = dict.fromkeys([*(end for end in near if end in shown), *shown])
            listed, off = [], []
            for end in ordered:
                agreed = self.agreement(own, side, end)
                much = common(end, asked)
                listed.append(((agreed[3] + EXPECTED[much]) / (agreed[0] + 1), end, agreed, much))
            for end, value in shown.items():
                mean, several = self.mean(side, end, (across,), overall)
                if several:
                    off.append(value - mean)
            effects.append(sum(off) / (len(off) + 1))
            best = sorted(listed, key=lambda each: each[0])[: (kernels.COLUMN, kernels.ROW)[kind]]
            for place, (_, end, agreed, much) in enumerate(best):
                mean, several = self.mean(side, end, (across,), overall)
                results[places[kind] + place] = self.described(
                    kind, shown[end], agreed, mean, several, overall, (much, 3) if kind == 0 else (3, much)
                )
        listed, looked_at = [], [end for much in (3, 2, 1) for end in self.near(1, destination, much)][:6]
        for there in looked_at:
            for end, value in self.of(1, there).items():
                if end != source:
                    agreed, alike = self.agreement(row, 0, end), common(end, source)
                    score = (agreed[3] + EXPECTED[alike]) / (agreed[0] + 1) + EXPECTED[
                        common(there, destination)
                    ]
                    listed.append((score, end, there, value, agreed, alike))
        for place, (_, end, there, value, agreed, alike) in enumerate(
            sorted(listed, key=lambda each: each[0])[: kernels.NEAR]
        ):
            mean, several = self.mean(0, end, (there, destination), overall)
            commons = (alike, common(there, destination))
            results[places[2] + place] = self.described(2, value, agreed, mean, several, overall, commons)
        asked = np.zeros(kernels.QUESTION)
        asked[:11] = (
            overall - 3.7, self.spread, log1p(len(row)) / 4, log1p(len(column)) / 4, effects[1], effects[0],
            overall - 3.7 + sum(effects), (sum(row.values()) + overall) / (len(row) + 1) - 3.7,
            (sum(column.values()) + overall) / (len(column) + 1) - 3.7,
            log1p(len(self.sides[0])) / 6, log1p(len(self.sides[1])) / 6,
        )  # fmt: skip
        return results, asked


def pair_results(rtts, times, now):
    """The numbers of a pair's newest replies, oldest first, and of the question; `now`: µs or None."""
    logs = [log_of(rtt) for rtt in rtts]
    recent, newest = logs[-32:], logs[-1]
    mean, spread = float(np.mean(recent)), float(np.std(recent))
    results, asked = np.zeros((kernels.PAIR, kernels.RESULT)), np.zeros(kernels.QUESTION)
    asked[11:17] = (
        log1p(len(logs)) / 4,
        mean - 3.7,
        spread,
        mean - min(recent),
        newest - mean,
        now is not None,
    )
    for j, (value, time) in enumerate(list(zip(logs, times, strict=True))[: -kernels.PAIR - 1 : -1]):
        results[j, 3], results[j, 4] = 1, value - 3.7
        results[j, 5], results[j, 6], results[j, 9] = value - mean, value - newest, spread
        results[j, 8], results[j, 12], results[j, 11] = j / 8, log1p(len(logs)) / 4, value - min(recent)
        if now is not None:
            age = now - time
            phase = 2 * pi * age / 86_400e6
            results[j, 22:26] = 1, log1p(age / 1e6) / 10, cos(phase), sin(phase)
    return results, asked


def address(packed):
    packed = bytes(packed)
    mapped = packed[:12] == bytes(10) + b"\xff\xff"
    return ipaddress.IPv4Address(packed[12:]) if mapped else ipaddress.IPv6Address(packed)
