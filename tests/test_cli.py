"""The kvscope command: wrong use ends with status 3 and says how to use it."""

import subprocess
import sys
from pathlib import Path

import pytest

import cli


@pytest.mark.parametrize("argv", [[], ["no-such-command"], ["--no-such-option"]])
def test_wrong_use_ends_with_status_3(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong use is told apart from `not reached` by its status, and the usage line is printed."""
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == cli.EXIT_WRONG_USE
    assert "usage: kvscope" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_traceback() -> None:
    """A pipe closed early (`kvscope geometry --list | head -1`) ends the command quietly."""
    command = [sys.executable, str(Path(cli.__file__)), "geometry", "--list"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert errors == b""
    assert process.returncode in (0, cli.EXIT_PIPE_CLOSED)


def test_ctrl_c_is_one_line_and_the_shell_s_status(monkeypatch, capsys) -> None:
    """No traceback, whatever the command was doing."""
    from commands import geometry

    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(geometry, "run", interrupted)
    assert cli.main(["geometry", "x"]) == cli.EXIT_INTERRUPTED
    assert capsys.readouterr().err == "kvscope geometry: stopped\n"
