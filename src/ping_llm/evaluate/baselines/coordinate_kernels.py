"""Compiled inner loops of the network-coordinate methods."""

import numpy as np

from ping_llm.compiled import kernel


@kernel
def distance(a, b, height_a, height_b):
    total = 0.0
    for d in range(len(a)):
        total += (a[d] - b[d]) ** 2
    return np.sqrt(total) + height_a + height_b


@kernel
def vivaldi_move(at, other, height, other_height, error, other_error, rtt, gain, smallest_height):
    """One adaptive step of a node to where `rtt` from `other` puts it; returns its new height and error."""
    predicted = distance(at, other, height, other_height)
    weight = error / max(error + other_error, 1e-9)
    sample = abs(predicted - rtt) / max(rtt, 0.1)
    new_error = sample * gain * weight + error * (1.0 - gain * weight)
    force = gain * weight * (rtt - predicted)
    # With heights the direction from the other node has the length of the whole path: coordinates take the
    # share of the force that they have of the predicted RTT, heights the rest.
    if predicted > 1e-6:
        for d in range(len(at)):
            at[d] += force * (at[d] - other[d]) / predicted
        height += force * (height + other_height) / predicted
    return max(height, smallest_height), min(new_error, 2.0)


@kernel
def vivaldi_train(at, height, error, src, dst, rtt, order, gain, smallest_height):
    """Go through the measurements once in the given order; both ends of each move."""
    for i in order:
        s, d = src[i], dst[i]
        before, before_height, before_error = at[s].copy(), height[s], error[s]
        height[s], error[s] = vivaldi_move(
            at[s], at[d], height[s], height[d], error[s], error[d], rtt[i], gain, smallest_height
        )
        height[d], error[d] = vivaldi_move(
            at[d], before, height[d], before_height, error[d], before_error, rtt[i], gain, smallest_height
        )


@kernel
def vivaldi_fold_in(
    at, height, error, node, rtt, low, high, start, start_height, gain, smallest_height, passes
):
    """Place one new node for each query by its measurements node[low:high], everything else at rest."""
    n, dims = len(low), at.shape[1]
    placed, placed_height = np.empty((n, dims)), np.empty(n)
    for i in range(n):
        position, own_height, own_error = start.copy(), start_height, 1.0
        for _ in range(passes):
            for j in range(low[i], high[i]):
                if node[j] >= 0 and rtt[j] >= 0:
                    other = node[j]
                    own_height, own_error = vivaldi_move(
                        position, at[other], own_height, height[other], own_error, error[other],
                        rtt[j], gain, smallest_height,
                    )  # fmt: skip
        placed[i], placed_height[i] = position, own_height
    return placed, placed_height


@kernel
def dmf_train(left, right, left_bias, right_bias, src, dst, value, order, rate, penalty):
    """One pass of stochastic gradient descent on (value - left·right - biases)² + penalty · |factors|²."""
    rank = left.shape[1]
    for i in order:
        s, d = src[i], dst[i]
        predicted = left_bias[s] + right_bias[d]
        for r in range(rank):
            predicted += left[s, r] * right[d, r]
        error = value[i] - predicted
        left_bias[s] += rate * (error - penalty * left_bias[s])
        right_bias[d] += rate * (error - penalty * right_bias[d])
        for r in range(rank):
            u, v = left[s, r], right[d, r]
            left[s, r] += rate * (error * v - penalty * u)
            right[d, r] += rate * (error * u - penalty * v)


@kernel
def dmf_fold_in(right, right_bias, node, value, low, high, mean, precision, noise):
    """Each query's new source (its factors, then its bias) by Bayesian regression on its measurements
    node[low:high], with the known sources' mean and precision as prior."""
    n, rank = len(low), right.shape[1]
    out = np.empty((n, rank + 1))
    row = np.ones(rank + 1)
    for i in range(n):
        gram = precision.copy()
        moment = precision @ mean
        for j in range(low[i], high[i]):
            if node[j] < 0 or np.isnan(value[j]):
                continue
            row[:rank] = right[node[j]]
            target = (value[j] - right_bias[node[j]]) / noise
            for a in range(rank + 1):
                moment[a] += row[a] * target
                for b in range(rank + 1):
                    gram[a, b] += row[a] * row[b] / noise
        out[i] = np.linalg.solve(gram, moment)
    return out
