"""`kvscope calibrate`: a store of known steps is fitted, kept, applied, rolled back; a request log gives quantiles."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cli import main
from collectors.calibration_outputs import outputs_at
from collectors.store import CycleBatch, open_store
from scoring.model import PoolReading, Role
from scoring.service import profile_from_mapping

START_S = 1_900_000_000.0
BASE_S, SEQUENCE_S, TOKEN_S = 0.012, 1e-4, 5e-8
NAME = "m-decode-sglang-1.0"


@pytest.fixture
def store_file(stored: Path, tmp_path: Path) -> Path:
    """Return a store of this test alone."""
    return Path(shutil.copy(stored, tmp_path))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with two minutes of one decode pool that obeys known coefficients."""
    rng = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("stored") / "store.duckdb"
    reading = PoolReading(
        worker_id="d",
        engine="sglang",
        version="1.0",
        model="org/M",
        role=Role.DECODE,
        usable_tokens=1e6,
        block_size_tokens=1.0,
        bytes_per_token=1000.0,
        decode_steps_total=0.0,
        decode_batch_sum_total=0.0,
        decode_step_s_total=0.0,
        decode_batch_squared_total=0.0,
    )
    with open_store(path) as store:
        for second in range(120):
            batch, kv, steps = float(rng.integers(2, 60)), float(rng.integers(5_000, 200_000)), 50.0
            for at_s, is_end in ((START_S + second, False), (START_S + second + 0.9, True)):
                if is_end:
                    step_s = BASE_S + SEQUENCE_S * batch + TOKEN_S * (kv + batch * steps / 2)
                    reading = replace(
                        reading,
                        decode_steps_total=reading.decode_steps_total + steps,
                        decode_batch_sum_total=reading.decode_batch_sum_total + steps * batch,
                        decode_batch_squared_total=reading.decode_batch_squared_total + steps * batch * batch,
                        decode_step_s_total=reading.decode_step_s_total + steps * step_s,
                    )
                held = kv + batch * steps * is_end
                reading = replace(
                    reading, received_at_s=at_s, reported_at_s=at_s, used_tokens=held, arrived_tokens=held
                )
                store.append_cycle(CycleBatch(cycle_at_s=at_s, duration_s=0.01, readings=(reading,)))
    return path


def test_known_coefficients_come_out_of_a_store(store_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON: values, intervals that hold the truth, errors on both sides of the split."""
    assert main(["calibrate", "--store", str(store_file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    coefficients = found["kinds"][NAME]["coefficients"]
    for name, true in (
        ("decode_base_s", BASE_S),
        ("decode_per_sequence_s", SEQUENCE_S),
        ("decode_per_token_s", TOKEN_S),
    ):
        assert coefficients[name]["value"] == pytest.approx(true, rel=0.01), name
    assert {each["is_held_out"] for each in found["kinds"][NAME]["errors"]} == {True, False}
    assert found["kinds"][NAME]["missing"]["prefill"] == 20


def test_versions_and_export(store_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keep twice, apply both, roll back: the first is in use again; the export is a profile."""
    store = ["calibrate", "--store", str(store_file)]
    assert main([*store, "--keep"]) == main([*store, "--keep"]) == 0
    kind = [*store, "--kind", NAME]
    assert main([*kind, "--apply", "1"]) == main([*kind, "--apply", "2"]) == main([*kind, "--roll-back"]) == 0
    assert "back to version 1" in capsys.readouterr().out
    out = tmp_path / "profile.json"
    assert main([*kind, "--export", str(out)]) == 0
    profile = profile_from_mapping(json.loads(out.read_text()))
    assert (profile.name, profile.bytes_per_token) == (NAME, 1000.0)
    assert NAME in capsys.readouterr().out
    assert main([*kind, "--apply", "9"]) == 2
    assert "no version 9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "word"),
    [
        (["--store", "nowhere.duckdb"], 2, "no such file"),
        (["--store", "x", "--apply", "1"], 3, "--kind"),
        (["--store", "x", "--minutes", "0"], 3, "above 0"),
        (["--store", "x", "--into", "y"], 3, "--requests"),
        (["--requests", "nowhere.jsonl"], 2, "no such file"),
    ],
)
def test_wrong_use_is_refused_with_a_sentence(
    arguments: list[str], status: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each refusal has its status and says what is wrong."""
    assert main(["calibrate", *arguments]) == status
    assert word in capsys.readouterr().err


def test_an_empty_store_and_a_request_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No readings: status 1. A log: quantiles by bucket, cells with few requests marked as taken from wider ones."""
    path = tmp_path / "empty.duckdb"
    open_store(path).close()
    assert main(["calibrate", "--store", str(path)]) == 1
    log = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": i * 100, "input_length": 600 if i < 60 else 9000, "output_length": 100 + i, "hash_ids": []}
        for i in range(63)
    ]
    log.write_text(
        "\n".join(json.dumps({**row, "hash_ids": list(range(-(-row["input_length"] // 512)))}) for row in rows)
    )
    capsys.readouterr()
    assert main(["calibrate", "--requests", str(log), "--json"]) == 0
    cells = {(each["class"], each["below_tokens"]): each for each in json.loads(capsys.readouterr().out)["cells"]}
    assert cells["all", 1024.0]["count"] == 60
    assert cells["all", 1024.0]["quantiles"]["0.5"][0] == pytest.approx(129.5)
    assert cells["all", 16384.0]["taken_from"] == "class all, all prompts"
    assert cells["all", 16384.0]["missing"] == 27
    assert main(["calibrate", "--requests", str(log), "--into", str(path)]) == 0
    with open_store(path) as store:
        kept = outputs_at(store, time.time())
    assert kept is not None
    assert (kept.version, kept.request_count, kept.source) == (1, 63, "trace.jsonl")
    assert kept.table.of("all", 600.0).points[0].value == pytest.approx(129.5)
