"""
The only glue between pages and the rest: the running collector, the snapshot to draw, language, live refresh,
figures shared between viewers, links between pages.

See docs/pages/conventions.md for how a page is made.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, NoReturn, TypeVar

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from collectors import runtime as collector
from collectors.errors import KvscopeError, SettingsError
from collectors.runtime import Runtime
from collectors.store.batch import PollOutcome
from pages import _controls as controls
from pages import _share as share
from pages.figures import live, number
from pages.texts import LANGUAGES, Say, speaker
from scoring.model import FleetSnapshot, PoolHistory, PoolSnapshot, pool_id, signal_names

REFRESH_S: Final = 2.0
"""Default tick; one process serves about 40 five-chart reruns a second (measured), so 2 s carries a room of viewers."""
_SHARED_FIGURES: Final = 256

_LAST_INSTANT_S: Final = datetime(2100, 1, 1, tzinfo=UTC).timestamp()

T = TypeVar("T")

_failure: list[Exception] = []
_shared: OrderedDict[Hashable, tuple[Hashable, Any]] = OrderedDict()
_shared_lock = threading.Lock()
_figure = st.components.v2.component("kvscope_live", css=live.CSS, js=live.script(), isolate_styles=False)


# What is watched.


def set_failure(error: Exception | None) -> None:
    """Remember why the collector could not start, so that every page can say it; None forgets."""
    _failure[:] = [] if error is None else [error]


def is_unwatched() -> bool:
    """Say whether no collector runs and none failed to start: the server was given no fleet."""
    return not _failure and collector.get_runtime() is None


def runtime() -> Runtime:
    """Return the running collector, or draw why there is none and stop the page."""
    if _failure:
        _draw_failure(_failure[0])
    running = collector.get_runtime()
    if running is None:
        _draw_no_fleet()
    return running


def snapshot() -> FleetSnapshot:
    """Return the fleet as it is now, or as it was at `?at=`; shared between viewers, so never change it."""
    at_s, running = past_at_s(), runtime()
    try:
        return running.snapshot() if at_s is None else running.snapshot_at(at_s)
    except KvscopeError as error:
        read_failed(error)
        st.stop()


def snapshot_or_none() -> FleetSnapshot | None:
    """Return the fleet that is drawn; None where nothing is watched or the past cannot be read."""
    running = collector.get_runtime()
    if running is None:
        return None
    at_s = past_at_s()
    try:
        return running.snapshot() if at_s is None else running.snapshot_at(at_s)
    except KvscopeError:
        return None  # the page itself has drawn why.


def arrive(word: str) -> None:
    """Remember at the start of a run which page it is of, so that the page can ask whether the viewer comes anew."""
    held = st.session_state
    held["shell.is_new"], held["shell.page"] = held.get("shell.page") != word, word


def is_new_here() -> bool:
    """Say whether the viewer comes from another page, or from outside, with this run."""
    return bool(st.session_state.get("shell.is_new", True))


def past_at_s() -> float | None:
    """Return the past instant the viewer asked for (epoch seconds), or None for now."""
    text = controls.kept("at")
    return parse_instant_s(text) if text else None


def parse_instant_s(text: str) -> float | None:
    """
    Return epoch seconds of `2026-11-30 14:05:00` (UTC when no zone is given) or of a number.

    None for anything else, and for instants at which nobody can have watched a fleet: before 1970, after 2100.
    """
    try:
        at_s = float(text)
    except ValueError:
        try:
            parsed = datetime.fromisoformat(text)
            at_s = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None
    return at_s if 0.0 <= at_s <= _LAST_INSTANT_S else None


def pool_history(pool: PoolSnapshot, start_s: float, end_s: float, max_points: int = 600) -> tuple[PoolHistory, bool]:
    """
    Return one pool over [start_s, end_s] and whether it comes from memory (every sample) or the store (thinned).

    StoreError where the store cannot be read.
    """
    held = _held(pool.pool_id) if past_at_s() is None else None
    reach_s = runtime().settings.view.history_s
    if held is not None and len(held.at_s) and (start_s >= end_s - reach_s or start_s >= held.at_s[0]):
        inside = (held.at_s >= start_s) & (held.at_s <= end_s)
        columns = {name: column[inside] for name, column in held.columns.items()}
        return replace(held, at_s=held.at_s[inside], columns=columns), True
    series = dict(runtime().history(pool.pool_id, start_s, end_s, signal_names(), max_points))
    at_s = series.pop("at_s")
    return PoolHistory(last=pool.reading, at_s=at_s, columns=series, labels=pool.labels), False


def first_stored_at_s() -> float | None:
    """Return the oldest instant in the store, None where it is empty or cannot be read."""
    try:
        span = runtime().store.time_span()
    except KvscopeError:
        return None
    return span[0] if span else None


def first_sample_at_s(pool: PoolSnapshot) -> float | None:
    """Return when the oldest sample in memory of this pool was received, None without one."""
    held = _held(pool.pool_id)
    return float(held.at_s[0]) if held is not None and len(held.at_s) else None


def _held(wanted: str) -> PoolHistory | None:
    return next(
        (item for item in runtime().histories() if pool_id(item.last.worker_id, item.last.dp_rank) == wanted), None
    )


def worker_polls(worker_id: str, start_s: float, end_s: float) -> list[PollOutcome]:
    """Return the stored polls of one worker begun in [start_s, end_s), oldest first; StoreError when unreadable."""
    return runtime().store.worker_polls(worker_id, start_s, end_s)


# Language.


def language() -> str:
    """Return the viewer's language, `en` or `zh`: what the control says, else the URL, else English."""
    chosen = st.session_state.get("lang")
    return chosen if chosen in LANGUAGES else "en"


def say() -> Say:
    """Return `say(key, **numbers)` in the viewer's language."""
    return speaker(language())


# Live parts and figures.


def is_live() -> bool:
    """Say whether the page follows the fleet: switched on, and not showing the past."""
    return controls.kept("live") != "false" and past_at_s() is None


def live_part(body: Callable[[], None], every_s: float = REFRESH_S) -> None:
    """Draw `body` and, while live, draw it again every `every_s` seconds without touching the rest of the page."""
    st.fragment(body, run_every=every_s if is_live() else None)()


def shared(name: str, tick: Hashable, variant: Hashable, build: Callable[[], T]) -> T:
    """
    Return `build()`, made once per tick for all viewers.

    Args:
        name: What is built, for example `fleet.bars`.
        tick: Changes when the data does, usually `snapshot.at_s`.
        variant: Everything else the result depends on: language, unit, filters.
        build: Must not read session state or draw.
    """
    key = (name, variant)
    with _shared_lock:
        kept = _shared.get(key)
        if kept is not None and kept[0] == tick:
            _shared.move_to_end(key)
            return kept[1]  # type: ignore[no-any-return] # the same name and variant build the same type.
    value = build()
    with _shared_lock:
        _shared[key] = (tick, value)
        _shared.move_to_end(key)
        while len(_shared) > _SHARED_FIGURES:
            _shared.popitem(last=False)
    return value


def forget_shared() -> None:
    """Forget what was built for viewers, for tests that draw several fleets of the same instant."""
    with _shared_lock:
        _shared.clear()


def draw(payload: bytes, key: str) -> str | None:
    """
    Mount a live figure made by `figures.live.pack`; return the id (first customdata) of the point clicked, once.

    `key` must be the same at every tick: it is what keeps the viewer's zoom.
    """
    share.note(key, payload)
    result = _figure(key=key, data=payload, on_click_change=_heard, on_selected_change=_heard)
    click = result.get("click")
    return str(click["id"]) if isinstance(click, dict) and click.get("id") is not None else None


def selected(key: str) -> list[str]:
    """Return the ids box-selected in the figure mounted as `key` (it must ask for the event `selected`)."""
    state = st.session_state.get(key)
    return [str(item) for item in (state or {}).get("selected") or []]


def _heard() -> None:
    """Do nothing: the component's values are read where it is mounted."""


# Going to another page, and back in time.


def open_page(word: str, **query: str) -> NoReturn:
    """Go to page `word` with these URL parameters; the viewer's other choices (language, unit, instant) come along."""
    ctx = get_script_run_ctx()
    if ctx is not None:
        # A part of this page that asks to be drawn again while the next page runs would be run after it as this page,
        # and the browser, told two pages, would take the next one's parts away and stand empty.
        ctx.fragment_storage.clear()
    st.switch_page(f"pages/{word}.py", query_params=query)


# Drawn states.


def _draw_failure(error: Exception) -> NoReturn:
    t = say()
    st.title(t("common.failed_title"))
    if isinstance(error, SettingsError):
        problems = [str(problem) for problem in error.problems]
        st.error(t("common.failed_settings", count=len(problems)))
        for problem in problems:
            st.text(t.said(problem))
    else:
        st.error(t("common.failed_store") if isinstance(error, KvscopeError) else t("common.failed_title"))
        st.text(t.said(error))
    st.stop()


def _draw_no_fleet() -> NoReturn:
    t = say()
    st.title(t("common.no_fleet_title"))
    st.write(t("common.no_fleet"))
    st.code("make demo\nkvscope demo --serve\nkvscope serve --fleet fleet.toml", language="bash")
    st.stop()


def draw_empty(key: str) -> None:
    """Draw why there is no pool to show: the text of `key` now, that nothing was stored at a past instant."""
    t = say()
    if past_at_s() is None:
        st.info(t(key))
    else:
        st.info(t("common.past_empty", first=number.instant(first_stored_at_s(), t("common.unknown"))))


def read_failed(error: Exception) -> None:
    """Draw that something could not be read and why, in place of the figure that needed it."""
    t = say()
    st.warning(t("common.read_failed", reason=number.markdown(t.said(error))))
