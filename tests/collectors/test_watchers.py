"""Alerts and calibration run from the start of the process, without anybody opening a page."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb

ROOT = Path(__file__).resolve().parent.parent.parent
FIXTURE = ROOT / "examples" / "recordings" / "sglang_2p2d.jsonl.gz"


def test_collecting_alone_keeps_the_chain_of_every_pool(tmp_path: Path) -> None:
    """`kvscope collect` on a recorded fleet under pressure stores saturation events, with no page ever opened."""
    fleet = tmp_path / "fleet.toml"
    demo = subprocess.Popen(
        [sys.executable, "cli.py", "demo", "--recording", str(FIXTURE), "--fleet-file", str(fleet), "--speed", "4"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        end = time.monotonic() + 60
        while not fleet.exists():
            assert time.monotonic() < end, demo.stderr
            assert demo.poll() is None
            time.sleep(0.1)
        collect = subprocess.run(
            [sys.executable, "cli.py", "collect", "--fleet", str(fleet), "--seconds", "20"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
            env=dict(os.environ),
        )
        assert collect.returncode == 0, collect.stderr
    finally:
        demo.send_signal(signal.SIGTERM)
        demo.communicate(timeout=30)
    stores = list(tmp_path.glob("*.duckdb"))
    assert stores
    with duckdb.connect(str(stores[0]), read_only=True) as store:
        kinds = dict(store.execute("select kind, count(*) from events group by kind").fetchall())
    assert any("chain" in kind or "stage" in kind or "saturation" in kind for kind in kinds), kinds
