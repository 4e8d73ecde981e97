# mypy: disable-error-code="no-any-return"
# State is numpy arrays or memoryviews by the way it runs, so its fields are Any.
"""
Leaving before the end: cancelled, or off a worker that died, from whatever stage a request is in.
"""

from simulation.blocks import release
from simulation.layout import (
    FLAG_CANCEL,
    FLAG_NONE,
    FLAG_REROUTE,
    G_HANDSHAKE,
    G_OPEN,
    G_RETRY_HEAD,
    G_RETRY_TAIL,
    O_CANCELLED,
    Q_ARRIVED,
    Q_BOOTSTRAP,
    Q_CREDIT,
    Q_INFLIGHT,
    Q_MAIN,
    Q_RETRACTED,
    R_ALLOC0,
    R_ALLOC1,
    R_D,
    R_FLAG,
    R_NEXT0,
    R_P,
    R_REROUTED,
    R_SIDE,
    R_STAGE,
    R_TARGET,
    S_ARRIVED,
    S_BOOTSTRAP,
    S_COMPUTED,
    S_DECODE,
    S_DONE,
    S_NEW,
    S_PREFILL,
    S_QUEUED,
    S_RETRACTED,
    S_TRANSFER,
    State,
)
from simulation.network import advance_flows, find_flow, plan_network, remove_flow
from simulation.queues import count_out, drop_from
from simulation.requests import clear_flight, close, drop_leases, let_go_of_decode, next_credit, release_decode, wake
from simulation.runs import sync


def withdraw(s: State, r: int, t: float) -> int:
    """
    Take a request out of everything it waits in; return 0 when it is being computed or decoded.

    Those leave at the end of their iteration instead (an engine cannot take a sequence out of a running kernel).
    """
    stage = s.ri[r, R_STAGE]
    p = s.ri[r, R_P]
    d = s.ri[r, R_D]
    target = s.ri[r, R_TARGET]
    if stage in (S_PREFILL, S_DECODE):
        return 0
    sync(s, p, t)
    sync(s, d, t)
    if stage == S_BOOTSTRAP:
        drop_from(s, p, Q_BOOTSTRAP, r, target)
        let_go_of_decode(s, r, t)
    elif stage == S_QUEUED:
        drop_from(s, p, Q_MAIN, r, target)
        if p != d and s.g[G_HANDSHAKE] == 0:
            let_go_of_decode(s, r, t)
        wake(s, p, t)
    elif stage in (S_COMPUTED, S_TRANSFER):
        if stage == S_TRANSFER:
            flow = find_flow(s, r)
            if flow >= 0:
                advance_flows(s, t)
                remove_flow(s, flow)
                plan_network(s, t)
                next_credit(s, d, t)
            else:
                drop_from(s, d, Q_CREDIT, r, 0)
        clear_flight(s, p, r, 0)
        count_out(s, p, Q_INFLIGHT, target)
        release(s, p, r, 0, target, 0)
        wake(s, p, t)
        let_go_of_decode(s, r, t)
    elif stage == S_ARRIVED:
        drop_from(s, d, Q_ARRIVED, r, target)
        release_decode(s, d, r, target, 0)
        wake(s, d, t)
    elif stage == S_RETRACTED:
        drop_from(s, d, Q_RETRACTED, r, target)
        wake(s, d, t)
    return 1


def retry(s: State, r: int) -> None:
    """Send a request to be placed again; tokens already emitted stay emitted, their KV is recomputed."""
    s.ri[r, R_STAGE] = S_NEW
    s.ri[r, R_FLAG] = FLAG_NONE
    s.ri[r, R_REROUTED] += 1
    s.ri[r, R_NEXT0] = -1
    s.g[G_OPEN] -= 1
    drop_leases(s, r, 3)
    tail = s.g[G_RETRY_TAIL]
    if tail >= 0:
        s.ri[tail, R_NEXT0] = r
    else:
        s.g[G_RETRY_HEAD] = r
    s.g[G_RETRY_TAIL] = r


def part(s: State, r: int, t: float) -> None:
    """End or re-place a request that has let go of everything, as its flag says."""
    if s.ri[r, R_FLAG] == FLAG_REROUTE:
        retry(s, r)
    else:
        close(s, r, t, O_CANCELLED)


def cancel(s: State, r: int, t: float) -> None:
    """Cancel a request wherever it is."""
    stage = s.ri[r, R_STAGE]
    if stage == S_DONE:
        return
    s.ri[r, R_FLAG] = FLAG_CANCEL
    if stage == S_NEW:
        return
    if withdraw(s, r, t) != 0:
        part(s, r, t)
    else:
        wake(s, s.ri[r, R_D] if s.ri[r, R_SIDE] == 1 or stage == S_DECODE else s.ri[r, R_P], t)


def leave_early(s: State, p: int, r: int, t: float) -> None:
    """Let go of a request that was being computed in pool `p` when it was cancelled or must be placed again."""
    if s.ri[r, R_SIDE] == 1:
        release_decode(s, p, r, s.ri[r, R_ALLOC1], 0)
    else:
        release(s, p, r, 0, s.ri[r, R_ALLOC0], 0)
        let_go_of_decode(s, r, t)
    part(s, r, t)
