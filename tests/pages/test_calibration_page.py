"""The Calibration page: its figures on rows with known coefficients, and the page itself before a learning fleet."""

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from collectors import calibration as collector
from collectors.calibration import Calibrator
from collectors.settings import Settings
from collectors.store import open_store
from pages._calibration_cost import reserve_cost
from pages._context import forget_shared, set_failure
from pages.figures import calibration as figures
from pages.texts import speaker
from scoring.calibration_error import ErrorSample, Quantity, judged_fit, summarize
from scoring.calibration_windows import DecodeWindow, Kind, PairWindows, PrefillWindow
from scoring.model import FleetSnapshot, Role
from scoring.service import PROFILES, prefill_s, profile_from_mapping

ROOT = Path(__file__).resolve().parents[2]
T = speaker("en")
TRUE = PROFILES["qwen3-32b-h100-tp2"]
KIND = Kind(model="org/M", role=Role.UNIFIED, engine="sglang", version="1", accelerator_count=2)
AT_S = 1_900_000_400.0


def _rows(count: int = 300, factor: float = 1.0) -> tuple[list[DecodeWindow], list[PrefillWindow]]:
    rng = np.random.default_rng(1)
    decode, prefill = [], []
    for i in range(count):
        batch = float(rng.uniform(2, 40))
        kv = batch * float(rng.uniform(300, 3000))
        step = TRUE.decode_base_s + TRUE.decode_per_sequence_s * batch + TRUE.decode_per_token_s * kv
        decode.append(
            DecodeWindow(
                at_s=AT_S - count + i,
                pool="u/0",
                step_count=40.0,
                batch_count=batch,
                kv_tokens=kv,
                kv_doubt_tokens=5.0,
                step_s=factor * step * (1 + 0.01 * rng.standard_normal()),
            )
        )
        new = float(rng.integers(50, 6000))
        took = prefill_s(new, 0.0, TRUE.prefill_base_s, TRUE.prefill_per_token_s, TRUE.prefill_per_token2_s)
        prefill.append(
            PrefillWindow(
                at_s=AT_S - count + i,
                pool="u/0",
                new_tokens=new,
                hit_tokens=0.0,
                busy_s=took * (1 + 0.01 * rng.standard_normal()),
                request_count=1.0,
                is_whole=True,
            )
        )
    return decode, prefill


@pytest.fixture(scope="module")
def judged() -> Any:
    """Return a judged fit of rows that obey the published Qwen3-32B profile."""
    decode, prefill = _rows()
    return judged_fit(KIND, decode, prefill, [])


def _figure(payload: bytes) -> dict[str, Any]:
    return json.loads(payload)["figure"]


def test_the_published_profile_beside_a_fit_is_the_one_its_rows_obey(judged: Any) -> None:
    """The nearest is found by the fitted coefficients; each told one stands in the table with its interval."""
    published = figures.published_of(judged.fit)
    assert published.name == TRUE.name
    table = figures.coefficient_table(judged.fit, published, T)
    assert table["told"][:6] == [T("calibration.told_fitted")] * 6
    assert table["value"][6] == "–"
    assert all(low != "–" and high != "–" for low, high in zip(table["low"][:6], table["high"][:6], strict=True))


def test_the_forest_puts_every_told_coefficient_near_one(judged: Any) -> None:
    """Fitted over published is about 1 for each, with an interval that is not empty."""
    figure = _figure(figures.forest(judged.fit, TRUE, AT_S, T))
    fitted = figure["data"][1]
    assert len(fitted["x"]) == 6
    assert all(abs(ratio - 1) < 0.3 for ratio in fitted["x"])
    assert all(width > 0 for width in fitted["error_x"]["array"])


def test_predictions_and_errors_are_drawn_apart_by_side(judged: Any) -> None:
    """Both sides of the split are there, with the split's line, and the alternative text says the median error."""
    payload = figures.scatter(judged.samples, AT_S, T)
    names = [trace.get("name") for trace in _figure(payload)["data"]]
    assert names[:2] == [T("calibration.in_fit"), T("calibration.held_out")]
    assert "%" in json.loads(payload)["alt"]
    figure = _figure(figures.residuals(judged.samples, (), judged.split_at_s, AT_S, T))
    assert figure["layout"]["shapes"][0]["x0"] == pytest.approx(judged.split_at_s * 1e3)
    assert {trace["marker"]["symbol"] for trace in figure["data"]} == {"circle", "circle-open"}


def test_error_tables_show_absent_quantiles_as_absent() -> None:
    """A class of three samples has a median and no 99th percentile, drawn as absent and not as 0."""
    samples = [
        ErrorSample(at_s=float(i), quantity=Quantity.TTFT, predicted=1.0, actual=1.1, slo_class="batch")
        for i in range(3)
    ]
    table = figures.error_table(summarize(samples), (), T)
    assert (table["count"][1], table["p50"][1], table["p99"][1]) == (3, "10 %", "–")
    assert figures.error_table((), (), T)["quantity"] == []


def test_coverage_of_nothing_and_of_one_point_is_drawn(judged: Any) -> None:
    """No rows and rows in one point have no correlation, and say so."""
    row = _rows(1)[0]
    for rows in ([], row * 5):
        assert "–" in json.loads(figures.coverage(rows, AT_S, T))["alt"]


def test_a_bandwidth_is_shown_as_one() -> None:
    """Seconds a byte turn into GB/s; unknown stays absent."""
    assert figures.shown_coefficient("transfer_s_per_byte", 4e-11) == "25 GB/s"
    assert figures.shown_coefficient("decode_base_s", None) == "–"


def test_a_reserve_buys_fewer_retractions_with_longer_waits() -> None:
    """Along the curve retractions never rise and end at none, and the largest reserve waits longest: the trade-off."""
    points = reserve_cost(TRUE, 131_072.0, 64.0, mean_tokens=1000.0)
    retractions = [point[1] for point in points]
    assert retractions[0] > 10 > retractions[-1] == 0.0
    assert all(after <= before + 3.0 for before, after in pairwise(retractions))
    assert max(point[2] for point in points) == points[-1][2] > 1.2 * points[0][2]


class _Runtime:
    """As much of a runtime as the page asks for, with a real store."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.store = open_store(":memory:")
        self.is_running = True

    def snapshot(self, at_s: float | None = None) -> FleetSnapshot:
        return FleetSnapshot(at_s=AT_S, pools=())

    def histories(self) -> list[Any]:
        return []

    def sources(self) -> tuple[Any, ...]:
        return ()

    def cycle_stats(self) -> Any:
        return SimpleNamespace(problems=())


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a learner of a fleet of one kind, given to the page."""
    runtime = _Runtime()
    learner = Calibrator(runtime)  # type: ignore[arg-type]
    monkeypatch.setattr("collectors.runtime.get_runtime", lambda: runtime)
    monkeypatch.setattr(collector, "calibrator", lambda running=None: learner)
    forget_shared()
    set_failure(None)
    yield learner
    runtime.store.close()


def _teach(learner: Calibrator, factor: float = 1.0) -> None:
    decode, prefill = _rows(factor=factor)
    rows = learner._book.rows(KIND)
    rows.decode.extend(decode)
    rows.prefill.extend(prefill)
    rows.skipped["restart"] = 2
    rows.pools.add("u/0")
    learner._book.at_s = AT_S
    learner.refit()


def _open(lang: str = "en", query: dict[str, str] | None = None) -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    app.query_params["lang"] = lang
    app.session_state["lang"] = lang
    app.query_params["live"] = "false"
    for key, value in (query or {}).items():
        app.query_params[key] = value
    app.switch_page("pages/calibration.py")
    return app.run()


def _words(app: AppTest) -> str:
    parts = [*app.title, *app.caption, *app.subheader, *app.markdown, *app.info, *app.warning, *app.error]
    return "\n".join(str(part.value) for part in parts)


def test_before_anything_is_known_the_page_says_so(running: Calibrator) -> None:
    """No kind of worker yet: a sentence, no figure, no error."""
    app = _open()
    assert not app.exception
    assert T("calibration.nothing") in _words(app)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_draws_every_part_in_both_languages(running: Calibrator, lang: str) -> None:
    """Coefficients, predictions, errors, coverage, versions, reserve; what was left out is counted."""
    _teach(running)
    t = speaker(lang)
    app = _open(lang)
    assert not app.exception
    words = _words(app)
    for key in ("coefficients", "errors", "coverage", "improve", "versions", "reserve", "cost"):
        assert t(f"calibration.{key}") in words, key
    assert t("calibration.skip_restart", count=2) in words
    assert len(app.dataframe) >= 4


def test_versions_are_kept_used_and_rolled_back_from_the_page(running: Calibrator) -> None:
    """Keep makes version 2, Use puts it in use, Go back returns to 1; the exported JSON is a profile for replay."""
    _teach(running)
    app = _open()
    app.button(key="calibration.keep").click().run()
    assert [each.version for each in running.state().kinds[0].versions] == [1, 2]
    app = _open()
    app.selectbox(key=f"calibration.version.{KIND.name}").select("2").run()
    app.button(key="calibration.apply").click().run()
    assert running.state().kinds[0].version.version == 2
    app = _open()
    app.button(key="calibration.roll_back").click().run()
    assert running.state().kinds[0].version.version == 1
    profile = running.state().kinds[0].profile
    assert profile_from_mapping(dataclasses.asdict(profile)) == profile


def test_an_alarm_is_on_the_page(running: Calibrator) -> None:
    """Steps that take a third longer than the version in use predicts: the key figure says drift and which way."""
    _teach(running)
    rows = running._book.rows(KIND)
    for row in _rows(150, factor=1.33)[0]:
        running._book.settle(rows, PairWindows(decode=row))
    app = _open()
    assert rows.drift.direction == "longer"
    shown = [metric.value for metric in app.metric]
    assert T("calibration.drift_found", direction=T("calibration.longer")) in shown
