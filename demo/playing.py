"""
The servers of a recorded fleet: each recorded host and port becomes one port on loopback.

Read next: `recording` (what they answer).
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web

from demo.hosting import Site, application, json_response, loads_response, metrics_response
from demo.recording import Playback, Recording

NAMED_ROLES: Final = ("prefill", "decode")


class RecordedFleet:
    """
    A recorded fleet being played.

    Attributes:
        sites: Recorded origin -> its server.
        playback: The recording on its clock; set by `start`.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        speed: float = 1.0,
        is_looping: bool = True,
        port_base: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._speed = speed
        self._is_looping = is_looping
        self.playback = Playback(recording, clock(), speed, is_looping)
        origins = sorted(recording.tracks)
        self.sites = {
            origin: Site(partial(self._app, origin), port_base + index if port_base else 0)
            for index, origin in enumerate(origins)
        }

    @property
    def workers(self) -> list[tuple[str, str, str | None]]:
        """Name, URL and role of each worker, routers left out."""
        recording = self.playback.recording
        named = [(origin, recording.role(origin)) for origin in self.sites]
        return [
            (
                f"{role if role in ('prefill', 'decode') else 'worker'}-{urlsplit(origin).port}",
                self.sites[origin].url,
                role,
            )
            for origin, role in named
            if role != "router"
        ]

    @property
    def router_url(self) -> str | None:
        """URL of the recorded router that lists its workers, or None."""
        for origin, paths in self.playback.recording.tracks.items():
            if "/workers" in paths:
                return self.sites[origin].url
        return None

    async def start(self) -> None:
        """
        Open every port and begin at the first line.

        Raises:
            PortTakenError: A port is not free; those already open are closed again.
        """
        try:
            for site in self.sites.values():
                await site.start()
        except BaseException:
            await self.close()
            raise
        self.playback = Playback(self.playback.recording, self._clock(), self._speed, self._is_looping)
        self.playback.origins = {origin: site.url for origin, site in self.sites.items()}

    async def close(self) -> None:
        """Close every port."""
        await asyncio.gather(*(site.close() for site in self.sites.values()))

    def _app(self, origin: str) -> web.Application:
        app = application()
        paths = self.playback.recording.tracks[origin]
        for path in paths:
            app.router.add_get(path, partial(self._answer, origin=origin, path=path))
        if "/v1/loads" in paths:
            for path in ("/server_info", "/get_server_info"):
                if path not in paths:
                    app.router.add_get(path, partial(self._server_info, origin=origin))
        if "/health" not in paths:
            app.router.add_get("/health", self._health)
        return app

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _server_info(self, _request: web.Request, origin: str) -> web.Response:
        return json_response(self.playback.server_info(origin))

    async def _answer(self, request: web.Request, origin: str, path: str) -> web.Response:
        now_s = self._clock()
        entry = self.playback.entry(origin, path, now_s)
        if entry is None:
            # Before its first recorded answer a path is one that has not started yet.
            return web.Response(status=503)
        if entry.text is not None:
            return metrics_response(request, self.playback.exposition(entry, now_s).encode())
        body: Any = self.playback.body(entry, now_s)
        if path == "/v1/loads":
            rows = body.pop("loads", [])
            return loads_response(request, lambda: body, lambda: rows)
        return json_response(body)
