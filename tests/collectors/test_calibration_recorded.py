"""Calibration on telemetry recorded from a real SGLang 0.5.23 cluster, two prefill and two decode workers."""

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from collectors.engines import ENGINES
from collectors.engines.contract import Answer
from scoring.calibration import Told
from scoring.calibration_error import judged_fit
from scoring.calibration_windows import consecutive_windows, kind_of
from scoring.model import PoolReading, Role

RECORDED = Path(__file__).resolve().parents[1] / "payloads/sglang/0.5.23-real-2p2d/v1_loads_timeseries.jsonl.gz"


@pytest.fixture(scope="module")
def readings() -> dict[str, list[PoolReading]]:
    """Return worker -> its readings in order."""
    found: dict[str, list[PoolReading]] = defaultdict(list)
    with gzip.open(RECORDED, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if not row["url"].endswith("/v1/loads"):
                continue
            body = row["body"] if isinstance(row["body"], str) else json.dumps(row["body"])
            answer = Answer(status=200, content_type="application/json", body=body.encode(), received_at_s=row["t"])
            reading = ENGINES["sglang"].understand({"/v1/loads": answer})
            for pool in getattr(reading, "pools", ()):
                found[row["url"]].append(replace(pool, worker_id=row["url"], received_at_s=row["t"]))
    return dict(found)


def test_every_pair_of_readings_gives_rows_or_a_reason(readings: dict[str, list[PoolReading]]) -> None:
    """Four workers; prefill ones give prompt rows and no decode rows, decode ones the other way; nothing restarts."""
    assert len(readings) == 4
    for series in readings.values():
        found = consecutive_windows(series)
        assert len(found) == len(series) - 1
        assert {each.skipped for each in found} <= {"", "same-figures", "gap"}
        is_prefill = series[-1].role is Role.PREFILL
        assert any(each.prefill for each in found) is is_prefill
        assert any(each.decode for each in found) is not is_prefill


def test_real_decode_workers_are_fitted_with_their_scatter_said(readings: dict[str, list[PoolReading]]) -> None:
    """
    Both decode workers are one kind; the level of their steps is found within the scatter of the machine, what the
    load does not tell keeps the prior, and errors are given on both sides of the split.
    """
    series = [each for each in readings.values() if each[-1].role is Role.DECODE]
    kinds = {kind_of(each[-1]) for each in series}
    assert len(kinds) == 1
    rows = [found.decode for each in series for found in consecutive_windows(each) if found.decode is not None]
    assert len(rows) > 60
    judged = judged_fit(kinds.pop(), rows, [], [])
    fit = judged.fit.decode
    assert fit.is_made
    assert all(each.value is not None and each.value >= 0 for each in fit.coefficients)
    assert fit.median_error_ratio < 1.0
    assert any(each.told is Told.FITTED for each in fit.coefficients)
    assert {each.is_held_out for each in judged.summaries()} == {True, False}
    assert judged.fit.prefill.missing_count > 0
