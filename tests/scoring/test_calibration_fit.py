"""The estimator: known coefficients come back, intervals cover at their rate, what the load does not tell is said."""

from dataclasses import replace

import numpy as np
import pytest

from scoring.calibration import Told, fit_linear
from scoring.calibration_service import (
    DECODE_NAMES,
    fit_decode,
    fit_prefill,
    fit_service,
    fit_transfer,
    nearest_profile,
    predicted_steps_s,
)
from scoring.calibration_windows import DecodeWindow, Kind, PrefillWindow, TransferWindow
from scoring.model import Role
from scoring.service import PROFILES, prefill_s, profile_from_mapping

TRUE = PROFILES["qwen3-32b-h100-tp2"]
OTHER = PROFILES["llama-3.1-8b-h100-tp1"]
COEFFICIENTS = np.array([TRUE.decode_base_s, TRUE.decode_per_sequence_s, TRUE.decode_per_token_s])
KIND = Kind(model="m", role=Role.DECODE, engine="sglang", version="0.5.23", accelerator_count=2)


def _design(rng: np.random.Generator, count: int) -> np.ndarray:
    batch = rng.uniform(5, 60, count)
    return np.stack([np.ones(count), batch, batch * rng.uniform(500, 3000, count)], axis=1)


def _windows(rng: np.random.Generator, count: int, noise: float = 0.01, factor: float = 1.0) -> list[DecodeWindow]:
    design = _design(rng, count)
    steps = design @ COEFFICIENTS * factor * (1 + noise * rng.standard_normal(count))
    return [
        DecodeWindow(
            at_s=float(i),
            pool="d/0",
            step_count=50.0,
            batch_count=row[1],
            kv_tokens=row[2],
            kv_doubt_tokens=10.0,
            step_s=step,
        )
        for i, (row, step) in enumerate(zip(design.tolist(), steps.tolist(), strict=True))
    ]


@pytest.mark.parametrize("outlier_share", [0.0, 0.05])
def test_intervals_cover_at_the_stated_rate(outlier_share: float) -> None:
    """95 % intervals hold the truth in 95 % of repeated fits (within four standard errors), outliers or not."""
    rng = np.random.default_rng(11)
    repeats, covered = 300, np.zeros(3)
    for _ in range(repeats):
        design = _design(rng, 80)
        clean = design @ COEFFICIENTS
        target = clean * (1 + 0.02 * rng.standard_normal(80))
        target[rng.random(80) < outlier_share] *= 3.0
        fit = fit_linear(DECODE_NAMES, design, target, 1.0 / clean**2)
        covered += [
            each.low is not None and each.low <= true <= each.high
            for each, true in zip(fit.coefficients, COEFFICIENTS, strict=True)
        ]
    slack = 4 * np.sqrt(0.95 * 0.05 / repeats)
    assert (np.abs(covered / repeats - 0.95) < slack).all(), covered / repeats


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05])
def test_known_coefficients_come_back_under_noise(noise: float) -> None:
    """Within the noise over the root of the rows; without noise, to the last digits."""
    rng = np.random.default_rng(2)
    fit = fit_decode(_windows(rng, 600, noise))
    error = np.abs(fit.values() / COEFFICIENTS - 1)
    assert (error < max(1e-6, 3 * noise)).all(), error
    assert all(each.told is Told.FITTED for each in fit.coefficients)


@pytest.mark.parametrize(("read_count", "is_bent"), [(60, True), (130, False), (320, False)])
def test_rows_of_what_is_read_stand_alone_where_they_are_enough(read_count: int, is_bent: bool) -> None:
    """
    Rows of what the pool holds, 500 tokens a sequence short of what is read, bend the part per sequence only where
    rows of what is read are less than half of all and few.
    """
    rng = np.random.default_rng(8)
    read = [DecodeWindow(**{**_fields(row), "is_kv_read": True}) for row in _windows(rng, read_count)]
    held = _windows(rng, 130 if read_count < 300 else 1000)
    short = [DecodeWindow(**{**_fields(row), "kv_tokens": row.kv_tokens - 500 * row.batch_count}) for row in held]
    error = fit_decode(read + short).of("decode_per_sequence_s").value / TRUE.decode_per_sequence_s - 1
    assert (abs(error) > 0.2) == is_bent, error


def test_outliers_move_a_coefficient_less_than_its_interval() -> None:
    """A twentieth of the rows three times as long changes no coefficient beyond the interval of the clean fit."""
    rng = np.random.default_rng(3)
    rows = _windows(rng, 400)
    clean = fit_decode(rows)
    spoilt = [
        row if i % 20 else DecodeWindow(**{**_fields(row), "step_s": row.step_s * 3}) for i, row in enumerate(rows)
    ]
    fit = fit_decode(spoilt)
    for each, was in zip(fit.coefficients, clean.coefficients, strict=True):
        assert abs(each.value - was.value) < 1.5 * (was.high - was.low)
    assert fit.outlier_count >= 15


def _fields(row: DecodeWindow) -> dict:
    return {name: getattr(row, name) for name in DecodeWindow.__dataclass_fields__}


def test_constant_load_is_said_and_the_prior_keeps_its_shape_at_the_measured_level() -> None:
    """All rows at one batch and one KV: nothing but the level is told; predictions at that load are right."""
    rng = np.random.default_rng(4)
    row = np.array([1.0, 20.0, 24_000.0])
    true = float(row @ COEFFICIENTS)
    rows = [
        DecodeWindow(
            at_s=float(i),
            pool="d/0",
            step_count=50.0,
            batch_count=20.0,
            kv_tokens=24_000.0,
            kv_doubt_tokens=10.0,
            step_s=true * (1 + 0.01 * rng.standard_normal()),
        )
        for i in range(100)
    ]
    fit = fit_decode(rows, OTHER)
    sequence, token = fit.of("decode_per_sequence_s"), fit.of("decode_per_token_s")
    assert sequence.told is token.told is Told.PRIOR
    assert sequence.low is None
    assert sequence.value / token.value == pytest.approx(OTHER.decode_per_sequence_s / OTHER.decode_per_token_s)
    assert float(row @ fit.values()) == pytest.approx(true, rel=0.005)
    assert any("did not vary" in note for note in fit.notes)


def test_constant_load_without_a_prior_leaves_the_coefficient_unknown() -> None:
    """Unknown stays None, never 0."""
    design = np.tile([1.0, 20.0, 24_000.0], (50, 1))
    fit = fit_linear(DECODE_NAMES, design, np.full(50, 0.02), np.ones(50))
    assert fit.of("decode_per_token_s").value is None
    assert fit.values() is None


def test_too_little_is_refused_and_the_missing_rows_are_counted() -> None:
    """Three rows give no fit: the prior's values, marked, and how many rows are missing."""
    fit = fit_decode(_windows(np.random.default_rng(5), 3), OTHER)
    assert not fit.is_made
    assert (fit.row_count, fit.missing_count) == (3, 27)
    assert [each.value for each in fit.coefficients] == [getattr(OTHER, name) for name in DECODE_NAMES]
    assert all(each.told is Told.PRIOR for each in fit.coefficients)
    assert "27 more" in fit.notes[0]
    assert fit_decode([], None).missing_count == 30


def test_rows_that_are_not_numbers_are_left_out_and_order_does_not_matter() -> None:
    """NaN, infinity and zero times change nothing; a permutation gives the same coefficients."""
    rng = np.random.default_rng(6)
    design = _design(rng, 100)
    target = design @ COEFFICIENTS * (1 + 0.01 * rng.standard_normal(100))
    fit = fit_linear(DECODE_NAMES, design, target, np.ones(100))
    bad = np.array([[1.0, np.nan, 2.0], [1.0, 2.0, 3.0], [1.0, np.inf, 3.0]])
    more = fit_linear(DECODE_NAMES, np.vstack([bad, design]), np.append([1.0, 0.0, 1.0], target), np.ones(103))
    order = rng.permutation(100)
    mixed = fit_linear(DECODE_NAMES, design[order], target[order], np.ones(100))
    assert more.values() == pytest.approx(fit.values(), rel=1e-9)
    assert mixed.values() == pytest.approx(fit.values(), rel=1e-6)
    assert more.row_count == 100


def test_a_cost_is_never_negative() -> None:
    """Rows that put a coefficient below 0 leave it at the bound, said, and the rest is fitted without it."""
    rng = np.random.default_rng(7)
    design = _design(rng, 200)
    target = design @ np.array([0.02, -1e-5, 4e-8]) * (1 + 0.002 * rng.standard_normal(200))
    fit = fit_linear(DECODE_NAMES, design, target, np.ones(200))
    assert fit.of("decode_per_sequence_s").told is Told.ZERO
    assert (fit.values() >= 0).all()


def test_mismatched_shapes_are_refused() -> None:
    """A caller's mistake is a ValueError with the shapes."""
    with pytest.raises(ValueError, match="design"):
        fit_linear(("a", "b"), np.ones((5, 3)), np.ones(5), np.ones(5))


def test_gauge_doubt_does_not_flatten_the_slope() -> None:
    """KV known only roughly in most rows: the slope stays within 3 %, where equal weights lose more than that."""
    rng = np.random.default_rng(8)
    rows = []
    for i, (_, batch, kv) in enumerate(_design(rng, 800).tolist()):
        doubt = 20.0 if i % 3 == 0 else 0.4 * kv
        step = float(np.array([1.0, batch, kv]) @ COEFFICIENTS)
        seen = max(kv + doubt * rng.standard_normal(), batch)
        rows.append(
            DecodeWindow(
                at_s=float(i),
                pool="d/0",
                step_count=50.0,
                batch_count=batch,
                kv_tokens=seen,
                kv_doubt_tokens=doubt,
                step_s=step,
            )
        )
    slope = fit_decode(rows).of("decode_per_token_s").value / TRUE.decode_per_token_s
    design = np.array([[1.0, row.batch_count, row.kv_tokens] for row in rows])
    target = np.array([row.step_s for row in rows])
    naive = np.linalg.lstsq(design, target, rcond=None)[0][2] / TRUE.decode_per_token_s
    assert abs(slope - 1) < 0.03 < abs(naive - 1)


def _prompts(count: int, is_whole: bool = True) -> list[PrefillWindow]:
    rng = np.random.default_rng(9)
    rows = []
    for i in range(count):
        new, hit = float(rng.integers(100, 8000)), float(rng.integers(0, 6000))
        coefficients = (TRUE.prefill_base_s, TRUE.prefill_per_token_s, TRUE.prefill_per_token2_s)
        busy_s = prefill_s(new, hit, *coefficients)
        rows.append(
            PrefillWindow(
                at_s=float(i),
                pool="p/0",
                new_tokens=new,
                hit_tokens=hit,
                busy_s=busy_s,
                request_count=1.0,
                is_whole=is_whole,
            )
        )
    return rows


def test_prompts_alone_give_base_rate_and_context_term() -> None:
    """The quadratic law comes back exactly, cached context counted as context."""
    fit = fit_prefill(_prompts(60))
    wanted = (TRUE.prefill_base_s, TRUE.prefill_per_token_s, TRUE.prefill_per_token2_s)
    assert [each.value for each in fit.coefficients] == pytest.approx(wanted, rel=1e-6)


def test_a_pool_never_idle_is_fitted_roughly_and_says_so() -> None:
    """Stretches that may hold parts of prompts are used only when there is nothing better, with a note."""
    fit = fit_prefill(_prompts(60, is_whole=False))
    assert fit.is_made
    assert any("rough" in note for note in fit.notes)
    assert not fit_prefill(_prompts(30, is_whole=False)).is_made


def test_prompts_that_begin_in_one_window_and_end_in_the_next_are_still_told_by_their_sums() -> None:
    """
    Work of a never idle pool cut at every window, its end counted in the later one: rows of one window say nothing
    of a prompt, rows of five prompts together give the time per token.
    """
    rng = np.random.default_rng(10)
    cut: list[PrefillWindow] = []
    for row in _prompts(200, is_whole=False):
        share = float(rng.uniform(0.0, 1.0))
        for at_s, part, count in ((2 * row.at_s, share, 0.0), (2 * row.at_s + 1, 1.0 - share, 1.0)):
            begun = {"new_tokens": part * row.new_tokens, "busy_s": part * row.busy_s, "hit_tokens": row.hit_tokens}
            cut.append(replace(row, at_s=at_s, request_count=count, **begun))
    fit = fit_prefill(cut)
    assert fit.is_rough
    predicted = sum(prefill_s(row.new_tokens, 0.0, *[each.value for each in fit.coefficients]) for row in _prompts(200))
    exact = sum(
        prefill_s(row.new_tokens, 0.0, TRUE.prefill_base_s, TRUE.prefill_per_token_s, TRUE.prefill_per_token2_s)
        for row in _prompts(200)
    )
    assert predicted == pytest.approx(exact, rel=0.15)


def test_transfers_give_latency_and_bandwidth() -> None:
    """Hand-overs alone on the link are taken and those beside others left out."""
    rng = np.random.default_rng(10)
    rows = []
    for i in range(80):
        size = float(rng.uniform(1e8, 2e9))
        crowd = 1.0 if i % 2 else 2.5
        rows.append(
            TransferWindow(
                at_s=float(i),
                pool="p/0",
                transfer_count=1.0,
                size_bytes=size,
                latency_s=0.004 + crowd * size / 25e9,
                is_alone=bool(i % 2),
            )
        )
    service = fit_service(KIND, [], [], rows)
    assert service.transfer.of("transfer_latency_s").value == pytest.approx(0.004, rel=1e-6)
    assert service.bandwidth_bytes_per_s == pytest.approx(25e9, rel=1e-6)
    assert not fit_transfer(rows[:5]).is_made


def test_nearest_profile_is_the_one_that_made_the_rows() -> None:
    """The prior of first resort is the published profile whose predictions are nearest."""
    rows = _windows(np.random.default_rng(12), 100)
    assert nearest_profile(rows, _prompts(20)).name == TRUE.name
    assert nearest_profile([]).name in PROFILES


def test_a_pool_slower_than_its_kind_is_named() -> None:
    """One of five pools takes a fifth longer: its bias is found and a note names it."""
    rng = np.random.default_rng(13)
    rows = []
    for pool in range(5):
        for row in _windows(rng, 80, factor=1.2 if pool == 4 else 1.0):
            rows.append(DecodeWindow(**{**_fields(row), "pool": f"d-{pool}/0"}))
    service = fit_service(KIND, rows, [], [])
    assert service.pool_bias_ratio["d-4/0"] > 0.1
    assert any(note.startswith("d-4/0 takes") for note in service.notes)


def test_a_profile_takes_the_missing_half_from_a_sibling_and_survives_a_file() -> None:
    """A decode kind's profile has the prefill kind's prompts; written and read back it is the same."""
    prefill_kind = Kind(model="m", role=Role.PREFILL, engine="sglang", version="0.5.23", accelerator_count=2)
    decode = fit_service(KIND, _windows(np.random.default_rng(14), 100), [], [], bytes_per_token=1000.0)
    prefill = fit_service(prefill_kind, [], _prompts(60), [])
    profile = decode.profile((decode, prefill))
    assert profile.prefill_per_token_s == pytest.approx(TRUE.prefill_per_token_s, rel=1e-6)
    assert profile.bytes_per_token == 1000.0
    values = {name: getattr(profile, name) for name in type(profile).__dataclass_fields__}
    assert profile_from_mapping(values) == profile
    rows = _windows(np.random.default_rng(15), 50, noise=0.0)
    assert predicted_steps_s(rows, profile) == pytest.approx([row.step_s for row in rows], rel=0.02)
