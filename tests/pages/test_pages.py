"""Every page in every state: no collector, failed start, no worker, fresh, stale, hostile names; in both languages."""

import dataclasses
import json

import pytest
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.testing.v1 import AppTest

from collectors.errors import SettingsError, StoreLockedError
from pages import _context as context
from scoring.model import Finding, FleetSnapshot, SourceState

PAGES = ("fleet", "worker", "sources")
HOSTILE = "<img src=x onerror=alert(1)>[y](http://evil)"


def _open(page: str, **query: str) -> AppTest:
    app = AppTest.from_file("../../app.py", default_timeout=30)
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    if page != "home":
        app.switch_page(f"pages/{page}.py")
        app.run()
    assert not app.exception, [item.message for item in app.exception]
    return app


def _figures(app: AppTest) -> list[dict]:
    return [json.loads(item.proto.bytes) for item in app.get("bidi_component")]


@pytest.mark.parametrize("page", PAGES)
def test_without_a_collector_the_page_says_how_to_start_one(page, watch) -> None:
    """Nothing is watched: the page says so and gives the commands."""
    watch(None)
    app = _open(page)
    assert any("No fleet" in item.value for item in app.title)
    assert "kvscope serve" in app.code[0].value


@pytest.mark.parametrize("page", PAGES)
def test_a_fleet_file_with_problems_is_a_drawn_page_with_all_of_them(page, watch) -> None:
    """Every problem is listed as text, none of it as markup."""
    watch(None)
    context.set_failure(SettingsError(["line 3: workers[0].url: has no host; write http://HOST:PORT", f"x: {HOSTILE}"]))
    try:
        app = _open(page)
    finally:
        context.set_failure(None)
    assert [item.value for item in app.text][:2] == [
        "line 3: workers[0].url: has no host; write http://HOST:PORT",
        f"x: {HOSTILE}",
    ]


def test_a_store_held_by_another_process_is_a_drawn_page(watch) -> None:
    """The reason and what to do are on the page, not a traceback."""
    watch(None)
    context.set_failure(StoreLockedError("store.duckdb is held by PID 4711; stop it first", 4711))
    try:
        app = _open("fleet")
    finally:
        context.set_failure(None)
    assert any("4711" in item.value for item in app.text)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_fleet_without_workers_is_drawn_as_empty(page, lang, watch) -> None:
    """No worker yet: a sentence, no figure, no zero."""
    watch(FleetSnapshot(at_s=1_780_000_000.0, pools=()))
    app = _open(page, lang=lang)
    assert app.info
    assert not app.get("bidi_component")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_fresh_fleet_is_drawn(page, lang, watch, fleet_of_demo) -> None:
    """Figures, key figures and their ages are there in both languages."""
    watch(fleet_of_demo)
    app = _open(page, lang=lang)
    titles = {"fleet": ("Fleet", "集群"), "worker": ("Worker", "工作节点"), "sources": ("Sources", "数据来源")}
    assert any(item.value == titles[page][lang == "zh"] for item in app.title)
    assert len(app.metric) >= 6
    for payload in _figures(app):
        assert payload["age_s"] is not None
        assert "{age}" in payload["age_text"]
        assert payload["alt"]
    assert (len(_figures(app)) >= 3) == (page != "sources")


@pytest.mark.parametrize("page", PAGES)
def test_a_stale_fleet_is_drawn_as_stale(page, watch, fleet_of_demo) -> None:
    """When nothing is fresh the page says so on top, and no old figure is a key figure."""
    pools = tuple(
        dataclasses.replace(item, state=SourceState.STALE, age_s=95.0, state_reason="no answer")
        for item in fleet_of_demo.pools
    )
    watch(dataclasses.replace(fleet_of_demo, pools=pools))
    app = _open(page)
    if page == "fleet":
        assert app.error
        assert app.metric[1].value == "unknown"
        assert app.metric[0].value.startswith("0 of")
    if page == "worker":
        assert any("stale" in item.value for item in app.error)
    if page == "sources":
        assert app.metric[0].value.startswith("0 of")


@pytest.mark.parametrize("page", PAGES)
def test_names_from_payloads_never_become_markup(page, watch, make_pool) -> None:
    """A worker, model, label, finding or reason with HTML and Markdown in it is drawn as text."""
    item = make_pool(
        HOSTILE,
        model=HOSTILE,
        labels={"rack": HOSTILE},
        state=SourceState.LATE,
        reason=HOSTILE,
        bytes_per_token=None,
        findings=[Finding(code="x", text=HOSTILE)],
    )
    watch(FleetSnapshot(at_s=item.at_s, pools=(item,), findings=(Finding(code="y", text=HOSTILE),)))
    app = _open(page, unit="bytes")
    for kind in ("markdown", "caption", "error", "warning", "info"):
        for drawn in app.get(kind):
            text = str(drawn.value)
            if kind != "markdown" or not getattr(drawn.proto, "allow_html", False):
                assert "[y](http" not in text.replace("\\[", "").replace("\\(", "") or "`" in text, text
                assert "<img" not in text.replace("\\<img", "") or "`" in text, text
    for payload in _figures(app):
        ids = [row[0] for trace in payload["figure"]["data"] for row in trace.get("customdata", [])]
        text = json.dumps(payload)
        for name in set(ids):
            text = text.replace(json.dumps(name)[1:-1], "")
        assert "<img" not in text


def test_the_unit_in_the_link_is_the_unit_drawn(watch, fleet_of_demo) -> None:
    """A link reproduces the view: unit, role and order come from the URL in every language."""
    watch(fleet_of_demo)
    for lang in ("en", "zh"):
        app = _open("fleet", unit="share", role="decode", order="committed", lang=lang)
        (figure,) = _figures(app)
        assert figure["figure"]["layout"]["xaxis"]["tickformat"] == ".0%"
        names = figure["figure"]["layout"]["yaxis"]["ticktext"]
        assert "d5/1" in names[0]
        assert app.query_params["unit"] == "share"


def test_a_choice_goes_into_the_url_as_a_word_that_no_language_changes(watch, fleet_of_demo) -> None:
    """Choosing bytes in Chinese writes `unit=bytes`; going back to the default takes it out again."""
    watch(fleet_of_demo)
    app = _open("fleet", lang="zh")
    app.button_group(key="control.unit.zh").set_value("bytes").run()
    assert app.query_params["unit"] == "bytes"
    assert app.query_params["lang"] == "zh"
    app.button_group(key="control.unit.zh").set_value("tokens").run()
    assert "unit" not in app.query_params


def test_a_word_in_the_url_that_means_nothing_is_ignored(watch, fleet_of_demo) -> None:
    """A mangled link opens with the defaults."""
    watch(fleet_of_demo)
    app = _open("fleet", unit="furlongs", lang="xx", role="emperor", order="size", live="perhaps", at="yesterday")
    assert len(_figures(app)) == 3
    # The instant is the sidebar's, which stands around the front page here.
    assert _open("home", at="yesterday").warning


def test_a_pool_that_is_gone_is_said(watch, fleet_of_demo) -> None:
    """A link to a pool that is not there names it and offers the others."""
    watch(fleet_of_demo)
    app = AppTest.from_file("../../app.py", default_timeout=30)
    app.run()
    app.query_params["pool"] = "d9/7"
    app.switch_page("pages/worker.py").run()
    assert not app.exception
    assert any("d9/7" in item.value for item in app.warning)


def test_a_past_instant_is_said_to_be_the_past(watch, fleet_of_demo) -> None:
    """With `?at=` nothing claims to be live."""
    watch(fleet_of_demo)
    app = _open("home", at="2026-11-30 14:05:00")
    assert any("past" in item.value for item in app.info)


def test_viewers_share_what_is_built_once_a_tick(watch, fleet_of_demo, monkeypatch) -> None:
    """Two viewers of one tick cost one build; the next tick costs one more; another language is another figure."""
    running = watch(fleet_of_demo)
    from pages.figures import fleet as figures

    built = []
    bars = figures.bars
    monkeypatch.setattr(figures, "bars", lambda *args: built.append(args[3]) or bars(*args))
    _open("fleet")
    first = len(built)
    _open("fleet")
    assert len(built) == first
    running.tick()
    _open("fleet")
    assert len(built) == 2 * first
    _open("fleet", lang="zh")
    assert built.count("zh") == first


def test_an_instant_of_which_nothing_is_stored_is_said(watch) -> None:
    """Before the first stored cycle the page says from when there is something, not that there are no workers."""
    watch(FleetSnapshot(at_s=1_780_000_000.0, pools=()))
    app = _open("fleet", at="2020-01-01 00:00:00")
    assert any("Nothing was stored" in item.value and "2026-05-28" in item.value for item in app.info)


def test_a_store_that_cannot_be_read_is_a_sentence(watch, fleet_of_demo, monkeypatch) -> None:
    """Where the past cannot be read the page says why; no traceback, and no figure of another instant."""
    running = watch(fleet_of_demo)

    def refuse(at_s: float) -> None:
        raise StoreLockedError(f"the store is gone {HOSTILE}")

    monkeypatch.setattr(running, "snapshot_at", refuse)
    app = _open("fleet", at="2026-11-30 14:05:00")
    assert any("the store is gone" in item.value and "](http" not in item.value for item in app.warning)
    assert not app.get("bidi_component")


def test_workers_that_never_answered_are_named_and_nothing_is_a_number(watch, make_pool) -> None:
    """Down from the start: the reason is there, key figures read unknown, and no age is made up."""
    item = make_pool(
        usable=None,
        used=None,
        arrived=None,
        prefix=None,
        running=None,
        waiting=None,
        block=None,
        age_s=None,
        state=SourceState.DOWN,
        reason="connect-refused: 10.0.0.9:30000",
    )
    watch(FleetSnapshot(at_s=item.at_s, pools=(item,)))
    app = _open("fleet")
    said = " ".join(error.value for error in app.error)
    assert "No worker has answered yet" in said
    assert "connect\\-refused" in said
    assert "–" not in said
    assert [metric.value for metric in app.metric][1] == "unknown"
    assert [metric.value for metric in app.metric][4:] == ["unknown", "unknown"]


def test_no_part_of_a_page_is_drawn_after_it_was_left(monkeypatch) -> None:
    """Whoever leaves takes the page's live parts along: a request for one of them finds nothing to run."""

    def page() -> None:
        import streamlit as st
        from streamlit.runtime.scriptrunner import get_script_run_ctx

        from pages import _context as context

        st.fragment(lambda: st.text("part"), run_every=1.0)()
        st.session_state["parts"] = len(get_script_run_ctx().fragment_storage._fragments)
        if st.button("leave"):
            context.open_page("fleet")

    kept: list[int] = []

    def leaving(*args: object, **kwargs: object) -> None:
        ctx = get_script_run_ctx()
        assert ctx is not None
        kept.append(len(ctx.fragment_storage._fragments))

    monkeypatch.setattr("streamlit.switch_page", leaving)
    app = AppTest.from_function(page).run()
    assert app.session_state["parts"] == 1
    app.button[0].click().run()
    assert kept == [0]
