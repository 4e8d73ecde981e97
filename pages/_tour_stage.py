"""
What stands around a step of the tour: the large type, and the ways to another step and to the other language.

Presses are counted in the browser and summed up here: a press made while the page still turns, whose request carries
the address of the step before, is a step all the same.
"""

from typing import Any, Final, NoReturn

import streamlit as st

from pages import _context as context
from pages.texts import LANGUAGES

_PLACE: Final = "tour.place"
_TURNS: Final = "tour.turns"
_HEARD: Final = "tour.heard"
_KEYS: Final = """
const STEPS = { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 };

export default function({ parentElement, setStateValue }) {
  const state = parentElement.__kvKeys || (parentElement.__kvKeys = { mount: String(Math.random()), turned: 0 });
  state.tell = setStateValue;
  if (state.hear) return;
  state.hear = (event) => {
    if (!parentElement.isConnected) { document.removeEventListener('keydown', state.hear); return; }
    const step = STEPS[event.key];
    const isTyping = event.target.closest && event.target.closest('input, textarea, select, [contenteditable=true]');
    if (!step || isTyping || event.repeat || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    state.turned += step;
    state.tell('turned', [state.mount, state.turned]);
  };
  document.addEventListener('keydown', state.hear);
  return () => {
    document.removeEventListener('keydown', state.hear);
    state.hear = null;
  };
}
"""
_keys = st.components.v2.component("kvscope_tour_keys", js=_KEYS, isolate_styles=False)

STYLE: Final = """<style>
[data-testid="stSidebar"], [data-testid="stExpandSidebarButton"] { display: none; }
[data-testid="stMainBlockContainer"] { padding: 3.5rem 2.5rem 0.2rem; max-width: 100%; }
[data-testid="stMainBlockContainer"] h1 { font-size: clamp(1.7rem, 2.5vw, 3rem); padding: 0; line-height: 1.15; }
.st-key-tour_text p { font-size: clamp(1.05rem, 1.4vw, 1.7rem); line-height: 1.4; max-width: 75em; }
.st-key-tour_full .kv-plot { height: calc(100vh - 15.6rem - 4vw); min-height: 240px; }
.st-key-tour_mid .kv-plot { height: calc(100vh - 18.6rem - 4vw); min-height: 200px; }
.st-key-tour_half .kv-plot { height: calc((100vh - 18.6rem - 4vw) * 0.5); min-height: 150px; }
.st-key-tour_terms .kv-plot { height: calc((100vh - 18.6rem - 4vw) * 0.5); }
.st-key-tour_stage { min-height: calc(100vh - 10rem); }
.st-key-tour_bar p { white-space: nowrap; }
.st-key-tour-keys { position: absolute; }
</style>"""
"""Large type, and figures as tall as the screen lets them be, from 1280x720 to 1920x1080 without scrolling."""


def place_of(text: str | None, count: int) -> int:
    """Return the step a URL asks for, counted from 0; the first where it asks for none there is."""
    return next((place for place in range(count) if text == str(place + 1)), 0)


def place_now(count: int) -> int:
    """
    Return the step to draw, counted from 0, and let the address say it.

    It is where keys and buttons turned to; else what a new address asks for; else, back from another page, where the
    viewer was.
    """
    held, raw = st.session_state, st.query_params.get("step")
    turned = held.pop(_TURNS, 0) + _pressed()
    place: int | None = held.get(_PLACE)
    if place is not None and turned:
        place = min(max(place + turned, 0), count - 1)
    elif place is None or (raw is not None and raw != str(place + 1)):
        place = place_of(raw, count)
    elif raw is None and not context.is_new_here():
        place = 0  # The browser's own way back, to the address without a step.
    held[_PLACE] = place
    if raw != str(place + 1) and (raw is not None or place):
        st.query_params["step"] = str(place + 1)
    return place


def _pressed() -> int:
    """Return by how many steps keys were pressed since this was asked last, back counted as less than none."""
    told: Any = _keys(key="tour.keys", on_turned_change=lambda: None).get("turned")
    if not told:
        return 0
    mount, total = str(told[0]), int(told[1])
    before = st.session_state.get(_HEARD)
    st.session_state[_HEARD] = (mount, total)
    # What counted anew is another browser page of the same viewer, or this one after a look at another.
    return total - (before[1] if before is not None and before[0] == mount else 0)


def turn(steps: int) -> None:
    """Go on by so many steps, back by less than none: what a button does, before the page is drawn again."""
    st.session_state[_TURNS] = st.session_state.get(_TURNS, 0) + steps


def leave(word: str) -> NoReturn:
    """Go to another page for good: the tour begins anew when it is opened again."""
    for name in (_PLACE, "tour.entered"):
        st.session_state.pop(name, None)
    context.open_page(word)


def other_language() -> None:
    """Draw the switch to the other language, since the sidebar that holds it is out of the way here."""
    word = "en" if context.language() == "zh" else "zh"
    if st.button(LANGUAGES[word], type="tertiary", key="tour.lang"):
        st.query_params["lang"] = word
        st.rerun()


def dots(place: int, count: int) -> str:
    """Return where the viewer is, as text and as a row of dots."""
    row = " ".join("●" if index == place else "○" for index in range(count))
    return f"{context.say()('tour.of', step=place + 1, count=count)} {row}"
