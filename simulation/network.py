# mypy: disable-error-code="no-any-return"
# State is numpy arrays or memoryviews by the way it runs, so its fields are Any.
"""
KV hand-over: transfers that share the network ends of their workers and the limit of their path.

"equal": a transfer gets the least of capacity / transfers over the limits it crosses (what a fair queue at each
limit gives when the rest stays unused); "max-min": progressive filling, which hands unused shares on.
Rates change only when a transfer starts or ends, so the next event is a division away.
"""

import math

from simulation.layout import (
    F_BYTES,
    F_TRANSFER_START,
    G_FLOWS,
    G_SHARING,
    K_BYTES,
    L_END,
    L_FIXED,
    L_PATH_RATE,
    L_RATE,
    L_REMAINING,
    L_REQUEST,
    L_SOURCE,
    L_START,
    L_TARGET,
    NFF,
    NFI,
    P_END,
    R_D,
    R_P,
    V_NET,
    V_NET_AT,
    State,
)


def advance_flows(s: State, t: float) -> None:
    """Move every running transfer forward to `t` at its rate."""
    past = t - s.gf[V_NET_AT]
    if past > 0.0:
        for i in range(s.g[G_FLOWS]):
            s.ff[i, L_REMAINING] -= s.ff[i, L_RATE] * past
    s.gf[V_NET_AT] = t


def path_count(s: State, flow: int, t: float) -> int:
    """Return how many running transfers share the path of `flow`."""
    source = s.ri[s.fi[flow, L_REQUEST], R_P]
    target = s.ri[s.fi[flow, L_REQUEST], R_D]
    count = 0
    for i in range(s.g[G_FLOWS]):
        r = s.fi[i, L_REQUEST]
        if s.ff[i, L_START] <= t and s.ri[r, R_P] == source and s.ri[r, R_D] == target:
            count += 1
    return count


def share_equally(s: State, t: float) -> None:
    """Set each running transfer's rate to the least of its equal shares."""
    count = s.g[G_FLOWS]
    for i in range(count):
        s.ends[s.fi[i, L_SOURCE], 2] = 0.0
        s.ends[s.fi[i, L_TARGET], 3] = 0.0
    for i in range(count):
        if s.ff[i, L_START] <= t:
            s.ends[s.fi[i, L_SOURCE], 2] += 1.0
            s.ends[s.fi[i, L_TARGET], 3] += 1.0
    for i in range(count):
        if s.ff[i, L_START] > t:
            s.ff[i, L_RATE] = 0.0
            continue
        source = s.fi[i, L_SOURCE]
        target = s.fi[i, L_TARGET]
        rate = min(s.ends[source, 0] / s.ends[source, 2], s.ends[target, 1] / s.ends[target, 3])
        path_rate = s.ff[i, L_PATH_RATE]
        if path_rate > 0.0:
            rate = min(rate, path_rate / path_count(s, i, t))
        s.ff[i, L_RATE] = rate


def tightest_share(s: State, flow: int, t: float) -> float:
    """Return the least share that the limits of `flow` have left for each of their unfixed transfers."""
    source = s.fi[flow, L_SOURCE]
    target = s.fi[flow, L_TARGET]
    p = s.ri[s.fi[flow, L_REQUEST], R_P]
    d = s.ri[s.fi[flow, L_REQUEST], R_D]
    left_source = s.ends[source, 0]
    left_target = s.ends[target, 1]
    left_path = s.ff[flow, L_PATH_RATE]
    n_source = 0
    n_target = 0
    n_path = 0
    for i in range(s.g[G_FLOWS]):
        if s.ff[i, L_START] > t:
            continue
        rate = s.ff[i, L_RATE]
        is_fixed = s.fi[i, L_FIXED] != 0
        if s.fi[i, L_SOURCE] == source:
            if is_fixed:
                left_source -= rate
            else:
                n_source += 1
        if s.fi[i, L_TARGET] == target:
            if is_fixed:
                left_target -= rate
            else:
                n_target += 1
        if s.ri[s.fi[i, L_REQUEST], R_P] == p and s.ri[s.fi[i, L_REQUEST], R_D] == d:
            if is_fixed:
                left_path -= rate
            else:
                n_path += 1
    share = min(left_source / n_source, left_target / n_target)
    if s.ff[flow, L_PATH_RATE] > 0.0:
        share = min(share, left_path / n_path)
    return share


def share_max_min(s: State, t: float) -> None:
    """Set rates by progressive filling: fix the transfer whose limits leave it least, again and again."""
    count = s.g[G_FLOWS]
    left = 0
    for i in range(count):
        s.ff[i, L_RATE] = 0.0
        s.fi[i, L_FIXED] = 0
        if s.ff[i, L_START] <= t:
            left += 1
    while left > 0:
        best = -1
        best_share = math.inf
        for i in range(count):
            if s.ff[i, L_START] <= t and s.fi[i, L_FIXED] == 0:
                share = tightest_share(s, i, t)
                if share < best_share:
                    best_share = share
                    best = i
        s.fi[best, L_FIXED] = 1
        s.ff[best, L_RATE] = max(best_share, 0.0)
        left -= 1


def plan_network(s: State, t: float) -> None:
    """Set all rates at `t` and find the network's next event; flows are already advanced to `t`."""
    if s.g[G_SHARING] == 0:
        share_equally(s, t)
    else:
        share_max_min(s, t)
    soonest = math.inf
    for i in range(s.g[G_FLOWS]):
        end = math.inf
        if s.ff[i, L_START] > t:
            soonest = min(soonest, s.ff[i, L_START])
        elif s.ff[i, L_REMAINING] <= 0.0:
            end = t
        elif s.ff[i, L_RATE] > 0.0:
            end = t + s.ff[i, L_REMAINING] / s.ff[i, L_RATE]
        # The end is kept, not found again from what remains: rounding would leave a crumb that never moves.
        s.ff[i, L_END] = end
        soonest = min(soonest, end)
    s.gf[V_NET] = soonest


def add_flow(s: State, r: int, t: float, visible_bytes: float) -> None:
    """Start the transfer of request `r`: its latency first, then its bytes."""
    advance_flows(s, t)
    i = s.g[G_FLOWS]
    s.g[G_FLOWS] = i + 1
    p = s.ri[r, R_P]
    d = s.ri[r, R_D]
    s.fi[i, L_REQUEST] = r
    s.fi[i, L_SOURCE] = s.pi[p, P_END]
    s.fi[i, L_TARGET] = s.pi[d, P_END]
    s.ff[i, L_REMAINING] = visible_bytes
    s.ff[i, L_RATE] = 0.0
    s.ff[i, L_START] = t + s.paths[p, d, 1]
    s.ff[i, L_PATH_RATE] = s.paths[p, d, 0]
    s.rf[r, F_TRANSFER_START] = t
    plan_network(s, t)


def remove_flow(s: State, i: int) -> None:
    """Forget flow `i`; the order of the others stays, as it is the order of arrival at one instant."""
    last = s.g[G_FLOWS] - 1
    for j in range(i, last):
        for column in range(NFI):
            s.fi[j, column] = s.fi[j + 1, column]
        for column in range(NFF):
            s.ff[j, column] = s.ff[j + 1, column]
    s.g[G_FLOWS] = last


def find_flow(s: State, r: int) -> int:
    """Return the flow of request `r`, or -1 (it waits for a credit)."""
    for i in range(s.g[G_FLOWS]):
        if s.fi[i, L_REQUEST] == r:
            return i
    return -1


def line_rate(s: State, p: int, d: int) -> float:
    """Return the rate a transfer would have alone."""
    rate = min(s.ends[s.pi[p, P_END], 0], s.ends[s.pi[d, P_END], 1])
    if s.paths[p, d, 0] > 0.0:
        rate = min(rate, s.paths[p, d, 0])
    return rate


def transfer_bytes(s: State, r: int, sent_tokens: int) -> float:
    """Return the bytes of `sent_tokens` positions, counted in the request's link bytes."""
    size = sent_tokens * s.pf[s.ri[r, R_P], K_BYTES]
    s.rf[r, F_BYTES] += size
    return size
