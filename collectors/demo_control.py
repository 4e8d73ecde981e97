"""
Steering a demo fleet: which scenario it plays, and another one. Only demo workers have these endpoints.

A demo listens on loopback, so nobody else is ever asked: a real worker elsewhere never sees these requests. Redirects
are not followed and the environment's proxies are not used.
"""

import ipaddress
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from collectors.errors import KvscopeError

TIMEOUT_S: Final = 2.0
MOST_ASKED: Final = 3
"""Chosen: workers of one demo answer alike; two may be down."""
MAX_BYTES: Final = 64 * 1024


class DemoControlError(KvscopeError):
    """The demo could not be asked or steered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoState:
    """
    What a demo plays.

    Attributes:
        scenario: Its name.
        elapsed_s: Virtual seconds since it began.
        speed: Virtual seconds a wall second.
        scenarios: What this demo can play.
        read_at_s: Our clock when it answered.
    """

    scenario: str
    elapsed_s: float
    speed: float
    scenarios: tuple[str, ...]
    read_at_s: float


def is_loopback(url: str) -> bool:
    """Say whether `url` points at this machine by number or as localhost."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class DemoControl:
    """
    The control endpoint of a demo fleet.

    Args:
        urls: Base addresses of workers; those that are not on loopback are left out.
        transport: For tests; real HTTP when None.
        clock: Wall clock, epoch seconds.
    """

    def __init__(
        self,
        urls: Iterable[str],
        *,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._urls = [url.rstrip("/") for url in urls if is_loopback(url)]
        self._transport = transport
        self._clock = clock

    def state(self) -> DemoState | None:
        """Return what the demo plays, None where no worker on loopback is a demo's."""
        for url in self._urls[:MOST_ASKED]:
            try:
                return self._ask("GET", url)
            except DemoControlError:
                continue
        return None

    def switch(self, scenario: str) -> DemoState:
        """
        Begin a scenario anew and return what the demo says then.

        Raises:
            DemoControlError: No worker took it; the message says why.
        """
        reason = "no worker of this fleet is on loopback"
        for url in self._urls[:MOST_ASKED]:
            try:
                return self._ask("POST", url, {"scenario": scenario})
            except DemoControlError as error:
                reason = str(error)
        raise DemoControlError(f"the demo did not begin scenario {scenario}: {reason}")

    def _ask(self, method: str, url: str, body: dict[str, str] | None = None) -> DemoState:
        try:
            with httpx.Client(
                transport=self._transport, timeout=TIMEOUT_S, follow_redirects=False, trust_env=False
            ) as client:
                answer = client.request(method, f"{url}/demo/scenario", json=body)
                if answer.status_code != httpx.codes.OK or len(answer.content) > MAX_BYTES:
                    raise DemoControlError(f"{url} is no demo worker (status {answer.status_code})")
                return self._understood(answer.json())
        except (httpx.HTTPError, ValueError) as error:
            raise DemoControlError(f"{url} did not answer as a demo worker: {error}") from error

    def _understood(self, told: Any) -> DemoState:
        try:
            return DemoState(
                scenario=str(told["scenario"]),
                elapsed_s=float(told["elapsed_s"]),
                speed=float(told["speed"]),
                scenarios=tuple(str(name) for name in told["scenarios"]),
                read_at_s=self._clock(),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"no scenario in the answer ({error})") from error
