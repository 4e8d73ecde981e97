"""The Fleet page: which pool is in trouble, how full, how uneven, and is the number even fresh?"""

import streamlit as st

from pages import _context as context
from pages import _controls as controls
from pages import _fleet_parts as parts
from pages.figures import fleet as figures
from pages.figures import fleet_filter as filters

t, language = context.say(), context.language()
context.runtime()
st.title(t("fleet.title"))

first = context.snapshot()
with st.container(horizontal=True, vertical_alignment="bottom"):
    unit = controls.segments(
        "unit", t("fleet.unit"), figures.UNITS, "tokens", lambda name: t(f"common.unit_{name}"), language
    )
    present = [role.value for role in figures.ROLES if any(pool.role is role for pool in first.pools)]
    roles = controls.pills("role", t("fleet.role"), present, lambda name: t(f"common.role_{name}"), language)
    order = controls.segments(
        "order", t("fleet.order"), filters.ORDERS, "name", lambda name: t(f"fleet.order_{name}"), language
    )
    labels = controls.many(
        "label", t("fleet.labels"), filters.label_values(first.pools), t("fleet.labels_any"), language, 190
    )
    wanted = controls.text("find", t("fleet.find"), language, placeholder=t("fleet.find_hint"), width=150)


def body() -> None:
    """Draw what follows the tick."""
    fleet = context.snapshot()
    pools = filters.matching(fleet.pools, roles, labels, wanted)
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
