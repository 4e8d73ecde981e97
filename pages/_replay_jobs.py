"""
Replays of this server's viewers, by viewer; and the files of kept runs beside the store. No Streamlit.
"""

import re
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

from collectors.errors import StoreError
from collectors.store import Store
from collectors.store.batch import RunRecord
from pages._replay_run import Order, Outcome, Work
from simulation.report_rows import request_frame

WORKS_MAX: Final = 8
"""Results kept in memory, the oldest go (chosen: a run of the largest shipped trace holds about 20 MB)."""
RUNNING_MAX: Final = 2
NAME: Final = re.compile(r"[\w][\w .+-]{0,63}")

ABANDONED_S: Final = 30.0
"""A run under way that no page has asked about for so long belongs to nobody: its page was closed or reloaded."""

_works: OrderedDict[str, Work] = OrderedDict()
_asked_at_s: dict[str, float] = {}
_lock = threading.Lock()


class BusyError(Exception):
    """As many replays as this server allows are under way."""


def start(viewer: str, order: Order) -> Work:
    """
    Start a replay for a viewer; one that viewer has under way is cancelled, and so are those nobody looks at.

    Raises:
        BusyError: too many are under way; what the viewer had stays.
    """
    with _lock:
        now_s = time.monotonic()
        running = [name for name, work in _works.items() if name != viewer and work.poll() == "running"]
        for name in running:
            if now_s - _asked_at_s.get(name, now_s) > ABANDONED_S:
                _works.pop(name).cancel()
        if sum(name in _works for name in running) >= RUNNING_MAX:
            raise BusyError(f"{RUNNING_MAX} replays are under way on this server: wait for one to end")
        before = _works.pop(viewer, None)
        if before is not None:
            before.cancel()
        work = Work(order)
        _works[viewer] = work
        _asked_at_s[viewer] = now_s
        while len(_works) > WORKS_MAX:
            _, oldest = _works.popitem(last=False)
            oldest.cancel()
        for name in set(_asked_at_s) - set(_works):
            del _asked_at_s[name]
        return work


def of(viewer: str) -> Work | None:
    """Return a viewer's replay, under way or done."""
    with _lock:
        work = _works.get(viewer)
        if work is not None:
            work.poll()
            _asked_at_s[viewer] = time.monotonic()
        return work


def forget() -> None:
    """Cancel and forget all, for tests and the end of the server."""
    with _lock:
        for work in _works.values():
            work.cancel()
        _works.clear()
        _asked_at_s.clear()


def folder_of(store: Store) -> Path | None:
    """Return the folder of kept runs beside a store's file; None for a store in memory."""
    return None if store.path == ":memory:" else Path(f"{store.path}.runs")


def keep(store: Store, name: str, outcome: Outcome) -> RunRecord:
    """
    Keep a run: its figures in the store, its requests as Parquet beside it.

    Raises:
        StoreError: the name is not usable or taken, or a file cannot be written.
    """
    if NAME.fullmatch(name) is None:
        raise StoreError(
            "a name is 1 to 64 letters, digits, spaces, or one of . + - _, and begins with a letter or digit"
        )
    folder = folder_of(store)
    path = ""
    target: Path | None = None
    if folder is not None:
        target = folder / f"{name}.parquet"
        path = str(target)
    record = RunRecord(
        name=name,
        created_at_s=time.time(),
        summary={"body": outcome.body, "series": outcome.series},
        parquet_path=path,
    )
    store.add_run(record)
    if target is not None:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            request_frame(outcome.comparison, outcome.trace).to_parquet(target, index=False)
        except OSError as error:
            store.delete_run(name)
            raise StoreError(f"cannot write {target}: {error.strerror}") from error
    return record


def drop(store: Store, name: str) -> None:
    """Forget a kept run and its file."""
    store.delete_run(name)
    folder = folder_of(store)
    if folder is not None and NAME.fullmatch(name):
        (folder / f"{name}.parquet").unlink(missing_ok=True)


def merged(runs: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """
    Return several runs' figures side by side: body, series, and what differs between them beside the policy.

    Differences to a baseline are only kept within one run: across runs the requests may not be the same.
    """
    if len(runs) == 1:
        only = next(iter(runs.values()))
        return only["body"], only["series"], []
    first = next(iter(runs.values()))["body"]
    parts = ("traffic", "fleet", "seeds")
    differ = [part for part in parts if any(run["body"][part] != first[part] for run in runs.values())]
    policies: dict[str, Any] = {}
    series: dict[str, Any] = {}
    for name, run in runs.items():
        for variant, found in run["body"]["policies"].items():
            policies[f"{name}: {variant}"] = {**found, "differences": {}}
            series[f"{name}: {variant}"] = run["series"].get(variant, {})
    body = {**first, "policies": policies, "baseline": next(iter(policies))}
    return body, series, differ
