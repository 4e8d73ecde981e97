"""
The Sources page's blocks: how collecting goes, one source in full, every source, routers beside engines, lists.
"""

import time
from typing import Any

import streamlit as st

from pages import _context as context
from pages import _controls as controls
from pages import _widgets as widgets
from pages.figures import number, terms
from pages.figures import sources as figures
from scoring.model import FleetSnapshot, SourceState


def health() -> None:
    """Draw how asking and storing goes, and what is wrong with it."""
    t, running = context.say(), context.runtime()
    stats = running.cycle_stats()
    counts = figures.state_counts(view.state for view in running.sources())
    other = [f"{count} {t(f'common.state_{state.value}')}" for state, count in counts.items() if not state.is_scored]
    unknown = t("common.unknown")
    spots = st.columns(6, gap="small")
    with spots[0]:
        value = t("sources.answering_value", fresh=counts[SourceState.FRESH], count=counts.total())
        help_ = t("sources.answering_help")
        widgets.key_figure(t("sources.answering"), value, " · ".join(other) or t("sources.all_well"), help_)
    with spots[1]:
        detail = t(
            "sources.cycle_detail",
            most=number.duration(stats.max_duration_s, unknown),
            interval=number.duration(stats.interval_s),
        )
        value = number.duration(stats.median_duration_s, unknown)
        widgets.key_figure(t("sources.cycle"), value, detail, t("sources.cycle_help"))
    with spots[2]:
        detail = t(
            "sources.lost_detail",
            count=number.compact(stats.cycle_count + stats.lost_tick_count),
            overruns=number.compact(stats.overrun_count),
            skipped=number.compact(stats.skipped_poll_count),
        )
        widgets.key_figure(t("sources.lost"), number.compact(stats.lost_tick_count), detail, t("sources.lost_help"))
    with spots[3]:
        detail = t("sources.polls_detail", count=number.compact(stats.poll_count))
        widgets.key_figure(t("sources.polls"), number.compact(stats.failed_poll_count), detail, t("sources.polls_help"))
    with spots[4]:
        size, count = number.byte_size(stats.store_bytes, unknown), number.compact(stats.stored_count)
        value = number.duration(stats.median_store_s, unknown)
        detail = t("sources.store_detail", size=size, count=count)
        widgets.key_figure(t("sources.store"), value, detail, t("sources.store_help"))
    with spots[5]:
        detail = t("sources.received_detail", readings=number.compact(stats.reading_count))
        widgets.key_figure(
            t("sources.received"), number.byte_size(stats.byte_count), detail, t("sources.received_help")
        )
    if stats.last_cycle_at_s is not None:
        st.caption(t("common.as_of", at=number.instant(stats.last_cycle_at_s)))
    if stats.store_problem:
        st.error(t("sources.not_stored", reason=number.markdown(t.said(stats.store_problem))))
    if stats.maintenance_problem:
        st.warning(t("sources.maintenance", reason=number.markdown(t.said(stats.maintenance_problem))))
    if stats.problem_count:
        newest = number.markdown(t.said(stats.problems[-1]))
        st.warning(t("sources.problems", count=stats.problem_count, reason=newest))
    if stats.restart_count:
        st.warning(t("sources.restarted", count=stats.restart_count))


def overview() -> None:
    """Draw one row a source, the worst first."""
    t, running = context.say(), context.runtime()
    views = sorted(running.sources(), key=lambda view: (view.state is SourceState.FRESH, view.worker_id))
    offsets = context.shared(
        "sources.offsets", running.snapshot().at_s, "all", lambda: figures.offsets_s(running.histories())
    )
    st.subheader(t("sources.every_source"), anchor=False)
    columns = figures.overview(views, offsets, time.time(), t)
    widgets.text_table(columns, "sources", wide=("last_error",), most_rows=24)


def choose() -> str:
    """Draw which source to show in full and return its name."""
    t = context.say()
    names = [view.worker_id for view in context.runtime().sources()]
    st.subheader(t("sources.one"), anchor=False)
    return controls.select("source", t("sources.choose"), names, context.language(), width=320)


def one(name: str, fleet: FleetSnapshot) -> None:
    """Draw one source in full: asked, answered, understood, left out, how it counts, what it says of itself."""
    t, language, now_s = context.say(), context.language(), time.time()
    view = next((item for item in context.runtime().sources() if item.worker_id == name), None)
    if view is None:
        st.warning(t("sources.gone", source=number.markdown(name, 80)))
        return
    state = view.state or SourceState.NOTHING_YET
    sign = terms.STATES[state.value][0]
    since = number.duration(None if view.since_at_s is None else max(0.0, now_s - view.since_at_s))
    reason = f": {number.markdown(t.said(view.state_reason))}" if view.state_reason else ""
    st.markdown(f"**{sign} {t(f'common.state_{state.value}')}** · {since}{reason} · `{number.code(view.url, 120)}`")
    if view.vanished_at_s is not None:
        st.warning(t("sources.vanished", at=number.instant(view.vanished_at_s)))
    left, right = st.columns([3, 2], gap="medium")
    with left:
        st.markdown(f"**{t('sources.asked')}**")
        if view.questions:
            widgets.text_table(figures.questions(view.questions, now_s, t), "sources")
        else:
            st.caption(t("sources.asked_none"))
        pool = next((item for item in fleet.pools if item.worker_id == name), None)
        if pool is not None:
            st.markdown(f"**{t('sources.definitions', pool=number.markdown(pool.pool_id, 60))}**")
            labelled = figures.definitions(pool, t, lambda word: terms.label(word, language))
            widgets.text_table(labelled, "sources", wide=("because",))
    with right:
        st.markdown(f"**{t('sources.says')}**")
        family = figures.family(view.engine)
        st.markdown(number.markdown(t(f"sources.says_{family}" if family else "sources.says_none"), 900))
        st.markdown(f"**{t('sources.facts')}**")
        if view.facts:
            widgets.text_table(figures.facts(view.facts, t), "sources", wide=("value",), most_rows=12)
        else:
            st.caption(t("sources.facts_none"))
        if view.findings:
            st.markdown(f"**{t('sources.findings')}**")
            widgets.findings([("", finding) for finding in view.findings])


def routers(fleet: FleetSnapshot) -> None:
    """Draw what each router believes beside what its workers say."""
    t, running = context.say(), context.runtime()
    believed = running.router_views()
    if not believed:
        return
    views = {view.worker_id: view for view in running.sources()}
    urls = {name: view.url for name, view in views.items()}
    st.subheader(t("sources.routers"), anchor=False)
    for router, (said_at_s, rows) in sorted(believed.items()):
        age = number.age(time.time() - said_at_s)
        st.markdown(f"**{t('sources.router_one', router=number.markdown(router, 60), age=age)}**")
        told = views[router].facts if router in views else {}
        found = figures.divergence(rows, fleet.pools, urls, told)
        if found:
            widgets.findings([("", finding) for finding in found])
        else:
            st.caption(t("sources.router_agrees"))
        widgets.text_table(figures.router_table(rows, fleet.pools, urls, t), "sources", most_rows=24)


def lists() -> None:
    """Draw the lists of workers that are read while running."""
    t, reports, now_s = context.say(), context.runtime().lists(), time.time()
    if not reports:
        return
    st.subheader(t("sources.lists"), anchor=False)
    columns: dict[str, list[Any]] = {
        "list": [t.said(report.source) for report in reports],
        "read": [round(max(0.0, now_s - report.at_s), 1) for report in reports],
        "count": [report.worker_count for report in reports],
        "unusable": [report.skipped_count for report in reports],
        "error": [t.said(report.error) for report in reports],
    }
    widgets.text_table(columns, "sources", wide=("list", "error"))
