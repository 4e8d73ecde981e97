"""
Robust weighted least squares with intervals: the one estimator behind every coefficient calibration learns.

Weights are Huber's, so that a few odd windows (a restart half seen, a collector that slept) do not move a
coefficient; intervals are Student's. What the load did not vary enough to show is not estimated: it keeps the prior's
shape at the measured level, and says so. A cost in seconds is never negative.

Read next: `calibration_windows` (counters -> rows), `calibration_service` (rows -> coefficients of a ServiceProfile).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from scipy import stats

from scoring.model import FloatArray

LEVEL: Final = 0.95
"""Confidence of every interval."""
HUBER_K: Final = 1.345
"""95 % efficiency under normal noise (Huber 1964)."""
MAX_ROUNDS: Final = 50
MAX_CONDITION: Final = 1e5
"""Of the columns scaled to length 1: beyond it two columns say the same thing (chosen; Belsley calls 30 strong)."""
MAX_HALF_WIDTH_RATIO: Final = 0.5
"""A coefficient is not told by the data when its interval reaches beyond half of itself either way (chosen) ..."""
MAX_EFFECT_RATIO: Final = 0.1
"""... and the width of the interval matters: this share of the mean target at the mean load (chosen)."""
NOISE_FLOOR_RATIO: Final = 1e-6
"""Residuals below a millionth of the target are rounding: counters come in microseconds."""


class Told(StrEnum):
    """Whether the data say what a coefficient is."""

    FITTED = "fitted"
    PRIOR = "prior"
    ZERO = "zero"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """
    One coefficient.

    Attributes:
        name: Field of `ServiceProfile`, the unit last.
        value: Point; None when UNKNOWN (too few rows and no prior).
        low: Lower end of the interval at LEVEL; None unless FITTED.
        high: Upper end.
        told: FITTED from the data; PRIOR where the load did not vary enough; ZERO where the fit is at the bound.
        prior: What the prior says, or None.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    told: Told = Told.UNKNOWN
    prior: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearFit:
    """
    Coefficients of one linear law.

    Attributes:
        coefficients: In the order of the design's columns.
        row_count: Rows taken.
        missing_count: Rows still wanted before a fit is made; 0 when one was.
        outlier_count: Rows that lie beyond Huber's bound by a factor 3.
        condition: Of the scaled, weighted design; inf when singular; None without a fit.
        median_error_ratio: Median of |fitted - actual| / actual over the rows; None without a fit.
        p95_error_ratio: 95th percentile of the same.
        notes: Sentences for the reader: what is not told and what would tell it.
        is_rough: The rows were taken for something simpler than they are, for want of better ones.
    """

    coefficients: tuple[Coefficient, ...]
    row_count: int
    missing_count: int = 0
    outlier_count: int = 0
    condition: float | None = None
    median_error_ratio: float | None = None
    p95_error_ratio: float | None = None
    notes: tuple[str, ...] = ()
    is_rough: bool = False

    @property
    def is_made(self) -> bool:
        """Say whether there was enough to fit anything."""
        return self.missing_count == 0

    def values(self) -> FloatArray | None:
        """Return all coefficients, None when any is unknown. Shape (k,)."""
        found = [each.value for each in self.coefficients]
        return None if None in found else np.array(found, dtype=np.float64)

    def of(self, name: str) -> Coefficient:
        """Return a coefficient by name; KeyError when there is none."""
        for each in self.coefficients:
            if each.name == name:
                return each
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class _Solved:
    """One solve: estimates, half widths of the intervals, standardised residuals, condition."""

    estimate: FloatArray
    half_width: FloatArray
    residual: FloatArray
    condition: float


def solve(design: FloatArray, target: FloatArray, weights: FloatArray) -> _Solved:
    """
    Return the Huber estimate of `target = design @ x` with variance 1/weights up to a common factor.

    Interval half widths after Street, Carroll and Ruppert (1988): the least-squares covariance with the variance of
    the bounded residuals, times Student's quantile at n - k. Singular columns have infinite half widths.

    Args:
        design: Shape (n, k), n > k.
        target: Shape (n,).
        weights: Above 0. Shape (n,).
    """
    count, size = design.shape
    root = np.sqrt(weights / weights.mean())
    rows, aim = design * root[:, None], target * root
    length = np.linalg.norm(rows, axis=0)
    length[length == 0.0] = 1.0
    scaled = rows / length
    singular = np.linalg.svd(scaled, compute_uv=False)
    condition = float(singular[0] / singular[-1]) if singular[-1] > 0 else float("inf")
    floor = NOISE_FLOOR_RATIO * float(np.median(np.abs(aim)))
    huber = np.ones(count)
    estimate = np.zeros(size)
    scale = floor
    for _ in range(MAX_ROUNDS):
        part = np.sqrt(huber)
        new = np.linalg.lstsq(scaled * part[:, None], aim * part, rcond=1e-12)[0]
        residual = aim - scaled @ new
        scale = max(float(np.median(np.abs(residual))) / 0.6745, floor, 1e-300)
        bound = HUBER_K * scale
        huber = np.minimum(1.0, bound / np.maximum(np.abs(residual), 1e-300))
        is_still = np.allclose(new, estimate, rtol=1e-10, atol=0.0)
        estimate = new
        if is_still:
            break
    residual = (aim - scaled @ estimate) / scale
    bounded = np.clip(residual, -HUBER_K, HUBER_K)
    inside = float(np.mean(np.abs(residual) <= HUBER_K))
    variance = scale**2 * float((bounded**2).sum()) / max(count - size, 1) / max(inside, 0.1) ** 2
    variance *= (1.0 + size / count * (1.0 - inside) / max(inside, 0.1)) ** 2
    variance = max(variance, floor**2)
    if condition > MAX_CONDITION:
        half = np.full(size, np.inf)
    else:
        spread = np.sqrt(variance * np.diag(np.linalg.inv(scaled.T @ scaled)))
        half = float(stats.t.ppf(0.5 + LEVEL / 2.0, max(count - size, 1))) * spread
    return _Solved(estimate / length, half / length, residual, condition)


def _partial_spread(design: FloatArray, weights: FloatArray, free: Sequence[int]) -> FloatArray:
    """Return how much of each free column the other free columns do not say, as a share of the column's length."""
    root = np.sqrt(weights / weights.mean())
    rows = design[:, list(free)] * root[:, None]
    shares = []
    for at in range(rows.shape[1]):
        others = np.delete(rows, at, axis=1)
        own = rows[:, at]
        left = own - others @ np.linalg.lstsq(others, own, rcond=1e-12)[0] if others.shape[1] else own
        shares.append(float(np.linalg.norm(left)) / max(float(np.linalg.norm(own)), 1e-300))
    return np.array(shares)


def fit_linear(
    names: Sequence[str],
    design: FloatArray,
    target: FloatArray,
    weights: FloatArray,
    *,
    prior: Sequence[float] | None = None,
    min_rows: int = 30,
    hints: Sequence[str] | None = None,
) -> LinearFit:
    """
    Return the coefficients of `target = design @ x`, each at least 0.

    A coefficient that the rows do not tell (columns that say the same, or an interval wider than half the value) is
    held at the prior, scaled to the level of the rows, and the others are fitted again; the base (column 0) is given
    up last. Without a prior it is held at 0 and marked UNKNOWN, with no value.

    Args:
        names: One a column.
        design: Shape (n, k); rows with anything not finite are left out.
        target: Shape (n,), above 0.
        weights: Shape (n,), above 0.
        prior: One value a column, or None.
        min_rows: Fewer usable rows than this give no fit.
        hints: What would tell each coefficient, for the notes; one a column.

    Raises:
        ValueError: Shapes that do not match.
    """
    size = len(names)
    if design.ndim != 2 or design.shape != (len(target), size) or len(weights) != len(target):
        raise ValueError(f"design {design.shape}, target {target.shape}, weights {weights.shape}, names {size}")
    usable = np.isfinite(design).all(axis=1) & np.isfinite(target) & np.isfinite(weights) & (weights > 0) & (target > 0)
    rows, aim, mass = design[usable], target[usable], weights[usable]
    base = None if prior is None else np.asarray(prior, dtype=np.float64)
    if len(aim) < max(min_rows, size + 2):
        missing = max(min_rows, size + 2) - len(aim)
        return LinearFit(
            coefficients=tuple(_held(name, base, at) for at, name in enumerate(names)),
            row_count=len(aim),
            missing_count=missing,
            notes=(f"{len(aim)} windows so far, {missing} more are needed before anything is fitted",),
        )
    held = np.zeros(size)
    if base is not None:
        level = float((mass * aim).sum() / max(float((mass * (rows @ base)).sum()), 1e-300))
        held = base * level
    free, told, solved, notes = _eliminate(names, rows, aim, mass, held, base is not None, hints)
    values = np.where([told[at] is Told.ZERO for at in range(size)], 0.0, held)
    half = np.full(size, np.inf)
    if solved is not None:
        values[list(free)] = solved.estimate
        half[list(free)] = solved.half_width
    error = np.abs(rows @ values - aim) / aim
    coefficients = []
    for at, name in enumerate(names):
        is_fitted = told[at] is Told.FITTED
        is_known = told[at] is not Told.UNKNOWN
        coefficients.append(
            Coefficient(
                name=name,
                value=float(values[at]) if is_known else None,
                low=max(float(values[at] - half[at]), 0.0) if is_fitted else None,
                high=float(values[at] + half[at]) if is_fitted else None,
                told=told[at],
                prior=None if base is None else float(base[at]),
            )
        )
    return LinearFit(
        coefficients=tuple(coefficients),
        row_count=len(aim),
        outlier_count=0 if solved is None else int((np.abs(solved.residual) > 3 * HUBER_K).sum()),
        condition=None if solved is None else solved.condition,
        median_error_ratio=float(np.median(error)),
        p95_error_ratio=float(np.quantile(error, 0.95)),
        notes=tuple(notes),
    )


def _held(name: str, base: FloatArray | None, at: int) -> Coefficient:
    if base is None:
        return Coefficient(name=name, value=None)
    return Coefficient(name=name, value=float(base[at]), told=Told.PRIOR, prior=float(base[at]))


def _eliminate(
    names: Sequence[str],
    rows: FloatArray,
    aim: FloatArray,
    mass: FloatArray,
    held: FloatArray,
    has_prior: bool,
    hints: Sequence[str] | None,
) -> tuple[list[int], list[Told], _Solved | None, list[str]]:
    """Fit, and give up one coefficient after another until all that are left are told by the rows."""
    size = len(names)
    free = list(range(size))
    told = [Told.FITTED] * size
    notes: list[str] = []
    solved: _Solved | None = None
    while free:
        fixed = [at for at in range(size) if at not in free and told[at] is not Told.ZERO]
        left = aim - rows[:, fixed] @ held[fixed]
        solved = solve(rows[:, free], left, mass)
        estimate, half = solved.estimate, solved.half_width
        width = half / np.maximum(np.abs(estimate), 1e-300)
        effect = half * np.abs(rows[:, free]).mean(axis=0) / aim.mean()
        is_vague = (width > MAX_HALF_WIDTH_RATIO) & (effect > MAX_EFFECT_RATIO)
        below = [place for place in range(len(free)) if estimate[place] < 0]
        places = [place for place, at in enumerate(free) if at != 0] or [0]
        if solved.condition > MAX_CONDITION:
            shares = _partial_spread(rows, mass, free)
            worst = int(min(places, key=lambda place: float(shares[place])))
            reason = "the load did not vary enough to tell it"
        elif is_vague.any():
            vague = [place for place in places if is_vague[place]] or places
            worst = int(max(vague, key=lambda place: float(effect[place])))
            reason = f"its interval is ±{min(float(width[worst]), 99.0):.0%} of itself"
        elif below:
            depth = estimate / half
            worst = int(min(below, key=lambda place: float(depth[place])))
            told[free[worst]] = Told.ZERO
            notes.append(f"{names[free[worst]]} is at its bound 0: the rows put it at or below")
            free.pop(worst)
            continue
        else:
            return free, told, solved, notes
        at = free.pop(worst)
        told[at] = Told.PRIOR if has_prior else Told.UNKNOWN
        hint = f"; {hints[at]}" if hints is not None else ""
        kept = "the prior's share is kept" if has_prior else "it stays unknown"
        notes.append(f"{names[at]}: {reason}: {kept}{hint}")
    return free, told, None, notes
