"""`kvscope demo`: a fleet of real HTTP workers on loopback, simulated or recorded, with the dashboard if asked."""

import argparse
import asyncio
import contextlib
import math
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from demo.fleet_file import WorkerLine, fleet_toml, write_fleet_file
from demo.hosting import PortTakenError
from demo.playing import RecordedFleet
from demo.recording import Playback, RecordingError, read_recording

HELP = "Run a demo fleet of SGLang-speaking workers on loopback, simulated or recorded."
EXIT_FAILED: Final = 1
EXIT_WRONG_USE: Final = 3
DEFAULT_FLEET_FILE: Final = Path("var/demo/fleet.toml")


def _positive(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value <= 0.0 or value > 1000.0:
        raise argparse.ArgumentTypeError(f"must be over 0 and at most 1000, not {text}")
    return value


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--recording", type=Path, metavar="FILE", help="play a recorded fleet instead of simulating one"
    )
    parser.add_argument("--at-end", choices=("loop", "stay"), default="loop", help="recording: begin again, or stay")
    parser.add_argument("--speed", type=_positive, default=1.0, help="how much faster than life (default 1)")
    parser.add_argument(
        "--port-base", type=int, default=0, metavar="PORT", help="first of the workers' ports (default: any)"
    )
    parser.add_argument(
        "--fleet-file", type=Path, default=DEFAULT_FLEET_FILE, metavar="FILE", help="where to write fleet.toml"
    )


def run(args: argparse.Namespace) -> int:
    """Run until interrupted; return the exit status."""
    if args.recording is not None:
        return _run_async(lambda: _play(args))
    print("the simulated fleet is not built yet; use --recording FILE")
    return EXIT_WRONG_USE


def _run_async(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    with contextlib.suppress(KeyboardInterrupt):
        return asyncio.run(main())
    return 0


async def _until_told() -> None:
    """Return at the first SIGINT or SIGTERM."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    await told.wait()


async def _tell_jumps(playback: Playback) -> None:
    """Print each jump back to the start, or the end: counters fall there and times jump."""
    while True:
        round_index, _ = playback.position(time.time())
        next_s = playback.start_wall_s + (round_index + 1) * playback.recording.period_s / playback.speed
        await asyncio.sleep(max(next_s - time.time(), 0.0))
        if not playback.is_looping:
            print("the recording is over: the workers stay on their last answers, which grow old", flush=True)
            return
        print(f"the recording begins again (round {round_index + 2}): counters fall back to its start", flush=True)


async def _play(args: argparse.Namespace) -> int:
    try:
        recording = read_recording(args.recording)
        fleet = RecordedFleet(recording, speed=args.speed, is_looping=args.at_end == "loop", port_base=args.port_base)
        await fleet.start()
    except (RecordingError, PortTakenError) as error:
        print(f"kvscope demo: {error}")
        return EXIT_FAILED
    try:
        lines = [WorkerLine(name=name, url=url) for name, url, _role in fleet.workers]
        text = fleet_toml(lines, comment=f"Written by kvscope demo: the recording {args.recording.name}.", sections={})
        write_fleet_file(args.fleet_file, text)
        for name, url, role in fleet.workers:
            print(f"{name:16} {url}  {role or ''}")
        print(f"fleet file: {args.fleet_file}")
        print(
            f"{recording.end_s - recording.start_s:.0f} s recorded; at the end: {args.at_end}. Ctrl-C stops.",
            flush=True,
        )
        teller = asyncio.create_task(_tell_jumps(fleet.playback))
        await _until_told()
        teller.cancel()
    finally:
        await fleet.close()
    return 0
