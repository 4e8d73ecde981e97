"""
Admission: does a demand fit, with what is promised, what grows and the safety reserve left alone?

`available >= demand + committed growth + reserve` in whole blocks: capacity rounds down, demand rounds up
(docs/scoring.md). An answer of no is a `Rejection` value with the two numbers compared, never an exception.

Read next: `policy.filters`.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from scoring.model import FloatArray

Number = TypeVar("Number", float, FloatArray)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """
    Why a pool is no candidate.

    Attributes:
        pool: Pool id, or `prefill -> decode` where only the pair is refused.
        filter: Stable kebab-case name of the filter.
        reason: In words, with the numbers.
        have: What there is, in the unit of the reason; None where nothing is counted.
        need: What was needed, in the same unit; None where nothing is counted.
    """

    pool: str
    filter: str
    reason: str
    have: float | None = None
    need: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """
    The admission inequality of one pool with its numbers, in tokens; None is unknown.

    `available - reserved - growth - reserve >= demand`; headroom is `available - reserved - reserve`.
    """

    pool_id: str
    available_tokens: float | None
    reserved_tokens: float
    queued_ahead_tokens: float
    growth_tokens: float
    reserve_delay_growth_tokens: float
    reserve_failure_share_tokens: float
    reserve_prediction_error_tokens: float
    demand_tokens: float
    headroom_tokens: float | None
    is_open: bool
    marks: tuple[str, ...] = ()

    @property
    def reserve_tokens(self) -> float:
        """Return the sum of the three parts."""
        return (
            self.reserve_delay_growth_tokens + self.reserve_failure_share_tokens + self.reserve_prediction_error_tokens
        )


def have_tokens(
    available_tokens: Number, reserved_tokens: Number, queued_ahead_tokens: Number, block_size_tokens: Number
) -> Number:
    """Return what a new demand can draw on: available less what is promised or asked before, in whole blocks down."""
    left_tokens = available_tokens - reserved_tokens - queued_ahead_tokens
    return np.floor(left_tokens / block_size_tokens) * block_size_tokens  # type: ignore[no-any-return] # numpy types ufuncs as Any


def need_tokens(
    demand_tokens: Number, growth_tokens: Number, reserve_tokens: Number, block_size_tokens: Number
) -> Number:
    """Return what must be there: the demand, committed growth and the reserve, in whole blocks up."""
    return np.ceil((demand_tokens + growth_tokens + reserve_tokens) / block_size_tokens) * block_size_tokens  # type: ignore[no-any-return] # numpy types ufuncs as Any


def committed_growth_tokens(net_tokens_per_s: Number, horizon_s: Number) -> Number:
    """Return what the sequences already admitted are expected to add within the horizon, at least 0."""
    return np.maximum(net_tokens_per_s, 0.0) * horizon_s  # type: ignore[no-any-return] # numpy types ufuncs as Any


def queued_need_tokens(queued_tokens: Number, waiting_count: Number, mean_held_tokens: Number) -> Number:
    """
    Return what the requests waiting in front will take: as reported, and at least count times the mean held.

    An engine that reports waiting requests and no backlog in tokens (used = total) has not said "nothing".
    Unknown parts leave the other; all unknown is NaN.
    """
    return np.fmax(queued_tokens, waiting_count * mean_held_tokens)  # type: ignore[no-any-return] # numpy types ufuncs as Any
