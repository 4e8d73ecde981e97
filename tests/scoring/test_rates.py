"""Laws of flows: counters are exact over restarts and gaps, one sample gives no flow, growth - release = net."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands.check import history_of
from scoring.model import PoolReading, Provenance, Role
from scoring.rates import increase, pool_rates, slope

STEPS = st.lists(st.integers(0, 1000).map(float), min_size=1, max_size=30)


def readings(times, role=Role.UNIFIED, own_clock=False, **columns):
    """A history with the given columns."""
    rows = []
    for index, at in enumerate(times):
        values = {name: column[index] for name, column in columns.items()}
        rows.append(
            PoolReading(worker_id="w", role=role, received_at_s=at, reported_at_s=at if own_clock else None, **values)
        )
    return history_of(rows)


@given(STEPS, st.sets(st.integers(1, 29)))
def test_an_increase_survives_restarts(steps, restarts):
    """Whatever falls back to zero in between, the increase is what was counted after each restart, never negative."""
    value, counter, expected = 500.0, [500.0], 0.0
    for index, step in enumerate(steps, start=1):
        fell = index in restarts and step < value
        value = step if fell else value + step
        expected += step
        counter.append(value)
    times = np.arange(len(counter), dtype=float)
    found = increase(times, np.array(counter))
    assert found.amounts[0] == pytest.approx(expected)
    assert found.elapsed_s == len(steps)


@given(STEPS, st.sets(st.integers(1, 20), max_size=8))
def test_a_gap_loses_nothing(steps, gaps):
    """Samples missing in the middle change no increase: counters carry over."""
    counter = np.cumsum([7.0, *steps, 3.0])
    times = np.arange(counter.size, dtype=float)
    holed = counter.copy()
    holed[[g for g in gaps if 0 < g < counter.size - 1]] = np.nan
    assert increase(times, holed).amounts == increase(times, counter).amounts


def test_counters_of_one_worker_restart_together():
    """A restart seen in one counter is a restart of all: a sibling that happens to be larger is not a difference."""
    times = np.arange(3.0)
    found = increase(times, np.array([100.0, 110.0, 5.0]), np.array([3.0, 4.0, 50.0]))
    assert found.amounts == (15.0, 51.0)
    assert found.reset_count == 1


@pytest.mark.parametrize("size", [0, 1])
def test_one_sample_gives_no_flow(size):
    """Every flow of a pool with at most one sample is unknown, with a reason."""
    history = readings([5.0] * max(size, 1), used_tokens=[10.0] * max(size, 1), finished_total=[4.0] * max(size, 1))
    at_s = 5.0 if size else 500.0  # Outside the window: no sample at all.
    rates = pool_rates(history, at_s, 10.0)
    for name in (
        "growth_tokens_per_s",
        "release_tokens_per_s",
        "net_tokens_per_s",
        "finished_per_s",
        "transfer_bytes_per_s",
        "prefill_duty_ratio",
    ):
        figure = getattr(rates, name)
        assert figure.provenance is Provenance.UNKNOWN
        assert figure.reason


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=2, max_size=20), st.sampled_from(Role))
@settings(max_examples=60, deadline=None)
def test_growth_less_release_is_net(steps, role):
    """Both gross flows are at least 0 and their difference is the net change, for every role and any course."""
    used, computed, u, c = [], [], 10_000.0, 0.0
    for add, gone in steps:
        u, c = max(0.0, u + add - gone), c + add
        used.append(u)
        computed.append(c)
    times = [float(i) for i in range(len(steps))]
    rates = pool_rates(
        readings(
            times,
            role,
            used_tokens=used,
            prefill_uncached_tokens_total=computed,
            decode_generated_tokens_total=computed,
        ),
        times[-1],
        100.0,
    )
    growth, release, net = (getattr(rates, f"{n}_tokens_per_s").value for n in ("growth", "release", "net"))
    assert growth >= 0
    assert release >= 0
    assert growth - release == pytest.approx(net, abs=1e-6)


def test_a_gauge_alone_gives_only_net():
    """Without counters growth and release are unknown; net is known."""
    rates = pool_rates(readings([0.0, 1.0, 2.0], used_tokens=[0.0, 10.0, 20.0]), 2.0, 10.0)
    assert rates.net_tokens_per_s.value == pytest.approx(10.0)
    assert rates.growth_tokens_per_s.provenance is rates.release_tokens_per_s.provenance is Provenance.UNKNOWN


def test_a_series_that_ranks_overwrite_gives_no_trend():
    """Unknown samples make unknown flows: nothing is drawn between figures of different ranks."""
    rates = pool_rates(readings([0.0, 1.0, 2.0], used_tokens=[None] * 3, running_count=[None] * 3), 2.0, 10.0)
    assert rates.net_tokens_per_s.provenance is Provenance.UNKNOWN


def test_the_same_published_figures_twice_take_no_time():
    """Polls between two publications see one state: rates use the engine's own time, not ours."""
    rows = [
        PoolReading(
            worker_id="w",
            received_at_s=t,
            reported_at_s=r,
            role=Role.PREFILL,
            prefill_uncached_tokens_total=c,
            prefill_busy_s_total=c / 1000,
        )
        for t, r, c in ((0.0, 0.0, 1000.0), (1.0, 0.0, 1000.0), (2.0, 2.0, 3000.0), (3.0, 2.0, 3000.0))
    ]
    rates = pool_rates(history_of(rows), 3.0, 10.0)
    assert rates.prefill_duty_ratio.value == pytest.approx(1.0)
    assert rates.prefill_tokens_per_s.value == pytest.approx(1000.0)


def test_step_time_and_batch_are_differences_of_the_moments():
    """100 steps of 4 s and a batch sum of 800 in the window, whatever came before."""
    rates = pool_rates(
        readings(
            [0.0, 10.0],
            Role.DECODE,
            decode_steps_total=[1e6, 1e6 + 100],
            decode_step_s_total=[5e5, 5e5 + 4.0],
            decode_batch_sum_total=[7e6, 7e6 + 800],
        ),
        10.0,
        60.0,
    )
    assert rates.step_time_s.value == pytest.approx(0.04)
    assert rates.mean_batch_count.value == pytest.approx(8.0)
    assert rates.step_time_s.provenance is Provenance.DERIVED


def test_a_speed_of_the_machine_outlives_the_window_and_traffic_does_not():
    """Idle now: prompt speed is the life's, said so; requests finished per second are 0, not the life's mean."""
    idle = readings(
        [0.0, 10.0],
        Role.PREFILL,
        prefill_uncached_tokens_total=[9e6, 9e6],
        prefill_busy_s_total=[600.0, 600.0],
        finished_total=[50.0, 50.0],
    )
    rates = pool_rates(idle, 10.0, 60.0)
    assert rates.prefill_tokens_per_s.value == pytest.approx(15000)
    assert "life" in rates.prefill_tokens_per_s.reason
    assert (rates.finished_per_s.value, rates.prefill_duty_ratio.value) == (0.0, 0.0)


def test_transfers_that_wait_and_never_finish_have_no_end():
    """Nothing finished in the window: unbounded is unknown, not 0; nothing waiting: 0."""

    def drain(waiting, done):
        history = readings(
            [0.0, 5.0], Role.PREFILL, queue_inflight_count=[waiting] * 2, transfers_total=[100.0, 100.0 + done]
        )
        return pool_rates(history, 5.0, 60.0).transfer_drain_s

    assert drain(170.0, 12.0).value == pytest.approx(170 / 2.4)
    assert drain(170.0, 0.0).provenance is Provenance.UNKNOWN
    assert drain(0.0, 0.0).value == 0.0


def test_no_request_in_the_window_has_no_latency():
    """A window without a first token has no time to first token: unknown, not 0 and not an older mean."""
    history = readings([0.0, 5.0], ttft_s_total=[80.0, 80.0], ttft_count_total=[10.0, 10.0])
    assert pool_rates(history, 5.0, 60.0).ttft_mean_s.provenance is Provenance.UNKNOWN


@given(st.floats(-50, 50), st.floats(0, 1000), st.integers(2, 30))
def test_the_trend_of_a_line_is_its_slope(per_s, start, count):
    """A straight gauge has its slope and no scatter; repeated instants count once."""
    times = np.arange(count, dtype=float)
    values = start + per_s * times
    trend, deviation = slope(np.repeat(times, 2), np.repeat(values, 2))
    assert trend == pytest.approx(per_s, abs=1e-6)
    assert deviation == pytest.approx(0.0, abs=1e-6)
    assert slope(times[:1], values[:1]) is None


def test_a_window_must_last():
    """A window of no length is a broken contract."""
    with pytest.raises(ValueError, match="window_s"):
        pool_rates(readings([0.0], used_tokens=[1.0]), 0.0, 0.0)


def test_lookups_that_repeat_bound_the_hit_ratio_and_credit_nothing():
    """Case P17: 566,000 of 1,590,000 tokens looked up are repeats, so true hits are at most 0: no point is given."""
    columns = {
        "prefix_hit_tokens_total": (0.0, 512_000.0),
        "prefix_query_tokens_total": (0.0, 1_590_000.0),
        "prompt_tokens_total": (0.0, 1_024_000.0),
        "retracted_total": (0.0, 553.0),
    }
    figure = pool_rates(readings((0.0, 5.0), **columns), 5.0, 60.0).prefix_hit_ratio
    assert (figure.value, figure.low, figure.high) == (None, 0.0, 0.0)
    assert figure.provenance is Provenance.ESTIMATED
    assert "566000" in figure.reason
    honest = pool_rates(
        readings((0.0, 5.0), **{**columns, "prefix_query_tokens_total": (0.0, 1_024_000.0)}), 5.0, 60.0
    ).prefix_hit_ratio
    assert honest.value == pytest.approx(0.5)
