"""
The demo's own endpoints, on a port of their own and on every worker: `/demo/scenario` and `/demo/truth`.

A collector never asks for them; a page that wants to steer the demo finds them at any worker it already knows.
A change needs a JSON content type, so that no web page elsewhere can make a browser send one unasked.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from demo.hosting import json_response
from demo.scenarios import SCENARIOS


class UnknownScenarioError(Exception):
    """The scenario does not exist, or this fleet cannot play it; the message says which ones it can."""


def add_control(
    app: web.Application,
    *,
    describe: Callable[[], dict[str, Any]],
    switch: Callable[[str], None],
    truth: Callable[[], dict[str, Any]],
) -> None:
    """
    Add the endpoints to an application.

    Args:
        app: Where.
        describe: Current scenario and the known ones.
        switch: Changes the scenario; raises UnknownScenarioError.
        truth: The true state of the fleet.
    """

    async def get_scenario(_request: web.Request) -> web.Response:
        return json_response(describe())

    async def post_scenario(request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            return json_response({"detail": 'send JSON: {"scenario": "calm"}'}, 415)
        try:
            wanted = msgspec.json.decode(await request.read())
            name = wanted["scenario"]
        except (msgspec.DecodeError, KeyError, TypeError):
            return json_response({"detail": f'send {{"scenario": NAME}}, one of {", ".join(SCENARIOS)}'}, 422)
        try:
            switch(str(name))
        except UnknownScenarioError as error:
            return json_response({"detail": str(error)}, 422)
        return json_response(describe())

    async def get_truth(_request: web.Request) -> web.Response:
        return json_response(truth())

    app.router.add_get("/demo/scenario", get_scenario)
    app.router.add_post("/demo/scenario", post_scenario)
    app.router.add_get("/demo/truth", get_truth)
