"""
Histories in, one judged fleet out: the input of every policy, page and alert.

A pool's snapshot is its newest reading, composed, with its flows, its age and what its recent past says. Nothing
here asks a clock or a network. Read next: `capacity`, `rates`, `freshness`, `evidence`; the file format is in
`snapshot_file`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from scoring import bottleneck, evidence
from scoring.capacity import compose_many
from scoring.freshness import FreshnessThresholds, clock_offset_s, judge_age
from scoring.geometry import GeometryError, config_named, kv_geometry
from scoring.leases import LeaseLedger
from scoring.model import (
    Composition,
    Figure,
    Finding,
    FleetSnapshot,
    Link,
    PoolHistory,
    PoolReading,
    PoolSnapshot,
    Provenance,
    Role,
    Severity,
    SourceState,
    derived,
    estimated,
    measured,
    pool_id,
    unknown,
)
from scoring.model_table import known_model
from scoring.rates import pool_rates
from scoring.snapshot_file import fleet_from_json, fleet_to_json

__all__ = ["JudgeSettings", "fleet_from_json", "fleet_to_json", "judge_fleet", "waiting_once"]

_OFFSET_WORTH_SAYING_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """
    Thresholds of the judge.

    Attributes:
        late_after_s: Age from which figures are late: still scored.
        stale_after_s: Age from which they are stale: not scored.
        frozen_after_polls: Polls without any change, while requests wait, that make figures frozen.
        rate_window_s: Window over which flows are taken.
        evidence_window_s: Past that findings look at.
    """

    late_after_s: float = 3.0
    stale_after_s: float = 10.0
    frozen_after_polls: int = 5
    rate_window_s: float = 30.0
    evidence_window_s: float = 60.0

    @property
    def freshness(self) -> FreshnessThresholds:
        """Return the part that judges age."""
        return FreshnessThresholds(
            late_after_s=self.late_after_s,
            stale_after_s=self.stale_after_s,
            frozen_after_polls=self.frozen_after_polls,
        )


def judge_fleet(
    histories: Sequence[PoolHistory],
    at_s: float,
    settings: JudgeSettings | None = None,
    links: Sequence[Link] = (),
    leases: LeaseLedger | None = None,
) -> FleetSnapshot:
    """
    Return the fleet as it is at `at_s`, pools ascending by pool id; the order of `histories` does not matter.

    `leases` are our outstanding promises; those that a pool's own figures already show are not counted again.
    """
    limits = settings or JudgeSettings()
    ordered = sorted(histories, key=lambda history: (history.last.worker_id, history.last.dp_rank))
    ids = [pool_id(history.last.worker_id, history.last.dp_rank) for history in ordered]
    if len(set(ids)) != len(ids):
        raise ValueError(f"histories: a pool appears twice in {ids}")
    states = [judge_age(history, at_s, limits.freshness) for history in ordered]
    rates = [pool_rates(history, at_s, limits.rate_window_s) for history in ordered]
    claims = [_lease_tokens(leases, name, at_s, history) for name, history in zip(ids, ordered, strict=True)]
    means = [rate.mean_prompt_tokens.value if _is_recent(rate.mean_prompt_tokens) else None for rate in rates]
    compositions = compose_many([history.last for history in ordered], claims, means)
    pools = []
    for index, history in enumerate(ordered):
        reading, composition = history.last, compositions[index]
        past = evidence.Past(history, at_s, limits.evidence_window_s)
        verdict = evidence.pool_findings(
            past, composition, rates[index], evidence.line_rate(reading.worker_id, links, history.labels)
        )
        if verdict.held_tokens is not None:
            composition = _unattribute(composition)
        state, age_s, reason = states[index]
        findings = [*reading.findings, *verdict.findings, *_about_time(history, state, reason)]
        pools.append(
            PoolSnapshot(
                pool_id=ids[index],
                worker_id=reading.worker_id,
                dp_rank=reading.dp_rank,
                role=reading.role,
                engine=reading.engine,
                version=reading.version,
                model=reading.model or history.labels.get("model"),
                labels=dict(history.labels),
                at_s=at_s,
                received_at_s=float(history.at_s[-1]) if len(history.at_s) else None,
                age_s=age_s,
                state=state,
                state_reason=reason,
                block_size_tokens=measured(reading.block_size_tokens, "reported by the engine")
                if reading.block_size_tokens
                else unknown("the source does not say"),
                bytes_per_token=_bytes_per_token(reading, history.labels),
                composition=composition,
                rates=rates[index],
                findings=_unique(findings),
                is_serving=not verdict.is_stuck,
                reading=reading,
                **_counts(reading),
            )
        )
    pools.sort(key=lambda pool: pool.pool_id)
    at_cap = bottleneck.slots_bind_by_peers(pools)
    pools = [
        replace(pool, findings=(*pool.findings, at_cap[pool.pool_id])) if pool.pool_id in at_cap else pool
        for pool in pools
    ]
    is_decode_full = evidence.decode_is_full(pools)
    pools = [pool if pool.is_serving else _settled(pool, is_decode_full) for pool in pools]
    return FleetSnapshot(
        at_s=at_s, pools=tuple(pools), links=tuple(links), findings=tuple(evidence.fleet_findings(pools))
    )


def waiting_once(pools: Sequence[PoolSnapshot]) -> Figure:
    """
    Return the requests that wait anywhere in the fleet, each counted once.

    A P/D request queues on both sides at the same time: on prefill (bootstrap, waiting, in flight) and on decode
    (prealloc, transfer). The two counts are one queue seen twice, so the larger one is taken; what is only on
    decode (arrived and waiting, retracted) and what unified pools report is added.
    """
    prefill = decode = alone = 0.0
    is_any, is_partial = False, False
    for pool in pools:
        if not pool.state.is_scored:
            continue
        waiting = pool.waiting_count.value
        if waiting is None:
            is_partial = True
            continue
        is_any = True
        if pool.role is Role.PREFILL:
            prefill += waiting + (pool.queue_inflight_count.value or 0.0)
        elif pool.role is Role.DECODE:
            shared = (pool.queue_prealloc_count.value or 0.0) + (pool.queue_transfer_count.value or 0.0)
            decode += shared
            alone += max(0.0, waiting - shared)
        else:
            alone += waiting
    if not is_any:
        return unknown("no scored pool reports waiting requests")
    value = max(prefill, decode) + alone
    reason = (
        f"prefill side {prefill:.0f} and decode side {decode:.0f} are the same requests; {alone:.0f} wait elsewhere"
    )
    if is_partial:
        return estimated(value, f"{reason}; some pools do not report", low=value)
    return derived(value, reason)


def _is_recent(figure: Figure) -> bool:
    return figure.provenance is Provenance.DERIVED


def _lease_tokens(leases: LeaseLedger | None, name: str, at_s: float, history: PoolHistory) -> float:
    if leases is None:
        return 0.0
    reported = history.last.reported_at_s
    offset = clock_offset_s(history) if reported is not None else None
    if reported is not None and offset is not None:
        seen_at_s: float | None = reported + offset
    else:
        seen_at_s = float(history.at_s[-1]) if len(history.at_s) else None
    return float(leases.outstanding(name, at_s, seen_at_s).tokens)


def _unattribute(composition: Composition) -> Composition:
    """Return the composition of a pool in which nothing is served: what is held belongs to no word."""
    used = composition.used_tokens.value
    reason = "nothing runs, waits or travels, and tokens are held"
    return replace(
        composition,
        active_tokens=derived(0.0, "nothing is running"),
        in_flight_tokens=derived(0.0, "nothing is travelling"),
        unattributed_tokens=derived((used or 0.0) + (composition.unattributed_tokens.value or 0.0), reason),
    )


def _counts(reading: PoolReading) -> dict[str, Figure]:
    def count(name: str, missing: str = "the source does not report it") -> Figure:
        value: float | None = getattr(reading, name)
        return unknown(missing) if value is None else measured(value, "reported by the engine")

    is_prefill = reading.role is Role.PREFILL
    silent = "a prefill worker does not report running requests" if is_prefill else "the source does not report it"
    return {
        "running_count": count("running_count", silent),
        "waiting_count": count("waiting_count"),
        "max_running_count": count("max_running_count"),
        "queue_main_count": count("queue_main_count"),
        "queue_bootstrap_count": count("queue_bootstrap_count"),
        "queue_inflight_count": count("queue_inflight_count"),
        "queue_prealloc_count": count("queue_prealloc_count"),
        "queue_transfer_count": count("queue_transfer_count"),
        "queue_retracted_count": count("queue_retracted_count"),
        "prealloc_ready_count": count("prealloc_ready_count"),
        "waiting_uncached_tokens": count("waiting_uncached_tokens"),
    }


def _about_time(history: PoolHistory, state: SourceState, reason: str) -> list[Finding]:
    rank = history.last.dp_rank
    found = []
    offset = clock_offset_s(history)
    if offset is not None and abs(offset) >= _OFFSET_WORTH_SAYING_S:
        side = "behind" if offset > 0 else "ahead of"
        text = f"The engine's clock is {abs(offset):.1f} s {side} ours; removed from every age."
        found.append(Finding(code="clock-offset", text=text, severity=Severity.INFO, dp_rank=rank))
    if state is SourceState.STALE and "frozen" in reason:
        found.append(Finding(code="frozen-figures", text=f"{reason[0].upper()}{reason[1:]}.", dp_rank=rank))
    return found


def _bytes_per_token(reading: PoolReading, labels: Mapping[str, str]) -> Figure:
    """Return KV bytes of one token over all GPUs: the engine's word, else the fleet file's, else the geometry's."""
    if reading.bytes_per_token is not None:
        return derived(reading.bytes_per_token, "the engine's KV memory / its capacity in tokens")
    try:
        configured = float(labels.get("bytes_per_token", ""))
    except ValueError:
        configured = 0.0
    if configured > 0:
        return measured(configured, "set in the fleet file")
    model = reading.model or labels.get("model")
    name = known_model(model) if model else None
    if name is None:
        return unknown("the engine does not say and the model's geometry is not known")
    gpus = int(reading.accelerator_count or 1)
    size = _geometry_bytes(name, labels.get("kv_dtype", "bf16"), gpus)
    if size is None:
        return unknown(f"the geometry of {name} does not fit {gpus} GPUs")
    return estimated(size, f"geometry of {name}, {labels.get('kv_dtype', 'bf16')} KV, {gpus} GPU(s) behind the rank")


@lru_cache(maxsize=256)
def _geometry_bytes(name: str, kv_dtype: str, gpus: int) -> float | None:
    try:
        return kv_geometry(config_named(name), kv_dtype, gpus).bytes_per_token
    except GeometryError:
        return None


def _settled(pool: PoolSnapshot, is_decode_full: bool) -> PoolSnapshot:
    """
    Return a prefill pool that looks stuck as what it is.

    Held up by full decode pools, not by itself: it serves. Else its speed says nothing about what waits for it.
    """
    if is_decode_full and pool.role is not Role.DECODE:
        kept = tuple(finding for finding in pool.findings if finding.code != "handshake-not-completing")
        return replace(pool, is_serving=True, findings=kept)
    stuck = unknown("handshakes do not complete: what waits is not waiting for compute")
    return replace(pool, rates=replace(pool.rates, prefill_tokens_per_s=stuck))


def _unique(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(dict.fromkeys(findings))
