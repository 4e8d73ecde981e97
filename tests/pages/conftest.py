"""
Fleets for page tests: hand-made pools composed by the real formulas, and a stand-in for the running collector.

Tests that feed pages from real HTTP workers through the real collector are in test_pages_live.py; these here draw
states that are hard to bring about there (unknown figures, hostile names, a thousand pools).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collectors.runtime_stats import RuntimeStats
from collectors.settings import Settings
from collectors.sources import SourceView
from pages._context import forget_shared, set_failure
from scoring.capacity import compose
from scoring.model import (
    Figure,
    Finding,
    FleetSnapshot,
    PoolHistory,
    PoolRates,
    PoolReading,
    PoolSnapshot,
    Role,
    SourceState,
    derived,
    estimated,
    measured,
    pool_id,
    signal_names,
    unknown,
)

NOW_S = 1_780_000_000.0


def pool(
    worker: str = "d0",
    rank: int = 0,
    role: Role = Role.DECODE,
    *,
    usable: float | None = 200_000.0,
    used: float | None = 120_000.0,
    arrived: float | None = 100_000.0,
    prefix: float | None = 40_000.0,
    running: float | None = 20.0,
    waiting: float | None = 3.0,
    bytes_per_token: float | None = 131_072.0,
    block: float | None = 64.0,
    age_s: float | None = 0.8,
    state: SourceState = SourceState.FRESH,
    reason: str = "",
    model: str | None = "qwen3-32b",
    labels: Mapping[str, str] | None = None,
    findings: Sequence[Finding] = (),
    **signals: Any,
) -> PoolSnapshot:
    """Return one judged pool; every figure may be None."""
    held = used if prefix is None or usable is None or used is None else usable - used - prefix
    reading = PoolReading(
        worker_id=worker,
        dp_rank=rank,
        received_at_s=NOW_S,
        role=role,
        engine="sglang",
        version="0.5.23",
        model=model,
        usable_tokens=usable,
        used_tokens=used,
        arrived_tokens=arrived,
        prefix_tokens=prefix,
        free_tokens=None if prefix is None else held,
        block_size_tokens=block,
        bytes_per_token=bytes_per_token,
        reserved_per_request_tokens=512.0,
        running_count=running,
        waiting_count=waiting,
        **{"queue_retracted_count": 0.0, "queue_main_count": 0.0, "queue_prealloc_count": waiting, **signals},
    )
    rates = PoolRates(
        growth_tokens_per_s=estimated(900.0, "net of a polled gauge, positive part"),
        release_tokens_per_s=estimated(450.0, "net of a polled gauge, negative part"),
        net_tokens_per_s=derived(450.0, "difference of active + in flight over the window"),
        net_std_tokens_per_s=derived(120.0, "spread of one-second differences"),
        prefill_tokens_per_s=derived(8_400.0, "computed prompt tokens / busy seconds"),
        prefill_duty_ratio=derived(0.62, "busy seconds / wall seconds"),
        step_time_s=derived(0.0231, "decode_moments: sum of step seconds / steps"),
        mean_batch_count=derived(18.4, "decode_moments: batch sum / steps"),
        generated_tokens_per_s=derived(812.0, "difference of generated tokens"),
        finished_per_s=derived(1.2, "difference of finished requests"),
        retracted_per_s=derived(0.0, "difference of retracted requests"),
        evicted_tokens_per_s=unknown("no eviction counter"),
        transfer_bytes_per_s=unknown("no transfer counter"),
        transfer_time_s=unknown("no transfer counter"),
        prefix_hit_ratio=derived(0.41, "hit tokens / looked-up tokens"),
        mean_prompt_tokens=derived(3_100.0, "prompt tokens / finished"),
        mean_output_tokens=derived(410.0, "output tokens / finished"),
        ttft_mean_s=derived(0.42, "sum / count"),
        itl_mean_s=derived(0.024, "sum / count"),
        window_s=30.0,
    )
    return PoolSnapshot(
        pool_id=pool_id(worker, rank),
        worker_id=worker,
        dp_rank=rank,
        role=role,
        engine="sglang",
        version="0.5.23",
        model=model,
        labels=dict(labels or {}),
        at_s=NOW_S,
        received_at_s=NOW_S - (age_s or 0.0),
        age_s=age_s,
        state=state,
        state_reason=reason,
        block_size_tokens=measured(block),
        bytes_per_token=measured(bytes_per_token) if bytes_per_token else unknown("the engine gives no KV size"),
        composition=compose(reading),
        rates=rates,
        running_count=measured(running),
        waiting_count=measured(waiting),
        max_running_count=measured(256.0),
        queue_main_count=measured(reading.queue_main_count),
        queue_bootstrap_count=measured(reading.queue_bootstrap_count),
        queue_inflight_count=measured(reading.queue_inflight_count),
        queue_prealloc_count=measured(reading.queue_prealloc_count),
        queue_transfer_count=measured(reading.queue_transfer_count),
        queue_retracted_count=measured(reading.queue_retracted_count),
        prealloc_ready_count=measured(reading.prealloc_ready_count),
        waiting_uncached_tokens=measured(reading.waiting_uncached_tokens),
        reading=reading,
        findings=tuple(findings),
    )


def demo_fleet(at_s: float = NOW_S) -> FleetSnapshot:
    """Return a fleet like the demo's: 4 prefill, 6 decode of two ranks, one unified; one stale, one with unknowns."""
    pools = [
        pool(
            f"p{i}",
            role=Role.PREFILL,
            used=8_000.0 + 3_000.0 * i,
            arrived=None,
            prefix=90_000.0 - 9_000.0 * i,
            running=2.0,
            waiting=4.0,
            queue_bootstrap_count=4.0 - i,
            queue_inflight_count=1.0,
            queue_prealloc_count=None,
            labels={"rack": f"r{i % 2}"},
        )
        for i in range(4)
    ]
    for i in range(6):
        for rank in range(2):
            share = 0.35 + 0.1 * i + 0.05 * rank
            usable = 100_000.0 if i == 5 else 200_000.0
            held = min(0.96, share) * usable
            pools.append(
                pool(
                    f"d{i}",
                    rank,
                    usable=usable,
                    used=held,
                    arrived=held - 0.04 * usable,
                    prefix=None if i == 3 else 0.6 * (usable - held),
                    waiting=float(i),
                    bytes_per_token=None if i == 2 else 131_072.0,
                    age_s=42.0 if i == 4 and rank else 0.6 + 0.1 * i,
                    state=SourceState.STALE if i == 4 and rank else SourceState.FRESH,
                    reason="no answer since 14:04:30" if i == 4 and rank else "",
                    labels={"rack": f"r{i % 2}"},
                )
            )
    pools.append(pool("u0", role=Role.UNIFIED, usable=64_000.0, used=20_000.0, arrived=None, prefix=43_000.0))
    pools = [dataclasses.replace(item, at_s=at_s) for item in pools]
    finding = Finding(code="decode-room-holds-prefill", text="43 requests wait on prefill for decode room.")
    return FleetSnapshot(at_s=at_s, pools=tuple(sorted(pools, key=lambda item: item.pool_id)), findings=(finding,))


def history_of(item: PoolSnapshot, seconds: int = 300, gap: bool = True) -> PoolHistory:
    """Return a history that ends at the pool's reading: gauges swing, counters rise, and a minute may be missing."""
    at_s = np.arange(item.at_s - seconds, item.at_s + 0.5)
    if gap:
        at_s = at_s[(at_s < item.at_s - 150) | (at_s > item.at_s - 100)]
    columns = {}
    for name in signal_names():
        value = getattr(item.reading, name)
        if value is None:
            columns[name] = np.full(len(at_s), np.nan)
        elif name.endswith("_total"):
            columns[name] = value + 10.0 * (at_s - at_s[0])
        elif name in ("used_tokens", "arrived_tokens"):
            columns[name] = value * (1 + 0.1 * np.sin((at_s - item.at_s) / 20.0))
        else:
            columns[name] = np.full(len(at_s), float(value))
    return PoolHistory(last=item.reading, at_s=at_s, columns=columns, polled_at_s=item.at_s, labels=item.labels)


class FakeRuntime:
    """Stands in for the running collector: a snapshot that moves on by two seconds at each call of `tick`."""

    def __init__(self, fleet: FleetSnapshot) -> None:
        self.fleet = fleet
        self.source_views: tuple[Any, ...] = ()
        self.settings = Settings()
        self.store = SimpleNamespace(
            worker_polls=lambda worker_id, start_s, end_s: [], time_span=lambda: (NOW_S - 3600.0, NOW_S)
        )

    def tick(self, seconds: float = 2.0) -> None:
        """Move on."""
        at_s = self.fleet.at_s + seconds
        pools = []
        for index, item in enumerate(self.fleet.pools):
            used = item.reading.used_tokens
            if used is not None:
                swing = 1 + 0.08 * math.sin(at_s / 7.0 + index)
                usable = item.reading.usable_tokens or math.inf
                reading = dataclasses.replace(
                    item.reading,
                    used_tokens=min(used * swing, usable),
                    arrived_tokens=None if item.reading.arrived_tokens is None else item.reading.arrived_tokens * swing,
                )
                item = dataclasses.replace(item, composition=compose(reading))
            pools.append(dataclasses.replace(item, at_s=at_s))
        self.fleet = dataclasses.replace(self.fleet, at_s=at_s, pools=tuple(pools))

    def snapshot(self, at_s: float | None = None) -> FleetSnapshot:
        """Return the newest snapshot."""
        return self.fleet

    def snapshot_at(self, at_s: float) -> FleetSnapshot:
        """Return the fleet as of `at_s`."""
        return dataclasses.replace(self.fleet, at_s=at_s)

    def histories(self) -> tuple[PoolHistory, ...]:
        """Return five minutes of every pool."""
        return tuple(history_of(item) for item in self.fleet.pools)

    def history(
        self, pool_id: str, start_s: float, end_s: float, signals: Sequence[str], max_points: int
    ) -> dict[str, np.ndarray]:
        """Return columns of one pool."""
        item = next(item for item in self.fleet.pools if item.pool_id == pool_id)
        past = history_of(item)
        return {"at_s": past.at_s, **{name: past.columns[name] for name in signals}}

    def sources(self) -> tuple[Any, ...]:
        """Return the views given, else one a worker."""
        if self.source_views:
            return self.source_views
        workers = {item.worker_id: item for item in self.fleet.pools}
        return tuple(
            SourceView(
                worker_id=name,
                url=f"http://{name}:30000",
                origin="fleet file",
                engine=item.engine,
                version=item.version,
                state=item.state,
                state_reason=item.state_reason,
                since_at_s=item.at_s - 60.0,
                last_poll_at_s=item.at_s,
                poll_count=61,
                pool_count=1,
                facts={"page_size": "64"},
            )
            for name, item in sorted(workers.items())
        )

    def cycle_stats(self) -> RuntimeStats:
        """Return counters of an hour without trouble."""
        return RuntimeStats(
            interval_s=1.0, cycle_count=3600, poll_count=39_600, stored_count=3600, median_duration_s=0.2
        )

    def router_views(self) -> dict[str, Any]:
        """Return no router."""
        return {}

    def lists(self) -> tuple[Any, ...]:
        """Return no list."""
        return ()


@pytest.fixture
def make_pool() -> Callable[..., PoolSnapshot]:
    """Return the maker of one pool."""
    return pool


@pytest.fixture
def history() -> Callable[..., PoolHistory]:
    """Return the maker of a pool's past."""
    return history_of


@pytest.fixture
def fleet_of_demo() -> FleetSnapshot:
    """Return a fleet like the demo's."""
    return demo_fleet()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[FleetSnapshot | None], FakeRuntime | None]:
    """Return a function that lets pages watch a hand-made fleet, or nothing."""

    def use(fleet: FleetSnapshot | None) -> FakeRuntime | None:
        running = None if fleet is None else FakeRuntime(fleet)
        monkeypatch.setattr("collectors.runtime.get_runtime", lambda: running)
        # No alert center behind a hand-made fleet: its chains are nothing, not a thread a test.
        monkeypatch.setattr("pages._home_parts.chains", dict)
        forget_shared()
        set_failure(None)
        return running

    return use


__all__ = ["FakeRuntime", "Figure", "SimpleNamespace", "demo_fleet", "pool"]
