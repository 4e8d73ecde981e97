"""
What calibration had in use at a past instant, from the store: what was applied later is not used, and what was in use
then is, whatever is in use now.

Read next: `scoring.calibration_in_use`, `calibration_versions`.
"""

from collectors.calibration_outputs import outputs_at
from collectors.calibration_reserves import reserve_at
from collectors.calibration_versions import applied_at
from collectors.judging import reserve_of
from collectors.settings import Settings
from collectors.store import Store
from scoring.calibration_in_use import RECENT_S, InUse, KindSeen, parts_in_use
from scoring.calibration_reserve import uncalibrated
from scoring.calibration_windows import DecodeWindow, Kind, PrefillWindow, consecutive_windows, kind_of, readings_of
from scoring.model import FleetSnapshot, Role


def in_use_at(store: Store, fleet: FleetSnapshot, settings: Settings) -> InUse:
    """
    Return what was in use at the instant of a fleet judged from the store; StoreError when it cannot be read.

    A version that was applied later is not used, and one that was in use then is, whatever is in use now.
    """
    at_s = fleet.at_s
    kinds: dict[str, Kind] = {}
    workers: dict[str, set[str]] = {}
    for pool in fleet.pools:
        if pool.received_at_s is None or pool.role is Role.UNKNOWN:
            continue
        kind = kind_of(pool.reading, pool.labels)
        kinds[kind.name] = kind
        workers.setdefault(kind.name, set()).add(pool.worker_id)
    decode: dict[str, list[DecodeWindow]] = {}
    prefill: dict[str, list[PrefillWindow]] = {}
    for history in store.latest_histories(at_s, RECENT_S) if kinds else ():
        name = kind_of(history.last, history.labels).name
        for found in consecutive_windows(readings_of(history)):
            if found.decode is not None:
                decode.setdefault(name, []).append(found.decode)
            if found.prefill is not None:
                prefill.setdefault(name, []).append(found.prefill)
    parts, profiles, bandwidths = parts_in_use(
        [
            KindSeen(
                kind=kind,
                version=applied_at(store, name, at_s),
                worker_ids=tuple(sorted(workers[name])),
                decode=sorted(decode.get(name, ()), key=lambda each: each.at_s),
                prefill=sorted(prefill.get(name, ()), key=lambda each: each.at_s),
            )
            for name, kind in kinds.items()
        ]
    )
    reserve, since_at_s = reserve_at(store, at_s) or (uncalibrated(reserve_of(settings)), None)
    return InUse(
        at_s=at_s,
        parts=parts,
        profiles=profiles,
        bandwidths_bytes_per_s=bandwidths,
        reserve=reserve,
        reserve_since_at_s=since_at_s,
        outputs=outputs_at(store, at_s),
        is_past=True,
    )
