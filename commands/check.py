"""
`kvscope check`: one look at one worker (or a saved answer): what it reports, what is measured, derived, estimated
or unknown, and what is wrong with it.

Asks exactly as the collector asks and judges exactly as the pages are judged. Exit status: 0 understood, 1 reached
but not understood, 2 not reached, 3 wrong use.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx
import numpy as np

from collectors.addresses import base_url, safe_url
from collectors.discovery import Target
from collectors.engines import ENGINES, identify
from collectors.engines.contract import Answer, NotUnderstood
from collectors.engines.numbers import as_mapping, decode_json
from collectors.exchange import REACHED_KINDS, ask
from collectors.poll_types import PollLimits, SourceDetail
from collectors.prometheus_api import QUERY_PATH
from collectors.settings import read_secret
from collectors.transport import FleetTransport
from collectors.worker_poll import WorkerPoll
from commands import refuse
from commands.check_view import (
    EXIT_NOT_REACHED,
    EXIT_NOT_UNDERSTOOD,
    EXIT_UNDERSTOOD,
    Checked,
    as_json,
    as_text,
)
from scoring.model import (
    Finding,
    FleetSnapshot,
    PoolHistory,
    PoolReading,
    Severity,
    SourceState,
    signal_names,
)
from scoring.snapshot import JudgeSettings, judge_fleet

HELP = "One look at a worker: what it reports, how each figure is known, what is wrong."

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
INTERVAL_S: Final = 1.0


class WrongUseError(Exception):
    """The command cannot be carried out as given."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `kvscope check`."""
    parser.add_argument("url", nargs="?", help="base address of a worker or router, for example http://10.0.0.5:30000")
    parser.add_argument(
        "--file", action="append", metavar="PATH", help="a saved answer (JSON or Prometheus text); may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--token-env", metavar="NAME", help="environment variable that holds the bearer token")
    parser.add_argument("--timeout-s", type=float, default=5.0, metavar="S", help="time for all answers (default 5)")
    parser.add_argument(
        "--seconds", type=float, default=0.0, metavar="S", help="keep asking once a second for S seconds: adds rates"
    )


def run(args: argparse.Namespace) -> int:
    """Check and print; the exit status says how far it came."""
    try:
        checked = _check(args)
    except WrongUseError as error:
        return refuse("check", error)
    if args.json:
        print(json.dumps(as_json(checked), indent=2, allow_nan=False, ensure_ascii=False))
    else:
        print(as_text(checked))
    return checked.exit_status


def _check(args: argparse.Namespace) -> Checked:
    if (args.url is None) == (not args.file):
        raise WrongUseError("give the address of a worker, or --file with a saved answer (one of the two)")
    if args.file:
        return check_files([Path(name) for name in args.file])
    if not 0 < args.timeout_s <= 600 or not 0 <= args.seconds <= 3600:
        raise WrongUseError("--timeout-s must be above 0 and at most 600, --seconds at most 3600")
    try:
        url = base_url(args.url if "://" in args.url else f"http://{args.url}")
    except ValueError as error:
        raise WrongUseError(f"{error}; expected http://host:port") from error
    if args.token_env and not read_secret(args.token_env):
        raise WrongUseError(f"the environment variable {args.token_env} is not set or empty")
    return asyncio.run(check_url(url, token_env=args.token_env, timeout_s=args.timeout_s, seconds=args.seconds))


async def check_url(
    url: str,
    *,
    token_env: str | None = None,
    timeout_s: float = 5.0,
    seconds: float = 0.0,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Checked:
    """Poll the worker at `url` once, then once a second for `seconds`, and judge what came. `url`: see `base_url`."""
    paths = {question.path for dialect in ENGINES.values() for question in dialect.questions}
    # The longest first: of /v1/loads and /loads, both asked of some engine, the address holds the former.
    for path in sorted(paths, key=lambda path: (-len(path), path)):
        if path != "/" and url.endswith(path):
            url = url.removesuffix(path)
            break
    way = transport if transport is not None else FleetTransport()
    limits = PollLimits(
        timeout_s=timeout_s,
        connect_timeout_s=timeout_s,
        metrics_interval_s=INTERVAL_S,
        max_body_bytes=MAX_BODY_BYTES,
        down_after_failures=1,
    )
    worker = WorkerPoll(
        Target(worker_id=safe_url(url), url=url, token_env=token_env),
        transport=way,
        limits=limits,
        token=read_secret(token_env) if token_env else None,
        engines=ENGINES,
        identify_engine=identify,
        clock=time.time,
        steady_clock=time.monotonic,
    )
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + seconds
    samples: dict[int, list[PoolReading]] = {}
    detail: SourceDetail | None = None
    is_prometheus = False
    try:
        while True:
            began = loop.time()
            result = await worker.poll()
            detail = result.detail or detail
            for reading in result.readings:
                samples.setdefault(reading.dp_rank, []).append(reading)
            if began + INTERVAL_S > ends_at:
                break
            await asyncio.sleep(max(0.0, began + INTERVAL_S - loop.time()))
        if result.poll.error_kind == "engine-unknown":
            is_prometheus = await _is_prometheus(url, way, timeout_s)
    finally:
        await way.aclose()
    poll = result.poll
    checked = Checked(source=safe_url(url), rejected_count=poll.rejected_count, ignored_count=poll.ignored_count)
    if detail is not None:
        checked.engine, checked.version, checked.facts = detail.engine, detail.version, detail.facts
        checked.expected_rank_count, checked.findings = detail.expected_rank_count, detail.findings
        checked.asked = [
            f"{asked.path} {asked.status if asked.status is not None else asked.error_kind or 'not asked'}"
            + (f" ({asked.byte_count:,} bytes)" if asked.byte_count else "")
            for asked in detail.questions
        ]
    checked.router_workers = result.router_workers
    if poll.error_kind is not None:
        checked.state, checked.detail = poll.state, poll.detail
        checked.findings = (
            Finding(code=poll.error_kind, text=poll.detail or poll.error_kind, severity=Severity.ERROR),
        )
        if is_prometheus:
            text = "This is a Prometheus-compatible server, no worker: name it in the fleet file under [prometheus]."
            checked.findings += (Finding(code="prometheus-server", text=text, severity=Severity.INFO),)
        checked.exit_status = (
            EXIT_NOT_UNDERSTOOD
            if poll.error_kind in REACHED_KINDS or poll.state is SourceState.UNAUTHORISED
            else EXIT_NOT_REACHED
        )
        return checked
    checked.exit_status = EXIT_UNDERSTOOD
    checked.first = {rank: readings[0] for rank, readings in samples.items() if len(readings) > 1}
    return _judged(checked, [history_of(readings) for readings in samples.values()], time.time(), poll.state)


async def _is_prometheus(url: str, way: httpx.AsyncBaseTransport, timeout_s: float) -> bool:
    """Say whether the server at `url` answers an instant query; asked without a token, which is the worker's."""
    timeout = {"connect": timeout_s, "read": timeout_s, "write": timeout_s, "pool": None}
    request = httpx.Request("GET", f"{url}{QUERY_PATH}?query=up", extensions={"timeout": timeout})
    ends_at = asyncio.get_running_loop().time() + timeout_s
    answer = await ask(way, request, max_bytes=MAX_BODY_BYTES, deadline_at=ends_at)
    said = as_mapping(decode_json(answer.body)) if isinstance(answer, Answer) else {}
    return said.get("status") in ("success", "error") and ("data" in said or "errorType" in said)


def check_files(paths: Sequence[Path]) -> Checked:
    """Understand saved answers as if a worker had given them together; raises WrongUseError when one is unreadable."""
    checked = Checked(source=", ".join(path.name for path in paths))
    answers: dict[str, Answer] = {}
    now_s = time.time()
    for path in paths:
        try:
            with path.open("rb") as stream:
                body = stream.read(MAX_BODY_BYTES + 1)
        except OSError as error:
            raise WrongUseError(f"{path}: {error.strerror or error}") from error
        if len(body) > MAX_BODY_BYTES:
            raise WrongUseError(f"{path}: larger than {MAX_BODY_BYTES} bytes; no worker's answer is")
        is_json = body.lstrip()[:1] in (b"{", b"[")
        answer = Answer(
            status=200,
            content_type="application/json" if is_json else "text/plain",
            body=body,
            received_at_s=now_s,
        )
        question = _question_of(answer)
        if question is None or question in answers:
            why = "a second answer to the same question" if question else "no engine's answer"
            text = f"{path.name}: {why} ({len(body)} bytes of {'JSON' if is_json else 'text'})."
            checked.findings = (
                *checked.findings,
                Finding(code="not-understood", text=text, severity=Severity.ERROR),
            )
            checked.asked.append(f"{path.name} not understood ({len(body):,} bytes)")
            continue
        answers[question] = answer
        checked.asked.append(f"{path.name} as {question} ({len(body):,} bytes)")
    dialect = identify(answers)
    reading = dialect.understand(answers) if dialect is not None else None
    if dialect is None or reading is None or isinstance(reading, NotUnderstood):
        if isinstance(reading, NotUnderstood):
            checked.findings = (*checked.findings, Finding(code=reading.code, text=reading.text))
        checked.state, checked.exit_status = SourceState.NOT_UNDERSTOOD, EXIT_NOT_UNDERSTOOD
        checked.detail = checked.findings[0].text if checked.findings else "no engine recognised"
        return checked
    checked.engine, checked.version, checked.facts = reading.engine, reading.version, reading.facts
    checked.findings = (*checked.findings, *reading.findings)
    checked.router_workers, checked.expected_rank_count = reading.router_workers, reading.expected_rank_count
    checked.rejected_count, checked.ignored_count = reading.rejected_count, reading.ignored_count
    checked.exit_status = EXIT_UNDERSTOOD
    # A saved answer is looked at as of the moment it was given, by the engine's own clock where it says one.
    said = [pool.answered_at_s or pool.reported_at_s for pool in reading.pools]
    at_s = max((stamp for stamp in said if stamp is not None), default=now_s)
    histories = [history_of([replace(pool, worker_id=checked.source, received_at_s=at_s)]) for pool in reading.pools]
    state = SourceState.NOTHING_YET if reading.is_nothing_yet else SourceState.FRESH
    return _judged(checked, histories, at_s, state)


def history_of(readings: Sequence[PoolReading]) -> PoolHistory:
    """Return the readings of one pool, oldest first, as a history."""
    columns = {
        name: np.array(
            [np.nan if (value := getattr(reading, name)) is None else value for reading in readings], dtype=np.float64
        )
        for name in signal_names()
    }
    return PoolHistory(
        last=readings[-1],
        at_s=np.array([reading.received_at_s for reading in readings], dtype=np.float64),
        columns=columns,
        polled_at_s=readings[-1].received_at_s,
    )


def _question_of(answer: Answer) -> str | None:
    """Return the path this body answers: the first one under which a dialect recognises it."""
    paths = dict.fromkeys(question.path for dialect in ENGINES.values() for question in dialect.questions)
    return next((path for path in paths if identify({path: answer}) is not None), None)


def _judged(checked: Checked, histories: Sequence[PoolHistory], at_s: float, state: SourceState) -> Checked:
    fleet: FleetSnapshot = judge_fleet(histories, at_s, JudgeSettings(rate_window_s=3600.0, evidence_window_s=3600.0))
    checked.pools = tuple(sorted(fleet.pools, key=lambda pool: pool.dp_rank))
    order = list(SourceState)
    checked.state = max((pool.state for pool in fleet.pools), key=order.index, default=state)
    everything = [*checked.findings, *fleet.findings, *(found for pool in checked.pools for found in pool.findings)]
    checked.findings = tuple(dict.fromkeys(everything))
    return checked
