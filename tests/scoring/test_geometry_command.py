"""`kvscope geometry` as a user calls it."""

import json
from pathlib import Path

import pytest

import cli

CONFIGS = Path(__file__).resolve().parent.parent / "payloads" / "models" / "hf_configs"
LLAMA = str(CONFIGS / "meta-llama--Meta-Llama-3.1-8B_config.json")


def call(capsys, *arguments):
    """Return exit status, what was printed and what was complained."""
    try:
        status = cli.main(["geometry", *arguments])
    except SystemExit as ending:
        status = ending.code
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_the_documented_call_prints_the_documented_keys(capsys):
    """`config.json --kv-dtype bf16 --tp 1 --json` prints the five keys; `--gib --block-size` adds whole blocks."""
    status, out, _ = call(capsys, LLAMA, "--kv-dtype", "bf16", "--tp", "1", "--json")
    figures = json.loads(out)
    assert status == 0
    assert figures["bytes_per_token"] == figures["bytes_per_token_per_gpu"] == 131_072
    assert (figures["state_bytes_per_sequence"], figures["window_layers"]) == (0, 0)
    assert "32 layers" in figures["explanation"]
    assert "capacity_tokens" not in figures
    status, out, _ = call(capsys, LLAMA, "--json", "--gib", "34.5", "--block-size", "16")
    assert json.loads(out)["capacity_tokens"] == int(34.5 * 2**30 / 131_072) // 16 * 16


def test_a_model_name_and_a_folder_do_as_well_as_a_file(capsys, tmp_path):
    """The table by name, a folder with a config.json and the file itself give the same figures."""
    (tmp_path / "config.json").write_text(Path(LLAMA).read_text())
    answers = [
        json.loads(call(capsys, place, "--json")[1]) for place in (LLAMA, str(tmp_path), "Llama-3.1-8B-Instruct")
    ]
    assert answers[0] == answers[1] == answers[2]


def test_the_plain_text_carries_the_same_figures(capsys):
    """Without --json the figures are lines with separators, followed by the explanation."""
    status, out, _ = call(
        capsys, "qwen3-32b", "--tp", "2", "--gib", "34.49", "--block-size", "128", "--context", "1000"
    )
    assert status == 0
    assert "282,496" in out
    assert "262,144,000" in out
    assert "64 layers" in out


def test_the_list_names_every_model(capsys):
    """--list prints each name of the table, and each of them works."""
    names = call(capsys, "--list")[1].split()
    assert len(names) > 40
    assert call(capsys, names[-1])[0] == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "an object with keys"),
        ("null", "an object with keys"),
        ("{", "not JSON"),
        ("", "not JSON"),
        ("{" * 5 + '"a":' * 3, "not JSON"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("{}", "num_hidden_layers"),
        ('{"num_hidden_layers": 32}', "num_attention_heads"),
        ('{"num_hidden_layers": 32, "num_attention_heads": 0}', "num_attention_heads"),
        ('{"num_hidden_layers": -1, "num_attention_heads": 8}', "num_hidden_layers"),
        ('{"num_hidden_layers": 32, "num_attention_heads": 7, "hidden_size": 512}', "not divisible by 7 heads"),
        ('{"num_hidden_layers": 1e99, "num_attention_heads": 8}', "out of range"),
        ('{"num_hidden_layers": Infinity, "num_attention_heads": 8}', "num_hidden_layers"),
    ],
)
def test_a_bad_config_ends_with_status_3_and_says_why(capsys, tmp_path, text, words):
    """Whatever is wrong with a file is one line on standard error that names it; nothing is printed; status 3."""
    path = tmp_path / "config.json"
    path.write_text(text)
    status, out, err = call(capsys, str(path))
    assert (status, out) == (3, "")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("no-such-model",),
        ("missing.json",),
        (LLAMA, "--tp", "0"),
        (LLAMA, "--tp", "3"),
        (LLAMA, "--tp", "two"),
        (LLAMA, "--kv-dtype", "fp7"),
        (LLAMA, "--gib", "-1"),
        (LLAMA, "--gib", "nan"),
        (LLAMA, "--gib", "1e300"),
        (LLAMA, "--gib", "inf"),
        (LLAMA, "--gib", "1", "--block-size", "0"),
        (LLAMA, "--block-size", "0"),
        (LLAMA, "--gib", "1", "--sequences", "-1"),
        (LLAMA, "--context", "-1"),
        (LLAMA, "--dcp", "2"),
    ],
)
def test_bad_arguments_end_with_status_3(capsys, arguments):
    """Wrong use is status 3 with a reason, never a traceback."""
    status, out, err = call(capsys, *arguments)
    assert (status, out) == (3, "")
    assert err


def test_bytes_that_are_no_text_are_refused(capsys, tmp_path):
    """A binary file is not JSON."""
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00\x80" * 100)
    assert call(capsys, str(path))[0] == 3
