# mypy: disable-error-code="no-any-return"
# State is numpy arrays or memoryviews by the way it runs, so its fields are Any.
"""
What a pool's scheduler does between two iterations: finish, re-admit, preallocate, join, compute, decode.

The order is that of SGLang's loop. Retracted requests come before new ones; prompts come before decode steps unless
the pool mixes them; the decode batch retracts when its next step does not fit.
"""

import math

from scoring.service import prefill_s
from simulation.blocks import admit, blocks_up
from simulation.layout import (
    C_BUSY_S,
    C_HIT,
    C_PROMPT,
    C_RECOMPUTED,
    C_RETRACTED,
    C_RETRACTED_IN,
    C_RETRACTED_OUT,
    C_STARTED,
    C_UNCACHED,
    F_LAST,
    F_PREFILL_START,
    FLAG_NONE,
    G_FEWEST,
    K_PREFILL_BASE,
    K_PREFILL_TOKEN,
    K_PREFILL_TOKEN2,
    O_FINISHED,
    O_TOO_LARGE,
    P_BUDGET,
    P_EVICTABLE,
    P_FREE,
    P_KV,
    P_MAX_RUNNING,
    P_MIXED,
    P_NB,
    P_NW,
    P_PAGE,
    P_PHASE,
    P_POLY,
    P_STEP,
    P_UNIT,
    P_UP,
    P_USABLE,
    PHASE_DECODE,
    PHASE_IDLE,
    PHASE_MIXED,
    PHASE_PREFILL,
    Q_ARRIVED,
    Q_COUNT,
    Q_HEAD,
    Q_MAIN,
    Q_PREALLOC,
    Q_RETRACTED,
    R_BASE,
    R_CHUNK,
    R_DONE,
    R_FIN,
    R_FLAG,
    R_GENERATED,
    R_OUTPUT,
    R_PROMPT,
    R_RECOMPUTED,
    R_RETRACTED,
    R_SIDE,
    R_STAGE,
    R_TARGET,
    S_PREFILL,
    S_RETRACTED,
    T_LAST,
    T_NEXT,
    T_RUN,
    State,
)
from simulation.leaving import leave_early, part
from simulation.queues import drop_from, push_front
from simulation.requests import admit_decode, close, computed, join, leave, note_hit, preallocated, release_decode
from simulation.runs import begin_run, end_run, growth_blocks, longest_run, run_s


def end_decode(s: State, p: int, t: float) -> None:
    """Let those that are done, or were cancelled meanwhile, leave the batch in the order they joined."""
    step = s.pi[p, P_STEP]
    kept = 0
    for i in range(s.pi[p, P_NB]):
        r = s.batch[p, i]
        if s.ri[r, R_FIN] > step and s.ri[r, R_FLAG] == FLAG_NONE:
            s.batch[p, kept] = r
            kept += 1
            continue
        held = s.ri[r, R_BASE] + step
        s.pi[p, P_KV] -= held
        s.ri[r, R_GENERATED] = s.ri[r, R_OUTPUT] - (s.ri[r, R_FIN] - step)
        s.rf[r, F_LAST] = t
        if s.ri[r, R_FIN] <= step:
            release_decode(s, p, r, held, 1)
            close(s, r, t, O_FINISHED)
        else:
            release_decode(s, p, r, held, 0)
            part(s, r, t)
    s.pi[p, P_NB] = kept


def end_prefill(s: State, p: int, t: float) -> None:
    """Credit the chunks of the iteration that ends; what is complete moves on, in order."""
    count = s.pi[p, P_NW]
    total = 0
    kept = 0
    for i in range(count):
        r = s.work[p, i]
        chunk = s.ri[r, R_CHUNK]
        total += chunk
        s.ri[r, R_DONE] += chunk
        s.ri[r, R_CHUNK] = 0
        if s.ri[r, R_FLAG] != FLAG_NONE:
            leave_early(s, p, r, t)
        elif s.ri[r, R_DONE] >= s.ri[r, R_TARGET]:
            computed(s, p, r, t)
        else:
            s.work[p, kept] = r
            kept += 1
    s.pi[p, P_NW] = kept
    s.pi[p, C_UNCACHED] += total


def retract(s: State, p: int, slot: int) -> None:
    """Take a sequence out of the batch for want of blocks; it will be computed again, before anything new."""
    r = s.batch[p, slot]
    held = leave(s, p, slot)
    s.rf[r, F_LAST] = s.pf[p, T_LAST]
    release_decode(s, p, r, held, 0)
    s.ri[r, R_RETRACTED] += 1
    s.pi[p, C_RETRACTED] += 1
    s.pi[p, C_RETRACTED_IN] += s.ri[r, R_PROMPT]
    s.pi[p, C_RETRACTED_OUT] += s.ri[r, R_GENERATED]
    s.ri[r, R_TARGET] = s.ri[r, R_PROMPT] + s.ri[r, R_GENERATED]
    s.ri[r, R_STAGE] = S_RETRACTED
    push_front(s, p, Q_RETRACTED, r, s.ri[r, R_TARGET])


def victim_slot(s: State, p: int) -> int:
    """Return whom to retract: the youngest, or who has generated least (of equals the longer prompt)."""
    count = s.pi[p, P_NB]
    if s.g[G_FEWEST] == 0:
        return count - 1
    step = s.pi[p, P_STEP]
    best = 0
    best_output = math.inf
    best_prompt = -1
    for i in range(count):
        r = s.batch[p, i]
        output = s.ri[r, R_OUTPUT] - (s.ri[r, R_FIN] - step)
        prompt = s.ri[r, R_PROMPT]
        if output < best_output or (output == best_output and prompt >= best_prompt):
            best = i
            best_output = output
            best_prompt = prompt
    return best


def make_room(s: State, p: int, t: float) -> int:
    """Retract until the next step of the batch fits; return 1 when anyone was retracted."""
    has_retracted = 0
    while s.pi[p, P_NB] > 0 and growth_blocks(s, p, 0, 1) > s.pi[p, P_FREE] + s.pi[p, P_EVICTABLE]:
        slot = victim_slot(s, p)
        r = s.batch[p, slot]
        retract(s, p, slot)
        has_retracted = 1
        if blocks_up(s.ri[r, R_TARGET], s.pi[p, P_PAGE]) > s.pi[p, P_USABLE]:
            drop_from(s, p, Q_RETRACTED, r, s.ri[r, R_TARGET])
            close(s, r, t, O_TOO_LARGE)
    return has_retracted


def add_work(s: State, p: int, r: int, hits: int, t: float) -> None:
    """Put an admitted request on the work list."""
    s.work[p, s.pi[p, P_NW]] = r
    s.pi[p, P_NW] += 1
    s.ri[r, R_STAGE] = S_PREFILL
    tokens = hits * s.pi[p, P_UNIT]
    note_hit(s, r, tokens)
    s.pi[p, C_PROMPT] += s.ri[r, R_TARGET]
    s.pi[p, C_HIT] += tokens
    s.rf[r, F_PREFILL_START] = t


def readmit(s: State, p: int, t: float) -> None:
    """Let retracted requests back in while they fit, oldest first."""
    while s.pi[p, P_NB] + s.pi[p, P_NW] < s.pi[p, P_MAX_RUNNING]:
        r = s.q[p, Q_RETRACTED, Q_HEAD]
        if r < 0:
            return
        target = s.ri[r, R_TARGET]
        hits = admit_decode(s, p, r, target, t)
        if hits < 0:
            return
        drop_from(s, p, Q_RETRACTED, r, target)
        s.ri[r, R_SIDE] = 1
        again = target - hits * s.pi[p, P_UNIT]
        s.ri[r, R_RECOMPUTED] += again
        s.pi[p, C_RECOMPUTED] += again
        add_work(s, p, r, hits, t)


def preallocate(s: State, p: int, t: float) -> None:
    """Give room to requests that come from prefill pools, first come first served, unless retracted ones wait."""
    while s.q[p, Q_RETRACTED, Q_COUNT] == 0:
        r = s.q[p, Q_PREALLOC, Q_HEAD]
        if r < 0:
            return
        hits = admit_decode(s, p, r, s.ri[r, R_TARGET], t)
        if hits < 0:
            return
        drop_from(s, p, Q_PREALLOC, r, s.ri[r, R_TARGET])
        preallocated(s, p, r, hits, t)


def join_arrived(s: State, p: int) -> None:
    """Let requests whose KV is complete into the batch, up to its cap."""
    while s.pi[p, P_NB] + s.pi[p, P_NW] < s.pi[p, P_MAX_RUNNING]:
        r = s.q[p, Q_ARRIVED, Q_HEAD]
        if r < 0:
            return
        drop_from(s, p, Q_ARRIVED, r, s.ri[r, R_TARGET])
        join(s, p, r)


def form_prefill(s: State, p: int, t: float) -> int:
    """Fill the token budget: begun prompts first, then the queue while there is room. Returns the tokens to compute."""
    budget = s.pi[p, P_BUDGET]
    if s.pi[p, P_MIXED] != 0:
        budget = max(budget - s.pi[p, P_NB], 0)
    total = 0
    for i in range(s.pi[p, P_NW]):
        r = s.work[p, i]
        chunk = min(s.ri[r, R_TARGET] - s.ri[r, R_DONE], budget - total)
        s.ri[r, R_CHUNK] = chunk
        total += chunk
    while total < budget and s.pi[p, P_NB] + s.pi[p, P_NW] < s.pi[p, P_MAX_RUNNING]:
        r = s.q[p, Q_MAIN, Q_HEAD]
        if r < 0:
            break
        target = s.ri[r, R_TARGET]
        if s.ri[r, R_SIDE] == 1:
            hits = admit_decode(s, p, r, target, t)
        else:
            hits = admit(s, p, r, 0, target, 0, 0)
        if hits < 0:
            break
        drop_from(s, p, Q_MAIN, r, target)
        add_work(s, p, r, hits, t)
        chunk = min(target - s.ri[r, R_DONE], budget - total)
        s.ri[r, R_CHUNK] = chunk
        total += chunk
    return total


def prefill_batch_s(s: State, p: int) -> float:
    """Return seconds to compute the chunks on the work list as one batch: one base, the rest adds up."""
    per_token = s.pf[p, K_PREFILL_TOKEN]
    per_token2 = s.pf[p, K_PREFILL_TOKEN2]
    if s.pi[p, P_POLY] != 0:
        together = 0
        for i in range(s.pi[p, P_NW]):
            together += s.ri[s.work[p, i], R_CHUNK]
        return prefill_s(float(together), 0.0, s.pf[p, K_PREFILL_BASE], per_token, per_token2)
    total = s.pf[p, K_PREFILL_BASE]
    for i in range(s.pi[p, P_NW]):
        r = s.work[p, i]
        if s.ri[r, R_CHUNK] > 0:
            total += prefill_s(float(s.ri[r, R_CHUNK]), float(s.ri[r, R_DONE]), 0.0, per_token, per_token2)
    return total


def start_iteration(s: State, p: int, t: float, tokens: int, has_retracted: int) -> None:
    """Start what was scheduled: a prompt batch, decode steps, both in one, or nothing."""
    s.pf[p, T_RUN] = t
    count = s.pi[p, P_NB]
    if tokens > 0:
        seconds = prefill_batch_s(s, p)
        s.pf[p, C_BUSY_S] += seconds
        s.pi[p, C_STARTED] += 1
        s.pi[p, P_PHASE] = PHASE_PREFILL
        if s.pi[p, P_MIXED] != 0 and count > 0:
            begin_run(s, p, 1)
            seconds += run_s(s, p, 1)
            s.pi[p, P_PHASE] = PHASE_MIXED
        s.pf[p, T_NEXT] = t + seconds
    elif count > 0:
        most = s.ri[s.batch[p, 0], R_FIN]
        for i in range(count):
            r = s.batch[p, i]
            # Who was cancelled during a prompt batch leaves after the next step.
            most = min(most, s.ri[r, R_FIN] if s.ri[r, R_FLAG] == FLAG_NONE else s.pi[p, P_STEP] + 1)
        # Whoever was retracted left room that nobody has looked at: look again after one step.
        k = 1 if has_retracted != 0 else longest_run(s, p, most - s.pi[p, P_STEP])
        begin_run(s, p, k)
        s.pi[p, P_PHASE] = PHASE_DECODE
        s.pf[p, T_NEXT] = t + run_s(s, p, k)


def boundary(s: State, p: int, t: float) -> None:
    """End the iteration that ends at `t`, if any, and start the next."""
    phase = s.pi[p, P_PHASE]
    s.pi[p, P_PHASE] = PHASE_IDLE
    s.pf[p, T_NEXT] = math.inf
    if phase in (PHASE_DECODE, PHASE_MIXED):
        s.pf[p, T_NEXT] = t
        end_run(s, p, t)
        end_decode(s, p, t)
    if phase in (PHASE_PREFILL, PHASE_MIXED):
        end_prefill(s, p, t)
    s.pf[p, T_NEXT] = math.inf
    if s.pi[p, P_UP] == 0:
        return
    readmit(s, p, t)
    preallocate(s, p, t)
    join_arrived(s, p)
    tokens = form_prefill(s, p, t)
    has_retracted = 0
    if s.pi[p, P_NB] > 0 and (tokens == 0 or s.pi[p, P_MIXED] != 0):
        has_retracted = make_room(s, p, t)
    s.pf[p, T_NEXT] = math.inf
    start_iteration(s, p, t, tokens, has_retracted)
    if s.pi[p, P_PHASE] == PHASE_IDLE and has_retracted != 0:
        s.pf[p, T_NEXT] = t
