"""The transport under the poller: connections kept, few open at once, and what is no HTTP an error in words."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable

import httpx
import pytest

from collectors.transport import FleetTransport

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def exchange(talk: Talk, count: int = 1, **keywords: int) -> tuple[list[tuple[int, bytes] | str], int]:
    """Serve `talk` per request and ask `count` times; return (status, body) or error names, and connections made."""
    connections = 0
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while not writer.is_closing():
                await reader.readuntil(b"\r\n\r\n")
                await talk(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        tasks.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = FleetTransport(**keywords)
    results: list[tuple[int, bytes] | str] = []
    for _ in range(count):
        request = httpx.Request("GET", f"http://127.0.0.1:{port}/x?y=1", extensions={"timeout": {"read": 2.0}})
        try:
            response = await transport.handle_async_request(request)
            try:
                assert isinstance(response.stream, httpx.AsyncByteStream)
                body = b"".join([part async for part in response.stream])
                results.append((response.status_code, body))
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            results.append(type(error).__name__)
        await asyncio.sleep(0.01)
    await transport.aclose()
    server.close()
    for task in list(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0.01)
    return results, connections


def says(*packets: bytes, closes: bool = False) -> Talk:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for packet in packets:
            writer.write(packet)
            await writer.drain()
            await asyncio.sleep(0)
        if closes:
            writer.close()

    return talk


LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\nX-A: b\r\n\r\nhello world"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n1;ext=1\r\n \r\n00005\r\nworld\r\n0\r\nTrailer: t\r\n\r\n"
)
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + LENGTH


def bytewise(message: bytes) -> Iterable[bytes]:
    return (message[i : i + 1] for i in range(len(message)))


@pytest.mark.parametrize("message", [LENGTH, CHUNKED, INTERIM])
@pytest.mark.parametrize("is_split", [False, True])
def test_the_same_answer_in_any_packets_is_the_same_and_the_connection_is_kept(message: bytes, is_split: bool) -> None:
    """Framing does not depend on how the network cuts a message; three exchanges share one connection."""
    packets = tuple(bytewise(message)) if is_split else (message,)
    results, connections = asyncio.run(exchange(says(*packets), count=3))
    assert results == [(200, b"hello world")] * 3
    assert connections == 1


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"")),
        (b"HTTP/1.1 404 \r\nContent-Length: 0\r\n\r\n", (404, b"")),
        (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", (200, b"ok")),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", (200, b"until the end")),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end", (200, b"until the end")),
    ],
)
def test_answers_with_and_without_a_length_are_read_to_their_end(message: bytes, expected: tuple[int, bytes]) -> None:
    """No body, empty body, body until the connection closes."""
    results, _ = asyncio.run(exchange(says(message, closes=b"until" in message)))
    assert results == [expected]


@pytest.mark.parametrize(
    "message",
    [
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
    ],
)
def test_what_is_no_plain_http_is_refused(message: bytes) -> None:
    """Other protocols, contradictory lengths, endless headers: an error of the transport, nothing guessed."""
    results, _ = asyncio.run(exchange(says(message)))
    assert results in (["RemoteProtocolError"], ["ReadError"])


@pytest.mark.parametrize(
    "message",
    [LENGTH[:-3], CHUNKED[:-30], b"HTTP/1.1 200 OK\r\nContent-Len", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"],
)
def test_an_answer_that_ends_early_is_a_read_error(message: bytes) -> None:
    """Half a body is never taken for a whole one."""
    results, _ = asyncio.run(exchange(says(message, closes=True)))
    assert results in (["ReadError"], ["RemoteProtocolError"])


def test_a_kept_connection_that_the_worker_closed_is_replaced_without_a_failure() -> None:
    """A worker that closes after each answer without saying so costs a new connection, never a failed poll."""
    results, connections = asyncio.run(exchange(says(LENGTH, closes=True), count=4))
    assert results == [(200, b"hello world")] * 4
    assert connections == 4


def test_no_more_workers_are_asked_at_once_than_allowed() -> None:
    """Ten workers asked at once through two places: all answered, never more than two asked at a time."""

    async def main() -> int:
        open_now = most = 0

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal open_now, most
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    await reader.readuntil(b"\r\n\r\n")
                    open_now += 1
                    most = max(most, open_now)
                    await asyncio.sleep(0.02)
                    open_now -= 1
                    writer.write(LENGTH)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

        servers = [await asyncio.start_server(handle, "127.0.0.1", 0) for _ in range(10)]
        transport = FleetTransport(max_open_connections=2)

        async def ask(port: int) -> bytes:
            response = await transport.handle_async_request(httpx.Request("GET", f"http://127.0.0.1:{port}/"))
            try:
                return b"".join([part async for part in response.stream])  # type: ignore[union-attr]
            finally:
                await response.aclose()

        bodies = await asyncio.gather(*(ask(server.sockets[0].getsockname()[1]) for server in servers))
        assert bodies == [b"hello world"] * 10
        await transport.aclose()
        for server in servers:
            server.close()
        await asyncio.sleep(0.05)
        return most

    assert asyncio.run(main()) <= 2
