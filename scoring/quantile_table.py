"""
Output-length quantiles by class and prompt bucket, from requests that finished, honest about few of them.

A cell with too few samples does not invent a tail: it takes its class's, and a class with too few takes everybody's,
and says so. `output_table` gives `demand.OutputTable`, which admission and the policies read.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import stats

from scoring.demand import OutputQuantiles, OutputTable
from scoring.model import FloatArray

QUANTILES: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
BUCKETS_TOKENS: Final = (256.0, 1024.0, 4096.0, 16384.0, float("inf"))
"""Upper bounds of prompt length, exclusive (chosen: a factor 4 each)."""
MIN_SAMPLES: Final = 30
"""Of one cell (chosen): the 90th percentile of 30 has three samples above it."""
ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class QuantileInterval:
    """One quantile with the interval that order statistics give at 95 %; ends are None where samples are too few."""

    quantile: float
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileCell:
    """
    One class and bucket.

    Attributes:
        slo_class: Class, or "all".
        upper_tokens: Prompt bound of the bucket, exclusive; inf for all buckets.
        sample_count: Requests of this very cell.
        points: Quantiles used; () when there is nothing at all.
        taken_from: "" when they are the cell's own, else which wider cell they are of.
    """

    slo_class: str
    upper_tokens: float
    sample_count: int
    points: tuple[QuantileInterval, ...]
    taken_from: str = ""

    @property
    def missing_count(self) -> int:
        """Return how many more requests this cell needs for quantiles of its own."""
        return max(MIN_SAMPLES - self.sample_count, 0)


def quantile_interval(values: FloatArray, quantile: float, level: float = 0.95) -> QuantileInterval:
    """
    Return a quantile and its distribution-free interval: order statistics by the binomial distribution.

    Raises:
        ValueError: No values.
    """
    if not len(values):
        raise ValueError("values: empty, no quantile")
    ordered = np.sort(values)
    count = len(ordered)
    tail = (1.0 - level) / 2.0
    # P(x_(i) > q) = P(Bin(n, q) < i): take the ends whose tails are each below half of what may be missed.
    below = int(stats.binom.ppf(tail, count, quantile)) - 1
    above = int(stats.binom.ppf(1.0 - tail, count, quantile))
    return QuantileInterval(
        quantile=quantile,
        value=float(np.quantile(ordered, quantile)),
        low=float(ordered[below]) if below >= 0 else None,
        high=float(ordered[above]) if above < count else None,
    )


def bucket_of(prompt_tokens: float, bounds: Sequence[float] = BUCKETS_TOKENS) -> float:
    """Return the upper bound of a prompt's bucket."""
    return bounds[min(bisect_right(bounds, prompt_tokens), len(bounds) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileTable:
    """Cells by class, then bucket ascending; the class "all" comes first."""

    cells: tuple[QuantileCell, ...]

    def of(self, slo_class: str, prompt_tokens: float) -> QuantileCell:
        """Return the cell of a request; a class never seen gets that of everybody."""
        bounds = sorted({cell.upper_tokens for cell in self.cells})
        upper = bucket_of(prompt_tokens, bounds)
        known = {(cell.slo_class, cell.upper_tokens): cell for cell in self.cells}
        return known.get((slo_class, upper)) or known[ALL, upper]

    def output_table(self, slo_class: str = ALL) -> OutputTable | None:
        """Return what admission reads for a class; None when nothing at all is known."""
        cells = [cell for cell in self.cells if cell.slo_class == slo_class and cell.points]
        if not cells and slo_class != ALL:
            return self.output_table(ALL)
        if not cells:
            return None
        return OutputTable(
            upper_tokens=tuple(cell.upper_tokens for cell in cells),
            quantiles=tuple(
                OutputQuantiles(
                    points=tuple((point.quantile, point.value) for point in cell.points),
                    source=f"{cell.sample_count} requests"
                    + (f", taken from {cell.taken_from}" * bool(cell.taken_from)),
                )
                for cell in cells
            ),
        )


def quantile_table(
    classes: Sequence[str],
    prompt_tokens: FloatArray,
    output_tokens: FloatArray,
    *,
    bounds: Sequence[float] = BUCKETS_TOKENS,
    quantiles: Sequence[float] = QUANTILES,
    min_samples: int = MIN_SAMPLES,
) -> QuantileTable:
    """
    Return the table of finished requests.

    Args:
        classes: One a request.
        prompt_tokens: Shape (n,).
        output_tokens: Shape (n,). Requests that failed do not belong here.
        bounds: Upper prompt bounds, ascending, the last one inf.

    Raises:
        ValueError: Columns of different length.
    """
    prompts, outputs = np.asarray(prompt_tokens, np.float64), np.asarray(output_tokens, np.float64)
    if not len(classes) == len(prompts) == len(outputs):
        raise ValueError(f"{len(classes)} classes, {len(prompts)} prompts, {len(outputs)} outputs: need one each")
    usable = np.isfinite(prompts) & np.isfinite(outputs) & (outputs >= 0)
    names = np.array(classes, dtype=object)
    place = np.searchsorted(np.asarray(bounds[:-1]), prompts, side="right")
    cells = []
    for name in (ALL, *sorted({str(each) for each in classes if each != ALL})):
        is_class = usable if name == ALL else usable & (names == name)
        for at, upper in enumerate(bounds):
            own = outputs[is_class & (place == at)]
            wider = (
                ("", own),
                (f"class {name}, all prompts", outputs[is_class]),
                ("all classes, this bucket", outputs[usable & (place == at)]),
                ("all classes, all prompts", outputs[usable]),
            )
            label, taken = next(((text, kept) for text, kept in wider if len(kept) >= min_samples), ("", own))
            points = tuple(quantile_interval(taken, each) for each in quantiles) if len(taken) >= min_samples else ()
            cells.append(
                QuantileCell(
                    slo_class=name, upper_tokens=float(upper), sample_count=len(own), points=points, taken_from=label
                )
            )
    return QuantileTable(cells=tuple(cells))
