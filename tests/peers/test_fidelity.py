"""
The fidelity study as a test: paper data within stated bounds, and each real engine of it recorded and predicted.

Two loads of each engine are played for as long as the study plays them, one round. Bounds on real engines are wide: a
shared machine stretches single steps severalfold; what a quiet one gives is in docs/fidelity.md. Run by
`make test-peers`.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import fidelity_paper
from benchmarks.fidelity_judge import Study, study
from benchmarks.fidelity_loads import read
from benchmarks.fidelity_targets import LINEAR, PORT, TARGETS, UTILIZATION
from tests.peers.kit import Kit, finished

pytestmark = pytest.mark.peer

LIMIT_S = 1500.0
BOUND_RATIO = 2.0
"""Mean TPOT predicted over measured, either way."""


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


def _recorded(kit: Kit, name: str, loads: tuple[str, str], folder: Path) -> None:
    """Start an engine, play two of its loads from where it is, stop it."""
    target = TARGETS[name]
    kit.need(*target.environments, is_namespaced=name != "sglang")
    kit.up(*target.up)
    try:
        words = ["-m", "benchmarks.fidelity_record", name, "--out", str(folder), "--loads", ",".join(loads)]
        finished(kit.inside(sys.executable, *words, "--rounds", "1"), LIMIT_S)
    finally:
        kit.down()


def _held(found: Study) -> None:
    assert found.failed_count == 0
    assert found.request_count > 50
    tpot = found.figure("TPOT mean, s")
    assert 1.0 / BOUND_RATIO < tpot.predicted / tpot.actual < BOUND_RATIO, tpot
    assert found.figure("TTFT p50, s").predicted > 0
    assert 0 < found.figure("KV used, peak share of a pool").actual <= 1.0


@pytest.mark.parametrize(
    ("name", "loads", "law"),
    [
        ("sglang", ("busy", "light"), LINEAR),
        ("sglang-2p2d", ("mixed", "short"), LINEAR),
        ("dynamo-mocker", ("steady", "calm"), UTILIZATION),
    ],
)
def test_a_real_engine_is_recorded_and_predicted(
    kit: Kit, tmp_path: Path, name: str, loads: tuple[str, str], law: str
) -> None:
    """Every request answered and every worker heard; fitted on one load, the other's mean TPOT within a factor of 2."""
    _recorded(kit, name, loads, tmp_path)
    target = TARGETS[name]
    for load in loads:
        recording = read(tmp_path / f"{load}.0.json")
        assert {each.worker_id for each in recording.readings} == set(target.workers)
        assert all(each.error == "" for each in recording.requests)
    assert name != "sglang" or target.url.endswith(str(PORT))
    _held(study(target, tmp_path, *loads, law))
