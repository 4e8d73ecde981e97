"""`kvscope replay`: the documented JSON, every wrong input a sentence with its place, files written whole."""

import json
from pathlib import Path

import pandas as pd
import pytest

import cli

HERE = Path(__file__).resolve().parent.parent / "payloads" / "traces"
TRACE = str(HERE / "mooncake_head200.jsonl.gz")
KEYS = (
    *("ttft_s", "tpot_s", "itl_s", "e2e_s", "finished_count", "rejected_count", "retraction_count"),
    *("recomputed_tokens", "prefix_hit_tokens", "link_bytes", "goodput_ratio", "wall_s", "requests_per_s"),
)
FLEET = """
[[workers]]
name = "p"
role = "prefill"
count = 2
usable_tokens = 524288
profile = "qwen3-32b-h100-tp2"
[[workers]]
name = "d"
url = "http://10.0.0.1:30000"
role = "decode"
usable_blocks = 8192
block_size_tokens = 32
reserve_tokens = 512
link_bandwidth_bytes_per_s = "400 Gbit/s"
[slo.interactive]
ttft_budget_s = 4
[replay]
handshake = "after-prefill"
[poll]
interval_s = 1
"""


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Run the command and return status, output and error text."""
    status = cli.main(["replay", *argv])
    out = capsys.readouterr()
    return status, out.out, out.err


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    """Return the path of a fleet file."""
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    return str(path)


def test_the_json_has_the_documented_keys_for_every_policy(capsys, fleet: str) -> None:
    """One object; names as given; four latencies with four statistics; counts that add up; the fleet as described."""
    status, out, _ = run(
        capsys,
        *(TRACE, "--policies", "round-robin,joint,guarded-utilization", "--fleet", fleet),
        *("--profile", "llama-3-70b-h100-tp4", "--seed", "7", "--json"),
    )
    body = json.loads(out)
    assert status == 0
    assert list(body["policies"]) == ["round-robin", "joint", "guarded-utilization"]
    for found in body["policies"].values():
        assert set(KEYS) <= set(found)
        for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
            assert set(found[name]) == {"mean", "p50", "p95", "p99"}
            assert found[name]["p50"] <= found[name]["p95"] <= found[name]["p99"]
        assert found["finished_count"] + found["rejected_count"] == 200
    assert body["seeds"] == [7]
    assert body["traffic"]["request_count"] == 200
    assert body["fleet"]["pools"] == {"prefill": 2, "decode": 1}
    assert body["fleet"]["usable_tokens"] == 2 * 524288 + 8192 * 32
    assert body["fleet"]["handshake"] == "after-prefill"
    assert any("without effect" in note and "poll" in note for note in body["notes"])


def test_the_same_seed_gives_the_same_figures(capsys) -> None:
    """Everything but the wall time repeats to the last digit."""
    bodies = []
    for _ in range(2):
        _, out, _ = run(capsys, TRACE, "--policies", "random,joint", "--fleet", "2p2d", "--seed", "3", "--json")
        body = json.loads(out)
        for found in body["policies"].values():
            del found["wall_s"], found["requests_per_s"]
        bodies.append(body)
    assert bodies[0] == bodies[1]


def test_text_report_html_and_rows_are_written(capsys, tmp_path: Path) -> None:
    """The tables name policies, intervals and drills; the HTML holds its figures; the rows are a row a request."""
    html, rows = tmp_path / "r.html", tmp_path / "r.parquet"
    status, out, _ = run(
        capsys,
        *(TRACE, "--policies", "round-robin,joint", "--fleet", "2p2d", "--limit", "80", "--bounds"),
        *("--drill", "death,at=5,until=10,worker=d0", "--html", str(html), "--requests", str(rows)),
    )
    assert status == 0
    for words in ("round-robin", "joint", "paired bootstrap", "death at 5 s", "oracle", "quantised"):
        assert words in out
    assert len(pd.read_parquet(rows)) == 160
    assert "Plotly.newPlot" in html.read_text()


def test_a_sweep_runs_each_value_and_says_that_more_than_the_policy_differs(capsys) -> None:
    """Two policies and two values are four runs, each with its point."""
    status, out, _ = run(
        capsys,
        *("synthetic:even,rate=4,duration=20,prompt=2000,output=50", "--policies", "round-robin,joint"),
        *("--fleet", "1p1d", "--sweep", "reserve_tokens=0,512", "--jobs", "1", "--json"),
    )
    body = json.loads(out)
    assert status == 0
    assert len(body["policies"]) == 4
    assert body["policies"]["joint reserve_tokens=512"]["point"] == {"name": "reserve_tokens", "value": 512.0}
    assert any("reserve_tokens" in what for what in body["varied"])


def test_traffic_without_prefix_identities_has_unknown_hits(capsys) -> None:
    """BurstGPT names no prefixes: hits are null, never 0."""
    _, out, _ = run(capsys, str(HERE / "burstgpt_like.csv"), "--policies", "random", "--fleet", "1u", "--json")
    body = json.loads(out)
    assert body["policies"]["random"]["prefix_hit_tokens"] is None
    assert body["traffic"]["is_reuse_known"] is False
    assert body["traffic"]["rows"]["skipped"] == 2


def test_a_request_larger_than_every_pool_is_rejected_and_named_with_its_row(capsys) -> None:
    """It counts against goodput, and a note gives the row, its size and the largest pool."""
    _, out, _ = run(
        capsys, TRACE, "--policies", "joint", "--fleet", "1p1d", "--blocks", "200", "--limit", "50", "--json"
    )
    body = json.loads(out)
    found = body["policies"]["joint"]
    assert found["rejected_count"] == found["too_large_count"] > 0
    assert found["finished_count"] + found["rejected_count"] == 50
    assert any("row " in note and "12,800" in note for note in body["notes"])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((TRACE, "--policies", "best"), "not known"),
        ((TRACE, "--policies", "joint,joint"), "twice"),
        ((TRACE, "--policies", ","), "at least one"),
        ((TRACE, "--fleet", "no-such.toml"), "no such fleet file"),
        ((TRACE, "--fleet", "2p0d"), "no decode"),
        ((TRACE, "--fleet", "2p2d", "--block-size", "48"), "48"),
        ((TRACE, "--profile", "gpu9000"), "not known"),
        ((TRACE, "--seeds", "0"), "--seeds"),
        ((TRACE, "--speed", "0"), "speed"),
        ((TRACE, "--from", "1e9"), "no request"),
        ((TRACE, "--prompt", "9-3"), "LOW-HIGH"),
        ((TRACE, "--label", "colour=red"), "colour"),
        ((TRACE, "--slo-class", "gold"), "gold"),
        ((TRACE, "--drill", "death,at=1,worker=zz"), "zz"),
        ((TRACE, "--sweep", "colour=1"), "reserve_tokens"),
        ((TRACE, "--telemetry-age", "2"), "telemetry_period_s"),
        ((TRACE, "--rule", "colour=red"), "handshake"),
        ((TRACE, "--rule", "handshake=never"), "before-prefill"),
        ((str(HERE / "empty_columns.csv"),), "Response tokens"),
        (("/no/such/trace.jsonl",), "no such file"),
        (("synthetic:rate=0",), "rate_per_s"),
        (("synthetic:colour=1",), "colour"),
        ((TRACE, "--requests", "x.txt", "--fleet", "1u", "--limit", "3"), ".parquet"),
        ((TRACE, "--fleet", "1p1d", "--limit", "-1"), "--limit -1"),
    ],
)
def test_wrong_input_is_one_sentence_and_a_status(capsys, argv: tuple[str, ...], words: str) -> None:
    """Nothing is printed to stdout, the sentence names the trouble, no traceback."""
    status, out, err = run(capsys, *argv)
    assert status in (1, 3)
    assert words in err
    assert err.count("\n") == 1
    assert not out


def test_a_file_that_cannot_be_written_costs_no_figures(capsys, tmp_path: Path) -> None:
    """The tables of a long run are printed all the same; the status and one sentence say what failed."""
    status, out, err = run(capsys, TRACE, "--fleet", "1p1d", "--limit", "50", "--html", str(tmp_path / "no" / "r.html"))
    assert status == 1
    assert "r.html" in err
    assert "TTFT" in out


def test_every_problem_of_a_fleet_file_is_told_at_once(capsys, tmp_path: Path) -> None:
    """Unknown keys, tables, roles, rates and links come in one message, each with its place."""
    path = tmp_path / "bad.toml"
    path.write_text(
        '[[workers]]\nrole = "boss"\n[[workers]]\ncolour = 1\nusable_tokens = -5\n[[workers]]\n'
        'link_bandwidth_bytes_per_s = "fast"\n[[links]]\nwidth = 1\n[replay]\nspeed = 2\n[colours]\n'
    )
    status, _, err = run(capsys, TRACE, "--fleet", str(path))
    assert status == cli.EXIT_WRONG_USE
    for words in ("workers[1] role", "workers[2] colour", "usable_tokens", "workers[3] link_b", "links[1] width"):
        assert words in err
    for words in ("[replay] speed", "[colours]"):
        assert words in err


def test_a_snapshot_of_a_live_fleet_is_a_fleet(capsys, tmp_path: Path) -> None:
    """Roles, capacities and block sizes are the snapshot's; pools of unknown capacity are left out and named."""
    path = tmp_path / "fleet.json"
    pools = [
        {"pool": "p0", "role": "prefill", "usable": 500_000, "used": 10, "block_size": 64},
        {"pool": "d0", "role": "decode", "usable": 300_000, "used": 10, "block_size": 64},
        {"pool": "d1", "role": "decode"},
    ]
    path.write_text(json.dumps({"pools": pools}))
    status, out, _ = run(capsys, TRACE, "--policies", "joint", "--fleet", str(path), "--limit", "20", "--json")
    body = json.loads(out)
    assert status == 0
    assert body["fleet"]["pools"] == {"prefill": 1, "decode": 1}
    assert body["fleet"]["usable_tokens"] == 500_000 // 64 * 64 + 300_000 // 64 * 64
    assert any("d1" in note for note in body["notes"])
