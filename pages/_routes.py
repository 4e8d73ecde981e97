"""
The HTTP routes beside the pages, the token check over http and websocket, and the security headers.

Every route answers from the running collector: `/metrics` (our own metrics), `/api/health`, `/api/snapshot` (the
fleet as judged, strict JSON), `/api/export` (a time range as Parquet or CSV), `/assets/plotly-*.js`.
"""

import base64
import binascii
import hmac
import time
from collections.abc import Callable
from pathlib import Path

import plotly
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from collectors import runtime as collector
from collectors.errors import KvscopeError
from collectors.runtime import Runtime
from collectors.store import parse_export_query
from pages._context import parse_instant_s
from pages._metrics import CONTENT_TYPE as METRICS_TYPE
from pages._metrics import exposition as _metrics_text
from pages.figures.live import ASSET_PATH
from scoring.snapshot import fleet_to_json

PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
OPEN_PATHS = frozenset({"/_stcore/health", "/api/health"})
"""Answered without a token: they say that the server lives, nothing of the fleet."""

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"referrer-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=(), payment=()"),
    # Nothing is ever fetched from elsewhere, so a name with an address in it cannot call home.
    # Streamlit's own front end needs inline styles and eval; blob: carries component scripts.
    (
        b"content-security-policy",
        (
            b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
            b"style-src 'self' 'unsafe-inline'; "
            b"img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' ws: wss: blob: data:; "
            b"worker-src 'self' blob:; frame-src 'self' blob:; object-src 'none'; "
            b"base-uri 'self'; frame-ancestors 'self'"
        ),
    ),
)


def _running() -> Runtime | None:
    return collector.get_runtime()


def _refused(text: str, status: int) -> Response:
    return JSONResponse({"error": text}, status_code=status)


async def _health(_: Request) -> Response:
    """Say that the server lives and whether it collects; nothing of the fleet."""
    return JSONResponse({"status": "ok", "is_collecting": _running() is not None})


async def _snapshot(request: Request) -> Response:
    """Return the judged fleet as the documented snapshot file, now or at `?at=`."""
    running = _running()
    if running is None:
        return _refused("the collector is not running", 503)
    text = request.query_params.get("at", "")
    at_s = parse_instant_s(text) if text else None
    if text and at_s is None:
        return _refused("at: write an instant like 2026-11-30T14:05:00 (UTC) or epoch seconds", 400)
    try:
        fleet = await run_in_threadpool(running.snapshot, at_s)
    except KvscopeError as error:
        return _refused(str(error), 503)
    return Response(fleet_to_json(fleet), media_type="application/json")


async def _metrics(_: Request) -> Response:
    """Return our own metrics as Prometheus text."""
    body = await run_in_threadpool(lambda: _metrics_text(_running()))
    return Response(body, media_type=METRICS_TYPE)


async def _export(request: Request) -> Response:
    """Return a time range as a file: `?from=&to=&table=&format=`; the last hour of readings as Parquet by default."""
    running = _running()
    if running is None:
        return _refused("the collector is not running", 503)
    try:
        wanted = parse_export_query(request.query_params, time.time())
        body = await run_in_threadpool(running.export_bytes, wanted)
    except ValueError as error:
        return _refused(str(error), 400)
    except KvscopeError as error:
        return _refused(str(error), 503)
    headers = {"content-disposition": f'attachment; filename="{wanted.file_name}"'}
    return Response(body, media_type=wanted.media_type, headers=headers)


async def _no_route(request: Request) -> Response:
    """Say that there is no such route: a program that asks for one must not be given a page."""
    return _refused(f"no route {request.url.path}; there are /api/health, /api/snapshot, /api/export, /metrics", 404)


async def _plotly(_: Request) -> Response:
    """Serve plotly.js out of the installed package; its version is in the path, so it may be kept for good."""
    return FileResponse(
        PLOTLY_JS, media_type="text/javascript", headers={"cache-control": "public, max-age=31536000, immutable"}
    )


def routes() -> list[Route]:
    """Return the routes beside the pages."""
    return [
        Route("/api/health", _health),
        Route("/api/snapshot", _snapshot),
        Route("/api/export", _export),
        Route("/api", _no_route),
        Route("/api/{rest:path}", _no_route),
        Route("/metrics", _metrics),
        Route(f"/{ASSET_PATH}", _plotly),
    ]


class TokenCheck:
    """
    Refuse http and websocket requests without the token, when the fleet file asks for one.

    The token comes as `Authorization: Bearer TOKEN` (programs) or as the password of Basic (browsers ask for it and
    send it with the websocket too). `token` is called at each request, since settings are read after the app is made.
    """

    def __init__(self, app: ASGIApp, token: Callable[[], str | None]) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may pass."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        token = self.token()
        if token is None or _carries(scope, token):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            refusal = PlainTextResponse(
                "This dashboard needs a token: any user name, the token as password.\n",
                status_code=401,
                headers={"www-authenticate": 'Basic realm="KVScope", charset="UTF-8"'},
            )
            await refusal(scope, receive, send)


def _carries(scope: Scope, token: str) -> bool:
    header = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    kind, _, value = header.partition(" ")
    if kind.lower() == "bearer":
        shown = value.strip().encode()
    elif kind.lower() == "basic":
        try:
            shown = base64.b64decode(value, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    else:
        return False
    return hmac.compare_digest(shown, token.encode())


class SecurityHeaders:
    """Add SECURITY_HEADERS to every http answer that does not set them itself."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, with the headers added to the answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                names = {name.lower() for name, _ in headers}
                message["headers"] = headers + [pair for pair in SECURITY_HEADERS if pair[0] not in names]
            await send(message)

        await self.app(scope, receive, with_headers)


def middleware(token: Callable[[], str | None]) -> list[Middleware]:
    """Return the middleware, outermost first."""
    return [Middleware(SecurityHeaders), Middleware(TokenCheck, token=token)]
