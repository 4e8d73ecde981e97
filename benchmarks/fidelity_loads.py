"""
What is sent to an engine under study, what came of it, and the file both are kept in.

A load is open-loop: Poisson arrivals, prompt and output lengths uniform in a range. The same load has the same
arrivals and lengths in every round, so that two rounds of it show how far the machine alone moves a figure; token ids
differ from round to round, so that no prefix cache remembers.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scoring.model import PoolReading, Role, signal_names

LOOK_S = 0.1
"""
Between two looks at a worker. Requests of this study live for a second: at a look a second each stretch of steps has
KV that came and went inside it, which flattens the part per KV token by half and more (`scoring.calibration_service`
widens the interval by as much, but a prediction needs the point).
"""
COUNT_EVERY_S = 0.5
"""Between two readings of `/metrics` beside a load API: writing it out takes the server longer than a step."""
VOCABULARY = 900
"""Ids below the tiny model's 1,024; its few special tokens are left out."""


class StudyError(ValueError):
    """Recordings are not there, are none, or tell too little; says what to do."""


@dataclass(frozen=True)
class Load:
    """
    An open-loop load.

    Attributes:
        name: For the table.
        rate_per_s: Poisson arrivals.
        prompt_tokens: Range, uniform.
        output_tokens: Range, uniform.
        seconds: How long requests keep arriving.
        seed: Of arrivals and lengths.
    """

    name: str
    rate_per_s: float
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    seconds: float
    seed: int = 1

    @property
    def words(self) -> str:
        """The load in one line."""
        prompts, outputs = self.prompt_tokens, self.output_tokens
        return (
            f"{self.rate_per_s:g} requests/s, prompts {prompts[0]}-{prompts[1]}, outputs {outputs[0]}-{outputs[1]}, "
            f"{self.seconds:g} s"
        )


@dataclass(frozen=True)
class Planned:
    """One request to send: seconds since the load began, token ids, tokens to generate."""

    at_s: float
    ids: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True)
class Seen:
    """
    One request as its client saw it; times in seconds, `arrival_s` since the load began, None where it failed.

    `output_tokens` is what was generated where the engine says it, else what was asked for.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_s: float | None
    e2e_s: float | None
    error: str = ""


@dataclass(frozen=True)
class Recording:
    """
    A load as it was played.

    Attributes:
        load: What was sent.
        began_at_s: Our clock when it began; `Seen.arrival_s` counts from here.
        requests: As clients saw them.
        readings: What the workers reported meanwhile.
    """

    load: Load
    began_at_s: float
    requests: tuple[Seen, ...]
    readings: tuple[PoolReading, ...]

    def of(self, *roles: Role) -> dict[str, list[PoolReading]]:
        """Return worker -> its readings in order, of workers with one of these roles."""
        found: dict[str, list[PoolReading]] = {}
        for each in self.readings:
            if each.role in roles:
                found.setdefault(each.worker_id, []).append(each)
        return found

    def counted(self, *roles: Role) -> dict[str, list[PoolReading]]:
        """Return the same without the looks that left `/metrics` out: what has counters of requests."""
        return {
            worker: [each for each in readings if _is_counted(each)] for worker, readings in self.of(*roles).items()
        }


def _is_counted(reading: PoolReading) -> bool:
    return reading.ttft_count_total is not None or reading.transfers_total is not None


def planned(load: Load, turn: int = 0) -> list[Planned]:
    """Return every request of a load; arrivals and lengths are the load's own, ids those of the round."""
    rng = np.random.default_rng(load.seed)
    words = np.random.default_rng([load.seed, turn])
    at_s, rows = 0.0, []
    while (at_s := at_s + float(rng.exponential(1.0 / load.rate_per_s))) < load.seconds:
        size = int(rng.integers(*load.prompt_tokens, endpoint=True))
        output = int(rng.integers(*load.output_tokens, endpoint=True))
        rows.append(Planned(at_s, tuple(words.integers(10, VOCABULARY, size).tolist()), output))
    return rows


_IDENTITY = ("worker_id", "dp_rank", "received_at_s", "role", "engine", "version", "model")


def save(path: Path, recording: Recording) -> None:
    """Write a recording as JSON; what no reading knows is left out."""
    names = [name for name in signal_names() if any(getattr(each, name) is not None for each in recording.readings)]
    body: dict[str, Any] = {
        "load": asdict(recording.load),
        "began_at_s": recording.began_at_s,
        "requests": [asdict(each) for each in recording.requests],
        "readings": [
            {name: getattr(each, name) for name in (*_IDENTITY, *names) if getattr(each, name) is not None}
            for each in recording.readings
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, allow_nan=False), encoding="utf-8")


def read(path: Path) -> Recording:
    """
    Read a recording.

    Raises:
        StudyError: The file is not one.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        lengths = {name: tuple(body["load"][name]) for name in ("prompt_tokens", "output_tokens")}
        return Recording(
            load=Load(**{**body["load"], **lengths}),
            began_at_s=body["began_at_s"],
            requests=tuple(Seen(**row) for row in body["requests"]),
            readings=tuple(PoolReading(**{**row, "role": Role(row["role"])}) for row in body["readings"]),
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise StudyError(
            f"{path}: is no recording of this study ({error!r}); record anew with --kit or --url"
        ) from None


def rounds(folder: Path, name: str) -> list[Recording]:
    """
    Return all rounds of a load, in the order they were played.

    Raises:
        StudyError: There are none.
    """
    found = [read(path) for path in sorted(folder.glob(f"{name}.*.json"))]
    if not found:
        raise StudyError(f"{folder}: no recording of {name}; record it with --kit or --url")
    return found


def played(folder: Path, loads: Sequence[Load]) -> list[str]:
    """Return the names of the loads of which `folder` holds a recording."""
    return [load.name for load in loads if any(folder.glob(f"{load.name}.*.json"))]
