"""
What the Saturation page reads: chains, alerts and reserves of the running collector, or, at a past instant, what the
store says of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from collectors import alerts
from collectors.alerts import AlertCenter
from collectors.alerts_thresholds import EVENT_FORETOLD, EVENT_THRESHOLD, Thresholds, noted_threshold
from collectors.alerts_watch import EVENT_WATCH
from collectors.store import Event
from pages import _context as context
from pages._in_use import in_use
from pages.figures.saturation import Row
from scoring.alarm import PoolRisk, pool_risk
from scoring.alarm_threshold import FORECAST_BASIS, Threshold
from scoring.calibration_in_use import InUse
from scoring.chain import EVENT_ALARM, EVENT_SIGN, EVENT_STAGE, ChainState
from scoring.chain_evidence import STAGES, Sign, Stage
from scoring.chain_flows import flows_of
from scoring.chain_reserve import ReserveParts, reserves
from scoring.model import FleetSnapshot, FloatArray, PoolHistory, PoolSnapshot, pool_id

COLUMNS: Final = 360
"""Cells of the strip in one row."""
_PAST_S: Final = 6 * 3600.0
_MOST_EVENTS: Final = 20_000
_PATH_S: Final = 300.0
_LEVELS: Final[Mapping[str, Stage]] = {stage.word: stage for stage in Stage}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """
    The page's data at one instant.

    Attributes:
        reserves: Pool id -> its safety reserve, by the knobs in use.
        in_use: What calibration has in use: where those knobs come from.
        thresholds: Pool id -> where its alarm goes on and off, the same that alerts are judged by.
        center: None while showing the past.
    """

    fleet: FleetSnapshot
    rows: tuple[Row, ...]
    reserves: Mapping[str, ReserveParts]
    in_use: InUse
    thresholds: Mapping[str, Threshold]
    center: AlertCenter | None


def center() -> AlertCenter:
    """Return the alert center of the running collector, started at the first call."""
    return alerts.watch(context.runtime())


def view() -> View:
    """Return what the page shows now, or at `?at=`; StoreError when the past cannot be read."""
    fleet = context.snapshot()
    at_s = context.past_at_s()
    running = center()
    if at_s is None:
        rows = tuple(_live(pool, running) for pool in fleet.pools)
        chains = running.chains
        return View(
            fleet=fleet,
            rows=_ordered(rows),
            reserves=chains.reserves,
            in_use=chains.in_use,
            thresholds=chains.thresholds,
            center=running,
        )
    given = in_use(fleet)
    kept = reserves(fleet, given.reserve.settings)
    window_s = running.chains.settings.past_s
    histories = context.runtime().store.latest_histories(at_s, window_s)
    by_id = {pool_id(item.last.worker_id, item.last.dp_rank): item for item in histories}
    newest = _newest(at_s)
    rows = tuple(
        _past(pool, by_id.get(pool.pool_id), kept, newest.get(pool.pool_id, []), running) for pool in fleet.pools
    )
    thresholds = _past_thresholds(fleet, newest, running, given.reserve.quantile_ratio)
    return View(fleet=fleet, rows=_ordered(rows), reserves=kept, in_use=given, thresholds=thresholds, center=None)


def _past_thresholds(
    fleet: FleetSnapshot, newest: Mapping[str, Sequence[Event]], running: AlertCenter, promise_ratio: float
) -> dict[str, Threshold]:
    """Return each pool's threshold as it was noted last; what holds by retractions known then where none was noted."""
    settings = running.chains.settings
    told = Thresholds(settings.alarm, settings.forecast.source)
    store = context.runtime().store
    told.restore(store.events(0.0, fleet.at_s + 1e-3, [EVENT_FORETOLD], None, _MOST_EVENTS))
    found = {}
    for pool in fleet.pools:
        events = newest.get(pool.pool_id, ())
        noted = next((each for event in events if (each := _threshold(event)) is not None), None)
        found[pool.pool_id] = noted or told.of(pool.pool_id, FORECAST_BASIS, promise_ratio)
    return found


def _threshold(event: Event) -> Threshold | None:
    return noted_threshold(event) if event.kind == EVENT_THRESHOLD else None


def _ordered(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return rows gravest first, so that what matters stands on top; what cannot be seen comes before what is well."""

    def gravity(row: Row) -> tuple[bool, float, str]:
        level = 0.5 if row.stage is Stage.CANNOT_SEE else float(row.stage)
        return (not row.is_alarm, -level, row.pool_id)

    return tuple(sorted(rows, key=gravity))


def _row(pool: PoolSnapshot, risk: PoolRisk, **more: object) -> Row:
    values = {
        "pool_id": pool.pool_id,
        "role": pool.role.value,
        "exhaustion": risk.exhaustion,
        "exhausted_probability": risk.exhausted_probability,
        "retraction_probability": risk.retraction_probability,
        "thin_probability": risk.thin_probability,
        "high_water_s": risk.high_water_s,
        "danger": risk.danger,
        "reason": risk.reason,
    }
    return Row(**{**values, **more})  # type: ignore[arg-type] # every field by its own name.


def _live(pool: PoolSnapshot, running: AlertCenter) -> Row:
    chain = running.chain(pool.pool_id) or ChainState(pool_id=pool.pool_id)
    trail = [row for row in running.chains.trail(pool.pool_id) if row[0] >= pool.at_s - _PATH_S]
    is_blind = chain.stage is Stage.CANNOT_SEE
    return _row(
        pool,
        chain.risk,
        stage=chain.stage,
        since_at_s=chain.since_at_s,
        signs=tuple(None if is_blind else light.sign for light in chain.lights),
        lit=chain.lit,
        is_alarm=chain.alarm.is_on,
        reason=chain.blind_reason or chain.risk.reason,
        trail=np.array(trail, np.float64).reshape(-1, 5),
    )


def _newest(at_s: float) -> dict[str, list[Event]]:
    """Return pool id -> chain events up to an instant, newest first, back to where watching began."""
    kinds = [EVENT_STAGE, EVENT_SIGN, EVENT_ALARM, EVENT_THRESHOLD, EVENT_WATCH]
    events = context.runtime().store.events(at_s - _PAST_S, at_s + 1e-3, kinds, None, _MOST_EVENTS)
    found: dict[str, list[Event]] = {}
    for event in events:
        if event.kind == EVENT_WATCH:
            break
        found.setdefault(event.subject, []).append(event)
    return found


def _past(
    pool: PoolSnapshot,
    history: PoolHistory | None,
    kept: Mapping[str, ReserveParts],
    events: Sequence[Event],
    running: AlertCenter,
) -> Row:
    parts = kept.get(pool.pool_id)
    settings = running.chains.settings
    if history is None or not len(history.at_s):
        risk, trail = PoolRisk(reason="no sample at this instant"), np.empty((0, 5))
    else:
        flows = flows_of(history, pool.at_s, settings.past_s)
        risk = pool_risk(flows, history, None if parts is None else parts.tokens, settings.alarm, settings.forecast)
        committed = (flows.used_tokens + np.nan_to_num(flows.reserved_tokens)) / flows.usable_tokens
        blank = np.full(len(flows.at_s), np.nan)
        trail = np.stack([flows.at_s, np.zeros(len(flows.at_s)), committed, blank, blank], axis=1)
    stage = next((event for event in events if event.kind == EVENT_STAGE), None)
    alarm = next((event for event in events if event.kind == EVENT_ALARM), None)
    signs: list[Sign | None] = []
    lit: list[Stage] = []
    for each in STAGES:
        event = next((e for e in events if e.kind == EVENT_SIGN and e.details.get("stage") == each.word), None)
        if event is None:
            signs.append(None)
            continue
        is_lit = bool(event.details.get("is_lit"))
        value, threshold = event.details.get("value"), event.details.get("threshold")
        rests = str(event.details.get("rests", ""))
        signs.append(Sign(stage=each, is_seen=is_lit, value=value, threshold=threshold, text=event.text, rests=rests))
        if is_lit:
            lit.append(each)
    return _row(
        pool,
        risk,
        stage=Stage.CANNOT_SEE if stage is None else _LEVELS[str(stage.details["stage"])],
        since_at_s=None if stage is None else stage.at_s,
        signs=tuple(signs),
        lit=tuple(lit),
        is_alarm=alarm is not None and bool(alarm.details.get("is_on")),
        trail=trail,
    )


def strip(pools: Sequence[str], start_s: float, end_s: float) -> tuple[FloatArray, FloatArray]:
    """
    Return (beginnings of cells, levels) of the strip: the gravest stage in each cell, NaN where nothing was collected.

    StoreError when the store cannot be read.
    """
    store = context.runtime().store
    edges = np.linspace(start_s, end_s, COLUMNS + 1)
    levels = np.full((len(pools), COLUMNS), np.nan)
    events = store.events(start_s - _PAST_S, end_s + 1e-3, [EVENT_STAGE, EVENT_WATCH], None, _MOST_EVENTS)
    place = {name: index for index, name in enumerate(pools)}
    began: dict[str, tuple[float, float]] = {}

    def close(name: str, until_s: float) -> None:
        since_s, level = began.pop(name)
        row = place.get(name)
        if row is None or until_s < start_s:
            return
        first = max(0, int(np.searchsorted(edges, since_s, side="right")) - 1)
        last = min(COLUMNS, max(first + 1, int(np.searchsorted(edges, until_s, side="left"))))
        cells = levels[row, first:last]
        levels[row, first:last] = np.where(np.isnan(cells), level, np.maximum(cells, level))

    for event in reversed(events):
        if event.kind == EVENT_WATCH:
            for name in list(began):
                close(name, event.at_s)
            continue
        if event.subject in began:
            close(event.subject, event.at_s)
        began[event.subject] = (event.at_s, float(_LEVELS[str(event.details["stage"])]))
    for name in list(began):
        close(name, end_s)
    return edges[:-1], _only_collected(pools, edges, levels)


def _only_collected(pools: Sequence[str], edges: FloatArray, levels: FloatArray) -> FloatArray:
    """Blank cells in which nothing at all was polled: a collector that was off saw no stage."""
    store = context.runtime().store
    start_s, end_s = float(edges[0]), float(edges[-1])
    series = store.fleet_series(["used_tokens"], start_s, end_s, COLUMNS)
    columns = [table for name, table in series.items() if name in set(pools) and len(table["at_s"])]
    if not columns:
        return levels
    seen = np.zeros(COLUMNS, bool)
    for table in columns:
        known = table["at_s"][np.isfinite(table["used_tokens"])]
        cells = np.searchsorted(edges, known, side="right") - 1
        cells = cells[(cells >= 0) & (cells < COLUMNS)]
        # A point of a coarser tier stands for the time around it.
        reach = max(1, math.ceil(float(np.median(np.diff(known))) / (edges[1] - edges[0]))) if len(known) > 1 else 1
        for offset in range(-reach, reach + 1):
            seen[np.clip(cells + offset, 0, COLUMNS - 1)] = True
    levels[:, ~seen] = np.nan
    return levels
