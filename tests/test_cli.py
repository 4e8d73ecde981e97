"""The kvscope command: wrong use ends with status 3 and says how to use it."""

import pytest

import cli


@pytest.mark.parametrize("argv", [[], ["no-such-command"], ["--no-such-option"]])
def test_wrong_use_ends_with_status_3(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong use is told apart from `not reached` by its status, and the usage line is printed."""
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == cli.EXIT_WRONG_USE
    assert "usage: kvscope" in capsys.readouterr().err
