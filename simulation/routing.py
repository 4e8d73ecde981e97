# mypy: disable-error-code="no-any-return"
# State is numpy arrays or memoryviews by the way it runs, so its fields are Any.
"""
Where a request goes: the built-in policies over what the router sees (`views`). None reads the output length.
"""

import math

from simulation.blocks import hit_units
from simulation.joint import choose_pair
from simulation.layout import (
    G_DECIDER,
    G_ON_FULL,
    G_PLACED,
    G_PLACED_TOKENS,
    G_POLICY,
    G_RANDOM1,
    G_RANDOM2,
    G_TURN_D,
    G_TURN_P,
    P_ROLE,
    P_UNIT,
    POLICY_GIVEN,
    POLICY_GUARDED,
    POLICY_JOINT,
    POLICY_LOWEST,
    POLICY_RANDOM,
    POLICY_ROUND_ROBIN,
    POLICY_TWO,
    R_D,
    R_P,
    R_PROMPT,
    V_GATE,
    State,
)
from simulation.views import (
    ROLE_DECODE,
    ROLE_PREFILL,
    ROLE_UNIFIED,
    count_pools,
    held_ratio,
    load_of,
    nth_pool,
    pick_row,
    takes,
)


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
    s.g[G_PLACED] += 1
    s.g[G_PLACED_TOKENS] += prompt
    if policy == POLICY_JOINT and choose_pair(s, r) != 0:
        return
    d = pick(s, ROLE_DECODE | ROLE_UNIFIED, G_TURN_D, prompt)
    p = d
    if d >= 0 and (s.pi[d, P_ROLE] & ROLE_UNIFIED) == 0 and not is_local(s, r, d):
        p = pick(s, ROLE_PREFILL, G_TURN_P, prompt)
    s.ri[r, R_P] = p
    s.ri[r, R_D] = d if p >= 0 else -1
