"""
The reserve that is in use: measured for every promise on offer, put to use when it has moved, kept in the store.

Limits that follow from it must not tremble with each measurement, and what was in use at an instant must be told
later: so one is held until a knob has moved by a tenth, and each that is put to use is an event.

Read next: `scoring.calibration_reserve`.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from collectors.store import Event, Store
from scoring.calibration_error import ErrorSummary
from scoring.calibration_reserve import (
    PROMISES,
    CalibratedReserve,
    Knob,
    growth_departures_ratio,
    reserve_for_slo,
    uncalibrated,
)
from scoring.model import FloatArray, PoolHistory, Role
from scoring.quantile_table import QuantileTable
from scoring.reserve import ReserveSettings

EVENT_RESERVE: Final = "calibration-reserve"
LEAST_DELAY_S: Final = 0.5
"""Over a shorter time than this a polled gauge shows no trend to depart from (chosen)."""
AGAIN_AFTER_S: Final = 86_400.0
"""The reserve in use is noted again after so long, so that it outlives the store's retention of events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """
    What a reserve is measured of.

    Attributes:
        ages_s: Of figures when they came. Shape (n,).
        histories: Recent past of every pool.
        summaries: Errors of predictions.
        outputs: Output lengths of a request log, None without one.
    """

    ages_s: FloatArray
    histories: Sequence[PoolHistory]
    summaries: Sequence[ErrorSummary]
    outputs: QuantileTable | None


class MeasuredReserves:
    """
    The reserve of each promise as it is in use. Thread-safe.

    Attributes:
        since_at_s: When they were put to use; None before the first measurement.
    """

    def __init__(self, base: Callable[[], ReserveSettings]) -> None:
        """`base` gives the knobs of the fleet file."""
        self._base = base
        self._lock = threading.Lock()
        self._held: dict[float, CalibratedReserve] = {}
        self.since_at_s: float | None = None

    @property
    def promise_ratio(self) -> float:
        """Return the promise that the fleet file states."""
        return self._base().growth_quantile_ratio

    def of(self, promise_ratio: float | None = None) -> CalibratedReserve:
        """Return the reserve of a promise, the fleet file's when None; KeyError for one that is not on offer."""
        promise = self.promise_ratio if promise_ratio is None else promise_ratio
        with self._lock:
            held = dict(self._held)
        return held[promise] if held else uncalibrated(self._base(), promise)

    def measure(self, store: Store, measured: Measured, at_s: float) -> None:
        """
        Measure the reserve of every promise, and put all to use where the fleet file's has moved.

        All are measured of the same figures at the same instant, so that they can be compared. StoreError when what
        is to be used cannot be kept; then the one before stays.
        """
        base = self._base()
        promise = base.growth_quantile_ratio
        found = {each: _reserve(each, measured, base) for each in {*PROMISES, promise}}
        with self._lock:
            held, since_at_s = self._held.get(promise), self.since_at_s
        is_old = since_at_s is None or not 0.0 <= at_s - since_at_s < AGAIN_AFTER_S
        if held is not None and not is_old and not held.has_moved(found[promise]):
            return
        # In the store first: what is used can always be told later.
        keep_reserve(store, found[promise], at_s)
        with self._lock:
            self._held, self.since_at_s = found, at_s


def _reserve(promise: float, measured: Measured, base: ReserveSettings) -> CalibratedReserve:
    ages_s = measured.ages_s
    delay_s = max(float(np.quantile(ages_s, promise)) if len(ages_s) else 1.0, LEAST_DELAY_S)
    departures = [
        growth_departures_ratio(history, delay_s)
        for history in measured.histories
        if history.last.role in (Role.DECODE, Role.UNIFIED)
    ]
    return reserve_for_slo(
        promise,
        ages_s=ages_s,
        departures_ratio=np.concatenate(departures) if departures else np.empty(0),
        summaries=measured.summaries,
        outputs=measured.outputs,
        base=base,
    )


# In the store.


def keep_reserve(store: Store, reserve: CalibratedReserve, at_s: float) -> None:
    """Note the reserve that is in use from now on; StoreError when it could not be stored."""
    details = {
        "promise_ratio": reserve.quantile_ratio,
        "base": asdict(reserve.base),
        "knobs": [asdict(each) for each in reserve.knobs],
    }
    text = f"reserve for a promise kept {reserve.quantile_ratio:.1%} of the time"
    store.append_events([Event(at_s=at_s, kind=EVENT_RESERVE, text=text, details=details)])


def reserve_at(store: Store, at_s: float) -> tuple[CalibratedReserve, float] | None:
    """Return (reserve, since) of the one that was in use at an instant; None where none was, or none can be read."""
    start_s = at_s - 2.0 * AGAIN_AFTER_S
    for event in store.events(start_s, at_s + 1e-3, [EVENT_RESERVE], None, 1):
        try:
            details = event.details
            knobs = tuple(Knob(**each) for each in details["knobs"])
            base = ReserveSettings(**details["base"])
            return CalibratedReserve(quantile_ratio=details["promise_ratio"], base=base, knobs=knobs), event.at_s
        except (KeyError, TypeError, ValueError):
            return None  # Written by a version with other fields.
    return None
