"""`kvscope reuse`: one JSON object, unknown stays unknown, wrong input ends with status 3 and a sentence."""

import json
from pathlib import Path

import pytest

import cli

HERE = Path(__file__).resolve().parent.parent / "payloads" / "traces"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Run the command and return status, output and error text."""
    status = cli.main(["reuse", *argv])
    out = capsys.readouterr()
    return status, out.out, out.err


def test_hits_of_a_small_trace(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON carries the three documented figures, and they follow from one another."""
    status, out, _ = run(capsys, str(HERE / "mooncake_head200.jsonl.gz"), "--rule", "infinite", "--json")
    body = json.loads(out)
    assert status == 0
    assert body["hit_ratio"] == pytest.approx(body["prefix_hit_tokens"] / body["total_tokens"])
    assert 0 < body["prefix_hit_tokens"] < body["total_tokens"]


def test_a_trace_without_identities_has_an_unknown_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    """No hash ids: the ratio is null, not 0."""
    status, out, _ = run(capsys, str(HERE / "burstgpt_like.csv"), "--rule", "infinite", "--json")
    assert status == 0
    assert json.loads(out)["hit_ratio"] is None


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((str(HERE / "mooncake_head200.jsonl.gz"), "--rule", "lru"), "--capacity-blocks is missing"),
        ((str(HERE / "mooncake_head200.jsonl.gz"), "--rule", "infinite", "--block-size", "48"), "512"),
        ((str(HERE / "no-such-file.jsonl"), "--rule", "infinite"), "no such file"),
        ((str(HERE / "empty_columns.csv"), "--rule", "infinite"), "Response tokens"),
        ((str(HERE / "mooncake_head200.jsonl.gz"), "--rule", "infinite", "--warmup-ratio", "2"), "between 0 and 1"),
    ],
)
def test_wrong_use_is_told(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], words: str) -> None:
    """Wrong arguments and files end with status 3 and one sentence that names the trouble."""
    status, _, err = run(capsys, *argv)
    assert status == cli.EXIT_WRONG_USE
    assert words in err
    assert err.count("\n") == 1


def test_a_pickle_is_refused_unread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pickle is never loaded, whatever it is called."""
    file = tmp_path / "dump.jsonl"
    file.write_bytes(b"\x80\x04K\x01.")
    status, _, err = run(capsys, str(file), "--rule", "infinite")
    assert status == cli.EXIT_WRONG_USE
    assert "never loaded" in err
