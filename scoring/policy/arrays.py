"""
A FleetSnapshot as columns: one array a quantity, pools ascending by id, NaN where unknown.

Where a snapshot does not carry a figure that follows from another one by a stated estimate, the estimate is taken
here once and remembered in `notes`, so that every term that rests on it is marked. Nothing unknown becomes 0.

Read next: `filters`, `scorers`.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scoring.admission import queued_need_tokens
from scoring.cost import effective_bandwidth_bytes_per_s
from scoring.model import Figure, FleetSnapshot, FloatArray, PoolSnapshot, Role, SourceState

BoolArray = NDArray[np.bool_]

BUSY_TRANSFER_COUNT: Final = 4.0
"""With no mean at hand, this many transfers under way now call a link busy (chosen: one alone may be passing by)."""
ASSUMED_HELD_TOKENS: Final = 4_096.0
"""Tokens a running request holds, where neither its length nor the pool's capacity is reported (chosen)."""
BLOCK_FALLBACK_TOKENS: Final = 64.0
"""Block size assumed when no pool of the fleet says its own (chosen: the largest page engines use by default)."""

MATERIAL: Final = frozenset(
    {
        "usable_tokens",
        "used_tokens",
        "allocated_tokens",
        "pending_total_tokens",
        "arrived_tokens",
        "prefix_tokens",
        "free_tokens",
        "free_or_prefix_tokens",
        "reported_usage_ratio",
        "running_count",
        "waiting_count",
    }
)
"""A refused raw value in one of these makes the pool not credible as a target (field case P04)."""

PAIR_LABELS: Final = ("model", "kv_dtype", "kv_layout", "kv_split", "position_encoding", "zone")
"""What may set two ends apart: the KV itself must be readable; `zone` counts where the settings ask."""

_GONE: Final = frozenset({SourceState.DOWN, SourceState.UNAUTHORISED, SourceState.NOT_UNDERSTOOD})

PREFILL, DECODE, UNIFIED, NO_ROLE = 0, 1, 2, 3
_ROLE_CODES: Final[Mapping[Role, int]] = {
    Role.PREFILL: PREFILL,
    Role.DECODE: DECODE,
    Role.UNIFIED: UNIFIED,
    Role.UNKNOWN: NO_ROLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetArrays:
    """
    Columns of shape (n,), one element a pool.

    Attributes:
        pools: The snapshots behind the columns, ascending by id.
        role: PREFILL, DECODE, UNIFIED or NO_ROLE.
        committed_tokens: As judged; else its upper bound, else used.
        available_tokens: free + prefix as judged; else its lower bound.
        queued_tokens: Need of requests waiting in front.
        uncached_tokens: Prompt tokens waiting to be computed.
        prefill_tokens_per_s: Measured speed in the window; else over the worker's life; 0 where it does not serve.
        line_bytes_per_s: Configured rate of the pool's end of the link.
        bandwidth_bytes_per_s: The lower of line rate and what the volume counter proves.
        travelling_bytes: Handed to the link and not through, at the sending end.
        arriving_tokens: Allocated for KV that has not arrived, at the receiving end.
        handed_over_ratio: Share of it that some sender has put on a link: transfers senders have under way over
            requests receivers wait for; the rest still waits for prefill. 1 where either side does not say.
        is_gone: Nobody answers there, or nobody who is understood.
        models: Served model, from the engine, else from the fleet file.
        tenants: Allow-list, or None for everyone.
        pair_labels: Name -> number of each pool's value, -1 where it states none; only names with two values or more.
        notes: Name of a quantity -> (mask, what was estimated how).
    """

    pools: tuple[PoolSnapshot, ...]
    ids: tuple[str, ...]
    role: NDArray[np.int8]
    is_scored: BoolArray
    is_serving: BoolArray
    is_credible: BoolArray
    is_gone: BoolArray
    is_draining: BoolArray
    models: tuple[str | None, ...]
    tenants: tuple[frozenset[str] | None, ...]
    retracted_count: FloatArray
    pair_labels: Mapping[str, NDArray[np.int64]]
    age_s: FloatArray
    page_tokens: FloatArray
    bytes_per_token: FloatArray
    usable_tokens: FloatArray
    used_tokens: FloatArray
    active_tokens: FloatArray
    prefix_tokens: FloatArray
    available_tokens: FloatArray
    reserved_tokens: FloatArray
    committed_tokens: FloatArray
    queued_tokens: FloatArray
    uncached_tokens: FloatArray
    arriving_tokens: FloatArray
    handed_over_ratio: float
    net_tokens_per_s: FloatArray
    net_std_tokens_per_s: FloatArray
    prefill_tokens_per_s: FloatArray
    mean_prompt_tokens: FloatArray
    mean_output_tokens: FloatArray
    step_time_s: FloatArray
    mean_batch_count: FloatArray
    finished_per_s: FloatArray
    running_count: FloatArray
    waiting_count: FloatArray
    max_running_count: FloatArray
    line_bytes_per_s: FloatArray
    bandwidth_bytes_per_s: FloatArray
    travelling_bytes: FloatArray
    generated_tokens_per_s: FloatArray
    peer_lost_tokens: FloatArray
    survivor_usable_tokens: FloatArray
    notes: Mapping[str, tuple[BoolArray, str]]

    def __len__(self) -> int:
        """Return the number of pools."""
        return len(self.ids)

    def notes_of(self, index: int) -> tuple[str, ...]:
        """Return what was estimated about one pool."""
        return tuple(text for mask, text in self.notes.values() if mask[index])


def _column(pools: Sequence[PoolSnapshot], get: Callable[[PoolSnapshot], Figure]) -> FloatArray:
    return np.array([np.nan if (value := get(pool).value) is None else value for pool in pools], dtype=np.float64)


def _raw(pools: Sequence[PoolSnapshot], name: str) -> FloatArray:
    return np.array(
        [np.nan if (value := getattr(pool.reading, name)) is None else value for pool in pools], dtype=np.float64
    )


def _bound(pools: Sequence[PoolSnapshot], get: Callable[[PoolSnapshot], Figure], side: str) -> FloatArray:
    return np.array(
        [np.nan if (value := getattr(get(pool), side)) is None else value for pool in pools], dtype=np.float64
    )


def _label(pools: Sequence[PoolSnapshot], name: str) -> FloatArray:
    values = []
    for pool in pools:
        try:
            values.append(float(pool.labels[name]) if name in pool.labels else np.nan)
        except ValueError:
            values.append(np.nan)  # A label that is no number is shown by the pool itself; here it is unknown.
    return np.array(values, dtype=np.float64)


def _numbered(pools: Sequence[PoolSnapshot]) -> dict[str, NDArray[np.int64]]:
    """Return the labels that can set two ends of a pair apart, as numbers to compare."""
    columns: dict[str, NDArray[np.int64]] = {}
    for name in PAIR_LABELS:
        stated = [(pool.model if name == "model" else None) or pool.labels.get(name) for pool in pools]
        number = {value: index for index, value in enumerate(sorted({value for value in stated if value is not None}))}
        if len(number) > 1:
            columns[name] = np.array([-1 if value is None else number[value] for value in stated], dtype=np.int64)
    return columns


def _allow_list(text: str) -> frozenset[str] | None:
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    return names or None


class _Notes(dict[str, tuple[BoolArray, str]]):
    def fill(self, name: str, values: FloatArray, other: FloatArray, text: str) -> FloatArray:
        """Return values with gaps filled from `other`, remembering which."""
        mask = np.isnan(values) & ~np.isnan(other)
        if mask.any():
            self[f"{name}: {text}"] = (mask, text)
        return np.where(mask, other, values)


def _peers(
    workers: Sequence[str], role: NDArray[np.int8], committed: FloatArray, usable: FloatArray, count: int
) -> tuple[FloatArray, FloatArray]:
    """
    Return what is lost when the `count` largest peer workers of each pool die, and the survivors' usable.

    A worker dies with all its ranks. Peers are workers of the same role other than the pool's own.
    """
    lost = np.zeros(len(workers))
    survivors = np.zeros(len(workers))
    for code in np.unique(role):
        members = np.flatnonzero(role == code)
        totals: dict[str, list[float]] = {}
        for index in members:
            total = totals.setdefault(workers[int(index)], [0.0, 0.0])
            total[0] += float(np.nan_to_num(committed[index]))
            total[1] += float(np.nan_to_num(usable[index]))
        ranked = sorted(totals.items(), key=lambda item: (-item[1][0], item[0]))
        whole = sum(total[1] for _, total in ranked)
        nearest = ranked[: count + 1]
        for index in members:
            gone = [total for worker, total in nearest if worker != workers[int(index)]][:count]
            lost[index] = sum(total[0] for total in gone)
            survivors[index] = whole - sum(total[1] for total in gone)
    return lost, survivors


def _sized(
    notes: _Notes, usable: FloatArray, usage_ratio: FloatArray, running_tokens: FloatArray, role: NDArray[np.int8]
) -> FloatArray:
    """
    Return usable, estimated where an engine gives its usage as a ratio and keeps the capacity to itself.

    Running requests at their mean length are what the ratio is of; else the smallest known pool of the role.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        by_load = np.where((usage_ratio > 0.0) & (running_tokens > 0.0), running_tokens / usage_ratio, np.nan)
    usable = notes.fill(
        "usable",
        usable,
        by_load,
        f"capacity is not reported: running requests x mean length (else {ASSUMED_HELD_TOKENS:g}) / usage ratio",
    )
    smallest = np.full(usable.size, np.nan)
    for code in np.unique(role):
        known = usable[(role == code) & np.isfinite(usable)]
        if known.size:
            smallest[role == code] = known.min()
    text = "capacity is not reported: the smallest known pool of the role"
    return notes.fill("usable", usable, np.where(np.isnan(usage_ratio), np.nan, smallest), text)


def _handed_over(sent: FloatArray, awaited: FloatArray) -> float:
    total_sent, total_awaited = float(sent.sum()), float(awaited.sum())
    if not (sent.size and total_awaited > 0.0 and np.isfinite(total_sent)):
        return 1.0  # Nothing awaited, or unknown (NaN compares false): what is in flight counts whole.
    return min(1.0, total_sent / total_awaited)


def build_arrays(fleet: FleetSnapshot, failure_count: int = 1) -> FleetArrays:
    """Return the columns of a snapshot; pools are taken in order of id whatever order they come in."""
    pools = tuple(sorted(fleet.pools, key=lambda pool: pool.pool_id))
    notes = _Notes()
    role = np.array([_ROLE_CODES[pool.role] for pool in pools], dtype=np.int8)

    def column(name: str) -> FloatArray:
        return _column(pools, lambda pool: getattr(pool, name))

    def part(name: str) -> FloatArray:
        return _column(pools, lambda pool: getattr(pool.composition, name))

    def rate(name: str) -> FloatArray:
        return _column(pools, lambda pool: getattr(pool.rates, name))

    usable = np.where(part("usable_tokens") > 0.0, part("usable_tokens"), np.nan)
    used = part("used_tokens")
    reserved = part("reserved_tokens")
    committed = notes.fill(
        "committed",
        part("committed_tokens"),
        _bound(pools, lambda pool: pool.composition.committed_tokens, "high"),
        "committed is known by bounds only: the upper one is taken",
    )
    committed = notes.fill("committed", committed, used, "committed is not known: used is taken")
    available = notes.fill(
        "available",
        part("available_tokens"),
        _bound(pools, lambda pool: pool.composition.available_tokens, "low"),
        "available is known by bounds only: the lower one is taken",
    )
    available = notes.fill("available", available, part("free_or_prefix_tokens"), "available is free or prefix")

    running = column("running_count")
    waiting = column("waiting_count")
    mean_prompt = rate("mean_prompt_tokens")
    mean_output = rate("mean_output_tokens")
    usage = np.where(np.isnan(used), _raw(pools, "reported_usage_ratio"), np.nan)
    mean_held = np.where(np.isnan(mean_prompt + mean_output), ASSUMED_HELD_TOKENS, mean_prompt + 0.5 * mean_output)
    usable = _sized(notes, usable, usage, running * mean_held, role)
    text = "tokens held are the engine's usage ratio times capacity"
    used = notes.fill("used", used, usage * usable, text)
    committed = notes.fill("committed", committed, used, text)
    available = notes.fill("available", available, np.maximum(usable - used, 0.0), text)

    page = column("block_size_tokens")
    page = np.where(page > 0.0, page, np.nan)
    known_pages = page[~np.isnan(page)]
    largest_page = float(known_pages.max()) if known_pages.size else BLOCK_FALLBACK_TOKENS
    page = notes.fill(
        "block size", page, np.full(len(pools), largest_page), f"block size is not known: {largest_page:g} is taken"
    )

    with np.errstate(divide="ignore", invalid="ignore"):
        # A decode pool counts requests as waiting whose room is allocated already: their KV is on its way.
        travelling_count = np.where(role == DECODE, np.nan_to_num(column("queue_transfer_count")), 0.0)
        roomless = np.maximum(waiting - travelling_count, 0.0)
        sequences = np.nan_to_num(running) + travelling_count
        held = np.where(sequences > 0.0, used / sequences, mean_prompt + mean_output)
        said = part("queued_tokens")
        # A backlog in tokens is believed; requests that wait while it reads 0 or nothing are counted at the mean held.
        guessed = np.where((roomless > 0.0) & ~(said > 0.0), roomless, np.nan)
        queued = queued_need_tokens(said, guessed, held)
        queued = np.where(roomless == 0.0, np.fmax(queued, 0.0), queued)
        uncached = column("waiting_uncached_tokens")
        silent = (waiting > 0.0) & ~(uncached > 0.0)
        uncached = np.where(silent, np.nan, np.where(waiting == 0.0, np.fmax(uncached, 0.0), uncached))
        uncached = notes.fill(
            "queue",
            uncached,
            np.where(silent, waiting * mean_prompt, np.nan),
            "waiting prompt tokens are estimated: requests waiting x mean prompt",
        )
        life_rate = _raw(pools, "prefill_uncached_tokens_total") / _raw(pools, "prefill_busy_s_total")
        life_step = _raw(pools, "decode_step_s_total") / _raw(pools, "decode_steps_total")
    serving = np.array([pool.is_serving for pool in pools], dtype=bool)
    speed = notes.fill(
        "prefill rate",
        rate("prefill_tokens_per_s"),
        np.where(np.isfinite(life_rate), life_rate, np.nan),
        "prefill rate is the mean over the worker's life: nothing was computed in the window",
    )
    speed = np.where(serving, speed, 0.0)
    step = notes.fill(
        "step time",
        rate("step_time_s"),
        np.where(np.isfinite(life_step) & (life_step > 0), life_step, np.nan),
        "step time is the mean over the worker's life: no step was counted in the window",
    )

    bytes_per_token = column("bytes_per_token")
    line = _label(pools, "link_bandwidth_bytes_per_s")
    moved = rate("transfer_bytes_per_s")
    moved = np.where(moved > 0.0, moved, np.nan)
    inflight = column("queue_inflight_count")
    by_law = rate("transfers_per_s") * rate("transfer_time_s")
    by_gauge = np.where(np.isnan(inflight) | (inflight >= BUSY_TRANSFER_COUNT), 1.0, np.nan)
    with np.errstate(invalid="ignore"):
        bandwidth = effective_bandwidth_bytes_per_s(line, moved, np.where(np.isnan(by_law), by_gauge, by_law))
    with np.errstate(invalid="ignore"):
        travelling = np.where(inflight == 0.0, 0.0, rate("transfer_drain_s") * bandwidth)
    travelling = notes.fill(
        "travelling",
        travelling,
        inflight * mean_prompt * bytes_per_token,
        "bytes on the link are estimated: transfers under way x mean prompt",
    )
    lost, survivors = _peers([pool.worker_id for pool in pools], role, committed, usable, failure_count)
    return FleetArrays(
        pools=pools,
        ids=tuple(pool.pool_id for pool in pools),
        role=role,
        is_scored=np.array([pool.state.is_scored for pool in pools], dtype=bool),
        is_serving=serving,
        is_credible=np.array([MATERIAL.isdisjoint(pool.reading.anomalies) for pool in pools], dtype=bool),
        is_gone=np.array([pool.state in _GONE for pool in pools], dtype=bool),
        is_draining=np.array([pool.labels.get("draining") == "true" for pool in pools], dtype=bool),
        models=tuple(pool.model or pool.labels.get("model") for pool in pools),
        tenants=tuple(_allow_list(pool.labels.get("tenants", "")) for pool in pools),
        retracted_count=column("queue_retracted_count"),
        pair_labels=_numbered(pools),
        age_s=np.array([np.nan if pool.age_s is None else pool.age_s for pool in pools], dtype=np.float64),
        page_tokens=page,
        bytes_per_token=bytes_per_token,
        usable_tokens=usable,
        used_tokens=used,
        active_tokens=notes.fill("active", part("active_tokens"), used, "active is not told apart: used is taken"),
        prefix_tokens=part("prefix_tokens"),
        available_tokens=available,
        reserved_tokens=notes.fill(
            "reserved", reserved, np.zeros(len(pools)), "reserved is not known: only our own leases are counted"
        ),
        committed_tokens=committed,
        queued_tokens=queued,
        uncached_tokens=uncached,
        arriving_tokens=part("in_flight_tokens"),
        handed_over_ratio=_handed_over(inflight[role == PREFILL], column("queue_transfer_count")[role == DECODE]),
        net_tokens_per_s=rate("net_tokens_per_s"),
        net_std_tokens_per_s=rate("net_std_tokens_per_s"),
        prefill_tokens_per_s=speed,
        mean_prompt_tokens=mean_prompt,
        mean_output_tokens=mean_output,
        step_time_s=step,
        mean_batch_count=rate("mean_batch_count"),
        finished_per_s=rate("finished_per_s"),
        running_count=running,
        waiting_count=waiting,
        max_running_count=column("max_running_count"),
        line_bytes_per_s=line,
        bandwidth_bytes_per_s=bandwidth,
        travelling_bytes=travelling,
        generated_tokens_per_s=np.where(
            np.isnan(rate("generated_tokens_per_s")),
            _raw(pools, "generated_tokens_per_s"),
            rate("generated_tokens_per_s"),
        ),
        peer_lost_tokens=lost,
        survivor_usable_tokens=survivors,
        notes=notes,
    )


_CACHE_SIZE: Final = 8
_cache: OrderedDict[tuple[int, int], tuple[FleetSnapshot, FleetArrays]] = OrderedDict()
_cache_lock = threading.Lock()


def arrays_of(fleet: FleetSnapshot, failure_count: int = 1) -> FleetArrays:
    """
    Return the columns of a snapshot, built once for each of the last few snapshots.

    The cache holds the snapshot itself, so its identity cannot be taken by another one meanwhile.
    """
    key = (id(fleet), failure_count)
    with _cache_lock:
        hit = _cache.get(key)
        if hit is not None:
            _cache.move_to_end(key)
            return hit[1]
    built = build_arrays(fleet, failure_count)
    with _cache_lock:
        _cache[key] = (fleet, built)
        while len(_cache) > _CACHE_SIZE:
            _cache.popitem(last=False)
    return built
