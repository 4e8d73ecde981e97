"""Errors of prediction, drift, output quantiles and the reserve that follows from them."""

import numpy as np
import pytest

from scoring.calibration_error import ErrorSample, Quantity, judged_fit, summarize
from scoring.calibration_reserve import growth_departures_ratio, reserve_for_slo
from scoring.calibration_windows import DecodeWindow, Kind
from scoring.demand import OutputTable
from scoring.drift import LEARN_COUNT, DriftState, drift_step, seeded
from scoring.model import PoolHistory, PoolReading, Role
from scoring.quantile_table import ALL, quantile_interval, quantile_table
from scoring.reserve import ReserveSettings

KIND = Kind(model="m", role=Role.DECODE, engine="sglang", version="1", accelerator_count=1)


def _samples(errors: np.ndarray, **more: object) -> list[ErrorSample]:
    return [
        ErrorSample(at_s=float(i), quantity=Quantity.STEP, predicted=0.02, actual=0.02 * (1 + e), **more)
        for i, e in enumerate(errors.tolist())
    ]


def test_summaries_give_bias_and_quantiles_apart_by_side() -> None:
    """Bias is the median signed error; quantiles are of its size; fit and hold-out are never mixed."""
    rng = np.random.default_rng(1)
    inside, outside = rng.normal(0.0, 0.01, 400), rng.normal(0.05, 0.02, 400)
    found = summarize([*_samples(inside, is_held_out=False), *_samples(outside)])
    by_side = {each.is_held_out: each for each in found}
    assert by_side[False].bias_ratio == pytest.approx(float(np.median(inside)))
    assert by_side[True].at(0.95) == pytest.approx(float(np.quantile(np.abs(outside), 0.95)))
    assert by_side[True].spread_ratio == pytest.approx(0.02, rel=0.15)


def test_quantiles_beyond_the_samples_are_not_given() -> None:
    """Three samples have a median and no 95th percentile; a class of three is not given a tail."""
    (whole, own) = summarize(_samples(np.array([0.1, 0.2, 0.3]), slo_class="batch", bucket=16.0))
    assert {whole.slo_class, own.slo_class} == {"all", "batch"}
    assert (own.at(0.5), own.at(0.95), own.spread_ratio) == (pytest.approx(0.2), None, None)
    assert summarize([ErrorSample(at_s=0.0, quantity=Quantity.TTFT, predicted=0.0, actual=1.0)]) == ()


def test_a_fit_is_judged_by_later_rows_only() -> None:
    """A change in the newest quarter shows in the held-out errors and not in the fit's own."""
    rng = np.random.default_rng(2)
    rows = []
    for i in range(400):
        batch, kv = float(rng.uniform(5, 50)), float(rng.uniform(5e3, 1e5))
        step = (0.01 + 1e-4 * batch + 1e-7 * kv) * (1 + 0.005 * rng.standard_normal()) * (1.3 if i >= 300 else 1.0)
        rows.append(
            DecodeWindow(
                at_s=float(i),
                pool="d/0",
                step_count=50.0,
                batch_count=batch,
                kv_tokens=kv,
                kv_doubt_tokens=1.0,
                step_s=step,
            )
        )
    judged = judged_fit(KIND, rows, [], [])
    whole = {each.is_held_out: each for each in judged.summaries() if each.bucket == float("inf")}
    assert abs(whole[False].bias_ratio) < 0.01
    assert whole[True].bias_ratio == pytest.approx(0.3, abs=0.03)
    assert judged.split_at_s == pytest.approx(399 * 0.75)


def _run(errors: np.ndarray) -> DriftState:
    state = DriftState()
    for i, error in enumerate(errors.tolist()):
        state = drift_step(state, float(i), error)
    return state


def test_drift_is_silent_on_steady_errors() -> None:
    """Twenty runs of 3,000 errors around a constant bias: at most one false alarm."""
    rng = np.random.default_rng(3)
    alarms = sum(_run(rng.normal(0.05, 0.03, 3000)).is_drifting for _ in range(20))
    assert alarms <= 1


@pytest.mark.parametrize(("shift", "word"), [(0.06, "longer"), (-0.06, "shorter")])
def test_drift_finds_a_lasting_shift_and_when_it_began(shift: float, word: str) -> None:
    """A shift of two deviations is found within 40 errors, its direction and its beginning with it."""
    rng = np.random.default_rng(4)
    errors = rng.normal(0.0, 0.03, 400)
    errors[300:] += shift
    state = _run(errors)
    assert state.direction == word
    assert 300 <= state.alarm_at_s <= 340
    assert abs(state.since_at_s - 300) <= 12


def test_one_wild_error_is_no_drift_and_unknown_changes_nothing() -> None:
    """A single error of a thousand percent, or NaN, sets nothing off."""
    errors = np.random.default_rng(5).normal(0.0, 0.03, 200)
    errors[100] = 10.0
    assert not _run(errors).is_drifting
    state = _run(errors[: LEARN_COUNT + 5])
    assert drift_step(state, 1e3, float("nan")) == state


def test_a_seeded_test_takes_no_bias_for_usual() -> None:
    """Seeded with errors off by 20 %, it finds the next ones to be off by 20 %; seeded with good ones, it is silent."""
    rng = np.random.default_rng(12)
    biased = seeded(rng.normal(0.2, 0.02, 200).tolist())
    good = seeded(rng.normal(0.0, 0.02, 200).tolist())
    assert (biased.mean_ratio, biased.is_drifting, seeded([]).count) == (0.0, False, 0)
    for i in range(100):
        biased = drift_step(biased, float(i), 0.2 + 0.02 * rng.standard_normal())
        good = drift_step(good, float(i), 0.02 * rng.standard_normal())
    assert biased.is_drifting
    assert not good.is_drifting


def test_quantile_intervals_cover_at_their_rate() -> None:
    """Order-statistics intervals of the 90th percentile hold it in at least 95 % of repeats (less 3 errors)."""
    rng = np.random.default_rng(6)
    truth = float(np.exp(1.2816))
    hits = 0
    for _ in range(400):
        found = quantile_interval(np.exp(rng.standard_normal(150)), 0.9)
        hits += found.low <= truth <= found.high
    assert hits / 400 >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 400)


def test_a_class_of_three_takes_the_wider_cell_and_says_so() -> None:
    """No tail is made of three samples; missing ones are counted; a class never seen gets everybody's."""
    rng = np.random.default_rng(7)
    classes = ["interactive"] * 200 + ["batch"] * 3
    prompts = np.full(203, 2000.0)
    outputs = np.append(rng.integers(50, 500, 200), [9000, 9000, 9000]).astype(float)
    table = quantile_table(classes, prompts, outputs)
    cell = table.of("batch", 2000.0)
    assert (cell.sample_count, cell.missing_count) == (3, 27)
    assert cell.taken_from == "all classes, this bucket"
    own = table.of("interactive", 2000.0)
    assert own.taken_from == ""
    assert table.of("nobody", 2000.0).slo_class == ALL
    found = table.output_table("interactive")
    assert isinstance(found, OutputTable)
    assert found.of(2000.0).at(0.5) == pytest.approx(float(np.median(outputs[:200])))
    assert quantile_table([], np.empty(0), np.empty(0)).output_table() is None


def test_quantiles_do_not_depend_on_order_and_rise() -> None:
    """Permuted requests give the same table; higher quantiles are never shorter."""
    rng = np.random.default_rng(8)
    prompts, outputs = rng.integers(1, 40_000, 500).astype(float), rng.integers(0, 3000, 500).astype(float)
    order = rng.permutation(500)
    table = quantile_table(["a"] * 500, prompts, outputs)
    assert table == quantile_table(["a"] * 500, prompts[order], outputs[order])
    for cell in table.cells:
        values = [point.value for point in cell.points]
        assert values == sorted(values)


def _history(net: float, spread: float) -> PoolHistory:
    rng = np.random.default_rng(9)
    used = 20_000 + np.cumsum(net + spread * rng.standard_normal(300))
    last = PoolReading(worker_id="d", role=Role.DECODE, usable_tokens=100_000.0)
    return PoolHistory(last=last, at_s=np.arange(300.0), columns={"used_tokens": used})


def test_a_steady_climb_departs_from_nothing_and_a_rough_one_does() -> None:
    """Departures of growth are zero on a straight line and grow with its roughness."""
    assert np.abs(growth_departures_ratio(_history(10.0, 0.0), 2.0)).max() < 1e-9
    small, large = (growth_departures_ratio(_history(10.0, s), 2.0).std() for s in (10.0, 100.0))
    assert large == pytest.approx(10 * small, rel=1e-6)
    assert growth_departures_ratio(_history(1.0, 1.0), 0.0).size == 0


def test_a_stricter_slo_keeps_more_back_and_unmeasured_knobs_stay_chosen() -> None:
    """Reserve knobs rise with the quantile; each has its sentence; nothing measured changes nothing."""
    departures = growth_departures_ratio(_history(10.0, 200.0), 2.0)
    ages = np.random.default_rng(10).uniform(0.2, 1.5, 500)
    errors = summarize(_samples(np.random.default_rng(11).normal(0.02, 0.05, 300)))
    loose, strict = (
        reserve_for_slo(q, ages_s=ages, departures_ratio=departures, summaries=errors) for q in (0.9, 0.99)
    )
    assert strict.settings.error_buffer_ratio > loose.settings.error_buffer_ratio > 0
    assert strict.settings.telemetry_delay_s > loose.settings.telemetry_delay_s
    assert strict.tpot_error_ratio == pytest.approx(float(np.hypot(0.02, 0.05)), rel=0.15)
    nothing = reserve_for_slo(0.95, ages_s=[], departures_ratio=np.empty(0))
    assert nothing.settings == ReserveSettings(growth_quantile_ratio=0.95)
    assert (nothing.ttft_error_ratio, nothing.tpot_error_ratio) == (None, None)
    assert not nothing.is_calibrated
    assert [each.name for each in nothing.knobs] == [each.name for each in strict.knobs]
    assert all(each.value == each.chosen for each in nothing.knobs if each.name != "growth_quantile_ratio")
