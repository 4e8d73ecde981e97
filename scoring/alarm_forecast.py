"""
The forecast of the saturation alarm: P(first retraction within some seconds) from how many sequences share the room
and how young they are.

It reads what a walk cannot know: sequences already admitted grow for as long as they run, so many young ones in a
half empty pool are worse than few old ones in a full one. Its coefficients are fitted on simulated runs
(docs/backtest.md has the command that fits and the one that judges them on held-out seeds). Outside the range it was
fitted on it says nothing.

Read next: `alarm`.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from scoring.chain_flows import Flows
from scoring.model import FloatArray, PoolHistory

PROMISE_TOKENS: Final = 512.0
"""Unit in which sequences are set against capacity: what SGLang keeps back for each admitted one (engine default)."""

FEATURES: Final = ("fill", "used", "sequences", "running", "generated", "turnover")
"""What the forecast reads; see `forecast_inputs`."""


SPARSE_RATIO: Final = 0.3
"""Below this use, sequences per use say nothing about their length (chosen)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """
    A fitted logistic forecast: P(first retraction within `horizon_s`).

    Attributes:
        weights: One a feature of FEATURES, on the raw scale.
        squares: The same for squared features.
        intercept: Constant.
        lows, highs: Range of each feature in the runs it was fitted on; outside it says nothing.
        densest: Most sequences per use (features 3 / 2) it was fitted on: shorter sequences than any it has seen.
        horizon_s: What the labels were fitted on.
        source: Runs it was fitted on.
    """

    weights: tuple[float, ...]
    squares: tuple[float, ...]
    intercept: float
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    densest: float
    horizon_s: float
    source: str

    def probability(self, inputs: FloatArray) -> FloatArray:
        """Return probabilities for inputs of shape (..., 6); NaN where one is unknown or outside what was fitted."""
        score = self.intercept + inputs @ np.array(self.weights) + (inputs**2) @ np.array(self.squares)
        is_inside = ((inputs >= np.array(self.lows)) & (inputs <= np.array(self.highs))).all(axis=-1)
        is_inside &= inputs[..., 2] <= self.densest * np.maximum(inputs[..., 1], SPARSE_RATIO)
        return np.asarray(np.where(is_inside, 1.0 / (1.0 + np.exp(-np.clip(score, -60.0, 60.0))), np.nan))


FORECAST: Final = Forecast(
    weights=(-4.27009, 4.52769, 20.0427, -0.092057, -4.06989, -0.762359),
    squares=(0.56038, -5.79385, 150.813, -1.25364, -1.74391, -0.0597078),
    intercept=2.92413,
    lows=(-0.001, -0.001, -0.001, -0.001, -0.001, 1.60844),
    highs=(5.98997, 1.051, 0.312719, 1.03718, 1.051, 5.98997),
    densest=0.505,
    horizon_s=25.0,
    source="kvscope backtest --fit --seeds 280",
)


def forecast_inputs(flows: Flows, history: PoolHistory) -> FloatArray | None:
    """
    Return the forecast's inputs, shape (6,), or None where the engine does not count what it generates.

    fill: ln of the seconds in which decode alone fills what is left, 1 to 300.
    used: used / usable.
    sequences: admitted sequences x 512 / usable, how many share the room.
    running: of those admitted, the share that is generating.
    generated: share of what is held that was generated here (young sequences have little).
    turnover: ln of the seconds in which the present release would give back all that is held, 5 to 300.
    """
    if not flows.is_counted or flows.step_s.size == 0:
        return None
    usable, used, available = (
        float(column[-1]) for column in (flows.usable_tokens, flows.used_tokens, flows.available_tokens)
    )
    running = _newest(history, "running_count", flows)
    grown = flows.rate_per_s(flows.grown_tokens, 4.0)
    released = flows.rate_per_s(flows.released_tokens, 30.0)
    if not (usable > 0 and math.isfinite(used) and math.isfinite(available)) or running is None:
        return None
    if grown is None or released is None:
        return None
    arriving = (_newest(history, "queue_transfer_count", flows) or 0.0) + (
        _newest(history, "queue_main_count", flows) or 0.0 if history.last.role.value == "decode" else 0.0
    )
    admitted = running + arriving
    held = max(used, 1.0)
    return np.array(
        [
            math.log(min(max(available / max(grown, 1.0), 1.0), 300.0)),
            used / usable,
            admitted * PROMISE_TOKENS / usable,
            running / (admitted + 1.0),
            min(_generated_tokens(flows) / held, 1.0),
            math.log(min(max(held / max(released, 1.0), 5.0), 300.0)),
        ]
    )


def _generated_tokens(flows: Flows) -> float:
    """
    Return what of the held tokens was generated in the window: each release takes its share of old and new alike.

    G(t) = G(t-1) * (1 - released/held) + grown, in closed form over the newest unbroken stretch.
    """
    part = flows.last(math.inf)
    grown, released = flows.grown_tokens[part], flows.released_tokens[part]
    held = np.maximum(flows.used_tokens[:-1][part], 1.0)
    keep = np.clip(1.0 - np.nan_to_num(released) / held, 0.1, 1.0)
    after = np.append(np.cumprod(keep[::-1])[::-1][1:], 1.0) if keep.size else keep
    return float(np.nansum(grown * after))


def _newest(history: PoolHistory, name: str, flows: Flows) -> float | None:
    column = history.columns.get(name)
    if column is None or not flows.at_s.size:
        return None
    value = float(column[flows.newest_index])
    return value if math.isfinite(value) else None
