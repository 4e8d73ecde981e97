"""
What calibration has seen: rows of each kind of worker, ages of figures, and predictions with their actuals.

Filled in the hook of a cycle, which only takes differences. Callers hold the learner's lock.

Read next: `calibration`, `calibration_live`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from collectors.calibration_live import LivePredictions
from collectors.calibration_state import KindRows
from scoring.calibration_error import ErrorSample, Quantity, prefill_errors, step_errors, transfer_errors
from scoring.calibration_in_use import Version
from scoring.calibration_windows import (
    DecodeWindow,
    Kind,
    PairWindows,
    PrefillWindow,
    TrafficWindow,
    TransferWindow,
    consecutive_windows,
    kind_of,
    pair_windows,
    readings_of,
)
from scoring.drift import drift_step, seeded
from scoring.model import FleetSnapshot, PoolHistory, PoolReading, PoolSnapshot, Role, pool_id
from scoring.service import ServiceProfile

SAMPLES_KEPT: Final = 5000
AGES_KEPT: Final = 2000
BACKFILL_SAMPLES: Final = 300
"""Samples a pool taken from memory at the start; a fleet of thousands takes fewer."""
BACKFILL_PAIRS: Final = 60_000
SEED_ROWS: Final = 200
"""Rows that tell the drift test how errors scatter when coefficients are put to use."""
_OF_COEFFICIENTS: Final = (Quantity.STEP, Quantity.PREFILL, Quantity.TRANSFER)


class CalibrationBook:
    """
    Rows and settled predictions of one fleet. Not thread-safe.

    Attributes:
        kinds: By name.
        ages_s: Of figures when they came, newest last.
        at_s: Newest cycle taken; None before the first.
        live: The predictions made of the whole fleet.
    """

    def __init__(self, version_of: Callable[[str], Version | None]) -> None:
        """`version_of` gives the version of a kind that is in use, asked once a kind."""
        self._version_of = version_of
        self._last: dict[str, PoolReading] = {}
        self._samples: deque[ErrorSample] = deque(maxlen=SAMPLES_KEPT)
        self.kinds: dict[str, KindRows] = {}
        self.ages_s: deque[float] = deque(maxlen=AGES_KEPT)
        self.live = LivePredictions()
        self.at_s: float | None = None

    @property
    def samples(self) -> tuple[ErrorSample, ...]:
        """Return the predictions settled by versions in use, oldest first; all held out."""
        return tuple(self._samples)

    def backfill(self, history: PoolHistory, most: int) -> None:
        """Take the newest `most` samples of a pool's past, as far as cycles have not brought them already."""
        readings = readings_of(history)[-most:]
        rows = self.rows(kind_of(history.last, history.labels))
        name = pool_id(history.last.worker_id, history.last.dp_rank)
        known = self._last.get(name)
        earlier = [each for each in readings if known is None or each.received_at_s <= known.received_at_s]
        rows.pools.add(name)
        for found in consecutive_windows(earlier):
            rows.take(found)

    def take(self, fleet: FleetSnapshot) -> None:
        """Take one cycle."""
        traffic: dict[str, TrafficWindow] = {}
        profiles: dict[str, ServiceProfile] = {}
        for pool in fleet.pools:
            rows = self._take_pool(pool, traffic)
            if rows is not None and rows.version is not None:
                profiles[pool.worker_id] = rows.version.profile
        self._samples.extend(self.live.take(fleet, traffic, profiles, self._transfer_s()))
        self.at_s = fleet.at_s

    def rows(self, kind: Kind) -> KindRows:
        """Return what is remembered of a kind, nothing yet at the first asking."""
        rows = self.kinds.get(kind.name)
        if rows is None:
            rows = self.kinds[kind.name] = KindRows(kind)
            rows.version = self._version_of(kind.name)
        return rows

    def _take_pool(self, pool: PoolSnapshot, traffic: dict[str, TrafficWindow]) -> KindRows | None:
        reading = pool.reading
        if pool.received_at_s is None or reading.role is Role.UNKNOWN or reading.usable_tokens is None:
            return None
        rows = self.rows(kind_of(reading, pool.labels))
        before = self._last.get(pool.pool_id)
        if before is not None and before.received_at_s == reading.received_at_s:
            return rows
        self._last[pool.pool_id] = reading
        rows.pools.add(pool.pool_id)
        rows.bytes_per_token = pool.bytes_per_token.value or rows.bytes_per_token
        if pool.age_s is not None and pool.state.is_scored:
            self.ages_s.append(pool.age_s)
        if before is None:
            return rows
        found = pair_windows(before, reading)
        rows.take(found)
        if found.traffic is not None:
            traffic[pool.pool_id] = found.traffic
        self.settle(rows, found)
        return rows

    def settle(self, rows: KindRows, found: PairWindows) -> None:
        """Settle what the version in use predicted of two readings, before anything is learnt from them."""
        settled = settled_by(
            rows.version,
            [found.decode] if found.decode is not None else [],
            [found.prefill] if found.prefill is not None else [],
            [found.transfer] if found.transfer is not None else [],
        )
        for each in settled:
            if each.quantity in (Quantity.STEP, Quantity.PREFILL):
                rows.drift = drift_step(rows.drift, each.at_s, each.error_ratio)
        self._samples.extend(settled)

    def _transfer_s(self) -> float | None:
        """Return the mean of the newest hand-overs, None without any."""
        total, count = 0.0, 0.0
        for rows in self.kinds.values():
            for window in list(rows.transfer)[-20:]:
                total, count = total + window.latency_s, count + window.transfer_count
        return total / count if count else None

    def use(self, rows: KindRows, version: Version, *, is_chosen: bool) -> None:
        """
        Let a kind be predicted by another version from now on.

        Where a person chose it, errors begin anew: those of the version before say nothing of this one. What came
        after it was kept it has not seen, so that its errors there are held out and known at once; TTFT is made of
        several kinds and begins from nothing. A fit of more rows of the same load keeps the errors of the one before,
        which were no smaller.
        """
        rows.version = version
        rows.is_chosen = is_chosen
        rows.drift = seeded(_recent_errors(rows, version.profile))
        rows.drift_kept_at_s = None
        if not is_chosen:
            return
        kept = [
            each
            for each in self._samples
            if each.quantity is not Quantity.TTFT
            and not (each.subject == rows.kind.name and each.quantity in _OF_COEFFICIENTS)
        ]
        since_s = version.created_at_s
        kept += settled_by(
            version,
            [each for each in rows.decode if each.at_s > since_s],
            [each for each in rows.prefill if each.at_s > since_s],
            [each for each in rows.transfer if each.at_s > since_s],
        )
        self._samples = deque(sorted(kept, key=lambda each: each.at_s), maxlen=SAMPLES_KEPT)


def settled_by(
    version: Version | None,
    decode: Sequence[DecodeWindow],
    prefill: Sequence[PrefillWindow],
    transfer: Sequence[TransferWindow],
) -> list[ErrorSample]:
    """Return the predictions of a version that rows it has not seen settle: of the parts its own rows told."""
    if version is None:
        return []
    profile, bandwidth = version.profile, version.bandwidth_bytes_per_s
    settled: list[ErrorSample] = []
    if version.is_fitted("decode"):
        settled += step_errors(decode, profile, version.name, is_held_out=True)
    if version.is_fitted("prefill"):
        settled += prefill_errors(prefill, profile, version.name, is_held_out=True)
    if bandwidth:
        settled += transfer_errors(transfer, profile.transfer_latency_s, bandwidth, version.name, is_held_out=True)
    return settled


def _recent_errors(rows: KindRows, profile: ServiceProfile) -> list[float]:
    """Return the errors of a profile on the newest rows of a kind: what the drift test watches."""
    newest = [
        *step_errors(list(rows.decode)[-SEED_ROWS:], profile, rows.kind.name, is_held_out=False),
        *prefill_errors(list(rows.prefill)[-SEED_ROWS:], profile, rows.kind.name, is_held_out=False),
    ]
    return [each.error_ratio for each in newest]


def backfilled_samples(histories: Sequence[PoolHistory]) -> int:
    """Return how many samples of each pool's past a start takes."""
    return min(BACKFILL_SAMPLES, BACKFILL_PAIRS // max(len(histories), 1))
