# mypy: disable-error-code="no-any-return"
# State is numpy arrays or memoryviews by the way it runs, so its fields are Any.
"""
Where a request goes: the built-in policies, over what telemetry shows the router (late, as in life).

A policy never reads the output length. `State.seen` holds what the workers reported; the row a decision may read is
the newest taken `V_AGE` seconds ago or more. Leases bridge the gap: what the router placed itself and telemetry
cannot show yet is added back, once.
"""

import math

from simulation.blocks import hit_units
from simulation.layout import (
    F_ALLOCATED,
    F_ARRIVAL,
    G_DECIDER,
    G_FROZEN,
    G_HANDSHAKE,
    G_LEASE_COUNT,
    G_LEASES,
    G_ON_FULL,
    G_POLICY,
    G_RANDOM1,
    G_RANDOM2,
    G_SEEN,
    G_TURN_D,
    G_TURN_P,
    G_VIEW,
    L_PROMPT,
    L_ROOM,
    P_OPEN,
    P_PAGE,
    P_ROLE,
    P_UNIT,
    P_UP,
    P_USABLE,
    POLICY_GIVEN,
    POLICY_GUARDED,
    POLICY_LOWEST,
    POLICY_RANDOM,
    POLICY_ROUND_ROBIN,
    POLICY_TWO,
    R_D,
    R_LEASED,
    R_P,
    R_PROMPT,
    V_AGE,
    V_GATE,
    V_TELEMETRY_PERIOD,
    X_ACTIVE,
    X_FLIGHT,
    X_FRAGMENTATION,
    X_WAITING_TOKENS,
    State,
)
from simulation.looks import look_now
from simulation.requests import drop_leases

ROLE_PREFILL = 1
ROLE_DECODE = 2
ROLE_UNIFIED = 4


def random_ratio(s: State) -> float:
    """Return the next pseudo-random number in (0, 1): L'Ecuyer's combined generator (1988), whole numbers only."""
    a = (40014 * s.g[G_RANDOM1]) % 2147483563
    b = (40692 * s.g[G_RANDOM2]) % 2147483399
    s.g[G_RANDOM1] = a
    s.g[G_RANDOM2] = b
    z = a - b
    if z < 1:
        z += 2147483562
    return z * 4.656613057391769e-10


def random_below(s: State, count: int) -> int:
    """Return a pseudo-random whole number in [0, count)."""
    return min(int(random_ratio(s) * count), count - 1)


def takes(s: State, p: int, roles: int) -> bool:
    """Say whether the pool may be given work of these roles."""
    return (s.pi[p, P_ROLE] & roles) != 0 and s.pi[p, P_UP] != 0 and s.pi[p, P_OPEN] != 0


def count_pools(s: State, roles: int) -> int:
    """Return how many pools may be given work of these roles."""
    count = 0
    for p in range(len(s.pi)):
        if takes(s, p, roles):
            count += 1
    return count


def nth_pool(s: State, roles: int, n: int) -> int:
    """Return the n-th such pool."""
    for p in range(len(s.pi)):
        if takes(s, p, roles):
            if n == 0:
                return p
            n -= 1
    return -1


def pick_row(s: State, t: float) -> None:
    """Find the newest telemetry that has reached the router by `t`; confirm the leases that it shows."""
    rows = len(s.seen_at)
    if s.gf[V_TELEMETRY_PERIOD] == 0.0 and s.g[G_FROZEN] == 0:
        look_now(s, t)
    s.g[G_VIEW] = -1
    newest = s.g[G_SEEN] - 1
    oldest = max(newest - rows + 1, 0)
    for i in range(newest, oldest - 1, -1):
        if s.seen_at[i % rows] <= t - s.gf[V_AGE]:
            s.g[G_VIEW] = i % rows
            break
    if s.g[G_LEASES] == 0 or s.g[G_VIEW] < 0:
        return
    seen_at = s.seen_at[s.g[G_VIEW]]
    kept = 0
    for i in range(s.g[G_LEASE_COUNT]):
        r = s.leases[i]
        if s.rf[r, F_ARRIVAL] <= seen_at:
            drop_leases(s, r, 1)
        shown_at = s.rf[r, F_ARRIVAL] if s.g[G_HANDSHAKE] == 0 or s.ri[r, R_P] == s.ri[r, R_D] else s.rf[r, F_ALLOCATED]
        if shown_at <= seen_at:
            drop_leases(s, r, 2)
        if s.ri[r, R_LEASED] != 0:
            s.leases[kept] = r
            kept += 1
    s.g[G_LEASE_COUNT] = kept


def held_ratio(s: State, p: int, more_tokens: int) -> float:
    """Return (active + in flight + leased + more) / usable as the router sees it."""
    held = s.pf[p, L_ROOM] + more_tokens
    row = s.g[G_VIEW]
    if row >= 0:
        held += s.seen[row, p, X_ACTIVE] + s.seen[row, p, X_FLIGHT] + s.seen[row, p, X_FRAGMENTATION]
    return held / (s.pi[p, P_USABLE] * s.pi[p, P_PAGE])


def waiting_tokens(s: State, p: int) -> float:
    """Return prompt tokens that wait to be computed as the router sees it."""
    waiting = s.pf[p, L_PROMPT]
    row = s.g[G_VIEW]
    if row >= 0:
        waiting += s.seen[row, p, X_WAITING_TOKENS]
    return waiting


def load_of(s: State, p: int, roles: int) -> float:
    """Return what a policy of least load compares: prompt tokens waiting (prefill) or the ratio held."""
    return waiting_tokens(s, p) if roles == ROLE_PREFILL else held_ratio(s, p, 0)


def least_loaded(s: State, roles: int, gate: float, more_tokens: int) -> int:
    """Return the pool with the least load among those whose ratio held stays within `gate`; the first of equals."""
    best = -1
    best_load = math.inf
    for p in range(len(s.pi)):
        if takes(s, p, roles) and (gate == math.inf or held_ratio(s, p, more_tokens) <= gate):
            load = load_of(s, p, roles)
            if load < best_load:
                best = p
                best_load = load
    return best


def better_of_two(s: State, roles: int) -> int:
    """Return the less loaded of two different pools drawn at random."""
    count = count_pools(s, roles)
    if count < 2:
        return nth_pool(s, roles, 0)
    a = random_below(s, count)
    b = random_below(s, count - 1)
    if b >= a:
        b += 1
    first = nth_pool(s, roles, min(a, b))
    second = nth_pool(s, roles, max(a, b))
    return second if load_of(s, second, roles) < load_of(s, first, roles) else first


def pick(s: State, roles: int, turn: int, prompt: int) -> int:
    """Return a pool of these roles by the run's policy, or -1."""
    policy = s.g[G_POLICY]
    count = count_pools(s, roles)
    if count == 0:
        return -1
    if policy == POLICY_ROUND_ROBIN:
        n = s.g[turn] % count
        s.g[turn] += 1
        return nth_pool(s, roles, n)
    if policy == POLICY_RANDOM:
        return nth_pool(s, roles, random_below(s, count))
    if policy == POLICY_TWO:
        return better_of_two(s, roles)
    if policy == POLICY_GUARDED and roles != ROLE_PREFILL:
        best = least_loaded(s, roles, s.gf[V_GATE], prompt)
        if best >= 0 or s.g[G_ON_FULL] != 0:
            return best
    return least_loaded(s, roles, math.inf, 0)


def is_local(s: State, r: int, d: int) -> bool:
    """
    Say whether decode should compute the prompt itself.

    Dynamo's conditional disaggregation: fewer than 2048 uncached tokens and less than 0.7 of the prompt.
    llm-d's prefix decider: fewer than 16 uncached tokens.
    """
    decider = s.g[G_DECIDER]
    if decider == 1:
        return True
    if decider == 0:
        return False
    prompt = s.ri[r, R_PROMPT]
    uncached = prompt - hit_units(s, d, r, prompt) * s.pi[d, P_UNIT]
    if decider == 2:
        return uncached < 2048 and uncached < 0.7 * prompt
    return uncached < 16


def choose(s: State, r: int, t: float) -> None:
    """Set the request's pools by the run's built-in policy; R_P is -1 when there is none."""
    policy = s.g[G_POLICY]
    if policy == POLICY_GIVEN:
        return
    if policy >= POLICY_LOWEST:
        pick_row(s, t)
    prompt = s.ri[r, R_PROMPT]
    d = pick(s, ROLE_DECODE | ROLE_UNIFIED, G_TURN_D, prompt)
    p = d
    if d >= 0 and (s.pi[d, P_ROLE] & ROLE_UNIFIED) == 0 and not is_local(s, r, d):
        p = pick(s, ROLE_PREFILL, G_TURN_P, prompt)
    s.ri[r, R_P] = p
    s.ri[r, R_D] = d if p >= 0 else -1
