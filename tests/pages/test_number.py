"""How numbers look: laws of the one place that formats them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pages.figures import number

FINITE = st.floats(min_value=0.0, max_value=1e14, allow_nan=False)


@pytest.mark.parametrize("function", [number.compact, number.byte_size, number.share, number.duration, number.age])
@pytest.mark.parametrize("value", [None, math.nan])
def test_unknown_is_never_a_number(function, value) -> None:
    """None and NaN are shown as the word given, never as 0."""
    assert function(value, "unknown") == "unknown"


@given(FINITE)
def test_compact_keeps_three_digits(value: float) -> None:
    """Reading a count back gives the value within half a unit of the third digit."""
    text = number.compact(value)
    scale = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.get(text[-1], 1.0)
    read = float(text.rstrip("kMGT")) * scale
    assert read == pytest.approx(value, rel=5.1e-3)


@given(FINITE, FINITE)
def test_shown_order_is_order(first: float, second: float) -> None:
    """A larger span never reads as a smaller one."""
    unit = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

    def read(text: str) -> float:
        words = text.split()
        return sum(float(words[i]) * unit[words[i + 1]] for i in range(0, len(words), 2))

    low, high = sorted((first, second))
    assert read(number.duration(low)) <= read(number.duration(high)) * 1.006


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 %"),
        (0.0004, "<0.1 %"),
        (0.034, "3.4 %"),
        (0.42, "42 %"),
        (0.996, "99.6 %"),
        (0.9999, "99.9 %"),
        (1.0, "100 %"),
        (1.04, "104 %"),
    ],
)
def test_a_share_says_full_only_of_what_is_full(value: float, text: str) -> None:
    """Nothing below the whole is shown as 100 %, nothing above zero as 0 %."""
    assert number.share(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (12_345.0, "tokens", "12.3k tokens"),
        (1.2 * 1024**3, "bytes", "1.2 GiB"),
        (999_600.0, "tokens", "1M tokens"),
        (0.0231, "s", "23.1 ms"),
        (190.0, "s", "3 min 10 s"),
        (-410.0, "tokens/s", "−410 tokens/s"),
        (0.0, "count", "0"),
    ],
)
def test_amounts_read_as_agreed(value: float, unit: str, text: str) -> None:
    """The agreed looks of the house."""
    assert number.amount(value, unit) == text


def test_an_unknown_unit_is_refused() -> None:
    """A page cannot invent a unit."""
    with pytest.raises(ValueError, match="furlongs"):
        number.amount(1.0, "furlongs")


@given(st.text())
def test_text_from_outside_is_never_markup(text: str) -> None:
    """In a figure no `<` or `>` is left; in Markdown every sign that formats or links is escaped."""
    assert not set(number.plain(text)) & {"<", ">"}
    escaped = number.markdown(text)
    bare = [sign for place, sign in enumerate(escaped) if sign in "[]()`*_<>!#" and escaped[place - 1 : place] != "\\"]
    assert not bare
    assert "`" not in number.code(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("max 56 % decode-6/1", "max 56\u00a0% decode-6/1"),
        ("within 25 s", "within 25\u00a0s"),
        ("15.5 MiB, 329 cycles", "15.5\u00a0MiB, 329 cycles"),
        ("0 of 2", "0 of 2"),
        ("5 sources", "5 sources"),
    ],
)
def test_a_number_keeps_its_unit(text: str, shown: str) -> None:
    """No line breaks between a number and its unit; words that follow a number stay loose."""
    assert number.unbroken(text) == shown
