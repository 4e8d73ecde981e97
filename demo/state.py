"""
What one simulated rank and one simulated worker publish, in the units the wire uses.

Filled by `workers` from the simulation, written by `rows` (`/v1/loads`) and `exposition` (`/metrics`). Counters
are cumulative since the worker started; times are wall seconds.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

TTFT_BOUNDS_S: Final = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
E2E_BOUNDS_S: Final = (*TTFT_BOUNDS_S, 600, 1200, 1800, 2400)
ITL_BOUNDS_S: Final = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1),
    *(0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)
QUEUE_BOUNDS_S: Final = (
    *(0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100),
    *(200, 300, 400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000),
)
MILLISECOND_BOUNDS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500)
TRANSFER_MS_BOUNDS: Final = (*MILLISECOND_BOUNDS, 5000)
TRANSFER_MIB_BOUNDS: Final = (1, 5, 10, 50, 100, 500, 1000, 5000, 10000)
TRANSFER_GB_S_BOUNDS: Final = (0.1, 0.5, 1, 5, 10, 25, 50, 100, 200, 400)
TOKENS_BOUNDS: Final = (
    *(100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000, 12500, 15000, 17500),
    *(20000, 22500, 25000, 27500, 30000, 35000, 40000, 60000, 80000, 100000, 200000, 300000, 400000, 600000),
    *(800000, 1e6, 1.1e6),
)
EVICTION_BOUNDS_S: Final = (
    *(0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01, 0.02, 0.03, 0.04, 0.05, 0.1, 0.2, 0.5, 1),
)


class Histogram:
    """A Prometheus histogram: counts by upper bound, their sum, their number."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count `value` `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """What never changes while a rank runs."""

    dp_rank: int
    usable_tokens: int
    max_running_count: int
    page_tokens: int
    weight_gib: float
    kv_gib: float
    graph_gib: float
    spare_gib: float = 6.0
    """Chosen: what a server leaves for activations."""


@dataclass(slots=True)
class RankState:
    """
    One rank at one published moment.

    Gauges describe the pool: `used + prefix + free == usable` always. `pending_tokens` is the length of requests that
    wait for room and hold none, `travelling_tokens` the length of those whose KV is allocated and not arrived.
    """

    at_s: float = 0.0
    used_tokens: int = 0
    prefix_tokens: int = 0
    free_tokens: int = 0
    running_count: int = 0
    waiting_count: int = 0
    bootstrap_count: int = 0
    inflight_count: int = 0
    prealloc_count: int = 0
    transfer_count: int = 0
    retracted_count: int = 0
    prealloc_ready_count: int = 0
    prealloc_ready_tokens: int = 0
    waiting_uncached_tokens: int = 0
    pending_tokens: int = 0
    prealloc_tokens: int = 0
    travelling_tokens: int = 0
    decode_sum_tokens: int = 0
    generated_per_s: float = 0.0
    hit_ratio: float = 0.0
    transfer_gb_per_s: float = 0.0
    transfer_ms: float = 0.0
    recent_retracted_count: int = 0

    prefill_tokens_total: int = 0
    prefill_cached_tokens_total: int = 0
    prefill_busy_s_total: float = 0.0
    prefill_passes_total: int = 0
    decode_steps_total: int = 0
    decode_batch_sum: int = 0
    decode_step_s_sum: float = 0.0
    decode_batch_squared_sum: int = 0
    decode_batch_step_s_sum: float = 0.0
    generated_tokens_total: int = 0
    retracted_total: int = 0
    retracted_input_tokens_total: int = 0
    retracted_output_tokens_total: int = 0
    evicted_tokens_total: int = 0
    aborted_total: int = 0
    transfer_failed_total: int = 0
    idle_s_total: float = 0.0


@dataclass(slots=True)
class RankTimings:
    """The scheduler's histograms of one rank, counted when a thing happens."""

    queue_s: Histogram = field(default_factory=lambda: Histogram(QUEUE_BOUNDS_S))
    bootstrap_ms: Histogram = field(default_factory=lambda: Histogram(MILLISECOND_BOUNDS))
    alloc_ms: Histogram = field(default_factory=lambda: Histogram(MILLISECOND_BOUNDS))
    transfer_ms: Histogram = field(default_factory=lambda: Histogram(TRANSFER_MS_BOUNDS))
    transfer_mib: Histogram = field(default_factory=lambda: Histogram(TRANSFER_MIB_BOUNDS))
    transfer_gb_s: Histogram = field(default_factory=lambda: Histogram(TRANSFER_GB_S_BOUNDS))
    eviction_s: Histogram = field(default_factory=lambda: Histogram(EVICTION_BOUNDS_S))


@dataclass(slots=True)
class WorkerTimings:
    """The front end's counters and histograms of one worker, counted when a request finishes (TTFT: at first token)."""

    ttft_s: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS_S))
    itl_s: Histogram = field(default_factory=lambda: Histogram(ITL_BOUNDS_S))
    tpot_s: Histogram = field(default_factory=lambda: Histogram(ITL_BOUNDS_S))
    e2e_s: Histogram = field(default_factory=lambda: Histogram(E2E_BOUNDS_S))
    prompt_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS_BOUNDS))
    uncached_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS_BOUNDS))
    output_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS_BOUNDS))
    cached_tokens_total: int = 0
