"""
The safety reserve of every pool of a fleet, apart from any request: what the saturation chain measures headroom by.

The parts and their formulas are `reserve`'s; here they meet a judged fleet. Unknown growth, age or peers leave the
fallbacks that admission takes (`reserve.UNKNOWN_GROWTH_RATIO`), never nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from scoring import reserve
from scoring.model import FleetSnapshot, PoolSnapshot
from scoring.reserve import ReserveSettings

AGE_FALLBACK_S: Final = 10.0
"""Age assumed where none is known: where figures stop being trusted by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveParts:
    """
    What is kept back on one pool, in tokens.

    Attributes:
        delay_growth_tokens: Growth while figures are on their way and a decision takes effect, at a high quantile.
        failure_share_tokens: What the pool inherits when its largest peers die.
        prediction_error_tokens: Room for outputs longer than predicted.
        delay_s: Telemetry and decision delay that the first part covers.
        growth_is_known: False when the first part is the fallback share of usable.
    """

    delay_growth_tokens: float
    failure_share_tokens: float
    prediction_error_tokens: float
    delay_s: float
    growth_is_known: bool

    @property
    def tokens(self) -> float:
        """Return the three parts together."""
        return self.delay_growth_tokens + self.failure_share_tokens + self.prediction_error_tokens


def reserves(fleet: FleetSnapshot, knobs: ReserveSettings | None = None) -> Mapping[str, ReserveParts]:
    """Return pool id -> its reserve, for every pool whose capacity is known."""
    settings = knobs or ReserveSettings()
    found = {}
    for members in _by_role(fleet).values():
        held: dict[str, list[float]] = {}
        for pool in members:
            total = held.setdefault(pool.worker_id, [0.0, 0.0])
            total[0] += _committed(pool)
            total[1] += pool.composition.usable_tokens.value or 0.0
        ranked = sorted(held.items(), key=lambda item: (-item[1][0], item[0]))
        usable_all = sum(total[1] for _, total in ranked)
        nearest = ranked[: settings.failure_count + 1]
        for pool in members:
            gone = [total for worker, total in nearest if worker != pool.worker_id][: settings.failure_count]
            lost, survivors = sum(total[0] for total in gone), usable_all - sum(total[1] for total in gone)
            parts = _parts(pool, lost, survivors, settings)
            if parts is not None:
                found[pool.pool_id] = parts
    return found


def _by_role(fleet: FleetSnapshot) -> dict[str, list[PoolSnapshot]]:
    groups: dict[str, list[PoolSnapshot]] = {}
    for pool in fleet.pools:
        groups.setdefault(pool.role.value, []).append(pool)
    return groups


def _committed(pool: PoolSnapshot) -> float:
    committed = pool.composition.committed_tokens.value
    return committed if committed is not None else pool.composition.used_tokens.value or 0.0


def _parts(pool: PoolSnapshot, lost: float, survivors: float, settings: ReserveSettings) -> ReserveParts | None:
    usable = pool.composition.usable_tokens.value
    if not usable:
        return None
    age_s = pool.age_s if pool.age_s is not None else AGE_FALLBACK_S
    seen_s = settings.telemetry_delay_s if settings.telemetry_delay_s is not None else max(age_s, 0.0)
    delay_s = seen_s + settings.decision_delay_s
    net, std = pool.rates.net_tokens_per_s.value, pool.rates.net_std_tokens_per_s.value
    is_known = net is not None and std is not None
    growth = (
        float(reserve.delay_growth_tokens(net, std, delay_s, settings.growth_sigmas))
        if net is not None and std is not None
        else reserve.UNKNOWN_GROWTH_RATIO * usable
    )
    error = reserve.prediction_error_tokens(
        usable,
        0.0,
        pool.rates.mean_output_tokens.value or 0.0,
        max(pool.running_count.value or 0.0, 0.0),
        settings.error_buffer_ratio,
        settings.output_error_ratio,
    )
    share = reserve.failure_share_tokens(lost, usable, survivors, settings.failure_share_ratio)
    return ReserveParts(
        delay_growth_tokens=float(np.minimum(growth, usable)),
        failure_share_tokens=float(share),
        prediction_error_tokens=float(error),
        delay_s=delay_s,
        growth_is_known=is_known,
    )
