"""
The Fleet page's blocks, top to bottom: drawn states, key figures, findings, one section a role, the table.
"""

from collections.abc import Hashable, Sequence
from typing import Final

import streamlit as st

from pages import _context as context
from pages import _widgets as widgets
from pages.figures import fleet as figures
from pages.figures import fleet_filter as filters
from pages.figures import fleet_summary as summaries
from pages.figures import fleet_table as tables
from pages.figures import number
from scoring.model import FleetSnapshot, PoolSnapshot, Role, SourceState

TREND_S: Final = 300.0
_MOST_LINES: Final = 4
_FEW_POOLS: Final = 128
_TREND_TICK_S: Final = 10.0
"""In larger fleets the lines of the table are made anew this often only: half a millisecond a pool adds up."""


def _silent(fleet: FleetSnapshot) -> list[tuple[str, SourceState]]:
    """Return workers that have no pool in the snapshot, with their state."""
    known = {pool.worker_id for pool in fleet.pools}
    return [
        (view.worker_id, view.state or SourceState.NOTHING_YET)
        for view in context.runtime().sources()
        if view.worker_id not in known and not view.is_router
    ]


def states(fleet: FleetSnapshot) -> bool:
    """Draw the empty, starting and all-old states; say whether there is anything else to draw."""
    t = context.say()
    silent = _silent(fleet)
    if not fleet.pools:
        if context.past_at_s() is not None or not silent:
            context.draw_empty("common.no_workers")
        elif all(state is SourceState.NOTHING_YET for _, state in silent):
            st.info(t("common.starting", count=len(silent)))
        else:
            st.error(t("fleet.silent", workers=_named(silent)))
        return False
    if not any(pool.state.is_scored for pool in fleet.pools):
        age_s = figures.oldest_age_s(fleet.pools)
        st.error(t("fleet.none_answered") if age_s is None else t("fleet.all_old", age=number.age(age_s)))
    if silent:
        st.warning(t("fleet.silent", workers=_named(silent)))
    return True


def _named(silent: Sequence[tuple[str, SourceState]]) -> str:
    t = context.say()
    names = [f"{number.markdown(worker, 60)} ({t(f'common.state_{state.value}')})" for worker, state in silent[:8]]
    return ", ".join(names) + (f" +{len(silent) - 8}" if len(silent) > 8 else "")


def key_figures(fleet: FleetSnapshot) -> None:
    """Draw the six numbers on top."""
    t = context.say()
    silent = [state for _, state in _silent(fleet)]
    role, pools = summaries.holders(fleet)
    whole, held = context.shared(
        "fleet.summary",
        fleet.at_s,
        tuple(silent),
        lambda: (summaries.summarise(fleet.pools, silent), summaries.summarise(pools)),
    )
    role_name = t(f"common.role_{role.value}")
    other = [
        f"{count} {t(f'common.state_{state.value}')}" for state, count in whole.states.items() if not state.is_scored
    ]
    late = whole.states.get(SourceState.LATE, 0)
    if late:
        other.insert(0, f"{late} {t('common.state_late')}")
    spot = st.columns(6, gap="small")
    with spot[0]:
        widgets.key_figure(
            t("fleet.pools"),
            t("fleet.pools_value", fresh=whole.states.get(SourceState.FRESH, 0), count=whole.pool_count),
            " · ".join(other) or t("fleet.pools_all_fresh"),
            t("fleet.pools_help"),
        )
    with spot[1]:
        widgets.key_figure(
            t("fleet.committed"),
            number.share(held.median_ratio, absent=t("common.unknown")),
            t(
                "fleet.committed_max",
                role=role_name,
                share=number.share(held.fullest[1]),
                pool=number.markdown(held.fullest[0], 24),
            )
            if held.fullest
            else t("common.unknown"),
            t("fleet.committed_help", role=role_name),
        )
    with spot[2]:
        widgets.key_figure(
            t("fleet.nodes"),
            t.said(number.points(held.nodes.ratio if held.nodes else None)),
            t(
                "fleet.nodes_detail",
                high=number.markdown(held.nodes.high, 18),
                high_share=number.share(held.nodes.high_ratio),
                low=number.markdown(held.nodes.low, 18),
                low_share=number.share(held.nodes.low_ratio),
            )
            if held.nodes
            else t("fleet.not_comparable"),
            t("fleet.nodes_help", role=role_name),
        )
    with spot[3]:
        widgets.key_figure(
            t("fleet.ranks"),
            t.said(number.points(held.ranks.ratio if held.ranks else None)),
            t(
                "fleet.ranks_detail",
                worker=number.markdown(held.ranks.high.rpartition("/")[0], 18),
                low_share=number.share(held.ranks.low_ratio),
                high_share=number.share(held.ranks.high_ratio),
            )
            if held.ranks
            else t("fleet.not_comparable"),
            t("fleet.ranks_help"),
        )
    with spot[4]:
        missing = t("fleet.free_unknown", count=held.free_unknown_count) if held.free_unknown_count else ""
        nothing = t("fleet.free_no_prefix" if held.prefix_blocks == 0 else "common.unknown")
        evictable = t("fleet.free_prefix", blocks=number.compact(held.prefix_blocks)) if held.prefix_blocks else ""
        widgets.key_figure(
            t("fleet.free"),
            ("≥ " if missing and held.free_blocks is not None else "")
            + number.compact(held.free_blocks, absent=t("common.unknown")),
            " · ".join(filter(None, (evictable, missing))) or nothing,
            t("fleet.free_help"),
        )
    with spot[5]:
        missing = t("fleet.waiting_unknown", count=whole.waiting_unknown_count) if whole.waiting_unknown_count else ""
        need = number.amount(held.queued_tokens or None, "tokens", absent="")
        widgets.key_figure(
            t("fleet.waiting"),
            ("≥ " if missing and whole.waiting_count is not None else "")
            + number.compact(whole.waiting_count, absent=t("common.unknown")),
            " · ".join(filter(None, (t("fleet.waiting_tokens", tokens=need) if need else "", missing)))
            or t("fleet.waiting_requests" if whole.waiting_count is not None else "common.unknown"),
            t("fleet.waiting_help"),
        )
    at = number.instant(fleet.at_s)
    age = number.age(figures.oldest_age_s(fleet.pools))
    st.caption(t("fleet.tick", at=at, age=age) if whole.scored_count else t("fleet.tick_none", at=at))


def findings(fleet: FleetSnapshot, pools: Sequence[PoolSnapshot]) -> None:
    """Draw which of these pools cannot be scored and why, and what was noticed about the fleet and about them."""
    t = context.say()
    said = filters.not_scored(pools, t)
    for line in said[:_MOST_LINES]:
        st.error(line)
    if len(said) > _MOST_LINES:
        with st.expander(t("fleet.findings_more", count=len(said) - _MOST_LINES)):
            for line in said[_MOST_LINES:]:
                st.markdown(line)
    widgets.findings(
        [("", finding) for finding in fleet.findings]
        + [(pool.pool_id, finding) for pool in pools for finding in pool.findings],
        is_calm=not said and all(pool.state is SourceState.FRESH for pool in pools),
    )


def section(role: Role, pools: Sequence[PoolSnapshot], unit: str, variant: Hashable) -> None:
    """Draw the pools of one role as bars; a click opens the pool."""
    t, language = context.say(), context.language()
    key = "fleet.section" if len(pools) > 1 else "fleet.section_one"
    title = t(key, role=t(f"common.role_{role.value}"), count=len(pools))
    st.subheader(title, anchor=False)
    notes = filters.notes(pools, unit, t)
    if role is Role.PREFILL:
        notes = [t("fleet.prefill_empty"), *notes]
    for note in notes:
        st.caption(note)
    payload = context.shared(
        f"fleet.bars.{role.value}",
        pools[0].at_s,
        (variant, language),
        lambda: figures.bars(pools, unit, t, language, title),
    )
    clicked = context.draw(payload, key=f"fleet.bars.{role.value}")
    if clicked:
        context.open_page("worker", pool=clicked)


def table(pools: Sequence[PoolSnapshot]) -> None:
    """Draw every pool as a row; a selected row opens the pool."""
    t = context.say()
    at_s = pools[0].at_s
    lines = context.shared(
        "fleet.trends",
        at_s if len(pools) <= _FEW_POOLS else at_s // _TREND_TICK_S,
        "all",
        lambda: tables.trends(context.runtime().histories(), at_s, TREND_S),
    )
    rows = tables.table(pools, lines, t)
    config = st.column_config
    whole = {name: config.NumberColumn(t(f"fleet.col_{name}"), format="localized") for name in tables.WHOLE_NUMBERS}
    st.subheader(t("fleet.table"), anchor=False)
    event = st.dataframe(
        rows,
        hide_index=True,
        key="fleet.table",
        height=min(len(pools), 24) * 35 + 38,
        on_select="rerun",
        selection_mode="single-row",
        placeholder="–",
        column_config={
            **{name: config.TextColumn(t(f"fleet.col_{name}")) for name in tables.TEXTS},
            **whole,
            "pool": config.TextColumn(t("fleet.col_pool"), pinned=True),
            "committed": config.ProgressColumn(
                t("fleet.col_committed"), format="percent", min_value=0.0, max_value=1.0
            ),
            "trend": config.LineChartColumn(
                t("fleet.col_trend", minutes=f"{TREND_S / 60:.0f}"),
                help=t("fleet.col_trend_help"),
                y_min=0.0,
                y_max=1.0,
                width="medium",
            ),
            "age": config.NumberColumn(t("fleet.col_age"), format="%.1f"),
            "step": config.NumberColumn(t("fleet.col_step"), format="%.1f"),
            "memory": config.NumberColumn(t("fleet.col_memory"), format="%.1f"),
            "duty": config.NumberColumn(t("fleet.col_duty"), format="percent"),
            "hit": config.NumberColumn(t("fleet.col_hit"), format="percent"),
        },
    )
    st.caption(t("fleet.table_hint"))
    if event.selection.rows:
        context.open_page("worker", pool=pools[event.selection.rows[0]].pool_id)
