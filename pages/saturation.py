"""The Saturation page: which pools near the point of no return, why, how long is left, and who was told."""

import streamlit as st

from collectors.errors import KvscopeError
from pages import _context as context
from pages import _controls as controls
from pages import _saturation_data as reads
from pages import _saturation_parts as parts

t, language = context.say(), context.language()
context.runtime()
st.title(t("saturation.title"))
st.caption(t("saturation.lead"))

known = [pool.pool_id for pool in context.snapshot().pools]
if not known:
    context.draw_empty("saturation.no_pools")
    st.stop()
with st.container(horizontal=True, vertical_alignment="bottom"):
    chosen = controls.select(
        "pool",
        t("saturation.pool"),
        [parts.GRAVEST, *known],
        language,
        show=lambda name: t("saturation.gravest") if name == parts.GRAVEST else name,
    )
    span = controls.segments(
        "range",
        t("saturation.range"),
        list(parts.RANGES_S),
        "15m",
        lambda name: t(f"saturation.range_{name}"),
        language,
    )
    worker = controls.select(
        "without", t("saturation.without"), sorted({pool.worker_id for pool in context.snapshot().pools}), language
    )


def read() -> reads.View | None:
    """Return what to draw; None, with the reason drawn, where the store cannot be read."""
    try:
        return reads.view()
    except KvscopeError as error:
        context.read_failed(error)
        return None


def overview() -> None:
    """Draw the numbers on top, alerts and the strip."""
    view = read()
    if view is None:
        return
    parts.key_figures(view)
    parts.alerts(view)
    clicked = parts.strip(view, span)
    if clicked:
        context.open_page("saturation", pool=clicked)


def detail() -> None:
    """Draw the chain of one pool, the ranking, the reserve, the prefill side and a node's death."""
    view = read()
    if view is None:
        return
    row = parts.chosen_row(view, chosen)
    if row is None:
        st.warning(t("saturation.gone", pool=parts.safe(chosen)))
        return
    left, right = st.columns([1.15, 1.0], gap="medium")
    with left:
        parts.chain(view, row)
    with right:
        parts.verdict(row)
        parts.ranking(view)
    parts.limits(view, row)
    parts.phase(view, row)
    first, second = st.columns(2, gap="medium")
    with first:
        parts.reserve(view)
        parts.reserve_parts(view, row)
    with second:
        parts.prefill(view)
        parts.death(view, worker)


context.live_part(overview)
context.live_part(detail)
parts.silences(reads.center(), language)
