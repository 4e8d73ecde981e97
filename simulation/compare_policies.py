"""
Policies by name for a replay: the kernel's own where it has them, else those of scoring through their live code.

A policy that the kernel does not know is asked at each arrival through `scoring.policy.decide`, over a snapshot
made of what the router sees at that moment, as old as its telemetry is. That is the same function the live pages
call, a few milliseconds a request where the compiled ones take microseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from scoring.demand import RequestView, known_output
from scoring.model import FleetSnapshot, Link, PoolSnapshot, Role
from scoring.policy import POLICIES as SCORED
from scoring.policy import DecideSettings, Decision, RouterState, decide
from scoring.policy.sketch import sketch_fleet, sketch_pool
from scoring.service import ServiceProfile, decode_step_s, prefill_s
from scoring.slo import SLO_CLASSES, SloClass
from simulation import layout as lay
from simulation.fleet import FleetSpec, PoolSpec
from simulation.result import Samples
from simulation.simulate import POLICIES as COMPILED
from simulation.simulate import ArrivalView, FleetView, Policy

ALIASES: Final = MappingProxyType({"guarded-utilization": "guarded", "rr": "round-robin", "p2c": "power-of-two"})
"""Names of the same rule: scoring's on the left, the kernel's on the right."""
PRIOR_OUTPUT_TOKENS: Final = 256.0
"""Expected output where nothing is known (chosen; the kernel's joint policy begins with the same)."""


def policy_names() -> tuple[str, ...]:
    """Return every name that `resolve` takes, compiled ones first."""
    return (*COMPILED, *(name for name in SCORED if name not in COMPILED and name not in ALIASES))


def is_compiled(name: str) -> bool:
    """Say whether a policy runs inside the kernel."""
    return ALIASES.get(name, name) in COMPILED


def check_policy(name: str) -> str:
    """
    Return the canonical name of a policy.

    Raises:
        ValueError: there is none; the message lists them.
    """
    word = name.strip().lower().replace("_", "-")
    word = ALIASES.get(word, word)
    if word not in COMPILED and word not in SCORED:
        raise ValueError(f"policy {name!r} is not known: there are {', '.join(policy_names())}")
    return word


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """
    What an operator knows of the traffic before it comes: means, never one request's output.

    Attributes:
        mean_prompt_tokens: Mean prompt.
        mean_output_tokens: Mean output.
    """

    mean_prompt_tokens: float = 4_000.0
    mean_output_tokens: float = PRIOR_OUTPUT_TOKENS


def _pool_snapshot(
    pool: PoolSpec, columns: np.ndarray, held_tokens: float, waiting_tokens: float, means: Expectations, age_s: float
) -> PoolSnapshot:
    """Return one pool as a judge would tell it, from one row of telemetry (or samples)."""
    profile = pool.profile
    usable = float(pool.usable_blocks * pool.block_size_tokens)
    used = min(held_tokens, usable)
    running = float(columns[lay.X_RUNNING])
    is_prefill = pool.role is Role.PREFILL
    behind = (lay.X_BOOTSTRAP,) if is_prefill else (lay.X_PREALLOC, lay.X_ARRIVED, lay.X_RETRACTED)
    queues = (lay.X_MAIN, *behind)
    waiting = float(sum(columns[at] for at in queues))
    step_s = step_time_s(profile, max(running, 1.0), used, usable)
    finished_per_s = running / (step_s * max(means.mean_output_tokens, 1.0))
    released_tokens = means.mean_prompt_tokens + means.mean_output_tokens
    net = 0.0 if is_prefill else running / step_s - finished_per_s * released_tokens
    return sketch_pool(
        pool.pool_id,
        pool.role,
        usable_tokens=usable,
        used_tokens=used,
        in_flight_tokens=min(float(columns[lay.X_FLIGHT]), used),
        prefix_tokens=min(float(columns[lay.X_PREFIX]), usable - used),
        reserved_tokens=float(columns[lay.X_RESERVED]),
        queued_tokens=waiting * means.mean_prompt_tokens,
        uncached_tokens=max(waiting_tokens, 0.0),
        block_size_tokens=float(pool.block_size_tokens),
        bytes_per_token=profile.bytes_per_token,
        net_tokens_per_s=net,
        net_std_tokens_per_s=abs(net),
        prefill_tokens_per_s=None if pool.role is Role.DECODE else prefill_rate(profile, means.mean_prompt_tokens),
        step_time_s=None if is_prefill else step_s,
        running_count=running,
        waiting_count=waiting,
        max_running_count=float(pool.max_running_count),
        finished_per_s=None if is_prefill else finished_per_s,
        mean_prompt_tokens=means.mean_prompt_tokens,
        mean_output_tokens=means.mean_output_tokens,
        inflight_count=float(columns[lay.X_INFLIGHT]),
        age_s=max(age_s, 0.0),
        labels={"link_bandwidth_bytes_per_s": f"{pool.bandwidth_bytes_per_s:g}"},
    )


def step_time_s(profile: ServiceProfile, batch_count: float, kv_tokens: float, usable_tokens: float) -> float:
    """Return one decode step of a batch by the profile."""
    if profile.curve != "linear":
        ratio = kv_tokens / usable_tokens
        step = profile.decode_base_s + ratio * (
            profile.decode_per_utilization_s + ratio * profile.decode_per_utilization2_s
        )
        return max(float(step), 1e-3)
    base, sequence, token = profile.decode_base_s, profile.decode_per_sequence_s, profile.decode_per_token_s
    if profile.large_batch_count and batch_count >= profile.large_batch_count:
        base, sequence, token = (
            profile.large_decode_base_s,
            profile.large_decode_per_sequence_s,
            profile.large_decode_per_token_s,
        )
    return max(float(decode_step_s(batch_count, kv_tokens, base, sequence, token)), 1e-6)


def prefill_rate(profile: ServiceProfile, prompt_tokens: float) -> float:
    """Return prompt tokens a second for a typical prompt, alone."""
    tokens = max(prompt_tokens, 1.0)
    seconds = prefill_s(tokens, 0.0, profile.prefill_base_s, profile.prefill_per_token_s, profile.prefill_per_token2_s)
    return float(tokens / max(seconds, 1e-9))


def _links(fleet: FleetSpec) -> tuple[Link, ...]:
    return tuple(
        Link(
            source=link.source,
            target=link.target,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
            latency_s=link.latency_s or 0.0,
        )
        for link in fleet.links
    )


def snapshot_of_view(fleet: FleetSpec, view: FleetView, means: Expectations) -> FleetSnapshot:
    """Return what a router sees at a moment of a run as a judged fleet."""
    age_s = 0.0 if np.isnan(view.seen_at_s) else view.at_s - view.seen_at_s
    pools = [
        _pool_snapshot(
            pool,
            view.columns[place],
            float(view.held_ratio[place] * view.usable_tokens[place]),
            float(view.waiting_tokens[place]),
            means,
            age_s,
        )
        for place, pool in enumerate(fleet.pools)
    ]
    return sketch_fleet(pools, _links(fleet), at_s=view.at_s)


def snapshot_of_samples(fleet: FleetSpec, samples: Samples, tick: int, means: Expectations) -> FleetSnapshot:
    """
    Return the fleet at one sample of a finished run, for asking any policy what it would have done there.

    Raises:
        ValueError: there is no such tick.
    """
    if not 0 <= tick < len(samples.at_s):
        raise ValueError(f"tick is {tick}: the run has {len(samples.at_s)} samples")
    names = {
        lay.X_FLIGHT: samples.in_flight_tokens,
        lay.X_PREFIX: samples.prefix_tokens,
        lay.X_RUNNING: samples.running_count,
        lay.X_BOOTSTRAP: samples.queue_bootstrap_count,
        lay.X_MAIN: samples.queue_main_count,
        lay.X_INFLIGHT: samples.queue_inflight_count,
        lay.X_PREALLOC: samples.queue_prealloc_count,
        lay.X_ARRIVED: samples.queue_arrived_count,
        lay.X_RETRACTED: samples.queue_retracted_count,
        lay.X_RESERVED: samples.reserved_tokens,
    }
    pools = []
    for place, pool in enumerate(fleet.pools):
        columns = np.zeros(lay.NX)
        for at, values in names.items():
            columns[at] = values[tick, place]
        held = (
            samples.active_tokens[tick, place]
            + samples.in_flight_tokens[tick, place]
            + samples.fragmentation_tokens[tick, place]
        )
        waiting = float(samples.waiting_prompt_tokens[tick, place])
        pools.append(_pool_snapshot(pool, columns, float(held), waiting, means, 0.0))
    return sketch_fleet(pools, _links(fleet), at_s=float(samples.at_s[tick]))


class ScoredPolicy:
    """
    A policy of scoring in a replay: asked at each arrival through `decide`.

    Its choice is the same as a live decision's on the same snapshot; the seed moves on with the arrivals.
    """

    def __init__(
        self,
        name: str,
        fleet: FleetSpec,
        *,
        seed: int = 0,
        classes: Sequence[SloClass] = tuple(SLO_CLASSES.values()),
        means: Expectations | None = None,
        is_sessioned: bool = False,
    ) -> None:
        """Prepare; `is_sessioned` takes the tenant for the key of session affinity."""
        self.name = name
        self._fleet = fleet
        self._seed = seed
        self._classes = tuple(classes)
        self._means = means or Expectations()
        self._is_sessioned = is_sessioned
        self._turn = 0
        self._index = {pool.pool_id: place for place, pool in enumerate(fleet.pools)}
        self._settings = DecideSettings(
            classes={slo.name: slo for slo in classes},
            profiles={pool.worker: pool.profile for pool in fleet.pools},
            top_count=1,
        )
        self._output = known_output(self._means.mean_output_tokens)

    def choose(self, request: ArrivalView, fleet: FleetView) -> tuple[int, int] | None:
        """Return (prefill, decode) pool indices or None to reject."""
        open_pools = {*fleet.prefill, *fleet.decode, *fleet.unified}
        snapshot = snapshot_of_view(self._fleet, fleet, self._means)
        index = self._index
        pools = tuple(pool for pool in snapshot.pools if index[pool.pool_id] in open_pools)
        if not pools:
            return None
        snapshot = FleetSnapshot(at_s=snapshot.at_s, pools=pools, links=snapshot.links)
        decision = self._decide(request, snapshot)
        self._turn += 1
        chosen = decision.chosen
        if chosen is None:
            return None
        return index[chosen.prefill], index[chosen.decode]

    def _decide(self, request: ArrivalView, snapshot: FleetSnapshot) -> Decision:
        hits = {
            pool.pool_id: min(int(request.hit_tokens[self._index[pool.pool_id]]), request.prompt_tokens)
            for pool in snapshot.pools
        }
        view = RequestView(
            prompt_tokens=request.prompt_tokens,
            output=self._output,
            prefix_hit_tokens=hits,
            slo_class=self._classes[min(request.class_id, len(self._classes) - 1)].name,
            session_id=str(request.tenant_id) if self._is_sessioned else None,
            request_id=str(request.row),
        )
        return decide(
            view,
            snapshot,
            self.name,
            seed=self._seed + self._turn,
            settings=self._settings,
            state=RouterState(turn=self._turn),
        )


def resolve(
    name: str,
    fleet: FleetSpec,
    *,
    seed: int = 0,
    classes: Sequence[SloClass] = tuple(SLO_CLASSES.values()),
    means: Expectations | None = None,
    is_sessioned: bool = False,
) -> str | Policy:
    """
    Return what `simulate` takes for a policy's name: the kernel's name, or an object that asks scoring.

    Raises:
        ValueError: there is no such policy.
    """
    word = check_policy(name)
    if word in COMPILED:
        return word
    return ScoredPolicy(word, fleet, seed=seed, classes=classes, means=means, is_sessioned=is_sessioned)
