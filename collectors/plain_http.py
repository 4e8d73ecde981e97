"""
One keep-alive connection: HTTP/1.1 GET out, status, headers and a streamed body back. Sans pool, sans policy.

Written for polling: a general client spends most of a poll's CPU on what polling never uses (measured: 280 us of 350 a
request). Anything that is not plain HTTP/1.x framing is `httpx.RemoteProtocolError`; nothing is guessed.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import httpx

MAX_HEAD_BYTES: Final = 32 * 1024
MAX_LINE_BYTES: Final = 4 * 1024
MAX_INTERIM_COUNT: Final = 8
_PAUSE_BYTES: Final = 256 * 1024

Headers = list[tuple[bytes, bytes]]


class Connection(asyncio.Protocol):
    """One connection; at most one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._is_paused = False
        self._error: BaseException | None = None
        self.is_lost = False
        self.is_complete = True
        self.is_kept = True
        self.received_bytes = 0

    @property
    def is_reusable(self) -> bool:
        """Say whether another exchange may follow: the answer was read to its end, and nothing came after it."""
        return self.is_complete and self.is_kept and not self.is_lost and not self._buffer

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Keep what came; bytes that nobody asked for end the connection."""
        if self.is_complete:
            self.close()
            return
        self.received_bytes += len(data)
        self._buffer += data
        if len(self._buffer) > _PAUSE_BYTES and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """Remember the end."""
        self.is_lost = True
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _more(self) -> bool:
        """Wait for further bytes; False when the connection has ended."""
        if self.is_lost:
            return False
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        return bool(self._buffer) or not self.is_lost

    # One exchange.

    def send(self, request: bytes) -> None:
        """Begin an exchange."""
        if self._transport is None or self.is_lost:
            raise httpx.RemoteProtocolError("the connection is closed")
        self.is_complete = False
        self.received_bytes = 0
        self._transport.write(request)

    async def head(self) -> tuple[int, Headers]:
        """Return status and headers of the final answer; interim ones (1xx) are passed over."""
        for _ in range(MAX_INTERIM_COUNT):
            status, headers = parse_head(await self._until(b"\r\n\r\n", MAX_HEAD_BYTES, "header"))
            if status >= 200:
                return status, headers
            if status == 101:
                break
        raise httpx.RemoteProtocolError("interim answers only")

    async def _until(self, mark: bytes, limit: int, what: str) -> bytes:
        while (end := self._buffer.find(mark)) < 0:
            if len(self._buffer) > limit:
                raise httpx.RemoteProtocolError(f"the {what} is longer than {limit} bytes")
            if what == "header" and self._buffer and not b"HTTP/1.".startswith(bytes(self._buffer[:7])):
                raise httpx.RemoteProtocolError("the answer does not begin with HTTP/1.x")
            if not await self._more():
                raise self._ended(f"in the {what}")
        if end > limit:
            raise httpx.RemoteProtocolError(f"the {what} is longer than {limit} bytes")
        found = bytes(self._buffer[:end])
        del self._buffer[: end + len(mark)]
        return found

    def _ended(self, where: str) -> httpx.TransportError:
        if not self.received_bytes:
            return httpx.RemoteProtocolError("server disconnected without an answer")
        cause = f" ({type(self._error).__name__})" if self._error is not None else ""
        return httpx.ReadError(f"disconnected {where}{cause}")

    async def body(self, status: int, headers: Headers) -> AsyncIterator[bytes]:
        """Yield the body as it comes, by the framing its headers say."""
        names = {name: value for name, value in headers if name in _FRAMING}
        self.is_kept = b"close" not in names.get(b"connection", b"").lower()
        coding = names.get(b"transfer-encoding", b"").strip().lower()
        if status in (204, 304):
            pass
        elif coding:
            if coding != b"chunked":
                raise httpx.RemoteProtocolError("a transfer encoding other than chunked")
            async for part in self._chunks():
                yield part
        elif b"content-length" in names:
            async for part in self._exactly(content_length(headers)):
                yield part
        else:
            self.is_kept = False
            while self._buffer or await self._more():
                yield self._take(len(self._buffer))
            if self._error is not None:
                raise self._ended("in the body")
        self.is_complete = True

    def _take(self, count: int) -> bytes:
        part = bytes(self._buffer[:count])
        del self._buffer[:count]
        return part

    async def _exactly(self, length: int) -> AsyncIterator[bytes]:
        left = length
        while left:
            if not self._buffer and not await self._more():
                raise self._ended(f"with {left} of {length} body bytes to come")
            part = self._take(left)
            left -= len(part)
            if part:
                yield part

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            line = (await self._until(b"\r\n", MAX_LINE_BYTES, "chunk size")).partition(b";")[0].strip()
            if not line or len(line) > 15 or not all(c in b"0123456789abcdefABCDEF" for c in line):
                raise httpx.RemoteProtocolError("a chunk size that is no hexadecimal number")
            size = int(line, 16)
            if size == 0:
                break
            async for part in self._exactly(size):
                yield part
            if await self._until(b"\r\n", 2, "chunk end"):
                raise httpx.RemoteProtocolError("a chunk that is longer than its size")
        for _ in range(100):
            if not await self._until(b"\r\n", MAX_LINE_BYTES, "trailer"):
                return
        raise httpx.RemoteProtocolError("more than 100 trailers")

    def close(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        self.is_lost = True
        self._wake()


_FRAMING: Final = frozenset({b"connection", b"transfer-encoding", b"content-length"})


def content_length(headers: Headers) -> int:
    """Return the body length the headers state; an error when they state two or none that is a number."""
    values = {value.strip() for name, value in headers if name == b"content-length"}
    (value, *others) = values
    if others or not value.isdigit() or len(value) > 18:
        raise httpx.RemoteProtocolError("a content length that is no single number")
    return int(value)


def parse_head(head: bytes) -> tuple[int, Headers]:
    """Return status and (lower-case name, value) pairs of an answer's head."""
    first, *lines = head.split(b"\r\n")
    version, _, rest = first.partition(b" ")
    code = rest[:3]
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(code) != 3 or not code.isdigit() or code < b"100":
        raise httpx.RemoteProtocolError("the answer does not begin with HTTP/1.x and a status")
    headers: Headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise httpx.RemoteProtocolError("a header line without a name")
        headers.append((name.lower(), value.strip()))
    if version == b"HTTP/1.0" and not any(name == b"connection" and b"keep-alive" in v.lower() for name, v in headers):
        headers.append((b"connection", b"close"))
    return int(code), headers
