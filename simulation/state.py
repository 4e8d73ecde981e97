"""
Specs to arrays: builds the kernel's `State`, and grows the parts that depend on how many requests there are.

Read next: `layout` (what the columns mean) and `engine` (what happens to them).
"""

import math
from collections.abc import Sequence

import numpy as np

from scoring.model import Role
from simulation import layout as lay
from simulation.fleet import DECIDERS, FleetSpec, PoolSpec
from simulation.layout import State

ROLE_BITS = {Role.PREFILL: 1, Role.DECODE: 2, Role.UNIFIED: 4}
MAX_FLOWS = 16384
"""Most transfers under way at once in the whole fleet; more wait as if for a credit."""
MIN_NODES = 4096
"""Cache nodes kept for generated blocks; when they run out the oldest node makes way."""


def unit_tokens(pool: PoolSpec, hash_block_tokens: int) -> int:
    """
    Return the tokens of a prefix unit: the coarser of hash block and pool block.

    Raises:
        ValueError: when neither is a multiple of the other.
    """
    unit = max(pool.block_size_tokens, hash_block_tokens)
    if unit % pool.block_size_tokens or unit % hash_block_tokens:
        raise ValueError(
            f"pool {pool.pool_id}: block_size_tokens {pool.block_size_tokens} and the traffic's hash_block_tokens "
            f"{hash_block_tokens} do not divide one another; give the pool another block size or is_prefix_cached=False"
        )
    return unit


def ends_of(fleet: FleetSpec) -> tuple[str, ...]:
    """Return the network ends, one a worker, in order of first appearance."""
    return tuple(dict.fromkeys(pool.worker for pool in fleet.pools))


def _put_pool(state: State, i: int, pool: PoolSpec, unit: int, hash_block_tokens: int, end: int, width: int) -> None:
    pi, pf = state.pi, state.pf
    profile = pool.profile
    is_poly = profile.curve == "dynamo-polynomial"
    usable = pool.usable_blocks * pool.block_size_tokens
    for column, whole in (
        (lay.P_USABLE, pool.usable_blocks),
        (lay.P_FREE, pool.usable_blocks),
        (lay.P_PAGE, pool.block_size_tokens),
        (lay.P_UNIT, unit),
        (lay.P_UNIT_BLOCKS, unit // pool.block_size_tokens),
        (lay.P_RATIO, max(unit // hash_block_tokens, 1)),
        (lay.P_ROLE, ROLE_BITS[pool.role]),
        (lay.P_CACHES, int(pool.is_prefix_cached)),
        (lay.P_CACHES_OUTPUT, int(pool.is_output_cached)),
        (lay.P_MIXED, int(pool.is_mixed)),
        (lay.P_MAX_RUNNING, min(pool.max_running_count, width)),
        (lay.P_BUDGET, pool.prefill_budget_tokens),
        (lay.P_RESERVE, pool.reserve_tokens),
        (lay.P_CREDIT, pool.max_incoming_count),
        (lay.P_END, end),
        (lay.P_UP, 1),
        (lay.P_OPEN, 1),
        (lay.P_LARGE, profile.large_batch_count),
        (lay.P_POLY, int(is_poly)),
        (lay.P_LRU_HEAD, -1),
        (lay.P_LRU_TAIL, -1),
        (lay.P_NODES, state.nodes.shape[1]),
        (lay.P_MASK, state.table.shape[1] - 1),
    ):
        pi[i, column] = whole
    for column, value in (
        (lay.T_NEXT, math.inf),
        (lay.K_BASE, profile.decode_base_s),
        (lay.K_SEQUENCE, profile.decode_per_sequence_s),
        (lay.K_TOKEN, profile.decode_per_token_s + profile.decode_per_utilization_s / usable),
        (lay.K_TOKEN2, profile.decode_per_utilization2_s / usable**2),
        (lay.K_LARGE_BASE, profile.large_decode_base_s),
        (lay.K_LARGE_SEQUENCE, profile.large_decode_per_sequence_s),
        (lay.K_LARGE_TOKEN, profile.large_decode_per_token_s),
        (lay.K_PREFILL_BASE, profile.prefill_base_s),
        (lay.K_PREFILL_TOKEN, profile.prefill_per_token_s),
        (lay.K_PREFILL_TOKEN2, profile.prefill_per_token2_s),
        (lay.K_BYTES, profile.bytes_per_token),
    ):
        pf[i, column] = value


def _paths(fleet: FleetSpec) -> np.ndarray:
    """Return (pools, pools, 2): the path's own rate (0 none) and its latency; later links override."""
    count = len(fleet.pools)
    paths = np.zeros((count, count, 2))
    for i, pool in enumerate(fleet.pools):
        paths[i, :, 1] = pool.profile.transfer_latency_s
    workers = np.array([pool.worker for pool in fleet.pools])
    for link in fleet.links:
        sources = np.full(count, True) if link.source == "*" else workers == link.source
        targets = np.full(count, True) if link.target == "*" else workers == link.target
        chosen = np.ix_(sources, targets)
        if link.bandwidth_bytes_per_s is not None:
            paths[..., 0][chosen] = link.bandwidth_bytes_per_s
        if link.latency_s is not None:
            paths[..., 1][chosen] = link.latency_s
    return paths


def new_requests(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return blank request rows (whole numbers, times)."""
    ri = np.zeros((count, lay.NR), np.int64)
    for column in (lay.R_P, lay.R_D, lay.R_HIT, lay.R_NEXT0, lay.R_NEXT1):
        ri[:, column] = -1
    return ri, np.full((count, lay.NF), np.nan)


def make_state(
    fleet: FleetSpec,
    *,
    request_count: int,
    key_count: int,
    hash_block_tokens: int,
    seed: int,
    telemetry_rows: int = 1,
) -> State:
    """
    Return the state of an idle, empty fleet with blank rows for `request_count` requests.

    Raises:
        ValueError: when a caching pool's block size does not fit the hash blocks.
    """
    pools = fleet.pools
    count = len(pools)
    units = [unit_tokens(p, hash_block_tokens) if p.is_prefix_cached else p.block_size_tokens for p in pools]
    width = max(min(pool.max_running_count, max(pool.usable_blocks, 1)) for pool in pools)
    nodes = 2
    slots = 2
    for pool, unit in zip(pools, units, strict=True):
        prompts = pool.usable_tokens // unit + 1 if pool.is_prefix_cached else 0
        outputs = min(pool.usable_blocks, MIN_NODES) if pool.is_output_cached else 0
        nodes = max(nodes, prompts + outputs + 1)
        while slots < 2 * (prompts + 1):
            slots *= 2
    ends = ends_of(fleet)
    ri, rf = new_requests(request_count)
    flows = max(min(request_count, MAX_FLOWS), 1)
    state = State(
        ri=ri,
        rf=rf,
        pi=np.zeros((count, lay.NP), np.int64),
        pf=np.zeros((count, lay.NPF)),
        q=np.zeros((count, lay.NQ, lay.NQC), np.int64),
        work=np.full((count, width + 1), -1, np.int64),
        batch=np.full((count, width + 1), -1, np.int64),
        keys=np.zeros(max(key_count, 1), np.int64),
        locks=np.zeros((2, max(key_count, 1)), np.int64),
        table=np.full((count, slots, 2), -1, np.int64),
        nodes=np.zeros((count, nodes, lay.NN), np.int64),
        fi=np.zeros((flows, lay.NFI), np.int64),
        ff=np.zeros((flows, lay.NFF)),
        ends=np.zeros((len(ends), 4)),
        paths=_paths(fleet),
        g=np.zeros(lay.NG, np.int64),
        gf=np.zeros(lay.NV),
        order=np.arange(max(request_count, 1), dtype=np.int64),
        samples=np.zeros((0, count, lay.NX)),
        look=np.zeros((count, lay.NX)),
        seen=np.zeros((telemetry_rows, count, lay.NX)),
        seen_at=np.full(telemetry_rows, -math.inf),
        faults=np.zeros((0, 2), np.int64),
        fault_at=np.zeros((0, 2)),
        hist=np.zeros((count, lay.ITL_BINS), np.int64),
        leases=np.zeros(max(request_count, 1), np.int64),
        weights=np.ones((1, lay.NW)),
    )
    state.q[:, :, lay.Q_HEAD] = -1
    state.q[:, :, lay.Q_TAIL] = -1
    state.nodes[:, :, lay.N_NEXT] = np.arange(1, nodes + 1)
    state.nodes[:, -1, lay.N_NEXT] = -1
    for i, (pool, unit) in enumerate(zip(pools, units, strict=True)):
        end = ends.index(pool.worker)
        _put_pool(state, i, pool, unit, hash_block_tokens, end, width)
        state.ends[end, 0] = state.ends[end, 1] = pool.bandwidth_bytes_per_s
    g, gf = state.g, state.gf
    for column, whole in (
        (lay.G_PENDING, -1),
        (lay.G_RETRY_HEAD, -1),
        (lay.G_RETRY_TAIL, -1),
        (lay.G_VIEW, -1),
        (lay.G_HANDSHAKE, int(fleet.handshake == "after-prefill")),
        (lay.G_SHARING, int(fleet.sharing == "max-min")),
        (lay.G_MISSING, int(fleet.transfer_mode == "missing")),
        (lay.G_DECIDER, DECIDERS.index(fleet.decider)),
        (lay.G_FEWEST, int(fleet.retraction == "fewest-output")),
    ):
        g[column] = whole
    g[lay.G_RANDOM1], g[lay.G_RANDOM2] = seeds_of(seed)
    gf[lay.V_OVERLAP] = fleet.overlap_ratio
    gf[lay.V_NET] = gf[lay.V_SAMPLE] = gf[lay.V_TELEMETRY] = math.inf
    return state


def seeds_of(seed: int) -> tuple[int, int]:
    """Return the two starting numbers of the kernel's generator for a seed."""
    words = np.random.SeedSequence(seed).generate_state(2)
    return int(words[0]) % 2147483562 + 1, int(words[1]) % 2147483398 + 1


def put_requests(state: State, rows: Sequence[int] | slice, columns: dict[int, object], arrival_s: object) -> None:
    """Fill request rows: whole-number columns by index, and the arrival."""
    for column, values in columns.items():
        state.ri[rows, column] = values
    state.rf[rows, lay.F_ARRIVAL] = arrival_s
