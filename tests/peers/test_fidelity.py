"""
The fidelity study as a test: paper data within stated bounds, and a real SGLang server recorded and predicted.

`KVSCOPE_FIDELITY_URL` names a running SGLang server on this machine (`engines.sh up sglang PORT`); without it the
engine part skips. Bounds on the engine are wide: a shared machine stretches single steps severalfold.
"""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import fidelity_engine, fidelity_paper
from benchmarks.fidelity import BEGIN, END, main
from benchmarks.fidelity_record import LOADS, Load, Seen, planned, read, record, save
from scoring.model import PoolReading, Role

pytestmark = pytest.mark.peer


@pytest.fixture
def measured(shared: Path) -> Path:
    """Return the folder of measurements."""
    return shared / "data" / "measured"


def test_splitwise_token_times_are_predicted(measured: Path) -> None:
    """Held-out sizes and batches: the median error of token time is below 5 % on every machine and split."""
    rows = [row for row in fidelity_paper.splitwise(measured / "splitwise_perf_model.csv") if "token time" in row.what]
    assert len(rows) == 12
    assert max(row.median_error_ratio for row in rows) < 0.05


def test_silicon_tpot_is_predicted(measured: Path) -> None:
    """Held-out concurrencies: TPOT within 10 % (median) for most groups of the silicon sample."""
    rows = fidelity_paper.aiconfigurator(measured / "aiconfigurator_silicon_sample.csv")
    tpot = np.array([row.median_error_ratio for row in rows if row.what.startswith("TPOT")])
    assert len(tpot) >= 8
    assert np.median(tpot) < 0.10


@pytest.mark.parametrize(("name", "bound"), [("RTXPRO6000_Qwen3-32B", 0.05), ("RTX4090_Llama-3.1-8B", 0.20)])
def test_recorded_runs_are_replayed(measured: Path, name: str, bound: float) -> None:
    """TTFT and TPOT of the held-out half, mean and p99; the second run lives at 100 % KV, which tells no KV term."""
    found = fidelity_paper.vllm_run(fidelity_paper.recorded(measured / "vllm_runs" / name))
    errors = {what: abs(predicted / actual - 1) for what, predicted, actual in found.figures}
    assert found.held_count == 150
    assert max(errors[what] for what in ("TTFT mean", "TTFT p99", "TPOT mean")) < bound


def test_a_recording_reads_back_as_it_was(tmp_path: Path) -> None:
    """Requests and readings survive the file, unknown stays unknown; the same load plans the same requests."""
    load = Load("x", 5.0, (10, 20), (5, 9), 4.0, shared_tokens=8)
    seen = [Seen(0.1, 10, 5, 0.2, 1.0), Seen(0.2, 12, 5, None, None, "TimeoutError")]
    readings = [PoolReading(worker_id="w", role=Role.UNIFIED, engine="sglang", received_at_s=1.0, used_tokens=3.0)]
    save(tmp_path / "x.0.json", load, seen, readings)
    assert read(tmp_path / "x.0.json") == (load, seen, readings)
    assert planned(load) == planned(load)
    assert planned(load) != planned(replace(load, seed=2))


def test_the_tables_go_between_the_marks(tmp_path: Path) -> None:
    """What a person wrote around them stays; a page without marks is refused."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    arguments = ["--data", str(tmp_path), "--recordings", str(tmp_path), "--out", str(page)]
    assert main(arguments) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    page.write_text("no marks")
    assert main(arguments) == 1


def test_a_real_server_is_recorded_and_predicted(tmp_path: Path) -> None:
    """Two loads of a real server: every request answered, a fit made, mean TPOT of the other within a factor of 2."""
    url = os.environ.get("KVSCOPE_FIDELITY_URL")
    if not url:
        pytest.skip("KVSCOPE_FIDELITY_URL names no running SGLang server")
    loads = [each for each in LOADS if each.name in ("busy", "light")]
    asyncio.run(record(url, tmp_path, loads, rounds=2))
    found = fidelity_engine.study(tmp_path, "busy", "light")
    assert found.request_count > 20
    tpot = next(each for each in found.figures if each.name.startswith("TPOT mean"))
    assert 0.5 < tpot.predicted / tpot.actual < 2.0
