"""
SGLang's `/v1/loads`, JSON or text, every era, by the shape of each row; and the older `/get_load`.

Eras differ in which keys a row has (reference: the wheels 0.5.8 to 0.5.23): a key that is absent is unknown, so no
version is asked. The one exception is marked where it stands. A row becomes a dict of `PoolReading` fields; the
dialect (`sglang`) adds what other paths know and builds the reading.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from collectors.engines.numbers import Numbers, as_mapping, as_number, as_text, decode_json
from collectors.exposition import bare_name, scan
from scoring.model import Finding, Role, Severity
from scoring.units import GIB_BYTES, MICROSECONDS_PER_S, MILLISECONDS_PER_S

MAX_RANKS: Final = 4096
"""More rows than any engine has DP ranks; the rest is rejected and counted."""
MIN_KV_GIB: Final = 0.05
"""`kv_cache_gb` is rounded to 0.001 GiB: below this it is off by more than a percent and left out."""

_ROLES: Final = {"null": Role.UNIFIED, "prefill": Role.PREFILL, "decode": Role.DECODE}

# Row key -> (field, factor). `utilization` is not here: it is -1 or stuck at 0 in every version.
_CORE: Final[Mapping[str, tuple[str, float]]] = {
    "num_running_reqs": ("running_count", 1.0),
    "num_waiting_reqs": ("waiting_count", 1.0),
    "num_waiting_uncached_tokens": ("waiting_uncached_tokens", 1.0),
    "num_used_tokens": ("used_tokens", 1.0),
    "num_total_tokens": ("pending_total_tokens", 1.0),
    "num_active_tokens": ("arrived_tokens", 1.0),
    "num_prealloc_ready_tokens": ("prealloc_ready_tokens", 1.0),
    "max_total_num_tokens": ("usable_tokens", 1.0),
    "max_running_requests": ("max_running_count", 1.0),
    "token_usage": ("reported_usage_ratio", 1.0),
    "gen_throughput": ("generated_tokens_per_s", 1.0),
    "cache_hit_rate": ("reported_hit_ratio", 1.0),
    "total_prefill_uncached_tokens": ("prefill_uncached_tokens_total", 1.0),
    "total_prefill_busy_us": ("prefill_busy_s_total", 1.0 / MICROSECONDS_PER_S),
}
_DISAGGREGATION: Final[Mapping[str, tuple[str, float]]] = {
    "prefill_prealloc_queue_reqs": ("queue_bootstrap_count", 1.0),  # The name until 0.5.11.
    "prefill_bootstrap_queue_reqs": ("queue_bootstrap_count", 1.0),
    "prefill_inflight_queue_reqs": ("queue_inflight_count", 1.0),
    "decode_prealloc_queue_reqs": ("queue_prealloc_count", 1.0),
    "decode_transfer_queue_reqs": ("queue_transfer_count", 1.0),
    "decode_retracted_queue_reqs": ("queue_retracted_count", 1.0),
    "kv_transfer_speed_gb_s": ("transfer_reported_bytes_per_s", 1e9),
    "kv_transfer_latency_ms": ("transfer_reported_latency_s", 1.0 / MILLISECONDS_PER_S),
}
_QUEUES: Final[Mapping[str, tuple[str, float]]] = {
    "waiting": ("queue_main_count", 1.0),
    "grammar": ("queue_grammar_count", 1.0),
    "paused": ("queue_paused_count", 1.0),
    "prealloc_ready": ("prealloc_ready_count", 1.0),
}
_MOMENTS: Final[tuple[tuple[str, float], ...]] = (
    ("decode_steps_total", 1.0),
    ("decode_batch_sum_total", 1.0),
    ("decode_step_s_total", 1.0 / MICROSECONDS_PER_S),
    ("decode_batch_squared_total", 1.0),
    ("decode_batch_step_s_total", 1.0 / MICROSECONDS_PER_S),
    ("decode_generated_tokens_total", 1.0),
)
_SECTIONS: Final = {"memory_": "memory", "disagg_": "disaggregation", "queues_": "queues", "spec_": "speculative"}


@dataclass(slots=True)
class Row:
    """
    One rank's answer.

    Attributes:
        values: PoolReading field -> number; unknown fields are absent.
        kv_gib_per_gpu: `memory.kv_cache_gb`, GiB of one GPU, or None.
        is_total_trusted: False where `num_total_tokens` of a decode worker may count requests twice.
        is_nothing_yet: The slot exists and the scheduler has published nothing into it.
    """

    dp_rank: int
    numbers: Numbers
    role: Role = Role.UNKNOWN
    values: dict[str, float] = field(default_factory=dict)
    kv_gib_per_gpu: float | None = None
    is_total_trusted: bool = True
    is_nothing_yet: bool = False
    findings: list[Finding] = field(default_factory=list)


@dataclass(slots=True)
class Loads:
    """A `/v1/loads` answer, understood: rows ascending by rank, and what was left out."""

    version: str | None = None
    rows: dict[int, Row] = field(default_factory=dict)
    answered_at_s: float | None = None
    accelerator: str | None = None
    accelerator_count: float | None = None
    expected_rank_count: int | None = None
    rejected_count: int = 0
    findings: list[Finding] = field(default_factory=list)


def parse_loads(body: bytes) -> Loads | None:
    """Return a `/v1/loads` body understood, or None when it is not one. Never raises."""
    payload = decode_json(body)
    if payload is None:
        return _parse_text(body)
    if not isinstance(payload, Mapping) or not isinstance(payload.get("loads"), list):
        return None
    loads = Loads(version=as_text(payload.get("version")), accelerator=as_text(payload.get("accelerator")))
    loads.accelerator_count = as_number(payload.get("num_accelerators"), largest=65536) or None
    ranks = as_number(payload.get("dp_rank_count"), largest=MAX_RANKS)
    loads.expected_rank_count = int(ranks) if ranks else None
    # Before 0.5.13 every answer is a round trip to the schedulers: the time it was built is the time of the data.
    is_round_trip = "aggregate" in payload or "dp_rank_count" in payload
    loads.answered_at_s = _instant(payload.get("timestamp"))
    answered_at_s = loads.answered_at_s if is_round_trip else None
    _take_rows(loads, payload["loads"], is_round_trip=is_round_trip, answered_at_s=answered_at_s)
    return loads


def is_loads_text(names: frozenset[str]) -> bool:
    """Say whether these bare metric names are those of `/v1/loads?format=prometheus`, not of `/metrics`."""
    return "num_waiting_reqs" in names and "max_total_num_tokens" in names


def _parse_text(body: bytes) -> Loads | None:
    exposition = scan(body)
    rows: dict[str, dict[str, Any]] = {}
    names: set[str] = set()
    for sample in exposition.samples:
        if not sample.name.startswith("sglang"):
            continue
        name = bare_name(sample.name, "sglang")
        names.add(name)
        row = rows.setdefault(sample.labels.get("dp_rank", "None"), {})
        for prefix, section in _SECTIONS.items():
            if name.startswith(prefix):
                row.setdefault(section, {})[name.removeprefix(prefix)] = sample.value
                break
        else:
            row[name] = sample.value
    if not is_loads_text(frozenset(names)):
        return None
    loads = Loads(rejected_count=exposition.rejected_count)
    payload = []
    for label, row in rows.items():
        if label.isascii() and label.isdigit() and len(label) < 7:
            row["dp_rank"] = int(label)
        elif label not in ("None", ""):
            row["dp_rank"] = label
        payload.append(row)
    _take_rows(loads, payload, is_round_trip="None" in rows, answered_at_s=None)
    return loads


def _take_rows(loads: Loads, rows: list[Any], *, is_round_trip: bool, answered_at_s: float | None) -> None:
    contradicted: set[int] = set()
    raw: dict[int, Mapping[str, Any]] = {}
    loads.rejected_count += max(0, len(rows) - MAX_RANKS)
    for index, item in enumerate(rows[:MAX_RANKS]):
        rank = _rank(item, index)
        if rank is None:
            loads.rejected_count += 1
        elif rank in raw:
            loads.rejected_count += 1
            if raw[rank] != item:
                contradicted.add(rank)
        else:
            raw[rank] = item
    for rank in sorted(raw):
        if rank in contradicted:
            text = f"Rank {rank} appears more than once with different figures: none of them is used."
            loads.findings.append(Finding(code="duplicate-rank", text=text, severity=Severity.ERROR, dp_rank=rank))
            continue
        loads.rows[rank] = _row(raw[rank], rank, loads.version, is_round_trip, answered_at_s)
    nameless = sum(_rank(item, index) is None for index, item in enumerate(rows[:MAX_RANKS]))
    if nameless:
        text = f"{nameless} of {len(rows)} rows of /v1/loads name no rank (or are no object) and were left out."
        loads.findings.append(Finding(code="rows-rejected", text=text))
    if loads.expected_rank_count is None and not is_round_trip and len(raw) + nameless > len(loads.rows):
        loads.expected_rank_count = len(raw) + nameless


def _rank(item: object, index: int) -> int | None:
    """Return the row's DP rank; a row without one (era A, one rank) is its place in the list."""
    if not isinstance(item, Mapping):
        return None
    raw = item.get("dp_rank")
    if raw is None:
        return index
    value = as_number(raw, largest=MAX_RANKS * 16)
    return int(value) if value is not None and value == int(value) else None


def _row(
    item: Mapping[str, Any], rank: int, version: str | None, is_round_trip: bool, answered_at_s: float | None
) -> Row:
    numbers = Numbers(dp_rank=rank)
    row = Row(dp_rank=rank, numbers=numbers)
    disaggregation = as_mapping(item.get("disaggregation"))
    queues = as_mapping(item.get("queues"))
    row.role = _role(item, disaggregation)
    if _is_zero(item.get("max_total_num_tokens")) or _is_zero(item.get("timestamp")):
        row.is_nothing_yet = True
        return row
    for table, section in ((_CORE, item), (_DISAGGREGATION, disaggregation), (_QUEUES, queues)):
        for key, (name, factor) in table.items():
            if (value := numbers.take(section.get(key), name, source=key, scale=factor)) is not None:
                row.values[name] = value
    moments = item.get("decode_moments")
    if isinstance(moments, list) and len(moments) >= len(_MOMENTS):
        for raw, (name, factor) in zip(moments, _MOMENTS, strict=False):
            # Batch x step microseconds outgrow 2^53 within a year; what a double then rounds is below a step.
            value = numbers.take(raw, name, source="decode_moments", scale=factor, largest=1e18)
            if value is not None:
                row.values[name] = value
    elif moments is not None:
        numbers.refuse(moments if type(moments) in (int, float) else "a list of another length", "decode_steps_total",
                       source="decode_moments", why="six numbers expected")  # fmt: skip
    row.kv_gib_per_gpu = as_number(as_mapping(item.get("memory")).get("kv_cache_gb"), largest=1e6)
    reported = numbers.take(item.get("timestamp"), "reported_at_s", source="timestamp", largest=1e11)
    if reported is None and is_round_trip:
        reported = answered_at_s
    if reported is not None:
        row.values["reported_at_s"] = reported
    row.is_total_trusted = "timestamp" in item or _is_at_least_0_5_14(version)
    _check(row)
    return row


def _is_zero(raw: object) -> bool:
    return type(raw) in (int, float) and raw == 0  # False is no zero.


def _role(item: Mapping[str, Any], disaggregation: Mapping[str, Any]) -> Role:
    """Return the mode; where it is left out, what only one role can show: its queues, or utilization -1."""
    mode = disaggregation.get("mode")
    if isinstance(mode, str):
        return _ROLES.get(mode, Role.UNKNOWN)
    shows = {
        key.partition("_")[0] for key, value in disaggregation.items() if key in _DISAGGREGATION and as_number(value)
    }
    if item.get("utilization") == -1 or "prefill" in shows or "kv" in shows:
        return Role.PREFILL
    return Role.DECODE if "decode" in shows else Role.UNKNOWN


def _is_at_least_0_5_14(version: str | None) -> bool:
    """
    Say whether `num_total_tokens` counts a decode worker's preallocated requests once (sgl-project/sglang#25736).

    0.5.13 counts twice, 0.5.14 does not, and both have the same shape: the only place a version is read.
    """
    match = re.match(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})", version or "")
    return match is not None and tuple(int(part) for part in match.groups()) >= (0, 5, 14)


def _check(row: Row) -> None:
    """Refuse what contradicts the row's other figures, and turn the engine's placeholders into unknown."""
    values, numbers = row.values, row.numbers
    used, usable = values.get("used_tokens"), values.get("usable_tokens")
    if used is not None and usable is not None and used > usable:
        if used > 2 * usable:
            numbers.refuse(used, "used_tokens", source="num_used_tokens", why=f"capacity is {usable:.0f}")
            del values["used_tokens"]
        else:
            row.findings.append(
                Finding(
                    code="usage-above-capacity",
                    text=f"num_used_tokens {used:.0f} is above max_total_num_tokens {usable:.0f}; drawn as full.",
                    dp_rank=row.dp_rank,
                )
            )
    total, active = values.get("pending_total_tokens"), values.get("arrived_tokens")
    if total is not None and used is not None and total < used:
        numbers.refuse(
            total, "pending_total_tokens", source="num_total_tokens", why=f"below num_used_tokens {used:.0f}"
        )
        del values["pending_total_tokens"]
    if total is not None and active is not None and active > total:
        numbers.refuse(active, "arrived_tokens", source="num_active_tokens", why=f"above num_total_tokens {total:.0f}")
        del values["arrived_tokens"]
    if "used_tokens" in numbers.anomalies:
        # What is derived from a refused figure is as wrong as the figure.
        for name in ("arrived_tokens", "pending_total_tokens", "reported_usage_ratio"):
            values.pop(name, None)
    ratio = values.get("reported_usage_ratio")
    if ratio is not None and ratio > 2.0:
        numbers.refuse(ratio, "reported_usage_ratio", source="token_usage", why="a ratio")
        del values["reported_usage_ratio"]
    hide_placeholders(values, row.role)


def hide_placeholders(values: dict[str, float], role: Role) -> None:
    """Remove figures that this engine fills in without knowing them; used for both `/v1/loads` and `/metrics`."""
    for name in ("transfer_reported_bytes_per_s", "transfer_reported_latency_s"):
        # 0 on decode workers, in old versions and before the first transfer: never a stalled link.
        if values.get(name) == 0 or role is Role.DECODE:
            values.pop(name, None)
    if values.get("reported_hit_ratio") == 0:
        values.pop("reported_hit_ratio")  # Zeroed by every decode tick until 0.5.20, and without --enable-metrics.
    if role is Role.PREFILL:
        values.pop("generated_tokens_per_s", None)
        if values.get("running_count") == 0:
            values.pop("running_count")  # The running batch of a prefill worker is never filled in.
    elif values.get("running_count") == 0:
        if "generated_tokens_per_s" in values:
            values["generated_tokens_per_s"] = 0.0  # The gauge keeps its last busy value.
    elif values.get("generated_tokens_per_s") == 0:
        values.pop("generated_tokens_per_s")  # Stays 0 without --enable-metrics.


def _instant(raw: object) -> float | None:
    """Return an ISO 8601 instant with a zone, or epoch seconds, as epoch seconds; else None."""
    if isinstance(raw, str) and len(raw) < 64:
        try:
            moment = datetime.fromisoformat(raw)
        except ValueError:
            return None
        return moment.timestamp() if moment.tzinfo is not None else None
    return as_number(raw, largest=1e11) or None


def parse_get_load(body: bytes) -> dict[int, dict[str, float]] | None:
    """
    Return `/get_load` as rank -> fields, or None when it is not one.

    `num_tokens` is used tokens until 0.5.10 and used plus pending from 0.5.11, told apart by `num_pending_tokens`.
    `ts_tic` is a monotonic clock of arbitrary origin and never read.
    """
    payload = decode_json(body)
    items = [payload] if isinstance(payload, Mapping) else payload
    if not isinstance(items, list) or not items:
        return None
    found: dict[int, dict[str, float]] = {}
    for index, item in enumerate(items[:MAX_RANKS]):
        rank = _rank(item, index)
        if rank is None or rank in found or "num_reqs" not in item or "num_tokens" not in item:
            return None
        values: dict[str, float] = {}
        total_count, waiting = as_number(item["num_reqs"]), as_number(item.get("num_waiting_reqs"))
        tokens, pending = as_number(item["num_tokens"]), as_number(item.get("num_pending_tokens"))
        if waiting is not None:
            values["waiting_count"] = waiting
            if total_count is not None and total_count >= waiting:
                values["running_count"] = total_count - waiting
        if tokens is not None and "num_pending_tokens" not in item:
            values["used_tokens"] = tokens
        elif tokens is not None and pending is not None and tokens >= pending:
            values["pending_total_tokens"], values["used_tokens"] = tokens, tokens - pending
        found[rank] = values
    return found


def kv_bytes(kv_gib_per_gpu: float | None, accelerator_count: float | None) -> float | None:
    """Return the device bytes over all GPUs behind the rank; None when one factor is unknown or too coarse."""
    if kv_gib_per_gpu is None or accelerator_count is None or kv_gib_per_gpu < MIN_KV_GIB:
        return None
    return kv_gib_per_gpu * GIB_BYTES * accelerator_count
