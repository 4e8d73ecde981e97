"""
What calibration remembers of each kind of worker, and what readers see of it.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from scoring.calibration_error import ErrorSample, ErrorSummary, JudgedFit
from scoring.calibration_in_use import Version
from scoring.calibration_windows import (
    DecodeWindow,
    Kind,
    PairWindows,
    PrefillWindow,
    TrafficWindow,
    TransferWindow,
)
from scoring.drift import DriftState
from scoring.service import ServiceProfile

ROWS_KEPT: Final = 4000
"""Of each sort and kind (chosen: an hour of one worker, five minutes of thirteen; a fit of them takes 0.1 s)."""


@dataclass(slots=True)
class KindRows:
    """
    What is remembered of one kind of worker.

    Attributes:
        is_chosen: The version in use was put there by a person: no fit replaces it by itself.
    """

    kind: Kind
    decode: deque[DecodeWindow] = field(default_factory=lambda: deque(maxlen=ROWS_KEPT))
    prefill: deque[PrefillWindow] = field(default_factory=lambda: deque(maxlen=ROWS_KEPT))
    transfer: deque[TransferWindow] = field(default_factory=lambda: deque(maxlen=ROWS_KEPT))
    traffic: deque[TrafficWindow] = field(default_factory=lambda: deque(maxlen=ROWS_KEPT))
    skipped: Counter[str] = field(default_factory=Counter)
    pools: set[str] = field(default_factory=set)
    bytes_per_token: float | None = None
    judged: JudgedFit | None = None
    version: Version | None = None
    drift: DriftState = field(default_factory=DriftState)
    drift_kept_at_s: float | None = None
    is_chosen: bool = False

    def take(self, found: PairWindows) -> None:
        """Add what two readings gave."""
        if found.skipped:
            self.skipped[found.skipped] += 1
        if found.decode is not None:
            self.decode.append(found.decode)
        if found.prefill is not None:
            self.prefill.append(found.prefill)
        if found.transfer is not None:
            self.transfer.append(found.transfer)
        if found.traffic is not None:
            self.traffic.append(found.traffic)


@dataclass(frozen=True, slots=True, kw_only=True)
class KindState:
    """
    One kind of worker as readers see it.

    Attributes:
        judged: Newest fit with its errors; None before the first.
        profile: What one would keep now; None before the first fit.
        version: In use; None before the first.
        versions: All kept ones, ascending.
        decode: Rows of the fit, oldest first.
        prefill: The same.
        transfer: The same.
        skipped: Reason -> pairs of readings that gave nothing.
        pools: Pools of this kind seen.
        drift: Of step or prompt times against the version in use.
    """

    kind: Kind
    judged: JudgedFit | None
    profile: ServiceProfile | None
    version: Version | None
    versions: tuple[Version, ...]
    decode: tuple[DecodeWindow, ...]
    prefill: tuple[PrefillWindow, ...]
    transfer: tuple[TransferWindow, ...]
    skipped: Mapping[str, int]
    pools: tuple[str, ...]
    drift: DriftState


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationState:
    """
    Everything the page draws.

    Attributes:
        at_s: Instant of the newest cycle taken; None before the first.
        kinds: Ascending by name.
        samples: Predictions settled while running, oldest first; all held out.
        summaries: Of these.
        exhausted_count: Predicted exhaustions that came.
        averted_count: Predicted ones that did not.
        missed_count: Ones that came unpredicted.
        problem: Why fits or versions could not be looked after at the last try, "" when all is well.
    """

    at_s: float | None
    kinds: tuple[KindState, ...]
    samples: tuple[ErrorSample, ...]
    summaries: tuple[ErrorSummary, ...]
    exhausted_count: int
    averted_count: int
    missed_count: int
    problem: str
