"""The subcommands of `kvscope`, one file each (see `cli`), and how they refuse."""

import sys
from typing import Final

EXIT_WRONG_USE: Final = 3
"""What was asked for cannot be done as asked; 1 and 2 mean what each command says."""


def refuse(command: str, text: object, status: int = EXIT_WRONG_USE) -> int:
    """Say on standard error what is wrong, and return the exit status."""
    print(f"kvscope {command}: {text}", file=sys.stderr)
    return status
