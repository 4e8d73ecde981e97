"""The Worker page: one pool, now and over time, and where every figure comes from."""

import streamlit as st

from pages import _context as context
from pages import _controls as controls
from pages import _worker_parts as parts
from pages.figures import fleet as fleet_figures

t, language = context.say(), context.language()
context.runtime()
st.title(t("worker.title"))

known = [pool.pool_id for pool in context.snapshot().pools]
if not known:
    context.draw_empty("worker.no_pools")
    st.stop()
with st.container(horizontal=True, vertical_alignment="bottom"):
    chosen = controls.select("pool", t("worker.pool"), known, language)
    span = controls.segments(
        "range", t("worker.range"), list(parts.RANGES_S), "5m", lambda name: t(f"worker.range_{name}"), language
    )
    unit = controls.segments(
        "unit", t("worker.unit"), fleet_figures.UNITS, "tokens", lambda name: t(f"common.unit_{name}"), language
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
