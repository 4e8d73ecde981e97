"""
Calibrated profiles as versions in the store: kept, applied, compared, rolled back.

One name a kind of worker. Applying and rolling back are the same act on another version; every act is an event, so
that a change of predictions can be found again.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from collectors.errors import StoreError
from collectors.store import Event, ProfileRecord, Store
from scoring.calibration_service import ServiceFit
from scoring.service import ServiceProfile, profile_from_mapping

EVENT_KIND = "calibration"


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


def profile_mapping(profile: ServiceProfile) -> dict[str, Any]:
    """Return a profile as the JSON file that `kvscope replay --profile` takes."""
    return asdict(profile)


def keep(store: Store, fit: ServiceFit, profile: ServiceProfile, at_s: float, reason: str) -> int:
    """Store the next version of a kind's profile and return its number."""
    values = {
        "profile": profile_mapping(profile),
        "bandwidth_bytes_per_s": fit.bandwidth_bytes_per_s,
        "rows": {
            "decode": fit.decode.row_count,
            "prefill": fit.prefill.row_count,
            "transfer": fit.transfer.row_count,
        },
        "reason": reason,
        "is_rough": fit.prefill.is_rough,
        "coefficients": {
            each.name: {"value": each.value, "low": each.low, "high": _finite(each.high), "told": each.told.value}
            for each in fit.coefficients()
        },
    }
    version = store.add_profile(fit.kind.name, values, at_s)
    _note(store, at_s, fit.kind.name, f"version {version} kept: {reason}")
    return version


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def versions(store: Store, name: str | None = None) -> list[Version]:
    """Return kept versions by name and number; rows of a store that are no profile of ours are left out."""
    found = []
    for record in store.profiles(name):
        version = _version(record)
        if version is not None:
            found.append(version)
    return found


def _version(record: ProfileRecord) -> Version | None:
    values = record.profile.get("profile")
    if not isinstance(values, Mapping):
        return None
    try:
        profile = profile_from_mapping(values)
    except ValueError:
        # Written by a version with other fields: it cannot be used, and another may.
        return None
    rows = record.profile.get("rows")
    return Version(
        name=record.name,
        version=record.version,
        created_at_s=record.created_at_s,
        applied_at_s=record.applied_at_s,
        profile=profile,
        bandwidth_bytes_per_s=record.profile.get("bandwidth_bytes_per_s"),
        rows=rows if isinstance(rows, Mapping) else {},
        reason=str(record.profile.get("reason", "")),
        is_rough=record.profile.get("is_rough") is True,
    )


def applied(store: Store, name: str) -> Version | None:
    """Return the version in use: the one applied last; None before the first."""
    used = [each for each in versions(store, name) if each.applied_at_s is not None]
    return max(used, key=lambda each: (each.applied_at_s or 0.0, each.version), default=None)


def apply(store: Store, name: str, version: int, at_s: float) -> Version:
    """
    Put a version to use.

    Raises:
        StoreError: There is no such version.
    """
    store.apply_profile(name, version, _later(store, name, at_s))
    _note(store, at_s, name, f"version {version} applied")
    found = applied(store, name)
    assert found is not None
    return found


def roll_back(store: Store, name: str, at_s: float) -> Version:
    """
    Put the version to use that was in use before the present one.

    Raises:
        StoreError: No earlier version was ever in use.
    """
    used = sorted(
        (each for each in versions(store, name) if each.applied_at_s is not None),
        key=lambda each: (each.applied_at_s or 0.0, each.version),
    )
    if len(used) < 2:
        raise StoreError(f"calibration: {name} has no earlier version that was in use")
    store.apply_profile(name, used[-2].version, _later(store, name, at_s))
    _note(store, at_s, name, f"rolled back from version {used[-1].version} to {used[-2].version}")
    found = applied(store, name)
    assert found is not None
    return found


def _later(store: Store, name: str, at_s: float) -> float:
    """Return an instant after every earlier use: two acts within a cycle, or a clock set back, keep their order."""
    current = applied(store, name)
    return at_s if current is None else max(at_s, (current.applied_at_s or 0.0) + 1e-3)


def _note(store: Store, at_s: float, name: str, text: str) -> None:
    store.append_events([Event(at_s=at_s, kind=EVENT_KIND, subject=name, text=text)])
