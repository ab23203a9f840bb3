"""The true distributions of results: what the best possible model would say."""

import math
from dataclasses import dataclass

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.simulate.latency import JITTER_LIMIT, Latency, distributions, log_logistic_cdf


@dataclass(frozen=True)
class Truth:
    """The distributions of n results, exact.

    An RTT is continuous in the world and stored rounded *down* to a whole µs, so it stays in its
    millisecond: bins [k, k + 1) ms have the same probability before and after.

    `cdf`, `quantile` and `log_density` are of the RTT given that there is a reply. Their argument is a
    number, [n] (one for each result), [n, m] (many for each), or [1, m] (the same many for each).
    """

    parameters: np.ndarray  # float64 [n, 7] in the order of latency.distribution

    @classmethod
    def of(cls, latency: Latency, probe: np.ndarray, target: np.ndarray, second: np.ndarray) -> "Truth":
        probe, target, second = np.broadcast_arrays(probe, target, second)
        parameters = np.empty((len(second), 7))
        distributions(
            latency, probe.astype(np.int64), target.astype(np.int64), second.astype(np.int64), parameters
        )
        return cls(parameters)

    def __len__(self) -> int:
        return len(self.parameters)

    def __getitem__(self, chosen: slice | np.ndarray) -> "Truth":
        return Truth(self.parameters[chosen])

    @property
    def failure_probability(self) -> np.ndarray:
        """Probability of no reply, [n]."""
        return self.parameters[:, 0]

    def cdf(self, rtt: np.ndarray | float) -> np.ndarray:
        """Probability that a reply takes at most `rtt` ms."""
        return self._apply(_cdf, rtt)

    def log_density(self, rtt: np.ndarray | float) -> np.ndarray:
        """Natural logarithm of the density per ms, -inf where the RTT is impossible."""
        return self._apply(_log_density, rtt)

    def quantile(self, p: np.ndarray | float) -> np.ndarray:
        """The RTT in ms that a reply stays below with probability p."""
        values = np.asarray(p, np.float64)
        if not ((values >= 0) & (values <= 1)).all():
            raise ValueError("a probability is between 0 and 1")
        return self._apply(_quantile, values)

    def bits(self, rtt: np.ndarray | float, bin_ms: float = 1.0) -> np.ndarray:
        """Bits that the truth needs for the observed results: -log2 of the bin's probability, or of failure.

        Args:
          rtt: as stored; -1 is a failure.
          bin_ms: bins are [k, k + 1) times this.
        """
        values = np.broadcast_to(np.asarray(rtt, np.float64), (len(self),))
        result = np.empty(len(self))
        _bits(self.parameters, np.ascontiguousarray(values), bin_ms, result)
        return result

    def entropy(self, bin_ms: float = 1.0) -> np.ndarray:
        """Expected bits of each result, [n]. Costs 50 µs each: `bits` of samples have the same mean.

        Bin by bin to 500 ms above the shift; beyond, groups of bins that grow by 2 %, taken as flat inside.
        That is off by less than 1e-5 bits.
        """
        result = np.empty(len(self))
        _entropy(self.parameters, bin_ms, result)
        return result

    def _apply(self, function, values) -> np.ndarray:
        values = np.asarray(values, np.float64)
        if values.ndim == 0:
            values = np.broadcast_to(values, (len(self),))
        elif values.ndim == 2:
            values = np.broadcast_to(values, (len(self), values.shape[1]))
        elif values.shape != (len(self),):
            raise ValueError(f"{values.shape} values for {len(self)} results: give one for each, or [1, m]")
        wide = values.reshape(len(self), -1)
        result = np.empty(wide.shape)
        function(self.parameters, np.ascontiguousarray(wide), result)
        return result.reshape(values.shape)


@kernel
def _component_cdf(x, scale, shape):
    """Of one component, cut at JITTER_LIMIT."""
    if x >= JITTER_LIMIT:
        return 1.0
    return log_logistic_cdf(x, scale, shape) / log_logistic_cdf(JITTER_LIMIT, scale, shape)


@kernel
def _component_survival(x, scale, shape):
    """1 - CDF without cancellation: far bins keep all their digits."""
    if x <= 0.0:
        return 1.0
    if x >= JITTER_LIMIT:
        return 0.0
    beyond = 1.0 / (1.0 + (JITTER_LIMIT / scale) ** shape)
    return (1.0 / (1.0 + (x / scale) ** shape) - beyond) / (1.0 - beyond)


@kernel
def _mixture_cdf(row, rtt):
    x = rtt - row[1]
    return (1.0 - row[4]) * _component_cdf(x, row[2], row[3]) + row[4] * _component_cdf(x, row[5], row[6])


@kernel
def _between(row, low, high):
    """Probability that a reply takes low <= rtt < high, by the smaller of the two tails."""
    a, b = low - row[1], high - row[1]
    total = 0.0
    for weight, scale, shape in ((1.0 - row[4], row[2], row[3]), (row[4], row[5], row[6])):
        if a > scale:
            part = _component_survival(a, scale, shape) - _component_survival(b, scale, shape)
        else:
            part = _component_cdf(b, scale, shape) - _component_cdf(a, scale, shape)
        total += weight * part
    return total


@kernel
def _cdf(parameters, values, result):
    for index in range(len(values)):
        for column in range(values.shape[1]):
            result[index, column] = _mixture_cdf(parameters[index], values[index, column])


@kernel
def _component_density(x, scale, shape):
    ratio = x / scale
    power = ratio**shape
    density = (shape / x) * power / (1.0 + power) ** 2
    return density / log_logistic_cdf(JITTER_LIMIT, scale, shape)


@kernel
def _log_density(parameters, values, result):
    for index in range(len(values)):
        row = parameters[index]
        for column in range(values.shape[1]):
            x = values[index, column] - row[1]
            if x <= 0.0 or x >= JITTER_LIMIT:
                result[index, column] = -math.inf
                continue
            body = _component_density(x, row[2], row[3])
            spike = _component_density(x, row[5], row[6])
            result[index, column] = math.log((1.0 - row[4]) * body + row[4] * spike)


@kernel
def _quantile(parameters, values, result):
    for index in range(len(values)):
        row = parameters[index]
        for column in range(values.shape[1]):
            # Bisection to the last bit: 1,100 steps at most, 60 in practice.
            low, high = row[1], row[1] + JITTER_LIMIT
            while True:
                middle = 0.5 * (low + high)
                if middle <= low or middle >= high:
                    break
                if _mixture_cdf(row, middle) < values[index, column]:
                    low = middle
                else:
                    high = middle
            result[index, column] = high if values[index, column] > 0.0 else row[1]


@kernel
def _bits(parameters, values, bin_ms, result):
    for index in range(len(values)):
        row = parameters[index]
        if values[index] < 0.0:
            result[index] = -math.log2(row[0]) if row[0] > 0.0 else math.inf
            continue
        number = math.floor(values[index] / bin_ms)
        probability = (1.0 - row[0]) * _between(row, number * bin_ms, (number + 1) * bin_ms)
        result[index] = -math.log2(probability) if probability > 0.0 else math.inf


@kernel
def _survival(row, rtt):
    x = rtt - row[1]
    body = _component_survival(x, row[2], row[3])
    return (1.0 - row[0]) * ((1.0 - row[4]) * body + row[4] * _component_survival(x, row[5], row[6]))


@kernel
def _entropy(parameters, bin_ms, result):
    for index in range(len(parameters)):
        row = parameters[index]
        total = -row[0] * math.log2(row[0]) if row[0] > 0.0 else 0.0
        number = math.floor(row[1] / bin_ms)
        fine_end = (row[1] + 500.0) / bin_ms
        left = 1.0 - row[0]
        while left > 0.0:
            width = 1.0
            if number > fine_end:
                width = math.ceil(0.02 * (number - row[1] / bin_ms))
            after = _survival(row, (number + width) * bin_ms)
            probability = left - after
            if probability > 0.0:
                total -= probability * math.log2(probability / width)
            number += width
            left = after
        result[index] = total
