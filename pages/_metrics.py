"""
Our own metrics in Prometheus text: how collecting, storing and judging goes, and how the fleet's pools fare.

Made at each scrape from the running collector's counters; nothing is kept here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from collectors.runtime import Runtime
from pages.figures.fleet import committed_ratio
from scoring.model import FleetSnapshot, SourceState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _RuntimeMetrics(Collector):
    def __init__(self, running: Runtime | None) -> None:
        self._running = running

    def collect(self) -> Iterable[Metric]:
        """Give every family, in a fixed order."""
        running = self._running
        yield GaugeMetricFamily("kvscope_up", "1 while the collector runs.", value=float(running is not None))
        if running is None:
            return
        yield from _collecting(running)
        yield from _pools(running.snapshot())


def _collecting(running: Runtime) -> Iterator[Metric]:
    stats = running.cycle_stats()
    counters = (
        ("kvscope_cycles", "Cycles taken.", stats.cycle_count),
        ("kvscope_lost_ticks", "Ticks without a cycle, for whatever reason.", stats.lost_tick_count),
        ("kvscope_cycle_overruns", "Cycles longer than the interval.", stats.overrun_count),
        ("kvscope_polls", "Polls that ended.", stats.poll_count),
        ("kvscope_polls_failed", "Polls that were not understood.", stats.failed_poll_count),
        ("kvscope_polls_skipped", "Ticks at which a worker was still being asked.", stats.skipped_poll_count),
        ("kvscope_readings", "Readings taken.", stats.reading_count),
        ("kvscope_received_bytes", "Body bytes of all answers.", stats.byte_count),
        ("kvscope_cycles_stored", "Cycles stored.", stats.stored_count),
        ("kvscope_problems", "Problems while collecting.", stats.problem_count),
        ("kvscope_collector_restarts", "Times the collecting process died and was started again.", stats.restart_count),
    )
    for name, text, value in counters:
        yield CounterMetricFamily(name, text, value=float(value))
    gauges = (
        ("kvscope_poll_interval_seconds", "Configured poll interval.", stats.interval_s),
        ("kvscope_last_cycle_timestamp_seconds", "Begin of the newest cycle.", stats.last_cycle_at_s),
        ("kvscope_cycle_duration_median_seconds", "Median of the newest cycles.", stats.median_duration_s),
        ("kvscope_cycle_duration_max_seconds", "Longest of the newest cycles.", stats.max_duration_s),
        ("kvscope_store_duration_median_seconds", "Median time to store a cycle.", stats.median_store_s),
        ("kvscope_store_duration_max_seconds", "Longest time to store a cycle.", stats.max_store_s),
        ("kvscope_store_ok", "1 when the newest cycle was stored.", float(not stats.store_problem)),
        ("kvscope_store_size_bytes", "Size of the store on disk.", stats.store_bytes),
        ("kvscope_recent_size_bytes", "Memory of the recent histories.", stats.recent_bytes),
    )
    for name, text, gauge in gauges:
        if gauge is not None:
            yield GaugeMetricFamily(name, text, value=float(gauge))
    sources = GaugeMetricFamily("kvscope_sources", "Sources by state.", labels=["state"])
    states = Counter(view.state or SourceState.NOTHING_YET for view in running.sources())
    for state in SourceState:
        sources.add_metric([state.value], float(states[state]))
    yield sources


def _pools(fleet: FleetSnapshot) -> Iterator[Metric]:
    pools = GaugeMetricFamily("kvscope_pools", "Pools by role and state.", labels=["role", "state"])
    for (role, state), count in sorted(Counter((pool.role.value, pool.state.value) for pool in fleet.pools).items()):
        pools.add_metric([role, state], float(count))
    yield pools
    labels = ["worker", "dp_rank", "role"]
    age = GaugeMetricFamily("kvscope_pool_age_seconds", "Age of a pool's newest figures.", labels=labels)
    committed = GaugeMetricFamily(
        "kvscope_pool_committed_ratio", "Committed over usable; absent where unknown or not scored.", labels=labels
    )
    for pool in fleet.pools:
        values = [pool.worker_id, str(pool.dp_rank), pool.role.value]
        if pool.age_s is not None:
            age.add_metric(values, pool.age_s)
        ratio = committed_ratio(pool)
        if ratio is not None and pool.state.is_scored:
            committed.add_metric(values, ratio)
    yield age
    yield committed


def exposition(running: Runtime | None) -> bytes:
    """Return our metrics as Prometheus text 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_RuntimeMetrics(running))
    return generate_latest(registry)
