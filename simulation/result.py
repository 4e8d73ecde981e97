"""
What a run gives back: one row a request, one row a second and pool, and the counters, as numpy columns.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scoring.model import FloatArray
from simulation import layout as lay
from simulation.fleet import FleetSpec
from simulation.layout import State
from simulation.traffic import IntArray

OUTCOMES: Final = ("open", "finished", "rejected", "cancelled", "too_large")
"""By code in RequestColumns.outcome; "open" only in a run that was stopped early."""

COMPOSITION: Final = ("active", "in_flight", "prefix", "fragmentation", "free")
"""Parts of usable in Samples; they sum to it in every row."""

_COUNTERS: Final = MappingProxyType(
    {
        "decode_steps": lay.C_STEPS,
        "decode_batch_sum": lay.C_BATCH,
        "generated_tokens": lay.C_GENERATED,
        "prefill_uncached_tokens": lay.C_UNCACHED,
        "prompt_tokens": lay.C_PROMPT,
        "prefix_hit_tokens": lay.C_HIT,
        "retraction_count": lay.C_RETRACTED,
        "recomputed_tokens": lay.C_RECOMPUTED,
        "evicted_tokens": lay.C_EVICTED,
        "finished_count": lay.C_FINISHED,
        "transfer_count": lay.C_TRANSFERS,
        "too_large_count": lay.C_TOO_LARGE,
    }
)
_SUMS: Final = MappingProxyType(
    {
        "decode_step_s": lay.C_STEP_S,
        "prefill_busy_s": lay.C_BUSY_S,
        "transfer_bytes": lay.C_BYTES,
        "transfer_s": lay.C_TRANSFER_S,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestColumns:
    """
    Requests in the order of the traffic's rows; times in seconds of the run, NaN where it never came so far.

    `first_token_s` is when the client can see it: at the end of prefill where one pool does both, else when the KV
    has arrived (a TTFT without the transfer would flatter disaggregation). `prefill`, `decode` are pool indices, -1
    when rejected. `hit_tokens` counts prompt tokens found in the computing pool's cache at first admission.
    """

    arrival_s: FloatArray
    prefill_start_s: FloatArray
    prefill_end_s: FloatArray
    transfer_start_s: FloatArray
    transfer_end_s: FloatArray
    first_token_s: FloatArray
    finish_s: FloatArray
    link_bytes: FloatArray
    outcome: IntArray
    prefill: IntArray
    decode: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    generated_tokens: IntArray
    hit_tokens: IntArray
    retraction_count: IntArray
    recomputed_tokens: IntArray
    reroute_count: IntArray
    class_ids: IntArray
    tenant_ids: IntArray

    @property
    def is_finished(self) -> NDArray[np.bool_]:
        """Which rows ran to their end."""
        return np.asarray(self.outcome == OUTCOMES.index("finished"))

    @property
    def ttft_s(self) -> FloatArray:
        """Time to first token; NaN without one."""
        return self.first_token_s - self.arrival_s

    @property
    def e2e_s(self) -> FloatArray:
        """Arrival to last token; NaN for requests that did not finish."""
        return np.where(self.is_finished, self.finish_s - self.arrival_s, np.nan)

    @property
    def tpot_s(self) -> FloatArray:
        """(finish - first token) / (output - 1); NaN below two tokens and for requests that did not finish."""
        gaps = np.where(self.output_tokens > 1, self.output_tokens - 1, np.nan)
        return np.where(self.is_finished, (self.finish_s - self.first_token_s) / gaps, np.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """
    Pools over time, in tokens and requests; each of shape (ticks, pools).

    usable_tokens = active + in_flight + prefix + fragmentation + free at every tick; `reserved_tokens` is a claim on
    what is available, not a part.
    """

    at_s: FloatArray
    usable_tokens: FloatArray
    active_tokens: FloatArray
    in_flight_tokens: FloatArray
    prefix_tokens: FloatArray
    fragmentation_tokens: FloatArray
    free_tokens: FloatArray
    reserved_tokens: FloatArray
    running_count: FloatArray
    queue_bootstrap_count: FloatArray
    queue_main_count: FloatArray
    queue_inflight_count: FloatArray
    queue_prealloc_count: FloatArray
    queue_transfer_count: FloatArray
    queue_arrived_count: FloatArray
    queue_retracted_count: FloatArray
    waiting_prompt_tokens: FloatArray
    link_bytes: FloatArray

    @property
    def waiting_count(self) -> FloatArray:
        """Requests that wait in a pool for compute, room or a slot; the hand-over itself is not waiting."""
        return (
            self.queue_bootstrap_count
            + self.queue_main_count
            + self.queue_prealloc_count
            + self.queue_arrived_count
            + self.queue_retracted_count
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """
    How a drill went.

    Attributes:
        kind: The fault's kind.
        began_at_s: When it struck.
        ended_at_s: When it was over.
        waiting_before_count: Most requests waiting in the fleet in the minute before.
        waiting_peak_count: Most from then to recovery (to the end when there is none).
        recovered_at_s: First tick after its end with no more waiting than before; None when it never came.
        time_to_recover_s: From its end; None when it never came.
    """

    kind: str
    began_at_s: float
    ended_at_s: float
    waiting_before_count: float
    waiting_peak_count: float
    recovered_at_s: float | None
    time_to_recover_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """
    One run.

    Attributes:
        fleet: What it ran on.
        policy: Name of the policy.
        seed: Of the run.
        requests: One row a request.
        samples: One row a tick; no ticks when sampling was off.
        counters: Whole-run totals by name, each of shape (pools,).
        itl_counts: Gaps between consecutive tokens of a request, all requests together, in logarithmic bins.
        itl_edges_s: Lower edges of those bins.
        end_s: When the last event happened.
        event_count: Events processed.
        recoveries: One a fault, in the order given.
    """

    fleet: FleetSpec
    policy: str
    seed: int
    requests: RequestColumns
    samples: Samples
    counters: dict[str, FloatArray]
    itl_counts: IntArray
    itl_edges_s: FloatArray
    end_s: float
    event_count: int
    recoveries: tuple[Recovery, ...] = ()

    @property
    def itl_mean_s(self) -> float:
        """Mean inter-token gap over all requests, from the bins' middles; NaN when there was none."""
        total = self.itl_counts.sum()
        middles = self.itl_edges_s * np.exp(0.5 / lay.ITL_BINS_PER_E)
        return float((self.itl_counts * middles).sum() / total) if total else float("nan")

    def itl_quantile_s(self, quantile: float) -> float:
        """Return the gap that `quantile` of all gaps do not exceed, within 0.8 % (a bin); NaN when there was none."""
        total = self.itl_counts.sum()
        if not total:
            return float("nan")
        at = int(np.searchsorted(np.cumsum(self.itl_counts), quantile * total))
        return float(self.itl_edges_s[min(at, len(self.itl_edges_s) - 1)] * np.exp(0.5 / lay.ITL_BINS_PER_E))


def itl_edges_s() -> FloatArray:
    """Return the lower edges of the inter-token bins."""
    return np.asarray(lay.ITL_FLOOR_S * np.exp(np.arange(lay.ITL_BINS) / lay.ITL_BINS_PER_E))


def request_columns(state: State, tenant_ids: IntArray, count: int) -> RequestColumns:
    """Read the requests out of the state."""
    ri, rf = state.ri[:count], state.rf[:count]

    def whole(column: int) -> IntArray:
        return np.array(ri[:, column])

    def time(column: int) -> FloatArray:
        return np.array(rf[:, column])

    return RequestColumns(
        arrival_s=time(lay.F_ARRIVAL),
        prefill_start_s=time(lay.F_PREFILL_START),
        prefill_end_s=time(lay.F_PREFILL_END),
        transfer_start_s=time(lay.F_TRANSFER_START),
        transfer_end_s=time(lay.F_TRANSFER_END),
        first_token_s=time(lay.F_FIRST),
        finish_s=time(lay.F_FINISH),
        link_bytes=time(lay.F_BYTES),
        outcome=whole(lay.R_OUTCOME),
        prefill=whole(lay.R_P),
        decode=whole(lay.R_D),
        prompt_tokens=whole(lay.R_PROMPT),
        output_tokens=whole(lay.R_OUTPUT),
        generated_tokens=whole(lay.R_GENERATED),
        hit_tokens=np.maximum(whole(lay.R_HIT), 0),
        retraction_count=whole(lay.R_RETRACTED),
        recomputed_tokens=whole(lay.R_RECOMPUTED),
        reroute_count=whole(lay.R_REROUTED),
        class_ids=whole(lay.R_CLASS),
        tenant_ids=np.array(tenant_ids),
    )


def sample_columns(state: State, period_s: float) -> Samples:
    """Read the samples out of the state."""
    ticks = int(state.g[lay.G_SAMPLES])
    x = state.samples[:ticks]
    usable = state.pi[:, lay.P_USABLE] * state.pi[:, lay.P_PAGE]

    def column(at: int) -> FloatArray:
        return np.array(x[:, :, at])

    return Samples(
        at_s=np.arange(ticks, dtype=np.float64) * period_s,
        usable_tokens=np.broadcast_to(usable.astype(np.float64), (ticks, len(usable))).copy(),
        active_tokens=column(lay.X_ACTIVE),
        in_flight_tokens=column(lay.X_FLIGHT),
        prefix_tokens=column(lay.X_PREFIX),
        fragmentation_tokens=column(lay.X_FRAGMENTATION),
        free_tokens=column(lay.X_FREE),
        reserved_tokens=column(lay.X_RESERVED),
        running_count=column(lay.X_RUNNING),
        queue_bootstrap_count=column(lay.X_BOOTSTRAP),
        queue_main_count=column(lay.X_MAIN),
        queue_inflight_count=column(lay.X_INFLIGHT),
        queue_prealloc_count=column(lay.X_PREALLOC),
        queue_transfer_count=column(lay.X_TRANSFER),
        queue_arrived_count=column(lay.X_ARRIVED),
        queue_retracted_count=column(lay.X_RETRACTED),
        waiting_prompt_tokens=column(lay.X_WAITING_TOKENS),
        link_bytes=column(lay.X_LINK_BYTES),
    )


def counter_columns(state: State) -> dict[str, FloatArray]:
    """Read the pools' counters out of the state."""
    counters = {name: state.pi[:, column].astype(np.float64) for name, column in _COUNTERS.items()}
    counters.update({name: np.array(state.pf[:, column]) for name, column in _SUMS.items()})
    return counters
