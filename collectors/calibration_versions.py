"""
Calibrated profiles as versions in the store: kept, applied, compared, rolled back.

One name a kind of worker. Applying and rolling back are the same act on another version; every act is an event, so
that a change of predictions can be found again.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from collectors.errors import StoreError
from collectors.store import Event, ProfileRecord, Store
from scoring.calibration import Told
from scoring.calibration_in_use import Version
from scoring.calibration_service import ServiceFit
from scoring.service import ServiceProfile, profile_from_mapping

EVENT_KIND: Final = "calibration"
_USING: Final = ("applied", "rolled-back")
_MOST_EVENTS: Final = 10_000


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
    note(store, at_s, fit.kind.name, f"version {version} kept: {reason}", "kept", version)
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
        told=_told(record.profile.get("coefficients")),
    )


def _told(coefficients: object) -> dict[str, Told]:
    if not isinstance(coefficients, Mapping):
        return {}
    words = {name: each.get("told") for name, each in coefficients.items() if isinstance(each, Mapping)}
    return {name: Told(word) for name, word in words.items() if word in set(Told)}


def applied(store: Store, name: str) -> Version | None:
    """Return the version in use: the one applied last; None before the first."""
    used = [each for each in versions(store, name) if each.applied_at_s is not None]
    return max(used, key=lambda each: (each.applied_at_s or 0.0, each.version), default=None)


def number_applied_at(store: Store, name: str, at_s: float) -> tuple[int, float] | None:
    """
    Return (version, since) of the one of `name` that was in use at an instant; None when none was.

    A version used, left and used again keeps only its last use beside it, so the acts are read, which are events.
    """
    uses = [(each.applied_at_s, each.version) for each in store.profiles(name) if each.applied_at_s is not None]
    for event in store.events(0.0, at_s + 1e-3, [EVENT_KIND], name, _MOST_EVENTS):
        number = event.details.get("version")
        if event.details.get("act") in _USING and isinstance(number, int):
            uses.append((event.at_s, number))
    before = [use for use in uses if use[0] <= at_s + 1e-6]
    if not before:
        return None
    since_at_s, version = max(before)
    return version, since_at_s


def applied_at(store: Store, name: str, at_s: float) -> Version | None:
    """Return the version that was in use at an instant, `applied_at_s` being since when; None when none was."""
    found = number_applied_at(store, name, at_s)
    if found is None:
        return None
    version = next((each for each in versions(store, name) if each.version == found[0]), None)
    return None if version is None else replace(version, applied_at_s=found[1])


def apply(store: Store, name: str, version: int, at_s: float) -> Version:
    """
    Put a version to use.

    Raises:
        StoreError: There is no such version.
    """
    when = _later(store, name, at_s)
    store.apply_profile(name, version, when)
    note(store, when, name, f"version {version} applied", "applied", version)
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
    when = _later(store, name, at_s)
    store.apply_profile(name, used[-2].version, when)
    text = f"rolled back from version {used[-1].version} to {used[-2].version}"
    note(store, when, name, text, "rolled-back", used[-2].version)
    found = applied(store, name)
    assert found is not None
    return found


def _later(store: Store, name: str, at_s: float) -> float:
    """Return an instant after every earlier use: two acts within a cycle, or a clock set back, keep their order."""
    current = applied(store, name)
    return at_s if current is None else max(at_s, (current.applied_at_s or 0.0) + 1e-3)


def note(store: Store, at_s: float, name: str, text: str, act: str, version: int) -> None:
    """Note an act on a version as an event, so that it can be told later what was in use when."""
    details = {"act": act, "version": version}
    store.append_events([Event(at_s=at_s, kind=EVENT_KIND, subject=name, text=text, details=details)])
