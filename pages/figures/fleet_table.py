"""
The Fleet page's table: one row a pool, numbers as numbers so that they sort, a trend of the last minutes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pages.figures.fleet import committed_ratio
from pages.figures.terms import STATES
from pages.texts import Say
from scoring.capacity import compose_history
from scoring.model import FloatArray, PoolHistory, PoolSnapshot, pool_id
from scoring.units import GIB_BYTES, MILLISECONDS_PER_S, tokens_to_blocks_down, tokens_to_bytes

TREND_POINTS: Final = 40
"""Chosen: a cell is about 120 pixels wide."""


def trends(histories: Sequence[PoolHistory], end_s: float, window_s: float) -> dict[str, list[float]]:
    """
    Return committed / usable by pool since the last gap within the last `window_s` seconds, at most TREND_POINTS.

    A table's line cannot show a gap, so the line starts anew after one; it never bridges what was not seen.
    """
    lines = {}
    for history in histories:
        picked = _since_gap(history.at_s, end_s - window_s, end_s)
        thin = replace(
            history,
            at_s=history.at_s[picked],
            columns={name: column[picked] for name, column in history.columns.items()},
        )
        words = compose_history(thin)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = words["committed_tokens"] / words["usable_tokens"]
        unknown = np.flatnonzero(~np.isfinite(ratio))
        known = ratio[unknown[-1] + 1 :] if len(unknown) else ratio
        lines[pool_id(history.last.worker_id, history.last.dp_rank)] = known.round(4).tolist()
    return lines


def _since_gap(at_s: FloatArray, start_s: float, end_s: float) -> NDArray[np.int64]:
    """Return indices of evenly thinned samples in [start_s, end_s] after the last gap, the newest one included."""
    places = np.flatnonzero((at_s >= start_s) & (at_s <= end_s))
    if len(places) > 2:
        steps = np.diff(at_s[places])
        gaps = np.flatnonzero(steps > max(5.0, 4.0 * float(np.median(steps))))
        if len(gaps):
            places = places[gaps[-1] + 1 :]
    stride = -(-len(places) // TREND_POINTS) or 1
    return places[::-1][::stride][::-1]


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


def table(pools: Sequence[PoolSnapshot], lines: Mapping[str, Sequence[float]], t: Say) -> dict[str, list[Any]]:
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
