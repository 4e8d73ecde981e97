"""What is taken along is what was drawn: rows, files that open again, one HTML file that asks nothing of a network."""

import html
import io
import json
import re

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from pages import _share as share
from pages.figures import live
from pages.figures import share as figures
from pages.texts import speaker
from scoring.model import Finding, FleetSnapshot

T = speaker("en")
HOSTILE = "<img src=x onerror=alert(1)></script>"


def _packed(data: list[dict]) -> bytes:
    return live.pack({"data": data, "layout": {"font": {"color": "@ink"}}}, alt=f"a figure {HOSTILE}")


def test_every_drawn_value_is_a_row() -> None:
    """Lines, bars, typed arrays with a start and a step, and matrices: each value once, with its place."""
    payloads = {
        "line": _packed([{"name": "a", "x": [1, 2], "y": [3.5, None]}]),
        "bar": _packed([{"orientation": "h", "x": [7.0], "y": ["d1/0"]}]),
        "long": _packed([{"name": "f", "x0": 10.0, "dx": 2.0, "y": live.array(np.array([1.0, 2.0, 3.0], np.float32))}]),
        "map": _packed([{"x": ["a", "b"], "y": ["r"], "z": live.array(np.array([[1.0, 2.0]], np.float64))}]),
    }
    rows = list(zip(*figures.rows(payloads).values(), strict=True))
    assert ("line", "a", 1, 3.5, 3.5) in rows
    assert ("bar", "1", 7.0, "d1/0", 7.0) in rows
    assert [row[2] for row in rows if row[0] == "long"] == [10.0, 12.0, 14.0]
    assert [row[4] for row in rows if row[0] == "map"] == [1.0, 2.0]
    assert len(rows) == 2 + 1 + 3 + 2


def test_files_hold_the_same_rows_when_opened_again() -> None:
    """CSV and Parquet read back to the same number of rows and the same values."""
    columns = figures.rows({"f": _packed([{"name": "a", "x": ["p", "q"], "y": [1.25, 2.5]}])})
    csv = pd.read_csv(io.BytesIO(figures.csv_bytes(columns)))
    parquet = pd.read_parquet(io.BytesIO(figures.parquet_bytes(columns)))
    assert list(csv.columns) == list(parquet.columns) == list(figures.COLUMNS)
    assert csv["value"].tolist() == parquet["value"].tolist() == [1.25, 2.5]
    assert parquet["x"].tolist() == ["p", "q"]


def test_an_empty_page_gives_empty_files() -> None:
    """No figure: a head and no rows, in both forms."""
    columns = figures.rows({})
    assert len(pd.read_csv(io.BytesIO(figures.csv_bytes(columns)))) == 0
    assert len(pd.read_parquet(io.BytesIO(figures.parquet_bytes(columns)))) == 0


@pytest.mark.parametrize("name", ["=1+1", "+cmd", "-2", "@SUM(A1)", "\t=1"])
def test_no_name_becomes_a_formula(name) -> None:
    """A worker named like a formula is text in a spreadsheet; a negative number stays a number."""
    columns = figures.rows({"f": _packed([{"name": name, "x": [-3.0], "y": [-1.0]}])})
    text = figures.csv_bytes(columns).decode()
    assert f"'{name}" in text.replace('"', "")
    assert "-3.0,-1.0,-1.0" in text


def test_colours_are_those_of_the_theme_and_names_stay_names() -> None:
    """`@name` under a colour becomes its hue, with opacity where given; a worker called @ink keeps its name."""
    figure = {"marker": {"color": ["@active", "@active/0.5"]}, "name": "@ink", "x": ["@ink"]}
    light = figures.painted(figure)
    assert light["marker"]["color"][0].startswith("#")
    assert light["marker"]["color"][1].startswith("rgba(")
    assert (light["name"], light["x"]) == ("@ink", ["@ink"])
    assert figures.painted(figure, "dark")["marker"]["color"][0] != light["marker"]["color"][0]


def test_one_file_holds_everything_and_asks_for_nothing(make_pool) -> None:
    """Figures, pools and findings stand in one HTML file; it loads nothing and holds no markup from outside."""
    item = make_pool(HOSTILE, findings=[Finding(code="odd", text=HOSTILE)])
    fleet = FleetSnapshot(at_s=item.at_s, pools=(item,))
    page = figures.Page(title="KVScope", link="/fleet?at=1", at="2026-11-30 14:05:00 UTC", language="en")
    text = figures.page_html(page, {"f": _packed([{"name": HOSTILE, "x": [1], "y": [2]}])}, fleet, T).decode()
    ours = text.replace(figures._SCRIPT_PATH.read_text(encoding="utf-8"), "")
    assert "<img" not in re.sub(r"<script>.*?</script>", "", ours, flags=re.S)
    assert ours.count("<script>") == ours.count("</script>") == 2
    assert not re.search(
        r"(src|href)=", re.sub(r"<script>.*?</script>", "", ours, flags=re.S).replace(html.escape(HOSTILE), "")
    )
    assert "/fleet?at=1" in ours
    assert "2026-11-30 14:05:00 UTC" in ours
    drawn = re.search(r"displaylogo: false\}\)\)\((\{.*?\})\);</script>", ours, flags=re.S)
    assert json.loads(drawn.group(1).replace("<\\/", "</"))["data"][0]["name"] == HOSTILE


def test_a_link_is_pinned_or_live() -> None:
    """A pinned link carries its instant and every choice, a live one no instant; the front page has the short path."""
    query = {"unit": ["share"], "role": ["decode", "prefill"], "at": ["5"], "live": ["false"]}
    assert share.link("fleet", False, 12.5, query) == "/fleet?unit=share&role=decode&role=prefill&at=12.500"
    assert share.link("fleet", False, None, query) == "/fleet?unit=share&role=decode&role=prefill"
    assert share.link("home", True, None, {}) == "/"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_menu_stands_on_the_page_with_its_files(watch, fleet_of_demo, lang) -> None:
    """The opening page offers its link and three files in both languages; without a fleet there is nothing to take."""
    watch(fleet_of_demo)
    app = AppTest.from_file("../../app.py", default_timeout=60)
    app.query_params["lang"] = lang
    app.run()
    assert not app.exception
    assert {item.proto.label for item in app.get("download_button")} == {
        speaker(lang)(f"share.{kind}") for kind in ("csv", "parquet", "html")
    }
    assert any("at=" in item.value for item in app.code)
    watch(None)
    app = AppTest.from_file("../../app.py", default_timeout=60)
    app.run()
    assert not app.get("download_button")


def test_files_of_an_open_menu_are_there_before_they_are_asked_for(watch, fleet_of_demo) -> None:
    """A closed menu makes no file; an open one has them all, so that no other viewer's tick can take one away."""
    watch(fleet_of_demo)
    for is_open in (False, True):
        app = AppTest.from_file("../../app.py", default_timeout=60)
        app.session_state["share.popover"] = is_open
        app.run()
        assert not app.exception
        buttons = app.get("download_button")
        assert len(buttons) == 3
        assert all(bool(item.proto.url) == is_open for item in buttons)
        assert all(bool(item.proto.deferred_file_id) != is_open for item in buttons)
