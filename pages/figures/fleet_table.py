"""
The Fleet page's table: one row a pool, numbers as numbers so that they sort, a trend of the last minutes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from pages.figures.fleet import committed_ratio
from pages.figures.terms import STATES
from pages.texts import Say
from scoring.capacity import compose_history
from scoring.model import PoolHistory, PoolSnapshot, pool_id
from scoring.units import GIB_BYTES, MILLISECONDS_PER_S, tokens_to_blocks_down, tokens_to_bytes

TREND_POINTS: Final = 40
"""Chosen: a cell is about 120 pixels wide."""


def trends(histories: Sequence[PoolHistory], end_s: float, window_s: float) -> dict[str, list[float | None]]:
    """
    Return committed / usable over the last `window_s` seconds by pool, TREND_POINTS values, None where unknown.

    Points are the newest sample of each slot, so that a gap in the samples is a gap in the line.
    """
    slot_s = window_s / TREND_POINTS
    lines = {}
    for history in histories:
        slots = np.floor((history.at_s - (end_s - window_s)) / slot_s).astype(np.int64)
        inside = (slots >= 0) & (slots <= TREND_POINTS)
        slots = np.minimum(slots, TREND_POINTS - 1)
        # The last sample of each slot: where the next sample is in another one.
        is_last = inside & np.append(slots[1:] != slots[:-1], True)
        picked = np.flatnonzero(is_last)
        line: list[float | None] = [None] * TREND_POINTS
        if len(picked):
            thin = replace(
                history,
                at_s=history.at_s[picked],
                columns={name: column[picked] for name, column in history.columns.items()},
            )
            words = compose_history(thin)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = words["committed_tokens"] / words["usable_tokens"]
            for slot, value in zip(slots[picked].tolist(), ratio.tolist(), strict=True):
                line[slot] = value if np.isfinite(value) else None
        lines[pool_id(history.last.worker_id, history.last.dp_rank)] = line
    return lines


def _blocks(pool: PoolSnapshot) -> float | None:
    tokens, block = pool.composition.free_tokens.value, pool.block_size_tokens.value
    return tokens_to_blocks_down(tokens, block) if tokens is not None and block else None


def _gib(pool: PoolSnapshot) -> float | None:
    tokens, per_token = pool.composition.usable_tokens.value, pool.bytes_per_token.value
    return tokens_to_bytes(tokens, per_token) / GIB_BYTES if tokens is not None and per_token else None


def _whole(value: float | None) -> float | None:
    return None if value is None else float(round(value))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * MILLISECONDS_PER_S


def table(pools: Sequence[PoolSnapshot], lines: Mapping[str, Sequence[float | None]], t: Say) -> dict[str, list[Any]]:
    """Return columns of equal length, by the key of their heading; None is unknown."""
    return {
        "pool": [pool.pool_id for pool in pools],
        "role": [t(f"common.role_{pool.role.value}") for pool in pools],
        "state": [f"{STATES[pool.state.value][0]} {t(f'common.state_{pool.state.value}')}" for pool in pools],
        "age": [None if pool.age_s is None else round(pool.age_s, 1) for pool in pools],
        "committed": [committed_ratio(pool) for pool in pools],
        "trend": [list(lines.get(pool.pool_id, ())) for pool in pools],
        "available": [_whole(pool.composition.available_tokens.value) for pool in pools],
        "free_blocks": [_blocks(pool) for pool in pools],
        "running": [pool.running_count.value for pool in pools],
        "waiting": [pool.waiting_count.value for pool in pools],
        "queued": [_whole(pool.composition.queued_tokens.value) for pool in pools],
        "net": [_whole(pool.rates.net_tokens_per_s.value) for pool in pools],
        "step": [_ms(pool.rates.step_time_s.value) for pool in pools],
        "duty": [pool.rates.prefill_duty_ratio.value for pool in pools],
        "hit": [pool.rates.prefix_hit_ratio.value for pool in pools],
        "usable": [_whole(pool.composition.usable_tokens.value) for pool in pools],
        "memory": [_gib(pool) for pool in pools],
        "offloaded": [_whole(pool.composition.offloaded_tokens.value) for pool in pools],
        "model": [pool.model for pool in pools],
        "engine": [" ".join(filter(None, (pool.engine, pool.version))) for pool in pools],
        "labels": [", ".join(f"{key}={value}" for key, value in sorted(pool.labels.items())) for pool in pools],
    }


TEXTS: Final = ("pool", "role", "state", "model", "engine", "labels")
WHOLE_NUMBERS: Final = ("available", "free_blocks", "running", "waiting", "queued", "net", "usable", "offloaded")
