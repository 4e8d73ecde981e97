"""
What every test may use: where the shared collection is, and how to skip with a reason when it is not.

The suite passes without the shared collection; tests that read its big files skip and say why.
"""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAYLOADS = ROOT / "tests" / "payloads"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of shared fixtures and data, or skip."""
    folder = Path(os.environ.get("KVSCOPE_SHARED", ROOT.parent / "shared"))
    if not (folder / "fixtures").is_dir():
        pytest.skip(f"no shared collection at {folder} (set KVSCOPE_SHARED)")
    return folder
