"""The distribution of the result of one measurement, and draws from it.

    failed with probability  p(target, its local hour) + p(access)
    else  RTT = shift + jitter
          shift  = great circle × inflation of the AS pair, detour, current route
                   + access delay (and per byte) + target's delay + congestion (access, local time of day)
          jitter = log-logistic, sometimes (spike weight) a heavier one

The log-logistic distribution resembles measured jitter (steep start, long tail) and has a closed-form CDF
*and* inverse, so that the truth is exact and a draw costs one power. Each component is cut at 300 s, which is
close to the largest RTT in real dumps (302 s).

Only `distribution` defines the parameters: the writer draws from it, and `Truth` evaluates it.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ping_llm.compiled import kernel
from ping_llm.simulate.options import uniform_at

#: Largest jitter, ms.
JITTER_LIMIT = 300_000.0

EARTH_RADIUS_KM = 6_371.0
#: Distance per ms of RTT: light in fibre travels 100 km and back in 1 ms.
KM_PER_MS = 100.0

#: Local hour with the highest congestion; 3.3 hours before and after it is half of that.
PEAK_HOUR = 20.5

#: Shortest duration of a route and its spread, in seconds: routes last 2 to 14 days.
ROUTE_SHORTEST, ROUTE_SPREAD = 2 * 86_400, 12 * 86_400

#: Number of places from which an anycast target replies.
ANYCAST_PLACES = 8

#: Shape of spikes: one of ten times the usual size is 40 times rarer. Uncut, the variance is infinite, the
#: mean finite.
SPIKE_SHAPE = 1.6

PACKETS = 3


class Latency(NamedTuple):
    """Everything that determines results: arrays by probe, target and site, and keys of random streams."""

    probe_as: np.ndarray
    probe_site: np.ndarray
    probe_delay: np.ndarray
    probe_congestion: np.ndarray
    probe_jitter: np.ndarray
    probe_shape: np.ndarray
    probe_spike_weight: np.ndarray
    probe_spike_scale: np.ndarray
    probe_failure: np.ndarray
    probe_byte_delay: np.ndarray  # ms that each byte of the payload adds
    target_as: np.ndarray
    target_site: np.ndarray
    target_delay: np.ndarray
    target_failure: np.ndarray  # [targets, 24]: probability in each local hour
    target_zone: np.ndarray  # whole hours east of UTC
    site_longitude: np.ndarray
    site_direction: np.ndarray
    ases: int
    inflation_key: np.uint64
    detour_key: np.uint64
    route_length_key: np.uint64
    route_offset_key: np.uint64
    route_change_key: np.uint64
    failure_key: np.uint64
    component_key: np.uint64
    jitter_key: np.uint64
    loss_key: np.uint64
    anycast_key: np.uint64
    anycast_share: float
    detour_share: float
    changed_share: float


@kernel
def _cosine(here, there):
    return here[0] * there[0] + here[1] * there[1] + here[2] * there[2]


@kernel
def propagation(world, probe, target, second):
    """RTT of the path in ms: the same for all hosts of two sites while a route lasts, except to anycast."""
    one, other = np.int64(world.probe_as[probe]), np.int64(world.target_as[target])
    pair = min(one, other) * world.ases + max(one, other)
    here = world.site_direction[world.probe_site[probe]]
    cosine = _cosine(here, world.site_direction[world.target_site[target]])
    if world.anycast_share > 0.0 and uniform_at(world.anycast_key, target, 0) < world.anycast_share:
        for place in range(1, ANYCAST_PLACES):
            chosen = np.int64(uniform_at(world.anycast_key, target, place) * len(world.target_site))
            cosine = max(cosine, _cosine(here, world.site_direction[world.target_site[chosen]]))
    line = EARTH_RADIUS_KM * math.acos(max(-1.0, min(1.0, cosine))) / KM_PER_MS

    inflation = min(1.75, 1.3 + 0.3 * -math.log(uniform_at(world.inflation_key, pair, 0)))
    # Cables go around continents: the path is longer by up to another quarter, which is reached at 9,000 km.
    inflation *= 1.0 + 0.25 * min(1.0, line / 90.0)
    detour = 0.0
    chance = uniform_at(world.detour_key, pair, 0)
    if chance < world.detour_share:
        detour = 5.0 + 35.0 * chance / world.detour_share

    length = ROUTE_SHORTEST + ROUTE_SPREAD * uniform_at(world.route_length_key, pair, 0)
    epoch = np.int64(second / length + uniform_at(world.route_offset_key, pair, 0))
    chance = uniform_at(world.route_change_key, pair, epoch)
    if chance < world.changed_share:
        inflation *= 1.05
        detour += 3.0 + 25.0 * (chance / world.changed_share) ** 2
    return line * inflation + detour


@kernel
def distribution(world, probe, target, second, size):
    """Parameters of one result: (failure, shift, scale, shape, spike weight, spike scale, spike shape)."""
    path = propagation(world, probe, target, second)
    hour = second / 3_600 + world.site_longitude[world.probe_site[probe]] / 15.0
    busy = math.exp(2.0 * (math.cos((hour - PEAK_HOUR) * (2 * math.pi / 24)) - 1.0))
    shift = path + world.probe_delay[probe] + world.target_delay[target]
    shift += world.probe_congestion[probe] * busy + world.probe_byte_delay[probe] * size
    # A longer path passes more queues.
    scale = (world.probe_jitter[probe] + 0.002 * path) * (1.0 + busy)
    spike_weight = world.probe_spike_weight[probe] * (1.0 + busy)
    target_hour = (second // 3_600 + np.int64(world.target_zone[target])) % 24
    failure = min(0.98, world.target_failure[target, target_hour] + world.probe_failure[probe])
    shape = np.float64(world.probe_shape[probe])
    spike_scale = np.float64(world.probe_spike_scale[probe])
    return failure, shift, scale, shape, spike_weight, spike_scale, SPIKE_SHAPE


@kernel
def distributions(world, probe, target, second, size, parameters):
    """Write the parameters of many results to float64 [n, 7]."""
    for index in range(len(second)):
        row = parameters[index]
        row[0], row[1], row[2], row[3], row[4], row[5], row[6] = distribution(
            world, probe[index], target[index], second[index], size[index]
        )


@kernel
def log_logistic_cdf(x, scale, shape):
    if x <= 0.0:
        return 0.0
    return 1.0 / (1.0 + (x / scale) ** -shape)


@kernel
def log_logistic_inverse(p, scale, shape):
    return scale * (p / (1.0 - p)) ** (1.0 / shape)


@kernel
def draw(world, start, probes, slots, rounds, times, targets, sizes, rtt, errors):
    """Draw the results of measurements. RTTs are rounded *down* to whole µs and stay in their millisecond."""
    for index in range(len(probes)):
        probe, slot, round_ = probes[index], slots[index], rounds[index]
        failure, shift, scale, shape, spike_weight, spike_scale, spike_shape = distribution(
            world, probe, targets[index], start + times[index], sizes[index]
        )
        if uniform_at(world.failure_key, slot, round_) < failure:
            rtt[index] = -1.0
            errors[index] = PACKETS
            continue
        if uniform_at(world.component_key, slot, round_) < spike_weight:
            scale, shape = spike_scale, spike_shape
        within = uniform_at(world.jitter_key, slot, round_) * log_logistic_cdf(JITTER_LIMIT, scale, shape)
        rtt[index] = math.floor((shift + log_logistic_inverse(within, scale, shape)) * 1_000.0) / 1_000.0
        # Given a reply, two packets of three are lost with probability failure / 3, one with twice that.
        loss = uniform_at(world.loss_key, slot, round_)
        errors[index] = 2 if loss < failure / 3 else 1 if loss < failure else 0


@kernel
def order_by_time(times, begin_second, end_second, order):
    """Sort by time, stably, by counting: measurements of the same second stay in the order of probes."""
    begins = np.zeros(end_second - begin_second + 1, np.int64)
    for index in range(len(times)):
        begins[times[index] - begin_second + 1] += 1
    for second in range(len(begins) - 1):
        begins[second + 1] += begins[second]
    for index in range(len(times)):
        second = times[index] - begin_second
        order[begins[second]] = index
        begins[second] += 1


@dataclass(frozen=True)
class Truth:
    """The exact distributions of n results.

    An RTT is continuous in the simulated world and stored rounded *down* to a whole µs, so it stays in its
    millisecond: bins [k, k + 1) ms have the same probability before and after rounding.

    `cdf`, `quantile` and `log_density` are those of the RTT given that there is a reply. Their argument is a
    number, [n] (one per result), [n, m] (m per result), or [1, m] (the same m for all results).
    """

    parameters: np.ndarray  # float64 [n, 7] in the order of latency.distribution

    @classmethod
    def of(
        cls, latency: Latency, probe: np.ndarray, target: np.ndarray, second: np.ndarray, size: Any = 0
    ) -> "Truth":
        given = [array.astype(np.int64) for array in np.broadcast_arrays(probe, target, second, size)]
        parameters = np.empty((len(given[0]), 7))
        distributions(latency, *given, parameters)
        return cls(parameters)

    def __len__(self) -> int:
        return len(self.parameters)

    def __getitem__(self, chosen: slice | np.ndarray) -> "Truth":
        return Truth(self.parameters[chosen])

    @property
    def failure_probability(self) -> np.ndarray:
        """The probability of no reply, [n]."""
        return self.parameters[:, 0]

    def cdf(self, rtt: np.ndarray | float) -> np.ndarray:
        """The probability that a reply takes at most `rtt` ms."""
        return self._apply(_cdf, rtt)

    def log_density(self, rtt: np.ndarray | float) -> np.ndarray:
        """The natural logarithm of the density per ms; -inf where the RTT is impossible."""
        return self._apply(_log_density, rtt)

    def quantile(self, p: np.ndarray | float) -> np.ndarray:
        """The RTT, in ms, below which a reply is with probability p."""
        values = np.asarray(p, np.float64)
        if not ((values >= 0) & (values <= 1)).all():
            raise ValueError("a probability is between 0 and 1")
        return self._apply(_quantile, values)

    def bits(self, rtt: np.ndarray | float, bin_ms: float = 1.0) -> np.ndarray:
        """Bits of the observed results under the truth: -log2 of the probability of the bin, or of failure.

        Args:
          rtt: RTTs as stored; -1 is a failure.
          bin_ms: Width of a bin in ms; bins are [k, k + 1) times this.
        """
        values = np.broadcast_to(np.asarray(rtt, np.float64), (len(self),))
        result = np.empty(len(self))
        _bits(self.parameters, np.ascontiguousarray(values), bin_ms, result)
        return result

    def entropy(self, bin_ms: float = 1.0) -> np.ndarray:
        """The expected bits of each result, [n], in 50 µs per result. `bits` of samples have the same mean.

        The sum is over single bins up to 500 ms above the shift, then over groups of bins that grow by 2 %
        and are taken as flat inside. The error is less than 1e-5 bits.
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
    """The CDF of one component, cut at JITTER_LIMIT."""
    if x >= JITTER_LIMIT:
        return 1.0
    return log_logistic_cdf(x, scale, shape) / log_logistic_cdf(JITTER_LIMIT, scale, shape)


@kernel
def _component_survival(x, scale, shape):
    """1 - CDF of one component, without cancellation, so that far bins keep full precision."""
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
    """The probability that a reply takes low <= rtt < high, computed from the smaller of the two tails."""
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
