"""The Worker page: one pool, now and over time, and where every figure comes from."""

import streamlit as st

from pages import _context as context
from pages import _worker_parts as parts
from pages.figures import fleet as fleet_figures

t = context.say()
context.runtime()
st.title(t("worker.title"))

known = [pool.pool_id for pool in context.snapshot().pools]
if not known:
    st.info(t("worker.no_pools"))
    st.stop()
wanted = st.query_params.get("pool", known[0])
with st.container(horizontal=True, vertical_alignment="bottom"):
    chosen = st.selectbox(
        t("worker.pool"), known if wanted in known else [wanted, *known], key="pool", bind="query-params", width=280
    )
    span = st.segmented_control(
        t("worker.range"),
        list(parts.RANGES_S),
        default="5m",
        required=True,
        format_func=lambda name: t(f"worker.range_{name}"),
        key="range",
        bind="query-params",
    )
    unit = st.segmented_control(
        t("worker.unit"),
        fleet_figures.UNITS,
        default="tokens",
        required=True,
        format_func=lambda name: t(f"common.unit_{name}"),
        key="unit",
        bind="query-params",
    )


def body() -> None:
    """Draw what follows the tick."""
    pool = next((item for item in context.snapshot().pools if item.pool_id == chosen), None)
    if pool is None:
        parts.gone(chosen)
        return
    parts.state(pool)
    parts.key_figures(pool)
    parts.findings(pool)
    parts.now(pool, unit)
    parts.over_time(pool, span, unit)
    parts.tables(pool)
    parts.polls(pool)


context.live_part(body)
