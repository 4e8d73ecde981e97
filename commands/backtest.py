"""`kvscope backtest`: the saturation alarm against the lines people draw, on simulated runs and on recordings."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from commands import refuse
from commands.backtest_plot import svg
from commands.backtest_runs import FAMILIES, recorded, runs_of, simulate
from commands.backtest_score import (
    ON_GRID,
    OURS,
    Score,
    Track,
    all_scores,
    fit_forecast,
    foretold_levels,
    is_train,
    tracks_of,
    tune,
    with_forecast,
    with_threshold,
)
from demo.recording import RecordingError
from scoring.alarm import AlarmSettings
from scoring.alarm_forecast import FORECAST, Forecast
from scoring.alarm_threshold import LEAD_S, WINDOW_S, level_of_promise
from scoring.calibration_reserve import PROMISES

HELP = "Judge the saturation alarm against fixed lines, on simulated runs and recordings."
EXIT_FAILED: Final = 1
MOST_SEEDS: Final = 5000


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="simulated runs, over all families (200)")
    parser.add_argument("--seconds", type=float, default=150.0, metavar="S", help="length of each run (150)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--fit", action="store_true", help="fit the forecast and its threshold on the training seeds")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the picture of the held-out runs as SVG")
    parser.add_argument(
        "--recording", type=Path, action="append", default=[], metavar="FILE", help="judge a recording too; repeatable"
    )


def run(args: argparse.Namespace) -> int:
    """Judge and print; return the exit status."""
    if not 0 <= args.seeds <= MOST_SEEDS or not 20 <= args.seconds <= 3600 or not 1 <= args.jobs <= 64:
        return refuse("backtest", f"--seeds from 0 to {MOST_SEEDS}, --seconds from 20 to 3600, --jobs from 1 to 64")
    if not args.seeds and not args.recording:
        return refuse("backtest", "nothing to judge: take --seeds above 0, or a --recording")
    if args.fit and args.seeds < 20:
        return refuse("backtest", "--fit needs at least 20 seeds")
    if args.plot is not None and not args.plot.absolute().parent.is_dir():
        return refuse("backtest", f"--plot {args.plot}: there is no folder {args.plot.parent}")
    try:
        recordings = {path.name: tracks_of(recorded(path)) for path in args.recording}
    except RecordingError as error:
        print(f"kvscope backtest: {error}", file=sys.stderr)
        return EXIT_FAILED
    tracks = _simulated(args.seeds, args.seconds, args.jobs)
    settings, forecast = AlarmSettings(), None
    if args.fit:
        try:
            forecast = fit_forecast(train_of(tracks), f"kvscope backtest --fit --seeds {args.seeds}")
        except ValueError as error:
            print(f"kvscope backtest: {error}", file=sys.stderr)
            return EXIT_FAILED
        tracks = with_forecast(tracks, forecast)
        recordings = {name: with_forecast(found, forecast) for name, found in recordings.items()}
        settings = tune(train_of(tracks), settings)
    result = report(tracks, settings, recordings, forecast)
    print(json.dumps(result, indent=2) if args.json else text_of(result))
    if args.plot is not None:
        try:
            args.plot.write_text(svg(all_scores(held_out(tracks), settings)), encoding="utf-8")
        except OSError as error:
            return refuse("backtest", f"cannot write {args.plot}: {error.strerror}", EXIT_FAILED)
    return 0


def _one(job: tuple[str, int, float]) -> list[Track]:
    family, seed, seconds = job
    return tracks_of(simulate(family, seed, seconds))


def _simulated(seed_count: int, seconds: float, jobs: int) -> list[Track]:
    wanted = [(family, seed, seconds) for family, seed in runs_of(seed_count)]
    if jobs == 1:
        return [track for job in wanted for track in _one(job)]
    with ProcessPoolExecutor(jobs) as pool:
        return [track for tracks in pool.map(_one, wanted, chunksize=2) for track in tracks]


def train_of(tracks: Iterable[Track]) -> list[Track]:
    """Return the tracks that may be tuned on."""
    return [track for track in tracks if track.seed is not None and is_train(track.seed)]


def held_out(tracks: Iterable[Track]) -> list[Track]:
    """Return the tracks that judge."""
    return [track for track in tracks if track.seed is not None and not is_train(track.seed)]


def report(
    tracks: Sequence[Track],
    settings: AlarmSettings,
    recordings: Mapping[str, Sequence[Track]],
    forecast: Forecast | None = None,
) -> dict[str, Any]:
    """Return everything the command says, as JSON-able words and numbers."""
    used = forecast or FORECAST
    groups: dict[str, list[Track]] = {}
    if tracks:
        groups = {"training seeds": train_of(tracks), "held-out seeds": held_out(tracks)}
        groups |= {f"held-out, {name}": [t for t in held_out(tracks) if t.run == name] for name in FAMILIES}
    groups |= {f"recording {name}": list(found) for name, found in recordings.items()}
    return {
        "seeds": len({track.seed for track in tracks}),
        "window_s": WINDOW_S,
        "threshold": settings.on_probability,
        "forecast": asdict(used),
        "foretold": [round(level, 3) for level in foretold_levels(train_of(tracks), settings)],
        "groups": {
            name: {alarm: as_row(score) for alarm, score in all_scores(found, settings).items()}
            for name, found in groups.items()
        },
        "thresholds": [
            {
                "on_probability": on,
                **as_row(all_scores(held_out(tracks), with_threshold(settings, on), lines=False)[OURS]),
            }
            for on in (ON_GRID if tracks else ())
        ],
    }


def as_row(score: Score) -> dict[str, Any]:
    """Return one score as numbers."""
    return {
        "events": score.event_count,
        "precision": score.precision,
        "recall": score.recall,
        "recall_in_time": score.recall_in_time,
        "median_lead_s": score.median_lead_s,
        "false_per_hour": score.false_per_hour,
        "true": score.true_count,
        "false": score.false_count,
        "pool_hours": round(score.hours, 3),
    }


def text_of(result: Mapping[str, Any]) -> str:
    """Return the report as Markdown tables."""
    early = f"recall, lead >= {LEAD_S:.0f} s"
    head = f"| alarm | events | precision | recall | {early} | median lead | false alarms / pool-hour |"
    rule = "|---|---|---|---|---|---|---|"
    lines = [
        (
            f"{result['seeds']} simulated runs; an alarm has {result['window_s']:.0f} s to come true; "
            f"threshold {result['threshold']:g}, forecast: {result['forecast']['source']}."
        )
    ]
    if result["foretold"]:
        levels = result["foretold"]
        told = "; ".join(f"{promise:.0%} at {level_of_promise(levels, promise):.3g}" for promise in PROMISES)
        lines += ["", f"{len(levels)} first retractions of the training seeds, told of {LEAD_S:.0f} s before: {told}."]
    for group, scores in result["groups"].items():
        lines += ["", f"**{group}**", "", head, rule]
        lines += [f"| {name} | {_cells(row)} |" for name, row in scores.items()]
    if result["thresholds"]:
        lines += ["", "**our alarm by threshold, held-out seeds**", "", head.replace("alarm |", "threshold |", 1), rule]
        lines += [f"| {row['on_probability']:g} | {_cells(row)} |" for row in result["thresholds"]]
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> str:
    def share(name: str) -> str:
        return "-" if row[name] is None else f"{row[name]:.2f}"

    lead = "-" if row["median_lead_s"] is None else f"{row['median_lead_s']:.1f} s"
    cells = (str(row["events"]), share("precision"), share("recall"), share("recall_in_time"), lead)
    return " | ".join((*cells, share("false_per_hour")))
