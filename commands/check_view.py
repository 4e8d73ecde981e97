"""
What `kvscope check` found out, as the object of `--json` and as text for a terminal.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from scoring.capacity import WORDS
from scoring.histogram import Buckets, difference, quantile
from scoring.model import (
    Figure,
    Finding,
    PoolReading,
    PoolSnapshot,
    RouterWorker,
    Severity,
    SourceState,
    derived,
    measured,
    signal_names,
    unknown,
)
from scoring.snapshot_file import COUNTS, FIGURES

EXIT_UNDERSTOOD, EXIT_NOT_UNDERSTOOD, EXIT_NOT_REACHED = 0, 1, 2

_RATES: Final = (
    "growth_tokens_per_s",
    "release_tokens_per_s",
    "net_tokens_per_s",
    "step_time_s",
    "mean_batch_count",
    "prefill_tokens_per_s",
    "prefill_duty_ratio",
    "generated_tokens_per_s",
    "prefix_hit_ratio",
    "transfer_bytes_per_s",
    "transfer_drain_s",
    "retracted_per_s",
    "ttft_mean_s",
    "itl_mean_s",
)
# Figures of other pools and of the engine's own words, shown as read off where they exist.
_AS_READ: Final = (
    *(name for name in signal_names() if name.startswith(("window_", "state_", "offload_"))),
    "reported_usage_ratio",
    "reported_hit_ratio",
    "transfer_reported_bytes_per_s",
)


@dataclass(slots=True)
class Checked:
    """
    Everything one check found out.

    Attributes:
        state: Of the worker: its pools' worst, or why there are none.
        first: DP rank -> the first of several readings: what its counters are differenced from.
        asked: One line a question: path, status or failure, size.
    """

    source: str
    engine: str = ""
    version: str | None = None
    state: SourceState = SourceState.DOWN
    detail: str = ""
    findings: tuple[Finding, ...] = ()
    pools: tuple[PoolSnapshot, ...] = ()
    first: dict[int, PoolReading] = field(default_factory=dict)
    router_workers: tuple[RouterWorker, ...] = ()
    asked: list[str] = field(default_factory=list)
    facts: Mapping[str, str] = field(default_factory=dict)
    expected_rank_count: int | None = None
    rejected_count: int = 0
    ignored_count: int = 0
    exit_status: int = EXIT_NOT_REACHED


def figures_of(pool: PoolSnapshot, first: PoolReading | None = None) -> dict[str, Figure]:
    """Return every figure of a pool under its word with the unit last; `first`: an older reading to difference."""
    figures = {name: getattr(pool.composition, name) for name in WORDS}
    figures.update({name: getattr(pool, name) for name in (*COUNTS, *FIGURES)})
    figures.update({name: getattr(pool.rates, name) for name in _RATES})
    for name in _AS_READ:
        value = getattr(pool.reading, name)
        if value is not None:
            figures[name] = measured(value, "as the engine reports it")
    for word in ("ttft", "itl"):
        last: Buckets | None = getattr(pool.reading, f"{word}_buckets")
        if last is not None:
            before: Buckets | None = getattr(first, f"{word}_buckets", None)
            observed = difference(before, last)
            span = "since the first answer" if before is not None else "over the worker's life"
            for ratio in (0.5, 0.95, 0.99):
                figure = quantile(observed, ratio)
                figures[f"{word}_p{100 * ratio:.0f}_s"] = replace(figure, reason=f"{span}, {figure.reason}")
    has_time = pool.reading.reported_at_s is not None
    figures["reported_age_s"] = (
        derived(pool.age_s, pool.state_reason) if has_time else unknown("the engine gives no time of its own")
    )
    return figures


def as_json(checked: Checked) -> dict[str, Any]:
    """Return the object that `--json` prints."""
    return {
        "source": checked.source,
        "engine": checked.engine or None,
        "version": checked.version,
        "state": checked.state.value,
        "detail": checked.detail,
        "asked": checked.asked,
        "expected_rank_count": checked.expected_rank_count,
        "rejected_count": checked.rejected_count,
        "ignored_count": checked.ignored_count,
        "findings": [
            {"code": found.code, "text": found.text, "severity": found.severity.value, "dp_rank": found.dp_rank}
            for found in checked.findings
        ],
        "pools": [
            {
                "dp_rank": pool.dp_rank,
                "role": pool.role.value,
                "model": pool.model,
                "state": pool.state.value,
                "is_serving": pool.is_serving,
                "anomalies": list(pool.reading.anomalies),
                **{name: _figure(figure) for name, figure in figures_of(pool, checked.first.get(pool.dp_rank)).items()},
            }
            for pool in checked.pools
        ],
        "router_workers": [
            {
                "url": worker.url,
                "dp_rank": worker.dp_rank,
                "role": worker.role.value,
                "is_healthy": worker.is_healthy,
                "load_count": worker.load_count,
                "load_tokens": worker.load_tokens,
            }
            for worker in checked.router_workers
        ],
        "facts": dict(checked.facts),
    }


def _figure(figure: Figure) -> dict[str, Any]:
    out: dict[str, Any] = {"value": figure.value, "provenance": figure.provenance.value, "reason": figure.reason}
    if figure.low is not None or figure.high is not None:
        out["low"], out["high"] = figure.low, figure.high
    return out


def as_text(checked: Checked) -> str:
    """Return what an operator reads at a glance: state first, then what is wrong, then the figures."""
    head = f"{checked.source}: {checked.state.value.replace('_', ' ')}"
    if checked.engine:
        head += f", {checked.engine} {checked.version or '(version unknown)'}"
    lines = [head]
    if checked.detail:
        lines.append(f"  {checked.detail}")
    lines += [f"  asked {line}" for line in checked.asked]
    if checked.rejected_count:
        lines.append(f"  {checked.rejected_count} rows or lines not understood, {checked.ignored_count} not needed")
    if checked.findings:
        lines.append("findings")
        for found in sorted(checked.findings, key=lambda found: list(Severity).index(found.severity), reverse=True):
            rank = f" (rank {found.dp_rank})" if found.dp_rank is not None else ""
            lines.append(f"  {found.severity.value:7} {found.code}{rank}: {found.text}")
    for pool in checked.pools:
        serving = "" if pool.is_serving else ", not serving"
        lines.append(f"pool {pool.dp_rank}: {pool.role.value}, {pool.state.value.replace('_', ' ')}{serving}"
                     + (f", {pool.model}" if pool.model else ""))  # fmt: skip
        figures = figures_of(pool, checked.first.get(pool.dp_rank))
        known = {name: figure for name, figure in figures.items() if figure.provenance.value != "unknown"}
        for name, figure in known.items():
            lines.append(f"  {name:28} {_shown(figure):>22}  {figure.provenance.value:9}  {figure.reason}")
        missing = [name for name in figures if name not in known]
        if missing:
            lines.append(f"  unknown: {', '.join(missing)}")
    for worker in checked.router_workers:
        health = {True: "healthy", False: "not healthy", None: "health unknown"}[worker.is_healthy]
        rank = f" rank {worker.dp_rank}" if worker.dp_rank is not None else ""
        loads = [f"{worker.load_count:.0f} requests"] if worker.load_count is not None else []
        loads += [f"{worker.load_tokens:.0f} tokens"] if worker.load_tokens is not None else []
        lines.append(
            f"router sees {worker.url}{rank}: {worker.role.value}, {health}, load {' '.join(loads) or 'unknown'}"
        )
    return "\n".join(lines)


def _shown(figure: Figure) -> str:
    def number(value: float) -> str:
        return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.4g}"

    if figure.value is not None:
        return number(figure.value)
    low = number(figure.low) if figure.low is not None else "?"
    high = number(figure.high) if figure.high is not None else "?"
    return f"{low} to {high}"
