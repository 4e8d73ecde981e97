"""
The way to the workers: an `httpx` transport with one kept connection a worker, for thousands of distinct origins.

httpx's own pool looks at every open connection for every request, which is quadratic in origins (47 s a cycle at 500
workers, measured). The seam stays httpx's: tests inject `httpx.MockTransport`. Errors are told apart here: refused,
name lookup, TLS, timeout.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Final

import httpx

from collectors.plain_http import Connection, Headers
from collectors.settings import TlsSettings

_EYEBALLS_DELAY_S: Final = 0.25
_Origin = tuple[str, str, int]


class NameLookupError(httpx.ConnectError):
    """The host name does not resolve."""


class RefusedError(httpx.ConnectError):
    """Nobody listens there, or the network says so."""


class TlsError(httpx.ConnectError):
    """The TLS handshake failed, most often for the certificate."""


def ssl_context(tls: TlsSettings) -> ssl.SSLContext:
    """Return the TLS side of the settings; OSError or ssl.SSLError when its files cannot be used."""
    context = ssl.create_default_context(cafile=str(tls.ca_file) if tls.ca_file else None)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.client_cert_file:
        context.load_cert_chain(str(tls.client_cert_file), str(tls.client_key_file) if tls.client_key_file else None)
    return context


class _Body(httpx.AsyncByteStream):
    """A body being read; closed before its end, the connection is dropped, so that a huge body is not read on."""

    def __init__(self, owner: "FleetTransport", origin: _Origin, connection: Connection, status: int, headers: Headers):
        self._owner = owner
        self._origin = origin
        self._connection = connection
        self._parts = connection.body(status, headers)
        self._is_closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._owner.give_back(self._origin, self._connection)


class FleetTransport(httpx.AsyncBaseTransport):
    """
    Kept connections to all workers, as many to one as are in use at once.

    Redirects are not followed, bodies not decompressed, cookies not kept, proxies and the environment not asked.
    GET without a body is all it sends. To be used and closed inside one event loop.
    """

    def __init__(self, tls: TlsSettings | None = None, *, max_open_connections: int = 4096) -> None:
        tls = tls or TlsSettings()
        self._ssl = ssl_context(tls)
        self._server_name = tls.server_name
        self._max_open_connections = max_open_connections
        self._idle: dict[_Origin, list[Connection]] = {}
        self._idle_count = 0
        self._in_use: set[Connection] = set()
        self._free = asyncio.Semaphore(max_open_connections)
        self._is_closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one GET; httpx errors, with `NameLookupError`, `RefusedError` and `TlsError` for their kinds."""
        if self._is_closed:
            raise httpx.UnsupportedProtocol("the transport is closed")
        url = request.url
        if request.method != "GET" or url.scheme not in ("http", "https"):
            raise httpx.UnsupportedProtocol(f"{request.method} {url.scheme}: only GET over http and https")
        origin = (url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80))
        await self._free.acquire()
        try:
            connection, status, headers = await self._exchange(origin, request)
        except BaseException:
            self._free.release()
            raise
        return httpx.Response(
            status_code=status,
            headers=headers,
            stream=_Body(self, origin, connection, status, headers),
            request=request,
        )

    async def _exchange(self, origin: _Origin, request: httpx.Request) -> tuple[Connection, int, Headers]:
        message = request.extensions.get("kvscope_message")
        if message is None:
            # Made once a prepared request and kept with it.
            request.extensions = {**request.extensions, "kvscope_message": (message := _message(request))}
        timeout = request.extensions.get("timeout", {})
        for is_first in (True, False):
            connection, is_kept = await self._connect(origin, timeout.get("connect"))
            self._in_use.add(connection)
            try:
                connection.send(message)
                async with asyncio.timeout(timeout.get("read")):
                    status, headers = await connection.head()
            except BaseException as error:
                self._in_use.discard(connection)
                connection.close()
                if isinstance(error, TimeoutError):
                    raise httpx.ReadTimeout("no answer in time") from error
                # A worker may close a kept connection just as it is used again: that is no answer, so ask once more.
                if is_first and is_kept and isinstance(error, httpx.TransportError) and not connection.received_bytes:
                    continue
                raise
            return connection, status, headers
        raise httpx.RemoteProtocolError("server disconnected without an answer")

    async def _connect(self, origin: _Origin, connect_s: float | None) -> tuple[Connection, bool]:
        """Return a connection and whether it was used before."""
        # Taken out and put back at the end: the dictionary stays in the order of last use.
        kept = self._idle.pop(origin, [])
        self._idle_count -= len(kept)
        while kept:
            connection = kept.pop()
            if not connection.is_lost:
                if kept:
                    self._idle[origin] = kept
                    self._idle_count += len(kept)
                return connection, True
        self._make_room()
        scheme, host, port = origin
        is_tls = scheme == "https"
        try:
            async with asyncio.timeout(connect_s):
                _, made = await asyncio.get_running_loop().create_connection(
                    Connection,
                    host,
                    port,
                    ssl=self._ssl if is_tls else None,
                    server_hostname=(self._server_name or host) if is_tls else None,
                    happy_eyeballs_delay=_EYEBALLS_DELAY_S,
                )
        except TimeoutError as error:
            raise httpx.ConnectTimeout("no connection in time") from error
        except socket.gaierror as error:
            raise NameLookupError(f"the name {host} does not resolve") from error
        except ssl.SSLError as error:
            raise TlsError(" ".join(str(error).split())[:300]) from error
        except (OSError, ValueError) as error:
            number = getattr(error, "errno", None)
            reason = os.strerror(number).lower() if number else type(error).__name__
            raise RefusedError(f"{host}:{port}: {reason}") from error
        return made, False

    def _make_room(self) -> None:
        """Close the kept connections unused for longest while, with one more, too many would be open."""
        while self._idle_count and len(self._in_use) + self._idle_count >= self._max_open_connections:
            connections = self._idle.pop(next(iter(self._idle)))
            self._idle_count -= len(connections)
            for connection in connections:
                connection.close()

    def give_back(self, origin: _Origin, connection: Connection) -> None:
        """Take a connection back: kept when its answer was read to the end, else dropped."""
        self._in_use.discard(connection)
        self._free.release()
        if connection.is_reusable and not self._is_closed:
            self._idle.setdefault(origin, []).append(connection)
            self._idle_count += 1
        else:
            connection.close()

    async def aclose(self) -> None:
        """Close every connection."""
        self._is_closed = True
        for connection in [*self._in_use, *(c for kept in self._idle.values() for c in kept)]:
            connection.close()
        self._idle.clear()
        self._idle_count = 0
        # One turn, in which the sockets are really closed.
        await asyncio.sleep(0)


def _message(request: httpx.Request) -> bytes:
    """Return the request as bytes; an error for a value that would end a line."""
    target = request.url.raw_path
    lines = [b"GET " + target + b" HTTP/1.1", *(name + b": " + value for name, value in request.headers.raw)]
    if any(b"\r" in line or b"\n" in line for line in lines):
        raise httpx.UnsupportedProtocol("a header with a line break in it")
    return b"\r\n".join(lines) + b"\r\n\r\n"
