"""
Which tests run in one process, and which run first: what `pytest -n` does with the suite.

A file is one unit, so that what its tests share (a demo on the air, a compiled kernel) is made once, and so are all
browser tests: one server and one Chromium for them. pytest-xdist's own groups are named in the ids of tests, which
pytest no longer lets it change. Long units begin first: the last one to begin decides when the suite ends.
"""

from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

BROWSER: Final = "tests/browser"
FIRST: Final = (
    BROWSER,
    "tests/simulation/test_speed.py",
    "tests/simulation/test_reuse.py",
    "tests/simulation/test_trace.py",
    "tests/collectors/test_alerts_walk.py",
    "tests/collectors/test_calibration_demo.py",
    "tests/collectors/test_watchers.py",
    "tests/collectors/test_runtime.py",
    "tests/demo/test_recorded_judged.py",
    "tests/pages/test_replay_page.py",
)
"""Units that take longest, in this order; `pytest --durations` tells when it is out of date."""


def unit_of(test_id: str) -> str:
    """Return the unit a test belongs to: its file, or all browser tests."""
    path = test_id.partition("::")[0]
    return BROWSER if path.startswith(f"{BROWSER}/") else path


def rank(test_id: str) -> int:
    """Return the place of a test's unit in FIRST; all others come after those, in the order they are found."""
    unit = unit_of(test_id)
    return FIRST.index(unit) if unit in FIRST else len(FIRST)


def put_long_first(items: list[pytest.Item]) -> None:
    """Sort collected tests by `rank`; what is equal keeps its order."""
    items.sort(key=lambda item: rank(item.nodeid))


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc] # pytest-xdist ships no types.
    """Give out whole units in the order they were collected in, each to whichever process is free."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        # Else the unit with most tests would begin, not the one that takes longest.
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
