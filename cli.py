"""
The `kvscope` command: finds the subcommand, parses, runs, returns an exit status.

Each subcommand is one module of `commands` with four names: `HELP` (one line), `configure(parser)`,
`run(args) -> int`. Modules are imported only when called, so that `kvscope check` starts fast.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from commands import EXIT_WRONG_USE

COMMANDS = (
    "demo",
    "serve",
    "collect",
    "check",
    "geometry",
    "route",
    "calibrate",
    "replay",
    "reuse",
    "backtest",
    "export",
)
"""Subcommands; `commands/<name>.py` is imported when `<name>` is called."""

EXIT_INTERRUPTED = 130
"""What a shell reports for a process ended by Ctrl-C (128 + SIGINT)."""
EXIT_PIPE_CLOSED = 141
"""What a shell reports for a process ended by a closed pipe (128 + SIGPIPE)."""


class _Parser(argparse.ArgumentParser):
    """Ends with status 3 on wrong use, so that 2 can keep meaning `not reached`."""

    def error(self, message: str) -> None:  # type: ignore[override] # argparse says NoReturn; exit() below is.
        self.print_usage(sys.stderr)
        self.exit(EXIT_WRONG_USE, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `kvscope` with `argv` (default: the process's arguments) and return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _Parser(
        prog="kvscope",
        description="KV cache of LLM serving fleets: where it goes, what is near, what fits where.",
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    runners = {}
    for name in COMMANDS:
        if wanted in COMMANDS and name != wanted:
            continue
        try:
            module = importlib.import_module(f"commands.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"commands.{name}":
                raise
            continue
        sub = subparsers.add_parser(name, help=module.HELP, description=module.HELP)
        module.configure(sub)
        runners[name] = module.run
    args = parser.parse_args(arguments)
    try:
        status = int(runners[args.command](args))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of a pipe (`| head`) has gone; the interpreter must not write its farewell there either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    except KeyboardInterrupt:
        print(f"kvscope {args.command}: stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    return status


if __name__ == "__main__":
    raise SystemExit(main())
