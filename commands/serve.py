"""`kvscope serve`: the dashboard over a fleet, with the collector in it."""

import argparse
import contextlib
import signal
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from collectors.engines import ENGINES
from collectors.errors import SettingsError, StoreError
from collectors.settings import Settings, hand_fleet_to_app, load_settings
from collectors.store import open_store
from commands import EXIT_WRONG_USE
from commands.collect import EXIT_FAILED, print_problems

HELP = "Serve the dashboard over a fleet."


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--fleet", type=Path, metavar="FILE", help="the fleet file; without one the first page says how"
    )
    parser.add_argument(
        "--port", type=int, metavar="PORT", help="port to listen on (fleet file's server.port, or 8501)"
    )
    parser.add_argument("--address", metavar="ADDRESS", help="address to listen on (default: server.address)")


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop; return the exit status."""
    try:
        settings = load_settings(args.fleet, engines=ENGINES) if args.fleet is not None else Settings()
    except SettingsError as error:
        return print_problems(error)
    address = args.address or settings.server.address
    port = settings.server.port if args.port is None else args.port
    if not 0 <= port <= 65535:
        print(f"--port {port}: is not a port; write 0 (any free one) to 65535", file=sys.stderr)
        return EXIT_WRONG_USE
    if address not in ("127.0.0.1", "::1", "localhost") and settings.server.token_env is None:
        print(
            f"--address {address}: is reachable from outside, and the fleet file sets no server.token_env; "
            "set it, or listen on 127.0.0.1 behind a proxy that asks for a login",
            file=sys.stderr,
        )
        return EXIT_WRONG_USE
    hand_fleet_to_app(args.fleet)
    if args.fleet is not None:
        try:
            # Before the server is up: a store that is held is one sentence here, not a page nobody has opened yet.
            open_store(settings.store.path, wait_s=settings.store.lock_wait_s).close()
        except StoreError as error:
            print(str(error), file=sys.stderr)
            return EXIT_FAILED
    return _serve(address, port)


def _serve(address: str, port: int) -> int:
    import app  # imports Streamlit, which takes a second that `--help` and errors need not wait for

    # Streamlit looks for its file where it was started; ours lies beside app.py, also in a wheel.
    with (Path(app.__file__).parent / ".streamlit" / "config.toml").open("rb") as file:
        config = dict(_flat(tomllib.load(file)))
    # The server ends in order on SIGTERM and then raises it once more; ending when told to is no failure.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with contextlib.suppress(KeyboardInterrupt):
        app.app.run(config={**config, "server.address": address, "server.port": port, "server.headless": True})
    return 0


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
