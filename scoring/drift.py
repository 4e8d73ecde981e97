"""
Has what we learnt stopped being true? Page-Hinkley's test on errors of prediction, both ways.

The test adds up how far errors lie beyond their usual level plus an allowance; the sum stays near 0 while nothing
changes and climbs steadily after a shift, so that a lasting change of a few percent is found and a single odd minute
is not. Source: Page 1954, Hinkley 1971; parameters as in Gama et al. 2014.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

ALLOWANCE_SIGMAS: Final = 0.5
"""Shifts below twice this are not looked for (Page's rule: half the smallest shift of interest)."""
THRESHOLD_SIGMAS: Final = 15.0
"""With the allowance a false alarm about once in 10^6 independent errors (Siegmund's approximation)."""
LEARN_COUNT: Final = 100
"""Errors taken before anything can alarm (chosen). The usual level goes on being learnt after them, as the test's
running mean does, so that chance among the first hundred is no drift later."""
SPREAD_FLOOR_RATIO: Final = 0.02
"""Smaller spreads count as 2 %: with the allowance, lasting shifts of 1 % and less are nobody's business (chosen)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftState:
    """
    Where the test stands.

    Attributes:
        count: Errors taken.
        mean_ratio: Usual error, the running mean.
        spread_ratio: Its standard deviation, from the same.
        up_sigmas: How far errors have climbed beyond the usual.
        down_sigmas: How far they have fallen below it.
        alarm_at_s: When it went off; stays until reset.
        direction: "longer" or "shorter" than predicted when it went off, else "".
        since_at_s: Where the climb began that set it off: the change is about there.
    """

    count: int = 0
    mean_ratio: float = 0.0
    spread_ratio: float = 0.0
    up_sigmas: float = 0.0
    down_sigmas: float = 0.0
    alarm_at_s: float | None = None
    direction: str = ""
    since_at_s: float | None = None
    squares: float = 0.0
    up_since_at_s: float | None = None
    down_since_at_s: float | None = None

    @property
    def is_drifting(self) -> bool:
        """Say whether the alarm has gone off."""
        return self.alarm_at_s is not None


def drift_step(state: DriftState, at_s: float, error_ratio: float) -> DriftState:
    """
    Return the state after one more error, (actual - predicted) / predicted.

    An error that is not finite changes nothing.
    """
    if not math.isfinite(error_ratio):
        return state
    count = state.count + 1
    usual = max(state.spread_ratio, SPREAD_FLOOR_RATIO)
    # What lies far out moves neither level nor spread by more than its share.
    taken = error_ratio
    if count > LEARN_COUNT:
        taken = min(max(error_ratio, state.mean_ratio - 4.0 * usual), state.mean_ratio + 4.0 * usual)
    mean = state.mean_ratio + (taken - state.mean_ratio) / count
    squares = state.squares + (taken - state.mean_ratio) * (taken - mean)
    spread = math.sqrt(squares / (count - 1)) if count > 1 else 0.0
    learnt = replace(state, count=count, mean_ratio=mean, squares=squares, spread_ratio=spread)
    if count <= LEARN_COUNT:
        return learnt
    sigmas = (error_ratio - state.mean_ratio) / usual
    # One wild error may not set it off alone.
    sigmas = min(max(sigmas, -4.0), 4.0)
    up = max(state.up_sigmas + sigmas - ALLOWANCE_SIGMAS, 0.0)
    down = max(state.down_sigmas - sigmas - ALLOWANCE_SIGMAS, 0.0)
    up_since = None if up == 0.0 else state.up_since_at_s if state.up_since_at_s is not None else at_s
    down_since = None if down == 0.0 else state.down_since_at_s if state.down_since_at_s is not None else at_s
    alarm_at_s, direction, since = state.alarm_at_s, state.direction, state.since_at_s
    if alarm_at_s is None and max(up, down) > THRESHOLD_SIGMAS:
        alarm_at_s = at_s
        direction, since = ("longer", up_since) if up >= down else ("shorter", down_since)
    return replace(
        learnt,
        up_sigmas=up,
        down_sigmas=down,
        up_since_at_s=up_since,
        down_since_at_s=down_since,
        alarm_at_s=alarm_at_s,
        direction=direction,
        since_at_s=since,
    )


def seeded(errors_ratio: Sequence[float]) -> DriftState:
    """
    Return a state that has learnt the spread of these errors and takes no bias for usual.

    For coefficients newly put to use: errors on the rows at hand say how they scatter, and their level should be 0,
    so that a change right after is not learnt as the usual, and coefficients that do not fit are found out.
    """
    known = sorted(error for error in errors_ratio if math.isfinite(error))
    state = DriftState()
    if not known:
        return state
    middle = known[len(known) // 2]
    for error in known[len(known) // 20 : len(known) - len(known) // 20]:
        state = drift_step(state, 0.0, error - middle)
    return DriftState(count=state.count, spread_ratio=state.spread_ratio, squares=state.squares)
