"""Compiled search for the sources most like a query's."""

import numpy as np

from ping_llm.compiled import kernel


@kernel
def predict(
    profile_at, profile_dst, profile_log,  # queries' own profiles: rows profile_at[i]:profile_at[i + 1]
    wanted,  # destination asked about, -1 if new
    source_at, source_dst, source_log,  # known sources' profiles, by source
    asked_at, asked_src, asked_log,  # and by destination
    itself,  # the query's own number among the known sources, -1 if new
    destinations, neighbours, least_shared, softness,
):  # fmt: skip
    """Weighted mean log RTT of the nearest sources to the wanted destination, and how many were used.

    The distance of two sources is the mean absolute difference of log RTT to the destinations they share.
    """
    n = len(wanted)
    point, used = np.zeros(n), np.zeros(n, np.int64)
    dense = np.full(destinations, np.nan)
    best_distance, best_value = np.empty(neighbours), np.empty(neighbours)
    for i in range(n):
        if wanted[i] < 0:
            continue
        for p in range(profile_at[i], profile_at[i + 1]):
            dense[profile_dst[p]] = profile_log[p]
        held = dense[wanted[i]]
        dense[wanted[i]] = np.nan  # the answer itself is no evidence of likeness
        found = 0
        for c in range(asked_at[wanted[i]], asked_at[wanted[i] + 1]):
            other = asked_src[c]
            if other == itself[i]:
                continue
            total, shared = 0.0, 0
            for p in range(source_at[other], source_at[other + 1]):
                mine = dense[source_dst[p]]
                if not np.isnan(mine):
                    total += abs(mine - source_log[p])
                    shared += 1
            if shared < least_shared:
                continue
            # Few shared destinations are weak evidence: pull their distance towards that of strangers.
            distance = (total + 0.5) / (shared + 1.0)
            # Insertion into the short sorted list of the nearest.
            if found < neighbours:
                found += 1
            elif distance >= best_distance[found - 1]:
                continue
            j = found - 1
            while j > 0 and best_distance[j - 1] > distance:
                best_distance[j], best_value[j] = best_distance[j - 1], best_value[j - 1]
                j -= 1
            best_distance[j], best_value[j] = distance, asked_log[c]
        weight_sum, value_sum = 0.0, 0.0
        for j in range(found):
            weight = np.exp(-(best_distance[j] - best_distance[0]) / softness) / (best_distance[j] + 0.01)
            weight_sum += weight
            value_sum += weight * best_value[j]
        if found:
            point[i], used[i] = value_sum / weight_sum, found
        dense[wanted[i]] = held
        for p in range(profile_at[i], profile_at[i + 1]):
            dense[profile_dst[p]] = np.nan
    return point, used
