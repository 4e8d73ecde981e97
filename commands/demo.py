"""`kvscope demo`: a fleet of real HTTP workers on loopback, simulated or recorded, with the dashboard if asked."""

import argparse
import asyncio
import importlib
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from commands import refuse
from demo.control import UnknownScenarioError
from demo.fleet_file import FleetFileError, Value, WorkerLine, fleet_toml, write_fleet_file
from demo.hosting import LOOPBACK, PortTakenError, Site, application
from demo.playing import RecordedFleet
from demo.recording import Playback, RecordingError, read_recording
from demo.scenarios import SCENARIOS

HELP = "Run a demo fleet of SGLang-speaking workers on loopback, simulated or recorded."
EXIT_FAILED: Final = 1
DEFAULT_FLEET_FILE: Final = Path("var/demo/fleet.toml")
DEFAULT_PORT: Final = 8501
READY_WAIT_S: Final = 60.0
STOP_WAIT_S: Final = 10.0
LAG_TOLD_S: Final = 10.0
DASHBOARD_IMPORTS: Final = ("streamlit", "pandas")
MOST_FILES: Final = 65_536


def _speed(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.01 <= value <= 200.0:
        raise argparse.ArgumentTypeError(f"must be a number from 0.01 to 200, not {text}")
    return value


def _port(text: str) -> int:
    value = int(text) if text.isdigit() else -1
    if not 0 <= value <= 65_000:
        raise argparse.ArgumentTypeError(f"must be a port from 0 (any free one) to 65000, not {text}")
    return value


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--scenario", choices=sorted(SCENARIOS), default="calm", help="what happens (default calm; see --list)"
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios and end")
    parser.add_argument("--speed", type=_speed, default=1.0, help="how much faster than life (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same traffic (default 1)")
    parser.add_argument("--workers", type=int, metavar="N", help="so many workers, in the default proportions (11)")
    parser.add_argument(
        "--port-base",
        type=_port,
        default=0,
        metavar="PORT",
        help="first port: control, then router and workers (default: any free)",
    )
    parser.add_argument(
        "--fleet-file", type=Path, default=DEFAULT_FLEET_FILE, metavar="FILE", help="where to write fleet.toml"
    )
    parser.add_argument("--recording", type=Path, metavar="FILE", help="play a recorded fleet instead")
    parser.add_argument(
        "--at-end", choices=("loop", "stay"), default="loop", help="recording: begin again, or stay on the last answers"
    )
    parser.add_argument("--serve", action="store_true", help="serve the dashboard on the demo fleet too")
    parser.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, help=f"the dashboard's port (default {DEFAULT_PORT})"
    )


def run(args: argparse.Namespace) -> int:
    """Run until interrupted; return the exit status."""
    if args.list:
        for scenario in SCENARIOS.values():
            print(f"{scenario.name:12} {scenario.summary}")
        return 0
    if args.workers is not None and not 3 <= args.workers <= 2000:
        return refuse("demo", f"--workers must be from 3 to 2000, not {args.workers}")
    if args.workers is not None and SCENARIOS[args.scenario].fleet != "default":
        return refuse("demo", f"scenario {args.scenario} brings its own workers; leave --workers out")
    _allow_files()
    if args.serve:
        return _serve(args)
    return asyncio.run(_main(args, print, None))


def _allow_files() -> None:
    """Let this process hold as many files as the system lets it: a worker takes a port and a reader's connection."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if most == resource.RLIM_INFINITY else min(most, MOST_FILES)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _serve(args: argparse.Namespace) -> int:
    """Run the fleet in a child process, the dashboard in this one, and end both together."""
    try:
        asyncio.run(_probe(args.port))
    except PortTakenError:
        print(
            f"kvscope demo: port {args.port} on {LOOPBACK} is taken; stop what listens there or choose another --port",
            file=sys.stderr,
        )
        return EXIT_FAILED
    # A process of its own: the pages' work and the fleet's ticks must not wait for each other's interpreter lock.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(args, theirs), name="kvscope-demo-fleet")
    child.start()
    theirs.close()
    try:
        # The dashboard's slow imports, which the fleet alone does without, while the fleet starts.
        for name in DASHBOARD_IMPORTS:
            importlib.import_module(name)
        from commands import serve

        if not ours.poll(READY_WAIT_S) or ours.recv() != "ready":
            return EXIT_FAILED
        # uvicorn turns SIGINT and SIGTERM into an orderly end and hands the signal on to us when it is through.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print(f"dashboard: http://{LOOPBACK}:{args.port}", flush=True)
        with suppress(KeyboardInterrupt):
            return serve.run(argparse.Namespace(fleet=args.fleet_file, port=args.port, address=LOOPBACK))
    except EOFError:
        return EXIT_FAILED
    finally:
        _end(child)
    return 0


def _end(child: Any) -> None:
    if child.is_alive():
        child.terminate()
    child.join(STOP_WAIT_S)
    if child.is_alive():
        child.kill()
        child.join()


async def _probe(port: int) -> None:
    site = Site(application, port)
    await site.start()
    await site.close()


def _child(args: argparse.Namespace, pipe: Connection) -> None:
    """Run the fleet in the child; tell the parent when it is on the air; end when the parent is gone."""
    # Ctrl-C reaches both; the parent ends us when the dashboard is through.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def ready() -> None:
        pipe.send("ready")

    status = asyncio.run(_main(args, print, os.getppid(), ready))
    raise SystemExit(status)


async def _main(
    args: argparse.Namespace,
    say: Callable[[str], None],
    parent: int | None,
    ready: Callable[[], None] = lambda: None,
) -> int:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM,) if parent is not None else (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    watcher = asyncio.create_task(_watch_parent(parent, told))
    try:
        await (_play if args.recording is not None else _simulate)(args, say, told, ready)
    except (RecordingError, PortTakenError, UnknownScenarioError, FleetFileError) as error:
        print(f"kvscope demo: {error}", file=sys.stderr)
        return EXIT_FAILED
    finally:
        watcher.cancel()
    return 0


async def _watch_parent(parent: int | None, told: asyncio.Event) -> None:
    """Say stop when the process that started us is gone: a fleet without its dashboard would live for ever."""
    while parent is not None:
        if os.getppid() != parent:
            told.set()
        await asyncio.sleep(1.0)


async def _simulate(
    args: argparse.Namespace, say: Callable[[str], None], told: asyncio.Event, ready: Callable[[], None]
) -> None:
    from demo.serving import ServedFleet  # imports the simulation, which a recording does without

    served = ServedFleet(
        SCENARIOS[args.scenario],
        seed=args.seed,
        speed=args.speed,
        worker_count=args.workers,
        port_base=args.port_base,
    )
    await served.start()
    try:
        workers = served.fleet.workers
        lines = [
            WorkerLine(
                name=worker.name,
                url=worker.site.url,
                settings={
                    "rack": worker.plan.rack,
                    "link_bandwidth_bytes_per_s": worker.plan.bandwidth_bytes_per_s,
                },
            )
            for worker in workers
        ]
        sections = {"discovery": {"sglang_router": [served.router.url]}}
        _write_file(args, lines, f"scenario {args.scenario}, seed {args.seed}, speed {args.speed:g}", say, sections)
        say(f"control: {served.control.url}/demo/scenario and /demo/truth")
        say(f"scenario {args.scenario}: {SCENARIOS[args.scenario].summary}. Ctrl-C stops.")
        sys.stdout.flush()
        ready()
        ticking = served.failure
        if ticking is None:
            raise RuntimeError("the fleet is not ticking after its start")
        waiting = asyncio.create_task(told.wait())
        teller = asyncio.create_task(_tell_lag(served, args.speed, say))
        await asyncio.wait((waiting, ticking), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        teller.cancel()
        if ticking.done():
            ticking.result()
    finally:
        await served.close()


async def _tell_lag(served: Any, speed: float, say: Callable[[str], None]) -> None:
    """Say once when the machine cannot keep the asked speed: seconds read from the fleet are off by then."""
    while served.fleet.skipped_s < LAG_TOLD_S:
        await asyncio.sleep(1.0)
    say(f"this machine does not keep up with --speed {speed:g}: the fleet skips time; use a lower one")
    sys.stdout.flush()


async def _play(
    args: argparse.Namespace, say: Callable[[str], None], told: asyncio.Event, ready: Callable[[], None]
) -> None:
    recording = read_recording(args.recording)
    fleet = RecordedFleet(recording, speed=args.speed, is_looping=args.at_end == "loop", port_base=args.port_base)
    await fleet.start()
    try:
        lines = [WorkerLine(name=name, url=url) for name, url, _role in fleet.workers]
        router = fleet.router_url
        sections = {"discovery": {"sglang_router": [router]}} if router is not None else {}
        _write_file(args, lines, f"the recording {args.recording.name}, speed {args.speed:g}", say, sections)
        say(f"{recording.end_s - recording.start_s:.0f} s recorded; at the end: {args.at_end}. Ctrl-C stops.")
        sys.stdout.flush()
        ready()
        teller = asyncio.create_task(_tell_jumps(fleet.playback, say))
        await told.wait()
        teller.cancel()
    finally:
        await fleet.close()


def _write_file(
    args: argparse.Namespace,
    lines: list[WorkerLine],
    what: str,
    say: Callable[[str], None],
    sections: Mapping[str, Mapping[str, Value]] | None = None,
) -> None:
    text = fleet_toml(lines, comment=f"Written by kvscope demo: {what}.", sections=sections or {})
    write_fleet_file(args.fleet_file, text)
    for line in lines:
        say(f"{line.name:14} {line.url}")
    say(f"fleet file: {args.fleet_file}")


async def _tell_jumps(playback: Playback, say: Callable[[str], None]) -> None:
    """Say each jump back to the start, or the end: counters fall there and times jump."""
    while True:
        round_index, _ = playback.position(time.time())
        next_s = playback.start_wall_s + (round_index + 1) * playback.recording.period_s / playback.speed
        await asyncio.sleep(max(next_s - time.time(), 0.0))
        if not playback.is_looping:
            say("the recording is over: the workers stay on their last answers, which grow old")
            return
        say(f"the recording begins again (round {round_index + 2}): counters fall back to its start")
        sys.stdout.flush()
