"""
Flows of a pool over a recent window, from counters where there are counters.

A counter's difference is exact; a counter that falls means the worker restarted, and then only what it counted
since is known (Prometheus's `increase` does the same). A gauge polled now and then gives the net change and nothing
gross. One sample gives no flow at all: means over the worker's life stand in where they are a speed of the machine
(prompt tokens per busy second, seconds per step), never where they are traffic.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scoring.model import Figure, FloatArray, PoolHistory, PoolRates, Role, derived, estimated, measured, unknown

MIN_PREFILL_BUSY_S: Final = 0.05
"""Less busy time than this in the window is too little to take a speed from (chosen)."""
MIN_PREFILL_TOKENS: Final = 64.0
"""Fewer prompt tokens than this in the window likewise (one page of most engines)."""

_SINGLE: Final = "a single sample: no difference to take"


@dataclass(frozen=True, slots=True)
class Increase:
    """
    What a group of counters that live and die together counted in a window.

    Attributes:
        amounts: One increase a counter, >= 0.
        elapsed_s: Time between the first and the last sample used.
        reset_count: Restarts seen in between; the amounts are then lower bounds.
        sample_count: Samples used.
    """

    amounts: tuple[float, ...]
    elapsed_s: float
    reset_count: int
    sample_count: int


def increase(at_s: FloatArray, *counters: FloatArray) -> Increase | None:
    """
    Return what `counters` counted between the first and the last sample in which all of them are known.

    A fall of any one of them is a restart of all: the amount since is then the value itself. None with fewer than
    two such samples or no time between them.
    """
    table = np.array((at_s, *counters))
    known = np.isfinite(table).all(axis=0)
    if not known.all():
        table = table[:, known]
    if table.shape[1] < 2:
        return None
    elapsed_s = float(table[0, -1] - table[0, 0])
    if elapsed_s <= 0:
        return None
    counted = table[1:]
    steps = counted[:, 1:] - counted[:, :-1]
    is_reset = (steps < 0).any(axis=0)
    if is_reset.any():
        steps = np.where(is_reset, counted[:, 1:], steps)
    return Increase(
        amounts=tuple(steps.sum(axis=1).tolist()),
        elapsed_s=elapsed_s,
        reset_count=int(is_reset.sum()),
        sample_count=table.shape[1],
    )


def slope(at_s: FloatArray, values: FloatArray) -> tuple[float, float] | None:
    """
    Return the trend of a gauge per second (least squares) and the deviation of its change over one second.

    Samples of the same instant count once. None with fewer than two samples at different instants. The deviation
    is that of the residual steps scaled to one second, as for a random walk; 0 with two samples.
    """
    known = np.isfinite(at_s) & np.isfinite(values)
    times, gauge = at_s[known], values[known]
    if times.size:
        keep = np.append(np.diff(times) > 0, True)
        times, gauge = times[keep], gauge[keep]
    if times.size < 2:
        return None
    centred = times - times.mean()
    trend = float((centred * (gauge - gauge.mean())).sum() / (centred * centred).sum())
    gaps = np.diff(times)
    residual = (np.diff(gauge) - trend * gaps) / np.sqrt(gaps)
    deviation = float(np.sqrt(np.mean(residual * residual))) if residual.size > 1 else 0.0
    return trend, deviation


INFLATED_RATIO: Final = 0.05
"""Lookups beyond the prompt tokens, as a share of all, that are repeats and no skew between two counters. Chosen."""


_READ: Final = (
    "reported_at_s",
    "used_tokens",
    "queue_bootstrap_count",
    "queue_inflight_count",
    "transfers_total",
    "finished_total",
    "retracted_total",
    "evicted_tokens_total",
    "transfer_bytes_total",
    "transfer_latency_s_total",
    "prompt_tokens_total",
    "generated_tokens_total",
    "ttft_s_total",
    "ttft_count_total",
    "itl_s_total",
    "itl_count_total",
    "prefill_uncached_tokens_total",
    "prefill_busy_s_total",
    "decode_generated_tokens_total",
    "decode_steps_total",
    "decode_step_s_total",
    "decode_batch_sum_total",
    "generated_tokens_per_s",
    "prefix_hit_tokens_total",
    "prefix_query_tokens_total",
)
"""The signals that flows are taken from."""


@dataclass(frozen=True, slots=True)
class _Column:
    """What a window needs to know of one counter or gauge; most questions are answered without the samples."""

    values: FloatArray
    is_known: bool
    """All samples are."""
    has_fallen: bool
    first: float
    last: float


class _Window:
    """
    The columns of a pool between two instants, with the clock that fits the figures.

    All signals of a pool are summed up in a few calls on one table: a thousand pools are judged each second.
    """

    def __init__(self, history: PoolHistory, at_s: float, window_s: float) -> None:
        times = np.asarray(history.at_s, dtype=np.float64)
        begin, end = times.searchsorted(at_s - window_s, side="left"), times.searchsorted(at_s, side="right")
        self.received_at_s = times[begin:end]
        self._absent: FloatArray = np.full(self.received_at_s.size, np.nan)
        # A name that is not in `_READ` is a defect here and raises; one that is not known in the window is None.
        self._columns: dict[str, _Column | None] = dict.fromkeys(_READ)
        if self.received_at_s.size:
            self._columns.update(self._summed_up(history, int(begin), int(end)))
        stamps = self._columns["reported_at_s"]
        # Two polls may bring the same published figures: their own time says so, ours does not.
        is_own = stamps is not None and stamps.is_known and not stamps.has_fallen
        self.figures_at_s = stamps.values if stamps is not None and is_own else self.received_at_s
        self._elapsed_s = float(self.figures_at_s[-1] - self.figures_at_s[0]) if self.received_at_s.size else 0.0

    @staticmethod
    def _summed_up(history: PoolHistory, begin: int, end: int) -> dict[str, _Column]:
        given = [(name, column) for name in _READ if (column := history.columns.get(name)) is not None]
        if not given:
            return {}
        table: NDArray[np.float64] = np.array([column[begin:end] for _, column in given], dtype=np.float64)
        known = np.isfinite(table)
        is_any: list[bool] = np.any(known, axis=1).tolist()
        is_all: list[bool] = np.all(known, axis=1).tolist()
        has_fallen: list[bool] = np.any(table[:, 1:] < table[:, :-1], axis=1).tolist()
        first, last = table[:, 0].tolist(), table[:, -1].tolist()
        return {
            name: _Column(table[row], is_all[row], has_fallen[row], first[row], last[row])
            for row, (name, _) in enumerate(given)
            if is_any[row]
        }

    def column(self, name: str) -> FloatArray:
        found = self._columns[name]
        return self._absent if found is None else found.values

    def is_absent(self, name: str) -> bool:
        """Say whether the window holds no value of a signal: most engines report few of them."""
        return self._columns[name] is None

    def last(self, name: str) -> float | None:
        """Return the newest value in the window, unknown when the newest sample does not carry it."""
        found = self._columns[name]
        return found.last if found is not None and math.isfinite(found.last) else None

    def increase(self, *names: str) -> Increase | None:
        found = [column for name in names if (column := self._columns[name]) is not None]
        if len(found) < len(names):
            return None
        if any(column.has_fallen or not column.is_known for column in found):
            return increase(self.figures_at_s, *(column.values for column in found))
        # Known throughout and never falling: the sum of the steps is the last less the first.
        if self._elapsed_s <= 0:
            return None
        return Increase(
            amounts=tuple(column.last - column.first for column in found),
            elapsed_s=self._elapsed_s,
            reset_count=0,
            sample_count=self.received_at_s.size,
        )


def pool_rates(history: PoolHistory, at_s: float, window_s: float) -> PoolRates:
    """
    Return the flows of a pool over the `window_s` seconds before `at_s`.

    Growth and release are gross and >= 0; growth - release = net exactly where all three are known.
    """
    if window_s <= 0:
        raise ValueError(f"window_s: {window_s} is not above 0")
    window = _Window(history, at_s, window_s)
    role = history.last.role
    net, deviation = _net(window)
    growth, release = _gross(window, net, role)
    step_time, mean_batch = _steps(window)
    transfers = _rate(window, "transfers_total", "transfers")
    return PoolRates(
        growth_tokens_per_s=growth,
        release_tokens_per_s=release,
        net_tokens_per_s=net,
        net_std_tokens_per_s=deviation,
        prefill_tokens_per_s=_prefill_speed(window),
        prefill_duty_ratio=_duty(window),
        step_time_s=step_time,
        mean_batch_count=mean_batch,
        generated_tokens_per_s=_generated(window),
        finished_per_s=_rate(window, "finished_total", "requests finished"),
        retracted_per_s=_rate(window, "retracted_total", "requests retracted"),
        evicted_tokens_per_s=_rate(window, "evicted_tokens_total", "tokens evicted"),
        transfer_bytes_per_s=_rate(window, "transfer_bytes_total", "KV bytes sent"),
        transfer_time_s=_mean(window, "transfer_latency_s_total", "transfers_total", "seconds per transfer"),
        prefix_hit_ratio=_ratio(window),
        mean_prompt_tokens=_mean(window, "prompt_tokens_total", "finished_total", "prompt tokens per finished request"),
        mean_output_tokens=_mean(
            window, "generated_tokens_total", "finished_total", "output tokens per finished request"
        ),
        ttft_mean_s=_mean(window, "ttft_s_total", "ttft_count_total", "seconds to the first token"),
        itl_mean_s=_mean(window, "itl_s_total", "itl_count_total", "seconds between tokens"),
        window_s=window_s,
        transfers_per_s=transfers,
        transfer_drain_s=_drain(window, transfers, role),
        bootstrap_net_per_s=_queue_net(window, "queue_bootstrap_count"),
    )


def _note(found: Increase) -> str:
    resets = f", {found.reset_count} restart(s): at least" if found.reset_count else ""
    return f"over {found.elapsed_s:.1f} s, {found.sample_count} samples{resets}"


def _rate(window: _Window, name: str, words: str) -> Figure:
    found = window.increase(name)
    if found is None:
        return unknown(_missing(window, (name,)))
    return derived(found.amounts[0] / found.elapsed_s, f"{words}, counter difference {_note(found)}")


def _missing(window: _Window, names: Sequence[str]) -> str:
    """Return why a difference of `names` is not known."""
    if any(window.is_absent(name) for name in names):
        return f"the source does not report {' and '.join(names)}"
    return _SINGLE


def _net(window: _Window) -> tuple[Figure, Figure]:
    """Return the net change of what is held, and its deviation over one second."""
    used = window.column("used_tokens")
    found = slope(window.figures_at_s, used)
    if found is None:
        reason = _missing(window, ("used_tokens",))
        return unknown(reason), unknown(reason)
    reason = "trend of the used gauge: net only"
    return derived(found[0], reason), estimated(found[1], "scatter of the used gauge around its trend")


def _gross(window: _Window, net: Figure, role: Role) -> tuple[Figure, Figure]:
    """
    Return growth and release, from what counters say was added.

    Unified: prompt tokens computed plus tokens generated. Prefill: prompt tokens computed. Decode: tokens generated
    plus the prompts of requests that finished (in a steady state as many arrive). Prefix hits that lock cached
    tokens are not counted by any engine, so growth is a low estimate; it is never below the net change.
    """
    if net.value is None:
        return unknown(net.reason), unknown(net.reason)
    parts = {
        Role.PREFILL: (("prefill_uncached_tokens_total",),),
        Role.DECODE: (("decode_generated_tokens_total", "generated_tokens_total"), ("prompt_tokens_total",)),
    }.get(role, (("prefill_uncached_tokens_total",), ("decode_generated_tokens_total", "generated_tokens_total")))
    total, is_any = 0.0, False
    for names in parts:
        founds = [found for name in names if (found := window.increase(name)) is not None]
        if founds:
            total += max(found.amounts[0] / found.elapsed_s for found in founds)
            is_any = True
    if not is_any:
        reason = "no counter says what was added: a gauge gives the net change only"
        return unknown(reason), unknown(reason)
    growth = max(total, net.value, 0.0)
    return (
        estimated(
            growth, "tokens computed and generated, from counters; prefix hits are not in it", low=max(net.value, 0.0)
        ),
        estimated(growth - net.value, "growth less net change"),
    )


def _prefill_speed(window: _Window) -> Figure:
    """Return prompt tokens computed per busy second: of the window, else of the worker's life."""
    found = window.increase("prefill_uncached_tokens_total", "prefill_busy_s_total")
    if found is not None:
        tokens, busy_s = found.amounts
        if busy_s >= MIN_PREFILL_BUSY_S and tokens >= MIN_PREFILL_TOKENS:
            return derived(tokens / busy_s, f"prompt tokens / busy seconds, {_note(found)}")
    tokens_total, busy_total = window.last("prefill_uncached_tokens_total"), window.last("prefill_busy_s_total")
    if tokens_total is None or busy_total is None:
        return unknown(_missing(window, ("prefill_uncached_tokens_total", "prefill_busy_s_total")))
    if busy_total < MIN_PREFILL_BUSY_S or tokens_total < MIN_PREFILL_TOKENS:
        return unknown("too few prompts computed so far to take a speed from")
    return derived(tokens_total / busy_total, "prompt tokens / busy seconds over the worker's life")


def _duty(window: _Window) -> Figure:
    found = window.increase("prefill_busy_s_total")
    if found is None:
        return unknown(_missing(window, ("prefill_busy_s_total",)))
    return derived(min(1.0, found.amounts[0] / found.elapsed_s), f"prefill busy seconds / seconds, {_note(found)}")


def _steps(window: _Window) -> tuple[Figure, Figure]:
    """Return seconds per decode step and the mean batch: of the window, else of the worker's life."""
    names = ("decode_steps_total", "decode_step_s_total", "decode_batch_sum_total")
    found = window.increase(*names)
    if found is not None and found.amounts[0] > 0:
        steps, seconds, batch = found.amounts
        note = f"decode_moments difference, {steps:.0f} steps {_note(found)}"
        return derived(seconds / steps, note), derived(batch / steps, note)
    steps_total, seconds_total, batch_total = (window.last(name) for name in names)
    if steps_total is None or seconds_total is None or batch_total is None:
        reason = _missing(window, names)
        return unknown(reason), unknown(reason)
    if steps_total <= 0:
        return unknown("no decode step counted yet"), unknown("no decode step counted yet")
    reason = f"mean over the worker's life ({steps_total:.0f} steps)"
    return derived(seconds_total / steps_total, reason), unknown("no decode step in the window")


def _generated(window: _Window) -> Figure:
    found = window.increase("generated_tokens_total")
    if found is not None:
        return derived(found.amounts[0] / found.elapsed_s, f"output tokens, counter difference {_note(found)}")
    counted = window.increase("decode_generated_tokens_total")
    if counted is not None:
        value = counted.amounts[0] / counted.elapsed_s
        return estimated(value, f"tokens of counted decode steps, at least: {_note(counted)}", low=value)
    return measured(window.last("generated_tokens_per_s"), "the engine's own gauge, as reported")


def _mean(window: _Window, sum_name: str, count_name: str, words: str) -> Figure:
    """Return sum / count of a pair of counters over the window, else over the worker's life (a trait, not a flow)."""
    found = window.increase(sum_name, count_name)
    if found is not None and found.amounts[1] > 0:
        return derived(found.amounts[0] / found.amounts[1], f"{words}, {_note(found)}")
    total, count = window.last(sum_name), window.last(count_name)
    if total is None or count is None:
        return unknown(_missing(window, (sum_name, count_name)))
    if count <= 0:
        return unknown("none counted yet")
    is_flow = sum_name.startswith(("ttft", "itl"))
    if is_flow and found is not None:
        return unknown("no request in the window")
    return estimated(total / count, f"{words}, over the worker's life")


def _ratio(window: _Window) -> Figure:
    found = window.increase("prefix_hit_tokens_total", "prefix_query_tokens_total")
    if found is None:
        return unknown(_missing(window, ("prefix_hit_tokens_total", "prefix_query_tokens_total")))
    hits, queries = found.amounts
    if queries <= 0:
        return unknown("no prompt was looked up in the window")
    prompts = window.increase("prompt_tokens_total")
    if prompts is not None and window.increase("retracted_total") is not None:
        # vLLM looks a preempted or retried request up again, and it then hits its own blocks (vllm-project/vllm#25780).
        repeated = queries - prompts.amounts[0]
        if repeated > INFLATED_RATIO * queries and prompts.amounts[0] > 0:
            high = min(1.0, max(0.0, hits - repeated) / prompts.amounts[0])
            reason = f"inflated: {repeated:.0f} of {queries:.0f} tokens looked up are repeats; hits {hits:.0f}"
            return estimated(None, f"{reason}, {_note(found)}", low=0.0, high=high)
    return derived(min(1.0, hits / queries), f"prefix hits / looked up, in tokens, {_note(found)}")


def _drain(window: _Window, transfers: Figure, role: Role) -> Figure:
    if role not in (Role.PREFILL, Role.UNKNOWN):
        return unknown("only a prefill worker sends")
    waiting = window.last("queue_inflight_count")
    if waiting is None:
        return unknown("the source does not report transfers waiting")
    if waiting == 0:
        return derived(0.0, "no transfer is waiting")
    if transfers.value is None:
        return unknown(transfers.reason)
    if transfers.value <= 0:
        return unknown(f"{waiting:.0f} transfers wait and none finished in the window: unbounded")
    return estimated(waiting / transfers.value, f"{waiting:.0f} waiting / {transfers.value:.2f} finished per second")


def _queue_net(window: _Window, name: str) -> Figure:
    values = window.column(name)
    known = np.isfinite(values) & np.isfinite(window.received_at_s)
    if int(known.sum()) < 2:
        return unknown(_missing(window, (name,)))
    times, queue = window.received_at_s[known], values[known]
    elapsed_s = float(times[-1] - times[0])
    if elapsed_s <= 0:
        return unknown(_SINGLE)
    return derived(float(queue[-1] - queue[0]) / elapsed_s, f"last less first over {elapsed_s:.1f} s")
