"""
Judging alarms: what an alarm said on a run against what happened, for ours and for the lines people draw.

An alarm of a pool is true when the pool's first retraction follows within `WINDOW_S` of its beginning, else false: one
that has been on for ten minutes told nobody anything. An event is recalled when such an alarm is on as it happens; its
lead is how long it had been on. A pool is judged up to its first retraction. All alarms keep the same dwell and
hysteresis, so that lines are not blamed for trembling.

Read next: `backtest_runs` (the runs), `backtest` (the command).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.optimize import minimize

from commands.backtest_runs import Run
from scoring.alarm import AlarmSettings, AlarmState, PoolRisk, pool_risk, step_alarm
from scoring.alarm_forecast import FEATURES, SPARSE_RATIO, Forecast, forecast_inputs
from scoring.alarm_threshold import FORECAST_BASIS, LEAD_S, OFF_SHARE, WINDOW_S, Record, step_record
from scoring.chain_flows import flows_of
from scoring.model import FloatArray

LINES: Final[Mapping[str, tuple[str, float]]] = {
    "used > 80 %": ("used_ratio", 0.80),
    "used > 90 %": ("used_ratio", 0.90),
    "committed > 90 %": ("committed_ratio", 0.90),
}
OURS: Final = "KVScope alarm"
LINE_BAND: Final = 0.05
"""A line goes out this far below itself (the usual band of an alert rule)."""
ON_GRID: Final = (0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8)
FIT_HORIZON_S: Final = 25.0
FIT_RIDGE: Final = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """
    One pool of one run as alarms see it, up to its first retraction. n looks.

    Attributes:
        inputs: Of the forecast, NaN where unknown. Shape (n, 6).
        event_at_s: The first retraction, None without one.
        risks: One a look.
    """

    run: str
    seed: int | None
    pool: str
    at_s: FloatArray
    used_ratio: FloatArray
    committed_ratio: FloatArray
    inputs: FloatArray
    risks: tuple[PoolRisk, ...]
    event_at_s: float | None


def tracks_of(run: Run) -> list[Track]:
    """Return one track a pool of a run."""
    tracks = []
    for name, history in run.histories.items():
        event = next(iter(run.retractions.get(name, ())), None)
        at_s = history.at_s if event is None else history.at_s[history.at_s < event]
        rows, inputs, risks = [], [], []
        for at in at_s:
            flows = flows_of(history, float(at))
            risk = pool_risk(flows, history, None, AlarmSettings())
            found = forecast_inputs(flows, history)
            usable = float(flows.usable_tokens[-1])
            rows.append((float(flows.used_tokens[-1]) / usable, _or_nan(risk.committed_ratio)))
            inputs.append(np.full(len(FEATURES), np.nan) if found is None else found)
            risks.append(risk)
        table = np.array(rows, np.float64).reshape(-1, 2)
        tracks.append(
            Track(
                run=run.name,
                seed=run.seed,
                pool=name,
                at_s=np.asarray(at_s, np.float64),
                used_ratio=table[:, 0],
                committed_ratio=table[:, 1],
                inputs=np.array(inputs, np.float64).reshape(-1, len(FEATURES)),
                risks=tuple(risks),
                event_at_s=event,
            )
        )
    return tracks


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """
    How an alarm did.

    Attributes:
        leads_s: Of the events it recalled, ascending.
        true_count, false_count: Alarms that came true, and that did not.
        event_count: First retractions.
        hours: Pool-hours judged.
        missed: (run, seed, pool) of events it did not recall.
    """

    leads_s: tuple[float, ...]
    true_count: int
    false_count: int
    event_count: int
    hours: float
    missed: tuple[tuple[str, int | None, str], ...] = ()

    @property
    def precision(self) -> float | None:
        """Return true alarms / alarms, None without an alarm."""
        count = self.true_count + self.false_count
        return self.true_count / count if count else None

    @property
    def recall(self) -> float | None:
        """Return recalled events / events, None without an event."""
        return len(self.leads_s) / self.event_count if self.event_count else None

    @property
    def recall_in_time(self) -> float | None:
        """Return events recalled at least LEAD_S before / events."""
        if not self.event_count:
            return None
        return sum(lead >= LEAD_S for lead in self.leads_s) / self.event_count

    @property
    def median_lead_s(self) -> float | None:
        """Return the median lead of recalled events."""
        return float(np.median(self.leads_s)) if self.leads_s else None

    @property
    def false_per_hour(self) -> float | None:
        """Return false alarms per pool and hour."""
        return self.false_count / self.hours if self.hours > 0 else None


Episodes = list[tuple[float, float | None]]
"""(on, off); off None while on at the end."""


def episodes(track: Track, risks: Sequence[PoolRisk], settings: AlarmSettings) -> Episodes:
    """Return when the alarm was on, by the same `step_alarm` that runs live."""
    state, found, began = AlarmState(), [], None
    for at, risk in zip(track.at_s, risks, strict=True):
        after = step_alarm(state, risk, float(at), settings)
        if after.is_on and not state.is_on:
            began = float(at)
        elif state.is_on and not after.is_on and began is not None:
            found.append((began, float(at)))
            began = None
        state = after
    ends: Episodes = list(found)
    if began is not None:
        ends.append((began, None))
    return ends


def line_episodes(track: Track, column: str, limit: float, settings: AlarmSettings) -> Episodes:
    """Return when a fixed line would have been an alarm, with our dwell."""
    values = getattr(track, column)
    # The same state machine: the ratio stands for the probability.
    knobs = replace(settings, on_probability=limit, off_probability=limit - LINE_BAND)
    risks = [PoolRisk(retraction_probability=float(value)) if math.isfinite(value) else PoolRisk() for value in values]
    return episodes(track, risks, knobs)


def score(tracks: Sequence[Track], of: Callable[[Track], Episodes]) -> Score:
    """Return how an alarm did over tracks."""
    leads, true_count, false_count, event_count, seconds = [], 0, 0, 0, 0.0
    missed = []
    for track in tracks:
        if len(track.at_s) < 2:
            continue
        seconds += float(track.at_s[-1] - track.at_s[0])
        event, found = track.event_at_s, of(track)
        is_true = [event is not None and 0.0 <= event - on <= WINDOW_S for on, _ in found]
        true_count += sum(is_true)
        false_count += len(found) - sum(is_true)
        if event is None:
            continue
        event_count += 1
        standing = [on for (on, off), good in zip(found, is_true, strict=True) if off is None and good]
        if standing:
            leads.append(event - standing[0])
        else:
            missed.append((track.run, track.seed, track.pool))
    return Score(
        leads_s=tuple(sorted(leads)),
        true_count=true_count,
        false_count=false_count,
        event_count=event_count,
        hours=seconds / 3600.0,
        missed=tuple(missed),
    )


def with_forecast(tracks: Sequence[Track], forecast: Forecast) -> list[Track]:
    """Return the tracks as they would be with another forecast than the live one."""
    changed = []
    for track in tracks:
        fresh = forecast.probability(track.inputs)
        risks = tuple(
            replace(risk, retraction_probability=float(value) if math.isfinite(value) else None)
            for risk, value in zip(track.risks, fresh, strict=True)
        )
        changed.append(replace(track, risks=risks))
    return changed


def our_score(tracks: Sequence[Track], settings: AlarmSettings) -> Score:
    """Return how our alarm did."""
    return score(tracks, lambda track: episodes(track, track.risks, settings))


def all_scores(tracks: Sequence[Track], settings: AlarmSettings, *, lines: bool = True) -> dict[str, Score]:
    """Return name -> score of our alarm and, if asked, of every line."""
    found = {OURS: our_score(tracks, settings)}
    for name, (column, limit) in LINES.items() if lines else ():
        found[name] = score(tracks, lambda track, c=column, m=limit: line_episodes(track, c, m, settings))  # type: ignore[misc] # a lambda's defaults have no types.
    return found


def is_train(seed: int) -> bool:
    """Say whether a seed is for tuning; the families go round, so both halves hold every family alike."""
    return (seed // 5) % 2 == 0


def fit_forecast(tracks: Sequence[Track], source: str) -> Forecast:
    """
    Return the forecast fitted on tracks: logistic regression on standardised features and their squares, with a ridge.

    Raises:
        ValueError: There is no event in the tracks, or nothing else.
    """
    inputs = np.concatenate([track.inputs for track in tracks])
    labels = np.concatenate(
        [
            np.zeros(len(track.at_s))
            if track.event_at_s is None
            else (track.event_at_s - track.at_s <= FIT_HORIZON_S).astype(float)
            for track in tracks
        ]
    )
    known = np.isfinite(inputs).all(axis=1)
    inputs, labels = inputs[known], labels[known]
    if not 0 < labels.sum() < len(labels):
        raise ValueError("the runs hold no retraction to learn from, or nothing else: use more seeds")
    mean, scale = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), 1e-9)
    unit = (inputs - mean) / scale
    design = np.concatenate([np.ones((len(unit), 1)), unit, unit**2], axis=1)
    penalty = np.append(0.0, np.full(design.shape[1] - 1, FIT_RIDGE))

    def loss(weights: FloatArray) -> tuple[float, FloatArray]:
        z = design @ weights
        excess = 1.0 / (1.0 + np.exp(-np.clip(z, -60.0, 60.0))) - labels
        value = float(np.mean(np.logaddexp(0.0, z) - labels * z) + penalty @ weights**2)
        return value, design.T @ excess / len(labels) + 2.0 * penalty * weights

    found = minimize(loss, np.zeros(design.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 2000}).x
    count = len(FEATURES)
    first, second = found[1 : 1 + count], found[1 + count :]
    squares = second / scale**2
    is_dense = inputs[:, 1] > SPARSE_RATIO
    return Forecast(
        weights=_rounded(first / scale - 2.0 * second * mean / scale**2),
        squares=_rounded(squares),
        intercept=float(f"{found[0] - np.sum(first * mean / scale) + np.sum(second * mean**2 / scale**2):.6g}"),
        lows=_rounded(inputs.min(axis=0) - 1e-3),
        highs=_rounded(inputs.max(axis=0) * 1.05 + 1e-3),
        densest=float(f"{(inputs[is_dense, 2] / inputs[is_dense, 1]).max(initial=0.0) * 1.05 + 1e-3:.6g}"),
        horizon_s=FIT_HORIZON_S,
        source=source,
    )


def _rounded(values: FloatArray) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values)


def foretold_levels(tracks: Sequence[Track], settings: AlarmSettings) -> tuple[float, ...]:
    """
    Return at which probability of the forecast each first retraction had been foretold in time, ascending.

    By the record that settles the live alarm (`scoring.alarm_threshold`); these are its SIMULATED ones.
    """
    found = []
    for track in tracks:
        record = Record()
        for at, risk in zip(track.at_s, track.risks, strict=True):
            seen = step_alarm(AlarmState(), risk, float(at), settings)
            basis = FORECAST_BASIS if seen.basis == "growth" else seen.basis
            record, _ = step_record(
                record,
                float(at),
                pool=track.pool,
                probability=seen.probability,
                basis=basis,
                retracted=0.0,
                dwell_s=settings.on_dwell_s,
            )
        if track.event_at_s is not None and len(track.at_s):
            # The look that shows the retraction: the first poll after it.
            when = max(math.ceil(track.event_at_s), float(track.at_s[-1]) + 1e-3)
            _, settled = step_record(
                record, when, pool=track.pool, probability=None, basis="", retracted=1.0, dwell_s=settings.on_dwell_s
            )
            if settled is not None and settled.basis == FORECAST_BASIS:
                found.append(settled.level)
    return tuple(sorted(found))


def tune(tracks: Sequence[Track], settings: AlarmSettings) -> AlarmSettings:
    """
    Return the settings whose threshold does best on these tracks; of equals the higher one, the quieter alarm.

    Best: the smaller one of precision and recall in time is largest, to a hundredth.
    """

    def worth(knobs: AlarmSettings) -> float:
        found = our_score(tracks, knobs)
        return min(found.precision or 0.0, found.recall_in_time or 0.0)

    tried = [with_threshold(settings, on) for on in ON_GRID]
    return max(tried, key=lambda knobs: (round(worth(knobs), 2), knobs.on_probability))


def with_threshold(settings: AlarmSettings, on_probability: float) -> AlarmSettings:
    """Return the settings with another threshold, and the one below which the alarm goes out."""
    return replace(settings, on_probability=on_probability, off_probability=round(OFF_SHARE * on_probability, 6))
