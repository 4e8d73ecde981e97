"""
What holds waiting requests back on a pool: KV that is full, or request slots where the engine does not name its cap.

vLLM exports no `max_num_seqs`. Ranks of one worker share it, so a count that several of them have reached and none
exceeds, while requests wait and KV is ample, is taken for the cap: likely, and said so.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from scoring.model import Composition, Finding, PoolReading, PoolSnapshot, Role, Severity

KV_BOUND_RATIO: Final = 0.95
"""Committed above this while requests wait: it is KV they wait for (chosen; the last blocks are too few for one)."""
AMPLE_RATIO: Final = 0.2
"""More available than this while requests wait: capacity is not what holds them (chosen)."""
LEAST_CAP_COUNT: Final = 4.0
"""Ranks that agree on fewer running requests than this agree by chance (chosen)."""


def kv_binds(reading: PoolReading, composition: Composition, preempted_count: float | None) -> Finding | None:
    """
    Return that KV is what requests wait for, or None.

    A prefill pool's queue waits for compute or for decode, so it is not asked. `preempted_count`: requests thrown
    out of the batch within the window, None where the engine does not count them.
    """
    waiting, usable = reading.waiting_count, composition.usable_tokens.value
    committed, used = composition.committed_tokens.value, composition.used_tokens.value
    if reading.role is Role.PREFILL or not waiting or not usable or committed is None or used is None:
        return None
    if committed < KV_BOUND_RATIO * usable:
        return None
    running = f"{reading.running_count:.0f} requests run, " if reading.running_count is not None else ""
    reserved = f" and {committed - used:.0f} reserved" if committed > used else ""
    text = f"KV binds: {running}{waiting:.0f} wait, {used:.0f} of {usable:.0f} tokens are held{reserved}."
    if preempted_count:
        text += f" {preempted_count:.0f} requests were preempted within the window."
    return Finding(code="kv-binds", text=text, severity=Severity.WARNING, dp_rank=reading.dp_rank)


def slots_bind_by_peers(pools: Sequence[PoolSnapshot]) -> Mapping[str, Finding]:
    """Return pool id -> `slots-bind` for ranks that stand at a cap which only their peers show."""
    workers: dict[str, list[PoolSnapshot]] = {}
    for pool in pools:
        if pool.max_running_count.value is None and pool.running_count.value is not None and pool.state.is_scored:
            workers.setdefault(pool.worker_id, []).append(pool)
    found: dict[str, Finding] = {}
    for ranks in workers.values():
        cap = max(pool.running_count.value or 0.0 for pool in ranks)
        full = [pool for pool in ranks if pool.running_count.value == cap and _is_ample(pool)]
        if cap < LEAST_CAP_COUNT or len(full) < 2 or not any(pool.waiting_count.value for pool in full):
            continue
        for pool in full:
            found[pool.pool_id] = Finding(
                code="slots-bind",
                text=(
                    f"Request slots bind, not KV: {cap:.0f} requests run on {len(full)} ranks and more on none, "
                    f"so {cap:.0f} is likely the cap; {pool.waiting_count.value or 0.0:.0f} wait here, and "
                    f"{pool.composition.available_tokens.value or 0.0:.0f} tokens are free or reclaimable."
                ),
                dp_rank=pool.dp_rank,
            )
    return found


def _is_ample(pool: PoolSnapshot) -> bool:
    available, usable = pool.composition.available_tokens.value, pool.composition.usable_tokens.value
    return available is not None and usable is not None and available > AMPLE_RATIO * usable
