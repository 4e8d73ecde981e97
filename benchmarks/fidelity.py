"""
The fidelity study: how far predictions are from measurements, on paper data and on real engines. One command:

    python -m benchmarks.fidelity --data DATA [--kit DIR | --url URL] [--recordings DIR] [--out docs/fidelity.md]

`--kit` starts each engine of the study by the engine kit, records every load and stops it again (`--only` names some
of them); `--url` records from an SGLang server that runs; with neither, the recordings of last time are judged again.
Without `--out` the tables are printed.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import fidelity_record, fidelity_tables
from benchmarks.fidelity_demo import SECONDS, recovered
from benchmarks.fidelity_kit import KitError, record_all
from benchmarks.fidelity_targets import TARGETS, Target

DEFAULT_RECORDINGS = Path.home() / ".cache" / "kvscope-fidelity"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def page_lines(data: Path, recordings: Path, targets: Sequence[Target], demo_seconds: int) -> list[str]:
    """Return every table; parts whose data are not at hand say so."""
    has_paper = (data / "measured").is_dir()
    runs = fidelity_tables.vllm_runs(data) if has_paper else []
    demo = recovered(demo_seconds) if demo_seconds else []
    judged = [(target, *fidelity_tables.judged(target, recordings)) for target in targets]
    studies = [(target, each) for target, found, _ in judged for each in found]
    lines = fidelity_tables.aims_table(studies, runs, demo)
    lines += fidelity_tables.demo_table(demo, demo_seconds) if demo else []
    lines += fidelity_tables.paper_tables(data, runs) if has_paper else ["No paper data at hand.", ""]
    for target, found, problems in judged:
        lines += fidelity_tables.target_lines(target, recordings, found, problems)
    return lines


def write_between_marks(page: Path, text: str) -> str:
    """Put the tables between a page's marks; return what is wrong with the page, or ""."""
    try:
        old = page.read_text(encoding="utf-8")
    except OSError as error:
        return f"{page}: cannot be read ({error.strerror}); name a page with the marks {BEGIN} and {END}"
    head, begin, rest = old.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        return f"{page}: has not both marks {BEGIN} and {END}; add them where the tables shall go"
    page.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}", encoding="utf-8")
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with measured/")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--kit", type=Path, help="folder of the engine kit")
    source.add_argument("--url", help="a running SGLang server on this machine")
    parser.add_argument("--only", default="", help=f"engines by commas, of {', '.join(TARGETS)}")
    parser.add_argument("--loads", default="", help="record only these loads, by commas")
    parser.add_argument("--share", default="1", help="of each load's seconds, for a trial")
    parser.add_argument("--recordings", type=Path, default=DEFAULT_RECORDINGS)
    parser.add_argument("--demo-seconds", type=int, default=SECONDS, help="virtual seconds of the demo fleet; 0: none")
    parser.add_argument("--out", type=Path, help="a page between whose marks the tables go")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the study; 1 when an engine could not be recorded or the page could not be written."""
    parser = _parser()
    args = parser.parse_args(argv)
    began = time.monotonic()
    names = [name for name in args.only.split(",") if name]
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        parser.error(f"--only: no engine {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    targets = [TARGETS[name] for name in names or TARGETS]
    options = ["--share", args.share, *(["--loads", args.loads] if args.loads else [])]
    problems: list[str] = []
    if args.kit:
        try:
            problems = record_all(args.kit, targets, args.recordings, options)
        except KitError as error:
            parser.error(str(error))
    elif args.url:
        single = next(target for target in TARGETS.values() if len(target.workers) == 1)
        folder = str(args.recordings / single.name)
        fidelity_record.main([single.name, "--out", folder, "--url", args.url, *options])
    lines = page_lines(args.data, args.recordings, targets, args.demo_seconds)
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    lines.append(
        f"Made in {time.monotonic() - began:.0f} s on {os.cpu_count()} cores; load averages at the end {load}."
    )
    text = "\n".join(lines)
    if args.out:
        problem = write_between_marks(args.out, text)
        problems += [problem] if problem else []
    else:
        print(text)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
