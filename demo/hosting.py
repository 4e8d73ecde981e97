"""
HTTP servers on loopback: one port a worker, errors worded as the real server words them.

Read next: `wire` (what `/v1/loads` answers), `recording` and `worker` (who answers).
"""

import errno
import gzip
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web

from demo import wire

LOOPBACK: Final = "127.0.0.1"
TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""What a server answers to `Accept: text/plain`: the classic exposition format."""


class PortTakenError(Exception):
    """A port we were told to use is not free; the message is one sentence for the user."""


def json_response(value: Any, status: int = 200) -> web.Response:
    """Return `value` as compact JSON."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def text_response(body: bytes) -> web.Response:
    """Return an exposition."""
    return web.Response(body=body, headers={"Content-Type": TEXT_TYPE})


async def _sign(_request: web.Request, response: web.StreamResponse) -> None:
    # The server library a real worker runs in.
    response.headers["Server"] = "uvicorn"


def metrics_response(request: web.Request, body: bytes) -> web.Response:
    """Return an exposition as the Prometheus client's own server does: compressed for whoever takes gzip."""
    response = text_response(body)
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        response.body = gzip.compress(body, compresslevel=1, mtime=0)
        response.headers["Content-Encoding"] = "gzip"
    return response


@web.middleware
async def _refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except wire.BadQueryError as refused:
        return web.Response(body=refused.body, status=refused.status, content_type=refused.content_type)
    except web.HTTPException as refused:
        response = json_response({"detail": refused.reason}, refused.status)
        if "Allow" in refused.headers:
            response.headers["Allow"] = refused.headers["Allow"]
        return response


def loads_response(
    request: web.Request, head: Callable[[], dict[str, Any]], rows: Callable[[], Sequence[wire.Row]]
) -> web.Response:
    """Answer a `/v1/loads` request from rows."""
    chosen = wire.select(rows(), request.query.get("dp_rank"), request.query.get("include"))
    if request.query.get("format") == "prometheus":
        return text_response(wire.to_text(chosen))
    return web.Response(body=wire.to_json(head(), chosen), content_type="application/json")


def application() -> web.Application:
    """Return an application that words its refusals as the real server does."""
    app = web.Application(middlewares=[_refusals])
    app.on_response_prepare.append(_sign)
    return app


class Site:
    """
    One HTTP server on one loopback port. Start and stop are idempotent.

    A stopped site refuses connections and keeps its port, so that a worker comes back where it was.

    Attributes:
        port: The port; fixed by the first start.
    """

    def __init__(self, make_app: Callable[[], web.Application], port: int = 0) -> None:
        self._make_app = make_app
        self._runner: web.AppRunner | None = None
        self._held: socket.socket | None = None
        self.port = port

    @property
    def url(self) -> str:
        """Base URL, known after the first start."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def is_open(self) -> bool:
        """Whether the port answers."""
        return self._runner is not None

    async def start(self) -> None:
        """
        Listen.

        Raises:
            PortTakenError: Somebody else listens there.
        """
        if self._runner is not None:
            return
        held, self._held = self._held or _bind(self.port), None
        runner = web.AppRunner(self._make_app(), access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        await web.SockSite(runner, held, backlog=256).start()
        self._runner = runner
        self.port = int(runner.addresses[0][1])

    async def stop(self) -> None:
        """Close every connection and refuse new ones; the port stays ours."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
            self._held = _bind(self.port)

    async def close(self) -> None:
        """Stop and give the port back."""
        await self.stop()
        held, self._held = self._held, None
        if held is not None:
            held.close()


def _bind(port: int) -> socket.socket:
    # Bound and not listening: connections are refused, and nobody else can take the port meanwhile.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((LOOPBACK, port))
    except OSError as error:
        bound.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        why = "is taken" if error.errno == errno.EADDRINUSE else "may not be used"
        raise PortTakenError(
            f"port {port} on {LOOPBACK} {why}; stop what listens there or choose another --port-base"
        ) from error
    bound.setblocking(False)
    return bound
