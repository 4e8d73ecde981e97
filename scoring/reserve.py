"""
The safety reserve, part by part: room kept back because what we see is old, machines die and predictions err.

Elementwise over floats or numpy arrays like `cost`; NaN means unknown. There is no universal 80 % line: the reserve
of a pool follows from its own growth, its peers and the spread of the predictions.

Read next: `admission`.
"""

from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from scipy.special import ndtri

from scoring.demand import refuse_outside
from scoring.model import FloatArray

Number = TypeVar("Number", float, FloatArray)

UNKNOWN_GROWTH_RATIO: Final = 0.02
"""Share of usable kept back as growth part where the growth is not known (chosen; marked wherever it is used)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveSettings:
    """
    Knobs of the reserve; Calibration replaces the chosen ones by fitted ones.

    Attributes:
        growth_quantile_ratio: Quantile of growth during the delays that the reserve covers.
        telemetry_delay_s: Delay of figures to cover; None takes the measured age of each pool.
        decision_delay_s: From deciding to the engine allocating.
        failure_count: Largest peers (workers of the same role) whose death is covered.
        failure_share_ratio: Part of their load that must find room at once; the rest is computed again and admitted
            as room comes (chosen: a dead pool's KV is lost, its requests come back through prefill).
        error_buffer_ratio: Least share of usable kept for errors of prediction.
        output_error_ratio: Relative spread of predicted output length (chosen until calibrated).
        growth_horizon_s: Expected net growth over this long counts as committed growth at admission.
        evictable_share_ratio: Part of the prefix cache the policy lets go for an admission.
    """

    growth_quantile_ratio: float = 0.95
    telemetry_delay_s: float | None = None
    decision_delay_s: float = 0.1
    failure_count: int = 1
    failure_share_ratio: float = 0.1
    error_buffer_ratio: float = 0.02
    output_error_ratio: float = 0.2
    growth_horizon_s: float = 5.0
    evictable_share_ratio: float = 1.0

    def __post_init__(self) -> None:
        """Refuse knobs out of range."""
        refuse_outside("growth_quantile_ratio", self.growth_quantile_ratio, (0.5, 0.999999))
        if self.telemetry_delay_s is not None:
            refuse_outside("telemetry_delay_s", self.telemetry_delay_s, (0.0, 3_600.0))
        refuse_outside("decision_delay_s", self.decision_delay_s, (0.0, 3_600.0))
        refuse_outside("failure_count", self.failure_count, (0, 64))
        refuse_outside("failure_share_ratio", self.failure_share_ratio, (0.0, 1.0))
        refuse_outside("error_buffer_ratio", self.error_buffer_ratio, (0.0, 1.0))
        refuse_outside("output_error_ratio", self.output_error_ratio, (0.0, 10.0))
        refuse_outside("growth_horizon_s", self.growth_horizon_s, (0.0, 3_600.0))
        refuse_outside("evictable_share_ratio", self.evictable_share_ratio, (0.0, 1.0))

    @property
    def growth_sigmas(self) -> float:
        """Return the quantile of growth in standard deviations of a normal walk."""
        return float(ndtri(self.growth_quantile_ratio))


def delay_growth_tokens(net_tokens_per_s: Number, std_tokens_per_s: Number, delay_s: Number, sigmas: Number) -> Number:
    """
    Return the growth during telemetry and decision delay at a high quantile, at least 0.

    A drifted random walk: mean net * t, standard deviation of one second times sqrt(t).
    """
    return np.maximum(net_tokens_per_s * delay_s + sigmas * std_tokens_per_s * np.sqrt(delay_s), 0.0)  # type: ignore[no-any-return] # numpy types ufuncs as Any


def failure_share_tokens(
    lost_tokens: Number, usable_tokens: Number, survivor_usable_tokens: Number, share_ratio: Number
) -> Number:
    """
    Return what a pool inherits when its largest peers die: their committed, spread by the survivors' capacity.

    `survivor_usable_tokens` includes the pool itself. A pool without peers inherits nothing.
    """
    return share_ratio * lost_tokens * usable_tokens / np.maximum(survivor_usable_tokens, 1.0)  # type: ignore[no-any-return] # numpy types ufuncs as Any


def prediction_error_tokens(
    usable_tokens: Number,
    output_tokens: Number,
    mean_output_tokens: Number,
    running_count: Number,
    buffer_ratio: Number,
    output_error_ratio: Number,
) -> Number:
    """
    Return room for outputs longer than predicted: this request's and the running ones' (independent: sqrt(n)).

    Never less than `buffer_ratio` of usable.
    """
    spread_tokens = output_error_ratio * (output_tokens + mean_output_tokens * np.sqrt(running_count))
    return np.maximum(buffer_ratio * usable_tokens, spread_tokens)  # type: ignore[no-any-return] # numpy types ufuncs as Any
