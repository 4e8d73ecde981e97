"""
Service formulas and profiles: closed form against the sum, published figures, files with every problem told.
"""

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoring.service import PROFILES, decode_run_s, decode_step_s, prefill_s, profile_from_mapping, transfer_s

positive = st.floats(1e-9, 1e-2)


@given(
    steps=st.integers(1, 400),
    batch=st.integers(1, 256),
    kv=st.integers(0, 10**6),
    base=positive,
    sequence=positive,
    token=st.floats(0, 1e-6),
    token2=st.floats(-1e-14, 1e-14),
)
def test_a_run_is_the_sum_of_its_steps(steps, batch, kv, base, sequence, token, token2):
    """k steps of an unchanged batch: the closed form equals the sum, each step reading `batch` tokens more."""
    reads = kv + batch * np.arange(steps, dtype=float)
    walked = (base + sequence * batch + token * reads + token2 * reads * reads).sum()
    closed = decode_run_s(float(steps), float(batch), float(kv), base, sequence, token, token2)
    assert closed == pytest.approx(walked, rel=1e-9, abs=1e-12)


def test_one_step_of_a_run_is_a_step():
    """The run's first step is `decode_step_s` where there is no quadratic term; elementwise on arrays."""
    batch, kv = np.array([1.0, 7.0]), np.array([100.0, 9000.0])
    np.testing.assert_allclose(
        decode_run_s(np.ones(2), batch, kv, 0.01, 1e-4, 1e-7, 0.0), decode_step_s(batch, kv, 0.01, 1e-4, 1e-7)
    )


@given(st.integers(1, 10_000), st.integers(0, 10_000), positive, positive)
def test_chunks_add_up(first, second, per_token, per_token2):
    """Two chunks cost what the whole prompt costs, but for a second base."""
    whole = prefill_s(float(first + second), 0.0, 0.5, per_token, per_token2)
    parts = prefill_s(float(first), 0.0, 0.5, per_token, per_token2)
    parts += prefill_s(float(second), float(first), 0.5, per_token, per_token2)
    assert parts - 0.5 == pytest.approx(whole, rel=1e-9)


def test_published_points():
    """Figures worked out from the published coefficients, in milliseconds."""
    h100 = PROFILES["llama-3.1-8b-h100-tp1"]
    n = 4096.0
    prefill_ms = 1e3 * prefill_s(n, 0.0, h100.prefill_base_s, h100.prefill_per_token_s, h100.prefill_per_token2_s)
    assert prefill_ms == pytest.approx(3.31 + 0.018697 * n + 4.647e-7 * n * n)
    step_ms = 1e3 * decode_step_s(
        64.0, 64_000.0, h100.decode_base_s, h100.decode_per_sequence_s, h100.decode_per_token_s
    )
    assert step_ms == pytest.approx(6.394 + 0.010914 * 64 + 4.2025e-5 * 64_000)
    dynamo = PROFILES["dynamo-mocker"]
    u = 0.5
    step_ms = 1e3 * (
        dynamo.decode_base_s + dynamo.decode_per_utilization_s * u + dynamo.decode_per_utilization2_s * u * u
    )
    assert step_ms == pytest.approx(-25.74 * u * u + 54.01 * u + 5.74)


def test_transfer_waits_behind_what_is_queued():
    """Latency, then own and queued bytes over the rate."""
    assert transfer_s(3e9, 1e9, 0.01, 2e9) == pytest.approx(5.01)


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_says_its_source_and_survives_a_file(name):
    """Registry laws: name is the key, the source is told, and the mapping of its fields gives it back."""
    profile = PROFILES[name]
    assert profile.name == name
    assert len(profile.source) > 20
    assert profile.bytes_per_token > 0
    assert profile_from_mapping(asdict(profile)) == profile
    n = np.arange(1.0, 9000.0, 100.0)
    times = prefill_s(n, 0.0 * n, profile.prefill_base_s, profile.prefill_per_token_s, profile.prefill_per_token2_s)
    assert (np.diff(times) > 0).all()


def test_a_bad_file_has_every_problem_told_at_once():
    """Unknown and missing keys, texts for numbers, negative and infinite values, an unknown curve."""
    values = asdict(PROFILES["qwen3-32b-h100-tp2"])
    del values["decode_base_s"]
    values |= {"prefill_base_s": "3", "prefill_per_token_s": -1.0, "bytes_per_token": float("inf"), "curve": "cubic"}
    values["colour"] = 1
    with pytest.raises(ValueError, match="service profile") as error:
        profile_from_mapping(values)
    for part in (
        "'colour' is no field",
        "decode_base_s is missing",
        "prefill_base_s is '3'",
        "prefill_per_token_s is -1.0",
        "bytes_per_token is inf",
        "curve is 'cubic'",
    ):
        assert part in str(error.value)
