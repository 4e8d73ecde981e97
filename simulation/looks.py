# mypy: disable-error-code="no-any-return"
# State is numpy arrays or memoryviews by the way it runs, so its fields are Any.
"""
Looks at the fleet: the composition of every pool for samples and for the telemetry that policies see.
"""

from simulation.layout import (
    C_BYTES,
    G_FROZEN,
    G_SAMPLES,
    G_SEEN,
    NX,
    P_ADMITTED,
    P_EVICTABLE,
    P_FLIGHT_TOKENS,
    P_FREE,
    P_NB,
    P_NW,
    P_PAGE,
    P_RESERVE,
    P_TAIL,
    P_USABLE,
    Q_ARRIVED,
    Q_BOOTSTRAP,
    Q_COUNT,
    Q_INFLIGHT,
    Q_MAIN,
    Q_PREALLOC,
    Q_RETRACTED,
    Q_TOKENS,
    Q_TRANSFER,
    R_DONE,
    R_TARGET,
    V_PERIOD,
    V_SAMPLE,
    V_TELEMETRY,
    V_TELEMETRY_PERIOD,
    X_ACTIVE,
    X_ARRIVED,
    X_BOOTSTRAP,
    X_FLIGHT,
    X_FRAGMENTATION,
    X_FREE,
    X_INFLIGHT,
    X_LINK_BYTES,
    X_MAIN,
    X_PREALLOC,
    X_PREFIX,
    X_RESERVED,
    X_RETRACTED,
    X_RUNNING,
    X_TRANSFER,
    X_WAITING_TOKENS,
    State,
)
from simulation.runs import sync


def observe(s: State, p: int, t: float) -> None:
    """Write the pool's composition (tokens), queues (requests) and promises at `t` into its row of State.look."""
    sync(s, p, t)
    page = s.pi[p, P_PAGE]
    free = s.pi[p, P_FREE] * page
    prefix = s.pi[p, P_EVICTABLE] * page
    tail = s.pi[p, P_TAIL]
    flight = s.pi[p, P_FLIGHT_TOKENS]
    s.look[p, X_ACTIVE] = s.pi[p, P_USABLE] * page - free - prefix - tail - flight
    s.look[p, X_FLIGHT] = flight
    s.look[p, X_PREFIX] = prefix
    s.look[p, X_FRAGMENTATION] = tail
    s.look[p, X_FREE] = free
    s.look[p, X_RUNNING] = s.pi[p, P_NB]
    s.look[p, X_BOOTSTRAP] = s.q[p, Q_BOOTSTRAP, Q_COUNT]
    s.look[p, X_MAIN] = s.q[p, Q_MAIN, Q_COUNT]
    s.look[p, X_INFLIGHT] = s.q[p, Q_INFLIGHT, Q_COUNT]
    s.look[p, X_PREALLOC] = s.q[p, Q_PREALLOC, Q_COUNT]
    s.look[p, X_TRANSFER] = s.q[p, Q_TRANSFER, Q_COUNT]
    s.look[p, X_ARRIVED] = s.q[p, Q_ARRIVED, Q_COUNT]
    s.look[p, X_RETRACTED] = s.q[p, Q_RETRACTED, Q_COUNT]
    waiting = s.q[p, Q_MAIN, Q_TOKENS] + s.q[p, Q_BOOTSTRAP, Q_TOKENS]
    for i in range(s.pi[p, P_NW]):
        r = s.work[p, i]
        waiting += s.ri[r, R_TARGET] - s.ri[r, R_DONE]
    s.look[p, X_WAITING_TOKENS] = waiting
    s.look[p, X_RESERVED] = s.pi[p, P_RESERVE] * s.pi[p, P_ADMITTED]
    s.look[p, X_LINK_BYTES] = s.pf[p, C_BYTES]


def take_sample(s: State, t: float) -> None:
    """Write one row of samples."""
    for p in range(len(s.pi)):
        observe(s, p, t)
        for column in range(NX):
            s.samples[s.g[G_SAMPLES], p, column] = s.look[p, column]
    s.g[G_SAMPLES] += 1
    s.gf[V_SAMPLE] = s.g[G_SAMPLES] * s.gf[V_PERIOD]


def take_telemetry(s: State, t: float) -> None:
    """Write what the workers report at `t`, unless telemetry stands still."""
    s.gf[V_TELEMETRY] += s.gf[V_TELEMETRY_PERIOD]
    if s.g[G_FROZEN] != 0:
        return
    row = s.g[G_SEEN] % len(s.seen_at)
    for p in range(len(s.pi)):
        observe(s, p, t)
        for column in range(NX):
            s.seen[row, p, column] = s.look[p, column]
    s.seen_at[row] = t
    s.g[G_SEEN] += 1


def look_now(s: State, t: float) -> None:
    """Give the router the truth at `t` (a run without telemetry period)."""
    for p in range(len(s.pi)):
        observe(s, p, t)
        for column in range(NX):
            s.seen[0, p, column] = s.look[p, column]
    s.seen_at[0] = t
    s.g[G_SEEN] = 1
