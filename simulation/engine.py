# mypy: disable-error-code="no-any-return"
# State is numpy arrays or memoryviews by the way it runs, so its fields are Any.
"""
The event loop: takes the next thing that happens, until a time, until nothing is left, or until Python must decide.

Order at one instant, each with its reason:
1. faults: what dies at t serves nothing at t;
2. network: KV that has arrived by t counts at t;
3. arrivals: a scheduler that wakes at t sees all that has arrived by t, and a router sees pools as they were before t;
4. pool boundaries, in pool order;
5. telemetry, then samples: a look at t sees everything that happened at t.
"""

import math

from simulation.layout import (
    A_CANCEL,
    A_DEATH,
    A_DRAIN,
    A_END_RATE,
    A_FREEZE,
    A_RECOVERY,
    A_THAW,
    A_UNDRAIN,
    F_ARRIVAL,
    F_LAST,
    F_PLACED,
    FLAG_CANCEL,
    FLAG_NONE,
    FLAG_REROUTE,
    G_ARRIVALS,
    G_COUNT,
    G_EVENTS,
    G_FAULT,
    G_FLOWS,
    G_FROZEN,
    G_KEEP,
    G_LEASE_COUNT,
    G_LEASES,
    G_NEXT,
    G_OPEN,
    G_PENDING,
    G_POLICY,
    G_RETRY_HEAD,
    G_RETRY_TAIL,
    G_SAMPLES,
    L_END,
    L_PROMPT,
    L_REQUEST,
    L_ROOM,
    L_START,
    N_NEXT,
    O_CANCELLED,
    O_REJECTED,
    P_ADMITTED,
    P_EVICTABLE,
    P_FLIGHT,
    P_FLIGHT_TOKENS,
    P_FREE,
    P_INCOMING,
    P_K,
    P_KV,
    P_LRU_HEAD,
    P_LRU_TAIL,
    P_MASK,
    P_NB,
    P_NODE_FREE,
    P_NODES,
    P_NW,
    P_OPEN,
    P_PHASE,
    P_TAIL,
    P_UP,
    P_USABLE,
    PHASE_DECODE,
    PHASE_IDLE,
    POLICY_PYTHON,
    R_D,
    R_FLAG,
    R_LEASED,
    R_NEXT0,
    R_P,
    R_PROMPT,
    R_SIDE,
    R_STAGE,
    RUN_DECISION,
    RUN_DONE,
    RUN_SAMPLES,
    RUN_TIME,
    S_BOOTSTRAP,
    S_COMPUTED,
    S_DECODE,
    S_DONE,
    S_NEW,
    S_PREFILL,
    S_QUEUED,
    S_TRANSFER,
    T_LAST,
    T_NEXT,
    T_RUN,
    V_NET,
    V_NOW,
    V_SAMPLE,
    V_TELEMETRY,
    State,
)
from simulation.leaving import cancel, leave_early, part, withdraw
from simulation.looks import take_sample, take_telemetry
from simulation.network import advance_flows, plan_network, remove_flow
from simulation.pools import boundary
from simulation.requests import close, deliver, leave, leave_work, let_go_of_decode, release_decode, start
from simulation.routing import choose, random_ratio
from simulation.runs import end_run, run_s, steps_ended


def place(s: State, r: int, t: float) -> None:
    """Let in a request whose pools are chosen (R_P and R_D), or end it as rejected (R_P < 0)."""
    if s.ri[r, R_P] < 0:
        s.g[G_OPEN] += 1
        close(s, r, t, O_REJECTED)
        return
    s.rf[r, F_PLACED] = t
    if s.g[G_LEASES] != 0:
        s.ri[r, R_LEASED] = 3
        s.pf[s.ri[r, R_P], L_PROMPT] += s.ri[r, R_PROMPT]
        s.pf[s.ri[r, R_D], L_ROOM] += s.ri[r, R_PROMPT]
        s.leases[s.g[G_LEASE_COUNT]] = r
        s.g[G_LEASE_COUNT] += 1
    start(s, r, t)


def arrive(s: State, r: int, t: float) -> int:
    """Place a request that arrives, or say that Python must choose."""
    if s.ri[r, R_FLAG] == FLAG_CANCEL:
        s.g[G_OPEN] += 1
        close(s, r, t, O_CANCELLED)
        return RUN_DONE
    if s.g[G_POLICY] == POLICY_PYTHON:
        s.g[G_PENDING] = r
        return RUN_DECISION
    choose(s, r, t)
    place(s, r, t)
    return RUN_DONE


def next_arrival(s: State) -> float:
    """Return when the next request arrives: at once when one waits to be placed again."""
    if s.g[G_RETRY_HEAD] >= 0:
        return s.gf[V_NOW]
    if s.g[G_NEXT] < s.g[G_ARRIVALS]:
        return s.rf[s.order[s.g[G_NEXT]], F_ARRIVAL]
    return math.inf


def take_arrival(s: State) -> int:
    """Return the request that arrives next, taken off its list."""
    r = s.g[G_RETRY_HEAD]
    if r >= 0:
        s.g[G_RETRY_HEAD] = s.ri[r, R_NEXT0]
        if s.g[G_RETRY_HEAD] < 0:
            s.g[G_RETRY_TAIL] = -1
        return r
    r = s.order[s.g[G_NEXT]]
    s.g[G_NEXT] += 1
    return r


def run_network(s: State, t: float) -> None:
    """Deliver what has arrived, start what has waited out its latency."""
    advance_flows(s, t)
    i = 0
    while i < s.g[G_FLOWS]:
        if s.ff[i, L_START] <= t and s.ff[i, L_END] <= t:
            r = s.fi[i, L_REQUEST]
            remove_flow(s, i)
            deliver(s, r, t)
        else:
            i += 1
    plan_network(s, t)


def uproot(s: State, p: int, r: int, t: float) -> None:
    """Take a request off a pool that dies, wherever it stands in its life, and send it to be placed again."""
    stage = s.ri[r, R_STAGE]
    if s.ri[r, R_FLAG] == FLAG_NONE:
        s.ri[r, R_FLAG] = FLAG_REROUTE
    if withdraw(s, r, t) != 0:
        part(s, r, t)
        return
    if stage == S_DECODE:
        i = 0
        while s.batch[p, i] != r:
            i += 1
        held = leave(s, p, i)
        s.rf[r, F_LAST] = s.pf[p, T_LAST]
        release_decode(s, p, r, held, 0)
        part(s, r, t)
    elif s.ri[r, R_SIDE] == 1 or s.ri[r, R_P] == p:
        i = 0
        while s.work[p, i] != r:
            i += 1
        leave_work(s, p, i)
        leave_early(s, p, r, t)
    else:
        # The living prefill pool ends its iteration first; end_prefill reads the flag.
        let_go_of_decode(s, r, t)


def die(s: State, p: int, t: float) -> None:
    """Lose a pool: its KV, its cache, its iteration; its requests are placed again, tokens already out stay out."""
    if s.pi[p, P_PHASE] == PHASE_DECODE:
        # Steps that ended before the death have given their tokens; the one under way, or ending at t, has not.
        ended = min(steps_ended(s, p, t), s.pi[p, P_K] - 1)
        if ended > 0:
            s.pi[p, P_K] = ended
            end_run(s, p, s.pf[p, T_RUN] + run_s(s, p, ended))
    s.pi[p, P_PHASE] = PHASE_IDLE
    s.pi[p, P_UP] = 0
    for r in range(s.g[G_COUNT]):
        stage = s.ri[r, R_STAGE]
        if stage in (S_NEW, S_DONE):
            continue
        is_here = s.ri[r, R_D] == p
        if s.ri[r, R_SIDE] == 0 and stage in (S_BOOTSTRAP, S_QUEUED, S_PREFILL, S_COMPUTED, S_TRANSFER):
            is_here = is_here or s.ri[r, R_P] == p
        if is_here:
            uproot(s, p, r, t)
    clear_pool(s, p)


def clear_pool(s: State, p: int) -> None:
    """Empty a pool's memory: all blocks free, nothing cached, nobody there."""
    for column in (P_EVICTABLE, P_TAIL, P_FLIGHT, P_FLIGHT_TOKENS, P_ADMITTED, P_INCOMING, P_KV, P_NB, P_NW):
        s.pi[p, column] = 0
    s.pi[p, P_FREE] = s.pi[p, P_USABLE]
    s.pi[p, P_LRU_HEAD] = -1
    s.pi[p, P_LRU_TAIL] = -1
    for i in range(s.pi[p, P_MASK] + 1):
        s.table[p, i, 1] = -1
    last = s.pi[p, P_NODES] - 1
    for i in range(last + 1):
        s.nodes[p, i, N_NEXT] = i + 1 if i < last else -1
    s.pi[p, P_NODE_FREE] = 0
    s.pf[p, T_NEXT] = math.inf


def run_fault(s: State, t: float) -> None:
    """Apply the next fault."""
    i = s.g[G_FAULT]
    s.g[G_FAULT] = i + 1
    kind = s.faults[i, 0]
    target = s.faults[i, 1]
    value = s.fault_at[i, 1]
    if kind == A_DEATH:
        die(s, target, t)
    elif kind == A_RECOVERY:
        s.pi[target, P_UP] = 1
    elif kind == A_END_RATE:
        advance_flows(s, t)
        s.ends[target, 0] = value
        s.ends[target, 1] = value
        plan_network(s, t)
    elif kind == A_FREEZE:
        s.g[G_FROZEN] = 1
    elif kind == A_THAW:
        s.g[G_FROZEN] = 0
    elif kind == A_DRAIN:
        s.pi[target, P_OPEN] = 0
    elif kind == A_UNDRAIN:
        s.pi[target, P_OPEN] = 1
    elif kind == A_CANCEL:
        for r in range(s.g[G_COUNT]):
            if s.ri[r, R_STAGE] != S_NEW and s.ri[r, R_STAGE] != S_DONE and random_ratio(s) < value:
                cancel(s, r, t)


def run(s: State, until_s: float) -> int:
    """
    Process events up to and including `until_s`.

    Returns RUN_DONE when nothing is left, RUN_TIME at `until_s`, RUN_DECISION when request G_PENDING waits for a
    Python policy (set its R_P and R_D, or R_P = -1, and call again), RUN_SAMPLES when the rows of samples are full.
    """
    if s.g[G_PENDING] >= 0:
        r = s.g[G_PENDING]
        s.g[G_PENDING] = -1
        place(s, r, s.gf[V_NOW])
    pools = len(s.pi)
    faults = len(s.faults)
    while True:
        arrival = next_arrival(s)
        if s.g[G_KEEP] == 0 and s.g[G_OPEN] == 0 and arrival == math.inf:
            return RUN_DONE
        fault = s.fault_at[s.g[G_FAULT], 0] if s.g[G_FAULT] < faults else math.inf
        network = s.gf[V_NET]
        p = -1
        pool = math.inf
        for i in range(pools):
            if s.pf[i, T_NEXT] < pool:
                pool = s.pf[i, T_NEXT]
                p = i
        look = min(s.gf[V_TELEMETRY], s.gf[V_SAMPLE])
        t = min(min(fault, network), min(arrival, pool))
        if look < t:
            t = look
        if t > until_s:
            s.gf[V_NOW] = until_s
            return RUN_TIME
        s.gf[V_NOW] = t
        s.g[G_EVENTS] += 1
        if fault <= t:
            run_fault(s, t)
        elif network <= t:
            run_network(s, t)
        elif arrival <= t:
            if arrive(s, take_arrival(s), t) == RUN_DECISION:
                return RUN_DECISION
        elif pool <= t:
            boundary(s, p, t)
        elif s.gf[V_TELEMETRY] <= t:
            take_telemetry(s, t)
        else:
            if s.g[G_SAMPLES] >= len(s.samples):
                return RUN_SAMPLES
            take_sample(s, t)
