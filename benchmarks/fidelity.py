"""
The fidelity study: how far predictions are from measurements, on paper data and on a real engine. One command:

    python -m benchmarks.fidelity --data DATA [--kit DIR | --url URL] [--recordings DIR] [--out docs/fidelity.md]

`--kit` starts the engine kit's SGLang server, records every load and stops it again; `--url` records from a server
that runs; with neither, the recordings of last time are judged again. Without `--out` the tables are printed.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import fidelity_engine, fidelity_paper
from benchmarks.fidelity_record import LOADS, ROUNDS, record

DEFAULT_RECORDINGS = Path.home() / ".cache" / "kvscope-fidelity"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
PORT = "32411"
START_S, STOP_S = 400.0, 60.0


def _share(ratio: float) -> str:
    return f"{ratio * 100:.1f} %"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def _paper_rows(rows: Sequence[fidelity_paper.Row]) -> list[list[str]]:
    return [
        [
            row.what,
            str(row.fit_count),
            str(row.held_count),
            _share(row.median_error_ratio),
            _share(row.p95_error_ratio),
            _share(row.bias_ratio),
        ]
        for row in rows
    ]


PAPER_HEAD = ("held out", "rows fitted", "rows held out", "median error", "p95", "bias")


def paper_tables(data: Path) -> list[str]:
    """Return the tables of paper data; `data` holds `measured/`."""
    measured = data / "measured"
    lines = ["## Splitwise: every second prompt size and every second batch from the third on held out", ""]
    lines += _table(PAPER_HEAD, _paper_rows(fidelity_paper.splitwise(measured / "splitwise_perf_model.csv")))
    lines += ["## AIConfigurator's silicon sample: every second concurrency held out", ""]
    silicon = fidelity_paper.aiconfigurator(measured / "aiconfigurator_silicon_sample.csv")
    lines += _table(PAPER_HEAD, _paper_rows(silicon))
    lines += [
        "## Recorded vLLM runs: fitted to the requests of the first half, all replayed, the second half compared",
        "",
    ]
    for folder in sorted((measured / "vllm_runs").iterdir()):
        found = fidelity_paper.vllm_run(fidelity_paper.recorded(folder))
        lines += [f"{found.name}, {found.held_count} requests held out; {fidelity_paper.told(found.fit)}. ", ""]
        per_request = (found.per_request_ttft_ratio, found.per_request_tpot_ratio)
        lines += [f"Per request, median error: TTFT {_share(per_request[0])}, TPOT {_share(per_request[1])}.", ""]
        rows = [[name, f"{p:.4g}", f"{a:.4g}", f"{(p / a - 1) * 100:+.1f} %"] for name, p, a in found.figures]
        lines += _table(("figure, s", "predicted", "recorded", "error"), rows)
    return lines


def engine_tables(folder: Path) -> list[str]:
    """Return the tables of the recordings in `folder`; a sentence when there are none."""
    if not any(folder.glob("*.json")):
        return ["## Real SGLang", "", "Not recorded on this machine.", ""]
    lines = ["## Real SGLang: fitted to the telemetry of one load, another predicted", ""]
    lines += [f"- {load.name}: {fidelity_engine.load_words(load)}, {ROUNDS} rounds in turn" for load in LOADS]
    lines.append("")
    for fit_name, held_name in fidelity_engine.PAIRS:
        try:
            found = fidelity_engine.study(folder, fit_name, held_name)
        except ValueError as error:
            lines += [f"### {fit_name} -> {held_name}", "", f"{error}", ""]
            continue
        lines += [f"### {fit_name} -> {held_name}", ""]
        levels = (
            f"{found.decode_level_ratio:.2f} times what the fit says, prompts {found.prefill_level_ratio:.2f} times"
        )
        sentence = (
            f"{found.request_count} requests; steps scatter {_share(found.step_scatter_ratio)} (median) about the fit; "
            f"all steps took {levels}; {found.overhead_s * 1e3:.0f} ms a request outside the scheduler."
        )
        lines += [sentence, ""]
        rows = [
            [each.name, f"{each.predicted:.4g}", f"{each.actual:.4g}", f"{each.error_ratio * 100:+.1f} %"]
            for each in found.figures
        ]
        lines += _table(("figure", "predicted", "measured", "error"), rows)
    return lines


def record_kit(kit: Path, folder: Path) -> None:
    """Start the kit's SGLang server, record every load into `folder`, stop the server again."""
    script = str(kit / "engines.sh")
    subprocess.run(["nice", "-n", "2", "bash", script, "up", "sglang", PORT], check=True, timeout=START_S)
    try:
        asyncio.run(record(f"http://127.0.0.1:{PORT}", folder))
    finally:
        _stop_own()


def _stop_own() -> None:
    """Stop the server that was started here and no other: the kit's own `down` stops every engine it knows."""
    home = Path(os.environ.get("ENGINES_DIR", Path.home() / ".cache" / "kvscope-engines"))
    note = home / "run" / f"sglang-{PORT}.pid"
    group = int(note.read_text(encoding="utf-8").split()[0])
    os.killpg(group, signal.SIGTERM)
    end = time.monotonic() + STOP_S
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            note.unlink()
            return
        time.sleep(0.5)
    os.killpg(group, signal.SIGKILL)
    note.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with measured/")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--kit", type=Path, help="folder of the engine kit")
    source.add_argument("--url", help="a running SGLang server on this machine")
    parser.add_argument("--recordings", type=Path, default=DEFAULT_RECORDINGS)
    parser.add_argument("--out", type=Path, help="a page between whose marks the tables go")
    args = parser.parse_args(argv)
    began = time.monotonic()
    if args.kit:
        record_kit(args.kit, args.recordings)
    elif args.url:
        asyncio.run(record(args.url, args.recordings))
    lines = paper_tables(args.data) if (args.data / "measured").is_dir() else ["No paper data at hand.", ""]
    lines += engine_tables(args.recordings)
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    lines.append(
        f"Made in {time.monotonic() - began:.0f} s on {os.cpu_count()} cores; load averages at the end {load}."
    )
    text = "\n".join(lines)
    if not args.out:
        print(text)
        return 0
    page = args.out.read_text(encoding="utf-8")
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        print(f"{args.out}: has not both marks {BEGIN} and {END}", file=sys.stderr)
        return 1
    args.out.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
