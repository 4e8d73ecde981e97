"""
How a number looks on every page: three significant digits, unit signs, ages. One place, so that figures compare.

Unknown is the caller's business: every function takes `absent`, the text shown for None or NaN, and never shows 0
for it. Texts from outside go through `plain` before they reach a figure and through `markdown` before they reach a
page: names in payloads are data, never markup.
"""

import math
import re
from datetime import UTC, datetime

ABSENT = "–"
_MINUS = "−"
_METRIC = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((1024.0**4, "TiB"), (1024.0**3, "GiB"), (1024.0**2, "MiB"), (1024.0, "KiB"))
_LONGEST_NAME = 60  # chosen: longer names push figures aside; the whole name stays in tables.
_UNIT_GAP = re.compile(r"(?<=\d) (?=%|(?:s|ms|min|h|d|pts|B|[KMGT]iB)(?:\b|/))")
_MARKDOWN_SIGNS = "\\`*_{}[]()<>#+-.!|~$:^="


def _is_absent(value: float | None) -> bool:
    return value is None or math.isnan(value)


def significant(value: float, digits: int = 3) -> str:
    """Return `value` in plain notation with `digits` significant digits and no trailing zeros after the point."""
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{abs(value):.{places}f}"
    if places and len(text.partition(".")[0]) + places > digits and float(text) >= 10 ** (digits - places):
        text = f"{abs(value):.{max(0, places - 1)}f}"  # 9.996 rounds up to 10.0, not 10.00.
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return (_MINUS if value < 0 else "") + text


def compact(value: float | None, absent: str = ABSENT) -> str:
    """Return a count such as `842`, `12.3k`, `4.56M`; whole numbers below a thousand keep all digits."""
    if value is None or math.isnan(value):
        return absent
    if math.isinf(value):
        return "∞" if value > 0 else f"{_MINUS}∞"
    size = abs(value)
    for scale, sign in _METRIC:
        if size >= scale * 0.9995:
            return f"{significant(value / scale)}{sign}"
    if float(value).is_integer():
        return f"{_MINUS if value < 0 else ''}{int(size)}"
    return significant(value)


def byte_size(value: float | None, absent: str = ABSENT) -> str:
    """Return bytes such as `1.2 GiB`; powers of 1024."""
    if value is None or math.isnan(value):
        return absent
    for scale, sign in _BINARY:
        if abs(value) >= scale * 0.9995:
            return f"{significant(value / scale)} {sign}"
    return f"{significant(value)} B"


def share(ratio: float | None, absent: str = ABSENT) -> str:
    """Return a ratio (1 = whole) such as `42 %`, `<0.1 %`, `3.4 %`; may exceed 100 %."""
    if ratio is None or math.isnan(ratio):
        return absent
    hundredths = ratio * 100.0
    if 0 < hundredths < 0.1:
        return "<0.1 %"
    digits = 0 if abs(hundredths) >= 9.95 or hundredths == 0 else 1
    text = f"{abs(hundredths):.{digits}f}"
    if 99 < hundredths < 100 and text == "100":
        text = f"{math.floor(hundredths * 10) / 10:.1f}"  # full is said only of what is full.
    return f"{_MINUS if hundredths < 0 else ''}{text} %"


def points(ratio_difference: float | None, absent: str = ABSENT) -> str:
    """Return a difference of two shares such as `34 pts`."""
    if ratio_difference is None or math.isnan(ratio_difference):
        return absent
    return f"{significant(round(ratio_difference * 100, 1), 2)} pts"


def duration(seconds: float | None, absent: str = ABSENT) -> str:
    """Return a span such as `850 µs`, `12.5 ms`, `1.2 s`, `3 min 10 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds is None or math.isnan(seconds):
        return absent
    if math.isinf(seconds):
        return "∞"
    sign, size = (_MINUS if seconds < 0 else ""), abs(seconds)
    if size == 0:
        return "0 s"
    if size < 0.9995e-3:
        return f"{sign}{significant(size * 1e6)} µs"
    if size < 0.9995:
        return f"{sign}{significant(size * 1e3)} ms"
    if size < 99.5:
        return f"{sign}{significant(size)} s"
    whole = round(size)
    for large, small, large_sign, small_sign in ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        if whole >= large:
            first, second = divmod(whole, large)
            rest = second // small
            return f"{sign}{first} {large_sign} {rest} {small_sign}" if rest else f"{sign}{first} {large_sign}"
    return f"{sign}{whole} s"


def age(seconds: float | None, absent: str = ABSENT) -> str:
    """Return how old a figure is, such as `0.8 s`, `42 s`, `3 min`: one part, for a glance."""
    if seconds is None or math.isnan(seconds):
        return absent
    size = max(0.0, seconds)
    if size < 9.95:
        return f"{size:.1f} s"
    if size < 99.5:
        return f"{size:.0f} s"
    if size < 5970:
        return f"{size / 60:.0f} min"
    return f"{size / 3600:.0f} h" if size < 172800 else f"{size / 86400:.0f} d"


def clock(at_s: float | None, absent: str = ABSENT) -> str:
    """Return an instant as `14:05:12 UTC`."""
    return absent if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S UTC")


def instant(at_s: float | None, absent: str = ABSENT) -> str:
    """Return an instant as `2026-11-30 14:05:12 UTC`."""
    return absent if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def amount(value: float | None, unit: str, absent: str = ABSENT) -> str:
    """
    Return `value` in `unit` as it is shown: `tokens`, `blocks`, `bytes`, `share`, `s`, `count`, or any of these `/s`.

    Raises:
        ValueError: The unit is none of these.
    """
    if value is None or math.isnan(value):
        return absent
    base, _, per = unit.partition("/")
    tail = f"/{per}" if per else ""
    if base in ("tokens", "blocks", "requests", "steps"):
        return f"{compact(value)} {base}{tail}"
    if base == "count":
        return f"{compact(value)}{tail}"
    if base == "bytes":
        return f"{byte_size(value)}{tail}"
    if base == "share":
        return f"{share(value)}{tail}"
    if base == "s":
        return f"{duration(value)}{tail}"
    raise ValueError(f"unit {unit!r} is not one that pages show")


def unbroken(text: str) -> str:
    """Return text in which no line breaks between a number and its unit."""
    return _UNIT_GAP.sub("\u00a0", text)


def plain(text: object, longest: int = _LONGEST_NAME) -> str:
    """Return `text` safe inside a figure: Plotly reads a subset of HTML, so its signs become entities."""
    cleaned = "".join(sign if sign.isprintable() else "·" for sign in str(text))
    if len(cleaned) > longest:
        cleaned = cleaned[: longest - 1] + "…"
    return cleaned.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def markdown(text: object, longest: int = 400) -> str:
    """Return `text` safe inside Markdown: every sign that could format, link or fetch is escaped."""
    cleaned = "".join(sign if sign.isprintable() else " " for sign in str(text))
    if len(cleaned) > longest:
        cleaned = cleaned[: longest - 1] + "…"
    return "".join(f"\\{sign}" if sign in _MARKDOWN_SIGNS else sign for sign in cleaned).replace("&", "&amp;")


def nice_binary_step(longest_bytes: float) -> float:
    """Return a step of 1, 2, 4, 8.. of a binary unit that divides `longest_bytes` into three to six ticks."""
    if not longest_bytes > 0:
        return 1.0
    return float(2.0 ** max(0, math.ceil(math.log2(longest_bytes / 5.0))))


def code(text: object, longest: int = 80) -> str:
    """Return `text` safe between backticks: the one sign that ends them is replaced."""
    cleaned = "".join(sign if sign.isprintable() else " " for sign in str(text)).replace("`", "ˋ")
    return cleaned if len(cleaned) <= longest else cleaned[: longest - 1] + "…"
