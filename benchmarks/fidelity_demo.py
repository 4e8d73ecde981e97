"""
Fidelity on the demo fleet, whose coefficients are known: minutes of it through the real dialect, fitted by kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from collectors.engines import ENGINES
from collectors.engines.contract import Answer
from demo.fleet import DemoFleet
from demo.scenarios import SCENARIOS
from demo.worker import Worker
from scoring.calibration import Told
from scoring.calibration_service import ServiceFit, fit_service
from scoring.calibration_windows import PairWindows, consecutive_windows, kind_of
from scoring.model import PoolReading, Role

SECONDS: Final = 300
SCENARIO: Final = "rush"
SEED: Final = 3
START_S: Final = 1_900_000_000.0
SKEW_S: Final = 900.0
"""The workers' clocks are a quarter of an hour behind ours."""


@dataclass(frozen=True)
class Recovered:
    """A coefficient of a kind of worker: its name, the truth, what was learnt of it (None: the prior was kept)."""

    role: Role
    name: str
    true: float
    fitted: float | None


def _answers(worker: Worker, at_s: float) -> Mapping[str, Answer]:
    def of(kind: str, body: bytes) -> Answer:
        return Answer(status=200, content_type=kind, body=body, received_at_s=at_s)

    encode = msgspec.json.encode
    return {
        "/v1/loads": of("application/json", encode({**worker.head(), "loads": worker.rows()})),
        "/metrics": of("text/plain", worker.metrics()),
        "/model_info": of("application/json", encode(worker.model_info())),
        "/server_info": of("application/json", encode(worker.server_info())),
    }


def lived(seconds: int = SECONDS) -> tuple[DemoFleet, dict[str, list[PoolReading]]]:
    """Return the default fleet after `seconds` virtual seconds, and pool -> its readings, one a second."""
    clock = [START_S]
    scenario = replace(SCENARIOS[SCENARIO], preroll_s=0.0)
    fleet = DemoFleet(scenario, seed=SEED, clock=lambda: clock[0], max_lag_s=None)
    fleet.begin()
    found: dict[str, list[PoolReading]] = {}
    for _ in range(seconds):
        clock[0] += 1.0
        fleet.advance(clock[0])
        at_s = clock[0] + SKEW_S
        for worker in fleet.workers:
            reading = ENGINES["sglang"].understand(_answers(worker, at_s))
            for pool in getattr(reading, "pools", ()):
                named = replace(pool, worker_id=worker.name, received_at_s=at_s)
                found.setdefault(f"{worker.name}/{pool.dp_rank}", []).append(named)
    return fleet, found


def _fit(readings: list[list[PoolReading]]) -> ServiceFit:
    windows: list[PairWindows] = [window for rows in readings for window in consecutive_windows(rows)]
    return fit_service(
        kind_of(readings[0][-1]),
        [each.decode for each in windows if each.decode],
        [each.prefill for each in windows if each.prefill],
        [each.transfer for each in windows if each.transfer],
    )


def recovered(seconds: int = SECONDS) -> list[Recovered]:
    """Return every coefficient that a kind of worker of the default fleet has, beside what was learnt of it."""
    fleet, readings = lived(seconds)
    truth = fleet.truth()["pools"]
    found = []
    for role in (Role.PREFILL, Role.DECODE, Role.UNIFIED):
        own = [pool for pool in truth if pool["role"] == role]
        fit = _fit([rows for rows in readings.values() if rows[-1].role is role])
        true = {**own[0]["profile"], "transfer_s_per_byte": 1.0 / own[0]["bandwidth_bytes_per_s"]}
        laws = {
            Role.PREFILL: (fit.prefill, fit.transfer),
            Role.DECODE: (fit.decode,),
            Role.UNIFIED: (fit.decode, fit.prefill),
        }[role]
        for law in laws:
            for each in law.coefficients:
                value = each.value if each.told is Told.FITTED else None
                found.append(Recovered(role, each.name, float(true[each.name]), value))
    return found
