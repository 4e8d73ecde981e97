"""
The simulation's look at a pool as the engine's own figures, in wall seconds.

A fleet at speed s is one whose every step takes 1/s as long: counters of seconds are divided by the speed, counters
of tokens are not, so that rates, duties and step times agree with each other on the reader's clock.
"""

import math
from typing import Final

import numpy as np

from demo.state import ITL_BOUNDS_S, Histogram, RankState
from simulation.layout import ITL_BINS_PER_E, ITL_FLOOR_S
from simulation.live import PoolView
from simulation.traffic import IntArray

GIGABYTE: Final = 1e9


def rank_state(view: PoolView, since: PoolView | None, *, mode: str, speed: float, at_s: float) -> RankState:
    """
    Return what a rank would publish of a look.

    Args:
        view: The look.
        since: The look at the worker's last start, whose counters are taken off; None: it never restarted.
        mode: "prefill", "decode" or "null".
        speed: Virtual seconds a wall second.
        at_s: Wall time of the look.
    """
    is_decode = mode == "decode"

    def count(name: str) -> int:
        return int(getattr(view, name)) - (int(getattr(since, name)) if since is not None else 0)

    def seconds(name: str) -> float:
        return float(getattr(view, name) - (getattr(since, name) if since is not None else 0.0)) / speed

    cached = count("prefix_hit_tokens_total")
    prompts = count("prompt_tokens_total")
    hit_ratio = cached / prompts if prompts > 0 else 0.0
    computing = view.waiting_uncached_tokens - view.queue_main_tokens - view.queue_bootstrap_tokens
    pending = view.queue_main_tokens
    if is_decode:
        pending = view.queue_prealloc_tokens + view.queue_retracted_tokens
    elif mode == "prefill":
        pending += view.queue_bootstrap_tokens
    return RankState(
        at_s=at_s,
        used_tokens=view.used_tokens,
        prefix_tokens=view.prefix_tokens,
        free_tokens=view.free_tokens,
        running_count=view.computing_count if mode == "prefill" else view.running_count,
        waiting_count=view.queue_arrived_count if is_decode else view.queue_main_count,
        bootstrap_count=view.queue_bootstrap_count,
        inflight_count=0 if is_decode else view.queue_inflight_count,
        prealloc_count=view.queue_prealloc_count,
        transfer_count=view.queue_transfer_count,
        retracted_count=view.queue_retracted_count,
        # The simulation's handshake takes no time: whoever waits for room waits for room alone.
        prealloc_ready_count=view.queue_prealloc_count,
        prealloc_ready_tokens=view.queue_prealloc_tokens,
        # The engine does not match prefixes of waiting prompts; it takes off its recent hit rate.
        waiting_uncached_tokens=computing + int(view.queue_main_tokens * (1.0 - hit_ratio)),
        pending_tokens=pending,
        prealloc_tokens=view.queue_prealloc_tokens,
        travelling_tokens=view.queue_transfer_tokens,
        decode_sum_tokens=view.running_tokens,
        prefill_tokens_total=count("prefill_uncached_tokens_total"),
        prefill_cached_tokens_total=cached,
        prefill_busy_s_total=seconds("prefill_busy_s_total"),
        prefill_passes_total=count("prefill_batches_total"),
        decode_steps_total=count("decode_steps_total"),
        decode_batch_sum=count("decode_batch_sum_total"),
        decode_step_s_sum=seconds("decode_step_s_total"),
        decode_batch_squared_sum=count("decode_batch_squared_total"),
        decode_batch_step_s_sum=seconds("decode_batch_step_s_total"),
        generated_tokens_total=count("generated_tokens_total"),
        retracted_total=count("retracted_total"),
        retracted_input_tokens_total=count("retracted_input_tokens_total"),
        retracted_output_tokens_total=count("retracted_output_tokens_total"),
        evicted_tokens_total=count("evicted_tokens_total"),
    )


def itl_histogram(counts: IntArray, speed: float) -> Histogram:
    """Return the simulation's inter-token gaps, counted in fine logarithmic bins, as the engine's histogram."""
    histogram = Histogram(ITL_BOUNDS_S)
    below = np.concatenate(([0], np.cumsum(counts)))
    # A gap of bin i lies in [floor e^(i/n), floor e^((i+1)/n)); the bin is counted below a bound that its middle is.
    edges = [
        min(max(round(ITL_BINS_PER_E * math.log(bound * speed / ITL_FLOOR_S)), 0), len(counts))
        for bound in histogram.bounds
    ]
    cumulative = [int(below[edge]) for edge in edges] + [int(below[-1])]
    histogram.counts = [after - before for before, after in zip([0, *cumulative[:-1]], cumulative, strict=True)]
    middles = ITL_FLOOR_S * np.exp((np.arange(len(counts)) + 0.5) / ITL_BINS_PER_E) / speed
    histogram.total = float(middles @ counts)
    return histogram
