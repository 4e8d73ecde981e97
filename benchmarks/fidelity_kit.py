"""
Start an engine of the study by the kit, keep its processes apart, record, stop it.

The kit's environments are used through an ENGINES_DIR of our own, so that its `down` stops what was started here and
nothing else.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.__main__ import machine_line
from benchmarks.fidelity_targets import Target

ROOT = Path(__file__).resolve().parents[1]
INSTALLED = Path(os.environ.get("KVSCOPE_ENGINES", Path.home() / ".cache" / "kvscope-engines"))
START_LIMIT_S = 900.0
"""For one server to be ready: 40 s on a quiet machine, several minutes were seen on a busy one."""
LOOK_S = 3.0


class KitError(Exception):
    """The kit could not do what it was asked to."""


def busy_ratio(seconds: float = LOOK_S) -> float:
    """Return the share of all cores that was busy in the next `seconds`."""

    def read() -> tuple[float, float]:
        values = [float(word) for word in Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:9]]
        return sum(values), values[3] + values[4]

    total, idle = read()
    time.sleep(seconds)
    later, later_idle = read()
    return 1.0 - (later_idle - idle) / max(later - total, 1.0)


def _pin(process: int, core: int) -> None:
    for task in Path(f"/proc/{process}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})


def spread_cores(groups: Sequence[int]) -> int | None:
    """
    Give the one scheduler among these process groups a core of its own; return the core for all else, clients too.

    None, and nothing is done, where there is one core or not one scheduler: several spin on two cores whatever is
    pinned. A scheduler computes and spins; tokenizing and HTTP beside it would stretch single steps.
    """
    cores = sorted(os.sched_getaffinity(0))
    schedulers: list[int] = []
    others: list[int] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            group = int((folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[2])
            if group in groups:
                command = (folder / "cmdline").read_bytes()
                (schedulers if command.startswith(b"sglang::scheduler") else others).append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    if len(cores) < 2 or len(schedulers) != 1:
        return None
    _pin(schedulers[0], cores[0])
    for process in others:
        _pin(process, cores[1])
    return cores[1]


class Kit:
    """The kit at `folder`, with an ENGINES_DIR of our own at `home`."""

    def __init__(self, folder: Path, home: Path) -> None:
        self._script, self._home = folder / "engines.sh", home
        if not self._script.is_file():
            raise KitError(f"{folder}: holds no engines.sh; name the folder of the engine kit")

    def missing(self, target: Target) -> str:
        """Return what is not installed for a target, in words; "" when all is."""
        names = [name for name in target.environments if not (INSTALLED / name / "bin" / "python").exists()]
        if not names:
            return ""
        return f"{', '.join(names)} not installed in {INSTALLED}: run `engines.sh setup {names[0]}` of the kit"

    def _run(self, *arguments: str, core: int | None = None) -> None:
        environment = {
            **os.environ,
            "ENGINES_DIR": str(self._home),
            "ENGINES_TIMEOUT": f"{START_LIMIT_S:.0f}",
            "PYTHONPATH": str(ROOT),
            "no_proxy": "127.0.0.1,localhost",
        }
        command = ["bash", str(self._script), *arguments]
        if core is not None:
            command = ["taskset", "-c", str(core), *command]
        done = subprocess.run(command, env=environment, check=False)
        if done.returncode != 0:
            raise KitError(f"engines.sh {' '.join(arguments)} ended with {done.returncode}")

    @contextmanager
    def up(self, target: Target) -> Iterator[int | None]:
        """Start a target and stop it again; gives the core for clients, or None."""
        for name in target.environments:
            link = self._home / name
            if not link.exists():
                link.symlink_to((INSTALLED / name).resolve())
        try:
            self._run("up", *target.up)
            notes = (self._home / "run").glob("*.pid")
            yield spread_cores([int(note.read_text(encoding="utf-8").split()[0]) for note in notes])
        finally:
            self._run("down")

    def record(self, target: Target, folder: Path, options: Sequence[str]) -> None:
        """
        Start a target, record its loads into `folder`, stop it; what ran beside it is noted there.

        Raises:
            KitError: It did not come up, or the recorder failed.
        """
        machine = {"machine": machine_line(), "busy_before_ratio": busy_ratio()}
        with self.up(target) as core:
            words = [sys.executable, "-m", "benchmarks.fidelity_record", target.name, "--out", str(folder), *options]
            self._run("exec", *words, core=core)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MACHINE).write_text(json.dumps({**machine, "busy_after_ratio": busy_ratio()}), encoding="utf-8")


MACHINE = "machine.note"
"""Beside the recordings: what they were made on, and how busy it was before and after."""


def machine_words(folder: Path) -> str:
    """Return what recordings were made on, in a sentence; "" when nobody noted it."""
    path = folder / MACHINE
    if not path.is_file():
        return ""
    said = json.loads(path.read_text(encoding="utf-8"))
    before, after = said["busy_before_ratio"], said["busy_after_ratio"]
    return (
        f"Recorded on {said['machine']}; other work kept the cores {before * 100:.0f} % busy just before the engine "
        f"was started and {after * 100:.0f} % just after it was stopped."
    )


def record_all(kit: Path, targets: Sequence[Target], folder: Path, options: Sequence[str]) -> list[str]:
    """
    Record each target into `folder`/NAME; return what could not be, in words.

    Raises:
        KitError: There is no kit.
    """
    problems = []
    with tempfile.TemporaryDirectory(prefix="fidelity-engines-") as home:
        ours = Kit(kit, Path(home))
        for target in targets:
            problem = ours.missing(target)
            if not problem:
                try:
                    ours.record(target, folder / target.name, options)
                except KitError as error:
                    problem = str(error)
            problems += [f"{target.name}: {problem}"] if problem else []
    return problems
