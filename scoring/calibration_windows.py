"""
Two readings of one pool become rows for the fits: counters tell exactly how much work took how long.

Everything here is a difference of counters that belong to one instant each, so our clock and the worker's do not
enter: skewed clocks cannot bend a coefficient. What cannot be used is left out with a word that says why.

Read next: `calibration_service`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Final

import numpy as np

from scoring.model import PoolHistory, PoolReading, Role, pool_id

LONGEST_WINDOW_S: Final = 15.0
"""Between two readings further apart the KV gauge says little about what was read meanwhile (chosen)."""
LEAST_STEPS: Final = 4.0
"""Fewer decode steps than this in a window are dropped: the edges weigh too much (chosen)."""
LOG_STEPS: Final = 40.0
"""Decode steps between two updates of `running_tokens`: SGLang's `decode_log_interval`, engine default."""

NEEDED: Final = (
    "reported_at_s",
    "usable_tokens",
    "block_size_tokens",
    "accelerator_count",
    "bytes_per_token",
    "used_tokens",
    "allocated_tokens",
    "arrived_tokens",
    "running_count",
    "running_tokens",
    "waiting_uncached_tokens",
    "queue_retracted_count",
    "queue_inflight_count",
    "prefill_uncached_tokens_total",
    "prefill_busy_s_total",
    "decode_steps_total",
    "decode_batch_sum_total",
    "decode_step_s_total",
    "decode_batch_squared_total",
    "decode_generated_tokens_total",
    "prefix_hit_tokens_total",
    "prefix_query_tokens_total",
    "transfer_bytes_total",
    "transfers_total",
    "transfer_latency_s_total",
    "prompt_tokens_total",
    "generated_tokens_total",
    "finished_total",
    "ttft_s_total",
    "ttft_count_total",
    "itl_s_total",
    "itl_count_total",
)
"""Signals that calibration reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """
    Workers that should be equally fast: one fit for all of them.

    Attributes:
        model: Served model, "" when not reported.
        role: What they do.
        engine: Family of the dialect (`sglang` for `sglang-metrics`).
        version: Engine version, "" when not reported.
        accelerator_count: GPUs behind a rank, 0 when not reported.
        hardware: Label `accelerator` of the fleet file, where kinds must be told apart by hand; else "".
    """

    model: str
    role: Role
    engine: str
    version: str
    accelerator_count: int
    hardware: str = ""

    @property
    def name(self) -> str:
        """Return a stable kebab-case name for store and files."""
        parts = [self.model.rpartition("/")[2] or "model", self.role.value, self.engine, self.version]
        parts += [f"x{self.accelerator_count}"] if self.accelerator_count else []
        parts += [self.hardware]
        text = "-".join(part for part in parts if part).lower()
        return "-".join(
            filter(None, "".join(sign if sign.isalnum() or sign == "." else "-" for sign in text).split("-"))
        )


def kind_of(reading: PoolReading, labels: Mapping[str, str] | None = None) -> Kind:
    """Return the kind of a reading's worker."""
    labels = labels or {}
    return Kind(
        model=reading.model or labels.get("model", ""),
        role=reading.role,
        engine=reading.engine.partition("-")[0],
        version=reading.version or "",
        accelerator_count=int(reading.accelerator_count or 0),
        hardware=labels.get("accelerator", ""),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeWindow:
    """
    Means over the decode steps between two readings.

    Attributes:
        at_s: When the later reading was received.
        pool: `worker/rank`.
        step_count: Steps in it.
        batch_count: Mean batch.
        kv_tokens: Mean tokens read a step, from the gauge at both ends.
        kv_doubt_tokens: One standard deviation of what the gauge may be off in between.
        step_s: Mean seconds a step.
        is_kv_read: The gauge is of what a step reads; else of what the pool holds, where a shared prefix counts once
            and a prompt under way counts though no step reads it.
    """

    at_s: float
    pool: str
    step_count: float
    batch_count: float
    kv_tokens: float
    kv_doubt_tokens: float
    step_s: float
    is_kv_read: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillWindow:
    """
    Prompt work between two readings.

    Attributes:
        new_tokens: Computed.
        hit_tokens: Found in the cache; None when not reported.
        busy_s: Seconds of computing.
        request_count: Prompts that finished; None when not reported.
        is_whole: Nothing was waiting or under way at either end, so that all of it belongs together.
    """

    at_s: float
    pool: str
    new_tokens: float
    hit_tokens: float | None
    busy_s: float
    request_count: float | None
    is_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferWindow:
    """KV hand-overs that finished between two readings; `is_alone`: one, and none under way at either end."""

    at_s: float
    pool: str
    transfer_count: float
    size_bytes: float
    latency_s: float
    is_alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficWindow:
    """
    What requests were like and how they fared between two readings; amounts, None where not reported.

    Attributes:
        finished_count: Requests that finished.
        prompt_tokens: Their prompts.
        output_tokens: What they generated.
        hit_tokens: Prompt tokens found in the cache.
        query_tokens: Prompt tokens looked up.
        ttft_s: Sum of the times to first token.
        ttft_count: Requests in that sum.
        itl_s: Sum of the gaps between tokens.
        itl_count: Gaps in that sum.
    """

    at_s: float
    pool: str
    finished_count: float | None
    prompt_tokens: float | None
    output_tokens: float | None
    hit_tokens: float | None
    query_tokens: float | None
    ttft_s: float | None
    ttft_count: float | None
    itl_s: float | None
    itl_count: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairWindows:
    """
    What two readings of a pool give.

    Attributes:
        skipped: Why nothing can be taken from this pair ("restart", "other-model", "gap", "same-figures"), or "".
    """

    decode: DecodeWindow | None = None
    prefill: PrefillWindow | None = None
    transfer: TransferWindow | None = None
    traffic: TrafficWindow | None = None
    skipped: str = ""


_COUNTERS: Final = tuple(name for name in NEEDED if name.endswith("_total"))


def pair_windows(before: PoolReading, after: PoolReading) -> PairWindows:
    """
    Return what can be learnt between two consecutive readings of one pool.

    A counter that fell is a restart, another model, version or capacity at the same address is another pool: nothing
    is taken across either. Two polls of the same published figures give nothing.
    """
    if kind_of(before) != kind_of(after) or before.usable_tokens != after.usable_tokens:
        return PairWindows(skipped="other-model")
    if not 0.0 < after.received_at_s - before.received_at_s <= LONGEST_WINDOW_S:
        return PairWindows(skipped="gap")
    if before.reported_at_s is not None and before.reported_at_s == after.reported_at_s:
        return PairWindows(skipped="same-figures")
    grown = {name: _difference(before, after, name) for name in _COUNTERS}
    if any(value is not None and value < 0 for value in grown.values()):
        return PairWindows(skipped="restart")
    return PairWindows(
        decode=_decode(before, after, grown),
        prefill=_prefill(before, after, grown),
        transfer=_transfer(before, after, grown),
        traffic=_traffic(after, grown),
    )


def _difference(before: PoolReading, after: PoolReading, name: str) -> float | None:
    first, second = getattr(before, name), getattr(after, name)
    # Series of rare events appear with the first event, so absent before is no difference, only unknown.
    return None if first is None or second is None else float(second - first)


def _pool(reading: PoolReading) -> str:
    return pool_id(reading.worker_id, reading.dp_rank)


def held_kv_tokens(reading: PoolReading) -> float | None:
    """
    Return the tokens that a decode step reads, as the gauges tell; None where they do not.

    Decode pools: what has arrived (in-flight KV is not read yet); retracted sequences make that figure unusable.
    Others: what is used. vLLM and its kin say allocated; the evictable part in it is not read and not known there.
    """
    if reading.role is Role.DECODE and reading.arrived_tokens is not None:
        return None if reading.queue_retracted_count else reading.arrived_tokens
    return reading.used_tokens


def _decode(before: PoolReading, after: PoolReading, grown: Mapping[str, float | None]) -> DecodeWindow | None:
    steps, batch_sum = grown["decode_steps_total"], grown["decode_batch_sum_total"]
    step_s, squared = grown["decode_step_s_total"], grown["decode_batch_squared_total"]
    if steps is None or batch_sum is None or step_s is None:
        return _decode_from_gaps(before, after, grown)
    if steps < LEAST_STEPS or step_s <= 0 or batch_sum <= 0:
        return None
    batch = batch_sum / steps
    variance = max(squared / steps - batch * batch, 0.0) if squared is not None else 0.0
    first, second = before.running_tokens, after.running_tokens
    # The same figure twice was not written down anew meanwhile: it may be of a batch that has long left.
    is_read = after.role is not Role.DECODE and None not in (first, second) and first != second
    if not is_read:
        first, second = held_kv_tokens(before), held_kv_tokens(after)
    if first is None or second is None:
        return None
    return _window(after, steps, batch, variance, step_s / steps, (first, second), is_read=is_read)


def _decode_from_gaps(
    before: PoolReading, after: PoolReading, grown: Mapping[str, float | None]
) -> DecodeWindow | None:
    """Return the window from the inter-token histogram, for engines without moments: every gap is a step."""
    first, second = held_kv_tokens(before), held_kv_tokens(after)
    if first is None or second is None:
        return None
    gaps, seconds = grown["itl_count_total"], grown["itl_s_total"]
    if gaps is None or seconds is None or before.running_count is None or after.running_count is None:
        return None
    batch = (before.running_count + after.running_count) / 2.0
    if batch <= 0 or gaps / batch < LEAST_STEPS or seconds <= 0:
        return None
    variance = (after.running_count - before.running_count) ** 2 / 12.0
    return _window(after, gaps / batch, batch, variance, seconds / gaps, (first, second))


def _window(
    after: PoolReading,
    steps: float,
    batch: float,
    variance: float,
    step_s: float,
    gauge: tuple[float, float],
    *,
    is_read: bool = False,
) -> DecodeWindow:
    middle = (gauge[0] + gauge[1]) / 2.0
    if is_read:
        # The figure is 0 to LOG_STEPS steps old, and each step has added a token a sequence since.
        age = batch * LOG_STEPS
        kv_tokens, blur2 = max(middle + age / 2.0, batch), age * age / 12.0
    else:
        # Gauges count whole blocks; a sequence's last block is half empty on average, and a step reads what is in it.
        page = after.block_size_tokens or 1.0
        kv_tokens, blur2 = max(middle - batch * (page - 1.0) / 2.0, batch), batch * page * page / 12.0
    # What batch * steps does not explain came or went at an unknown moment in between (uniform: a twelfth), what
    # changed the batch took its KV along, and the gauge itself is blurred by a uniform spread.
    jump = gauge[1] - gauge[0] - batch * steps
    doubt2 = jump * jump / 12.0 + variance * (kv_tokens / batch) ** 2 + blur2
    return DecodeWindow(
        at_s=after.received_at_s,
        pool=_pool(after),
        step_count=steps,
        batch_count=batch,
        kv_tokens=kv_tokens,
        kv_doubt_tokens=math.sqrt(doubt2),
        step_s=step_s,
        is_kv_read=is_read,
    )


def _prefill(before: PoolReading, after: PoolReading, grown: Mapping[str, float | None]) -> PrefillWindow | None:
    tokens, busy_s = grown["prefill_uncached_tokens_total"], grown["prefill_busy_s_total"]
    # What a decode worker computes again after a retraction says nothing about prompts.
    if after.role is Role.DECODE or not tokens or not busy_s:
        return None
    is_still = before.waiting_uncached_tokens == 0 and after.waiting_uncached_tokens == 0
    if after.role is Role.PREFILL:
        is_still = is_still and not before.queue_inflight_count and not after.queue_inflight_count
    count = grown["transfers_total"] if after.role is Role.PREFILL else grown["ttft_count_total"]
    return PrefillWindow(
        at_s=after.received_at_s,
        pool=_pool(after),
        new_tokens=tokens,
        hit_tokens=grown["prefix_hit_tokens_total"],
        busy_s=busy_s,
        request_count=count,
        is_whole=is_still,
    )


def _transfer(before: PoolReading, after: PoolReading, grown: Mapping[str, float | None]) -> TransferWindow | None:
    count, size, seconds = grown["transfers_total"], grown["transfer_bytes_total"], grown["transfer_latency_s_total"]
    if not count or not size or not seconds:
        return None
    is_alone = count == 1 and not before.queue_inflight_count and not after.queue_inflight_count
    return TransferWindow(
        at_s=after.received_at_s,
        pool=_pool(after),
        transfer_count=count,
        size_bytes=size,
        latency_s=seconds,
        is_alone=is_alone,
    )


def _traffic(after: PoolReading, grown: Mapping[str, float | None]) -> TrafficWindow:
    output = grown["generated_tokens_total"]
    return TrafficWindow(
        at_s=after.received_at_s,
        pool=_pool(after),
        finished_count=grown["finished_total"],
        prompt_tokens=grown["prompt_tokens_total"],
        output_tokens=output if output is not None else grown["decode_generated_tokens_total"],
        hit_tokens=grown["prefix_hit_tokens_total"],
        query_tokens=grown["prefix_query_tokens_total"],
        ttft_s=grown["ttft_s_total"],
        ttft_count=grown["ttft_count_total"],
        itl_s=grown["itl_s_total"],
        itl_count=grown["itl_count_total"],
    )


def readings_of(history: PoolHistory) -> Sequence[PoolReading]:
    """Return a history's samples as readings, oldest first, constants from the newest; rows of a store go this way."""
    names = [name for name in NEEDED if name in history.columns]
    table = np.array([history.columns[name] for name in names], dtype=np.float64).reshape(len(names), -1)
    known = {spec.name for spec in fields(PoolReading)}
    assert known.issuperset(names)
    found = []
    for place, at_s in enumerate(np.asarray(history.at_s, dtype=np.float64).tolist()):
        values = {
            name: None if math.isnan(value) else value
            for name, value in zip(names, table[:, place].tolist(), strict=True)
        }
        found.append(replace(history.last, received_at_s=at_s, **values))  # type: ignore[arg-type] # numeric fields only
    return found


def consecutive_windows(readings: Iterable[PoolReading]) -> list[PairWindows]:
    """Return what each two consecutive readings of one pool give, in order."""
    return [pair_windows(before, after) for before, after in pairwise(readings)]
