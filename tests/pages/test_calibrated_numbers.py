"""One set of calibrated numbers: Calibration, What-if, Saturation, alerts and the past show and use the same."""

import json
import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from collectors.alerts import AlertCenter
from collectors.calibration import Calibrator
from collectors.calibration_outputs import NAME as OUTPUTS
from collectors.calibration_outputs import keep_outputs, outputs_at
from collectors.calibration_past import in_use_at
from collectors.calibration_reserves import Measured, MeasuredReserves, reserve_at
from collectors.settings import Settings
from collectors.store import CycleBatch, Store, open_store
from pages._decide_settings import decide_settings, error_defaults
from pages.figures import calibrated
from pages.texts import speaker
from scoring.calibration_in_use import (
    NO_VERSION,
    SWITCHED_OFF,
    InUse,
    KindSeen,
    expected_output,
    parts_in_use,
    switched_off,
)
from scoring.calibration_reserve import PROMISES, RESERVE_KNOBS, reserve_for_slo, uncalibrated
from scoring.calibration_windows import Kind
from scoring.chain_reserve import reserves
from scoring.demand import RequestView, known_output
from scoring.model import FleetSnapshot, Role
from scoring.policy import DecideSettings, decide
from scoring.policy.sketch import two_node_case
from scoring.quantile_table import quantile_table
from scoring.reserve import ReserveSettings
from scoring.service import ServiceProfile
from scoring.snapshot import JudgeSettings, judge_fleet
from tests.collectors.test_calibration_demo import SKEW_S, Watch

T = speaker("en")
AT_S = 1_780_000_000.0


class Stored(Watch):
    """The demo fleet of the calibration tests, whose readings also go into its store, as a collector's do."""

    def live(self, seconds: int) -> None:
        """Let seconds pass."""
        for _ in range(seconds):
            super().live(1)
            at_s = self.now_s
            readings = [view.last for pool in self.recent.values() if (view := pool.view()) is not None]
            self.store.append_cycle(CycleBatch(cycle_at_s=at_s, duration_s=0.1, readings=readings))

    @property
    def now_s(self) -> float:
        """Return our clock."""
        return self._clock[0] + SKEW_S

    def snapshot(self) -> FleetSnapshot:
        """Return the fleet as judged now."""
        return judge_fleet(self.histories(), self.now_s, JudgeSettings(rate_window_s=15.0))

    def past(self, at_s: float) -> FleetSnapshot:
        """Return the fleet as the store gives it."""
        return judge_fleet(self.store.latest_histories(at_s, 60.0), at_s, JudgeSettings(rate_window_s=15.0))


@pytest.fixture(scope="module")
def lived() -> Iterator[tuple[Stored, Calibrator, AlertCenter, float]]:
    """Return a fleet after two minutes, its learner, its alerts, and an instant before anything was applied."""
    watch = Stored()
    learner = Calibrator(watch)  # type: ignore[arg-type] # as much of a runtime as calibration asks
    watch.on_cycle(learner.take)
    center = AlertCenter(watch, receivers=(), given=learner.in_use, clock=lambda: watch.now_s)  # type: ignore[arg-type]
    watch.live(20)
    early_s = watch.now_s
    watch.live(60)
    learner.refit()
    watch.live(40)
    learner.refit()
    watch.live(1)
    center.look(watch.snapshot())
    yield watch, learner, center, early_s
    watch.store.close()


def _same(first: ServiceProfile, second: ServiceProfile) -> bool:
    pairs = [(getattr(first, each.name), getattr(second, each.name)) for each in fields(ServiceProfile)]
    return all(a == b or (a != a and b != b) for a, b in pairs)


def test_every_page_and_alerts_use_the_reserve_that_calibration_shows(lived) -> None:
    """The knobs of the promise in the fleet file are one object's, and the reserve of every pool follows from them."""
    watch, learner, center, _ = lived
    shown = learner.reserve(learner.promise_ratio)
    assert shown.is_calibrated
    given = learner.in_use()
    made = decide_settings(watch.settings, given)
    assert made.reserve == shown.settings == given.reserve.settings == center.chains.in_use.reserve.settings
    assert (made.ttft_error_ratio, made.tpot_error_ratio) == tuple(
        error_defaults()[name] if value is None else value
        for name, value in (
            ("ttft_error_ratio", shown.ttft_error_ratio),
            ("tpot_error_ratio", shown.tpot_error_ratio),
        )
    )
    fleet = watch.snapshot()
    assert center.chains.reserves == reserves(fleet, made.reserve)
    table = calibrated.knob_columns(shown, error_defaults(), T)
    values = dict(zip(table["knob"], table["calibrated"], strict=True))
    drawn = calibrated.value_columns(given, [], error_defaults(), ("output", "", "", ""), T)
    for name in RESERVE_KNOBS:
        word = T(f"calibration.knob_{name}")
        assert values[word] == drawn["now"][drawn["value"].index(word)], name


def test_a_decision_takes_the_parts_of_the_reserve_that_saturation_shows(lived) -> None:
    """Growth and failure parts of the gate are the chain's, pool by pool; the error part adds the request's own."""
    watch, learner, center, _ = lived
    fleet = watch.snapshot()
    request = RequestView(prompt_tokens=2_000, output=known_output(0))
    decision = decide(request, fleet, settings=decide_settings(watch.settings, learner.in_use()))
    kept = reserves(fleet, center.chains.in_use.reserve.settings)
    compared = 0
    for pool in fleet.pools:
        if pool.role is Role.PREFILL or pool.rates.net_std_tokens_per_s.value is None:
            continue
        gate, parts = decision.gate(pool.pool_id), kept[pool.pool_id]
        assert gate.reserve_delay_growth_tokens == pytest.approx(parts.delay_growth_tokens)
        assert gate.reserve_failure_share_tokens == pytest.approx(parts.failure_share_tokens)
        assert gate.reserve_prediction_error_tokens == pytest.approx(parts.prediction_error_tokens)
        compared += 1
    assert compared >= 3


def test_the_past_gives_what_was_in_use_then_and_nothing_later(lived) -> None:
    """Now by the store is now by the learner; before anything was applied nothing is used, and that is said."""
    watch, learner, _, early_s = lived
    now, given = in_use_at(watch.store, watch.past(watch.now_s), watch.settings), learner.in_use()
    assert now.reserve == given.reserve
    assert now.reserve_since_at_s == pytest.approx(given.reserve_since_at_s)
    assert set(now.profiles) == set(given.profiles)
    assert all(_same(now.profiles[name], given.profiles[name]) for name in now.profiles)
    assert now.bandwidths_bytes_per_s == given.bandwidths_bytes_per_s
    assert {(each.kind, each.part): each.version for each in now.parts} == {
        (each.kind, each.part): each.version for each in given.parts
    }
    early = in_use_at(watch.store, watch.past(early_s), watch.settings)
    assert early.parts
    assert all(each.why_not == NO_VERSION for each in early.parts)
    assert not early.profiles
    assert early.reserve_since_at_s is None
    assert early.reserve.settings == ReserveSettings()
    words = calibrated.part_rests(early.parts[0], early.is_past, T)
    assert T("calibrated.no_version_past") in words
    assert T("calibrated.reserve_none_then") == calibrated.since_words(early, T)


def test_a_version_rolled_back_takes_effect_and_the_past_keeps_its_own(lived) -> None:
    """Applying and going back change what decisions take from then on; each instant before keeps what it had."""
    watch, learner, _, _ = lived
    part = next(each for each in learner.in_use().parts if each.part == "decode")
    worker, name, before = part.worker_ids[0], part.kind, part.version
    profile = learner.in_use().profiles[worker]
    watch.live(2)
    before_s = watch.now_s
    number = learner.keep(name, "by-hand")
    watch.live(2)
    learner.apply(name, number)
    watch.live(2)
    between_s = watch.now_s
    assert learner.in_use().part_of(worker, "decode").version == number
    watch.live(2)
    learner.roll_back(name)
    watch.live(2)
    after = learner.in_use()
    assert after.part_of(worker, "decode").version == before
    assert _same(after.profiles[worker], profile)
    told = [
        in_use_at(watch.store, watch.past(at_s), watch.settings).part_of(worker, "decode").version
        for at_s in (before_s, between_s, watch.now_s)
    ]
    assert told == [before, number, before]


def test_a_kind_that_is_refused_a_fit_decides_as_without_calibration() -> None:
    """No version in use: no profile, no bandwidth, the fleet file's reserve, the same scores; the reason is given."""
    fleet = two_node_case(AT_S)
    kind = Kind(model="m", role=Role.DECODE, engine="sglang", version="1", accelerator_count=1)
    seen = KindSeen(kind=kind, version=None, worker_ids=("D-A",), decode=(), prefill=(), missing={"decode": 12})
    parts, profiles, bandwidths = parts_in_use([seen])
    assert (profiles, bandwidths) == ({}, {})
    given = InUse(at_s=AT_S, parts=parts, reserve=uncalibrated(ReserveSettings()))
    request = RequestView(prompt_tokens=64_000, output=known_output(2_000))
    plain = decide(request, fleet, settings=decide_settings(Settings()))
    same = decide(request, fleet, settings=decide_settings(Settings(), given))
    assert same.ranking == plain.ranking
    assert [term.scored_s for term in same.terms] == [term.scored_s for term in plain.terms]
    assert "12" in calibrated.part_rests(parts[0], False, T)


def test_a_stricter_promise_never_keeps_less(lived) -> None:
    """Every knob of the reserve rises or stays, on the demo's own rows, and so does the reserve of a filling pool."""
    watch, learner, _, _ = lived
    fleet = watch.snapshot()
    found = [learner.reserve(each) for each in PROMISES]
    for name in RESERVE_KNOBS:
        values = [each.knob(name).value for each in found]
        assert values == sorted(values), name
    kept = [reserves(fleet, each.settings) for each in found]
    for pool in fleet.pools:
        if (pool.rates.net_tokens_per_s.value or 0.0) >= 0.0 and pool.pool_id in kept[0]:
            tokens = [each[pool.pool_id].tokens for each in kept]
            assert tokens == sorted(tokens), pool.pool_id


def test_small_movements_leave_the_reserve_in_use_and_large_ones_are_kept(tmp_path: Path) -> None:
    """Within a tenth nothing changes; beyond it the new one is used, and each instant keeps its own."""

    def measured(delay_s: float) -> Measured:
        return Measured(ages_s=np.full(200, delay_s), histories=(), summaries=(), outputs=None)

    with open_store(tmp_path / "reserves.duckdb") as store:
        held = MeasuredReserves(ReserveSettings)
        held.measure(store, measured(1.0), AT_S)
        first = held.of()
        held.measure(store, measured(1.05), AT_S + 20.0)
        assert held.of() is first
        held.measure(store, measured(1.5), AT_S + 40.0)
        assert held.of().settings.telemetry_delay_s == pytest.approx(1.5)
        told = [reserve_at(store, AT_S + shift) for shift in (-1.0, 0.0, 30.0, 50.0)]
        assert told[0] is None
        assert [each[0].settings.telemetry_delay_s for each in told[1:] if each] == pytest.approx([1.0, 1.0, 1.5])
        assert told[3] is not None
        assert told[3][0] == held.of()
        with pytest.raises(KeyError):
            held.of(0.123)


def _log(store: Store, at_s: float = AT_S) -> int:
    classes = ["interactive"] * 60 + ["batch"] * 60
    prompts = [800.0] * 120
    outputs = [float(100 + place) for place in range(60)] + [float(1_000 + place) for place in range(60)]
    return keep_outputs(store, quantile_table(classes, prompts, outputs), "log.jsonl", at_s)


def test_output_lengths_of_a_log_are_planned_for_by_class(tmp_path: Path) -> None:
    """The log's quantiles of the class and bucket; without a log, what is used without calibration."""
    with open_store(tmp_path / "outputs.duckdb") as store:
        assert outputs_at(store, AT_S) is None
        number = _log(store)
        found = outputs_at(store, AT_S)
        assert outputs_at(store, AT_S - 1.0) is None
        assert found is not None
        assert (found.version, found.request_count, found.source) == (number, 120, "log.jsonl")
        assert json.loads(json.dumps(store.profiles(OUTPUTS)[0].profile))["source"] == "log.jsonl"
        with pytest.raises(ValueError, match="too few"):
            keep_outputs(store, quantile_table(["a"], [1.0], [1.0]), "short.jsonl", AT_S)
    base = uncalibrated(ReserveSettings())
    given = InUse(at_s=AT_S, reserve=base, outputs=found)
    short, long = (expected_output(given, name, 800) for name in ("interactive", "batch"))
    assert short.source == long.source == "log"
    assert short.output.at(0.95) < 200 < 1_000 < long.output.at(0.95)
    assert expected_output(InUse(at_s=AT_S, reserve=base), "batch", 800).output == known_output(500)
    off = switched_off(given, ReserveSettings())
    assert expected_output(off, "batch", 800).source == "default"


def test_the_spread_of_a_log_reaches_the_reserve(tmp_path: Path) -> None:
    """A log with long tails asks for more room than one without."""
    rng = np.random.default_rng(3)
    spreads = []
    for sigma in (0.1, 0.8):
        outputs = np.exp(6.0 + sigma * rng.standard_normal(400))
        table = quantile_table(["all"] * 400, [500.0] * 400, outputs)
        reserve = reserve_for_slo(0.95, ages_s=(), departures_ratio=np.empty(0), outputs=table)
        assert reserve.knob("output_error_ratio").is_calibrated
        spreads.append(reserve.settings.output_error_ratio)
    assert spreads[0] < 0.2 < spreads[1]


def test_asked_for_the_fleet_file_nothing_calibrated_is_left(lived) -> None:
    """Switched off, a decision is that of the fleet file alone, and every value says so."""
    watch, learner, _, _ = lived
    off = switched_off(learner.in_use(), ReserveSettings())
    assert all(each.why_not == SWITCHED_OFF and not each.values for each in off.parts)
    assert (dict(off.profiles), off.outputs) == ({}, None)
    assert decide_settings(watch.settings, off).reserve == decide_settings(watch.settings).reserve
    table = calibrated.value_columns(off, [], error_defaults(), ("output", "", "", ""), T)
    rests = set(table["rests"]) - {""}
    assert all(
        T("calibrated.switched_off") in each or each in (T("calibrated.file"), T("calibrated.chosen")) for each in rests
    )


def test_every_value_of_a_decision_says_what_it_rests_on(lived) -> None:
    """No row of the table is silent, in both languages; fitted ones give rows, version and since when."""
    _, learner, _, _ = lived
    given = learner.in_use()
    for language in ("en", "zh"):
        t = speaker(language)
        table = calibrated.value_columns(given, [], error_defaults(), ("output", "1", "x", "y"), t)
        assert len({len(column) for column in table.values()}) == 1
        assert all(table["rests"])
    words = calibrated.part_rests(next(each for each in given.parts if each.values), False, T)
    assert "version" in words
    assert "in use since" in words
    worker = next(iter(given.profiles))
    assert calibrated.term_rests(given, worker, worker, T)["slo_risk"]
    assert DecideSettings().ttft_error_ratio == error_defaults()["ttft_error_ratio"]
    assert math.isfinite(given.reserve.quantile_ratio)
