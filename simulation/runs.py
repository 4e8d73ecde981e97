# mypy: disable-error-code="no-any-return"
# State is numpy arrays or memoryviews by the way it runs, so its fields are Any.
"""
Runs of a pool: many decode steps of an unchanged batch as one event, and what can be seen in the middle of one.

While the batch stays the same, k steps take a closed form (`scoring.service.decode_run_s`). A run is planned up to the
first finish or to the last step that has room; whatever happens meanwhile cuts it to the end of the step it falls in,
and a look from outside applies the steps begun so far without moving any time.
"""

import math

from scoring.service import decode_run_s
from simulation.blocks import blocks_up, take
from simulation.layout import (
    C_BATCH,
    C_BATCH2,
    C_BATCH_STEP_S,
    C_GENERATED,
    C_MOVED,
    C_STEP_S,
    C_STEPS,
    F_LAST,
    ITL_BINS,
    ITL_BINS_PER_E,
    ITL_FLOOR_S,
    K_BASE,
    K_LARGE_BASE,
    K_LARGE_SEQUENCE,
    K_LARGE_TOKEN,
    K_SEQUENCE,
    K_TOKEN,
    K_TOKEN2,
    P_APPLIED,
    P_COUNTED,
    P_EVICTABLE,
    P_FREE,
    P_K,
    P_KV,
    P_LARGE,
    P_NB,
    P_PAGE,
    P_PHASE,
    P_RUN_B,
    P_RUN_KV,
    P_STEP,
    P_TAIL,
    PHASE_DECODE,
    R_ALLOC1,
    R_BASE,
    T_LAST,
    T_NEXT,
    T_RUN,
    State,
)


def run_s(s: State, p: int, k: int) -> float:
    """Return seconds of the first `k` steps of the pool's run."""
    b = s.pi[p, P_RUN_B]
    kv = s.pi[p, P_RUN_KV]
    if s.pi[p, P_LARGE] > 0 and b >= s.pi[p, P_LARGE]:
        return decode_run_s(
            float(k), float(b), float(kv), s.pf[p, K_LARGE_BASE], s.pf[p, K_LARGE_SEQUENCE], s.pf[p, K_LARGE_TOKEN], 0.0
        )
    return decode_run_s(
        float(k), float(b), float(kv), s.pf[p, K_BASE], s.pf[p, K_SEQUENCE], s.pf[p, K_TOKEN], s.pf[p, K_TOKEN2]
    )


def steps_ended(s: State, p: int, t: float) -> int:
    """Return how many steps of the run have ended by `t` (one that ends at `t` has)."""
    low = 0
    high = s.pi[p, P_K]
    start = s.pf[p, T_RUN]
    while low < high:
        middle = (low + high + 1) // 2
        if start + run_s(s, p, middle) <= t:
            low = middle
        else:
            high = middle - 1
    return low


def steps_begun(s: State, p: int, t: float) -> int:
    """
    Return how many steps of the run have begun before `t`.

    One that would begin at `t` itself has not: whatever arrives at `t` may still change the batch it runs with.
    """
    low = 1
    high = s.pi[p, P_K]
    start = s.pf[p, T_RUN]
    while low < high:
        middle = (low + high + 1) // 2
        if start + run_s(s, p, middle - 1) < t:
            low = middle
        else:
            high = middle - 1
    return low


def cut_run(s: State, p: int, t: float) -> None:
    """End the run with the step that is under way at `t`, or that ends at `t`."""
    begun = steps_begun(s, p, t)
    if begun < s.pi[p, P_K]:
        s.pi[p, P_K] = begun
        s.pf[p, T_NEXT] = s.pf[p, T_RUN] + run_s(s, p, begun)


def growth_blocks(s: State, p: int, begin: int, end: int) -> int:
    """Return the blocks that the batch takes between its `begin`-th and `end`-th step from now."""
    page = s.pi[p, P_PAGE]
    step = s.pi[p, P_STEP]
    total = 0
    for i in range(s.pi[p, P_NB]):
        held = s.ri[s.batch[p, i], R_BASE] + step
        total += blocks_up(held + end, page) - blocks_up(held + begin, page)
    return total


def allocate_to(s: State, p: int, k: int) -> None:
    """Allocate the positions of the run's steps up to `k`."""
    done = s.pi[p, P_APPLIED]
    if k <= done:
        return
    blocks = growth_blocks(s, p, done, k)
    take(s, p, blocks)
    grown = s.pi[p, P_RUN_B] * (k - done)
    s.pi[p, P_TAIL] += blocks * s.pi[p, P_PAGE] - grown
    s.pi[p, C_MOVED] += grown
    s.pi[p, P_APPLIED] = k


def count_to(s: State, p: int, k: int) -> None:
    """Count the run's steps up to `k` in the pool's counters."""
    done = s.pi[p, P_COUNTED]
    if k <= done:
        return
    b = s.pi[p, P_RUN_B]
    more = k - done
    s.pi[p, C_STEPS] += more
    s.pi[p, C_BATCH] += more * b
    s.pi[p, C_BATCH2] += more * b * b
    s.pi[p, C_GENERATED] += more * b
    seconds = run_s(s, p, k) - run_s(s, p, done)
    s.pf[p, C_STEP_S] += seconds
    s.pf[p, C_BATCH_STEP_S] += seconds * b
    s.pi[p, P_COUNTED] = k


def sync(s: State, p: int, t: float) -> None:
    """
    Bring the pool's blocks and counters to what they are at `t`; no time changes by it.

    Needed before anything but the pool's own boundary touches its blocks, or evictions would come in another order.
    """
    if s.pi[p, P_PHASE] == PHASE_DECODE:
        allocate_to(s, p, steps_begun(s, p, t))
        count_to(s, p, steps_ended(s, p, t))


def note_gap(s: State, p: int, gap_s: float, weight: int) -> None:
    """Count `weight` inter-token gaps of `gap_s` in the pool's histogram."""
    i = 0
    if gap_s > ITL_FLOOR_S:
        i = min(int(math.log(gap_s / ITL_FLOOR_S) * ITL_BINS_PER_E), ITL_BINS - 1)
    s.hist[p, i] += weight


def note_gaps(s: State, p: int) -> None:
    """Count the gap before every token of the run that ends; joiners count from their own last token."""
    b = s.pi[p, P_RUN_B]
    step = s.pi[p, P_STEP]
    first = s.pf[p, T_NEXT] if s.pi[p, P_K] == 1 else s.pf[p, T_RUN] + run_s(s, p, 1)
    staying = 0
    for i in range(b):
        r = s.batch[p, i]
        if s.ri[r, R_BASE] + step == s.ri[r, R_ALLOC1]:
            note_gap(s, p, first - s.rf[r, F_LAST], 1)
        else:
            staying += 1
    if staying > 0:
        note_gap(s, p, first - s.pf[p, T_LAST], staying)
    before = run_s(s, p, 1)
    for k in range(2, s.pi[p, P_K] + 1):
        after = run_s(s, p, k)
        note_gap(s, p, after - before, b)
        before = after


def begin_run(s: State, p: int, k: int) -> None:
    """Fix batch and first step of a run of `k` steps; the caller sets its times."""
    s.pi[p, P_K] = k
    s.pi[p, P_APPLIED] = 0
    s.pi[p, P_COUNTED] = 0
    s.pi[p, P_RUN_B] = s.pi[p, P_NB]
    s.pi[p, P_RUN_KV] = s.pi[p, P_KV] + s.pi[p, P_NB]
    allocate_to(s, p, 1)


def end_run(s: State, p: int, t: float) -> None:
    """Complete the run at `t`, its planned or cut end."""
    k = s.pi[p, P_K]
    allocate_to(s, p, k)
    count_to(s, p, k)
    note_gaps(s, p)
    s.pi[p, P_STEP] += k
    s.pi[p, P_KV] += k * s.pi[p, P_RUN_B]
    s.pf[p, T_LAST] = t


def longest_run(s: State, p: int, most: int) -> int:
    """Return the steps, at least 1 and at most `most`, that the blocks left allow; one step is known to fit."""
    room = s.pi[p, P_FREE] + s.pi[p, P_EVICTABLE]
    if growth_blocks(s, p, 0, most) <= room:
        return most
    low = 1
    high = most
    while low < high:
        middle = (low + high + 1) // 2
        if growth_blocks(s, p, 0, middle) <= room:
            low = middle
        else:
            high = middle - 1
    return low
