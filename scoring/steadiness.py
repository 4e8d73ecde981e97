"""
Steadiness: ways not to send everybody to the same place. Seeded, so that a decision can be repeated.

A stale snapshot shows every router the same lowest pool. Leases (`leases`) let one ledger see its own promises;
choosing among two (`pick_of_two`) or among near ties (`pick_near_tie`) needs no shared state; an EWMA and a
hysteresis band with a minimum dwell keep accept/refuse from flapping.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from scoring.demand import refuse_outside
from scoring.model import FloatArray

NEAR_TIE_RATIO: Final = 0.1
"""Scores within a tenth of the best (of its distance to the class budget) are near ties (chosen)."""


def rng_of(seed: int) -> np.random.Generator:
    """Return the random numbers of one decision; the same seed gives the same numbers on every machine."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))


def pick_best(scores: FloatArray) -> int | None:
    """Return the index of the lowest finite score, the first among equals; None when there is none."""
    finite = np.isfinite(scores)
    if not finite.any():
        return None
    return int(np.argmin(np.where(finite, scores, np.inf)))


def pick_random(scores: FloatArray, rng: np.random.Generator) -> int | None:
    """Return any index with a finite score, each equally likely."""
    indices = np.flatnonzero(np.isfinite(scores))
    return None if indices.size == 0 else int(indices[rng.integers(indices.size)])


def pick_of_two(scores: FloatArray, rng: np.random.Generator) -> int | None:
    """Return the better of two distinct indices drawn at random (power of two choices, Mitzenmacher 2001)."""
    indices = np.flatnonzero(np.isfinite(scores))
    if indices.size == 0:
        return None
    if indices.size == 1:
        return int(indices[0])
    first, second = np.sort(rng.choice(indices, size=2, replace=False))
    return int(first if scores[first] <= scores[second] else second)


def pick_near_tie(scores: FloatArray, rng: np.random.Generator, *, band: float) -> int | None:
    """
    Return one of the indices within `band` of the best score, at random, nearer ones more likely.

    Weight falls from 1 at the best to near 0 at the edge of the band, so the choice changes smoothly with scores.
    """
    best = pick_best(scores)
    if best is None or not band > 0.0:
        return best
    indices = np.flatnonzero(scores <= scores[best] + band)
    weights = 1.0 - 0.999 * (scores[indices] - scores[best]) / band
    return int(indices[np.searchsorted(np.cumsum(weights), rng.random() * weights.sum(), side="right")])


@dataclass(slots=True, kw_only=True)
class Ewma:
    """
    Exponentially weighted mean over irregular samples.

    Attributes:
        half_life_s: A sample this old counts half.
        value: The mean, or None before the first sample.
        at_s: Time of the newest sample.
    """

    half_life_s: float
    value: float | None = None
    at_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse a half-life that forgets nothing or everything."""
        refuse_outside("half_life_s", self.half_life_s, (1e-3, 1e6))

    def update(self, value: float | None, at_s: float) -> float | None:
        """Take a sample and return the mean; None (unknown) and times that go back change nothing."""
        if value is None or (self.at_s is not None and at_s < self.at_s):
            return self.value
        if self.value is None or self.at_s is None:
            self.value = value
        else:
            keep = 0.5 ** ((at_s - self.at_s) / self.half_life_s)
            self.value = keep * self.value + (1.0 - keep) * value
        self.at_s = at_s
        return self.value


@dataclass(slots=True, kw_only=True)
class Hysteresis:
    """
    Accept or refuse with a band and a minimum dwell.

    Refuses once the signal reaches `refuse_at`, accepts again once it falls to `accept_at`, and stays at least
    `dwell_s` in either state. An unknown signal changes nothing.
    """

    accept_at: float
    refuse_at: float
    dwell_s: float
    is_accepting: bool = True
    since_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse a band that is inside out."""
        if not self.accept_at < self.refuse_at:
            raise ValueError(f"accept_at {self.accept_at} must be below refuse_at {self.refuse_at}")
        refuse_outside("dwell_s", self.dwell_s, (0.0, 86_400.0))

    def update(self, signal: float | None, at_s: float) -> bool:
        """Take the signal at a time and return whether to accept."""
        if self.since_s is None:
            self.since_s = at_s
            if signal is not None and signal >= self.refuse_at:
                self.is_accepting = False
            return self.is_accepting
        if signal is None or at_s - self.since_s < self.dwell_s:
            return self.is_accepting
        wanted = signal < self.refuse_at if self.is_accepting else signal <= self.accept_at
        if wanted != self.is_accepting:
            self.is_accepting = wanted
            self.since_s = at_s
        return self.is_accepting


def keep_choice(scores: FloatArray, previous: int | None, *, band: float) -> int | None:
    """Return the previous index while it is no more than `band` worse than the best, else the best."""
    best = pick_best(scores)
    if best is None or previous is None or not 0 <= previous < scores.size or not np.isfinite(scores[previous]):
        return best
    return previous if scores[previous] <= scores[best] + band else best
