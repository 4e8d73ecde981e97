"""
The types every floor speaks: what a source said (`PoolReading`), how far it can be trusted (`Figure`,
`Provenance`, `SourceState`), what it means (`PoolSnapshot`, `FleetSnapshot`), and what asks for room (`Request`).

Unknown is None, never 0 or -1: an adapter that meets a sentinel stops it here. Names are the words of the
vocabulary with the unit last: `_tokens _blocks _bytes _s _at_s _per_s _ratio _count`.

Read next: `capacity` (reading -> composition), `snapshot` (histories -> FleetSnapshot), `cost` and `policy`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray


class Role(StrEnum):
    """What a worker does with a request; prefill and decode pools are never ranked against each other."""

    UNIFIED = "unified"
    PREFILL = "prefill"
    DECODE = "decode"
    UNKNOWN = "unknown"


class Provenance(StrEnum):
    """How a figure came to be: read off, an exact identity over figures read off, a model, or not known."""

    MEASURED = "measured"
    DERIVED = "derived"
    ESTIMATED = "estimated"
    UNKNOWN = "unknown"


class SourceState(StrEnum):
    """
    How much a worker's newest answer can be trusted.

    Only FRESH and LATE are scored. NOTHING_YET: the worker answers, its scheduler has published nothing.
    CANNOT_SEE belongs to alerts and the saturation chain: no judgement is possible.
    """

    FRESH = "fresh"
    LATE = "late"
    STALE = "stale"
    DOWN = "down"
    UNAUTHORISED = "unauthorised"
    NOT_UNDERSTOOD = "not_understood"
    NOTHING_YET = "nothing_yet"

    @property
    def is_scored(self) -> bool:
        """Say whether figures in this state may enter a score."""
        return self in (SourceState.FRESH, SourceState.LATE)


class Severity(StrEnum):
    """How much a finding matters to the reader."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """
    One sentence about something noticed, with a code that never changes.

    Attributes:
        code: Stable kebab-case word, for example `negative-usage`; documented in docs/findings.md.
        text: A sentence with the numbers and what to do.
        severity: How much it matters.
        dp_rank: The rank it is about, or None for the whole worker.
    """

    code: str
    text: str
    severity: Severity = Severity.WARNING
    dp_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """
    A number with its provenance.

    Attributes:
        value: The point, or None when unknown or when only bounds follow.
        provenance: How it came to be. UNKNOWN exactly when value, low and high are all None.
        reason: One line: which fields, which identity, or why it is unknown.
        low: Lower bound where only bounds follow, else None.
        high: Upper bound where only bounds follow, else None.
    """

    value: float | None
    provenance: Provenance
    reason: str = ""
    low: float | None = None
    high: float | None = None


def measured(value: float | None, reason: str = "") -> Figure:
    """Return a figure read off a source; unknown when `value` is None."""
    return Figure(value=value, provenance=Provenance.UNKNOWN if value is None else Provenance.MEASURED, reason=reason)


def derived(value: float | None, reason: str) -> Figure:
    """Return a figure that follows exactly from measured ones; unknown when `value` is None."""
    return Figure(value=value, provenance=Provenance.UNKNOWN if value is None else Provenance.DERIVED, reason=reason)


def estimated(value: float | None, reason: str, *, low: float | None = None, high: float | None = None) -> Figure:
    """Return a modelled figure, with bounds where they follow; unknown when nothing at all is given."""
    is_unknown = value is None and low is None and high is None
    provenance = Provenance.UNKNOWN if is_unknown else Provenance.ESTIMATED
    return Figure(value=value, provenance=provenance, reason=reason, low=low, high=high)


def unknown(reason: str) -> Figure:
    """Return the figure that is not known, and why."""
    return Figure(value=None, provenance=Provenance.UNKNOWN, reason=reason)


GAUGE: Final = "gauge"
COUNTER: Final = "counter"
CONSTANT: Final = "constant"
TEXT: Final = "text"


def _signal(kind: str, help_: str) -> Any:
    return field(default=None, metadata={"kind": kind, "help": help_})


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReading:
    """
    What one source said about one pool at one moment, in the words of the house and not yet judged.

    A dialect fills what its payload carries and leaves the rest None. Nothing here is computed from a model:
    a field is either read off or an exact conversion of a field read off (us -> s, GiB -> bytes).
    Counters are cumulative since the worker started; they only ever fall when it restarts.
    """

    worker_id: str = ""
    """Set by the collector, not by a dialect: the name in the fleet file, else host:port."""
    dp_rank: int = 0
    received_at_s: float = 0.0
    """Our clock when the answer was complete (set by the collector)."""
    role: Role = Role.UNKNOWN
    engine: str = ""
    """Dialect name in ENGINES."""
    version: str | None = None
    model: str | None = None

    reported_at_s: float | None = _signal(GAUGE, "engine clock when these figures were true")

    # Capacity and composition.
    usable_tokens: float | None = _signal(CONSTANT, "what the pool can hold")
    block_size_tokens: float | None = _signal(CONSTANT, "allocation unit")
    kv_bytes: float | None = _signal(CONSTANT, "device memory of the pool over all GPUs behind the rank")
    bytes_per_token: float | None = _signal(CONSTANT, "KV bytes of one token over all GPUs behind the rank")
    accelerator_count: float | None = _signal(CONSTANT, "GPUs behind the rank")
    used_tokens: float | None = _signal(GAUGE, "held and not evictable")
    allocated_tokens: float | None = _signal(GAUGE, "held, evictable prefix included, where that is all an engine says")
    pending_total_tokens: float | None = _signal(GAUGE, "used plus the need of waiting requests (num_total_tokens)")
    arrived_tokens: float | None = _signal(GAUGE, "used less KV not yet arrived (num_active_tokens)")
    prefix_tokens: float | None = _signal(GAUGE, "prefix cache that eviction could free")
    free_tokens: float | None = _signal(GAUGE, "holds nothing")
    free_or_prefix_tokens: float | None = _signal(GAUGE, "free and evictable together, where not told apart")
    in_flight_tokens: float | None = _signal(GAUGE, "allocated for KV still travelling, where the engine says it")
    reported_usage_ratio: float | None = _signal(GAUGE, "the engine's own usage figure, by its own definition")
    usage_high_ratio: float | None = _signal(GAUGE, "upper bound where processes disagree about usage")

    # Other pools and tiers, never added to the above.
    window_usable_tokens: float | None = _signal(CONSTANT, "sliding-window pool: capacity")
    window_used_tokens: float | None = _signal(GAUGE, "sliding-window pool: held and not evictable")
    window_prefix_tokens: float | None = _signal(GAUGE, "sliding-window pool: evictable")
    window_free_tokens: float | None = _signal(GAUGE, "sliding-window pool: free")
    window_usage_ratio: float | None = _signal(GAUGE, "sliding-window pool: the engine's usage figure")
    state_slot_count: float | None = _signal(CONSTANT, "recurrent-state slots")
    state_used_count: float | None = _signal(GAUGE, "recurrent-state slots held")
    state_prefix_count: float | None = _signal(GAUGE, "recurrent-state slots that eviction could free")
    state_free_count: float | None = _signal(GAUGE, "recurrent-state slots free")
    state_usage_ratio: float | None = _signal(GAUGE, "recurrent-state pool: the engine's usage figure")
    offloaded_tokens: float | None = _signal(GAUGE, "held on the host tier")
    offload_usable_tokens: float | None = _signal(CONSTANT, "capacity of the host tier")

    # Requests.
    running_count: float | None = _signal(GAUGE, "requests in the running batch")
    running_tokens: float | None = _signal(GAUGE, "their lengths added up: what a decode step reads, shared or not")
    max_running_count: float | None = _signal(CONSTANT, "cap of the running batch")
    waiting_count: float | None = _signal(GAUGE, "requests the engine reports waiting, all queues")
    queue_main_count: float | None = _signal(GAUGE, "the main waiting queue alone")
    queue_bootstrap_count: float | None = _signal(GAUGE, "prefill: waiting for the decode handshake")
    queue_inflight_count: float | None = _signal(GAUGE, "prefill: computed, transfer not finished")
    queue_prealloc_count: float | None = _signal(GAUGE, "decode: handshake or waiting for decode KV")
    queue_transfer_count: float | None = _signal(GAUGE, "decode: preallocated, prefill or KV still to come")
    queue_retracted_count: float | None = _signal(GAUGE, "decode: retracted, to be recomputed or reloaded")
    queue_grammar_count: float | None = _signal(GAUGE, "waiting for a grammar")
    queue_paused_count: float | None = _signal(GAUGE, "paused in the last log window")
    prealloc_ready_count: float | None = _signal(GAUGE, "decode: blocked by decode capacity alone")
    prealloc_ready_tokens: float | None = _signal(GAUGE, "decode: the same, in tokens")
    waiting_uncached_tokens: float | None = _signal(GAUGE, "prompt tokens waiting to be computed")
    reserved_per_request_tokens: float | None = _signal(CONSTANT, "what the engine keeps back per admitted request")

    # Counters.
    prefill_uncached_tokens_total: float | None = _signal(COUNTER, "prompt tokens computed")
    prefill_busy_s_total: float | None = _signal(COUNTER, "seconds spent computing prompts")
    decode_steps_total: float | None = _signal(COUNTER, "decode steps counted")
    decode_batch_sum_total: float | None = _signal(COUNTER, "sum of the batch over counted steps")
    decode_step_s_total: float | None = _signal(COUNTER, "sum of step seconds over counted steps")
    decode_batch_squared_total: float | None = _signal(COUNTER, "sum of batch squared")
    decode_batch_step_s_total: float | None = _signal(COUNTER, "sum of batch times step seconds")
    decode_generated_tokens_total: float | None = _signal(COUNTER, "tokens generated in counted steps")
    prompt_tokens_total: float | None = _signal(COUNTER, "prompt tokens of requests, cached ones included")
    generated_tokens_total: float | None = _signal(COUNTER, "output tokens")
    finished_total: float | None = _signal(COUNTER, "requests finished")
    retracted_total: float | None = _signal(COUNTER, "requests retracted or preempted")
    retracted_input_tokens_total: float | None = _signal(COUNTER, "prompt tokens of retracted requests")
    retracted_output_tokens_total: float | None = _signal(COUNTER, "output tokens of retracted requests")
    evicted_tokens_total: float | None = _signal(COUNTER, "prefix tokens freed by eviction")
    load_back_tokens_total: float | None = _signal(COUNTER, "tokens loaded back from the host tier")
    prefix_query_tokens_total: float | None = _signal(COUNTER, "prompt tokens looked up in the prefix cache")
    prefix_hit_tokens_total: float | None = _signal(COUNTER, "prompt tokens found there")
    external_query_tokens_total: float | None = _signal(COUNTER, "prompt tokens looked up in an external cache")
    external_hit_tokens_total: float | None = _signal(COUNTER, "prompt tokens found there")
    transfer_bytes_total: float | None = _signal(COUNTER, "KV bytes sent")
    transfers_total: float | None = _signal(COUNTER, "KV transfers finished")
    transfer_latency_s_total: float | None = _signal(COUNTER, "sum of transfer seconds")
    transfer_failed_total: float | None = _signal(COUNTER, "KV transfers failed")
    bootstrap_failed_total: float | None = _signal(COUNTER, "handshakes failed")
    ttft_s_total: float | None = _signal(COUNTER, "sum of time to first token")
    ttft_count_total: float | None = _signal(COUNTER, "requests in that sum")
    itl_s_total: float | None = _signal(COUNTER, "sum of inter-token latency")
    itl_count_total: float | None = _signal(COUNTER, "gaps in that sum")
    e2e_s_total: float | None = _signal(COUNTER, "sum of end-to-end seconds")
    e2e_count_total: float | None = _signal(COUNTER, "requests in that sum")
    queue_s_total: float | None = _signal(COUNTER, "sum of queueing seconds")
    queue_s_count_total: float | None = _signal(COUNTER, "requests in that sum")

    # The engine's own rate gauges: shown as reported, never trusted over counters.
    generated_tokens_per_s: float | None = _signal(GAUGE, "the engine's throughput gauge")
    reported_hit_ratio: float | None = _signal(GAUGE, "the engine's hit-rate gauge")
    transfer_reported_bytes_per_s: float | None = _signal(GAUGE, "the engine's transfer speed gauge")
    transfer_reported_latency_s: float | None = _signal(GAUGE, "the engine's last transfer latency")

    # Bounded side tables that do not fit a column.
    ttft_buckets: tuple[tuple[float, float], ...] | None = None
    """Cumulative histogram as (upper bound in s, count), ascending, last bound inf."""
    itl_buckets: tuple[tuple[float, float], ...] | None = None
    anomalies: tuple[str, ...] = ()
    """Names of fields whose raw value was refused (negative, not finite, contradictory); those fields are None."""
    findings: tuple[Finding, ...] = ()
    """What the dialect noticed about this pool or its worker; the judge passes it on."""
    expected_rank_count: int | None = None
    """DP ranks the worker says it has, or None when it does not say."""
    answered_at_s: float | None = None
    """Engine clock when the answer was built: with received_at_s it shows the offset of the clocks."""


def signal_names(kind: str | None = None) -> tuple[str, ...]:
    """Return the numeric fields of PoolReading in declared order, optionally of one kind only."""
    return tuple(f.name for f in fields(PoolReading) if f.metadata and (kind is None or f.metadata["kind"] == kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterWorker:
    """
    How a router sees one worker (or one rank of it).

    Attributes:
        url: Base URL, any `@rank` suffix stripped.
        dp_rank: The rank the router addresses, or None for the whole worker.
        role: What the router uses it for.
        is_healthy: The router's own opinion; None when it does not say.
        load_count: Requests the router believes in flight; None when it says -1 or nothing.
        load_tokens: Token load the router cached for the worker; None when it says -1 or nothing.
    """

    url: str
    dp_rank: int | None = None
    role: Role = Role.UNKNOWN
    is_healthy: bool | None = None
    load_count: float | None = None
    load_tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReading:
    """
    One source's answer, understood.

    Attributes:
        engine: Dialect name in ENGINES.
        version: Engine version as reported, or None.
        pools: One reading a DP rank, ascending by rank, no rank twice.
        findings: What is wrong or worth saying, each with a stable code.
        rejected_count: Samples or rows that could not be understood and were left out.
        ignored_count: Samples understood and not needed.
        expected_rank_count: Ranks the worker says it has, or None; more than len(pools) means partial coverage.
        router_workers: Filled by router dialects only.
        is_nothing_yet: The worker answers but has published nothing so far.
        facts: Whitelisted facts for the Sources page (page size, dtype, flags). Never secrets.
    """

    engine: str
    version: str | None = None
    pools: tuple[PoolReading, ...] = ()
    findings: tuple[Finding, ...] = ()
    rejected_count: int = 0
    ignored_count: int = 0
    expected_rank_count: int | None = None
    router_workers: tuple[RouterWorker, ...] = ()
    is_nothing_yet: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)


FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolHistory:
    """
    The recent past of one pool, oldest first, as columns.

    Attributes:
        last: The newest reading whole (identity, constants, texts, buckets).
        at_s: When each sample was received, our clock, ascending. Shape (n,).
        columns: Signal name -> values, NaN where unknown. Each of shape (n,).
        polled_at_s: When the worker was last polled at all, answered or not; None before the first poll.
        poll_state: State of that last poll before freshness is judged (FRESH when understood).
        poll_detail: One line for the reader when it is not.
        labels: model, rack, zone, tenants, link bandwidth: from the fleet file.
    """

    last: PoolReading
    at_s: FloatArray
    columns: Mapping[str, FloatArray]
    polled_at_s: float | None = None
    poll_state: SourceState = SourceState.FRESH
    poll_detail: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def pool_id(worker_id: str, dp_rank: int) -> str:
    """Return the name of a pool: the worker, a slash, the DP rank."""
    return f"{worker_id}/{dp_rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """
    Where a pool's capacity is, each part with provenance.

    usable = active + in_flight + prefix + fragmentation + free + unattributed, wherever all are known.
    `free_or_prefix` stands for free and prefix where an engine cannot tell them apart; then both are unknown.
    """

    usable_tokens: Figure
    used_tokens: Figure
    active_tokens: Figure
    in_flight_tokens: Figure
    prefix_tokens: Figure
    fragmentation_tokens: Figure
    free_tokens: Figure
    free_or_prefix_tokens: Figure
    unattributed_tokens: Figure
    available_tokens: Figure
    reserved_tokens: Figure
    committed_tokens: Figure
    queued_tokens: Figure
    offloaded_tokens: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRates:
    """Flows of a pool over a recent window; growth and release are gross and >= 0, net = growth - release."""

    growth_tokens_per_s: Figure
    release_tokens_per_s: Figure
    net_tokens_per_s: Figure
    net_std_tokens_per_s: Figure
    """Standard deviation of the net change over one second, for first passage."""
    prefill_tokens_per_s: Figure
    """Prompt tokens computed per second of prefill time (the pool's speed, not its traffic)."""
    prefill_duty_ratio: Figure
    step_time_s: Figure
    mean_batch_count: Figure
    generated_tokens_per_s: Figure
    finished_per_s: Figure
    retracted_per_s: Figure
    evicted_tokens_per_s: Figure
    transfer_bytes_per_s: Figure
    transfer_time_s: Figure
    """Mean seconds of one KV transfer in the window."""
    prefix_hit_ratio: Figure
    mean_prompt_tokens: Figure
    mean_output_tokens: Figure
    ttft_mean_s: Figure
    itl_mean_s: Figure
    window_s: float
    transfers_per_s: Figure = Figure(value=None, provenance=Provenance.UNKNOWN, reason="not judged")
    transfer_drain_s: Figure = Figure(value=None, provenance=Provenance.UNKNOWN, reason="not judged")
    """Seconds until the transfers waiting now are through, at the rate the counters prove."""
    bootstrap_net_per_s: Figure = Figure(value=None, provenance=Provenance.UNKNOWN, reason="not judged")
    """Prefill: net change of the queue that waits for the decode handshake, requests per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSnapshot:
    """
    One pool, judged at one instant: the input of every policy, page and alert.

    Attributes:
        pool_id: `worker/rank`.
        bytes_per_token: Engine first, then geometry, else unknown.
        age_s: now - reported_at (offset removed) where the engine gives a time, else now - received_at.
        state: Freshness. Only FRESH and LATE are scored.
        findings: Sentences about this pool at this instant.
    """

    pool_id: str
    worker_id: str
    dp_rank: int
    role: Role
    engine: str
    version: str | None
    model: str | None
    labels: Mapping[str, str]
    at_s: float
    received_at_s: float | None
    age_s: float | None
    state: SourceState
    state_reason: str
    block_size_tokens: Figure
    bytes_per_token: Figure
    composition: Composition
    rates: PoolRates
    running_count: Figure
    waiting_count: Figure
    max_running_count: Figure
    queue_main_count: Figure
    queue_bootstrap_count: Figure
    queue_inflight_count: Figure
    queue_prealloc_count: Figure
    queue_transfer_count: Figure
    queue_retracted_count: Figure
    prealloc_ready_count: Figure
    waiting_uncached_tokens: Figure
    reading: PoolReading
    """The newest reading as it came, for the Sources and Worker pages."""
    findings: tuple[Finding, ...] = ()
    is_serving: bool = True
    """False when the evidence says that work sent here does not come back (a finding says which evidence)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """
    The path a KV hand-over takes.

    Attributes:
        source: Worker id of the prefill end, or "*".
        target: Worker id of the decode end, or "*".
        bandwidth_bytes_per_s: Line rate, or None when unknown.
        latency_s: Fixed cost of one transfer.
        queued_bytes: Already waiting on the path.
    """

    source: str
    target: str
    bandwidth_bytes_per_s: float | None
    latency_s: float = 0.0
    queued_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """Everything a decision needs, at one instant. Pools ascend by pool_id."""

    at_s: float
    pools: tuple[PoolSnapshot, ...]
    links: tuple[Link, ...] = ()
    findings: tuple[Finding, ...] = ()
