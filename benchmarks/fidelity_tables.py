"""
The study's tables in Markdown, and what of the aims is met.
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks import fidelity_paper
from benchmarks.fidelity_demo import Recovered
from benchmarks.fidelity_judge import AIMS, Figure, Study, study
from benchmarks.fidelity_kit import machine_words
from benchmarks.fidelity_loads import StudyError, played
from benchmarks.fidelity_targets import LINEAR, ROUNDS, Target

DEMO_AIM = 0.02
PAPER_HEAD = ("held out", "rows fitted", "rows held out", "median error", "p95", "bias")
AIM_NAMES = tuple(AIMS)


def _share(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio * 100:.1f} %"


def _signed(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio * 100:+.1f} %"


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


def paper_tables(data: Path, runs: Sequence[fidelity_paper.RunErrors]) -> list[str]:
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
    for found in runs:
        lines += [f"{found.name}, {found.held_count} requests held out; {fidelity_paper.told(found.fit)}. ", ""]
        per_request = (found.per_request_ttft_ratio, found.per_request_tpot_ratio)
        lines += [
            f"Per request, median error: TTFT {_share(per_request[0])}, TPOT {_share(per_request[1])}.",
            "",
        ]
        rows = [
            [name, f"{predicted:.4g}", f"{actual:.4g}", _signed(predicted / actual - 1)]
            for name, predicted, actual in found.figures
        ]
        lines += _table(("figure, s", "predicted", "recorded", "error"), rows)
    return lines


def vllm_runs(data: Path) -> list[fidelity_paper.RunErrors]:
    """Return the judged recorded vLLM runs below `data`/measured."""
    folders = sorted((data / "measured" / "vllm_runs").iterdir())
    return [fidelity_paper.vllm_run(fidelity_paper.recorded(folder)) for folder in folders]


def demo_table(found: Sequence[Recovered], seconds: int) -> list[str]:
    """Return the table of the demo fleet's coefficients."""
    lines = [
        "## Demo fleet: coefficients learnt against the ones it obeys",
        "",
        f"The default fleet, {seconds} virtual seconds, one look a second, its clocks a quarter of an hour behind.",
        "",
    ]
    rows = []
    for each in found:
        error = None if each.fitted is None else each.fitted / each.true - 1.0
        learnt = "not told" if each.fitted is None else f"{each.fitted:.5g}"
        rows.append(
            [str(each.role), each.name, f"{each.true:.5g}", learnt, "" if error is None else f"{error * 100:+.3f} %"]
        )
    return lines + _table(("worker", "coefficient", "true", "learnt", "error"), rows)


def _numbers(figure: Figure) -> list[str]:
    values = [f"{figure.predicted:.4g}", f"{figure.actual:.4g}"]
    return [figure.name, *values, _signed(figure.error_ratio), _share(figure.floor_ratio)]


def pair_lines(found: Study) -> list[str]:
    """Return one pair's section."""
    law = "" if found.law == LINEAR else f", steps by {found.law}"
    fit = found.fit
    failed = f", {found.failed_count} failed and left out" if found.failed_count else ""
    told = ", ".join(f"{name} {value:.3g}" for name, value in fit.coefficients)
    sentence = (
        f"{found.request_count} requests{failed}. Fit: {told}; {fit.step_count} stretches of steps, which scatter "
        f"{_share(fit.step_scatter_ratio)} (median) about it; all steps took {fit.decode_level_ratio:.2f} times what "
        f"it says, prompts {fit.prefill_level_ratio:.2f} times; {found.overhead_s * 1e3:.0f} ms a request outside "
        "the scheduler."
    )
    lines = [f"### {found.fit_name} -> {found.held_name}{law}", "", sentence, ""]
    lines += [f"Notes of the fit: {'; '.join(fit.notes)}.", ""] if fit.notes else []
    lines += _table(
        ("figure", "predicted", "measured", "error", "same load twice"), [_numbers(each) for each in found.figures]
    )
    floor = (
        "" if found.kv_floor_ratio is None else f"; between two rounds of the same load {_share(found.kv_floor_ratio)}"
    )
    lines += [
        f"KV used over time, mean distance of predicted and measured: {_share(found.kv_gap_ratio)} of a pool{floor}."
    ]
    return [*lines, ""]


def judged(target: Target, folder: Path) -> tuple[list[Study], list[str]]:
    """Return every pair of a target that can be judged, and of the others why not."""
    found, problems = [], []
    for law in target.laws:
        for fit_name, held_name in target.pairs:
            try:
                found.append(study(target, folder / target.name, fit_name, held_name, law))
            except StudyError as error:
                problems.append(f"{fit_name} -> {held_name}: {error}")
    return found, problems


def target_lines(target: Target, folder: Path, found: Sequence[Study], problems: Sequence[str]) -> list[str]:
    """Return one engine's section."""
    lines = [f"## {target.title}: fitted to the telemetry of one load, another predicted", ""]
    names = played(folder / target.name, target.loads)
    if not names:
        return [*lines, "Not recorded on this machine.", ""]
    lines += [f"- {load.name}: {load.words}, {ROUNDS} rounds in turn" for load in target.loads if load.name in names]
    words = machine_words(folder / target.name)
    lines += ["", words, ""] if words else [""]
    for each in found:
        lines += pair_lines(each)
    for problem in problems:
        lines += [f"Not judged: {problem}", ""]
    return lines


def _verdict(figure: Figure) -> str:
    error = _signed(figure.error_ratio)
    floor = "" if figure.floor_ratio is None else f" (floor {_share(figure.floor_ratio)})"
    met = {True: "met", False: "missed", None: "no figure"}[figure.is_met]
    return f"{error}{floor} {met}"


def aims_table(
    studies: Sequence[tuple[Target, Study]], runs: Sequence[fidelity_paper.RunErrors], demo: Sequence[Recovered]
) -> list[str]:
    """Return what of the aims is met, one line a pair of loads and recorded run."""
    aims = ", ".join(f"{name.partition(',')[0]} {aim * 100:.0f} %" for name, aim in AIMS.items())
    lines = ["## The aims", "", f"Held-out load: {aims}. The floor is what two rounds of the same load differ by.", ""]
    rows = []
    for run in runs:
        figures = {f"{name}, s": Figure(f"{name}, s", predicted, actual) for name, predicted, actual in run.figures}
        rows.append([f"recorded vLLM, {run.name}", *(_verdict(figures[name]) for name in AIM_NAMES)])
    for target, each in studies:
        law = "" if each.law == LINEAR else f", by {each.law}"
        what = f"{target.name}, {each.fit_name} -> {each.held_name}{law}"
        rows.append([what, *(_verdict(each.figure(name)) for name in AIM_NAMES)])
    lines += _table(("engine, fit -> held out", *(name.partition(",")[0] for name in AIM_NAMES)), rows)
    known = [abs(each.fitted / each.true - 1.0) for each in demo if each.fitted is not None]
    if known:
        met = "met" if max(known) <= DEMO_AIM and len(known) == len(demo) else "missed"
        told = f"{len(known)} of {len(demo)} are told, the furthest is {max(known) * 100:.2f} % off"
        lines += [f"Demo fleet, coefficients within {DEMO_AIM * 100:.0f} %: {told}: {met}.", ""]
    return lines
