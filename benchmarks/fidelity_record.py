"""
Drive a real engine with an open-loop load, and write down what each request saw and what telemetry said meanwhile.

The engine is asked for token ids in and ignored ends out, so that both lengths are known. Everything is on this
machine's loopback address.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from collectors.engines import ENGINES
from collectors.engines.contract import Answer
from scoring.model import PoolReading, Role, signal_names

REQUEST_TIMEOUT_S = 180.0
VOCABULARY = 900


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
        shared_tokens: Opening that a third of the prompts share.
        seed: Of arrivals and lengths.
    """

    name: str
    rate_per_s: float
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    seconds: float
    shared_tokens: int = 0
    seed: int = 1


@dataclass(frozen=True)
class Seen:
    """One request as its client saw it; times in seconds, `arrival_s` since the load began."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_s: float | None
    e2e_s: float | None
    error: str = ""


def planned(load: Load) -> list[tuple[float, list[int], int]]:
    """Return (arrival, token ids, output length) of every request; the same for the same load."""
    rng = np.random.default_rng(load.seed)
    at_s, rows = 0.0, []
    opening = rng.integers(10, VOCABULARY, load.shared_tokens).tolist()
    while (at_s := at_s + float(rng.exponential(1.0 / load.rate_per_s))) < load.seconds:
        size = int(rng.integers(*load.prompt_tokens, endpoint=True))
        ids = rng.integers(10, VOCABULARY, size).tolist()
        if opening and rng.random() < 1.0 / 3.0:
            ids = [*opening, *ids][: max(size, len(opening) + 1)]
        rows.append((at_s, ids, int(rng.integers(*load.output_tokens, endpoint=True))))
    return rows


LOADS = (
    Load("light", 1.5, (20, 300), (16, 96), 20.0, seed=1),
    Load("long", 1.0, (400, 1200), (32, 128), 20.0, seed=2),
    Load("busy", 3.0, (50, 600), (16, 128), 20.0, seed=3),
    Load("pressure", 1.5, (1000, 2200), (128, 400), 20.0, seed=4),
)
"""Open loads for a pool of 20,000 tokens; the last one asks for more than it holds."""
ROUNDS = 3
"""Loads take turns, so that a machine that is slower for a minute is slower for all of them."""


async def _send(session: aiohttp.ClientSession, url: str, began: float, row: tuple[float, list[int], int]) -> Seen:
    at_s, ids, size = row
    await asyncio.sleep(max(at_s - (time.perf_counter() - began), 0.0))
    sent = time.perf_counter()
    first: float | None = None
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": size, "ignore_eos": True, "temperature": 0},
        "stream": True,
    }
    try:
        async with session.post(f"{url}/generate", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if first is None and line.startswith(b"data: {"):
                    first = time.perf_counter()
    except (aiohttp.ClientError, TimeoutError) as error:
        return Seen(sent - began, len(ids), size, None, None, type(error).__name__)
    ended = time.perf_counter()
    return Seen(sent - began, len(ids), size, None if first is None else first - sent, ended - sent)


async def _watch(session: aiohttp.ClientSession, url: str, every_s: float, out: list[PoolReading]) -> None:
    dialect = ENGINES["sglang"]
    rare: dict[str, Answer] = {}
    while True:
        answers = dict(rare)
        for path in ("/v1/loads", "/metrics", *(() if rare else ("/model_info", "/server_info"))):
            try:
                async with session.get(url + path) as answer:
                    kind = answer.headers.get("content-type", "").split(";")[0].strip().lower()
                    answers[path] = Answer(
                        status=answer.status, content_type=kind, body=await answer.read(), received_at_s=time.time()
                    )
            except (aiohttp.ClientError, TimeoutError):
                continue
        rare = {path: answer for path, answer in answers.items() if path in ("/model_info", "/server_info")}
        reading = dialect.understand(answers)
        out += [replace(pool, worker_id="w", received_at_s=time.time()) for pool in getattr(reading, "pools", ())]
        await asyncio.sleep(every_s)


async def record(url: str, folder: Path, loads: Sequence[Load] = LOADS, rounds: int = ROUNDS) -> None:
    """Play the loads in turn, each round with lengths of its own, and save each as NAME.ROUND.json."""
    await drive(url, Load("warm-up", 2.0, (20, 1500), (8, 40), 8.0, seed=9))
    for turn in range(rounds):
        for load in loads:
            played = replace(load, seed=load.seed + 100 * turn)
            seen, readings = await drive(url, played)
            save(folder / f"{load.name}.{turn}.json", played, seen, readings)
            answered = sum(each.e2e_s is not None for each in seen)
            print(f"{load.name}.{turn}: {answered} of {len(seen)} answered, {len(readings)} readings", flush=True)


async def drive(url: str, load: Load, every_s: float = 0.5) -> tuple[list[Seen], list[PoolReading]]:
    """Play a load and return what clients saw and what the engine reported, polled every `every_s` seconds."""
    readings: list[PoolReading] = []
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        watcher = asyncio.create_task(_watch(session, url, every_s, readings))
        began = time.perf_counter()
        seen = await asyncio.gather(*(_send(session, url, began, row) for row in planned(load)))
        await asyncio.sleep(2 * every_s)
        watcher.cancel()
    return list(seen), readings


_IDENTITY = ("worker_id", "dp_rank", "received_at_s", "role", "engine", "version", "model")


def save(path: Path, load: Load, seen: Sequence[Seen], readings: Sequence[PoolReading]) -> None:
    """Write a recording as JSON."""
    names = [name for name in signal_names() if any(getattr(each, name) is not None for each in readings)]
    body: dict[str, Any] = {
        "load": asdict(load),
        "requests": [asdict(each) for each in seen],
        "readings": [
            {name: getattr(each, name) for name in (*_IDENTITY, *names) if getattr(each, name) is not None}
            for each in readings
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, allow_nan=False), encoding="utf-8")


def read(path: Path) -> tuple[Load, list[Seen], list[PoolReading]]:
    """Read a recording."""
    body = json.loads(path.read_text(encoding="utf-8"))
    values = body["load"]
    lengths = {name: tuple(values[name]) for name in ("prompt_tokens", "output_tokens")}
    load = Load(**{**values, **lengths})
    readings = [PoolReading(**{**row, "role": Role(row["role"])}) for row in body["readings"]]
    return load, [Seen(**row) for row in body["requests"]], readings
