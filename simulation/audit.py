"""
Conservation, checked from scratch: what the kernel's running sums say against what the requests and nodes add up to.
"""

import numpy as np

from simulation import layout as lay
from simulation.layout import State


class ConservationError(AssertionError):
    """A sum of the simulation does not hold; the message says which, where and when. Always a defect of ours."""


def _expect(name: str, pool: int, at_s: float, have: float, want: float) -> None:
    if abs(have - want) > 1e-9 * max(abs(have), abs(want)):
        raise ConservationError(f"{name} of pool {pool} at {at_s:.9f} s is {have}, its parts add up to {want}")


def audit(state: State) -> None:
    """
    Assert conservation of requests, tokens, blocks and bytes; the state holds arrays (not memoryviews).

    Raises:
        ConservationError: the first sum that does not hold.
    """
    now_s = float(state.gf[lay.V_NOW])
    _audit_requests(state, now_s)
    for p in range(len(state.pi)):
        _audit_pool(state, p, now_s)
    sent = np.nansum(state.rf[: state.g[lay.G_COUNT], lay.F_BYTES])
    counted = sum(state.pf[p, lay.C_BYTES] for p in range(len(state.pi)))
    # Each transfer is counted at both of its ends, so all ends together count every byte twice.
    _expect("bytes over links (twice)", -1, now_s, counted, 2.0 * sent)


def _audit_requests(state: State, now_s: float) -> None:
    stages = state.ri[: state.g[lay.G_COUNT], lay.R_STAGE]
    living = int(((stages != lay.S_NEW) & (stages != lay.S_DONE)).sum())
    _expect("open requests", -1, now_s, int(state.g[lay.G_OPEN]), living)
    batch = int(state.pi[:, lay.P_NB].sum())
    _expect("running requests", -1, now_s, batch, int((stages == lay.S_DECODE).sum()))
    _expect("computing requests", -1, now_s, int(state.pi[:, lay.P_NW].sum()), int((stages == lay.S_PREFILL).sum()))
    for queue, stage in (
        (lay.Q_BOOTSTRAP, (lay.S_BOOTSTRAP,)),
        (lay.Q_MAIN, (lay.S_QUEUED,)),
        (lay.Q_INFLIGHT, (lay.S_COMPUTED, lay.S_TRANSFER)),
        (lay.Q_ARRIVED, (lay.S_ARRIVED,)),
        (lay.Q_RETRACTED, (lay.S_RETRACTED,)),
    ):
        queued = int(state.q[:, queue, lay.Q_COUNT].sum())
        _expect(f"queue {queue}", -1, now_s, queued, int(np.isin(stages, stage).sum()))


def _audit_pool(state: State, p: int, now_s: float) -> None:
    pi = state.pi[p]
    page, unit_blocks = int(pi[lay.P_PAGE]), int(pi[lay.P_UNIT_BLOCKS])
    rows = state.ri[: state.g[lay.G_COUNT]]
    in_run = int(pi[lay.P_APPLIED]) if pi[lay.P_PHASE] >= lay.PHASE_DECODE else 0
    own = tail = kv = 0
    admitted = 0
    locks: list[int] = []
    batch = state.batch[p, : pi[lay.P_NB]]
    for side, pool_column in ((0, lay.R_P), (1, lay.R_D)):
        holders = np.flatnonzero((rows[:, pool_column] == p) & (rows[:, lay.R_ALLOC0 + side] > 0))
        for r in holders:
            held = int(rows[r, lay.R_ALLOC0 + side])
            if side == 1:
                admitted += 1
                if rows[r, lay.R_STAGE] == lay.S_DECODE:
                    held = int(rows[r, lay.R_BASE] + pi[lay.P_STEP])
                    kv += held
                    held += in_run
            blocks = -(-held // page)
            locked = int(rows[r, lay.R_LOCK0 + side])
            own += blocks - locked * unit_blocks
            tail += blocks * page - held
            offset = int(rows[r, lay.R_OFFSET])
            locks += state.locks[side, offset : offset + locked].tolist()
    nodes = state.nodes[p]
    locked_blocks = sum(int(nodes[n, lay.N_BLOCKS]) for n in set(locks))
    for n in set(locks):
        _expect(f"locks of node {n}", p, now_s, int(nodes[n, lay.N_REF]), locks.count(n))
    evictable, cached = _lru_blocks(state, p)
    _expect("running batch", p, now_s, len(batch), int((rows[batch, lay.R_STAGE] == lay.S_DECODE).sum()))
    _expect("admitted requests", p, now_s, int(pi[lay.P_ADMITTED]), admitted)
    _expect("batch positions", p, now_s, int(pi[lay.P_KV]), kv)
    _expect("fragmentation", p, now_s, int(pi[lay.P_TAIL]), tail)
    _expect("evictable blocks", p, now_s, int(pi[lay.P_EVICTABLE]), evictable)
    _expect("usable blocks", p, now_s, int(pi[lay.P_USABLE]), int(pi[lay.P_FREE]) + evictable + own + locked_blocks)
    found = int((state.table[p, :, 1] >= 0).sum())
    _expect("cached units", p, now_s, found, cached + len(set(locks)))
    for name, value in (("free blocks", pi[lay.P_FREE]), ("in flight", pi[lay.P_FLIGHT_TOKENS]), ("tail", tail)):
        if value < 0:
            raise ConservationError(f"{name} of pool {p} at {now_s:.9f} s is {value}")


def _lru_blocks(state: State, p: int) -> tuple[int, int]:
    """Return the blocks in the order of eviction, and how many of its nodes are prompt units."""
    node = int(state.pi[p, lay.P_LRU_HEAD])
    blocks = units = 0
    before = -1
    while node >= 0:
        if state.nodes[p, node, lay.N_PREV] != before or state.nodes[p, node, lay.N_REF] != 0:
            raise ConservationError(f"node {node} of pool {p} is out of order in the cache")
        blocks += int(state.nodes[p, node, lay.N_BLOCKS])
        units += int(state.nodes[p, node, lay.N_KEY] != lay.KEY_OUTPUT)
        before, node = node, int(state.nodes[p, node, lay.N_NEXT])
    return blocks, units
