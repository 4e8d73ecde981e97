"""
What calibration has in use at an instant: coefficients by worker, the knobs of the reserve, output lengths, each with
what it rests on or why it is not there.

Whoever decides (What-if, the saturation chain, alerts, `kvscope route`) is given an `InUse` and takes calibrated values
from nowhere else; `collectors` makes it, of this moment from the learner and of a past one from the store.

Read next: `calibration_reserve`, `alarm_threshold`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np

from scoring.calibration import Told
from scoring.calibration_error import ErrorSample, prefill_errors, step_errors
from scoring.calibration_reserve import CalibratedReserve, uncalibrated
from scoring.calibration_service import DECODE_NAMES, PREFILL_NAMES, TRANSFER_NAMES
from scoring.calibration_windows import DecodeWindow, Kind, PrefillWindow
from scoring.demand import OutputQuantiles, known_output
from scoring.model import Role
from scoring.quantile_table import QuantileCell, QuantileTable
from scoring.reserve import ReserveSettings
from scoring.service import ServiceProfile

PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "decode": DECODE_NAMES,
    "prefill": PREFILL_NAMES,
    "transfer": TRANSFER_NAMES,
}
"""Part of a fit -> its coefficients."""
Row = TypeVar("Row", DecodeWindow, PrefillWindow)

RECENT_S: Final = 60.0
"""A worker is held against its kind's coefficients over so long."""
RECENT_ROWS: Final = 20
LEAST_ROWS: Final = 8
DEPARTS_RATIO: Final = 0.15
"""A worker whose newest rows are this much off its kind's coefficients (median) is not judged by them (chosen: three
times what makes a pool named as odd)."""

NO_VERSION: Final = "no-version"
NOT_TOLD: Final = "not-told"
SWITCHED_OFF: Final = "switched-off"
OUTPUT_TOKENS: Final = 500
"""Expected output where nothing tells one (chosen)."""
PARTS_OF_ROLE: Final[Mapping[Role, tuple[str, ...]]] = {
    Role.DECODE: ("decode",),
    Role.PREFILL: ("prefill", "transfer"),
    Role.UNIFIED: ("prefill", "decode"),
    Role.UNKNOWN: (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """
    One kept profile.

    Attributes:
        name: Kind of worker.
        version: 1 for the first.
        created_at_s: When it was kept.
        applied_at_s: When it was last put to use, None if never.
        profile: What it predicts with.
        bandwidth_bytes_per_s: Of a hand-over, None where not told.
        rows: Part of the fit -> rows behind it.
        reason: Why it was kept.
        is_rough: Its prompt times came from rows that are more than one prompt.
        told: Coefficient -> whether the rows told it.
    """

    name: str
    version: int
    created_at_s: float
    applied_at_s: float | None
    profile: ServiceProfile
    bandwidth_bytes_per_s: float | None
    rows: Mapping[str, int]
    reason: str
    is_rough: bool = False
    told: Mapping[str, Told] = field(default_factory=dict)

    def is_fitted(self, part: str) -> bool:
        """Say whether this kind's own rows told any coefficient of a part; else the profile holds what was believed."""
        return any(self.told.get(name) is Told.FITTED for name in PARTS[part])


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputsInUse:
    """
    Output lengths in use.

    Attributes:
        table: Quantiles by class and bucket.
        version: In use.
        since_at_s: In use since.
        request_count: Requests of the log.
        source: Name of the log.
    """

    table: QuantileTable
    version: int
    since_at_s: float
    request_count: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartInUse:
    """
    One part of the service times of one kind of worker.

    Attributes:
        kind: Its name.
        part: "decode", "prefill" or "transfer".
        worker_ids: Of this kind.
        values: Coefficient -> value in use, s or s per token or byte; empty where none is in use.
        believed: Coefficients that the rows did not tell, so that what was believed before is kept.
        version: In use; None where none is.
        row_count: Rows behind it.
        since_at_s: In use since; None where none is.
        why_not: "" where it is in use, else NO_VERSION, NOT_TOLD or SWITCHED_OFF.
        missing_count: Rows still wanted before a fit; None where it is not known (the past).
        is_rough: Prompt times come from rows of more than one prompt.
        departing: Worker -> median (actual - predicted) / predicted of its newest rows, for workers that are so far
            off that their own figures are used instead.
    """

    kind: str
    part: str
    worker_ids: tuple[str, ...]
    values: Mapping[str, float] = field(default_factory=dict)
    believed: tuple[str, ...] = ()
    version: int | None = None
    row_count: int = 0
    since_at_s: float | None = None
    why_not: str = ""
    missing_count: int | None = None
    is_rough: bool = False
    departing: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class InUse:
    """
    All that calibration gives whoever decides.

    Attributes:
        at_s: Of what instant; None before the first cycle.
        parts: By kind and part.
        profiles: Worker -> coefficients, NaN where a part is not in use for it; workers without any are absent.
        bandwidths_bytes_per_s: Worker -> of a hand-over, where it is told.
        step_error_ratios: Worker -> |error| of a decode step at the promise, where enough were settled.
        reserve: Knobs of the reserve and of the risk.
        reserve_since_at_s: In use since; None where nothing was kept yet, so that the knobs are the chosen ones.
        outputs: Output lengths from a request log; None where none was kept and used.
        is_past: From the store: what was in use then.
        is_off: Somebody asked for the fleet file instead: nothing calibrated is used.
    """

    at_s: float | None
    parts: tuple[PartInUse, ...] = ()
    profiles: Mapping[str, ServiceProfile] = field(default_factory=dict)
    bandwidths_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    step_error_ratios: Mapping[str, float] = field(default_factory=dict)
    reserve: CalibratedReserve
    reserve_since_at_s: float | None = None
    outputs: OutputsInUse | None = None
    is_past: bool = False
    is_off: bool = False

    def part_of(self, worker_id: str, part: str) -> PartInUse | None:
        """Return where a worker's part comes from; None for a worker or a part that is not known."""
        return next((each for each in self.parts if each.part == part and worker_id in each.worker_ids), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSeen:
    """
    One kind of worker as `parts_in_use` needs it.

    Attributes:
        decode, prefill: Its newest rows, oldest first.
        missing: Part -> rows still wanted before a fit; empty where it is not known.
    """

    kind: Kind
    version: Version | None
    worker_ids: tuple[str, ...]
    decode: Sequence[DecodeWindow]
    prefill: Sequence[PrefillWindow]
    missing: Mapping[str, int] = field(default_factory=dict)


def parts_in_use(
    kinds: Sequence[KindSeen],
) -> tuple[tuple[PartInUse, ...], dict[str, ServiceProfile], dict[str, float]]:
    """Return the parts, worker -> profile, and worker -> bandwidth of a hand-over."""
    parts: list[PartInUse] = []
    profiles: dict[str, ServiceProfile] = {}
    bandwidths: dict[str, float] = {}
    for seen in sorted(kinds, key=lambda each: each.kind.name):
        mine = [_part(seen, part) for part in PARTS_OF_ROLE[seen.kind.role]]
        parts += mine
        version = seen.version
        if version is None:
            continue
        for worker in seen.worker_ids:
            used = {each.part for each in mine if each.values and worker not in each.departing}
            if used:
                profiles[worker] = _only(version.profile, used)
            if "transfer" in used and version.bandwidth_bytes_per_s:
                bandwidths[worker] = version.bandwidth_bytes_per_s
    return tuple(parts), profiles, bandwidths


def _only(profile: ServiceProfile, parts: set[str]) -> ServiceProfile:
    """Return a profile that is NaN, unknown, in the parts that are not in use."""
    blank = [name for part, names in PARTS.items() if part not in parts for name in names]
    unknown: dict[str, Any] = {name: float("nan") for name in blank if hasattr(profile, name)}
    return replace(profile, **unknown)


def _part(seen: KindSeen, part: str) -> PartInUse:
    version = seen.version
    base = PartInUse(kind=seen.kind.name, part=part, worker_ids=seen.worker_ids, missing_count=seen.missing.get(part))
    if version is None:
        return replace(base, why_not=NO_VERSION)
    if not version.is_fitted(part):
        return replace(base, why_not=NOT_TOLD, version=version.version, since_at_s=version.applied_at_s)
    values = {name: float(getattr(version.profile, name)) for name in PARTS[part] if hasattr(version.profile, name)}
    if part == "transfer" and version.bandwidth_bytes_per_s:
        values["transfer_s_per_byte"] = 1.0 / version.bandwidth_bytes_per_s
    return replace(
        base,
        values=values,
        believed=tuple(name for name in values if version.told.get(name) is not Told.FITTED),
        version=version.version,
        row_count=int(version.rows.get(part, 0)),
        since_at_s=version.applied_at_s,
        is_rough=version.is_rough and part == "prefill",
        departing=_departing(seen, version, part),
    )


def _departing(seen: KindSeen, version: Version, part: str) -> dict[str, float]:
    profile, found = version.profile, {}
    settled: dict[str, list[ErrorSample]] = {}
    if part == "decode":
        for worker, steps in _by_worker(seen.decode).items():
            settled[worker] = step_errors(steps, profile, worker, is_held_out=True)
    elif part == "prefill":
        for worker, prompts in _by_worker(seen.prefill).items():
            settled[worker] = prefill_errors(prompts, profile, worker, is_held_out=True)
    for worker, samples in settled.items():
        errors = [each.error_ratio for each in samples]
        if len(errors) >= LEAST_ROWS:
            middle = float(np.median(errors[-RECENT_ROWS:]))
            if abs(middle) > DEPARTS_RATIO:
                found[worker] = middle
    return found


def _by_worker(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return worker -> its rows of the newest RECENT_S, oldest first."""
    found: dict[str, list[Row]] = {}
    end_s = rows[-1].at_s if rows else 0.0
    for row in reversed(rows):
        if row.at_s < end_s - RECENT_S:
            break
        found.setdefault(row.pool.rpartition("/")[0], []).append(row)
    return {worker: mine[::-1] for worker, mine in found.items()}


def switched_off(given: InUse, base: ReserveSettings) -> InUse:
    """Return the same with nothing calibrated in it: the knobs are those of the fleet file, `base`."""
    parts = tuple(
        replace(each, values={}, believed=(), why_not=SWITCHED_OFF, departing={}, is_rough=False)
        for each in given.parts
    )
    return InUse(at_s=given.at_s, parts=parts, reserve=uncalibrated(base), is_past=given.is_past, is_off=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedOutput:
    """
    How long an answer is expected to be, where nobody gave it.

    Attributes:
        output: The distribution.
        source: "log" (quantiles of a request log) or "default" (OUTPUT_TOKENS).
        cell: Of the log, its class and bucket; None for other sources.
    """

    output: OutputQuantiles
    source: str
    cell: QuantileCell | None = None


def expected_output(given: InUse, slo_class: str, prompt_tokens: int) -> ExpectedOutput:
    """
    Return the output to expect of a request of a class and length.

    Counters tell none: what is generated over what finishes is far from a mean length while a pool fills.
    """
    if given.outputs is not None:
        cell = given.outputs.table.of(slo_class, prompt_tokens)
        if cell.points:
            points = tuple((point.quantile, point.value) for point in cell.points)
            return ExpectedOutput(output=OutputQuantiles(points, source=given.outputs.source), source="log", cell=cell)
    return ExpectedOutput(output=known_output(OUTPUT_TOKENS), source="default")
