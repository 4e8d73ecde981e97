"""
Controls whose value lives in the URL, so that a link reproduces what is on screen, in every language.

Streamlit's own `bind="query-params"` writes the drawn label into the URL, which a reader in another language cannot
open; here the URL holds the stable word (`unit=bytes`) whatever the label. A value chosen also stays for the session,
so it is there again after a look at another page. The URL wins over both.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import streamlit as st

_TRUE: Final = "true"
_FALSE: Final = "false"
_MOST_DIGITS: Final = 18


def _adopt(param: str, key: str, accept: Callable[[list[str]], Any], default: Any) -> None:
    """Before the widget: take over what the URL says, when it is new; else what was kept; else the default."""
    raw = st.query_params.get_all(param)
    published = st.session_state.get(f"url.{param}")
    is_new = key not in st.session_state
    if raw and (is_new or raw != published):
        value = accept(raw)
        st.session_state[key] = default if value is None else value
    elif is_new:
        words = st.session_state.get(f"keep.{param}")
        value = accept([words] if isinstance(words, str) else words) if words else None
        st.session_state[key] = default if value is None else value


def _publish(param: str, value: Any, words: list[str], default: Any) -> None:
    """After the widget: say its value in the URL (nothing for the default), and keep it for other pages."""
    st.session_state[f"keep.{param}"] = value if isinstance(value, str) else words
    wanted = [] if value == default else words
    if st.query_params.get_all(param) != wanted:
        if wanted:
            st.query_params[param] = wanted
        else:
            del st.query_params[param]
    st.session_state[f"url.{param}"] = wanted


def whole_of(text: str, bounds: tuple[int, int]) -> int | None:
    """Return the whole number a URL says, moved into `bounds`; None for what is no such number, whatever it is."""
    digits = text.strip().removeprefix("-")
    # Nobody counts with more digits than this, and Python refuses to read some thousands of them.
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS):
        return None
    return min(max(int(text), bounds[0]), bounds[1])


def number_of(text: str, bounds: tuple[float, float]) -> float | None:
    """Return the number a URL says, moved into `bounds`; None for what is none, "nan" and "inf" included."""
    try:
        value = float(text)
    except ValueError:
        return None
    return min(max(value, bounds[0]), bounds[1]) if math.isfinite(value) else None


def _key(param: str, language: str) -> str:
    return f"control.{param}.{language}"


def kept(param: str) -> str | None:
    """Return what the URL says of `param`, else what was chosen in this session, else None; before any control."""
    raw = st.query_params.get(param)
    if raw is not None:
        return raw
    value = st.session_state.get(f"keep.{param}")
    return value if isinstance(value, str) else None


def segments(
    param: str, label: str, options: Sequence[str], default: str, show: Callable[[str], str], language: str
) -> str:
    """Draw one choice of a few side by side and return the chosen word."""
    key = _key(param, language)
    _adopt(param, key, lambda raw: raw[0] if raw[0] in options else None, default)
    value = st.segmented_control(label, options, required=True, format_func=show, key=key)
    chosen = default if value is None else value
    _publish(param, chosen, [chosen], default)
    return chosen


def select(
    param: str,
    label: str,
    options: Sequence[str],
    language: str,
    width: int = 280,
    show: Callable[[str], str] = str,
) -> str:
    """Draw one choice of many; a value in the URL that is not among them is offered all the same, so it can be said."""
    key = _key(param, language)
    default = options[0]
    _adopt(param, key, lambda raw: raw[0] or None, default)
    current = st.session_state[key]
    offered = list(options) if current in options else [current, *options]
    chosen = str(st.selectbox(label, offered, format_func=show, key=key, width=width))
    # Always in the URL: what comes first today may not be the first tomorrow.
    _publish(param, chosen, [chosen], None)
    return chosen


def pills(param: str, label: str, options: Sequence[str], show: Callable[[str], str], language: str) -> list[str]:
    """Draw any choice of a few and return the chosen words; none chosen means all."""
    key = _key(param, language)
    _adopt(param, key, lambda raw: [word for word in options if word in raw], [])
    chosen = list(st.pills(label, options, selection_mode="multi", format_func=show, key=key))
    _publish(param, chosen, chosen, [])
    return chosen


def many(param: str, label: str, options: Sequence[str], placeholder: str, language: str, width: int) -> list[str]:
    """Draw any choice of many and return the chosen words; words that are gone for now stay chosen."""
    key = _key(param, language)
    _adopt(param, key, lambda raw: list(raw), [])
    offered = list(dict.fromkeys([*options, *st.session_state[key]]))
    chosen = list(st.multiselect(label, offered, placeholder=placeholder, key=key, width=width))
    _publish(param, chosen, chosen, [])
    return chosen


def text(
    param: str, label: str, language: str, *, placeholder: str = "", help_: str | None = None, width: int | None = None
) -> str:
    """Draw a line of text and return it without spaces around."""
    key = _key(param, language)
    _adopt(param, key, lambda raw: raw[0], "")
    drawn = st.text_input(label, placeholder=placeholder, help=help_, key=key, width=width or "stretch")
    value = str(drawn or "").strip()
    _publish(param, value, [value], "")
    return value


def switch(param: str, label: str, language: str, help_: str, *, default: bool) -> bool:
    """Draw an on/off switch and return where it stands."""
    key = _key(param, language)
    _adopt(param, key, lambda raw: {_TRUE: True, _FALSE: False}.get(raw[0]), default)
    value = bool(st.toggle(label, key=key, help=help_))
    _publish(param, _TRUE if value else _FALSE, [_TRUE if value else _FALSE], _TRUE if default else _FALSE)
    return value
