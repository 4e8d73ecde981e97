"""
Drive an engine with the loads of the study, and write down what each request saw and what telemetry said meanwhile.

    python -m benchmarks.fidelity_record TARGET --out DIR [--url URL] [--loads A,B] [--rounds N] [--share X]

Prompts are token ids, so that both lengths are known. Everything is on this machine's loopback address; a cluster in
a network namespace is driven from inside it (`engines.sh exec`).
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.fidelity_loads import COUNT_EVERY_S, LOOK_S, Load, Planned, Recording, Seen, planned, save
from benchmarks.fidelity_targets import ROUNDS, TARGETS, Target
from collectors.engines import ENGINES
from collectors.engines.contract import Answer
from scoring.model import PoolReading, Role, WorkerReading

REQUEST_TIMEOUT_S = 300.0
METRICS = "/metrics"
SETTLE_S = 2.0
"""After the last request, before the next load."""


@dataclass(frozen=True)
class _Capacity:
    """What a frontend says of a worker's pool, where workers do not."""

    usable_tokens: float
    block_size_tokens: float


def _body(api: str, row: Planned) -> tuple[str, dict[str, Any]]:
    if api == "generate":
        sampling = {"max_new_tokens": row.output_tokens, "temperature": 0}
        return "/generate", {"input_ids": list(row.ids), "sampling_params": sampling, "stream": True}
    return "/v1/completions", {
        "model": "tiny",
        "prompt": list(row.ids),
        "max_tokens": row.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        # Without it a token that decodes to nothing makes no event, and the first event is not the first token.
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def _generated(event: bytes) -> int | None:
    """Return how many tokens an event says were generated so far."""
    try:
        said = json.loads(event)
    except json.JSONDecodeError:
        return None
    count = (said.get("meta_info") or said.get("usage") or {}).get("completion_tokens")
    return count if isinstance(count, int) else None


async def _send(session: aiohttp.ClientSession, target: Target, began: float, row: Planned) -> Seen:
    path, body = _body(target.api, row)
    await asyncio.sleep(max(row.at_s - (time.perf_counter() - began), 0.0))
    sent = time.perf_counter()
    first: float | None = None
    newest = b""
    try:
        async with session.post(target.url + path, json=body) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    first = time.perf_counter() if first is None else first
                    newest = line[len(b"data: ") :]
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        return Seen(sent - began, len(row.ids), row.output_tokens, None, None, type(error).__name__)
    ended = time.perf_counter()
    output = _generated(newest) or row.output_tokens
    ttft_s = None if first is None else first - sent
    return Seen(sent - began, len(row.ids), output, ttft_s, ended - sent, "" if first else "nothing came")


async def _ask(session: aiohttp.ClientSession, url: str, path: str, accept: str) -> Answer | None:
    try:
        async with session.get(url + path, headers={"Accept": accept}) as answer:
            kind = answer.headers.get("content-type", "").split(";")[0].strip().lower()
            return Answer(status=answer.status, content_type=kind, body=await answer.read(), received_at_s=time.time())
    except (aiohttp.ClientError, TimeoutError):
        return None


async def _capacity(session: aiohttp.ClientSession, frontend: str) -> _Capacity | None:
    answer = await _ask(session, frontend, "/metrics", "text/plain")
    if answer is None:
        return None
    reading = ENGINES["dynamo-frontend"].understand({"/metrics": answer})
    facts = reading.facts if isinstance(reading, WorkerReading) else {}
    try:
        blocks, size = float(facts["KV blocks of a worker"]), float(facts["block size (tokens)"])
    except KeyError:
        return None
    return _Capacity(blocks * size, size)


def _completed(pool: PoolReading, name: str, role: Role, capacity: _Capacity | None) -> PoolReading:
    """Return the reading with what the study knows and the worker does not say: its name, its role, its size."""
    pool = replace(pool, worker_id=name, received_at_s=time.time())
    if capacity is None:
        return pool
    usage = pool.reported_usage_ratio
    return replace(
        pool,
        role=role,
        usable_tokens=capacity.usable_tokens,
        block_size_tokens=capacity.block_size_tokens,
        used_tokens=None if usage is None else usage * capacity.usable_tokens,
    )


async def _watch(session: aiohttp.ClientSession, target: Target, name: str, out: list[PoolReading]) -> None:
    url, role = target.workers[name]
    dialect = ENGINES[target.dialect]
    capacity = await _capacity(session, target.frontend) if target.frontend else None
    newest: dict[str, Answer] = {}
    counted_at = float("-inf")
    while True:
        began = time.perf_counter()
        is_counting = began - counted_at >= COUNT_EVERY_S
        for question in dialect.questions:
            is_rare = question.every_s > 0.0 and question.path in newest
            if is_rare or (question.path == METRICS and not question.is_essential and not is_counting):
                continue
            answer = await _ask(session, url, question.path, question.accept)
            if answer is not None:
                newest[question.path] = answer
        counted_at = began if is_counting else counted_at
        reading = dialect.understand(newest)
        out += [_completed(pool, name, role, capacity) for pool in getattr(reading, "pools", ())]
        if any(question.path == METRICS and not question.is_essential for question in dialect.questions):
            newest.pop(METRICS, None)  # Counters of another moment than the gauges beside them are no reading.
        await asyncio.sleep(max(LOOK_S - (time.perf_counter() - began), 0.02))


async def drive(target: Target, load: Load, turn: int = 0) -> Recording:
    """Play one round of a load; return what clients saw and what the workers reported."""
    readings: list[PoolReading] = []
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    rows = planned(load, turn)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        watchers = [asyncio.create_task(_watch(session, target, name, readings)) for name in target.workers]
        await asyncio.sleep(2 * COUNT_EVERY_S)
        began_at_s, began = time.time(), time.perf_counter()
        seen = await asyncio.gather(*(_send(session, target, began, row) for row in rows))
        await asyncio.sleep(SETTLE_S)
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
    return Recording(load, began_at_s, tuple(seen), tuple(readings))


async def record(target: Target, folder: Path, loads: Sequence[Load], rounds: int = ROUNDS) -> None:
    """Warm the engine up, play the loads in turn, and save each round as NAME.ROUND.json."""
    await drive(target, target.warm_up)
    for turn in range(rounds):
        for load in loads:
            recording = await drive(target, load, turn)
            save(folder / f"{load.name}.{turn}.json", recording)
            answered = sum(each.e2e_s is not None for each in recording.requests)
            counts = f"{answered} of {len(recording.requests)} answered, {len(recording.readings)} readings"
            print(f"{target.name} {load.name}.{turn}: {counts}", flush=True)


def shortened(target: Target, names: Sequence[str], share: float) -> list[Load]:
    """
    Return these loads of a target (all when none are named), `share` times as long.

    Raises:
        ValueError: The target has no load of that name.
    """
    known = {load.name: load for load in target.loads}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"{target.name} has no load {', '.join(unknown)}; it has {', '.join(known)}")
    return [replace(known[name], seconds=known[name].seconds * share) for name in names or known]


def main(argv: Sequence[str] | None = None) -> int:
    """Record one target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity_record", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--out", type=Path, required=True, help="folder for the recordings")
    parser.add_argument("--url", help="another address of the single server")
    parser.add_argument("--loads", default="", help="names, by commas; all by default")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--share", type=float, default=1.0, help="of each load's seconds, for a trial")
    args = parser.parse_args(argv)
    target = TARGETS[args.target]
    if args.url:
        if len(target.workers) != 1:
            parser.error(f"--url: {target.name} is a cluster at fixed addresses; start it with the kit")
        (name,) = target.workers
        target = replace(target, url=args.url, workers={name: (args.url, target.workers[name][1])})
    try:
        loads = shortened(target, [name for name in args.loads.split(",") if name], args.share)
    except ValueError as error:
        parser.error(str(error))
    asyncio.run(record(target, args.out, loads, args.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
