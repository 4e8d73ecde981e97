"""The Fleet page: which pool is in trouble, how full, how uneven, and is the number even fresh?"""

import streamlit as st

from pages import _context as context
from pages import _fleet_parts as parts
from pages.figures import fleet as figures
from pages.figures import fleet_filter as filters

t = context.say()
running = context.runtime()
st.title(t("fleet.title"))

first = context.snapshot()
with st.container(horizontal=True, vertical_alignment="bottom"):
    unit = st.segmented_control(
        t("fleet.unit"),
        figures.UNITS,
        default="tokens",
        required=True,
        format_func=lambda name: t(f"common.unit_{name}"),
        key="unit",
        bind="query-params",
    )
    roles = st.pills(
        t("fleet.role"),
        [role.value for role in figures.ROLES if any(pool.role is role for pool in first.pools)],
        selection_mode="multi",
        format_func=lambda name: t(f"common.role_{name}"),
        key="role",
        bind="query-params",
    )
    order = st.segmented_control(
        t("fleet.order"),
        ("name", "committed", "waiting"),
        default="name",
        required=True,
        format_func=lambda name: t(f"fleet.order_{name}"),
        key="order",
        bind="query-params",
    )
    labels = st.multiselect(
        t("fleet.labels"),
        filters.label_values(first.pools),
        placeholder=t("fleet.labels_any"),
        key="label",
        bind="query-params",
        width=260,
    )
    wanted = st.text_input(
        t("fleet.find"), placeholder=t("fleet.find_hint"), key="find", bind="query-params", width=180
    )


def body() -> None:
    """Draw what follows the tick."""
    fleet = context.snapshot()
    pools = filters.matching(fleet.pools, roles, labels, wanted or "")
    if not parts.states(fleet):
        return
    parts.key_figures(fleet)
    parts.findings(fleet, pools)
    if not pools:
        st.info(t("fleet.no_match"))
        return
    for role in figures.ROLES:
        members = filters.order_pools([pool for pool in pools if pool.role is role], order)
        if members:
            parts.section(role, members, unit, (unit, order, tuple(roles), tuple(labels), wanted))
    parts.table(pools)


context.live_part(body)
