"""
One question to one worker: a prepared request out, an `Answer` or a `Failure` back. Never raises on what comes back.

The body is streamed and cut at its cap after decompression, so neither a 50 MB body nor a gzip bomb is ever held.
Redirects are an answer like any other here and are refused by the caller, who knows the worker.
"""

import asyncio
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import httpx

from collectors.engines.contract import Answer
from collectors.transport import NameLookupError, RefusedError, TlsError

Clock = Callable[[], float]

_GZIP_OR_ZLIB_BITS: Final = 47  # 15 bits of window + 32: zlib finds out which of the two it is.


@dataclass(frozen=True, slots=True)
class Failure:
    """
    No answer came, or none that may be taken.

    Attributes:
        kind: One of `FAILURE_KINDS`.
        detail: One line for the reader.
        byte_count: Body bytes received before giving up.
    """

    kind: str
    detail: str
    byte_count: int = 0


FAILURE_KINDS: Final = {
    "connect-refused": "nobody listens at the address",
    "dns": "the host name does not resolve",
    "tls": "the TLS handshake failed",
    "timeout": "no complete answer within poll.timeout_s",
    "connect-timeout": "no connection within poll.connect_timeout_s",
    "cut-off": "the connection ended in the middle of the answer",
    "too-large": "the answer is larger than poll.max_body_bytes",
    "bad-encoding": "the compressed answer cannot be decompressed",
    "bad-http": "the answer is no HTTP",
    "redirect": "the worker redirects; redirects are not followed",
    "unauthorised": "the worker refuses our token (401 or 403)",
    "http-status": "the worker answers with an error status",
    "scrape-failed": "the Prometheus server that watches the worker cannot scrape it",
    "prometheus": "the Prometheus server that watches the worker cannot be asked",
    "engine-unknown": "no dialect recognises the answers",
    "not-understood": "the answers are not in the dialect's shape",
    "dialect-error": "our dialect failed on the answer: a defect of KVScope",
    "poll-error": "the poll itself failed: a defect of KVScope",
}
"""Stable error kinds of `PollOutcome.error_kind` and what each means."""


REACHED_KINDS: Final = frozenset(
    {
        "redirect",
        "http-status",
        "too-large",
        "bad-encoding",
        "bad-http",
        "engine-unknown",
        "not-understood",
        "dialect-error",
        "poll-error",
    }
)
"""Kinds in which somebody answered: the worker is not down, it is not understood."""


class _TooLargeError(Exception):
    """The body exceeds its cap."""


class _EncodingError(Exception):
    """The body cannot be decompressed."""


class Decoder:
    """Take body chunks in, decompress when the answer says so, refuse what exceeds `max_bytes`."""

    def __init__(self, encoding: str, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._body = bytearray()
        self._zip: zlib._Decompress | None = None
        self.received_bytes = 0
        if encoding in ("gzip", "x-gzip", "deflate"):
            self._zip = zlib.decompressobj(_GZIP_OR_ZLIB_BITS)
        elif encoding not in ("", "identity"):
            raise _EncodingError(f"content encoding {encoding[:40]!r} was not asked for and is not read")

    def feed(self, chunk: bytes) -> None:
        """Take one chunk; `_TooLargeError` as soon as the decoded body passes the cap."""
        self.received_bytes += len(chunk)
        if self._zip is None:
            self._body += chunk
        else:
            room = self._max_bytes - len(self._body) + 1
            try:
                self._body += self._zip.decompress(chunk, room)
            except zlib.error as error:
                raise _EncodingError(str(error)) from error
        if len(self._body) > self._max_bytes:
            raise _TooLargeError

    def finish(self) -> bytes:
        """Return the whole body; `_EncodingError` when the compressed stream is not complete."""
        if self._zip is not None and self._body and not self._zip.eof:
            raise _EncodingError("the compressed answer is cut off")
        return bytes(self._body)


async def ask(
    transport: httpx.AsyncBaseTransport,
    request: httpx.Request,
    *,
    max_bytes: int,
    deadline_at: float,
    clock: Clock = time.time,
) -> Answer | Failure:
    """
    Send `request` and return what came back.

    Args:
        transport: Called directly: a client's cookies, redirects and log lines are not wanted here.
        request: Prepared once a question, sent many times.
        max_bytes: Cap of the decoded body.
        deadline_at: Moment on the event loop's clock when to give up.
        clock: Our wall clock, epoch seconds.
    """
    received = 0
    try:
        async with asyncio.timeout_at(deadline_at):
            response = await transport.handle_async_request(request)
            try:
                headers = response.headers
                decoder = Decoder(headers.get("content-encoding", "").strip().lower(), max_bytes)
                stream = response.stream
                if not isinstance(stream, httpx.AsyncByteStream):
                    return Failure("bad-http", "the transport gave no stream")
                try:
                    async for chunk in stream:
                        decoder.feed(chunk)
                finally:
                    received = decoder.received_bytes
                return Answer(
                    status=response.status_code,
                    content_type=headers.get("content-type", "").partition(";")[0].strip().lower(),
                    body=decoder.finish(),
                    received_at_s=clock(),
                )
            finally:
                await response.aclose()
    except TimeoutError:
        return Failure("timeout", "no complete answer in time", received)
    except _TooLargeError:
        return Failure("too-large", f"the answer is larger than {max_bytes} bytes; it was not read on", received)
    except _EncodingError as error:
        return Failure("bad-encoding", str(error), received)
    except httpx.ConnectTimeout:
        return Failure("connect-timeout", "no connection in time")
    except httpx.TimeoutException:
        return Failure("timeout", "no complete answer in time", received)
    except NameLookupError as error:
        return Failure("dns", str(error))
    except (TlsError, ssl.SSLError) as error:
        return Failure("tls", str(error))
    except (RefusedError, httpx.ConnectError, ConnectionError) as error:
        return Failure("connect-refused", str(error) or "refused")
    except (httpx.ReadError, httpx.RemoteProtocolError) as error:
        if received or "isconnect" in str(error) or "payload" in str(error).lower():
            return Failure("cut-off", str(error) or "the connection ended early", received)
        return Failure("bad-http", str(error) or "not HTTP", received)
    except (httpx.HTTPError, OSError) as error:
        return Failure("bad-http", f"{type(error).__name__}: {error}"[:300], received)


def refusal(answer: Answer, path: str) -> Failure | None:
    """Return why an essential answer is not to be handed to the dialect, or None."""
    if answer.status in (401, 403):
        return Failure(
            "unauthorised",
            f"HTTP {answer.status} from {path}: set auth.token_env to the variable with the worker's token",
        )
    if 300 <= answer.status < 400:
        return Failure(
            "redirect", f"HTTP {answer.status} from {path}: redirects are not followed; use the final address"
        )
    if answer.status >= 500:
        return Failure("http-status", f"HTTP {answer.status} from {path}: the worker answers, its scheduler may not")
    return None


def unrecognised(answers: Mapping[str, Answer], failures: Mapping[str, Failure] | None = None) -> Failure:
    """
    Return the failure that says best why no dialect recognised the worker.

    `answers` came, of `failures` none could be taken (too large, cut off, not decompressible); both by path.
    """
    spoilt = failures or {}
    said = ", ".join(
        [f"{path} HTTP {answer.status}" for path, answer in answers.items()]
        + [f"{path} {failure.kind}" for path, failure in spoilt.items()]
    )
    said = said or "nothing was answered"
    statuses = [answer.status for answer in answers.values()]
    if spoilt and 200 not in statuses:
        path, worst = next(iter(spoilt.items()))
        return Failure(worst.kind, f"{path}: {worst.detail} ({said})", sum(each.byte_count for each in spoilt.values()))
    if any(status in (401, 403) for status in statuses) and 200 not in statuses:
        return Failure("unauthorised", f"the worker refuses our token ({said}); set auth.token_env")
    if any(300 <= status < 400 for status in statuses) and 200 not in statuses:
        return Failure("redirect", f"the worker redirects ({said}); redirects are not followed, use the final address")
    if statuses and all(status >= 500 for status in statuses):
        return Failure("http-status", f"the worker answers with errors only ({said})")
    broken = [path for path, answer in answers.items() if answer.status >= 500]
    if broken and 200 not in statuses:
        return Failure(
            "http-status",
            f"{' and '.join(broken)} broken, the worker is alive: it answers with an error where its figures should be "
            f"({said})",
        )
    return Failure("engine-unknown", f"no engine recognised ({said}); set the worker's engine if you know it")
