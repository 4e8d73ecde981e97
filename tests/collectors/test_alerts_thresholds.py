"""The alarm's thresholds while a fleet is watched: one for page and alerts, from calibration or the pool's own past."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collectors.alerts import AlertCenter
from collectors.alerts_thresholds import EVENT_FORETOLD, EVENT_THRESHOLD, Thresholds, noted_threshold, retractions
from collectors.alerts_watch import ChainWatch
from collectors.settings import Settings
from collectors.store import Event, Store, open_store
from scoring.alarm import AlarmSettings, AlarmState
from scoring.alarm_forecast import FORECAST
from scoring.alarm_threshold import FORECAST_BASIS, SIMULATED, WALK_BASIS, level_of_promise
from scoring.calibration_in_use import InUse
from scoring.calibration_reserve import CalibratedReserve, reserve_for_slo
from scoring.chain import ChainState
from scoring.chain_reserve import reserves
from scoring.model import FleetSnapshot, PoolHistory, PoolReading, PoolSnapshot, Role
from scoring.reserve import ReserveSettings
from scoring.snapshot import judge_fleet

START_S = 1_780_000_000.0


def _pool(at_s: float, retracted: float) -> PoolSnapshot:
    reading = PoolReading(
        worker_id="d",
        role=Role.DECODE,
        engine="sglang",
        received_at_s=at_s,
        usable_tokens=100_000.0,
        used_tokens=50_000.0,
        retracted_total=retracted,
    )
    columns = {"used_tokens": np.array([50_000.0])}
    history = PoolHistory(last=reading, at_s=np.array([at_s]), columns=columns, polled_at_s=at_s)
    return judge_fleet([history], at_s).pools[0]


def _live(thresholds: Thresholds, probabilities: list[float], *, retracted_at: int | None = None) -> list[str]:
    """Look once a second, and return the kinds of what was noted."""
    kinds = []
    for second, probability in enumerate(probabilities):
        count = float(retracted_at is not None and second >= retracted_at)
        state = ChainState(pool_id="d/0", alarm=AlarmState(probability=probability, basis=FORECAST_BASIS))
        thresholds.settings("d/0", 0.95)
        kinds += [event.kind for event in thresholds.look(_pool(START_S + second, count), state)]
    return kinds


def test_what_the_alarm_is_judged_by_is_what_is_shown() -> None:
    """The knobs of the next look and the threshold that pages read are the same numbers."""
    thresholds = Thresholds(AlarmSettings(), FORECAST.source)
    knobs = thresholds.settings("d/0", 0.95)
    shown = thresholds.now["d/0"]
    assert (knobs.on_probability, knobs.off_probability) == (shown.on, shown.off)
    assert shown.on == level_of_promise(SIMULATED, 0.95)
    assert shown.source == "simulated"


def test_a_settled_retraction_is_an_event_and_twenty_of_them_calibrate() -> None:
    """One retraction is settled and stored; from twenty stored ones a center that starts anew is calibrated."""
    thresholds = Thresholds(AlarmSettings(), FORECAST.source)
    assert _live(thresholds, [0.5] * 40, retracted_at=35) == [EVENT_FORETOLD]
    details = {"basis": FORECAST_BASIS, "level": 0.5, "forecast": FORECAST.source}
    stored = [Event(at_s=START_S + place, kind=EVENT_FORETOLD, details=details) for place in range(20)]
    again = Thresholds(AlarmSettings(), FORECAST.source)
    again.restore(stored)
    assert (again.of("d/0", FORECAST_BASIS, 0.95).source, again.of("d/0", FORECAST_BASIS, 0.95).on) == (
        "calibrated",
        0.5,
    )
    other = Thresholds(AlarmSettings(), "another fit")
    other.restore(stored)
    assert other.of("d/0", FORECAST_BASIS, 0.95).source == "simulated"


def test_quiet_minutes_raise_the_threshold_and_the_change_is_noted_once() -> None:
    """A quarter of an hour at 0.85 with no retraction: the pool's own history rules, and one event says so."""
    thresholds = Thresholds(AlarmSettings(), FORECAST.source)
    kinds = _live(thresholds, [0.85] * 840)
    shown = thresholds.now["d/0"]
    assert (shown.source, shown.on) == ("history", pytest.approx(0.85))
    assert kinds == [EVENT_THRESHOLD]
    state = ChainState(pool_id="d/0", alarm=AlarmState(probability=0.85, basis=FORECAST_BASIS))
    thresholds.forget("d/0")
    assert thresholds.now == {}
    assert thresholds.look(_pool(START_S + 900.0, 0.0), state) == []


def test_a_noted_threshold_is_read_back_as_it_was() -> None:
    """What the store holds is the threshold; an event with other fields is none."""
    thresholds = Thresholds(AlarmSettings(), FORECAST.source)
    events = []
    for second in range(840):
        state = ChainState(pool_id="d/0", alarm=AlarmState(probability=0.9, basis=WALK_BASIS))
        thresholds.settings("d/0", 0.95)
        events += thresholds.look(_pool(START_S + second, 0.0), state)
    assert noted_threshold(Event(at_s=0.0, kind=EVENT_THRESHOLD, details={"on": 0.5})) is None
    for event in events:
        found = noted_threshold(Event(at_s=event.at_s, kind=event.kind, details=dict(event.details)))
        assert found is not None
        assert (found.on, found.basis, found.quiet_count) == tuple(
            event.details[name] for name in ("on", "basis", "quiet_count")
        )


def test_a_counter_comes_before_the_queue() -> None:
    """The counter of retractions, else the queue of the retracted; neither is unknown and never 0."""
    reading = PoolReading(worker_id="d", queue_retracted_count=2.0)
    assert retractions(replace(reading, retracted_total=5.0)) == (5.0, True)
    assert retractions(reading) == (2.0, False)
    assert retractions(PoolReading(worker_id="d")) == (None, False)


class _Fleet:
    """As much of a runtime as alerts ask: two decode pools that fill slowly, the real judge and store."""

    def __init__(self, store: Store) -> None:
        self.settings, self.store, self.now_s = Settings(), store, START_S

    def on_cycle(self, hook: object) -> object:
        return lambda: None

    def histories(self) -> list[PoolHistory]:
        at_s = np.arange(self.now_s - 60.0, self.now_s + 0.5)
        found = []
        for name, slope in (("d1", 200.0), ("d2", 0.0)):
            used = 40_000.0 + slope * (at_s - START_S + 60.0)
            last = PoolReading(
                worker_id=name,
                role=Role.DECODE,
                engine="sglang",
                received_at_s=self.now_s,
                usable_tokens=100_000.0,
                used_tokens=float(used[-1]),
                running_count=10.0,
                retracted_total=0.0,
            )
            columns = {"used_tokens": used, "usable_tokens": np.full(len(at_s), 100_000.0)}
            found.append(PoolHistory(last=last, at_s=at_s, columns=columns, polled_at_s=self.now_s))
        return found

    def snapshot(self) -> FleetSnapshot:
        return judge_fleet(self.histories(), self.now_s)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[_Fleet]:
    """Return the fleet with its store open."""
    with open_store(tmp_path / "thresholds.duckdb") as store:
        yield _Fleet(store)


def _calibrated(promise: float) -> CalibratedReserve:
    rng = np.random.default_rng(5)
    return reserve_for_slo(
        promise, ages_s=rng.uniform(0.2, 3.0, 500), departures_ratio=rng.normal(0.0, 0.03, 500), base=ReserveSettings()
    )


def test_alerts_keep_the_reserve_that_calibration_gives(fleet: _Fleet) -> None:
    """The chain's reserves are those of the calibrated knobs, and a stricter promise leaves less headroom."""
    headrooms = []
    for promise in (0.9, 0.99):
        reserve = _calibrated(promise)
        given = InUse(at_s=fleet.now_s, reserve=reserve, reserve_since_at_s=fleet.now_s)
        center = AlertCenter(fleet, receivers=(), given=lambda given=given: given)  # type: ignore[arg-type]
        center.look(fleet.snapshot())
        assert center.chains.reserves == reserves(fleet.snapshot(), reserve.settings)
        assert center.chains.in_use is given
        headrooms.append([center.chains.states[name].risk.headroom_tokens for name in ("d1/0", "d2/0")])
        for name, parts in center.chains.reserves.items():
            left = 100_000.0 - next(p for p in fleet.snapshot().pools if p.pool_id == name).reading.used_tokens
            assert center.chains.states[name].risk.headroom_tokens == pytest.approx(left - parts.tokens)
    assert all(strict < loose for loose, strict in zip(*headrooms, strict=True))


def test_without_calibration_the_fleet_file_is_kept() -> None:
    """Nothing given, nothing changed: the knobs are the ones the watch was made with."""
    knobs = ReserveSettings(growth_quantile_ratio=0.9, error_buffer_ratio=0.07, telemetry_delay_s=2.0)
    watch = ChainWatch(None, knobs)
    assert watch.in_use.reserve.settings == knobs
    assert not watch.in_use.reserve.is_calibrated
    assert math.isclose(watch.in_use.reserve.quantile_ratio, 0.9)
