"""
Starting and stopping the collector with the server, and remembering why it could not start.

A fleet file with problems or a store that is held by another process must end as a drawn page with all problems, so
the server starts all the same and the error is kept for `_context.runtime()` to draw.
"""

import logging

from collectors import runtime as collector
from collectors.errors import KvscopeError
from collectors.settings import Settings, fleet_path_from_environment, load_settings, read_secret
from collectors.watchers import start_watchers, stop_watchers
from pages import _context as context

_settings: list[Settings] = []
_log = logging.getLogger(__name__)


def start() -> None:
    """Read the fleet file the server was given and start collecting; without one the pages say how to give one."""
    _settings.clear()
    context.set_failure(None)
    path = fleet_path_from_environment()
    if path is None:
        return
    try:
        settings = load_settings(path)
        _settings.append(settings)
        start_watchers(collector.start_runtime(settings))
    except KvscopeError as error:
        _log.error("The collector could not start: %s", error)
        context.set_failure(error)


def stop() -> None:
    """Stop collecting; without a running collector nothing happens."""
    running = collector.get_runtime()
    if running is not None:
        stop_watchers(running)
        running.stop()


def viewer_token() -> str | None:
    """Return the token viewers must show, or None when the fleet file asks for none."""
    return read_secret(_settings[0].server.token_env) if _settings else None
