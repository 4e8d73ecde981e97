# mypy: disable-error-code="no-any-return"
# State is numpy arrays or memoryviews by the way it runs, so its fields are Any.
"""
What happens to one request: admission of its KV, hand-over, tokens, finish.

Every transition changes the stage, the queues and the blocks together, so that the sums of a pool hold after each.
Read next: `leaving` (cancels and deaths) and `pools` (the scheduler that calls all this).
"""

import math

from simulation.blocks import admit, blocks_up, publish, release
from simulation.layout import (
    C_BYTES,
    C_FINISHED,
    C_TOO_LARGE,
    C_TRANSFER_S,
    C_TRANSFERS,
    F_ALLOCATED,
    F_FINISH,
    F_FIRST,
    F_LAST,
    F_PREFILL_END,
    F_PREFILL_START,
    F_TRANSFER_END,
    F_TRANSFER_START,
    FLAG_NONE,
    G_ENDED,
    G_ENDED_TOKENS,
    G_FLOWS,
    G_HANDSHAKE,
    G_JOIN,
    G_MISSING,
    G_OPEN,
    L_PROMPT,
    L_ROOM,
    O_FINISHED,
    O_OPEN,
    O_TOO_LARGE,
    P_ADMITTED,
    P_CREDIT,
    P_FLIGHT,
    P_FLIGHT_TOKENS,
    P_INCOMING,
    P_JOINED,
    P_KV,
    P_MAX_RUNNING,
    P_NB,
    P_NW,
    P_PAGE,
    P_PHASE,
    P_RESERVE,
    P_STEP,
    P_UNIT,
    P_UNIT_BLOCKS,
    P_USABLE,
    PHASE_DECODE,
    PHASE_IDLE,
    Q_ARRIVED,
    Q_BOOTSTRAP,
    Q_COUNT,
    Q_CREDIT,
    Q_HEAD,
    Q_INFLIGHT,
    Q_MAIN,
    Q_PREALLOC,
    Q_RETRACTED,
    Q_TRANSFER,
    R_ALLOC0,
    R_ALLOC1,
    R_BASE,
    R_CHUNK,
    R_D,
    R_DONE,
    R_FIN,
    R_FLAG,
    R_FLIGHT0,
    R_FLIGHT_TOKENS0,
    R_GENERATED,
    R_HIT,
    R_JOIN,
    R_LEASED,
    R_LOCK0,
    R_OUTCOME,
    R_OUTPUT,
    R_P,
    R_PROMPT,
    R_SENT,
    R_SIDE,
    R_STAGE,
    R_TARGET,
    S_ARRIVED,
    S_BOOTSTRAP,
    S_COMPUTED,
    S_DECODE,
    S_DONE,
    S_QUEUED,
    S_TRANSFER,
    T_NEXT,
    V_OVERLAP,
    State,
)
from simulation.network import add_flow, line_rate, transfer_bytes
from simulation.queues import count_in, count_out, drop_from, push_back
from simulation.runs import cut_run, note_gap, sync


def wake(s: State, p: int, t: float) -> None:
    """Let the pool's scheduler look again: at once when idle, at the end of the running step when decoding."""
    phase = s.pi[p, P_PHASE]
    if phase == PHASE_IDLE:
        s.pf[p, T_NEXT] = min(s.pf[p, T_NEXT], t)
    elif phase == PHASE_DECODE:
        cut_run(s, p, t)


def set_flight(s: State, p: int, r: int, side: int) -> None:
    """Count what the request alone holds on a side as in flight."""
    held = s.ri[r, R_ALLOC0 + side]
    locked = s.ri[r, R_LOCK0 + side]
    blocks = blocks_up(held, s.pi[p, P_PAGE]) - locked * s.pi[p, P_UNIT_BLOCKS]
    tokens = held - locked * s.pi[p, P_UNIT]
    s.ri[r, R_FLIGHT0 + side] = blocks
    s.ri[r, R_FLIGHT_TOKENS0 + side] = tokens
    s.pi[p, P_FLIGHT] += blocks
    s.pi[p, P_FLIGHT_TOKENS] += tokens


def clear_flight(s: State, p: int, r: int, side: int) -> None:
    """End what `set_flight` began."""
    s.pi[p, P_FLIGHT] -= s.ri[r, R_FLIGHT0 + side]
    s.pi[p, P_FLIGHT_TOKENS] -= s.ri[r, R_FLIGHT_TOKENS0 + side]
    s.ri[r, R_FLIGHT0 + side] = 0
    s.ri[r, R_FLIGHT_TOKENS0 + side] = 0


def admit_decode(s: State, p: int, r: int, target: int, t: float) -> int:
    """
    Allocate `target` positions on the decode side under the pool's reserve; return the units hit or -1.

    The reserve is what SGLang keeps back for each admitted request. A pool that holds nobody takes whatever fits,
    or a prompt near its capacity would wait for ever.
    """
    reserve = s.pi[p, P_RESERVE]
    withheld = 0
    extra = 0
    if s.pi[p, P_ADMITTED] > 0:
        withheld = blocks_up(reserve * s.pi[p, P_ADMITTED], s.pi[p, P_PAGE])
        extra = reserve
    hits = admit(s, p, r, 1, target, withheld, extra)
    if hits >= 0:
        s.pi[p, P_ADMITTED] += 1
        s.rf[r, F_ALLOCATED] = t
    return hits


def release_decode(s: State, p: int, r: int, held: int, is_finished: int) -> None:
    """Give back the decode side."""
    release(s, p, r, 1, held, is_finished)
    s.pi[p, P_ADMITTED] -= 1


def drop_leases(s: State, r: int, sides: int) -> None:
    """End the leases of a request on the sides given (1 prefill, 2 decode, 3 both); again is harmless."""
    ended = s.ri[r, R_LEASED] & sides
    if ended & 1:
        s.pf[s.ri[r, R_P], L_PROMPT] -= s.ri[r, R_PROMPT]
    if ended & 2:
        s.pf[s.ri[r, R_D], L_ROOM] -= s.ri[r, R_PROMPT]
    s.ri[r, R_LEASED] -= ended


def close(s: State, r: int, t: float, outcome: int) -> None:
    """End a request."""
    s.ri[r, R_STAGE] = S_DONE
    s.ri[r, R_OUTCOME] = outcome
    s.ri[r, R_FLAG] = FLAG_NONE
    s.rf[r, F_FINISH] = t
    s.g[G_OPEN] -= 1
    d = s.ri[r, R_D]
    if outcome == O_FINISHED:
        s.pi[d, C_FINISHED] += 1
        s.g[G_ENDED] += 1
        s.g[G_ENDED_TOKENS] += s.ri[r, R_OUTPUT]
    elif outcome == O_TOO_LARGE:
        s.pi[d, C_TOO_LARGE] += 1
    drop_leases(s, r, 3)


def start(s: State, r: int, t: float) -> None:
    """Let a placed request into its pools: R_P and R_D are set, R_GENERATED tokens have been emitted before."""
    p = s.ri[r, R_P]
    d = s.ri[r, R_D]
    target = s.ri[r, R_PROMPT] + s.ri[r, R_GENERATED]
    s.ri[r, R_TARGET] = target
    s.ri[r, R_DONE] = 0
    s.ri[r, R_SENT] = 0
    s.ri[r, R_OUTCOME] = O_OPEN
    s.ri[r, R_FLAG] = FLAG_NONE
    s.ri[r, R_SIDE] = 1 if p == d else 0
    s.g[G_OPEN] += 1
    is_lasting = s.ri[r, R_OUTPUT] - s.ri[r, R_GENERATED] > 1
    if (p != d or is_lasting) and blocks_up(target, s.pi[d, P_PAGE]) > s.pi[d, P_USABLE]:
        close(s, r, t, O_TOO_LARGE)
        return
    if blocks_up(target, s.pi[p, P_PAGE]) > s.pi[p, P_USABLE]:
        close(s, r, t, O_TOO_LARGE)
        return
    if p != d and s.g[G_HANDSHAKE] == 0:
        s.ri[r, R_STAGE] = S_BOOTSTRAP
        push_back(s, p, Q_BOOTSTRAP, r, target)
        push_back(s, d, Q_PREALLOC, r, target)
        if s.q[d, Q_PREALLOC, Q_HEAD] == r and s.q[d, Q_RETRACTED, Q_COUNT] == 0:
            wake(s, d, t)
    else:
        s.ri[r, R_STAGE] = S_QUEUED
        push_back(s, p, Q_MAIN, r, target)
        wake(s, p, t)


def preallocated(s: State, d: int, r: int, hits: int, t: float) -> None:
    """Decode has allocated: the prompt may be computed, or, when it is, its KV may travel."""
    s.ri[r, R_SENT] = hits * s.pi[d, P_UNIT]
    set_flight(s, d, r, 1)
    count_in(s, d, Q_TRANSFER, s.ri[r, R_TARGET])
    if s.ri[r, R_STAGE] == S_BOOTSTRAP:
        p = s.ri[r, R_P]
        drop_from(s, p, Q_BOOTSTRAP, r, s.ri[r, R_TARGET])
        s.ri[r, R_STAGE] = S_QUEUED
        push_back(s, p, Q_MAIN, r, s.ri[r, R_TARGET])
        wake(s, p, t)
    else:
        begin_transfer(s, r, t)


def begin_transfer(s: State, r: int, t: float) -> None:
    """Start the hand-over, or wait for one of the decode pool's credits."""
    d = s.ri[r, R_D]
    s.ri[r, R_STAGE] = S_TRANSFER
    if (s.pi[d, P_CREDIT] > 0 and s.pi[d, P_INCOMING] >= s.pi[d, P_CREDIT]) or s.g[G_FLOWS] >= len(s.fi):
        push_back(s, d, Q_CREDIT, r, 0)
        return
    s.pi[d, P_INCOMING] += 1
    p = s.ri[r, R_P]
    sent = s.ri[r, R_TARGET]
    if s.g[G_MISSING] != 0:
        sent -= s.ri[r, R_SENT]
    size = transfer_bytes(s, r, sent)
    under = min(size * s.gf[V_OVERLAP], line_rate(s, p, d) * (s.rf[r, F_PREFILL_END] - s.rf[r, F_PREFILL_START]))
    s.pf[p, C_BYTES] += size
    s.pf[d, C_BYTES] += size
    add_flow(s, r, t, size - under)


def next_credit(s: State, d: int, t: float) -> None:
    """Hand a free credit to the transfer that waits longest."""
    s.pi[d, P_INCOMING] -= 1
    r = s.q[d, Q_CREDIT, Q_HEAD]
    if r >= 0:
        drop_from(s, d, Q_CREDIT, r, 0)
        begin_transfer(s, r, t)


def note_token(s: State, p: int, r: int, t: float) -> None:
    """Note the token that a prefill gave: the first one, or after a retraction the next, with the gap before it."""
    if math.isnan(s.rf[r, F_FIRST]):
        s.rf[r, F_FIRST] = t
    else:
        note_gap(s, p, t - s.rf[r, F_LAST], 1)
    s.rf[r, F_LAST] = t


def waits_for_room(s: State, p: int) -> bool:
    """Say whether a request waits in the pool for blocks."""
    return s.q[p, Q_MAIN, Q_COUNT] + s.q[p, Q_PREALLOC, Q_COUNT] + s.q[p, Q_RETRACTED, Q_COUNT] > 0


def deliver(s: State, r: int, t: float) -> None:
    """All KV has arrived: prefill lets go, the first token can be seen, the request waits to join the batch."""
    p = s.ri[r, R_P]
    d = s.ri[r, R_D]
    target = s.ri[r, R_TARGET]
    sync(s, p, t)
    sync(s, d, t)
    clear_flight(s, p, r, 0)
    count_out(s, p, Q_INFLIGHT, target)
    release(s, p, r, 0, target, 0)
    if waits_for_room(s, p):
        wake(s, p, t)
    clear_flight(s, d, r, 1)
    count_out(s, d, Q_TRANSFER, target)
    publish(s, d, r, 1)
    s.rf[r, F_TRANSFER_END] = t
    for pool in (p, d):
        s.pi[pool, C_TRANSFERS] += 1
        s.pf[pool, C_TRANSFER_S] += t - s.rf[r, F_TRANSFER_START]
    note_token(s, d, r, t)
    s.ri[r, R_STAGE] = S_ARRIVED
    push_back(s, d, Q_ARRIVED, r, target)
    # What has just been published may be the prefix, or the room, that a waiting request lacks.
    if waits_for_room(s, d) or s.pi[d, P_NB] + s.pi[d, P_NW] < s.pi[d, P_MAX_RUNNING]:
        wake(s, d, t)
    next_credit(s, d, t)


def join(s: State, p: int, r: int) -> None:
    """Put a request whose KV is complete into the running batch."""
    n = s.pi[p, P_NB]
    s.batch[p, n] = r
    s.pi[p, P_NB] = n + 1
    held = s.ri[r, R_ALLOC1]
    s.ri[r, R_BASE] = held - s.pi[p, P_STEP]
    s.ri[r, R_FIN] = s.pi[p, P_STEP] + s.ri[r, R_OUTPUT] - s.ri[r, R_GENERATED]
    s.pi[p, P_KV] += held
    s.ri[r, R_JOIN] = s.g[G_JOIN]
    s.g[G_JOIN] += 1
    s.ri[r, R_STAGE] = S_DECODE
    s.pi[p, P_JOINED] += 1


def leave(s: State, p: int, slot: int) -> int:
    """Take the request at `slot` out of the batch; return the positions it holds."""
    r = s.batch[p, slot]
    n = s.pi[p, P_NB] - 1
    s.batch[p, slot] = s.batch[p, n]
    s.pi[p, P_NB] = n
    held = s.ri[r, R_BASE] + s.pi[p, P_STEP]
    s.pi[p, P_KV] -= held
    s.ri[r, R_GENERATED] = s.ri[r, R_OUTPUT] - (s.ri[r, R_FIN] - s.pi[p, P_STEP])
    return held


def leave_work(s: State, p: int, slot: int) -> None:
    """Take the request at `slot` out of the work list, keeping the order of the others."""
    n = s.pi[p, P_NW] - 1
    for i in range(slot, n):
        s.work[p, i] = s.work[p, i + 1]
    s.pi[p, P_NW] = n


def computed(s: State, p: int, r: int, t: float) -> None:
    """The prompt (and what was generated before) is computed in pool `p`: one more token is out."""
    side = s.ri[r, R_SIDE]
    target = s.ri[r, R_TARGET]
    s.rf[r, F_PREFILL_END] = t
    publish(s, p, r, side)
    if s.ri[r, R_OUTPUT] > 0:
        s.ri[r, R_GENERATED] += 1
    is_last = s.ri[r, R_GENERATED] >= s.ri[r, R_OUTPUT]
    if side == 1 or is_last:
        if s.ri[r, R_OUTPUT] > 0:
            note_token(s, p, r, t)
        if not is_last:
            join(s, p, r)
            return
        if side == 1:
            release_decode(s, p, r, target, 1)
        else:
            release(s, p, r, 0, target, 0)
            let_go_of_decode(s, r, t)
        close(s, r, t, O_FINISHED)
        return
    set_flight(s, p, r, 0)
    count_in(s, p, Q_INFLIGHT, target)
    if s.g[G_HANDSHAKE] == 0:
        begin_transfer(s, r, t)
        return
    s.ri[r, R_STAGE] = S_COMPUTED
    d = s.ri[r, R_D]
    push_back(s, d, Q_PREALLOC, r, target)
    if s.q[d, Q_PREALLOC, Q_HEAD] == r and s.q[d, Q_RETRACTED, Q_COUNT] == 0:
        wake(s, d, t)


def note_hit(s: State, r: int, hits_tokens: int) -> None:
    """Remember the prefix hit of the first admission."""
    if s.ri[r, R_HIT] < 0:
        s.ri[r, R_HIT] = hits_tokens
    s.ri[r, R_DONE] = hits_tokens
    s.ri[r, R_CHUNK] = 0


def let_go_of_decode(s: State, r: int, t: float) -> None:
    """Give back what decode holds, or the place in its queue, for a request that will not come."""
    d = s.ri[r, R_D]
    if s.ri[r, R_ALLOC1] > 0:
        sync(s, d, t)
        clear_flight(s, d, r, 1)
        count_out(s, d, Q_TRANSFER, s.ri[r, R_TARGET])
        release_decode(s, d, r, s.ri[r, R_ALLOC1], 0)
    else:
        drop_from(s, d, Q_PREALLOC, r, s.ri[r, R_TARGET])
    wake(s, d, t)
