"""Demo traffic: the asked rate, shared prefixes, and the same requests for the same seed."""

import numpy as np
import pytest

from demo.traffic import BATCH, HASH_BLOCK_TOKENS, INTERACTIVE, LONG_CONTEXT, DemoRequest, Traffic, TrafficMix

MIX = TrafficMix(rate_per_s=8.0, shares={INTERACTIVE: 0.6, BATCH: 0.3, LONG_CONTEXT: 0.1})


def _run(seed: int, end_s: float, step_s: float, mix: TrafficMix = MIX) -> list[DemoRequest]:
    traffic = Traffic(seed)
    return [request for step in range(1, round(end_s / step_s) + 1) for request in traffic.until(step * step_s, mix)]


def test_same_seed_same_requests_whatever_the_step() -> None:
    """Requests depend on the seed and on virtual time alone, not on how often anybody looks."""
    fine, coarse = _run(3, 40.0, 0.05), _run(3, 40.0, 2.0)
    assert len(fine) == len(coarse) > 200
    for a, b in zip(fine, coarse, strict=True):
        assert a.arrival_s == pytest.approx(b.arrival_s, abs=1e-9)
        assert (a.prompt_tokens, a.output_tokens, a.hash_ids) == (b.prompt_tokens, b.output_tokens, b.hash_ids)
    assert [r.prompt_tokens for r in _run(4, 40.0, 2.0)] != [r.prompt_tokens for r in coarse]


@pytest.mark.parametrize("burst_factor", [1.0, 5.0])
def test_arrivals_keep_the_mean_rate_and_bursts_are_burstier(burst_factor: float) -> None:
    """Bursts move arrivals together and leave their mean rate alone; without them counts are Poisson."""
    mix = TrafficMix(rate_per_s=8.0, shares=MIX.shares, burst_factor=burst_factor)
    arrivals = np.array([request.arrival_s for request in _run(11, 1500.0, 10.0, mix)])
    assert np.all(np.diff(arrivals) >= 0)
    assert len(arrivals) / 1500.0 == pytest.approx(8.0, rel=0.12)
    counts = np.bincount(arrivals.astype(int), minlength=1500)
    dispersion = counts.var() / counts.mean()
    assert dispersion > 2.0 if burst_factor > 1.0 else 0.8 < dispersion < 1.2


def test_no_rate_no_requests() -> None:
    """A rate of nothing makes nothing, and traffic comes back when the rate does."""
    traffic = Traffic(1)
    assert traffic.until(100.0, TrafficMix(rate_per_s=0.0, shares=MIX.shares)) == []
    assert traffic.until(110.0, MIX)


def test_turns_of_a_session_extend_each_other() -> None:
    """A later turn's prompt begins with the earlier one's, block by block, and no two sessions share new blocks."""
    seen: dict[int, DemoRequest] = {}
    turns = 0
    for request in _run(5, 120.0, 1.0):
        assert len(request.hash_ids) == request.prompt_tokens // HASH_BLOCK_TOKENS
        assert len(set(request.hash_ids)) == len(request.hash_ids)
        if request.session < 0:
            continue
        before = seen.get(request.session)
        if before is not None:
            assert request.hash_ids[: len(before.hash_ids)] == before.hash_ids
            assert request.prompt_tokens > before.prompt_tokens + before.output_tokens
            turns += 1
        seen[request.session] = request
    assert turns > 100
    system_blocks = INTERACTIVE.system_tokens // HASH_BLOCK_TOKENS
    owners = [block for request in seen.values() for block in request.hash_ids[system_blocks:]]
    assert len(owners) == len(set(owners))
