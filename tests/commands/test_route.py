"""`kvscope route`: the decision on a snapshot file, a store or a running server, with every refusal worded."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import cli
from scoring.policy import POLICIES

ROOT = Path(__file__).resolve().parents[2]
CASE = ROOT / "examples" / "two_node_case.json"
ASK = ["route", "--prompt", "64000", "--output", "2000", "--class", "interactive"]


def answer(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> dict:
    """Run with --json and return the object printed."""
    assert cli.main([*argv, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_two_node_case_as_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    """Lowest utilization sends it to D-A, the joint score to D-B, and the terms add up to the score."""
    joint = answer(capsys, *ASK, "--snapshot", str(CASE))
    assert joint["chosen"] == {"prefill": "P-1", "decode": "D-B"}
    assert joint["runner_up"]["decode"] == "D-A"
    assert joint["score"] == pytest.approx(sum(term["contribution"] for term in joint["terms"].values()))
    assert joint["ranking"][0] == {"prefill": "P-1", "decode": "D-B", "score": joint["score"]}
    assert joint["rejections"] == []
    assert joint["fallback"] is None
    lowest = answer(capsys, *ASK, "--snapshot", str(CASE), "--policy", "lowest-utilization")
    assert lowest["chosen"]["decode"] == "D-A"
    assert set(joint["terms"]) == {
        "prefill_wait", "prefill_compute", "transfer", "decode_wait", "kv_pressure", "slo_risk", "prefix_benefit"
    }  # fmt: skip


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_prints_the_same_object(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the policy, the documented keys are there and the seed repeats the answer."""
    argv = [*ASK, "--snapshot", str(CASE), "--policy", policy, "--seed", "4"]
    status = 1 if policy == "mooncake-min-ttft" else 0  # The prompt alone takes longer than its TTFT budget.
    first, second = answer(capsys, *argv, status=status), answer(capsys, *argv, status=status)
    assert first == second
    assert set(first) >= {"chosen", "score", "terms", "ranking", "rejections", "fallback"}
    assert (first["chosen"] is None) == (status == 1)


def test_a_prefix_hit_lowers_the_score(capsys: pytest.CaptureFixture[str]) -> None:
    """A hit given on the command line reaches the benefit term."""
    cold = answer(capsys, *ASK, "--snapshot", str(CASE))
    warm = answer(capsys, *ASK, "--prefix-hit", "P-1=48000", "--snapshot", str(CASE))
    assert warm["terms"]["prefix_benefit"]["seconds"] == pytest.approx(2.0)
    assert warm["score"] < cold["score"]


def test_too_large_says_so_and_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    """A request no pool can hold is refused with the largest pool, each rejection with both numbers."""
    found = answer(capsys, "route", "--prompt", "900000", "--output", "1", "--snapshot", str(CASE), status=1)
    assert found["chosen"] is None
    assert "more than any pool holds; the largest is D-A with 800,000" in found["fallback"]
    assert found["largest_fit_tokens"] > 100_000
    for rejection in found["rejections"]:
        assert set(rejection) == {"pool", "filter", "reason", "have", "need"}
        assert rejection["have"] < rejection["need"]


def test_text_shows_the_formula_and_the_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """For people: the pair, the runner-up, the numbers put in, why not the others."""
    assert cli.main([*ASK, "--snapshot", str(CASE)]) == 0
    text = capsys.readouterr().out
    assert "chosen     P-1 -> D-B" in text
    assert "runner-up  P-1 -> D-A" in text
    assert "8.39 GB + 0.00 GB ahead" in text
    assert cli.main(["route", "--prompt", "300000", "--output", "10", "--snapshot", str(CASE)]) == 0
    text = capsys.readouterr().out
    assert "D-B  [no-room] no room: needs demand 300,016" in text


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--prompt", "0", "--output", "1"], "prompt_tokens is 0; allowed is 1 to 16777216"),
        (["--prompt", "-5", "--output", "1"], "prompt_tokens is -5; allowed is"),
        (["--prompt", "10", "--output", "99999999"], "output tokens is 99999999.0; allowed is 0 to 4194304"),
        (["--prompt", "10", "--output", "1", "--class", "gold"], "known are batch, interactive, long_context"),
        (["--prompt", "10", "--output", "1", "--policy", "luck"], "known are joint, "),
        (["--prompt", "10", "--output", "1", "--prefix-hit", "P-1"], "'P-1' is not POOL=TOKENS"),
        (
            ["--prompt", "10", "--output", "1", "--prefix-hit", "P-9=5"],
            "has no pool P-9; it has D-A, D-B, P-1",
        ),
        (
            ["--prompt", "10", "--output", "1", "--prefix-hit", "P-1=11"],
            "prefix hit on P-1 is 11; allowed is 0 to 10",
        ),
        (["--prompt", "10", "--output-quantiles", "0.9=1,0.5=2"], "must ascend"),
        (["--prompt", "10", "--output-quantiles", "many"], "'many' is not Q=TOKENS"),
        (["--prompt", "10", "--output", "1", "--top", "0"], "top_count is 0; allowed is 1 to 1000"),
    ],
)
def test_wrong_use_ends_with_3_and_the_range(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Absurd input is refused by name, value and allowed range; nothing is printed to standard output."""
    assert cli.main(["route", *argv, "--snapshot", str(CASE)]) == 3
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.out == ""


def test_a_broken_snapshot_file_is_refused_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not JSON, no pools, a figure that is no number: status 3 with the place; a missing file: status 2."""
    for body, words in (("{", "not JSON"), ('{"pools": [{"pool": "a", "usable": "big"}]}', "pools[0]")):
        file = tmp_path / "fleet.json"
        file.write_text(body)
        assert cli.main([*ASK, "--snapshot", str(file)]) == 3
        assert words in capsys.readouterr().err
    assert cli.main([*ASK, "--snapshot", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


def test_a_hand_written_snapshot_needs_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, capacity and use are enough: what is not known is marked and scored by its fallback."""
    file = tmp_path / "fleet.json"
    file.write_text(
        json.dumps({"pools": [{"pool": name, "usable_tokens": 262144, "used_tokens": used, "waiting": 0}
                              for name, used in (("d0", 120_000), ("d1", 104_000))]})
    )  # fmt: skip
    found = answer(capsys, "route", "--prompt", "4096", "--output", "512", "--snapshot", str(file))
    assert found["chosen"] == {"prefill": "d1", "decode": "d1"}
    assert found["terms"]["prefill_compute"]["is_unknown"]
    assert found["terms"]["prefill_compute"]["seconds"] is None
    assert found["terms"]["prefill_compute"]["scored_s"] > 0.0
    assert found["marks"]["d1"]


class _Server(BaseHTTPRequestHandler):
    """Answers as a running KVScope does, and wants a token."""

    def do_GET(self) -> None:
        """Give the snapshot to who has the token."""
        is_known = self.headers.get("authorization") == "Bearer let-me-in"
        body = CASE.read_bytes() if is_known and self.path.startswith("/api/snapshot") else b"no"
        self.send_response(200 if is_known else 401)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_running_server_is_asked_over_http(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same decision as from the file; a refusal of the token and a closed port end with 2 and say what to do."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        monkeypatch.setenv("KVSCOPE_TOKEN", "let-me-in")
        assert answer(capsys, *ASK, "--server", url) == answer(capsys, *ASK, "--snapshot", str(CASE))
        monkeypatch.setenv("KVSCOPE_TOKEN", "wrong")
        assert cli.main([*ASK, "--server", url]) == 2
        assert "401" in capsys.readouterr().err
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
    assert cli.main([*ASK, "--server", url]) == 2
    assert "--snapshot FILE or --store FILE" in capsys.readouterr().err


def test_a_store_is_read_at_its_end_and_at_an_instant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the collector stored is judged and routed on; a missing store ends with 2."""
    from collectors.store import open_store
    from collectors.store.batch import CycleBatch, PollOutcome
    from scoring.model import PoolReading, Role, SourceState

    path = tmp_path / "fleet.duckdb"
    t0_s = 1_793_404_800.0
    with open_store(path) as store:
        for second in range(4):
            at_s = t0_s + second
            readings = tuple(
                PoolReading(
                    worker_id=name,
                    received_at_s=at_s,
                    role=Role.UNIFIED,
                    engine="sglang",
                    usable_tokens=200_000.0,
                    used_tokens=used + growth * second,
                    running_count=5.0,
                    waiting_count=0.0,
                    waiting_uncached_tokens=0.0,
                )
                for name, used, growth in (("u0", 20_000.0, 40_000.0), ("u1", 100_000.0, 0.0))
            )
            polls = tuple(
                PollOutcome(worker_id=name, started_at_s=at_s, duration_s=0.01, state=SourceState.FRESH)
                for name in ("u0", "u1")
            )
            store.append_cycle(CycleBatch(cycle_at_s=at_s, duration_s=0.01, readings=readings, polls=polls))
    early = answer(capsys, "route", "--prompt", "9000", "--output", "100", "--policy", "lowest-utilization",
                   "--store", str(path), "--at", str(t0_s + 0.5))  # fmt: skip
    late = answer(capsys, "route", "--prompt", "9000", "--output", "100", "--policy", "lowest-utilization",
                  "--store", str(path))  # fmt: skip
    assert early["chosen"]["decode"] == "u0/0"
    assert late["chosen"]["decode"] == "u1/0"
    assert cli.main([*ASK, "--store", str(tmp_path / "none.duckdb")]) == 2
    assert "none.duckdb" in capsys.readouterr().err


def test_a_worker_s_name_stands_for_its_only_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """P-1 and P-1/0 are the same pool whichever of the two a snapshot says; several ranks and repeats are refused."""
    same = [
        answer(capsys, *ASK, "--prefix-hit", f"{name}=48000", "--snapshot", str(CASE))["terms"]
        for name in ("P-1", "P-1/0")
    ]
    assert same[0] == same[1]
    file = tmp_path / "ranks.json"
    pool = {"usable_tokens": 262_144, "used_tokens": 0, "waiting": 0}
    file.write_text(json.dumps({"pools": [{"pool": f"w/{rank}", **pool} for rank in (0, 1)]}))
    for hits, words in ((["w=5"], "several pools; name one of w/0, w/1"), (["w/1=5", "w/1=6"], "given twice")):
        assert cli.main([*ASK, "--prefix-hit", *hits, "--snapshot", str(file)]) == 3
        assert words in capsys.readouterr().err
    assert cli.main([*ASK, "--seed", "-1", "--snapshot", str(file)]) == 3
    assert "--seed is -1; allowed is 0 to" in capsys.readouterr().err


def test_an_old_figure_without_a_state_is_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Age says the state where the file does not: 500 s old is not scored, 5 s old is; a state given wins."""
    file = tmp_path / "aged.json"
    for given, status in (({"age_s": 500}, 1), ({"age_s": 5}, 0), ({}, 0), ({"age_s": 500, "state": "late"}, 0)):
        pool = {"pool": "u0", "usable_tokens": 262_144, "used_tokens": 0, "waiting": 0, **given}
        file.write_text(json.dumps({"pools": [pool]}))
        found = answer(capsys, *ASK, "--snapshot", str(file), status=status)
        assert [each["filter"] for each in found["rejections"]] == (["stale"] if status else [])


@pytest.mark.parametrize("policy", ["lowest-utilization", "round-robin", "dynamo-kv", "joint"])
def test_a_policy_that_cannot_see_room_is_not_left_uncommented(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request larger than any pool: who looks refuses it, who does not is told what it did not see and what fits."""
    file = tmp_path / "small.json"
    pools = [{"pool": f"u{i}", "usable_tokens": 262_144, "used_tokens": 0, "waiting": 0} for i in range(2)]
    file.write_text(json.dumps({"pools": pools}))
    ask = ["route", "--prompt", "500000", "--output", "2000", "--policy", policy, "--snapshot", str(file)]
    found = answer(capsys, *ask, status=1 if policy == "joint" else 0)
    said = " ".join([found["fallback"] or "", *found["notes"]])
    assert "262,144" in said
    assert found["largest_fit_tokens"] == int(found["largest_fit_tokens"]) > 200_000
    if policy != "joint":
        assert f"{policy} does not see: {found['chosen']['decode']} [too-large]" in said
        assert "largest request that fits" in said


def test_a_mistake_in_a_snapshot_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each wrong place once, by its own name."""
    file = tmp_path / "wrong.json"
    file.write_text('{"pools": [{"pool": "a", "usable_tokens": "5", "used_tokens": -1}]}')
    assert cli.main([*ASK, "--snapshot", str(file)]) == 3
    said = capsys.readouterr().err
    assert said.count("pools[0].usable_tokens") == said.count("pools[0].used_tokens") == 1
