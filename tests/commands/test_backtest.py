"""The backtest: how alarms are judged, that runs can be repeated, and that the command says what it was asked."""

import argparse
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from commands import backtest
from commands.backtest_plot import svg
from commands.backtest_runs import FAMILIES, runs_of, scenario_of, simulate
from commands.backtest_score import (
    LINES,
    OURS,
    Score,
    Track,
    all_scores,
    episodes,
    fit_forecast,
    is_train,
    line_episodes,
    our_score,
    score,
    tune,
    with_forecast,
)
from scoring.alarm import AlarmSettings, PoolRisk
from scoring.alarm_forecast import FEATURES

SETTINGS = AlarmSettings()
RECORDING = Path(__file__).resolve().parents[2] / "examples" / "recordings" / "sglang_2p2d.jsonl.gz"


def track(probability: list[float], event_at_s: float | None, *, seed: int = 5, used: float = 0.5) -> Track:
    """Return a track of one look a second with these forecasts."""
    size = len(probability)
    return Track(
        run="wave",
        seed=seed,
        pool="d/0",
        at_s=np.arange(size, dtype=float),
        used_ratio=np.full(size, used),
        committed_ratio=np.full(size, used),
        inputs=np.tile(np.array([3.0, used, 0.1, 0.9, 0.3, 3.0]), (size, 1)),
        risks=tuple(PoolRisk(retraction_probability=value) for value in probability),
        event_at_s=event_at_s,
    )


def test_lead_is_from_the_begin_of_the_alarm_that_stands_at_the_event() -> None:
    """On from second 12 (after its dwell), event at 40: one true alarm, a lead of 28 s."""
    found = our_score([track([0.1] * 10 + [0.9] * 30, 40.0)], SETTINGS)
    assert (found.true_count, found.false_count, found.leads_s) == (1, 0, (28.0,))
    assert found.precision == found.recall == found.recall_in_time == 1.0


def test_an_alarm_that_has_been_on_for_ages_told_nobody_anything() -> None:
    """On for more than a minute before the event it is a false alarm, and the event is missed."""
    found = our_score([track([0.9] * 100, 100.0)], SETTINGS)
    assert (found.true_count, found.false_count, found.recall) == (0, 1, 0.0)
    assert found.missed == (("wave", 5, "d/0"),)


def test_an_alarm_without_an_event_is_false_and_one_that_ended_recalls_nothing() -> None:
    """No event: false. Gone before the event: it was true in time, and yet nobody stood warned."""
    assert our_score([track([0.9] * 30, None)], SETTINGS).false_count == 1
    gone = our_score([track([0.9] * 10 + [0.0] * 30, 40.0)], SETTINGS)
    assert gone.true_count == 1
    assert gone.recall == 0.0


def test_a_score_adds_up_over_tracks_whatever_their_order() -> None:
    """Counts and hours are sums; order changes nothing."""
    tracks = [track([0.9] * 30, 30.0), track([0.1] * 50, None), track([0.1] * 20, 20.0)]
    forward, backward = our_score(tracks, SETTINGS), our_score(tracks[::-1], SETTINGS)
    assert forward.event_count == backward.event_count == 2
    assert forward.hours == pytest.approx((29 + 49 + 19) / 3600)
    assert forward.leads_s == backward.leads_s
    assert score([], lambda each: []).precision is None


def test_lines_keep_the_same_dwell() -> None:
    """A line that trembles about its limit is not blamed for each crossing."""
    trembling = track([0.0] * 60, None, used=0.81)
    trembling.used_ratio[::3] = 0.79
    assert len(line_episodes(trembling, "used_ratio", 0.80, SETTINGS)) <= 1
    assert line_episodes(track([0.0] * 30, None, used=0.95), "used_ratio", 0.9, SETTINGS) == [(2.0, None)]
    assert set(all_scores([trembling], SETTINGS)) == {OURS, *LINES}


def test_a_fit_learns_what_precedes_events_and_the_threshold_is_tuned_on_it() -> None:
    """Events that follow use of 0.9 and never one of 0.4 are told apart; no event at all is an error."""
    tracks = [track([0.0] * 60, 60.0 if number % 2 else None, used=0.9 if number % 2 else 0.4) for number in range(8)]
    fitted = fit_forecast(tracks, "test")
    judged = with_forecast(tracks, fitted)
    assert judged[1].risks[-1].retraction_probability > 2 * judged[0].risks[-1].retraction_probability
    assert len(fitted.weights) == len(FEATURES)
    tuned = tune(judged, SETTINGS)
    assert tuned.off_probability < tuned.on_probability
    with pytest.raises(ValueError, match="more seeds"):
        fit_forecast([track([0.0] * 20, None)], "test")


def test_both_halves_hold_every_family_alike() -> None:
    """Tuning and judging see the same mix, and no seed is in both."""
    rows = list(runs_of(200))
    for half in (True, False):
        names = [family for family, seed in rows if is_train(seed) is half]
        assert {name: names.count(name) for name in FAMILIES} == dict.fromkeys(FAMILIES, 20)


def test_a_run_can_be_repeated_and_seeds_differ() -> None:
    """Same family and seed, same figures; another seed, others."""
    first, again = simulate("wave", 3, 24.0), simulate("wave", 3, 24.0)
    assert first.retractions == again.retractions
    for name, history in first.histories.items():
        assert (history.columns["used_tokens"] == again.histories[name].columns["used_tokens"]).all()
    assert scenario_of("wave", 3) == scenario_of("wave", 3) != scenario_of("wave", 8)
    assert len(first.histories) == 5


def _arguments(**changes: Any) -> argparse.Namespace:
    base = {
        "seeds": 0,
        "seconds": 24.0,
        "jobs": 1,
        "json": True,
        "fit": False,
        "plot": None,
        "recording": [],
    }
    return argparse.Namespace(**{**base, **changes})


def test_the_command_judges_a_real_recording(capsys: pytest.CaptureFixture[str]) -> None:
    """Two decode pools, no retraction: no recall to speak of, and our alarm stays quiet."""
    assert backtest.run(_arguments(recording=[RECORDING])) == 0
    result = json.loads(capsys.readouterr().out)
    (ours,) = [group[OURS] for group in result["groups"].values()]
    assert ours["events"] == 0
    assert ours["recall"] is None
    assert ours["false"] == 0


def test_the_command_simulates_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables name every alarm; the picture is well-formed."""
    assert backtest.run(_arguments(seeds=6, json=False, plot=tmp_path / "plot.svg")) == 0
    text = capsys.readouterr().out
    assert "held-out seeds" in text
    assert all(name in text for name in (OURS, *LINES))
    ET.parse(tmp_path / "plot.svg")
    drawn = svg({"a & b": Score(leads_s=(3.0, 20.0), true_count=2, false_count=1, event_count=4, hours=1.0)})
    ET.fromstring(drawn)


def test_wrong_use_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers out of range, a fit from nothing and a file that is no recording each have their status and sentence."""
    assert backtest.run(_arguments(seeds=-1)) == 3
    assert backtest.run(_arguments(seeds=3, fit=True)) == 3
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{}\n")
    assert backtest.run(_arguments(recording=[broken])) == 1
    assert "line 1" in capsys.readouterr().err


def test_an_episode_ends_when_the_alarm_does() -> None:
    """Begin and end are the alarm's own, by the same machine that runs live."""
    found = episodes(track([0.9] * 5 + [0.1] * 20, None), track([0.9] * 5 + [0.1] * 20, None).risks, SETTINGS)
    assert found == [(2.0, 15.0)]
