"""
The demo fleet on the air: its ports, its clock, and the tick that keeps both together.

Read next: `fleet` (what happens at a tick) and `control` (`/demo/...`).
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from aiohttp import web

from demo.control import add_control
from demo.fleet import TICK_S, DemoFleet
from demo.hosting import Site, application
from demo.router_view import RouterView
from demo.scenarios import Scenario

MOST_TICKS: Final = 2


class ServedFleet:
    """
    A demo fleet behind real HTTP servers on loopback.

    Attributes:
        fleet: What is served.
        control: The demo's own endpoint.
        router: The demo's router, as smg would answer.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        seed: int = 1,
        speed: float = 1.0,
        worker_count: int | None = None,
        port_base: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self.fleet = DemoFleet(
            scenario, seed=seed, speed=speed, worker_count=worker_count, clock=clock, extra_routes=self._add_control
        )
        for number, worker in enumerate(self.fleet.workers, start=2):
            worker.site.port = port_base + number if port_base else 0
        self.control = Site(self._control_app, port_base)
        view = RouterView(self.fleet.workers, self.fleet.is_up, self.fleet.router_in_flight, clock)
        self.router = Site(view.app, port_base + 1 if port_base else 0)

    def _control_app(self) -> web.Application:
        app = application()
        self._add_control(app)
        return app

    def _add_control(self, app: web.Application) -> None:
        add_control(app, describe=self.fleet.describe, switch=self.fleet.switch, truth=self.fleet.truth)

    async def start(self) -> None:
        """
        Live the scenario's preroll, open every port, and begin to tick.

        Raises:
            PortTakenError: A port is not free; those already open are closed again.
        """
        try:
            await self.control.start()
            await self.router.start()
            for worker in self.fleet.workers:
                await worker.site.start()
        except BaseException:
            await self.close()
            raise
        self.fleet.begin()
        await self.settle()
        self._task = asyncio.create_task(self._tick())

    async def settle(self) -> None:
        """Open the ports of workers that are up and close those of workers that are down."""
        for worker in self.fleet.workers:
            if self.fleet.is_up(worker.name):
                await worker.site.start()
            else:
                await worker.site.stop()

    async def _tick(self) -> None:
        next_s = time.monotonic()
        while True:
            # Few at a time: answers must not wait while a late fleet catches up.
            if self.fleet.advance(self._clock(), MOST_TICKS):
                await self.settle()
            next_s = max(next_s + TICK_S, time.monotonic())
            await asyncio.sleep(next_s - time.monotonic())

    @property
    def failure(self) -> asyncio.Task[None] | None:
        """The ticking task, to be watched: it ends only by an error or by `close`."""
        return self._task

    async def close(self) -> None:
        """Stop ticking and close every port."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(
            self.control.close(), self.router.close(), *(worker.site.close() for worker in self.fleet.workers)
        )
