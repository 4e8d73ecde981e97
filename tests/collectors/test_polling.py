"""Polling: one fan-out a cycle over real HTTP; each way to misbehave is a named outcome of that worker alone."""

import asyncio
import contextlib
import gzip
import json
import socket
import ssl
import subprocess
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from collectors.discovery import Target
from collectors.engines.contract import Answer, NotUnderstood, Question
from collectors.exchange import FAILURE_KINDS
from collectors.poll_types import offset_ratio
from collectors.polling import CycleResult, Poller
from collectors.settings import PollSettings, TlsSettings
from collectors.transport import FleetTransport
from scoring.model import PoolReading, Role, SourceState, WorkerReading

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Toy:
    """A dialect of one essential question and two optional ones."""

    name = "toy"
    questions = (
        Question(path="/loads", is_essential=True, max_bytes=1_000_000),
        Question(path="/metrics", accept="text/plain"),
        Question(path="/info", every_s=60.0),
    )

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        return "/loads" in answers and answers["/loads"].status == 200 and b"toy" in answers["/loads"].body

    def understand(self, answers: Mapping[str, Answer]) -> WorkerReading | NotUnderstood:
        body = answers["/loads"].body
        if b"explode" in body:
            raise ZeroDivisionError("a defect")
        try:
            toy = json.loads(body)["toy"]
        except (ValueError, KeyError, TypeError):
            return NotUnderstood("no-toy", "expected an object with toy")
        metrics = answers.get("/metrics")
        prefix = float(metrics.body) if metrics is not None and metrics.status == 200 else None
        return WorkerReading(engine="toy", pools=(PoolReading(used_tokens=float(toy), prefix_tokens=prefix),))


TOY = Toy()
FAST = PollSettings(interval_s=0.2, timeout_s=1.0, connect_timeout_s=0.5, jitter_ratio=0.1, max_body_bytes=1_000_000)


@contextlib.asynccontextmanager
async def served(routes: Mapping[str, Handler], tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serve real HTTP on loopback; unknown paths are 404."""
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_get(path, handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def raw_server(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Serve bytes as they are, for what no HTTP library would send."""

    open_tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await reader.readuntil(b"\r\n\r\n")
                await talk(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            open_tasks.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(open_tasks):
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)
        await asyncio.sleep(0.01)


def poller(
    *targets: Target,
    settings: PollSettings = FAST,
    transport: httpx.AsyncBaseTransport | None = None,
    engine: Toy = TOY,
) -> Poller:
    made = Poller(
        settings,
        transport or FleetTransport(),
        engines={"toy": engine},
        identify_engine=lambda answers: engine if engine.recognises(answers) else None,
    )
    made.set_targets(targets)
    return made


async def one_cycle(url: str, *, settings: PollSettings = FAST, engine: str = "toy") -> CycleResult:
    """Poll one worker until its poll has ended; return that cycle."""
    asked = poller(Target(worker_id="w", url=url, engine=engine), settings=settings)
    try:
        result = await asked.cycle(time.time())
        while not result.polls:
            await asyncio.sleep(0.02)
            result = await asked.cycle(time.time())
        return result
    finally:
        await asked.aclose()


def answers(body: bytes, status: int = 200, **headers: str) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(body=body, status=status, headers=headers)

    return handler


GOOD = answers(b'{"toy": 7}')


def test_a_worker_is_recognised_and_its_answers_become_readings() -> None:
    """The first contact finds the dialect; role, model and name come from the target where the engine is silent."""

    async def main() -> CycleResult:
        async with served({"/loads": GOOD, "/metrics": answers(b"12")}) as url:
            target = Target(worker_id="w", url=url, role=Role.DECODE, labels={"model": "m"})
            asked = poller(target)
            try:
                return await asked.cycle(time.time())
            finally:
                await asked.aclose()

    result = asyncio.run(main())
    assert [poll.state for poll in result.polls] == [SourceState.FRESH]
    (reading,) = result.readings
    assert (reading.worker_id, reading.role, reading.model, reading.engine) == ("w", Role.DECODE, "m", "toy")
    assert (reading.used_tokens, reading.prefix_tokens) == (7.0, 12.0)
    assert reading.received_at_s == pytest.approx(time.time(), abs=30)
    (detail,) = result.details
    assert [(q.path, q.status) for q in detail.questions] == [("/loads", 200), ("/metrics", 200), ("/info", 404)]
    assert result.polls[0].byte_count > 0


def _slow(seconds: float) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        await asyncio.sleep(seconds)
        return web.Response(body=b'{"toy": 1}')

    return handler


async def _drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    for _i in range(400):
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def _half(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"toy"')
    await writer.drain()


async def _garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    await writer.drain()


async def _hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _endless_headers(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for _i in range(5000):
        writer.write(b"x-y: " + b"z" * 60 + b"\r\n")
    await writer.drain()


async def _bad_chunks(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n")
    await writer.drain()


@pytest.mark.parametrize(
    ("talk", "kinds"),
    [
        (_drip, {"timeout"}),
        (_half, {"cut-off"}),
        (_garbage, {"bad-http"}),
        (_hang_up, {"cut-off", "bad-http"}),
        (_endless_headers, {"bad-http", "cut-off"}),
        (_bad_chunks, {"bad-http", "cut-off"}),
    ],
)
def test_broken_http_is_a_named_outcome(talk: Talk, kinds: set[str]) -> None:
    """Half-closed, dripping, garbled and endless answers end in time, in a stable kind, without a reading."""

    async def main() -> CycleResult:
        async with raw_server(talk) as url:
            return await one_cycle(url)

    began = time.monotonic()
    result = asyncio.run(main())
    assert time.monotonic() - began < 4.0
    assert result.polls[0].error_kind in kinds
    assert result.polls[0].error_kind in FAILURE_KINDS
    assert not result.readings


def _bomb() -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    return b"".join(packer.compress(b"\0" * 1_000_000) for _ in range(40)) + packer.flush()


async def _fifty_megabytes(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        for _ in range(50):
            await response.write(b"x" * 1_000_000)
    return response


@pytest.mark.parametrize(
    ("handler", "kind", "state"),
    [
        (_slow(5.0), "timeout", SourceState.LATE),
        (_fifty_megabytes, "too-large", SourceState.NOT_UNDERSTOOD),
        (answers(_bomb(), **{"Content-Encoding": "gzip"}), "too-large", SourceState.NOT_UNDERSTOOD),
        (answers(b"not gzip", **{"Content-Encoding": "gzip"}), "bad-encoding", SourceState.NOT_UNDERSTOOD),
        (answers(gzip.compress(b'{"toy": 1}' * 99)[:-12], **{"Content-Encoding": "gzip"}), "bad-encoding", None),
        (answers(b"x", **{"Content-Encoding": "br"}), "bad-encoding", SourceState.NOT_UNDERSTOOD),
        (answers(b"", 302, Location="http://127.0.0.1:1/"), "redirect", SourceState.NOT_UNDERSTOOD),
        (answers(b"", 401), "unauthorised", SourceState.UNAUTHORISED),
        (answers(b"", 403), "unauthorised", SourceState.UNAUTHORISED),
        (answers(b"oops", 500), "http-status", SourceState.NOT_UNDERSTOOD),
        (answers(b"[]"), "not-understood", SourceState.NOT_UNDERSTOOD),
        (answers(b"explode"), "dialect-error", SourceState.NOT_UNDERSTOOD),
    ],
)
def test_misbehaving_workers_are_named_outcomes(handler: Handler, kind: str, state: SourceState | None) -> None:
    """Slow, huge, bomb, redirect, refusal, error, nonsense, our own defect: each its kind, none raises, none reads."""

    async def main() -> CycleResult:
        async with served({"/loads": handler, "/health": answers(b"ok")}) as url:
            return await one_cycle(url)

    result = asyncio.run(main())
    (poll,) = result.polls
    assert poll.error_kind == kind
    assert kind in FAILURE_KINDS
    assert state is None or poll.state is state
    assert poll.detail
    assert not result.readings
    assert poll.byte_count < 5_000_000, "a huge body must not be read on"


def test_a_gzip_answer_is_read_and_its_cap_counts_decoded_bytes() -> None:
    """An honest compressed answer is understood."""

    async def main() -> CycleResult:
        body = gzip.compress(b'{"toy": 3}')
        async with served({"/loads": answers(body, **{"Content-Encoding": "gzip"})}) as url:
            return await one_cycle(url)

    assert asyncio.run(main()).readings[0].used_tokens == 3.0


def test_refused_dns_and_connect_timeout_are_told_apart() -> None:
    """Nobody listening, no such name and no answer to a connection are three kinds."""
    free = socket.socket()
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    with socket.socket() as full:
        # A full backlog leaves further connections without an answer.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(full.getsockname())
            fillers.append(filler)
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        kinds = [
            asyncio.run(one_cycle(address)).polls[0].error_kind
            for address in (f"http://127.0.0.1:{port}", "http://no-such-host.invalid:1", url)
        ]
        for filler in fillers:
            filler.close()
    assert kinds == ["connect-refused", "dns", "connect-timeout"]


def _certificate(folder: Path) -> tuple[Path, Path]:
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=worker.test"]
    command += ["-addext", "subjectAltName=DNS:worker.test", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl command to make a certificate with")
    return certificate, key


def test_tls_is_verified_by_authority_and_name(tmp_path: Path) -> None:
    """An unknown authority is refused as `tls`; the configured one with the expected name is accepted."""
    certificate, key = _certificate(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)

    async def main(tls: TlsSettings) -> str | None:
        async with served({"/loads": GOOD}, server) as url:
            asked = poller(Target(worker_id="w", url=url, engine="toy"), transport=FleetTransport(tls))
            try:
                return (await asked.cycle(time.time())).polls[0].error_kind
            finally:
                await asked.aclose()

    assert asyncio.run(main(TlsSettings())) == "tls"
    assert asyncio.run(main(TlsSettings(ca_file=certificate))) == "tls", "the name 127.0.0.1 is not in it"
    assert asyncio.run(main(TlsSettings(ca_file=certificate, server_name="worker.test"))) is None
    assert asyncio.run(main(TlsSettings(verify=False))) is None


def test_a_slow_worker_delays_only_itself() -> None:
    """
    Each target is asked once an interval; one that takes three intervals has one poll in flight, its missed ticks are
    counted, and its late answer is taken.
    """
    counts = {"quick": 0, "slow": 0}
    open_now = {"slow": 0}
    most_open = 0

    async def quick(_: web.Request) -> web.Response:
        counts["quick"] += 1
        return web.Response(body=b'{"toy": 1}')

    async def slow(_: web.Request) -> web.Response:
        nonlocal most_open
        counts["slow"] += 1
        open_now["slow"] += 1
        most_open = max(most_open, open_now["slow"])
        await asyncio.sleep(1.3)
        open_now["slow"] -= 1
        return web.Response(body=b'{"toy": 2}')

    async def main() -> list[CycleResult]:
        results = []
        async with served({"/loads": quick}) as quick_url, served({"/loads": slow}) as slow_url:
            asked = poller(
                Target(worker_id="quick", url=quick_url, engine="toy"),
                Target(worker_id="slow", url=slow_url, engine="toy"),
                settings=FAST.model_copy(update={"interval_s": 0.4, "timeout_s": 3.0}),
            )
            loop = asyncio.get_running_loop()
            began = loop.time()
            for tick in range(8):
                await asyncio.sleep(max(0.0, began + tick * 0.4 - loop.time()))
                results.append(await asked.cycle(time.time()))
            await asked.aclose()
        return results

    results = asyncio.run(main())
    assert counts["quick"] == 8
    assert all("quick" not in result.skipped for result in results)
    assert all(result.duration_s < 1.0 for result in results), "a cycle waits for nobody beyond its interval"
    assert most_open == 1
    assert counts["slow"] == 8 - sum("slow" in result.skipped for result in results)
    late = [poll for result in results for poll in result.polls if poll.worker_id == "slow"]
    assert late
    assert all(poll.state is SourceState.FRESH and poll.duration_s > 1.2 for poll in late)
    assert sum(len(result.skipped) for result in results) >= 4


def test_connections_are_kept_and_none_is_left_open() -> None:
    """Ten cycles of three questions use one connection; closing the poller closes it."""
    peers = set()

    async def handler(request: web.Request) -> web.Response:
        peers.add(request.transport.get_extra_info("peername"))  # type: ignore[union-attr]
        return web.Response(body=b'{"toy": 1}' if request.path == "/loads" else b"1")

    async def main() -> None:
        async with served({"/loads": handler, "/metrics": handler, "/info": handler}) as url:
            asked = poller(Target(worker_id="w", url=url))
            for _ in range(10):
                await asked.cycle(time.time())
            await asked.aclose()
            assert asked.open_count == 0

    asyncio.run(main())
    assert len(peers) == 1


def test_questions_keep_their_own_rhythm_and_a_missing_path_is_not_hammered() -> None:
    """A path asked each minute is asked once; one that does not exist is asked again ever more rarely."""
    asked_paths: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        asked_paths.append(request.url.path)
        if request.url.path == "/loads":
            return httpx.Response(200, content=b'{"toy": 1}')
        return httpx.Response(404 if request.url.path == "/metrics" else 200, content=b"1")

    async def main() -> None:
        now = 1000.0
        asked = Poller(
            FAST.model_copy(update={"interval_s": 0.01}),
            httpx.MockTransport(respond),
            engines={"toy": TOY},
            identify_engine=lambda _: TOY,
            clock=lambda: now,
            steady_clock=lambda: now,
        )
        asked.set_targets([Target(worker_id="w", url="http://w:1", engine="toy")])
        for _ in range(30):
            result = await asked.cycle(now)
            assert result.polls
            now += 1.0
        await asked.aclose()

    asyncio.run(main())
    assert asked_paths.count("/loads") == 30
    assert asked_paths.count("/info") == 1
    assert 2 <= asked_paths.count("/metrics") <= 6


def test_a_clock_set_back_silences_no_question() -> None:
    """With the wall clock an hour back every question goes on at its rhythm; no old answer passes for a new one."""
    now = [10_000.0]
    counts = {"/loads": 0}

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/loads":
            return httpx.Response(404)
        counts["/loads"] += 1
        return httpx.Response(200, content=b'{"toy": %d}' % counts["/loads"])

    async def main() -> list[float | None]:
        asked = Poller(
            FAST.model_copy(update={"interval_s": 0.01}),
            httpx.MockTransport(respond),
            engines={"toy": TOY},
            identify_engine=lambda _: TOY,
            clock=lambda: now[0],
        )
        asked.set_targets([Target(worker_id="w", url="http://w:1", engine="toy")])
        seen = []
        for at_s in (10_000.0, 6_400.0, 6_401.0):
            now[0] = at_s
            (reading,) = (await asked.cycle(at_s)).readings
            assert reading.received_at_s == at_s
            seen.append(reading.used_tokens)
        await asked.aclose()
        return seen

    assert asyncio.run(main()) == [1.0, 2.0, 3.0]


def test_after_a_failure_what_is_known_of_a_worker_stays() -> None:
    """A failed poll tells how the questions stand and keeps the engine; the next success is told at once."""
    is_well = True

    def respond(request: httpx.Request) -> httpx.Response:
        if not is_well:
            raise httpx.ReadTimeout("slow")
        return httpx.Response(200, content=b'{"toy": 1}' if request.url.path == "/loads" else b"1")

    async def main() -> list[tuple[str, str | None]]:
        nonlocal is_well
        asked = poller(Target(worker_id="w", url="http://w:1"), transport=httpx.MockTransport(respond))
        seen = []
        for well in (True, False, True):
            is_well = well
            (detail,) = (await asked.cycle(time.time())).details
            seen.append((detail.engine, detail.questions[0].error_kind))
        await asked.aclose()
        return seen

    assert asyncio.run(main()) == [("toy", None), ("toy", "timeout"), ("toy", None)]


@pytest.mark.parametrize(("gap", "asked_again"), [("refused", 2), ("loading", 2), ("slow", 1)])
def test_what_comes_back_from_the_dead_is_asked_again_what_it_is(gap: str, asked_again: int) -> None:
    """After a restart the rare questions (which model?) do not wait for their minute; after a mere hiccup they do."""
    step = 0
    asked_paths: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        asked_paths.append(request.url.path)
        if step == 1 and gap == "refused":
            raise httpx.ConnectError("refused")
        if step == 1 and gap == "slow":
            raise httpx.ReadTimeout("slow")
        if step == 1:
            return httpx.Response(503)
        return httpx.Response(200, content=b'{"toy": 1}' if request.url.path == "/loads" else b"1")

    async def main() -> None:
        nonlocal step
        asked = poller(Target(worker_id="w", url="http://w:1", engine="toy"), transport=httpx.MockTransport(respond))
        for number in range(4):
            step = number
            await asked.cycle(time.time())
        await asked.aclose()

    asyncio.run(main())
    assert asked_paths.count("/info") == asked_again
    assert asked_paths.count("/loads") == 4


def test_an_old_answer_of_a_failing_question_is_not_taken_for_a_new_one() -> None:
    """When /metrics stops answering, what it said last becomes unknown; it does not stay for ever."""
    healthy = True

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics" and not healthy:
            raise httpx.ReadTimeout("slow")
        return httpx.Response(200, content=b'{"toy": 1}' if request.url.path == "/loads" else b"12")

    async def main() -> list[float | None]:
        nonlocal healthy
        asked = poller(Target(worker_id="w", url="http://w:1", engine="toy"), transport=httpx.MockTransport(respond))
        seen = [(await asked.cycle(time.time())).readings[0].prefix_tokens]
        healthy = False
        seen.append((await asked.cycle(time.time())).readings[0].prefix_tokens)
        await asked.aclose()
        return seen

    assert asyncio.run(main()) == [12.0, None]


def test_another_engine_at_the_same_address_is_recognised_in_time() -> None:
    """After five answers that are not understood the worker is asked anew what it speaks."""

    class Other(Toy):
        name = "other"
        questions = (Question(path="/other", is_essential=True),)

        def recognises(self, answers: Mapping[str, Answer]) -> bool:
            return answers.get("/other") is not None and answers["/other"].status == 200

        def understand(self, answers: Mapping[str, Answer]) -> WorkerReading | NotUnderstood:
            return WorkerReading(engine="other", pools=(PoolReading(used_tokens=99.0),))

    other = Other()
    is_other = False

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path == ("/other" if is_other else "/loads"):
            return httpx.Response(200, content=b'{"toy": 1}')
        return httpx.Response(404, content=b"{}")

    async def main() -> list[str]:
        nonlocal is_other
        asked = Poller(
            FAST.model_copy(update={"interval_s": 0.01}),
            httpx.MockTransport(respond),
            engines={"toy": TOY, "other": other},
            identify_engine=lambda found: next((d for d in (TOY, other) if d.recognises(found)), None),
        )
        asked.set_targets([Target(worker_id="w", url="http://w:1")])
        engines = []
        for turn in range(9):
            is_other = turn >= 2
            engines += [reading.engine for reading in (await asked.cycle(time.time())).readings]
        await asked.aclose()
        return engines

    assert asyncio.run(main()) == ["toy", "toy", "other", "other"]


def test_failures_in_a_row_make_a_worker_down_and_one_success_makes_it_fresh() -> None:
    """One failed poll is late, the third in a row is down, and the count starts anew after an answer."""
    outcomes = iter([False, False, False, True, False])

    def respond(_: httpx.Request) -> httpx.Response:
        if not next(outcomes):
            raise httpx.ReadTimeout("slow")
        return httpx.Response(200, content=b'{"toy": 1}')

    class Alone(Toy):
        questions = Toy.questions[:1]

    async def main() -> list[SourceState]:
        asked = poller(
            Target(worker_id="w", url="http://w:1", engine="toy"),
            transport=httpx.MockTransport(respond),
            engine=Alone(),
        )
        states = [(await asked.cycle(time.time())).polls[0].state for _ in range(5)]
        await asked.aclose()
        return states

    late, down, fresh = SourceState.LATE, SourceState.DOWN, SourceState.FRESH
    assert asyncio.run(main()) == [late, late, down, fresh, late]


def test_the_token_goes_to_its_worker_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The bearer token is sent to the worker that names it, not along a redirect, not into any result or log."""
    monkeypatch.setenv("KVSCOPE_TEST_TOKEN", "t0p-s3cret")
    seen: dict[str, str | None] = {}

    async def handler(request: web.Request) -> web.Response:
        seen[request.host] = request.headers.get("Authorization")
        return web.Response(body=b'{"toy": 1}')

    async def main() -> list[CycleResult]:
        async with served({"/loads": handler}) as ours, served({"/loads": handler}) as elsewhere:
            redirecting = answers(b"", 307, Location=f"{elsewhere}/loads")
            async with served({"/loads": redirecting}) as redirector:
                asked = poller(
                    Target(worker_id="ours", url=ours, engine="toy", token_env="KVSCOPE_TEST_TOKEN"),
                    Target(worker_id="redirector", url=redirector, engine="toy", token_env="KVSCOPE_TEST_TOKEN"),
                )
                results = [await asked.cycle(time.time()) for _ in range(2)]
                await asked.aclose()
                return [*results, CycleResult(cycle_at_s=0.0, duration_s=0.0, skipped=(ours, elsewhere))]

    *results, hosts = asyncio.run(main())
    ours, elsewhere = (url.removeprefix("http://") for url in hosts.skipped)
    assert seen[ours] == "Bearer t0p-s3cret"
    assert elsewhere not in seen
    assert "t0p-s3cret" not in repr(results)
    assert "t0p-s3cret" not in caplog.text


def test_a_worker_that_leaves_is_asked_no_more_and_one_that_stays_keeps_what_it_learned() -> None:
    """Changing the list never asks a vanished worker again, never starts a second poll of one that stays."""
    asked_hosts: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        asked_hosts.append(request.url.host)
        return httpx.Response(200, content=b'{"toy": 1}')

    async def main() -> None:
        one, two = Target(worker_id="one", url="http://one:1"), Target(worker_id="two", url="http://two:1")
        asked = poller(one, two, transport=httpx.MockTransport(respond))
        await asked.cycle(time.time())
        asked_hosts.clear()
        asked.set_targets([replace(one, labels={"rack": "r1"}), replace(two, vanished_at_s=1.0)])
        result = await asked.cycle(time.time())
        await asked.aclose()
        assert [poll.worker_id for poll in result.polls] == ["one"]

    asyncio.run(main())
    assert set(asked_hosts) == {"one"}
    assert len(asked_hosts) <= 2, "the engine is known: no second identification"


def test_starts_are_spread_and_fixed_by_name() -> None:
    """A thousand workers do not start in one instant: every tenth of the spread gets its share, the same each time."""
    offsets = [offset_ratio(f"10.0.{i // 250}.{i % 250}:30000") for i in range(1000)]
    assert offsets == [offset_ratio(f"10.0.{i // 250}.{i % 250}:30000") for i in range(1000)]
    assert all(0.0 <= offset < 1.0 for offset in offsets)
    counts = [sum(i / 10 <= offset < (i + 1) / 10 for offset in offsets) for i in range(10)]
    assert min(counts) > 60
    assert max(counts) < 150
