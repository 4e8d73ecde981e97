"""
Traffic made and traffic bent: synthetic generators, and filters, scaling and spreading of traces.

Everything is seeded by an explicit generator; the same arguments give the same traffic.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from scoring.model import FloatArray
from simulation.trace import Category, Trace, TraceReport, take
from simulation.traffic import IntArray, TrafficArrays

Arrivals = Literal["poisson", "gamma", "diurnal", "even"]
ARRIVALS: Final[tuple[Arrivals, ...]] = ("poisson", "gamma", "diurnal", "even")
REQUESTS_MAX: Final = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthMix:
    """
    One kind of request in a mix.

    Attributes:
        weight: Share of the requests, relative to the other kinds.
        prompt_median_tokens: Median prompt; lengths are lognormal, as served prompts are.
        prompt_sigma: Standard deviation of the logarithm; 0 makes every prompt the median.
        output_median_tokens: Median output.
        output_sigma: Standard deviation of its logarithm.
        tenant: Label of the kind.
        prefix_count: Different shared prefixes of this kind; 0 shares nothing.
        prefix_tokens: Length of a shared prefix, cut to whole hash blocks and to the prompt.
    """

    weight: float = 1.0
    prompt_median_tokens: float = 1024.0
    prompt_sigma: float = 0.8
    output_median_tokens: float = 256.0
    output_sigma: float = 0.7
    tenant: str = ""
    prefix_count: int = 0
    prefix_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """
    A recipe of synthetic traffic.

    Attributes:
        rate_per_s: Mean arrivals per second.
        duration_s: How long arrivals last.
        arrivals: "poisson"; "gamma" with `burstiness` (squared coefficient of variation of the gaps, 1 is Poisson);
            "diurnal" swings by `swing_ratio` around the mean over `period_s`; "even" spaces them equally.
        mixes: Kinds of requests.
        prompt_max_tokens: Longer draws are cut to this.
        output_max_tokens: Longer draws are cut to this.
        hash_block_tokens: Block of the prefix identities.
    """

    rate_per_s: float = 2.0
    duration_s: float = 300.0
    arrivals: Arrivals = "poisson"
    burstiness: float = 4.0
    swing_ratio: float = 0.6
    period_s: float = 600.0
    mixes: tuple[LengthMix, ...] = (LengthMix(),)
    prompt_max_tokens: int = 131_072
    output_max_tokens: int = 16_384
    hash_block_tokens: int = 64

    def __post_init__(self) -> None:
        for name, low, high in (
            ("rate_per_s", 0.0, 1e6),
            ("duration_s", 0.0, 1e8),
            ("burstiness", 0.0, 1e4),
            ("period_s", 0.0, 1e8),
        ):
            value = getattr(self, name)
            if not (np.isfinite(value) and low < value <= high):
                raise ValueError(f"{name} is {value}: must be above {low:g} and at most {high:g}")
        if not 0.0 <= self.swing_ratio <= 1.0:
            raise ValueError(f"swing_ratio is {self.swing_ratio}: must be between 0 and 1")
        if self.arrivals not in ARRIVALS:
            raise ValueError(f"arrivals is {self.arrivals!r}: must be one of {', '.join(ARRIVALS)}")
        if not self.mixes or any(mix.weight <= 0 for mix in self.mixes):
            raise ValueError("mixes must hold at least one kind, each with a weight above 0")
        if self.rate_per_s * self.duration_s > REQUESTS_MAX:
            raise ValueError(
                f"rate_per_s * duration_s is {self.rate_per_s * self.duration_s:.3g} requests: at most {REQUESTS_MAX:,}"
            )


def _arrivals(recipe: Synthesis, rng: np.random.Generator) -> FloatArray:
    expected = recipe.rate_per_s * recipe.duration_s
    if recipe.arrivals == "even":
        return np.arange(int(expected)) / recipe.rate_per_s
    if recipe.arrivals == "gamma":
        shape = 1.0 / recipe.burstiness
        count = int(expected + 10.0 * np.sqrt(expected * max(1.0, recipe.burstiness)) + 20)
        gaps = rng.gamma(shape, 1.0 / (shape * recipe.rate_per_s), count)
        times = np.cumsum(gaps)
        return times[times < recipe.duration_s]
    count = rng.poisson(expected)
    times = np.sort(rng.uniform(0.0, recipe.duration_s, count))
    if recipe.arrivals == "diurnal":
        # Thinning keeps the process Poisson with the swinging rate (Lewis and Shedler 1979).
        peak = 1.0 + recipe.swing_ratio
        count = rng.poisson(expected * peak)
        times = np.sort(rng.uniform(0.0, recipe.duration_s, count))
        level = 1.0 + recipe.swing_ratio * np.sin(2.0 * np.pi * times / recipe.period_s)
        times = times[rng.uniform(0.0, peak, count) < level]
    return times


def _lengths(median: FloatArray, sigma: FloatArray, highest: int, rng: np.random.Generator) -> IntArray:
    drawn = median * np.exp(sigma * rng.standard_normal(len(median)))
    return np.clip(np.rint(drawn), 1, highest).astype(np.int64)


def synthesise(recipe: Synthesis, *, seed: int) -> Trace:
    """
    Return synthetic traffic.

    Prefix identities: a request with a shared prefix carries its prefix's blocks, then blocks of its own; every
    request's blocks are known, so reuse is known for all.
    """
    rng = np.random.default_rng(seed)
    arrival_s = _arrivals(recipe, rng)
    count = len(arrival_s)
    weights = np.array([mix.weight for mix in recipe.mixes])
    kind = rng.choice(len(weights), count, p=weights / weights.sum())

    def per_row(name: str) -> FloatArray:
        return np.array([float(getattr(mix, name)) for mix in recipe.mixes])[kind]

    prompt = _lengths(per_row("prompt_median_tokens"), per_row("prompt_sigma"), recipe.prompt_max_tokens, rng)
    output = _lengths(per_row("output_median_tokens"), per_row("output_sigma"), recipe.output_max_tokens, rng)
    block = recipe.hash_block_tokens
    blocks = -(-prompt // block)
    prefix_count = per_row("prefix_count")
    shared = np.where(prefix_count > 0, np.minimum(per_row("prefix_tokens"), prompt - 1) // block, 0).astype(np.int64)
    prefix = np.floor(rng.uniform(0.0, 1.0, count) * np.maximum(prefix_count, 1)).astype(np.int64)
    longest = int(max((mix.prefix_tokens // block for mix in recipe.mixes), default=0)) + 1
    # Shared blocks are numbered by kind, prefix and place; own blocks come behind all shared ones.
    stride = max(int(max(mix.prefix_count for mix in recipe.mixes)), 1)
    base = (kind * stride + prefix) * longest
    first_own = len(recipe.mixes) * stride * longest
    offsets = np.concatenate(([0], np.cumsum(blocks))).astype(np.int64)
    place = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], blocks)
    is_shared = place < np.repeat(shared, blocks)
    own_ids = first_own + np.arange(int(offsets[-1]))
    ids = np.where(is_shared, np.repeat(base, blocks) + place, own_ids)
    tenants = tuple(dict.fromkeys(("", *(mix.tenant for mix in recipe.mixes))))
    tenant_codes = np.array([tenants.index(mix.tenant) for mix in recipe.mixes], np.int64)[kind]
    start = float(arrival_s[0]) if count else 0.0
    traffic = TrafficArrays(
        arrival_s=arrival_s - start,
        prompt_tokens=prompt,
        output_tokens=output,
        offsets=offsets,
        hash_ids=ids,
        hash_block_tokens=block,
        tenant_ids=tenant_codes,
    )
    report = TraceReport(
        format="synthetic",
        row_count=count,
        read_count=count,
        skips=(),
        notes=(f"synthetic: {recipe.arrivals} at {recipe.rate_per_s:g}/s for {recipe.duration_s:g} s, seed {seed}",),
        span_s=float(arrival_s[-1] - start) if count else 0.0,
        distinct_time_count=len(np.unique(arrival_s)),
        tick_s=None,
        reuse_known_count=count,
    )
    return Trace(
        traffic=traffic,
        report=report,
        row_numbers=np.arange(1, count + 1),
        categories={"tenant": Category(tenant_codes, tenants)},
    )


def select(
    trace: Trace,
    *,
    start_s: float = 0.0,
    end_s: float = np.inf,
    prompt_tokens: tuple[int, int] = (0, 2**62),
    output_tokens: tuple[int, int] = (0, 2**62),
    labels: dict[str, tuple[str, ...]] | None = None,
    max_count: int | None = None,
) -> Trace:
    """
    Keep requests that arrive in [start_s, end_s) with lengths in the inclusive ranges and one of the given labels.

    Raises:
        ValueError: a label column the trace does not have, with those it has.
    """
    traffic = trace.traffic
    keep = (traffic.arrival_s >= start_s) & (traffic.arrival_s < end_s)
    keep &= (traffic.prompt_tokens >= prompt_tokens[0]) & (traffic.prompt_tokens <= prompt_tokens[1])
    keep &= (traffic.output_tokens >= output_tokens[0]) & (traffic.output_tokens <= output_tokens[1])
    for name, wanted in (labels or {}).items():
        if name not in trace.categories:
            known = ", ".join(sorted(trace.categories)) or "none"
            raise ValueError(f"the trace has no label {name!r}: it has {known}")
        column = trace.categories[name]
        codes = [code for code, label in enumerate(column.names) if label in wanted]
        keep &= np.isin(column.codes, codes)
    rows = np.flatnonzero(keep)
    if max_count is not None:
        rows = rows[:max_count]
    return take(trace, rows, f"{len(rows)} of {len(trace)} requests kept by the filter")


def _with_arrivals(trace: Trace, arrival_s: FloatArray, note: str) -> Trace:
    order = np.argsort(arrival_s, kind="stable")
    moved = take(trace, order, note)
    arrived = arrival_s[order]
    traffic = replace(moved.traffic, arrival_s=arrived)
    report = replace(
        moved.report,
        span_s=float(arrived[-1] - arrived[0]) if len(arrived) else 0.0,
        distinct_time_count=len(np.unique(arrived)),
    )
    return replace(moved, traffic=traffic, report=report)


def scale_time(trace: Trace, speed: float) -> Trace:
    """Return the same requests arriving `speed` times as fast (2 halves every gap)."""
    if not (np.isfinite(speed) and speed > 0):
        raise ValueError(f"speed is {speed}: must be a finite number above 0")
    return _with_arrivals(trace, trace.traffic.arrival_s / speed, f"arrivals {speed:g} times as fast")


def thin(trace: Trace, keep_ratio: float, *, seed: int) -> Trace:
    """Return a seeded random share of the requests at their own times: the rate falls, the shape stays."""
    if not 0.0 < keep_ratio <= 1.0:
        raise ValueError(f"keep_ratio is {keep_ratio}: must be above 0 and at most 1")
    kept = np.flatnonzero(np.random.default_rng(seed).uniform(0.0, 1.0, len(trace)) < keep_ratio)
    return take(trace, kept, f"{len(kept)} of {len(trace)} requests kept at random (seed {seed})")


def spread_ticks(trace: Trace, *, seed: int) -> Trace:
    """Spread arrivals that share a tick evenly at random over the tick; does nothing when they are not quantised."""
    tick_s = trace.report.tick_s
    if tick_s is None:
        return trace
    rng = np.random.default_rng(seed)
    arrival_s = trace.traffic.arrival_s + rng.uniform(0.0, tick_s, len(trace))
    spread = _with_arrivals(
        trace, arrival_s - arrival_s.min(), f"arrivals spread inside ticks of {tick_s:.3g} s (seed {seed})"
    )
    return replace(spread, report=replace(spread.report, tick_s=None))


def stagger_sessions(trace: Trace, gap_s: float, *, label: str = "session", seed: int) -> Trace:
    """Start each session (rows of one label) at a seeded random time, on average `gap_s` after the one before."""
    if label not in trace.categories:
        raise ValueError(f"the trace has no label {label!r}: sessions cannot be told apart")
    if not (np.isfinite(gap_s) and gap_s >= 0):
        raise ValueError(f"gap_s is {gap_s}: must be a finite number of at least 0")
    column = trace.categories[label]
    starts = np.cumsum(
        np.random.default_rng(seed).exponential(gap_s, len(column.names)) if gap_s else np.zeros(len(column.names))
    )
    arrival_s = trace.traffic.arrival_s + starts[column.codes]
    return _with_arrivals(
        trace, arrival_s - arrival_s.min(), f"sessions start {gap_s:g} s apart on average (seed {seed})"
    )
