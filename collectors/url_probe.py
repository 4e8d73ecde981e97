"""
The guarded test of a worker's address, for the form of the opening page: one look, from this server, for a viewer.

A viewer must not reach through it what the viewer could not reach alone. It is off unless the fleet file turns it on;
every address a name resolves to must lie in a network of the operator's list, and the connection goes to the very
address that was checked (a second lookup could give another one). Redirects are not followed, the environment's
proxies not used, no token is sent, and nothing of an answer is shown but what a dialect understood of it. One test at
a time, with a pause between two, so that it is no fast scanner of the networks it may reach.
"""

import asyncio
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import httpx

from collectors.addresses import base_url, safe_url
from collectors.discovery import Target
from collectors.engines import ENGINES, identify
from collectors.errors import KvscopeError
from collectors.poll_types import PollLimits, WorkerResult
from collectors.settings import Settings, TlsSettings
from collectors.transport import FleetTransport
from collectors.worker_poll import WorkerPoll
from scoring.model import Role

TIMEOUT_S: Final = 5.0
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
PAUSE_S: Final = 1.0
"""Chosen: a person at a form does not notice it, a scanner does."""
LONGEST_URL: Final = 300
_LONGEST_VERSION: Final = 40

Lookup = Callable[[str, int], Sequence[str]]
"""(host, port) -> addresses as text; OSError when the name does not resolve."""


class ProbeRefusedError(KvscopeError):
    """The address was not asked: the test is off, it lies outside the allowed networks, or is no address."""


class ProbeBusyError(KvscopeError):
    """Another test is under way, or ended a moment ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """
    What one look told, and no more.

    Attributes:
        url: Base address asked.
        is_understood: A dialect understood the answers.
        engine: Dialect, "" when none.
        version: As the engine says, printable and short, or None.
        roles: Roles of its pools, ascending, without doubles.
        pool_count: Pools in the answer.
        usable_tokens: What each holds where all say the same, else None.
        router_worker_count: Workers that a router names, 0 for a worker.
        reason: Kind of failure in a word, "" when understood. Never text from an answer.
    """

    url: str
    is_understood: bool
    engine: str = ""
    version: str | None = None
    roles: tuple[Role, ...] = ()
    pool_count: int = 0
    usable_tokens: float | None = None
    router_worker_count: int = 0
    reason: str = ""


def lookup_all(host: str, port: int) -> tuple[str, ...]:
    """Return every address `host` resolves to; OSError when it does not."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(item[4][0]) for item in found))


def plain_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """
    Return an address as the network would reach it: an IPv4 one written as IPv6 is the IPv4 one.

    Raises:
        ValueError: It is no address.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def allowed_address(url: str, networks: Sequence[str], lookup: Lookup = lookup_all) -> tuple[str, str]:
    """
    Return (base address, the address to connect to) of `url`, when all it resolves to lies inside `networks`.

    Raises:
        ProbeRefusedError: It does not, or is no http address, or names nobody.
    """
    if len(url) > LONGEST_URL:
        raise ProbeRefusedError(f"the address is longer than {LONGEST_URL} characters")
    if "@" in url:
        raise ProbeRefusedError("the address carries a user name; write http://host:port alone")
    try:
        base = base_url(url if "://" in url else f"http://{url}")
        parts = urlsplit(base)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise ProbeRefusedError("not an http address; write it like http://10.0.0.11:30000") from error
    known = [ipaddress.ip_network(network) for network in networks]
    try:
        found = [plain_address(text) for text in lookup(host, port)]
    except (OSError, UnicodeError, ValueError) as error:
        raise ProbeRefusedError("the name does not resolve") from error
    outside = [
        address
        for address in found
        if not any(address.version == network.version and address in network for network in known)
    ]
    if not found or outside:
        # Said the same way whatever it resolved to: internal names are not spelt out to a viewer.
        raise ProbeRefusedError(f"the address is not within {', '.join(networks) or 'any allowed network'}")
    return base, str(found[0])


class PinnedTransport(httpx.AsyncBaseTransport):
    """
    A way to one host that always connects to one address, whatever the name says by then.

    Args:
        host: Name or address in the URL; requests to any other are refused.
        address: Where the connection goes.
        inner: Carries it; takes the address in the URL and the name in Host and, for https, in the handshake.
    """

    def __init__(self, host: str, address: str, inner: httpx.AsyncBaseTransport) -> None:
        self._host, self._address, self._inner = host, address, inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request to the pinned address."""
        if request.url.host != self._host:
            raise httpx.UnsupportedProtocol("a test asks one host only")
        pinned = httpx.Request(
            request.method,
            request.url.copy_with(host=self._address),
            headers=[*request.headers.raw],
            extensions=request.extensions,
        )
        pinned.headers["host"] = request.url.netloc.decode("ascii")
        return await self._inner.handle_async_request(pinned)

    async def aclose(self) -> None:
        """Close the way."""
        await self._inner.aclose()


class UrlProbe:
    """
    The form's way out. Thread-safe; one a server.

    Args:
        lookup: Names to addresses.
        transport: Makes the way to an address; the real one when None.
        steady: Steady clock, seconds.
    """

    def __init__(
        self,
        *,
        lookup: Lookup = lookup_all,
        transport: Callable[[str], httpx.AsyncBaseTransport] | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lookup, self._transport, self._steady = lookup, transport, steady
        self._lock = threading.Lock()
        self._ended_at_s = float("-inf")

    def ask(self, url: str, settings: Settings) -> ProbeReport:
        """
        Look at `url` once.

        Raises:
            ProbeRefusedError: The test is off, or the address is not allowed.
            ProbeBusyError: Another test is under way or has just ended.
        """
        server = settings.server
        if not server.is_url_test_on:
            raise ProbeRefusedError("testing an address is off in this server (server.is_url_test_on)")
        if not self._lock.acquire(blocking=False):
            raise ProbeBusyError("another address is being tested")
        try:
            if self._steady() - self._ended_at_s < PAUSE_S:
                raise ProbeBusyError("another address was tested a moment ago")
            base, address = allowed_address(url.strip(), server.url_test_networks, self._lookup)
            try:
                return asyncio.run(self._look(base, address, settings.tls))
            finally:
                self._ended_at_s = self._steady()
        finally:
            self._lock.release()

    async def _look(self, base: str, address: str, tls: TlsSettings) -> ProbeReport:
        host = urlsplit(base).hostname or ""
        if self._transport is not None:
            inner = self._transport(host)
        else:
            # The name stays the one a certificate must carry; no certificate of ours is shown to a viewer's choice.
            inner = FleetTransport(TlsSettings(verify=tls.verify, ca_file=tls.ca_file, server_name=host))
        worker = WorkerPoll(
            Target(worker_id=safe_url(base), url=base),
            transport=PinnedTransport(host, address, inner),
            limits=PollLimits(
                timeout_s=TIMEOUT_S,
                connect_timeout_s=TIMEOUT_S,
                metrics_interval_s=0.0,
                max_body_bytes=MAX_BODY_BYTES,
                down_after_failures=1,
            ),
            token=None,
            engines=ENGINES,
            identify_engine=identify,
            clock=time.time,
            steady_clock=time.monotonic,
        )
        try:
            return report_of(base, await worker.poll())
        finally:
            await inner.aclose()


def report_of(base: str, result: WorkerResult) -> ProbeReport:
    """Return what may be told of one poll."""
    detail, poll = result.detail, result.poll
    if poll.error_kind is not None:
        return ProbeReport(url=base, is_understood=False, reason=poll.error_kind)
    sizes = {reading.usable_tokens for reading in result.readings}
    version = next((reading.version for reading in result.readings if reading.version), None)
    return ProbeReport(
        url=base,
        is_understood=True,
        engine=detail.engine if detail is not None else (result.readings[0].engine if result.readings else ""),
        version=None if version is None else "".join(c for c in version if c.isprintable())[:_LONGEST_VERSION],
        roles=tuple(sorted({reading.role for reading in result.readings})),
        pool_count=len(result.readings),
        usable_tokens=next(iter(sizes)) if len(sizes) == 1 else None,
        router_worker_count=len(result.router_workers),
    )


def fleet_toml(report: ProbeReport) -> str:
    """Return a fleet file for what was understood: the worker itself, or the router as a list of workers."""
    # A JSON text of ASCII is a TOML text too.
    address = json.dumps(report.url)
    if report.router_worker_count:
        return f"[discovery]\nsglang_router = [{address}]\n"
    lines = ["[[workers]]", f"url = {address}"]
    if len(report.roles) == 1 and report.roles[0] is not Role.UNKNOWN:
        lines.append(f'# role = "{report.roles[0].value}"    # as the engine says it; uncomment to state it')
    return "\n".join(lines) + "\n"
