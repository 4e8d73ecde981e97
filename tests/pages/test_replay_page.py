"""The Replay page over a real store and real runs: drawn is what the runs say; runs are kept, compared, cancelled."""

import json
import time

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from collectors.errors import StoreError
from collectors.settings import Settings
from collectors.store import open_store
from pages import _replay_jobs as jobs
from pages import _replay_parts as parts
from pages._replay_run import Order, Outcome, Work, carry_out
from pages.figures import replay as figures
from pages.figures import replay_report
from pages.figures import replay_table as tables
from pages.texts import speaker
from simulation.fleet_file import FleetDefaults, fleet_from_shorthand
from simulation.simulate import SimulationOptions

T = speaker("en")
RECIPE = "synthetic:gamma,rate=6,duration=60,prompt=3000,output=120,prefixes=8,prefix_tokens=1024"
PLAIN = SimulationOptions(is_compiled=False)


def order(**more: object) -> Order:
    """Return a small order on one prefill and two decode pools."""
    fleet = fleet_from_shorthand("1p2d", FleetDefaults(blocks=2_000))
    return Order(**{"source": RECIPE, "fleet": fleet, "policies": ("round-robin", "joint"), "options": PLAIN, **more})


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    """Return a comparison of two policies through a worker's death."""
    return carry_out(order(drills=("death,at=15,until=30,worker=d0",)))


@pytest.fixture
def store(tmp_path):
    """Return a real store on disk."""
    with open_store(tmp_path / "replay.duckdb") as opened:
        yield opened


@pytest.fixture
def page(watch, fleet_of_demo, store):
    """Return a function that draws the page over a fleet and the store."""
    running = watch(fleet_of_demo)
    running.settings = Settings()
    running.store = store
    jobs.forget()

    def draw(**query: str) -> AppTest:
        app = AppTest.from_file("../../app.py", default_timeout=120)
        for name, value in query.items():
            app.query_params[name] = value
        app.run()
        app.switch_page("pages/replay.py")
        app.run()
        assert not app.exception, [item.message for item in app.exception]
        return app

    yield draw
    jobs.forget()


def words(app: AppTest) -> str:
    """Return all text of the page."""
    found = [*app.markdown, *app.caption, *app.info, *app.warning, *app.error, *app.title, *app.subheader, *app.text]
    return "\n".join(str(item.value) for item in found)


def button(app: AppTest, key: str):
    """Return a button by its key."""
    return next(item for item in app.button if item.key == key)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_without_a_result_the_page_offers_the_form(page, lang: str) -> None:
    """A fresh page has every choice, no figure, and says what to do."""
    app = page(lang=lang)
    assert speaker(lang)("replay.nothing") in words(app)
    assert not app.get("bidi_component")
    assert not button(app, "replay.start").disabled


def test_a_run_from_the_page_is_drawn_kept_and_shown_again(page, store) -> None:
    """Run, wait, read the table; keep it under a name; a link with that name shows the same figures."""
    app = page(fleet="shape", shape="1p1d", rate="3", seconds="30", policies="round-robin")
    button(app, "replay.start").click()
    app.run()
    assert not app.exception, [item.message for item in app.exception]
    viewer = app.session_state["replay.viewer"]
    end = time.monotonic() + 90
    while jobs.of(viewer).state == "running":
        assert time.monotonic() < end
        time.sleep(0.1)
    assert jobs.of(viewer).state == "done", jobs.of(viewer).reason
    app.run()
    assert not app.exception, [item.message for item in app.exception]
    body = jobs.of(viewer).outcome.body
    table = next(item.value for item in app.dataframe if "ttft_s_p99" in item.value)
    assert list(table["variant"]) == ["round-robin"]
    assert list(table["finished"]) == [str(body["policies"]["round-robin"]["finished_count"])]
    assert len(app.get("bidi_component")) == 5
    app.text_input(key="replay.name").set_value("first try")
    button(app, "replay.keep").click()
    app.run()
    assert [record.name for record in store.runs()] == ["first try"]
    again = page(run="first try")
    shown = next(item.value for item in again.dataframe if "ttft_s_p99" in item.value)
    assert shown.equals(table)


def test_a_form_that_cannot_run_says_what_is_missing(page) -> None:
    """No policy, no file, no fleet of that shape: a sentence, no process."""
    for query, text in (
        ({"policies": "nobody"}, T("replay.need_policy")),
        ({"traffic": "folder"}, T("replay.need_file")),
        ({"fleet": "shape", "shape": "9x"}, "9x"),
        ({"fleet": "shape", "shape": "2p0d"}, "decode"),
    ):
        app = page(**query)
        button(app, "replay.start").click()
        app.run()
        assert not app.exception
        assert text in words(app).replace("\\", ""), query
        assert jobs.of(app.session_state["replay.viewer"]) is None


def test_a_cancelled_replay_ends_its_process_at_once_and_keeps_nothing() -> None:
    """Cancel leaves no process and no result, and the file handed over is gone."""
    work = Work(order(source="synthetic:even,rate=50,duration=3600,prompt=4000,output=400"))
    assert work.poll() == "running"
    began = time.monotonic()
    work.cancel()
    assert time.monotonic() - began < 6
    assert (work.state, work.outcome) == ("cancelled", None)
    assert not work._process.is_alive()


def test_a_replay_that_cannot_be_run_says_why(tmp_path) -> None:
    """A file that is no traffic fails with the reader's sentence, and our temporary copy is removed."""
    file = tmp_path / "x.jsonl"
    file.write_text("hello\n")
    work = Work(order(source=str(file), is_source_ours=True))
    end = time.monotonic() + 60
    while work.poll() == "running":
        assert time.monotonic() < end
        time.sleep(0.05)
    assert work.state == "failed"
    assert "no trace format fits" in work.reason
    assert not file.exists()


def test_kept_runs_have_unique_plain_names_and_their_requests_beside_the_store(store, outcome: Outcome) -> None:
    """A taken or path-like name is refused; the Parquet file holds a row a request; dropping removes both."""
    record = jobs.keep(store, "Mon 1", outcome)
    import pandas as pd

    frame = pd.read_parquet(record.parquet_path)
    assert len(frame) == 2 * len(outcome.trace)
    for bad in ("Mon 1", "", "../x", "/etc/x", ".hidden", "a" * 65):
        with pytest.raises(StoreError):
            jobs.keep(store, bad, outcome)
    jobs.drop(store, "Mon 1")
    assert store.runs() == []
    assert not jobs.folder_of(store).joinpath("Mon 1.parquet").exists()


def test_kept_runs_of_other_traffic_are_shown_side_by_side_and_said_so(outcome: Outcome) -> None:
    """Runs that differ in traffic are named as such and carry no differences; the same run twice does not differ."""
    one = {"body": outcome.body, "series": outcome.series}
    other = carry_out(order(source=RECIPE.replace("rate=6", "rate=3"), policies=("joint",)))
    body, series, differ = jobs.merged({"a": one, "b": {"body": other.body, "series": other.series}})
    assert differ == ["traffic"]
    assert list(body["policies"]) == ["a: round-robin", "a: joint", "b: joint"]
    assert all(not found["differences"] for found in body["policies"].values())
    assert set(series) == set(body["policies"])
    assert jobs.merged({"a": one, "b": one})[2] == []


def test_figures_draw_what_the_runs_say(outcome: Outcome) -> None:
    """CDFs rise from 0 to 1, parts of composition sum to usable, the heat map's baseline row is neutral."""
    body, series = outcome.body, outcome.series
    for line in figures.cdf(body, series, "ttft_s", T)["data"]:
        assert line["x"] == sorted(line["x"])
        assert (line["y"][0], line["y"][-1]) == (0.0, 1.0)
    for pool, found in series["joint"]["pools"].items():
        total = np.sum([found[f"{part}_tokens"] for part in figures.PARTS], axis=0)
        assert total == pytest.approx(np.full(len(total), found["usable_tokens"]), abs=0.01), pool
        drawn = figures.composition(series["joint"], pool, "en", T)
        assert len(drawn["data"]) == len(figures.PARTS) + 1
    heat = figures.heat(body, "prompt", "ttft_s", "p99", T)["data"][0]
    assert all(value in (0.0, None) for value in heat["z"][0])
    points = figures.pareto(body, T)["data"]
    assert points[0]["x"] == [body["policies"]["round-robin"]["throughput_tokens_per_s"]]


@pytest.mark.parametrize("seed", range(5))
def test_the_frontier_holds_exactly_what_nothing_beats(seed: int) -> None:
    """A point is on it if and only if no other has more throughput and less latency."""
    rng = np.random.default_rng(seed)
    points = [(float(x), float(y)) for x, y in rng.integers(0, 12, (15, 2))]
    best = figures.frontier(points)

    def is_beaten(point: tuple[float, float]) -> bool:
        return any((x >= point[0] and y < point[1]) or (x > point[0] and y <= point[1]) for x, y in points)

    assert best == sorted({point for point in points if not is_beaten(point)})


def test_a_moment_lists_the_requests_around_it_and_a_second_opinion(outcome: Outcome) -> None:
    """All listed arrived within the stretch, with the pools of that run; the sentence names an admissible pair."""
    result = outcome.comparison.variants[0].result
    rows = parts.moment_rows(result, 20.0)
    assert rows
    assert all(abs(row["arrival_s"] - 20.0) <= parts.MOMENT_S for row in rows)
    assert {row["decode"] for row in rows} <= {"d0/0", "d1/0", None}
    sentence = parts._second_opinion(outcome, result, rows[-1], T)
    assert "p0/0 → d" in sentence
    table = tables.moment(rows, T)
    assert len(table["arrived"]) == len(rows)


def test_drills_tell_recovery_and_differences_their_interval(outcome: Outcome) -> None:
    """Every variant has its drill's row; a difference shows point, interval and whether it is told apart."""
    drills = tables.drills(outcome.body, T)
    assert drills["variant"] == ["round-robin", "joint"]
    row = {"difference": -0.5, "low": -0.6, "high": -0.4}
    assert tables.difference(row) == "−500 ms [−600, −400] ●"
    assert tables.difference({**row, "high": 0.1}).endswith("○")
    assert tables.difference({**row, "low": None, "high": None}) == "−500 ms"
    assert tables.difference(None) == "–"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_report_is_one_file_that_fetches_nothing(outcome: Outcome, lang: str) -> None:
    """No address is fetched, every figure is inside, colours are hues, hostile names stay text."""
    body = json.loads(json.dumps(outcome.body).replace('"joint"', '"<b>joint</b></script>"'))
    series = {("<b>joint</b></script>" if name == "joint" else name): found for name, found in outcome.series.items()}
    text = replay_report.page(body, series, lang)
    own = text.replace(text[text.index("<script>") : text.index("</script>")], "")
    assert "http" not in own.lower().replace("plotlyserverurl", "")
    assert "<b>joint" not in own
    assert '"@' not in own
    assert own.count("Plotly.newPlot") == 1
    assert own.count('<div id="f') >= 6


@pytest.mark.parametrize(
    "query",
    [
        {"seconds": "--5", "prefixes": "1" * 5000, "sweep": "furlongs", "seeds": "nan", "rate": "nan"},
        {"fleet": "shape", "blocks": "--5", "block": "1" * 5000, "traffic": "live", "minutes": "--5"},
    ],
)
def test_a_mangled_link_opens_with_what_it_can_mean(page, query) -> None:
    """Words that are no numbers, or no choice there is, are the defaults; `page` asserts that nothing raises."""
    assert button(page(**query), "replay.start")


def test_a_refused_run_loses_nothing_and_a_run_nobody_looks_at_makes_room(monkeypatch) -> None:
    """Busy means wait, with the old result still there; a run whose page is gone does not keep others out."""
    jobs.forget()
    long = order(source=RECIPE.replace("duration=60", "duration=4000"))
    try:
        mine = jobs.start("mine", order())
        until = time.monotonic() + 60
        while jobs.of("mine").state == "running":
            assert time.monotonic() < until
            time.sleep(0.05)
        others = [jobs.start(name, long) for name in ("gone", "there")]
        with pytest.raises(jobs.BusyError):
            jobs.start("mine", order())
        assert jobs.of("mine") is mine
        assert mine.state == "done"
        monkeypatch.setattr(jobs, "ABANDONED_S", -1.0)
        again = jobs.start("mine", order())
        assert again is not mine
        assert [work.poll() for work in others] == ["cancelled", "cancelled"]
        assert jobs.of("gone") is None
    finally:
        jobs.forget()
