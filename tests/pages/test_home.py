"""The opening page: what is watched, what is wrong first, how to begin without a fleet, and the guarded form."""

import dataclasses
import random

import pytest
from streamlit.testing.v1 import AppTest

from collectors.settings import parse_settings
from collectors.url_probe import ProbeBusyError, ProbeRefusedError, ProbeReport
from pages import _home_parts as parts
from pages.figures import home as figures
from scoring.chain import ChainState, Light
from scoring.chain_evidence import Stage
from scoring.model import Finding, FleetSnapshot, Role, Severity, SourceState

HOSTILE = "<img src=x onerror=alert(1)>[y](http://evil)"


def _open(**query: str) -> AppTest:
    app = AppTest.from_file("../../app.py", default_timeout=30)
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception, [item.message for item in app.exception]
    return app


def _said(app: AppTest) -> str:
    return "\n".join(
        str(item.value) for kind in ("markdown", "error", "success", "info", "warning") for item in app.get(kind)
    )


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_without_a_fleet_it_says_how_to_begin(watch, lang) -> None:
    """Nothing is watched: three ways to begin, each a line to copy, and how the form is turned on."""
    watch(None)
    app = _open(lang=lang)
    codes = [item.value for item in app.code]
    assert "make demo" in codes
    assert any("[[workers]]" in code for code in codes)
    assert any("is_url_test_on" in item.value for item in app.info)
    assert not app.text_input(key="control.at." + lang).value


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_it_says_who_is_watched_and_links_to_every_page(watch, fleet_of_demo, lang) -> None:
    """Workers, pools by role and models are told; every question has its page."""
    watch(fleet_of_demo)
    app = _open(lang=lang)
    said = _said(app)
    assert str(len({pool.worker_id for pool in fleet_of_demo.pools})) in said
    assert {f"home.to_{word}" for word in parts.PAGES} <= {button.key for button in app.button}
    assert len(app.metric) == 4
    assert len(app.get("bidi_component")) >= 1


def test_what_is_wrong_comes_gravest_first(fleet_of_demo, make_pool) -> None:
    """Silence, old figures and alarms before stages, full pools and findings, whatever the order of pools."""
    full = make_pool("full", used=199_000.0, usable=200_000.0)
    alarmed = make_pool("alarmed", used=100_000.0, usable=200_000.0)
    staged = make_pool("staged", used=100_000.0, usable=200_000.0)
    down = make_pool("down", state=SourceState.DOWN, reason="gone", age_s=None)
    noticed = make_pool("noticed", used=1_000.0, findings=[Finding(code="x-y", text="odd")])
    alarm = dataclasses.replace(ChainState().alarm, is_on=True, probability=0.8)
    chains = {
        "alarmed/0": ChainState(alarm=alarm),
        "staged/0": ChainState(stage=Stage.ADMISSION_STALLS, lights=(Light(is_lit=True),) * 6),
    }
    pools = [full, alarmed, staged, down, noticed]
    random.Random(3).shuffle(pools)
    found = figures.wrongs(FleetSnapshot(at_s=full.at_s, pools=tuple(pools)), [("mute", SourceState.DOWN)], chains)
    keys = [each.key for each in found]
    assert set(keys) == {"wrong_silent", "wrong_state", "wrong_alarm", "wrong_stage", "wrong_full", "wrong_finding"}
    assert [each.rank for each in found] == sorted(each.rank for each in found)
    assert keys[-1] == "wrong_finding"
    assert {keys[0], keys[1]} <= {"wrong_silent", "wrong_state", "wrong_alarm"}


def test_a_pool_is_said_once(make_pool) -> None:
    """A pool with an alarm that is also full is one line, the gravest."""
    item = make_pool("d", used=199_500.0, usable=200_000.0)
    alarm = dataclasses.replace(ChainState().alarm, is_on=True, probability=0.9)
    found = figures.wrongs(FleetSnapshot(at_s=item.at_s, pools=(item,)), [], {item.pool_id: ChainState(alarm=alarm)})
    assert [each.key for each in found] == ["wrong_alarm"]


def test_a_healthy_fleet_has_nothing_wrong(watch, make_pool) -> None:
    """No finding, no old figure, room everywhere: it says nothing is wrong, in one sentence."""
    fleet = FleetSnapshot(
        at_s=make_pool("a").at_s, pools=(make_pool("a", used=20_000.0), make_pool("b", used=10_000.0))
    )
    watch(fleet)
    assert figures.wrongs(fleet, [], {}) == []
    assert _open().success


def test_late_answers_are_said(watch, make_pool) -> None:
    """Figures that lag are no reason to call all well."""
    late, fresh = make_pool("a", state=SourceState.LATE, used=10.0), make_pool("b", used=10.0)
    fleet = FleetSnapshot(at_s=late.at_s, pools=(late, fresh))
    watch(fleet)
    (found,) = figures.wrongs(fleet, [], {})
    assert (found.key, found.rank) == ("wrong_late", figures.NOTABLE)
    app = _open()
    assert not app.success
    assert any("1 of 2 pools answered late" in item.value for item in app.markdown)


def test_information_is_not_wrong(make_pool) -> None:
    """A finding of the lightest kind does not stand among what is wrong."""
    item = make_pool("a", used=10_000.0, findings=[Finding(code="n", text="by the way", severity=Severity.INFO)])
    assert figures.wrongs(FleetSnapshot(at_s=item.at_s, pools=(item,)), [], {}) == []


def test_when_nothing_can_be_seen_it_does_not_say_all_is_well(watch, make_pool) -> None:
    """Every pool stale: no word of health, the state is named."""
    item = make_pool("a", state=SourceState.STALE, age_s=80.0, reason="no answer")
    watch(FleetSnapshot(at_s=item.at_s, pools=(item,)))
    app = _open()
    assert not app.success
    assert any("Nothing can be said" in error.value for error in app.error)


def test_names_from_outside_stay_text(watch, make_pool) -> None:
    """Hostile worker names, models and findings never become markup."""
    item = make_pool(HOSTILE, model=HOSTILE, used=199_900.0, findings=[Finding(code="x", text=HOSTILE)])
    watch(FleetSnapshot(at_s=item.at_s, pools=(item,)))
    for kind in ("markdown", "error", "caption"):
        for drawn in _open().get(kind):
            if not getattr(drawn.proto, "allow_html", False):
                assert "[y](http" not in str(drawn.value)
                assert "<img" not in str(drawn.value).replace("\\<img", "")


def test_a_large_fleet_is_drawn_in_part_and_says_so(watch, make_pool) -> None:
    """More pools than can be told apart: the first ones, and how many there are."""
    pools = tuple(make_pool(f"w{place:03}", role=Role.DECODE, used=1_000.0) for place in range(60))
    watch(FleetSnapshot(at_s=pools[0].at_s, pools=pools))
    assert any("60" in item.value and str(figures.MOST_POOLS) in item.value for item in _open().caption)


def _form(watch, fleet, tmp_path, monkeypatch, answer) -> AppTest:
    running = watch(fleet)
    text = '[server]\nis_url_test_on = true\nurl_test_networks = ["10.0.0.0/8"]\n'
    running.settings = parse_settings(text, folder=tmp_path, name="fleet.toml")

    class Fake:
        def ask(self, url, settings):
            if isinstance(answer, Exception):
                raise answer
            return answer

    monkeypatch.setattr(parts, "_PROBE", Fake())
    app = _open()
    app.text_input(key="home.url").set_value("http://10.0.0.1:30000")
    button = next(item for item in app.button if item.label == "Test")
    button.click().run()
    assert not app.exception
    return app


def test_the_form_gives_a_file_to_copy(watch, fleet_of_demo, tmp_path, monkeypatch) -> None:
    """Understood: what it is in one sentence and a fleet file that loads."""
    report = ProbeReport(
        url="http://10.0.0.1:30000",
        is_understood=True,
        engine="sglang",
        version=HOSTILE,
        roles=(Role.DECODE,),
        pool_count=2,
        usable_tokens=131_072.0,
    )
    app = _form(watch, fleet_of_demo, tmp_path, monkeypatch, report)
    assert "[y](http" not in app.success[-1].value
    file = next(item.value for item in app.code if "10.0.0.1" in item.value)
    assert parse_settings(file, folder=tmp_path, name="fleet.toml").workers[0].url == report.url


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (ProbeReport(url="http://10.0.0.1:30000", is_understood=False, reason="timeout"), "error"),
        (ProbeRefusedError(f"no {HOSTILE}"), "error"),
        (ProbeBusyError("busy"), "warning"),
    ],
)
def test_the_form_says_why_not(watch, fleet_of_demo, tmp_path, monkeypatch, answer, kind) -> None:
    """Refused, failed and busy are sentences of their own, and no file is offered."""
    app = _form(watch, fleet_of_demo, tmp_path, monkeypatch, answer)
    assert app.get(kind)
    assert not any("10.0.0.1" in item.value for item in app.code)
