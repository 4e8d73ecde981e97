"""
What every test may use: where the shared collection is, and how to skip with a reason when it is not; what runs when.

The suite passes without the shared collection; tests that read its big files skip and say why.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from tests import order

ROOT = Path(__file__).resolve().parent.parent
PAYLOADS = ROOT / "tests" / "payloads"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the long ones begin."""
    order.put_long_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> order.UnitScheduling:
    """Keep together what shares something."""
    return order.UnitScheduling(config, log)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of shared fixtures and data, or skip."""
    folder = Path(os.environ.get("KVSCOPE_SHARED", ROOT.parent / "shared"))
    if not (folder / "fixtures").is_dir():
        pytest.skip(f"no shared collection at {folder} (set KVSCOPE_SHARED)")
    return folder
