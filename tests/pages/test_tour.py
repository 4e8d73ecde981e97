"""The tour: every step in both languages, two sentences each, scenarios set by themselves, figures that are true."""

import dataclasses
import json
import re
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from collectors.demo_control import DemoControl, DemoControlError, is_loopback
from demo.scenarios import SCENARIOS
from pages import _tour_parts as parts
from pages import _tour_race as racing
from pages import _tour_stage as stage
from pages.figures import tour as figures
from pages.figures import tour_herd as herds
from pages.figures import tour_story as story
from pages.texts import catalogue, speaker
from scoring.chain import ChainState
from scoring.herd import herd
from scoring.model import FleetSnapshot, Role, SourceState

WORDS = [step.word for step in parts.STEPS]


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch) -> None:
    """Keep the race in its beginning and the chains dark: both have tests of their own."""
    center = SimpleNamespace(chains=SimpleNamespace(states={}))
    monkeypatch.setattr("collectors.alerts.watch", lambda runtime: center)
    monkeypatch.setattr(racing.RACER, "state", lambda fleet, again=False: racing.RaceState(request_count=7))


def _watched(watch, fleet):
    running = watch(fleet)
    running.store.events = lambda *args: []
    return running


def _open(step: int, **query: str) -> AppTest:
    app = AppTest.from_file("../../app.py", default_timeout=60)
    for name, value in {"step": str(step), **query}.items():
        app.query_params[name] = value
    app.run()
    app.switch_page("pages/tour.py")
    for name, value in {"step": str(step), **query}.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception, [item.message for item in app.exception]
    return app


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("place", range(len(parts.STEPS)))
def test_every_step_is_drawn_from_the_live_fleet(watch, fleet_of_demo, place, lang) -> None:
    """Title, text and figure in the viewer's language; the figure carries the age of what it shows."""
    _watched(watch, fleet_of_demo)
    app = _open(place + 1, lang=lang)
    word = parts.STEPS[place].word
    assert len(app.title) == 1
    place_of_language = 1 if lang == "zh" else 0
    start = catalogue("tour")[f"title_{word}"][place_of_language].split("{")[0][:6]
    assert app.title[0].value.startswith(start)
    sent = [item.proto.bytes for item in app.get("bidi_component")]
    payloads = [payload for payload in map(json.loads, filter(None, sent)) if "figure" in payload]
    assert payloads or word == "joint"
    for payload in payloads:
        assert payload["age_s"] is not None
        assert payload["alt"]
    assert any(f"{place + 1}" in item.value and "●" in item.value for item in app.markdown)


@pytest.mark.parametrize("word", [*WORDS, "chose"])
def test_a_step_says_two_sentences(word) -> None:
    """Two sentences in each language, no more: a room listens to the presenter."""
    english, chinese = catalogue("tour")[f"text_{word}"]
    assert len(re.findall(r"[.?!](?=\s|$)", english)) == 2, english
    assert len(re.findall(r"[。？！](?!”)", chinese)) == 2, chinese


def test_every_step_plays_a_scenario_that_exists_and_links_to_a_page() -> None:
    """What a step asks of the demo is there, and so is the page that explores it."""
    import importlib.util

    for step in parts.STEPS:
        assert step.scenario in SCENARIOS
        assert importlib.util.find_spec(f"pages.{step.page}") is not None
        assert f"nav_{step.page}" in catalogue("common")


def test_next_and_back_turn_the_page_and_the_address(watch, fleet_of_demo) -> None:
    """The address says the step; the ends do not lead out of the tour by accident."""
    _watched(watch, fleet_of_demo)
    app = _open(2)
    app.button(key="tour.next").click().run()
    assert app.query_params["step"] in ("3", ["3"])
    app.button(key="tour.back").click().run()
    app.button(key="tour.back").click().run()
    assert app.query_params["step"] in ("1", ["1"])
    assert app.button(key="tour.back").disabled


def test_presses_made_while_the_page_turns_all_count(watch, fleet_of_demo, monkeypatch) -> None:
    """A press whose request carries the address of the step before is a step all the same; keys stop at both ends."""
    _watched(watch, fleet_of_demo)
    presses: list[int] = []
    monkeypatch.setattr(stage, "_pressed", lambda: presses.pop() if presses else 0)
    app = _open(1)
    for step in ("2", "3", "4"):
        presses.append(1)
        app.query_params["step"] = "1"
        app.run()
        assert app.query_params["step"] in (step, [step])
    app.run()
    assert app.query_params["step"] in ("4", ["4"])
    for many, end in ((99, "7"), (-99, "1")):
        presses.append(many)
        app.run()
        assert app.query_params["step"] in (end, [end])


def test_after_a_look_at_another_page_the_tour_goes_on_where_it_was(watch, fleet_of_demo) -> None:
    """Back from the page that explores a step, the address has no step any more: the viewer's own place holds."""
    _watched(watch, fleet_of_demo)
    app = _open(3)
    del app.query_params["step"]
    app.switch_page("pages/fleet.py").run()
    app.switch_page("pages/tour.py").run()
    assert any("Step 3 of 7" in item.value for item in app.markdown)
    assert app.query_params["step"] in ("3", ["3"])


@pytest.mark.parametrize("text", [None, "", "0", "8", "-1", "x", "1e3", "²"])
def test_an_address_of_no_step_opens_the_first(text) -> None:
    """A mangled link begins the tour."""
    assert stage.place_of(text, len(parts.STEPS)) == 0


def test_without_fresh_figures_no_step_makes_one_up(watch, fleet_of_demo) -> None:
    """All pools stale: a sentence instead of a figure, in every step."""
    pools = tuple(dataclasses.replace(pool, state=SourceState.STALE) for pool in fleet_of_demo.pools)
    _watched(watch, dataclasses.replace(fleet_of_demo, pools=pools))
    for place in range(len(parts.STEPS)):
        app = _open(place + 1)
        assert not [item for item in app.get("bidi_component") if b'"figure"' in item.proto.bytes]
        assert any("No pool has given a fresh figure" in item.value for item in app.markdown)


# The demo behind it.


class FakeDemo:
    """A demo's control endpoint: what was asked of it, and what it plays."""

    def __init__(self) -> None:
        self.scenario = "calm"
        self.posts: list[str] = []
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(str(request.url))
        if request.method == "POST":
            assert request.headers["content-type"] == "application/json"
            self.scenario = json.loads(request.content)["scenario"]
            self.posts.append(self.scenario)
        body = {"scenario": self.scenario, "elapsed_s": 3.0, "speed": 1.0, "scenarios": dict.fromkeys(SCENARIOS, "")}
        return httpx.Response(200, json=body)


def test_a_step_sets_its_scenario_once_and_again_when_restarted(watch, fleet_of_demo, monkeypatch) -> None:
    """Coming to a step begins its scenario; reruns do not; the restart button does."""
    _watched(watch, fleet_of_demo)
    demo = FakeDemo()
    control = DemoControl(["http://127.0.0.1:1"], transport=httpx.MockTransport(demo))
    monkeypatch.setattr(parts, "control", lambda: control)
    app = _open(3)
    assert demo.posts == ["same-share"]
    app.run()
    assert demo.posts == ["same-share"]
    app.button(key="tour.restart").click().run()
    assert demo.posts == ["same-share", "same-share"]
    app.button(key="tour.next").click().run()
    assert demo.posts[-1] == "calm"


def test_only_loopback_is_ever_asked_for_a_demo() -> None:
    """A real fleet's workers never see the demo's requests; nobody answering is no demo."""
    demo = FakeDemo()
    urls = ["http://10.0.0.5:30000", "http://demo.example", "http://169.254.1.1"]
    control = DemoControl(urls, transport=httpx.MockTransport(demo))
    assert control.state() is None
    with pytest.raises(DemoControlError, match="loopback"):
        control.switch("calm")
    assert not demo.asked
    assert [is_loopback(url) for url in ("http://127.0.0.9:1", "http://[::1]:2", "http://localhost")] == [True] * 3


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(404),
        httpx.Response(302, headers={"location": "http://127.0.0.1:2/"}),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={"scenario": "calm"}),
        httpx.Response(200, json=[]),
    ],
)
def test_what_is_no_demo_is_told_as_none(answer) -> None:
    """A worker without the endpoint, one that redirects, and one that answers something else are no demo."""
    control = DemoControl(["http://127.0.0.1:1"], transport=httpx.MockTransport(lambda request: answer))
    assert control.state() is None
    with pytest.raises(DemoControlError):
        control.switch("rush")


# Figures.

T = speaker("en")


def test_a_tank_adds_up_to_what_it_holds(fleet_of_demo) -> None:
    """The parts of every tank sum to at most the whole, and to all of it where all is known."""
    figure = json.loads(figures.two_phases(fleet_of_demo, T, "en"))["figure"]
    total = np.sum([trace["y"] for trace in figure["data"]], axis=0)
    assert len(total) == len(fleet_of_demo.pools)
    assert np.all(total <= 1 + 1e-9)
    assert np.isclose(total, 1.0).sum() >= len(total) - 3


def test_a_full_memory_and_its_parts_are_the_same_pools(fleet_of_demo) -> None:
    """Left and right of the one number show the same pools; none of them decodes."""
    pools = figures.caching(fleet_of_demo)
    assert pools
    assert all(pool.role is not Role.DECODE for pool in pools)
    figure = json.loads(figures.one_number(fleet_of_demo, T, "en"))["figure"]
    texts = figure["layout"]["xaxis"]["ticktext"]
    assert texts[: len(pools)] == texts[len(pools) :]


def test_the_line_ahead_is_the_slope_of_the_past(make_pool, history) -> None:
    """A used share that rises one point a second has that slope, whatever comes after the instant asked for."""
    item = make_pool("d", usable=100_000.0, used=50_000.0)
    past = history(item, gap=False)
    rising = past.columns["used_tokens"].copy()
    rising[:] = 50_000.0 + 1_000.0 * (past.at_s - item.at_s)
    columns = {**past.columns, "used_tokens": rising}
    past = dataclasses.replace(past, columns=columns)
    assert figures.slope_per_s(past, item.at_s) == pytest.approx(0.01)
    assert figures.slope_per_s(past, item.at_s - 100.0) == pytest.approx(0.01)
    assert figures.slope_per_s(past, past.at_s[0]) is None


def test_a_stampede_counts_every_request_once(fleet_of_demo) -> None:
    """Both sides of the figure place the same number of requests, or say how many wait."""
    request = parts.HERD_REQUEST
    plain = herd(request, fleet_of_demo, "lowest-utilization", count=12)
    careful = herd(request, fleet_of_demo, "joint", count=12, has_leases=True)
    for each in (plain, careful):
        assert sum(each.placed.values()) + each.refused_count == 12
    figure = json.loads(herds.stampede(fleet_of_demo, plain, careful, T))["figure"]
    added = [trace for trace in figure["data"] if "text" in trace]
    told = [sum(int(text.strip("<b>+/")) for text in trace["text"] if text) for trace in added]
    assert told == [sum(plain.placed.values()), sum(careful.placed.values())]


def test_the_case_is_known_by_its_numbers(watch, make_pool, history) -> None:
    """Lower, growing, behind a busy link against higher and emptying is the case; equal shares are none."""
    low = make_pool("decode-4", usable=100_000.0, used=45_000.0, arrived=30_000.0)
    high = make_pool("decode-5", usable=100_000.0, used=68_000.0, arrived=68_000.0)
    fleet = FleetSnapshot(at_s=low.at_s, pools=(low, high))
    running = watch(fleet)

    def moving(item, per_s):
        past = history(item, gap=False)
        used = (item.reading.used_tokens or 0.0) + per_s * (past.at_s - item.at_s)
        return dataclasses.replace(past, columns={**past.columns, "used_tokens": used})

    running.histories = lambda: (moving(low, 900.0), moving(high, -900.0))
    assert parts.case_rank(fleet, parts.NODES) == 2
    running.histories = lambda: (moving(low, -900.0), moving(high, -900.0))
    assert parts.case_rank(fleet, parts.NODES) == 1
    assert parts.case_rank(dataclasses.replace(fleet, pools=(low, low)), parts.NODES) == 0
    same = dataclasses.replace(low, pool_id="decode-5/0")
    assert parts.case_rank(dataclasses.replace(fleet, pools=(low, same)), parts.NODES) == 0


def test_the_guess_is_answered_with_the_terms_of_that_moment(watch, make_pool) -> None:
    """After the guess: who is better, the guess, and the terms of both; asking again is a click on restart."""
    prefill = make_pool("prefill-1", role=Role.PREFILL, used=10_000.0, arrived=None)
    low = make_pool("decode-4", usable=200_000.0, used=90_000.0, arrived=60_000.0)
    high = make_pool("decode-5", usable=200_000.0, used=130_000.0, arrived=130_000.0)
    _watched(watch, FleetSnapshot(at_s=low.at_s, pools=(low, high, prefill)))
    app = _open(5)
    assert not app.button(key="tour.guess_D-A").disabled
    app.button(key="tour.guess_D-A").click().run()
    assert not app.exception
    assert "it goes to D-" in app.title[0].value
    assert any("You said D-A" in item.value for item in app.markdown)
    assert any(
        "stacked" in item.proto.bytes.decode() or b"relative" in item.proto.bytes for item in app.get("bidi_component")
    )
    app.button(key="tour.restart").click().run()
    assert "Guess first" in app.title[0].value


def test_the_chain_draws_what_is_lit_and_the_alarm_before_it(make_pool, history) -> None:
    """Lit stages are filled, dark ones are not; alarm and first retraction stand at their times."""
    item = make_pool("decode-6", used=80_000.0)
    fleet = FleetSnapshot(at_s=item.at_s, pools=(item,))
    view = story.ChainView(
        pool=item,
        lit=(True, True, False, False, False, False),
        probability=0.7,
        alarm_at_s=item.at_s - 30.0,
        retraction_at_s=item.at_s - 12.0,
    )
    layout = json.loads(story.chain(fleet, history(item), view, T))["figure"]["layout"]
    boxes = [shape for shape in layout["shapes"] if shape["type"] == "rect"]
    assert [box["fillcolor"] != "rgba(0,0,0,0)" for box in boxes] == list(view.lit)
    marks = [shape["x0"] for shape in layout["shapes"] if shape["type"] == "line" and shape["x0"] == shape["x1"]]
    assert marks == [-30.0, -12.0]


def test_the_pool_that_fills_first_is_the_smallest(fleet_of_demo) -> None:
    """The same pool tick after tick: the smallest that decodes, by name among equals; none without one."""
    assert story.focus(fleet_of_demo).pool_id == "d5/0"
    reverse = dataclasses.replace(fleet_of_demo, pools=fleet_of_demo.pools[::-1])
    assert story.focus(reverse).pool_id == "d5/0"
    assert story.focus(FleetSnapshot(at_s=0.0, pools=())) is None
    assert ChainState().stage == 0


def test_a_race_judges_every_request_of_every_policy(fleet_of_demo, monkeypatch) -> None:
    """The same requests for all; misses never fall and end at arrived less good; the same seed, the same race."""
    monkeypatch.setattr(racing, "MOST_REQUESTS", 60)
    counts = []
    comparison = racing.race(fleet_of_demo, 5, on_count=counts.append)
    outcome = racing.outcome_of(comparison)
    assert outcome.race.names == (racing.LOW, racing.COUNTED, racing.JOINT)
    for name in outcome.race.names:
        missed, report = outcome.race.missed[name], outcome.reports[name]
        assert report.arrived_count == counts[0]
        assert np.all(np.diff(missed) >= 0)
        assert missed[-1] == pytest.approx(report.arrived_count * (1.0 - report.goodput_ratio))
    assert racing.reveal_s(outcome.race, 0.0) == 0.0
    assert racing.reveal_s(outcome.race, 1e6) == outcome.race.at_s[-1]
    # What differs beside the policy is told, not hidden.
    assert any("is_leasing" in text for text in comparison.varied)
    fleet = FleetSnapshot(at_s=0.0, pools=())
    with pytest.raises(ValueError, match="no pool of known capacity"):
        racing.race(fleet, 1)


def test_links_are_congested_for_some_and_never_for_all() -> None:
    """Whatever the number of decode workers, one is left with a healthy link."""
    from scoring.service import PROFILES
    from simulation.fleet import FleetSpec, PoolSpec

    for count in range(1, 8):
        pools = tuple(
            PoolSpec(
                worker=f"d{place}",
                role=Role.DECODE,
                usable_tokens=6_400,
                block_size_tokens=64,
                profile=PROFILES["qwen3-32b-h100-tp2"],
            )
            for place in range(count)
        )
        prefill = dataclasses.replace(pools[0], worker="p", role=Role.PREFILL)
        slow = racing.congested(FleetSpec(pools=(prefill, *pools)))
        assert len(slow) < count
        assert len(slow) == min(count // 2, 2) or count == 3
        assert "p" not in slow


def test_a_failed_race_is_a_sentence(fleet_of_demo) -> None:
    """A fleet nothing can run on ends as a problem in words, not as a thread's traceback."""
    racer = racing.Racer()
    racing.Racer.state(racer, FleetSnapshot(at_s=0.0, pools=()))
    racer.wait(60.0)
    state = racing.Racer.state(racer, FleetSnapshot(at_s=0.0, pools=()))
    assert "no pool of known capacity" in state.problem
