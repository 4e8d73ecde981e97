"""
What a pool's recent past says beyond its figures: sentences with the numbers, each with a code that never changes.

`pool_findings` looks at one pool, `fleet_findings` at pools beside each other. Codes are explained in
docs/findings.md. A rule needs evidence over time where one moment could be innocent: a unified worker that is just
computing a prompt also shows held tokens and nothing running.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scoring.bottleneck import AMPLE_RATIO, kv_binds
from scoring.model import (
    Composition,
    Finding,
    FloatArray,
    Link,
    PoolHistory,
    PoolRates,
    PoolReading,
    PoolSnapshot,
    Role,
    Severity,
)

HANDSHAKE_LIMIT_S: Final = 300.0
"""After this long in the bootstrap queue SGLang fails a request (engine default)."""
MIN_STUCK_REQUESTS: Final = 8
"""Fewer waiting handshakes than this are an ordinary queue (chosen)."""
STUCK_SPAN_S: Final = 3.0
"""A queue must have grown for this long without progress (chosen: three one-second polls)."""
HELD_SPAN_S: Final = 5.0
"""Tokens must have been held with nothing running for this long: one long prompt may take seconds (chosen)."""
OVERHEAD_RATIO: Final = 0.05
"""Transfers that wait while the link is used less than this are slowed by their number, not their size (chosen)."""
MIN_WAITING_TRANSFERS: Final = 8
WINDOW_FULL_RATIO: Final = 0.95
FULL_RATIO: Final = 0.9
"""Committed above this is full for the purpose of naming what holds prefill up (chosen)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What the evidence of one pool comes to.

    Attributes:
        held_tokens: Tokens held with nothing running that explains them, or None.
        is_stuck: Handshakes queue and nothing is computed.
    """

    findings: tuple[Finding, ...]
    held_tokens: float | None = None
    is_stuck: bool = False


class Past:
    """The recent columns of one pool between two instants."""

    def __init__(self, history: PoolHistory, at_s: float, window_s: float) -> None:
        """`window_s` seconds before `at_s`."""
        times = np.asarray(history.at_s, dtype=np.float64)
        self.reading: PoolReading = history.last
        self._columns = history.columns
        self._part = slice(
            int(np.searchsorted(times, at_s - window_s, side="left")), int(np.searchsorted(times, at_s, side="right"))
        )
        self.at_s = times[self._part]

    def column(self, name: str) -> FloatArray:
        """Return a signal of the window, NaN where unknown."""
        values = self._columns.get(name)
        if values is None:
            return np.full(self.at_s.size, np.nan)
        return np.asarray(values, dtype=np.float64)[self._part]

    def counted(self, name: str) -> float | None:
        """Return what a counter gained between the first and last known sample; None when unknown or restarted."""
        values = self.column(name)
        known = values[np.isfinite(values)]
        if known.size < 2 or (np.diff(known) < 0).any():
            return None
        return float(known[-1] - known[0])


def pool_findings(
    past: Past, composition: Composition, rates: PoolRates, line_rate_bytes_per_s: float | None
) -> Verdict:
    """Return what one pool's recent past says."""
    findings: list[Finding] = []
    reading = past.reading
    held = _held(past, findings)
    is_stuck = _handshake(past, rates, findings)
    _slots(reading, composition, findings)
    if (bound := kv_binds(reading, composition, past.counted("retracted_total"))) is not None:
        findings.append(bound)
    _transfers(past, rates, line_rate_bytes_per_s, findings)
    _refused(reading, findings)
    if _restarted(past):
        text = "Counters fell: the worker restarted within the window; flows count from its start."
        findings.append(_finding("restarted", text, reading, Severity.INFO))
    return Verdict(tuple(findings), held_tokens=held, is_stuck=is_stuck)


def _finding(code: str, text: str, reading: PoolReading, severity: Severity = Severity.WARNING) -> Finding:
    return Finding(code=code, text=text, severity=severity, dp_rank=reading.dp_rank)


def _held(past: Past, findings: list[Finding]) -> float | None:
    """Find tokens held although nothing runs, waits or travels, over a time that no prompt explains."""
    used = past.column("used_tokens")
    busy = np.zeros(used.size)
    for name in ("waiting_count", "queue_inflight_count", "queue_transfer_count", "queue_grammar_count"):
        busy = busy + np.nan_to_num(past.column(name))
    running = past.column("running_count")
    # A prefill worker reports no running count: its silence proves nothing.
    is_idle = (running == 0) & (busy == 0) & np.isfinite(used)
    if not is_idle.size or not is_idle[-1]:
        return None
    first = int(np.flatnonzero(~is_idle)[-1]) + 1 if (~is_idle).any() else 0
    holding = used[first:] > 0
    if not holding[-1]:
        return None
    since = first + (int(np.flatnonzero(~holding)[-1]) + 1 if (~holding).any() else 0)
    if used.size - since < 2 or past.at_s[-1] - past.at_s[since] < HELD_SPAN_S:
        return None
    held = float(used[-1])
    text = f"{held:.0f} tokens are held with nothing running, waiting or in transfer: a leak is likely."
    growth = float(used[-1] - used[since])
    finished = past.column("finished_total")[since:]
    usable = past.reading.usable_tokens
    if growth > 0 and np.isfinite(finished[[0, -1]]).all() and finished[-1] > finished[0] and usable is not None:
        each = growth / float(finished[-1] - finished[0])
        text += f" It grows by {each:.0f} tokens per request: full after {(usable - held) / each:.0f} more."
    elif growth > 0:
        text += f" It grew by {growth:.0f} tokens in {past.at_s[-1] - past.at_s[since]:.0f} s."
    findings.append(_finding("held-with-nothing-running", text, past.reading))
    return held


def _handshake(past: Past, rates: PoolRates, findings: list[Finding]) -> bool:
    """Find a pool whose handshake queue grows while nothing is computed, held or handed over."""
    reading = past.reading
    is_decode = reading.role is Role.DECODE
    name = "queue_prealloc_count" if is_decode else "queue_bootstrap_count"
    queue = past.column(name)
    known = np.flatnonzero(np.isfinite(queue))
    if reading.role is Role.UNIFIED or known.size < 3:
        return False
    span_s = float(past.at_s[known[-1]] - past.at_s[known[0]])
    last, growth = float(queue[known[-1]]), float(queue[known[-1]] - queue[known[0]])
    if span_s < STUCK_SPAN_S or last < MIN_STUCK_REQUESTS or growth <= 0:
        return False
    used = reading.used_tokens or 0.0
    if is_decode:
        is_idle = reading.running_count == 0 and used <= 0.02 * (reading.usable_tokens or 0.0)
        handing_over = reading.queue_transfer_count
        work = "nothing runs"
    else:
        duty, computed = rates.prefill_duty_ratio.value, past.counted("prefill_uncached_tokens_total")
        has_evidence = duty is not None or computed is not None
        is_idle = has_evidence and (duty is None or duty < 0.02) and (computed or 0.0) / span_s < 64.0
        handing_over = reading.queue_inflight_count
        work = f"{(computed or 0.0) / span_s:.0f} prompt tokens per second computed"
    if not is_idle or (handing_over or 0) * 4 >= last or (reading.queue_main_count or 0) > last / 4:
        return False
    other, room = ("prefill", "") if is_decode else ("decode", ", and has decode room")
    text = (
        f"The handshake with {other} does not complete: {last:.0f} requests wait for it "
        f"(+{growth / span_s:.1f} per second), {work}, {used:.0f} tokens used. Not idle: it takes no new work. "
        f"Is {other} reachable from it{room}? "
        f"The first requests fail about {HANDSHAKE_LIMIT_S:.0f} s after they arrived."
    )
    findings.append(_finding("handshake-not-completing", text, reading, Severity.ERROR))
    return True


def _slots(reading: PoolReading, composition: Composition, findings: list[Finding]) -> None:
    """Name request slots or state slots as what binds, where capacity is ample; and what a usage figure leaves out."""
    waiting, running, cap = reading.waiting_count, reading.running_count, reading.max_running_count
    available, usable = composition.available_tokens.value, composition.usable_tokens.value
    is_ample = available is not None and usable is not None and available > AMPLE_RATIO * usable
    if waiting and running is not None and cap is not None and cap > 0 and running >= cap and is_ample:
        text = (
            f"Request slots bind, not KV: {running:.0f} of {cap:.0f} requests run, {waiting:.0f} wait, "
            f"and {available:.0f} tokens are free or reclaimable."
        )
        if reading.state_free_count:
            text += f" {reading.state_free_count:.0f} of {reading.state_slot_count or 0:.0f} state slots stay unused."
        findings.append(_finding("slots-bind", text, reading))
    elif waiting and reading.state_free_count == 0 and not reading.state_prefix_count and is_ample:
        text = (
            f"State slots bind, not KV: all {reading.state_slot_count or 0:.0f} are held, {waiting:.0f} requests wait."
        )
        findings.append(_finding("slots-bind", text, reading))
    window = reading.window_usage_ratio
    if waiting and window is not None and window >= WINDOW_FULL_RATIO and is_ample:
        text = (
            f"The sliding-window pool binds, not the full one: it is {100 * window:.0f} % used, {waiting:.0f} requests "
            f"wait, and {available:.0f} tokens of the full pool are free or reclaimable."
        )
        findings.append(_finding("window-pool-binds", text, reading))
    state, usage = reading.state_usage_ratio, reading.reported_usage_ratio
    if state is not None and usage is not None and state > usage + 0.011:
        text = f"token_usage {usage:g} leaves out the state pool, which is at {state:g}: read them apart."
        findings.append(_finding("usage-leaves-out-state-pool", text, reading, Severity.INFO))
    parts = (reading.state_used_count, reading.state_prefix_count, reading.state_free_count)
    slots = reading.state_slot_count
    if slots is not None and all(part is not None for part in parts):
        missing = slots - sum(part for part in parts if part is not None)
        if 0 < missing <= slots / 2 and running == 0:
            text = f"{missing:.0f} of {slots:.0f} state slots are neither held, cached nor free."
            findings.append(_finding("state-slots-missing", text, reading))


def _speed(bytes_per_s: float) -> str:
    """Return a transfer speed in the unit that shows its digits: links carry GB/s, small models on TCP far less."""
    for size, unit, digits in ((1e9, "GB/s", 1), (1e6, "MB/s", 1), (1e3, "kB/s", 1)):
        if bytes_per_s >= 0.095 * size:
            return f"{bytes_per_s / size:.{digits if bytes_per_s >= size else 2}f} {unit}"
    return f"{bytes_per_s:.0f} B/s"


def _transfers(past: Past, rates: PoolRates, line_rate: float | None, findings: list[Finding]) -> None:
    """
    Judge transfers by what was moved; mark gauges that contradict it.

    The gauge is the last transfer's own speed, the volume a mean of many that may have run side by side: only when
    the fastest transfer reported, times the most in flight, cannot make up the volume is the gauge's clock wrong.
    """
    reading = past.reading
    moved, gauge = rates.transfer_bytes_per_s.value, reading.transfer_reported_bytes_per_s
    fastest = _largest(past.column("transfer_reported_bytes_per_s"), gauge or 0.0)
    side_by_side = max(1.0, _largest(past.column("queue_inflight_count"), reading.queue_inflight_count or 0.0))
    if gauge is not None and line_rate is not None and gauge > line_rate:
        text = (
            f"The engine reports {_speed(gauge)} per transfer on a link of {_speed(line_rate)}: "
            "impossible (all chunks' bytes over the last chunk's time). Not used."
        )
        findings.append(_finding("transfer-gauge-above-line-rate", text, reading))
    elif gauge is not None and moved and fastest * side_by_side < moved / 2:
        text = (
            f"The engine reports at most {_speed(fastest)} per transfer, {side_by_side:.0f} at a time, the volume "
            f"counter proves {_speed(moved)}: its clock runs past the transfer. Not used."
        )
        findings.append(_finding("transfer-gauge-below-volume", text, reading))
    inflight, drain = reading.queue_inflight_count, rates.transfer_drain_s.value
    if moved is None or inflight is None or inflight < MIN_WAITING_TRANSFERS or line_rate is None:
        return
    if moved < OVERHEAD_RATIO * line_rate and (drain is None or drain > 1.0):
        each = moved / rates.transfers_per_s.value if rates.transfers_per_s.value else None
        size = f" of {each / 2**20:.1f} MiB each" if each is not None else ""
        wait = f"{drain:.0f} s to drain" if drain is not None else "no end in sight"
        text = (
            f"{inflight:.0f} transfers{size} wait ({wait}) while the link carries {moved / 2**20:.1f} MiB/s, "
            f"{100 * moved / line_rate:.3g} % of its rate: overhead per transfer, not a full link. "
            "A larger page size sends fewer, larger pieces."
        )
        findings.append(_finding("transfer-overhead", text, reading))


def _largest(values: FloatArray, least: float) -> float:
    """Return the largest known value, at least `least`."""
    known = values[np.isfinite(values)]
    return max(least, float(known.max())) if known.size else least


def _refused(reading: PoolReading, findings: list[Finding]) -> None:
    """Say once per refused field that it is unknown, unless the dialect has said it already."""
    if reading.anomalies and not any(finding.code in _REFUSED_CODES for finding in reading.findings):
        text = f"Not credible, shown as unknown and not scored: {', '.join(reading.anomalies)}."
        findings.append(_finding("figure-not-credible", text, reading))


_REFUSED_CODES: Final = ("negative-usage", "negative-figure", "figure-not-credible")


def _restarted(past: Past) -> bool:
    for name in ("prefill_uncached_tokens_total", "decode_steps_total", "prompt_tokens_total"):
        values = past.column(name)
        known = values[np.isfinite(values)]
        if known.size >= 2 and (np.diff(known) < 0).any():
            return True
    return False


def line_rate(worker_id: str, links: Sequence[Link], labels: Mapping[str, str]) -> float | None:
    """Return the fastest line rate of the links that leave a worker, else its label's, or None when none is known."""
    rates = [
        link.bandwidth_bytes_per_s
        for link in links
        if link.source in (worker_id, "*") and link.bandwidth_bytes_per_s is not None
    ]
    if not rates:
        try:
            rates = [float(labels.get("link_bandwidth_bytes_per_s", ""))]
        except ValueError:
            return None
    return max(rates)


def decode_is_full(pools: Sequence[PoolSnapshot]) -> bool:
    """Say whether no decode pool that can be judged has room for what waits."""
    judged = [pool for pool in pools if pool.role is Role.DECODE and pool.state.is_scored]
    ratios = [ratio for pool in judged if (ratio := committed_ratio(pool)) is not None]
    return bool(ratios) and min(ratios) >= FULL_RATIO


def committed_ratio(pool: PoolSnapshot) -> float | None:
    """Return committed / usable of a pool, or None when either is unknown."""
    committed, usable = pool.composition.committed_tokens.value, pool.composition.usable_tokens.value
    return committed / usable if committed is not None and usable else None


def fleet_findings(pools: Sequence[PoolSnapshot]) -> list[Finding]:
    """Return what pools beside each other say."""
    found: list[Finding] = []
    scored = [pool for pool in pools if pool.state.is_scored]
    decode = [pool for pool in scored if pool.role is Role.DECODE]
    prefill = [pool for pool in scored if pool.role is Role.PREFILL]
    handshakes = sum(pool.queue_bootstrap_count.value or 0.0 for pool in prefill)
    ready = sum(pool.prealloc_ready_count.value or 0.0 for pool in decode)
    ratios = [ratio for pool in decode if (ratio := committed_ratio(pool)) is not None]
    if ratios and handshakes and (ready > 0 or decode_is_full(pools)) and float(np.median(ratios)) >= FULL_RATIO:
        usages = [
            pool.composition.used_tokens.value / pool.composition.usable_tokens.value
            for pool in decode
            if pool.composition.used_tokens.value is not None and pool.composition.usable_tokens.value
        ]
        text = (
            f"Decode room holds prefill up: {len(ratios)} decode pools are committed to "
            f"{100 * np.median(ratios):.0f} % (usage says {100 * np.median(usages):.0f} %), {ready:.0f} requests wait "
            f"there for room and {handshakes:.0f} wait on prefill for the same room. "
            "The two queues are the same requests: count them once."
        )
        found.append(Finding(code="decode-room-holds-prefill", text=text))
    left_out = [pool.pool_id for pool in scored if pool.composition.used_tokens.value is None]
    if left_out:
        text = (
            f"{len(scored) - len(left_out)} of {len(scored)} pools have a credible figure for tokens held; "
            f"left out of every minimum, mean and sum: {', '.join(left_out[:8])}{' ...' if len(left_out) > 8 else ''}."
        )
        found.append(Finding(code="pools-left-out", text=text))
    return found
