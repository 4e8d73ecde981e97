"""
At what probability the alarm of each pool goes on, learnt while it watches: first retractions and quiet minutes are
settled pool by pool, retractions of the whole fleet are kept in the store.

Read next: `scoring.alarm_threshold`, `alerts_watch`.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Final

from collectors.store import Event
from scoring.alarm import AlarmSettings
from scoring.alarm_threshold import (
    BASES,
    FORECAST_BASIS,
    WALK_BASIS,
    Foretold,
    Record,
    Threshold,
    step_record,
    threshold,
)
from scoring.chain_state import ChainEvent, ChainState
from scoring.model import PoolReading, PoolSnapshot

EVENT_FORETOLD: Final = "saturation-foretold"
EVENT_THRESHOLD: Final = "saturation-threshold"
EVENTS_KEPT: Final = 500
"""First retractions of the fleet remembered, the newest ones."""
MOVED: Final = 0.05
"""A threshold that moved by this much, or rests on something else, is noted (chosen)."""


class Thresholds:
    """
    The alarm thresholds of a fleet. Written by one thread; `now` may be read from any.

    Attributes:
        now: Pool id -> the threshold its alarm was last judged by.
    """

    def __init__(self, alarm: AlarmSettings, forecast_source: str) -> None:
        """
        Begin with nothing known.

        Args:
            alarm: Dwell, and what holds before anything is known.
            forecast_source: Which forecast gives the probabilities; levels of another one say nothing of it.
        """
        self._alarm = alarm
        self._source = forecast_source
        self._records: dict[str, Record] = {}
        self._levels: dict[str, deque[float]] = {basis: deque(maxlen=EVENTS_KEPT) for basis in BASES}
        self._known: dict[str, tuple[object, Threshold]] = {}
        self._noted: dict[str, Threshold] = {}
        self.now: Mapping[str, Threshold] = {}

    def restore(self, events: Iterable[Event]) -> None:
        """Take up the first retractions that the store holds, in any order."""
        for event in sorted(events, key=lambda each: each.at_s):
            basis, level = event.details.get("basis"), event.details.get("level")
            is_ours = basis == WALK_BASIS or event.details.get("forecast") == self._source
            if basis in self._levels and isinstance(level, int | float) and is_ours:
                self._levels[basis].append(float(level))

    def of(self, pool_id: str, basis: str, promise_ratio: float) -> Threshold:
        """Return the threshold of a pool as it stands, by one basis."""
        record = self._records.get(pool_id, Record())
        quiet = record.quiet if record.basis == basis else ()
        levels = self._levels[basis]
        key = (basis, promise_ratio, len(levels), levels[-1] if levels else None, len(quiet), quiet[-1:])
        known = self._known.get(pool_id)
        if known is not None and known[0] == key:
            return known[1]
        chosen = self._alarm.on_probability if basis == FORECAST_BASIS else self._alarm.walk_on_probability
        found = threshold(basis, promise_ratio, tuple(levels), quiet, chosen)
        self._known[pool_id] = (key, found)
        return found

    def settings(self, pool_id: str, promise_ratio: float) -> AlarmSettings:
        """Return the knobs by which a pool's alarm is judged now; the basis of its last look has its own threshold."""
        basis = self._records.get(pool_id, Record()).basis or FORECAST_BASIS
        found = self.of(pool_id, basis, promise_ratio)
        self.now = {**self.now, pool_id: found} if self.now.get(pool_id) is not found else self.now
        if basis == FORECAST_BASIS:
            return replace(self._alarm, on_probability=found.on, off_probability=found.off)
        return replace(self._alarm, walk_on_probability=found.on, walk_off_probability=found.off)

    def look(self, pool: PoolSnapshot, state: ChainState) -> list[ChainEvent]:
        """Settle one look at a pool; return the first retraction it settled, and the threshold where it has moved."""
        count, is_counter = retractions(pool.reading)
        basis = FORECAST_BASIS if state.alarm.basis == "growth" else state.alarm.basis
        record, found = step_record(
            self._records.get(pool.pool_id, Record()),
            pool.at_s,
            pool=pool.pool_id,
            probability=state.alarm.probability,
            basis=basis,
            retracted=count,
            is_counter=is_counter,
            dwell_s=self._alarm.on_dwell_s,
        )
        self._records[pool.pool_id] = record
        events = [] if found is None else [self._settled(found)]
        now = self.now.get(pool.pool_id)
        if now is not None and _has_moved(self._noted.get(pool.pool_id), now):
            self._noted[pool.pool_id] = now
            events.append(_noted(pool, now))
        return events

    def _settled(self, found: Foretold) -> ChainEvent:
        self._levels[found.basis].append(found.level)
        text = f"first retraction, foretold with {found.level:.0%}"
        details = {"basis": found.basis, "level": found.level, "forecast": self._source}
        return ChainEvent(at_s=found.at_s, pool_id=found.pool, kind=EVENT_FORETOLD, text=text, details=details)

    def forget(self, pool_id: str) -> None:
        """Drop what is remembered of a pool that is gone."""
        for table in (self._records, self._known, self._noted):
            table.pop(pool_id, None)
        self.now = {name: each for name, each in self.now.items() if name != pool_id}


def retractions(reading: PoolReading) -> tuple[float | None, bool]:
    """Return retractions counted so far, else the queue of retracted requests, and whether it is a counter."""
    if reading.retracted_total is not None:
        return reading.retracted_total, True
    return reading.queue_retracted_count, False


def _has_moved(before: Threshold | None, now: Threshold) -> bool:
    if before is None:
        # What simulated runs say, or the choice before them, holds where nothing is noted.
        return now.source in ("calibrated", "history")
    return (before.source, before.basis, before.promise_ratio) != (now.source, now.basis, now.promise_ratio) or abs(
        before.on - now.on
    ) >= MOVED


def _noted(pool: PoolSnapshot, now: Threshold) -> ChainEvent:
    details = {name: value for name, value in asdict(now).items() if value is not None}
    text = f"the alarm goes on at {now.on:.0%} from now on ({now.source})"
    return ChainEvent(at_s=pool.at_s, pool_id=pool.pool_id, kind=EVENT_THRESHOLD, text=text, details=details)


def noted_threshold(event: Event) -> Threshold | None:
    """Return the threshold that an event notes; None where it was written with other fields."""
    names = [spec.name for spec in fields(Threshold)]
    if not {"on", "off", "basis", "source", "promise_ratio"} <= set(event.details):
        return None
    values: dict[str, Any] = {name: event.details.get(name) for name in names}
    for name in ("event_count", "needed_count", "quiet_count"):
        values[name] = values[name] or 0
    return Threshold(**values)
