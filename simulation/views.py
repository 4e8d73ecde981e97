# mypy: disable-error-code="no-any-return"
# State is numpy arrays or memoryviews by the way it runs, so its fields are Any.
"""
What a router sees of the pools: late telemetry, its own leases, and which pools may be given work.

`State.seen` holds what the workers reported; the row that a decision may read is the newest one taken `V_AGE` seconds
ago or more. Leases bridge the gap: what the router placed itself and telemetry cannot show yet is added back, once.
"""

import math

from simulation.layout import (
    F_ALLOCATED,
    F_PLACED,
    G_FROZEN,
    G_HANDSHAKE,
    G_LEASE_COUNT,
    G_LEASES,
    G_SEEN,
    G_VIEW,
    L_PROMPT,
    L_ROOM,
    P_OPEN,
    P_PAGE,
    P_ROLE,
    P_UP,
    P_USABLE,
    R_D,
    R_LEASED,
    R_P,
    V_AGE,
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
    if s.g[G_LEASES] == 0:
        return
    seen_at = s.seen_at[s.g[G_VIEW]] if s.g[G_VIEW] >= 0 else -math.inf
    kept = 0
    for i in range(s.g[G_LEASE_COUNT]):
        r = s.leases[i]
        if s.rf[r, F_PLACED] <= seen_at:
            drop_leases(s, r, 1)
        is_seen_at_once = s.g[G_HANDSHAKE] == 0 or s.ri[r, R_P] == s.ri[r, R_D]
        shown_at = s.rf[r, F_PLACED] if is_seen_at_once else s.rf[r, F_ALLOCATED]
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
