"""What `pytest -n` keeps together and begins with (see order.py)."""

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests import order

ROOT = Path(__file__).resolve().parent.parent
TELLING = """
import os
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(4))
def test_it(number):
    with Path("seen.txt").open("a") as seen:
        seen.write(f"{__file__} {os.getpid()}\\n")
"""


def test_what_is_named_exists() -> None:
    """A unit that was renamed or taken away loses its place here, not silently its turn."""
    assert [name for name in order.FIRST if not (ROOT / name).exists()] == []


def test_two_processes_share_the_units_and_split_none(tmp_path: Path) -> None:
    """Every file runs whole in one process, browser files all in the same, and both processes have work."""
    names = ["tests/browser/test_a.py", "tests/browser/test_b.py", *(f"tests/test_{name}.py" for name in "cdef")]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(TELLING)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import pytest_collection_modifyitems, pytest_xdist_make_scheduler\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:hypothesispytest", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [*command, str(tmp_path)],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "24 passed" in done.stdout, done.stdout + done.stderr
    processes = defaultdict(set)
    for line in (tmp_path / "seen.txt").read_text().splitlines():
        path, process = line.split()
        unit = order.unit_of(str(Path(path).relative_to(tmp_path)))
        processes[unit].add(process)
    assert set(processes) == {order.BROWSER, *names[2:]}
    assert all(len(found) == 1 for found in processes.values()), processes
    assert len(set.union(*processes.values())) == 2
