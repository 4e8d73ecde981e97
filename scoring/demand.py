"""
What asks for room: a request, what a policy may know of it, and what it takes from a pool.

A policy gets a `RequestView`. The true output length lives in `Request` alone, so no policy can read it
(the oracle boundary). Output length is a set of quantiles: given, or from a table by prompt bucket.

Read next: `reserve`, `admission`.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np

from scoring.model import FloatArray

Number = TypeVar("Number", float, FloatArray)

PROMPT_RANGE_TOKENS: Final = (1, 16_777_216)
OUTPUT_RANGE_TOKENS: Final = (0, 4_194_304)
PRIORITY_RANGE: Final = (-1_000, 1_000)


def refuse_outside(name: str, value: float, bounds: tuple[float, float]) -> None:
    """
    Refuse a number outside its allowed range.

    Raises:
        ValueError: Not finite or outside; the message names the field, the value and the range.
    """
    if not (math.isfinite(value) and bounds[0] <= value <= bounds[1]):
        raise ValueError(f"{name} is {value}; allowed is {bounds[0]} to {bounds[1]}")


@dataclass(frozen=True, slots=True)
class OutputQuantiles:
    """
    A distribution of output length.

    Attributes:
        points: (quantile in 0..1, tokens), both ascending, at least one.
        source: Where it comes from, one line.
    """

    points: tuple[tuple[float, float], ...]
    source: str = "given"

    def __post_init__(self) -> None:
        """Refuse a distribution that is empty, unordered or out of range."""
        if not self.points:
            raise ValueError("output quantiles are empty; give at least one, for example 0.5=300")
        for quantile, tokens in self.points:
            refuse_outside("output quantile", quantile, (0.0, 1.0))
            refuse_outside("output tokens", tokens, OUTPUT_RANGE_TOKENS)
        for (q0, t0), (q1, t1) in zip(self.points, self.points[1:], strict=False):
            if not (q1 > q0 and t1 >= t0):
                raise ValueError(f"output quantiles must ascend: {q0}={t0:g} is followed by {q1}={t1:g}")

    def at(self, quantile: float) -> float:
        """Return tokens at a quantile: linear between points, the nearest point outside them."""
        quantiles, tokens = zip(*self.points, strict=True)
        return float(np.interp(quantile, quantiles, tokens))


def known_output(tokens: float) -> OutputQuantiles:
    """Return the distribution of an expected length given as one number."""
    return OutputQuantiles(points=((0.5, float(tokens)),), source="given as one number")


@dataclass(frozen=True, slots=True)
class OutputTable:
    """
    Output quantiles by prompt bucket, as calibration makes them.

    Attributes:
        upper_tokens: Upper prompt bound of each bucket, ascending; the last bucket takes the rest.
        quantiles: One distribution a bucket.
    """

    upper_tokens: tuple[float, ...]
    quantiles: tuple[OutputQuantiles, ...]

    def __post_init__(self) -> None:
        """Refuse a table whose bounds and buckets do not match."""
        if len(self.upper_tokens) != len(self.quantiles) or not self.quantiles:
            raise ValueError(f"{len(self.upper_tokens)} bounds for {len(self.quantiles)} buckets; need one each")
        if list(self.upper_tokens) != sorted(set(self.upper_tokens)):
            raise ValueError(f"bucket bounds must ascend: {self.upper_tokens}")

    def of(self, prompt_tokens: float) -> OutputQuantiles:
        """Return the distribution of a prompt's bucket (upper bounds are exclusive)."""
        return self.quantiles[min(bisect_right(self.upper_tokens, prompt_tokens), len(self.quantiles) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """
    All that a policy may know of a request.

    Attributes:
        prompt_tokens: Length of the prompt.
        output: Distribution of the output length.
        output_cap_tokens: What the tenant or `max_tokens` allows at most, or None.
        segment_tokens: Segmented reservation: promise this much output first and re-admit before extending; None
            promises the class's quantile at once.
        prefix_hit_tokens: Pool id -> prompt tokens whose KV the pool holds. Absent is a known 0.
        active_hit_tokens: Pool id -> the part of the hit that running sequences already hold: that part saves room.
        slo_class: Key of `slo.SLO_CLASSES` or of the configured classes.
        tenant: Owner, checked against a pool's allow-list.
        priority: Larger goes first; policies here only carry it.
        model: Served model wanted, or None for any.
        session_id: Key of session affinity, or None.
        data_domain: Zone, rack or domain the data may not leave, as label -> value.
        request_id: Name in leases and explanations.
    """

    prompt_tokens: int
    output: OutputQuantiles
    output_cap_tokens: int | None = None
    segment_tokens: int | None = None
    prefix_hit_tokens: Mapping[str, int] = field(default_factory=dict)
    active_hit_tokens: Mapping[str, int] = field(default_factory=dict)
    slo_class: str = "interactive"
    tenant: str | None = None
    priority: int = 0
    model: str | None = None
    session_id: str | None = None
    data_domain: Mapping[str, str] = field(default_factory=dict)
    request_id: str = "request"

    def __post_init__(self) -> None:
        """Refuse absurd numbers with the allowed range."""
        refuse_outside("prompt_tokens", self.prompt_tokens, PROMPT_RANGE_TOKENS)
        refuse_outside("priority", self.priority, PRIORITY_RANGE)
        if self.output_cap_tokens is not None:
            refuse_outside("output_cap_tokens", self.output_cap_tokens, OUTPUT_RANGE_TOKENS)
        if self.segment_tokens is not None:
            refuse_outside("segment_tokens", self.segment_tokens, (1, OUTPUT_RANGE_TOKENS[1]))
        for pool, tokens in self.prefix_hit_tokens.items():
            refuse_outside(f"prefix hit on {pool}", tokens, (0, self.prompt_tokens))
        for pool, tokens in self.active_hit_tokens.items():
            refuse_outside(f"active hit on {pool}", tokens, (0, self.prefix_hit_tokens.get(pool, 0)))

    def output_tokens(self, quantile: float) -> float:
        """Return the output to plan for at a quantile, cap respected."""
        tokens = self.output.at(quantile)
        return tokens if self.output_cap_tokens is None else min(tokens, float(self.output_cap_tokens))

    def reserved_output_tokens(self, quantile: float) -> float:
        """Return the output promised at admission: the quantile, or the first segment where that is less."""
        tokens = self.output_tokens(quantile)
        return tokens if self.segment_tokens is None else min(tokens, float(self.segment_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """
    A request with what only the world knows of it.

    Attributes:
        view: What a policy sees.
        output_tokens: What it will really generate.
        arrived_at_s: When it came.
    """

    view: RequestView
    output_tokens: int
    arrived_at_s: float = 0.0


def whole_block_tokens(tokens: Number, block_size_tokens: Number) -> Number:
    """Return tokens rounded up to whole blocks."""
    return np.ceil(tokens / block_size_tokens) * block_size_tokens  # type: ignore[no-any-return] # numpy types ufuncs as Any


def demand_tokens(
    prompt_tokens: Number, active_hit_tokens: Number, output_tokens: Number, block_size_tokens: Number
) -> Number:
    """
    Return what admitting a request takes from available, in tokens of whole blocks.

    ceil(prompt/page) + ceil(output/page) blocks, less the whole blocks running sequences hold
    already: a hit in evictable prefix saves compute and takes room, for its blocks stop being reclaimable.
    """
    shared_tokens = np.floor(active_hit_tokens / block_size_tokens) * block_size_tokens
    return np.maximum(  # type: ignore[no-any-return] # numpy types ufuncs as Any
        whole_block_tokens(prompt_tokens, block_size_tokens) - shared_tokens, 0.0
    ) + whole_block_tokens(output_tokens, block_size_tokens)


def segments(output_tokens: float, segment_tokens: float) -> Sequence[float]:
    """Return the sizes of the reservations a segmented request asks for, in order; the first at admission."""
    refuse_outside("segment_tokens", segment_tokens, (1, OUTPUT_RANGE_TOKENS[1]))
    whole_count = int(output_tokens // segment_tokens)
    rest_tokens = output_tokens - whole_count * segment_tokens
    return (float(segment_tokens),) * whole_count + ((rest_tokens,) if rest_tokens > 0 else ())
