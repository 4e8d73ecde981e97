"""What a URL says is never trusted: any text reads as a value within bounds or as nothing, on every page."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from pages._context import parse_instant_s
from pages._controls import number_of, whole_of
from pages._tour_parts import STEPS
from pages._tour_stage import place_of

LONG = "1" * 5000
BAD_INSTANTS = ("nan", "inf", "1e99", "1e12", "-1", "0001-01-01T00:00:00+14:00", "9999-12-31", LONG, "")
WORDS = st.text() | st.sampled_from(["--5", "nan", "-inf", "1e999", "٣", "²", "1_0", LONG, "-" + LONG])


@given(WORDS, st.integers(-9, 9), st.integers(0, 10**9))
@example("--5", 0, 10)
@example(LONG, 0, 10)
def test_any_text_is_a_number_within_bounds_or_none(text, low, span) -> None:
    """Nothing raises, nothing leaves the bounds, nothing is NaN."""
    whole, real = whole_of(text, (low, low + span)), number_of(text, (low, low + span))
    assert whole is None or low <= whole <= low + span
    assert real is None or low <= real <= low + span
    assert place_of(text, len(STEPS)) in range(len(STEPS))
    at_s = parse_instant_s(text)
    assert at_s is None or math.isfinite(at_s)


@given(st.integers(-(10**17), 10**17))
def test_a_written_number_is_read(value) -> None:
    """Within bounds the number itself, beyond them the nearer bound."""
    assert whole_of(f" {value} ", (-(10**18), 10**18)) == value
    assert whole_of(str(value), (0, 5)) == min(max(value, 0), 5)


@pytest.mark.parametrize("text", BAD_INSTANTS)
def test_no_instant_at_which_a_fleet_could_be_watched(text) -> None:
    """Before 1970, after 2100 and no time at all are none."""
    assert parse_instant_s(text) is None


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("what_if", {"prompt": "--5", "output": LONG, "count": "--1", "n": "--5", "age": "nan", "policy": "x"}),
        ("tour", {"step": LONG, "at": "1e99"}),
        ("fleet", {"at": "nan", "unit": LONG}),
    ],
)
def test_a_page_opens_whatever_its_link_says(watch, fleet_of_demo, page, words) -> None:
    """A mangled link is the page with its defaults, never an error."""
    watch(fleet_of_demo)
    app = AppTest.from_file("../../app.py", default_timeout=60)
    for name, value in words.items():
        app.query_params[name] = value
    app.run()
    app.switch_page(f"pages/{page}.py").run()
    assert not app.exception, [item.message for item in app.exception]


def test_an_instant_to_come_is_no_past(watch, fleet_of_demo) -> None:
    """A link into the future says so."""
    watch(fleet_of_demo)
    app = AppTest.from_file("../../app.py", default_timeout=60)
    app.query_params["at"] = "2099-01-01"
    app.run()
    assert not app.exception
    assert any("still to come" in item.value for item in app.info)
