"""
Taking a view along: a link that reproduces it, its values as CSV and Parquet, its figures as PNG, one HTML file.

`begin` before a page runs and `draw` after it, by what stands around every page; `note` for each figure drawn. What a
viewer has on screen is kept in that viewer's session: references to figures that are shared between viewers anyway.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final
from urllib.parse import urlencode

import streamlit as st

from pages.figures import number
from pages.figures import share as figures
from pages.texts import Say
from scoring.model import FleetSnapshot

_DRAWN: Final = "share.drawn"
_PAGE: Final = "share.page"
_PNG_SCRIPT: Final = """
export default function(component) {
  const { data, parentElement } = component;
  let button = parentElement.querySelector('button');
  if (!button) {
    button = document.createElement('button');
    button.className = 'kv-png';
    parentElement.appendChild(button);
  }
  button.textContent = data.label;
  button.onclick = async () => {
    const plots = [...document.querySelectorAll('.kv-plot[data-ticks]')];
    if (!plots.length || !window.Plotly) return;
    const images = [];
    for (const plot of plots) {
      const image = new Image();
      const size = { width: plot.offsetWidth, height: plot.offsetHeight };
      image.src = await window.Plotly.toImage(plot, { format: 'png', scale: 2, ...size });
      await image.decode();
      images.push(image);
    }
    const sheet = document.createElement('canvas');
    sheet.width = Math.max(...images.map((image) => image.width));
    sheet.height = images.reduce((sum, image) => sum + image.height, 0);
    const pen = sheet.getContext('2d');
    pen.fillStyle = getComputedStyle(parentElement).getPropertyValue('--st-background-color').trim() || '#ffffff';
    pen.fillRect(0, 0, sheet.width, sheet.height);
    let top = 0;
    for (const image of images) { pen.drawImage(image, 0, top); top += image.height; }
    const link = document.createElement('a');
    link.href = sheet.toDataURL('image/png');
    link.download = data.filename + '.png';
    link.click();
  };
}
"""
_PNG_STYLE: Final = """
.kv-png { width: 100%; padding: 0.4rem 0.75rem; font: inherit; color: inherit; background: transparent; cursor: pointer;
  border: 1px solid var(--st-border-color, #8893A2); border-radius: 0.35rem; }
.kv-png:hover, .kv-png:focus-visible { border-color: var(--st-primary-color); color: var(--st-primary-color); }
"""
_png = st.components.v2.component("kvscope_png", css=_PNG_STYLE, js=_PNG_SCRIPT, isolate_styles=False)


def begin(word: str) -> None:
    """Forget what the page before had on screen, at the start of a run of page `word`."""
    st.session_state[_PAGE] = word
    st.session_state[_DRAWN] = {}


def note(key: str, payload: bytes) -> None:
    """Remember a figure that was drawn; the newest of a key counts."""
    drawn = st.session_state.setdefault(_DRAWN, {})
    drawn.pop(key, None)
    drawn[key] = payload


def link(word: str, is_front: bool, at_s: float | None, query: dict[str, Any]) -> str:
    """Return the address of a view below the server's root: pinned to an instant, or live for None."""
    asked = {name: value for name, value in query.items() if name not in ("at", "live")}
    if at_s is not None:
        asked["at"] = f"{at_s:.3f}"
    path = "/" if is_front else f"/{word}"
    return f"{path}?{urlencode(asked, doseq=True)}" if asked else path


def draw(t: Say, language: str, fleet: FleetSnapshot | None, *, is_front: bool) -> None:
    """Draw the popover of the page `begin` was called for; `fleet`: what is drawn, None where nothing is watched."""
    word = str(st.session_state.get(_PAGE, ""))
    query = {name: st.query_params.get_all(name) for name in st.query_params}
    shown = query.get("at", [""])[0]
    menu = st.popover(
        t("share.title"), icon=":material/share:", width="stretch", key="share.popover", on_change="rerun"
    )
    with menu:
        at_s = None if fleet is None else fleet.at_s
        pinned = link(word, is_front, at_s, query)
        if not shown:
            st.caption(t("share.link_live"))
            st.code(link(word, is_front, None, query), language=None, wrap_lines=True)
        st.caption(t("share.link"))
        st.code(pinned, language=None, wrap_lines=True)
        st.caption(t("share.download"))
        if not st.session_state.get(_DRAWN):
            st.caption(t("share.nothing"))
            return
        name = f"kvscope-{word}"
        page = figures.Page(
            title=f"{t('common.product')} · {t(f'common.nav_{word}')}",
            link=pinned,
            at=number.instant(at_s),
            language=language,
        )
        # Made when the menu opens, of the instant its link names. A file made at the click belongs to no viewer, and
        # Streamlit sweeps it at the second end of any viewer's tick: on a watched server, before it is fetched.
        held = st.session_state
        rows = cache(lambda: figures.rows(dict(held.get(_DRAWN, {}))))
        builds: tuple[tuple[str, str, Callable[[], bytes]], ...] = (
            ("csv", "text/csv", lambda: figures.csv_bytes(rows())),
            ("parquet", "application/vnd.apache.parquet", lambda: figures.parquet_bytes(rows())),
            ("html", "text/html", lambda: figures.page_html(page, dict(held.get(_DRAWN, {})), fleet, t)),
        )
        for kind, mime, build in builds:
            st.download_button(
                t(f"share.{kind}"),
                build() if menu.open else build,
                file_name=f"{name}.{kind}",
                mime=mime,
                key=f"share.{kind}",
                on_click="ignore",
                width="stretch",
            )
        _png(key="share.png", data={"label": t("share.png"), "filename": name})
        st.caption(t("share.tables"))
