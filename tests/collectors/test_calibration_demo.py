"""
Calibration on the demo fleet, whose coefficients are known: five virtual minutes through the real dialect and judge.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from collectors.calibration import DRIFT_REASON, FIRST_REASON, Calibrator
from collectors.calibration_versions import applied, apply, profile_mapping, roll_back, versions
from collectors.engines import ENGINES
from collectors.engines.contract import Answer
from collectors.errors import StoreError
from collectors.recent import RecentPool
from collectors.settings import Settings
from collectors.store import open_store
from demo.fleet import DemoFleet
from demo.scenarios import SCENARIOS
from demo.worker import Worker
from scoring.calibration import Told
from scoring.calibration_error import Quantity
from scoring.model import FleetSnapshot, PoolHistory, Role
from scoring.service import profile_from_mapping
from scoring.snapshot import JudgeSettings, judge_fleet

START_S = 1_900_000_000.0
SKEW_S = 900.0
SECONDS = 300


def _answers(worker: Worker, at_s: float) -> dict[str, Answer]:
    def of(kind: str, body: bytes) -> Answer:
        return Answer(status=200, content_type=kind, body=body, received_at_s=at_s)

    encode = msgspec.json.encode
    return {
        "/v1/loads": of("application/json", encode({**worker.head(), "loads": worker.rows()})),
        "/metrics": of("text/plain", worker.metrics()),
        "/model_info": of("application/json", encode(worker.model_info())),
        "/server_info": of("application/json", encode(worker.server_info())),
    }


class Watch:
    """A runtime in small: demo workers polled each second of an injected clock that is a quarter hour ahead."""

    def __init__(self) -> None:
        self.store = open_store(":memory:")
        self.settings = Settings()
        self.is_running = True
        self.hooks: list[Callable[[FleetSnapshot], None]] = []
        self._clock = [START_S]
        scenario = replace(SCENARIOS["rush"], preroll_s=0.0)
        self.fleet = DemoFleet(scenario, seed=3, clock=lambda: self._clock[0], max_lag_s=None, worker_count=5)
        self.fleet.begin()
        self.recent: dict[tuple[str, int], RecentPool] = {}
        self.change: Callable[[Any], Any] = lambda reading: reading

    def on_cycle(self, hook: Callable[[FleetSnapshot], None]) -> Callable[[], None]:
        self.hooks.append(hook)
        return lambda: self.hooks.remove(hook)

    def histories(self) -> list[PoolHistory]:
        views = [pool.view() for _, pool in sorted(self.recent.items())]
        return [PoolHistory(last=view.last, at_s=view.at_s, columns=view.columns) for view in views if view]

    def live(self, seconds: int) -> None:
        for _ in range(seconds):
            self._clock[0] += 1.0
            self.fleet.advance(self._clock[0])
            at_s = self._clock[0] + SKEW_S
            for worker in self.fleet.workers:
                reading = ENGINES["sglang"].understand(_answers(worker, at_s))
                for pool in reading.pools:
                    key = (worker.name, pool.dp_rank)
                    ring = self.recent.setdefault(key, RecentPool(900))
                    ring.append(self.change(replace(pool, worker_id=worker.name, received_at_s=at_s)))
            snapshot = judge_fleet(self.histories(), at_s, JudgeSettings(rate_window_s=15.0))
            for hook in tuple(self.hooks):
                hook(snapshot)


@pytest.fixture(scope="module")
def lived() -> Iterator[tuple[Watch, Calibrator]]:
    """Return a watch and its learner after five virtual minutes, fitted every minute."""
    watch = Watch()
    learner = Calibrator(watch)  # type: ignore[arg-type] # as much of a runtime as calibration asks
    watch.on_cycle(learner.take)
    for _ in range(SECONDS // 60):
        watch.live(60)
        learner.refit()
    yield watch, learner
    watch.store.close()


def _kind(learner: Calibrator, role: Role) -> Any:
    return next(each for each in learner.state().kinds if each.kind.role is role)


def test_known_coefficients_are_found_within_two_percent_in_five_minutes(lived: tuple[Watch, Calibrator]) -> None:
    """Decode, prompt and hand-over coefficients of the demo's truth, whatever the clocks say, and all are told."""
    watch, learner = lived
    truth = watch.fleet.truth()["pools"][0]
    true = {**truth["profile"], "transfer_s_per_byte": 1.0 / truth["bandwidth_bytes_per_s"]}
    decode, prefill = _kind(learner, Role.DECODE).judged.fit, _kind(learner, Role.PREFILL).judged.fit
    for fit in (decode.decode, prefill.prefill, prefill.transfer):
        assert fit.is_made, fit.notes
        for each in fit.coefficients:
            assert each.told is Told.FITTED, (each, fit.notes)
            assert each.value == pytest.approx(true[each.name], rel=0.02), each
    assert prefill.hit_ratio is not None
    assert 0.0 < prefill.hit_ratio < 1.0


def test_shared_prefixes_and_prompts_under_way_do_not_bend_a_unified_worker_s_fit(
    lived: tuple[Watch, Calibrator],
) -> None:
    """What its pool holds is neither, for a step reads a shared prefix once a sequence: its own sum is read instead."""
    watch, learner = lived
    pools = [pool for pool in watch.fleet.truth()["pools"] if pool["role"] == "unified"]
    unified = _kind(learner, Role.UNIFIED).judged.fit
    for each in unified.decode.coefficients:
        assert each.told is Told.FITTED, unified.decode.notes
        assert each.value == pytest.approx(pools[0]["profile"][each.name], rel=0.02), each


def test_the_first_fit_is_put_to_use_and_better_ones_follow(lived: tuple[Watch, Calibrator]) -> None:
    """Version 1 is the first fit; a fit of four times its rows replaces it by itself; each is in the store."""
    watch, learner = lived
    kind = _kind(learner, Role.DECODE)
    assert kind.versions[0].reason == FIRST_REASON
    assert kind.version == applied(watch.store, kind.kind.name)
    assert kind.version.version == len(kind.versions) >= 2
    assert watch.store.events(START_S, START_S + 1e6, kinds=["calibration"])
    profile = kind.profile
    assert profile_from_mapping(profile_mapping(profile)) == profile


def test_predictions_are_settled_and_near(lived: tuple[Watch, Calibrator]) -> None:
    """Steps within 5 % at the 95th percentile, prompts within 5 % at the median; TTFT and outputs are settled."""
    _, learner = lived
    state = learner.state()
    whole = {each.quantity: each for each in state.summaries if each.bucket == float("inf") and each.is_held_out}
    assert whole[Quantity.STEP].at(0.95) < 0.05
    assert whole[Quantity.PREFILL].at(0.5) < 0.05
    assert whole[Quantity.TRANSFER].sample_count > 50
    assert whole[Quantity.TTFT].sample_count >= 5
    assert whole[Quantity.OUTPUT].sample_count >= 2
    assert not any(each.drift.is_drifting for each in state.kinds if each.kind.role is Role.DECODE)
    assert state.problem == ""


def test_the_reserve_follows_from_what_was_measured(lived: tuple[Watch, Calibrator]) -> None:
    """Ages, growth and errors of this fleet set the knobs; a stricter promise keeps more."""
    _, learner = lived
    loose, strict = learner.reserve(0.9), learner.reserve(0.99)
    assert strict.settings.error_buffer_ratio >= loose.settings.error_buffer_ratio > 0
    assert loose.tpot_error_ratio is not None
    assert 0 < loose.settings.telemetry_delay_s < 5.0


def test_slower_steps_raise_the_alarm_and_a_rollback_goes_back(lived: tuple[Watch, Calibrator]) -> None:
    """
    A fleet whose steps take 30 % longer from now on: drift is found, a version is kept and not used by itself;
    using it and going back are a person's acts, and a learner that starts again takes up what was in use.
    """
    watch, learner = lived
    kind = _kind(learner, Role.DECODE)
    name, before = kind.kind.name, kind.version.version
    base = {key: ring.view().last.decode_step_s_total or 0.0 for key, ring in watch.recent.items()}

    def slower(reading: Any) -> Any:
        total = reading.decode_step_s_total
        if reading.role is not Role.DECODE or total is None:
            return reading
        since = base[reading.worker_id, reading.dp_rank]
        return replace(reading, decode_step_s_total=since + 1.3 * (total - since))

    watch.change = slower
    watch.live(60)
    learner.refit()
    drifted = _kind(learner, Role.DECODE)
    assert drifted.drift.direction == "longer"
    assert drifted.version.version == before
    assert drifted.versions[-1].reason == DRIFT_REASON
    learner.apply(name, drifted.versions[-1].version)
    assert not _kind(learner, Role.DECODE).drift.is_drifting
    learner.roll_back(name)
    assert _kind(learner, Role.DECODE).version.version == before
    again = Calibrator(watch)  # type: ignore[arg-type]
    watch.on_cycle(again.take)
    watch.live(2)
    assert _kind(again, Role.DECODE).version.version == before
    # Workers that take 30 % longer than the version says are judged by their own figures, and by nothing else's.
    given = learner.in_use()
    part = next(each for each in given.parts if each.kind == name)
    assert part.version == before
    assert set(part.departing) == set(part.worker_ids)
    assert all(error == pytest.approx(0.3, abs=0.05) for error in part.departing.values())
    workers = {key[0] for key in watch.recent}
    assert set(given.profiles) == workers - set(part.worker_ids)


def test_another_model_at_the_address_is_another_kind(lived: tuple[Watch, Calibrator]) -> None:
    """Its rows never mix with the old one's."""
    watch, learner = lived
    names = {each.kind.name for each in learner.state().kinds}
    rows = len(_kind(learner, Role.PREFILL).prefill)
    watch.change = lambda reading: replace(reading, model="org/Another-70B")
    watch.live(3)
    found = {each.kind.name: each for each in learner.state().kinds}
    new = [found[name] for name in set(found) - names]
    assert {each.kind.model for each in new} == {"org/Another-70B"}
    assert all(each.skipped == {"other-model": len(each.pools)} for each in new)
    old = next(found[name] for name in names if found[name].kind.role is Role.PREFILL)
    assert len(old.prefill) == rows


def test_versions_of_a_kind_in_an_empty_store() -> None:
    """Nothing in use, nothing to go back to, no such version: each is said."""
    with open_store(":memory:") as store:
        assert versions(store) == []
        assert applied(store, "x") is None
        with pytest.raises(StoreError, match="no earlier version"):
            roll_back(store, "x", 1.0)
        with pytest.raises(StoreError, match="no version 3"):
            apply(store, "x", 3, 1.0)
        store.add_profile("other", {"note": "not ours"}, 1.0)
        assert versions(store) == []


def test_a_learner_refuses_what_it_does_not_know() -> None:
    """An unknown kind is a ValueError that lists the known ones, and an empty learner has an empty state."""
    with open_store(":memory:") as store:
        learner = Calibrator(SimpleNamespace(store=store, is_running=True))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="none yet"):
            learner.keep("x", "because")
        assert learner.state().kinds == ()
