"""
The way to the workers: an `httpx` transport over aiohttp, for thousands of distinct origins.

httpx's own pool looks at every open connection for every request, which is quadratic in origins (47 s a cycle at 500
workers, measured); aiohttp's is not. The seam stays httpx's: tests inject `httpx.MockTransport`. Errors are told apart
here (refused, name lookup, TLS, timeout), which the generic adapter folds into `ConnectTimeout`.
"""

import os
import ssl
from collections.abc import AsyncIterator
from typing import Final

import aiohttp
import httpx
from yarl import URL

from collectors.settings import TlsSettings

_READ_CHUNK_BYTES: Final = 64 * 1024
_KEEPALIVE_S: Final = 75.0
_DNS_TTL_S: Final = 30


class NameLookupError(httpx.ConnectError):
    """The host name does not resolve."""


class RefusedError(httpx.ConnectError):
    """Nobody listens there, or the network says so."""


class TlsError(httpx.ConnectError):
    """The TLS handshake failed, most often for the certificate."""


class _Body(httpx.AsyncByteStream):
    """The raw body of an answer; closing it early drops the connection, so that a huge body is not read to its end."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_chunked(_READ_CHUNK_BYTES):
                yield chunk
        except aiohttp.ClientError as error:
            raise httpx.ReadError(_text(error)) from error
        except TimeoutError as error:
            raise httpx.ReadTimeout("the answer stopped coming") from error

    async def aclose(self) -> None:
        if self._response.content.is_eof():
            self._response.release()
        else:
            self._response.close()


def ssl_context(tls: TlsSettings) -> ssl.SSLContext:
    """Return the TLS side of the settings; OSError or ssl.SSLError when its files cannot be used."""
    context = ssl.create_default_context(cafile=str(tls.ca_file) if tls.ca_file else None)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.client_cert_file:
        context.load_cert_chain(str(tls.client_cert_file), str(tls.client_key_file) if tls.client_key_file else None)
    return context


class FleetTransport(httpx.AsyncBaseTransport):
    """
    One pool of keep-alive connections to all workers.

    Redirects are not followed, bodies not decompressed, cookies not kept, proxies and the environment not asked.
    To be made and closed inside the event loop that uses it.
    """

    def __init__(self, tls: TlsSettings | None = None, *, max_open_connections: int = 4096) -> None:
        tls = tls or TlsSettings()
        self._ssl = ssl_context(tls)
        self._server_name = tls.server_name
        self._max_open_connections = max_open_connections
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=self._max_open_connections,
            limit_per_host=0,
            ssl=self._ssl,
            keepalive_timeout=_KEEPALIVE_S,
            ttl_dns_cache=_DNS_TTL_S,
            enable_cleanup_closed=False,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
            max_line_size=16 * 1024,
            max_field_size=16 * 1024,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request; httpx errors, with `NameLookupError`, `RefusedError` and `TlsError` for their kinds."""
        if self._session is None:
            self._session = self._open()
        timeout = request.extensions.get("timeout", {})
        try:
            response = await self._session.request(
                request.method,
                URL(str(request.url), encoded=True),
                headers={key.decode("latin-1"): value.decode("latin-1") for key, value in request.headers.raw},
                data=request.content or None,
                allow_redirects=False,
                server_hostname=self._server_name if request.url.scheme == "https" else None,
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    connect=timeout.get("pool"),
                    sock_connect=timeout.get("connect"),
                    sock_read=timeout.get("read"),
                ),
            )
        except aiohttp.ClientConnectorDNSError as error:
            raise NameLookupError(f"the name {error.host} does not resolve") from error
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            raise TlsError(_text(error)) from error
        except aiohttp.ClientConnectorError as error:
            number = error.os_error.errno
            reason = os.strerror(number) if number else _text(error.os_error)
            raise RefusedError(f"{error.host}:{error.port}: {reason.lower()}") from error
        except (aiohttp.ConnectionTimeoutError, aiohttp.SocketTimeoutError, TimeoutError) as error:
            is_connect = isinstance(error, aiohttp.ConnectionTimeoutError)
            raise (httpx.ConnectTimeout if is_connect else httpx.ReadTimeout)(_text(error) or "no answer") from error
        except aiohttp.ClientError as error:
            raise httpx.RemoteProtocolError(_text(error)) from error
        except (ValueError, OSError) as error:
            raise httpx.UnsupportedProtocol(_text(error)) from error
        return httpx.Response(
            status_code=response.status,
            headers=response.raw_headers,
            stream=_Body(response),
            request=request,
        )

    async def aclose(self) -> None:
        """Close every connection."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()


def _text(error: BaseException) -> str:
    """Return one bounded line of an error; its address never carries a query, for none is asked with one."""
    return " ".join(str(error).split())[:300] or type(error).__name__
