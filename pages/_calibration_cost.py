"""
What keeping room back costs: the same traffic on one pool under several reserves, replayed with calibrated times.
"""

from typing import Final

import numpy as np

from scoring.model import Role
from scoring.service import ServiceProfile, decode_step_s
from simulation.fleet import FleetSpec, PoolSpec
from simulation.simulate import SimulationOptions, simulate
from simulation.traffic import TrafficArrays

RESERVES_TOKENS: Final = (0, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Kept back per admitted request, as SGLang's `num_reserved_decode_tokens` is."""
REQUESTS: Final = 120
SECONDS: Final = 180.0
LOAD_RATIO: Final = 1.15
"""Chosen: traffic that wants 15 % more than the pool holds, since a reserve shows its worth only near the brim."""


def reserve_cost(
    profile: ServiceProfile, usable_tokens: float, block_size_tokens: float, *, mean_tokens: float, seed: int = 1
) -> list[tuple[float, float, float]]:
    """
    Return (mean share of usable kept back, retractions per 100 requests, TTFT p95 in s), one a reserve, ascending.

    Args:
        profile: Service times.
        usable_tokens: Of the pool; shrunk so that REQUESTS can fill it in SECONDS.
        block_size_tokens: Allocation unit.
        mean_tokens: Mean KV of a running sequence; half of it taken as prompt, and as much as output.
        seed: Of lengths and arrivals.
    """
    mean = min(max(mean_tokens, 128.0), 8192.0)
    rng = np.random.default_rng(seed)
    prompts = np.maximum(rng.lognormal(np.log(mean * 0.7), 0.5, REQUESTS), 16).astype(np.int64)
    outputs = np.maximum(rng.lognormal(np.log(mean * 0.5), 0.7, REQUESTS), 8).astype(np.int64)
    # Little's law: sequences at once = arrivals per second * steps * seconds a step; the pool holds a bit less.
    step_s = decode_step_s(
        8.0, 8.0 * mean, profile.decode_base_s, profile.decode_per_sequence_s, profile.decode_per_token_s
    )
    at_once = REQUESTS / SECONDS * float(outputs.mean()) * step_s
    tokens = at_once * float((prompts + outputs / 2.0).mean()) / LOAD_RATIO
    longest = float((prompts + outputs).max())
    block = max(int(block_size_tokens), 1)
    usable = int(min(max(tokens, 1.3 * longest), usable_tokens)) // block * block
    squeeze = max(1.0, max(tokens, 1.3 * longest) / max(tokens, 1.0))
    arrival_s = np.sort(rng.uniform(0.0, SECONDS / squeeze, REQUESTS))
    traffic = TrafficArrays(arrival_s=arrival_s, prompt_tokens=prompts, output_tokens=outputs)
    points = []
    for reserve in RESERVES_TOKENS:
        pool = PoolSpec(
            worker="w",
            role=Role.UNIFIED,
            usable_tokens=max(usable, block),
            block_size_tokens=block,
            profile=profile,
            reserve_tokens=reserve,
            is_prefix_cached=False,
        )
        run = simulate(traffic, FleetSpec(pools=(pool,)), options=SimulationOptions(sample_period_s=1.0))
        held = run.samples.reserved_tokens[:, 0] / run.samples.usable_tokens[:, 0]
        ttft = run.requests.ttft_s[np.isfinite(run.requests.ttft_s)]
        points.append(
            (
                float(held.mean()) if len(held) else 0.0,
                100.0 * float(run.requests.retraction_count.sum()) / REQUESTS,
                float(np.quantile(ttft, 0.95)) if len(ttft) else float("nan"),
            )
        )
    return sorted(points)
