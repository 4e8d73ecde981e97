"""
What a watch saw (see `watch.py`), and an oracle that reads engines' bodies without any code of KVScope's.

The oracle knows JSON from the standard library and expositions from prometheus_client's parser.
"""

import bisect
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from scoring.model import FleetSnapshot, PoolSnapshot
from scoring.snapshot import fleet_from_json


@dataclass(frozen=True)
class Body:
    """One answer as it came; `t` is when it was asked, `received_at_s` when its last byte was there."""

    t: float
    received_at_s: float
    url: str
    status: int
    text: str

    @cached_property
    def json(self) -> Any:
        return json.loads(self.text)

    @cached_property
    def series(self) -> "Series":
        return Series(self.text)


class Series:
    """An exposition: sample name -> list of (labels, value)."""

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples[sample.name].append((sample.labels, sample.value))

    def all(self, name: str, **labels: object) -> list[float]:
        """Return the values of every series of that name that carries these labels."""
        wanted = {key: str(value) for key, value in labels.items()}
        return [value for has, value in self._samples.get(name, []) if wanted.items() <= has.items()]

    def one(self, name: str, **labels: object) -> float:
        """Return the only value; an error when there are more or none."""
        (value,) = self.all(name, **labels)
        return value

    def total(self, name: str, **labels: object) -> float:
        return sum(self.all(name, **labels))

    def labelled(self, name: str, **labels: object) -> list[tuple[Mapping[str, str], float]]:
        """Return labels and value of every series of that name that carries these labels."""
        wanted = {key: str(value) for key, value in labels.items()}
        return [(has, value) for has, value in self._samples.get(name, []) if wanted.items() <= has.items()]

    def names(self) -> set[str]:
        return set(self._samples)


@dataclass(frozen=True)
class Judged:
    """What KVScope said after one cycle."""

    fleet: FleetSnapshot
    waiting_once: float | None
    routers: Mapping[str, Any]

    def pool(self, pool_id: str) -> PoolSnapshot:
        return next(pool for pool in self.fleet.pools if pool.pool_id == pool_id)


class Seen:
    """A folder that `watch.py` wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers = _bodies(folder / "answers.jsonl")
        self.witness = _bodies(folder / "witness.jsonl")
        self.summary = json.loads((folder / "sources.json").read_text())

    @cached_property
    def judged(self) -> list[Judged]:
        with (self.folder / "judged.jsonl").open() as lines:
            rows = [json.loads(line) for line in lines]
        return [
            Judged(fleet_from_json(json.dumps(row["fleet"])), row["waiting_once"], row["routers"])
            for row in rows
            if row["fleet"]["pools"]
        ]

    @cached_property
    def load_summary(self) -> dict[str, Any]:
        """What the load client said of its run."""
        found: dict[str, Any] = json.loads((self.folder / "load.json").read_text())
        return found

    def paths(self, origin: str) -> set[str]:
        return {urlsplit(url).path for url in self.answers if url.startswith(origin)}

    def answer_at(self, url: str, received_at_s: float) -> Body:
        """Return the body of `url` that a reading received at that moment was made of."""
        bodies = self.answers[url]
        index = bisect.bisect_right(bodies, received_at_s, key=lambda body: body.received_at_s) - 1
        assert index >= 0, f"no answer of {url} before {received_at_s}"
        return bodies[index]

    def beside(self, url: str, loads: Body, next_loads: Body | None) -> Body | None:
        """Return the answer of `url` that was asked in the same poll, right after `loads`."""
        end = next_loads.t if next_loads is not None else float("inf")
        found = [body for body in self.answers.get(url, []) if loads.received_at_s <= body.t < end]
        return found[0] if found else None

    def samples(self, pool_id: str) -> Iterator[tuple[Judged, PoolSnapshot]]:
        """Yield each judged moment in which the pool brought a new answer."""
        last: float | None = None
        for judged in self.judged:
            pool = next((pool for pool in judged.fleet.pools if pool.pool_id == pool_id), None)
            if pool is None or pool.received_at_s is None or pool.received_at_s == last:
                continue
            last = pool.received_at_s
            yield judged, pool


def _bodies(path: Path) -> dict[str, list[Body]]:
    found: dict[str, list[Body]] = defaultdict(list)
    with path.open() as lines:
        for line in lines:
            row = json.loads(line)
            found[row["url"]].append(Body(row["t"], row["received_at_s"], row["url"], row["status"], row["text"]))
    for bodies in found.values():
        bodies.sort(key=lambda body: body.received_at_s)
    return dict(found)


def bracket(
    witness: list[Body], value_at_s: float, read: Any, *, before_s: float = 0.0
) -> tuple[float | None, float | None]:
    """
    Return what the witness read just before and just after a moment: a counter's value then lies between.

    The one before ended before the moment (less `before_s`, for figures that an engine publishes late), the one after
    was asked after it.
    """
    low = [body for body in witness if body.received_at_s <= value_at_s - before_s]
    high = [body for body in witness if body.t >= value_at_s]
    return (read(low[-1]) if low else None, read(high[0]) if high else None)
