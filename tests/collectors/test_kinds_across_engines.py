"""A fault seen at one engine is the same at another: processes that disagree, values that are no numbers, rows."""

import json
from pathlib import Path

import pytest

from commands.check import as_json, check_files

PAYLOADS = Path(__file__).resolve().parent.parent / "payloads"


def checked(tmp_path: Path, body: str | bytes) -> tuple[int, dict]:
    """Return the exit status and the object of `check --file`."""
    path = tmp_path / "answer"
    path.write_bytes(body if isinstance(body, bytes) else body.encode())
    made = check_files([path])
    return made.exit_status, as_json(made)


def by_process(engine: str, values: dict[str, float], order: int = 1) -> str:
    """Return usage and running requests as several processes of one rank export them."""
    usage, label = {"sglang": ("token_usage", "dp_rank"), "vllm": ("kv_cache_usage_perc", "engine")}[engine]
    running = {"sglang": "num_running_reqs", "vllm": "num_requests_running"}[engine]
    lines = [f'{engine}:{usage}{{{label}="0",pid="{pid}"}} {value}' for pid, value in values.items()]
    return "\n".join([*lines[::order], f'{engine}:{running}{{{label}="0"}} 3']) + "\n"


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_processes_that_disagree_leave_an_upper_bound(tmp_path: Path, engine: str, order: int) -> None:
    """P03 at every engine: one live copy is the value, two that differ are none, whatever their order."""
    _, alone = checked(tmp_path, by_process(engine, {"7": 0.0, "8": 0.653, "9": 0.0}, order))
    (pool,) = alone["pools"]
    assert pool["reported_usage_ratio"] == {"value": 0.653, "provenance": "measured",
                                            "reason": "as the engine reports it"}  # fmt: skip
    _, torn = checked(tmp_path, by_process(engine, {"7": 0.91, "8": 0.12, "9": 0.0}, order))
    (pool,) = torn["pools"]
    assert "reported_usage_ratio" not in pool
    assert "reported_usage_ratio" in pool["anomalies"]
    (found,) = [each for each in torn["findings"] if each["code"] == "processes-disagree"]
    assert "2 processes disagree" in found["text"]
    assert "at most 0.91" in found["text"]


@pytest.mark.parametrize("word", ["NaN", "-nan", "+Inf"])
@pytest.mark.parametrize(
    ("series", "name"),
    [
        ('vllm:kv_cache_usage_perc{engine="3"}', "kv_cache_usage_perc"),
        ('sglang:token_usage{dp_rank="3"}', "token_usage"),
        ('trtllm_kv_cache_utilization{rank="3"}', "kv_cache_utilization"),
    ],
)
def test_a_value_that_is_no_number_is_told_for_every_engine(tmp_path: Path, series: str, name: str, word: str) -> None:
    """NaN and infinities are unknown, not 0, and the reader is told which series said so."""
    rest = 'vllm:num_requests_running{engine="3"} 2\n' if "vllm" in series else ""
    rest += 'sglang:num_running_reqs{dp_rank="3"} 2\n' if "sglang" in series else ""
    rest += "trtllm_request_success_total 5\n" if "trtllm" in series else ""
    status, said = checked(tmp_path, f"{series} {word}\n{rest}")
    assert status == 0
    assert all("reported_usage_ratio" not in pool for pool in said["pools"])
    (found,) = [each for each in said["findings"] if each["code"] == "values-unknown"]
    assert name in found["text"]


def test_rows_without_a_rank_are_missing_ranks(tmp_path: Path) -> None:
    """A row that names no rank is left out loudly: one of two ranks is missing; with none left, nothing is read."""
    whole = json.loads((PAYLOADS / "sglang" / "cases" / "P04" / "loads.json").read_bytes())
    for spoilt in ({**whole["loads"][1], "dp_rank": -1}, None, [], "rank"):
        status, said = checked(tmp_path, json.dumps({**whole, "loads": [whole["loads"][0], spoilt]}))
        codes = {each["code"] for each in said["findings"]}
        assert status == 0
        assert [pool["dp_rank"] for pool in said["pools"]] == [0]
        assert {"rows-rejected", "ranks-missing"} <= codes
    torn = [{**whole["loads"][0], "num_used_tokens": used} for used in (1, 2)]
    for rows, code in (([None, None], "not-understood"), (torn, "no-rank"), ([*torn, None], "no-rank")):
        status, said = checked(tmp_path, json.dumps({**whole, "loads": rows}))
        assert (status, said["state"], said["pools"]) == (1, "not_understood", [])
        assert said["findings"][0]["code"] == code
