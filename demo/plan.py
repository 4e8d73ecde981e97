"""
The demo fleet on paper: which workers there are, what they are made of, and how the simulation sees them.

One model everywhere (Qwen3-32B on pairs of H100), since a P/D fleet must share its KV layout; the decode worker
with less memory per card is the one difference operators meet most.
"""

from dataclasses import dataclass, replace
from typing import Final

from demo.state import RankFacts
from demo.traffic import HASH_BLOCK_TOKENS
from demo.worker import WorkerPlan
from scoring.model import Role
from scoring.service import PROFILES
from scoring.units import GIB_BYTES
from simulation.fleet import FleetSpec, PoolSpec

MODEL: Final = "Qwen/Qwen3-32B"
PROFILE: Final = replace(PROFILES["qwen3-32b-h100-tp2"], transfer_latency_s=0.004)
"""Published fit; the hand-over latency is chosen: a rendezvous and a few RDMA round trips."""
GPUS_PER_RANK: Final = 2
CARD: Final = "NVIDIA H100 80GB HBM3"
SMALL_CARD: Final = "NVIDIA H100 64GB"
CONTEXT_TOKENS: Final = 131_072
WEIGHT_GIB: Final = 30.6
"""32.8 billion parameters of two bytes over two GPUs."""
RESERVE_TOKENS: Final = 512
"""SGLang's default `num_reserved_decode_tokens`."""
POOL_TOKENS: Final = 131_072
SMALL_POOL_TOKENS: Final = 65_536
UNIFIED_POOL_TOKENS: Final = 131_072
BANDWIDTH_BYTES_PER_S: Final = 25e9
"""200 Gbit/s, one network card a worker."""
TWO_NODE_POOL_TOKENS: Final = 524_288
TWO_NODE_CARD: Final = "NVIDIA H200"
"""The two-node case needs room for a 64k prompt; the published fit is the H100's, whose compute the H200 shares."""
CHUNK_TOKENS: Final = 8192
MODES: Final = {Role.PREFILL: "prefill", Role.DECODE: "decode", Role.UNIFIED: "null"}
RACK_COUNT: Final = 3
MAX_WORKERS: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """
    The fleet as the simulation and as the wire see it.

    Attributes:
        spec: Pools in worker order, ranks ascending.
        workers: One plan a worker, in the same order.
        pool_indices: Worker name -> indices of its pools in `spec.pools`.
    """

    spec: FleetSpec
    workers: tuple[WorkerPlan, ...]
    pool_indices: dict[str, tuple[int, ...]]

    @property
    def decode_tokens(self) -> int:
        """Room of all decode pools."""
        return sum(pool.usable_tokens for pool in self.spec.pools if pool.role is Role.DECODE)

    def named(self, role: Role) -> tuple[str, ...]:
        """Return the workers of a role."""
        return tuple(plan.name for plan in self.workers if plan.mode == MODES[role])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Build:
    name: str
    role: Role
    usable_tokens: int = POOL_TOKENS
    rank_count: int = 1
    card: str = CARD
    bandwidth_bytes_per_s: float = BANDWIDTH_BYTES_PER_S


def _pools(build: _Build) -> list[PoolSpec]:
    return [
        PoolSpec(
            worker=build.name,
            dp_rank=rank,
            role=build.role,
            usable_tokens=build.usable_tokens,
            block_size_tokens=HASH_BLOCK_TOKENS,
            profile=PROFILE,
            max_running_count=128,
            prefill_budget_tokens=CHUNK_TOKENS,
            reserve_tokens=0 if build.role is Role.PREFILL else RESERVE_TOKENS,
            bandwidth_bytes_per_s=build.bandwidth_bytes_per_s,
            is_prefix_cached=build.role is not Role.DECODE,
        )
        for rank in range(build.rank_count)
    ]


def _worker(build: _Build, number: int) -> WorkerPlan:
    kv_gib = build.usable_tokens * PROFILE.bytes_per_token / GPUS_PER_RANK / GIB_BYTES
    ranks = tuple(
        RankFacts(
            dp_rank=rank,
            usable_tokens=build.usable_tokens,
            max_running_count=128,
            page_tokens=HASH_BLOCK_TOKENS,
            weight_gib=WEIGHT_GIB,
            kv_gib=kv_gib,
            graph_gib=0.0 if build.role is Role.PREFILL else 1.9,
        )
        for rank in range(build.rank_count)
    )
    return WorkerPlan(
        name=build.name,
        mode=MODES[build.role],
        model=MODEL,
        accelerator=build.card,
        accelerators_per_rank=GPUS_PER_RANK,
        context_tokens=CONTEXT_TOKENS,
        ranks=ranks,
        reserved_decode_tokens=RESERVE_TOKENS,
        chunked_prefill_tokens=CHUNK_TOKENS,
        bandwidth_bytes_per_s=build.bandwidth_bytes_per_s,
        rack=f"rack-{number % RACK_COUNT + 1}",
        bootstrap_port=8998 + number,
    )


def _plan(builds: list[_Build]) -> FleetPlan:
    pools: list[PoolSpec] = []
    indices: dict[str, tuple[int, ...]] = {}
    for build in builds:
        indices[build.name] = tuple(range(len(pools), len(pools) + build.rank_count))
        pools += _pools(build)
    spec = FleetSpec(pools=tuple(pools), handshake="before-prefill", retraction="fewest-output")
    workers = tuple(_worker(build, number) for number, build in enumerate(builds))
    return FleetPlan(spec=spec, workers=workers, pool_indices=indices)


def default_plan(worker_count: int = 11) -> FleetPlan:
    """
    Return 4 prefill, 6 decode (2 ranks each, the last with less memory) and 1 unified worker, or as near to those
    proportions as `worker_count` lets.

    Raises:
        ValueError: Fewer than 3 workers, or more than MAX_WORKERS.
    """
    if not 3 <= worker_count <= MAX_WORKERS:
        raise ValueError(f"--workers must be from 3 to {MAX_WORKERS}, not {worker_count}")
    unified_count = max(worker_count // 11, 1)
    prefill_count = max(round((worker_count - unified_count) * 0.4), 1)
    decode_count = worker_count - unified_count - prefill_count
    builds = [_Build(name=f"prefill-{i}", role=Role.PREFILL) for i in range(1, prefill_count + 1)]
    for i in range(1, decode_count + 1):
        is_small = i == decode_count and decode_count > 1
        builds.append(
            _Build(
                name=f"decode-{i}",
                role=Role.DECODE,
                rank_count=2,
                usable_tokens=SMALL_POOL_TOKENS if is_small else POOL_TOKENS,
                card=SMALL_CARD if is_small else CARD,
            )
        )
    builds += [
        _Build(name=f"unified-{i}", role=Role.UNIFIED, usable_tokens=UNIFIED_POOL_TOKENS)
        for i in range(1, unified_count + 1)
    ]
    return _plan(builds)


def two_node_plan() -> FleetPlan:
    """Return the two-node case: P-A and P-B before D-A and D-B, one large rank each."""
    return _plan(
        [
            _Build(name=name, role=role, usable_tokens=TWO_NODE_POOL_TOKENS, card=TWO_NODE_CARD)
            for name, role in (
                ("P-A", Role.PREFILL),
                ("P-B", Role.PREFILL),
                ("D-A", Role.DECODE),
                ("D-B", Role.DECODE),
            )
        ]
    )
