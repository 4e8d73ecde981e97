"""
The collector as a child process, for fleets whose polling would take the pages' share of the interpreter.

The child gets its settings on standard input and writes frames (length, then MessagePack of a `CycleReport`) to
standard output; secrets reach it through the inherited environment only. It ends when its input closes, when it is
told to, and when its parent is gone. A child that dies is started again by `ChildCollector`, counted.
"""

import contextlib
import logging
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

import msgspec

from collectors.collector import Collector, CycleReport
from collectors.settings import Settings

_ROOT: Final = Path(__file__).resolve().parent.parent
_LENGTH: Final = struct.Struct("!I")
_MAX_FRAME_BYTES: Final = 1024**3
_WAITING_REPORTS: Final = 8
_WATCH_S: Final = 0.5
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_STEADY_S: Final = 60.0
"""A child that lived this long starts the pauses afresh."""
_log = logging.getLogger(__name__)


class ChildCollector:
    """
    Runs a `Collector` in a child process and hands its reports to `sink`, in a thread of this process.

    Args:
        settings: The fleet.
        sink: Takes a report or returns False when it has no room; the child is then held up by the full pipe.
    """

    def __init__(self, settings: Settings, sink: Callable[[CycleReport], bool]) -> None:
        self._settings = settings
        self._sink = sink
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._is_stopping = threading.Event()
        self.restart_count = 0
        self.last_exit = ""

    @property
    def pid(self) -> int | None:
        """Return the child's process id, None while there is none."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start the child and the thread that listens to it."""
        self._is_stopping.clear()
        self._process = self._spawn()
        self._thread = threading.Thread(target=self._listen, name="kvscope-child-listener", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Ask the child to end, wait, end it hard after `timeout_s`; say whether it ended by itself."""
        self._is_stopping.set()
        process, is_clean = self._process, True
        if process is not None:
            _close(process.stdin)
            try:
                process.wait(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                is_clean = False
                process.kill()
                process.wait(timeout=5.0)
        if self._thread is not None:
            self._thread.join(timeout=timeout_s)
            is_clean = is_clean and not self._thread.is_alive()
            self._thread = None
        return is_clean

    def _spawn(self) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)  # Named secrets live there and go no other way.
        path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = str(_ROOT) if not path else f"{_ROOT}{os.pathsep}{path}"
        process = subprocess.Popen(  # our own interpreter and module, no shell, no outside text
            [sys.executable, "-c", "from collectors.child import main; raise SystemExit(main())"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                _write_frame(process.stdin, self._settings.model_dump_json().encode())
        return process

    def _listen(self) -> None:
        decoder = msgspec.msgpack.Decoder(CycleReport)
        pause_s = _FIRST_PAUSE_S
        while True:
            process = self._process
            if process is None or process.stdout is None:
                return
            began = time.monotonic()
            while (frame := _read_frame(process.stdout)) is not None:
                report = decoder.decode(frame)
                while not self._sink(report):
                    if self._is_stopping.wait(0.05):
                        break
            code = process.wait()
            _close(process.stdout)
            _close(process.stdin)
            if self._is_stopping.is_set():
                return
            self.restart_count += 1
            self.last_exit = f"status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
            _log.warning("the collector process ended (%s); it is started again", self.last_exit)
            if time.monotonic() - began > _STEADY_S:
                pause_s = _FIRST_PAUSE_S
            if self._is_stopping.wait(pause_s):
                return
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
            self._process = self._spawn()
            if self._is_stopping.is_set():
                # stop() may have looked at the process before this one.
                _close(self._process.stdin)


def main() -> int:
    """Be the child: read settings, collect, end with the parent. Returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends us in order.
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    parent = os.getppid()
    out = sys.stdout.buffer
    sys.stdout = sys.stderr  # A stray print must not land between frames.
    frame = _read_frame(sys.stdin.buffer)
    if frame is None:
        return 1
    settings = Settings.model_validate_json(frame)
    reports: queue.Queue[CycleReport | None] = queue.Queue(maxsize=_WAITING_REPORTS)

    def take(report: CycleReport) -> bool:
        try:
            reports.put_nowait(report)
        except queue.Full:
            # While ending nobody reads any more: let the cycle end.
            return stop.is_set()
        return True

    def send() -> None:
        encoder = msgspec.msgpack.Encoder()
        while (report := reports.get()) is not None:
            try:
                _write_frame(out, encoder.encode(report))
            except OSError:
                stop.set()
                return

    def hear() -> None:
        sys.stdin.buffer.read()  # Returns when the parent closes it or dies.
        stop.set()

    threading.Thread(target=hear, name="kvscope-child-hear", daemon=True).start()
    sender = threading.Thread(target=send, name="kvscope-child-send", daemon=True)
    sender.start()
    collector = Collector(settings, take)
    collector.start()
    while not stop.wait(_WATCH_S):
        if os.getppid() != parent:
            stop.set()
    collector.stop()
    with contextlib.suppress(queue.Full):
        reports.put(None, timeout=1.0)
    sender.join(timeout=2.0)
    # The hearing thread may still sit in a read that holds the input's lock, which a normal exit would wait for.
    out.flush() if not out.closed else None
    os._exit(0)


def _write_frame(out: IO[bytes], body: bytes) -> None:
    out.write(_LENGTH.pack(len(body)))
    out.write(body)
    out.flush()


def _read_frame(source: IO[bytes]) -> bytes | None:
    """Return the next frame, None at the end (also in the middle of one: the writer died)."""
    head = source.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _MAX_FRAME_BYTES:
        return None
    body = source.read(length)
    return body if len(body) == length else None


def _close(stream: IO[bytes] | None) -> None:
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):
            stream.close()
