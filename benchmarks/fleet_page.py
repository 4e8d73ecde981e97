"""
Server time of the Fleet page with 64 pools and 24 h of one-second samples in the store.

Runs the page script in this process (Streamlit's AppTest), over a collector whose memory is filled from that store:
a tick that makes everything anew, a second viewer of the same tick, and the same page at a past instant, which is
judged from DuckDB. Times include Streamlit's own work. `run()` gives rows for `python -m benchmarks`.
"""

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest

from benchmarks.store import BEGIN_S, DAY_S, FLEET_POOL_COUNT, fill_day
from collectors import runtime as collector
from collectors.settings import Settings
from collectors.store import Store, open_store
from pages import _context as context
from scoring.model import FleetSnapshot, PoolHistory
from scoring.snapshot import judge_fleet

Row = tuple[str, float, str]

ROOT = Path(__file__).resolve().parents[1]
RUNS = 9
END_S = float(BEGIN_S + DAY_S)


FLEET = "pages/fleet.py"


class _Filled:
    """Stands where the running collector stands, its memory filled from the store; a tick judges anew."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.settings = Settings()
        self._histories = store.latest_histories(END_S, self.settings.view.history_s)
        self.tick()

    def tick(self) -> None:
        """Judge the newest minute again, as each cycle does."""
        self._fleet = judge_fleet(self._histories, END_S)

    def snapshot(self, at_s: float | None = None) -> FleetSnapshot:
        """Return the fleet of this tick, or of a past instant out of the store."""
        return self._fleet if at_s is None else judge_fleet(self.store.latest_histories(at_s, 60.0), at_s)

    snapshot_at = snapshot

    def histories(self) -> list[PoolHistory]:
        """Return what is in memory."""
        return self._histories

    def on_cycle(self, _: Callable[[FleetSnapshot], None]) -> Callable[[], None]:
        """Take a listener that is never called: the chain and the alerts stand still here."""
        return lambda: None

    def sources(self) -> tuple[Any, ...]:
        """Return none; the page then names no silent worker."""
        return ()


@contextmanager
def _watched(running: _Filled) -> Iterator[None]:
    found = collector.get_runtime
    collector.get_runtime = lambda: running  # type: ignore[assignment,return-value] # a stand-in, for this run only
    try:
        yield
    finally:
        collector.get_runtime = found


def _medians(
    name: str, work: Callable[[], object], before: Callable[[], object] = lambda: None, runs: int = RUNS
) -> list[Row]:
    """Return wall and CPU milliseconds; the second says what it costs when others use the cores."""
    wall, cpu = [], []
    for _ in range(runs):
        before()
        began, used = time.perf_counter(), time.process_time()
        work()
        wall.append((time.perf_counter() - began) * 1e3)
        cpu.append((time.process_time() - used) * 1e3)
    return [(name, statistics.median(wall), "ms"), (f"{name}, CPU", statistics.median(cpu), "ms")]


def run() -> list[Row]:
    """Fill the store, open the page once, then time it."""
    logging.getLogger("streamlit").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="kvscope-bench-") as folder:
        path = Path(folder) / "store.duckdb"
        fill_day(path)
        store = open_store(path)
        try:
            running = _Filled(store)
            with _watched(running):
                return _times(running)
        finally:
            store.close()


def _times(running: _Filled) -> list[Row]:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60).run().switch_page(FLEET).run()
    if app.exception:
        raise RuntimeError(f"the Fleet page failed: {app.exception[0].message}")

    def tick() -> None:
        running.tick()
        context.forget_shared()

    rows = _medians("fleet page, new tick, judged and drawn", lambda: (tick(), app.run()))
    rows += _medians("fleet page, new tick, drawn", app.run, tick)
    rows += _medians("fleet page, another viewer of the tick", app.run)
    past = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60).switch_page(FLEET)
    instants = iter(range(RUNS))

    def back() -> None:
        past.query_params["at"] = str(END_S - 3600.0 * (1 + next(instants)))

    rows += _medians("fleet page, past instant out of DuckDB", past.run, back)
    if past.exception:
        raise RuntimeError(f"the past failed: {past.exception[0].message}")
    rows.append(("pools", float(FLEET_POOL_COUNT), ""))
    return rows


if __name__ == "__main__":
    for name, value, unit in run():
        print(f"{name:45} {value:10.1f} {unit}")
