"""
The safety reserve, part by part: room kept back because what we see is old, machines die and predictions err.

Elementwise over floats or numpy arrays like `cost`; NaN means unknown. There is no universal 80 % line: the reserve
of a pool follows from its own growth, its peers and the spread of the predictions.

Read next: `admission`.
"""

from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from scoring.demand import refuse_outside
from scoring.model import FloatArray

Number = TypeVar("Number", float, FloatArray)

GROWTH_SIGMAS: Final = 2.326
"""Normal quantile of 0.99: the growth part is exceeded once in a hundred delays."""
UNKNOWN_GROWTH_RATIO: Final = 0.02
"""Share of usable kept back as growth part where the growth is not known (chosen; marked wherever it is used)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveSettings:
    """
    Knobs of the reserve; Calibration replaces the chosen ones by fitted ones.

    Attributes:
        decision_delay_s: From deciding to the engine allocating.
        growth_sigmas: High quantile of growth, in standard deviations.
        failure_share_ratio: Part of the largest peer's load that must find room at once when it dies; the rest is
            admitted again as room comes (chosen).
        prediction_error_ratio: Relative spread of predicted output length (chosen until calibrated).
        growth_horizon_s: Expected net growth over this long counts as committed growth at admission.
        evictable_share_ratio: Part of the prefix cache the policy lets go for an admission.
    """

    decision_delay_s: float = 0.1
    growth_sigmas: float = GROWTH_SIGMAS
    failure_share_ratio: float = 0.1
    prediction_error_ratio: float = 0.2
    growth_horizon_s: float = 5.0
    evictable_share_ratio: float = 1.0

    def __post_init__(self) -> None:
        """Refuse knobs out of range."""
        refuse_outside("decision_delay_s", self.decision_delay_s, (0.0, 3_600.0))
        refuse_outside("growth_sigmas", self.growth_sigmas, (0.0, 10.0))
        refuse_outside("failure_share_ratio", self.failure_share_ratio, (0.0, 1.0))
        refuse_outside("prediction_error_ratio", self.prediction_error_ratio, (0.0, 10.0))
        refuse_outside("growth_horizon_s", self.growth_horizon_s, (0.0, 3_600.0))
        refuse_outside("evictable_share_ratio", self.evictable_share_ratio, (0.0, 1.0))


def delay_growth_tokens(net_tokens_per_s: Number, std_tokens_per_s: Number, delay_s: Number, sigmas: Number) -> Number:
    """
    Return the growth during telemetry and decision delay at a high quantile, at least 0.

    A drifted random walk: mean net * t, standard deviation of one second times sqrt(t).
    """
    return np.maximum(net_tokens_per_s * delay_s + sigmas * std_tokens_per_s * np.sqrt(delay_s), 0.0)  # type: ignore[no-any-return] # numpy types ufuncs as Any


def failure_share_tokens(
    largest_peer_tokens: Number, usable_tokens: Number, survivor_usable_tokens: Number, share_ratio: Number
) -> Number:
    """
    Return what a pool inherits when its largest peer dies: the peer's committed, by the survivors' capacity.

    `survivor_usable_tokens` includes the pool itself. A pool without peers inherits nothing.
    """
    return share_ratio * largest_peer_tokens * usable_tokens / np.maximum(survivor_usable_tokens, 1.0)  # type: ignore[no-any-return] # numpy types ufuncs as Any


def prediction_error_tokens(
    output_tokens: Number, mean_output_tokens: Number, running_count: Number, error_ratio: Number
) -> Number:
    """
    Return room for outputs longer than predicted: this request's, and the running ones' (independent: sqrt(n)).
    """
    return error_ratio * (output_tokens + mean_output_tokens * np.sqrt(running_count))  # type: ignore[no-any-return] # numpy types ufuncs as Any
