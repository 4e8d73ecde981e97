"""Synthetic and bent traffic: seeded, of the stated rate and shape, and nothing is lost on the way."""

import numpy as np
import pytest

from simulation.reuse import prefix_reuse
from simulation.workload import (
    ARRIVALS,
    LengthMix,
    Synthesis,
    scale_time,
    select,
    spread_ticks,
    stagger_sessions,
    synthesise,
    thin,
)

MIX = (
    LengthMix(weight=3, tenant="chat", prefix_count=4, prefix_tokens=512, prompt_median_tokens=900),
    LengthMix(weight=1, tenant="batch", prompt_median_tokens=6000, output_median_tokens=40),
)


@pytest.mark.parametrize("arrivals", ARRIVALS)
def test_same_seed_same_traffic_and_the_stated_rate(arrivals: str) -> None:
    """The same recipe and seed give the same bytes, another seed does not, and the rate is the one asked for."""
    recipe = Synthesis(rate_per_s=20.0, duration_s=500.0, arrivals=arrivals, mixes=MIX, period_s=100.0)
    one, two, other = (synthesise(recipe, seed=seed) for seed in (5, 5, 6))
    assert one.traffic.arrival_s.tobytes() == two.traffic.arrival_s.tobytes()
    assert one.traffic.hash_ids.tobytes() == two.traffic.hash_ids.tobytes()
    assert one.traffic.prompt_tokens.tobytes() != other.traffic.prompt_tokens.tobytes()
    assert len(one) == pytest.approx(10_000, rel=0.1)
    assert np.all(np.diff(one.traffic.arrival_s) >= 0)


def test_gamma_arrivals_are_as_bursty_as_asked() -> None:
    """The squared coefficient of variation of the gaps is the burstiness; Poisson's is 1."""
    for arrivals, wanted in (("gamma", 6.0), ("poisson", 1.0)):
        recipe = Synthesis(rate_per_s=50.0, duration_s=1000.0, arrivals=arrivals, burstiness=6.0)
        gaps = np.diff(synthesise(recipe, seed=1).traffic.arrival_s)
        assert gaps.var() / gaps.mean() ** 2 == pytest.approx(wanted, rel=0.12)


def test_shared_prefixes_are_shared_and_own_blocks_are_not() -> None:
    """An endless cache hits the shared prefix of every chat but the first of each, and nothing of the batch kind."""
    trace = synthesise(Synthesis(rate_per_s=10.0, duration_s=100.0, mixes=MIX), seed=3)
    batch = select(trace, labels={"tenant": ("batch",)})
    assert prefix_reuse(batch.traffic, block_size_tokens=64, rule="infinite").prefix_hit_tokens == 0
    chat = select(trace, labels={"tenant": ("chat",)})
    hits = prefix_reuse(chat.traffic, block_size_tokens=64, rule="infinite").prefix_hit_tokens
    longest = np.minimum(512, (chat.traffic.prompt_tokens - 1) // 64 * 64).sum()
    assert longest - 4 * 512 <= hits <= longest


def test_filters_partition_and_keep_rows_whole() -> None:
    """Two halves of a filter are the whole; a row keeps its hashes, row number and labels."""
    trace = synthesise(Synthesis(rate_per_s=10.0, duration_s=60.0, mixes=MIX), seed=3)
    short, long = select(trace, prompt_tokens=(0, 999)), select(trace, prompt_tokens=(1000, 2**40))
    assert len(short) + len(long) == len(trace)
    assert sorted([*short.row_numbers, *long.row_numbers]) == trace.row_numbers.tolist()
    assert len(short.traffic.hash_ids) + len(long.traffic.hash_ids) == len(trace.traffic.hash_ids)
    with pytest.raises(ValueError, match="it has tenant"):
        select(trace, labels={"colour": ("red",)})


def test_time_bends_keep_every_request() -> None:
    """Scaling halves the span, thinning keeps a subset, staggering and spreading lose nobody."""
    trace = synthesise(Synthesis(rate_per_s=10.0, duration_s=60.0, mixes=MIX), seed=3)
    assert scale_time(trace, 2.0).report.span_s == pytest.approx(trace.report.span_s / 2)
    thinned = thin(trace, 0.5, seed=1)
    assert set(thinned.row_numbers) < set(trace.row_numbers)
    assert spread_ticks(trace, seed=1) is trace
    moved = stagger_sessions(trace, 30.0, label="tenant", seed=2)
    assert sorted(moved.row_numbers) == trace.row_numbers.tolist()
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="speed"):
            scale_time(trace, bad)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rate_per_s": 0.0}, "rate_per_s"),
        ({"rate_per_s": float("nan")}, "rate_per_s"),
        ({"duration_s": -1.0}, "duration_s"),
        ({"swing_ratio": 2.0}, "swing_ratio"),
        ({"mixes": ()}, "mixes"),
        ({"rate_per_s": 1e6, "duration_s": 1e6}, "at most"),
    ],
)
def test_absurd_recipes_are_refused_by_name(change: dict[str, object], words: str) -> None:
    """A recipe that cannot be is refused naming the field and the allowed range."""
    with pytest.raises(ValueError, match=words):
        Synthesis(**change)
