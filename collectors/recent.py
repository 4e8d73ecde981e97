"""
The last minutes of every pool in memory, so that live pages and the judge never query the store.

A pool is one array of signals x samples with spare room at its end. Views given out stay valid and unchanged: samples
are only ever written beyond them, and when the room is used up the newest part moves to a new array.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scoring.model import FloatArray, PoolReading, signal_names

_SIGNALS: Final = signal_names()
_VALUES: Final = attrgetter(*_SIGNALS)
_CLOCK_SET_BACK_S: Final = 5.0
_SPARE_RATIO: Final = 0.25
_LEAST_SPARE: Final = 64
MIN_SAMPLES: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentView:
    """
    The recent past of one pool at one moment.

    Attributes:
        last: The newest reading.
        at_s: When each sample was received, ascending. Shape (n,).
        columns: Every signal -> values, NaN where unknown. Each of shape (n,).
    """

    last: PoolReading
    at_s: FloatArray
    columns: Mapping[str, FloatArray]


class RecentPool:
    """The ring of one pool. Written by one thread; `view` may be called from any."""

    def __init__(self, samples: int) -> None:
        """`samples`: how many to keep."""
        self._samples = max(MIN_SAMPLES, samples)
        self._names: tuple[int, ...] = ()
        self._table: FloatArray = np.empty((1, 0))
        self._end = 0
        self._state: tuple[PoolReading, FloatArray, tuple[int, ...], int, int] | None = None

    @property
    def held_bytes(self) -> int:
        """Return the memory held."""
        return self._table.nbytes

    def append(self, reading: PoolReading) -> None:
        """
        Take one reading; one that is not newer than the last is left out.

        A reading from well before the last means that the clock was set back: what was kept has no place in the new
        time and goes.
        """
        if self._state is not None:
            behind_s = self._state[0].received_at_s - reading.received_at_s
            if behind_s > _CLOCK_SET_BACK_S:
                self._table, self._end = np.full_like(self._table, np.nan), 0
            elif behind_s >= 0:
                return
        row: FloatArray = np.array(_VALUES(reading), dtype=np.float64)
        known = np.flatnonzero(~np.isnan(row))
        if not set(known.tolist()) <= set(self._names):
            self._widen(tuple(sorted({*self._names, *known.tolist()})))
        if self._end == self._table.shape[1]:
            self._move()
        self._table[0, self._end] = reading.received_at_s
        if self._names:
            self._table[1:, self._end] = row[list(self._names)]
        self._end += 1
        # One assignment publishes the sample: readers see the old state or the new one.
        self._state = (reading, self._table, self._names, max(0, self._end - self._samples), self._end)

    def _capacity(self) -> int:
        return self._samples + max(_LEAST_SPARE, int(self._samples * _SPARE_RATIO))

    def _widen(self, names: tuple[int, ...]) -> None:
        table = np.full((1 + len(names), max(self._table.shape[1], self._capacity())), np.nan)
        table[0, : self._end] = self._table[0, : self._end]
        for old, name in enumerate(self._names):
            table[1 + names.index(name), : self._end] = self._table[1 + old, : self._end]
        self._table, self._names = table, names

    def _move(self) -> None:
        kept = min(self._end, self._samples)
        table = np.full((self._table.shape[0], self._capacity()), np.nan)
        table[:, :kept] = self._table[:, self._end - kept : self._end]
        self._table, self._end = table, kept

    def view(self) -> RecentView | None:
        """Return what is kept, without copying; None before the first reading."""
        state = self._state
        if state is None:
            return None
        last, table, names, begin, end = state
        columns = dict.fromkeys(_SIGNALS, _fixed(np.full(end - begin, np.nan)))
        for i, name in enumerate(names):
            columns[_SIGNALS[name]] = _fixed(table[1 + i, begin:end])
        return RecentView(last=last, at_s=_fixed(table[0, begin:end]), columns=columns)


def _fixed(values: NDArray[np.float64]) -> FloatArray:
    values.flags.writeable = False  # Of this view only: nobody downstream may change what all viewers share.
    return values


def samples_that_fit(wanted: int, pool_count: int, max_bytes: float) -> int:
    """Return how many samples a pool may keep so that all pools together stay within `max_bytes` (50 signals each)."""
    per_sample = max(1, pool_count) * 50 * 8 * (1 + _SPARE_RATIO)
    return max(MIN_SAMPLES, min(wanted, int(max_bytes / per_sample)))


NO_SAMPLES: Final = _fixed(np.empty(0))
NO_COLUMNS: Final[Mapping[str, FloatArray]] = dict.fromkeys(_SIGNALS, NO_SAMPLES)
"""The columns of a worker that never gave a sample."""
