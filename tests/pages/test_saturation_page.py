"""The Saturation page in every state: no pool, well, on the chain, blind, the past; both languages; hostile names."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from collectors.alerts import AlertCenter
from collectors.settings import Settings
from collectors.store import CycleBatch, Store, open_store
from pages._context import forget_shared, set_failure
from scoring.model import FleetSnapshot, PoolHistory, PoolReading, Role, SourceState
from scoring.snapshot import judge_fleet

START_S = 1_780_000_000.0
HOSTILE = "<b>x</b>[y](http://evil)"


class Watched:
    """Stands in for the collector: hand-made readings, the real judge, store, chains and alerts."""

    def __init__(self, store: Store) -> None:
        self.settings = Settings.model_validate({"workers": []})
        self.store = store
        self.now_s = START_S
        self.poll_state = SourceState.FRESH
        self._past: dict[str, list[PoolReading]] = {}
        self._hooks: list[Callable[[FleetSnapshot], None]] = []

    def on_cycle(self, hook: Callable[[FleetSnapshot], None]) -> Callable[[], None]:
        self._hooks.append(hook)
        return lambda: self._hooks.remove(hook)

    def cycle(self, **used: float) -> None:
        """Let a second pass; each named worker holds so much of its hundred thousand tokens."""
        self.now_s += 1.0
        readings = []
        for name, tokens in used.items():
            role = Role.PREFILL if name.startswith("p") else Role.DECODE
            worker = f"{name}{HOSTILE}" if name == "dx" else name
            is_full = tokens > 85_000.0
            readings.append(
                PoolReading(
                    worker_id=worker,
                    role=role,
                    engine="sglang",
                    received_at_s=self.now_s,
                    usable_tokens=100_000.0,
                    used_tokens=tokens,
                    running_count=20.0,
                    waiting_count=6.0 if is_full else 0.0,
                    queue_bootstrap_count=4.0 if role is Role.PREFILL else 0.0,
                    queue_inflight_count=2.0 if role is Role.PREFILL else 0.0,
                    queue_main_count=0.0,
                    queue_prealloc_count=6.0 if is_full else 0.0,
                    queue_transfer_count=0.0,
                    queue_retracted_count=0.0,
                    prealloc_ready_count=6.0 if is_full else 0.0,
                    retracted_total=3.0 if is_full else 0.0,
                    decode_generated_tokens_total=500.0 * (self.now_s - START_S),
                    decode_steps_total=40.0 * (self.now_s - START_S),
                    decode_step_s_total=0.9 * (self.now_s - START_S),
                    decode_batch_sum_total=800.0 * (self.now_s - START_S),
                    reserved_per_request_tokens=512.0,
                )
            )
        for reading in readings:
            self._past.setdefault(reading.worker_id, []).append(reading)
        if readings:
            self.store.append_cycle(CycleBatch(cycle_at_s=self.now_s, duration_s=0.1, readings=readings))
        for hook in tuple(self._hooks):
            hook(self.snapshot())

    def histories(self) -> list[PoolHistory]:
        found = []
        for rows in self._past.values():
            names = [name for name in PoolReading.__dataclass_fields__ if isinstance(getattr(rows[-1], name), float)]
            columns = {name: np.array([getattr(row, name) for row in rows], float) for name in names}
            at_s = np.array([row.received_at_s for row in rows])
            found.append(
                PoolHistory(
                    last=rows[-1], at_s=at_s, columns=columns, polled_at_s=self.now_s, poll_state=self.poll_state
                )
            )
        return found

    def snapshot(self, at_s: float | None = None) -> FleetSnapshot:
        return judge_fleet(self.histories(), self.now_s)

    def snapshot_at(self, at_s: float) -> FleetSnapshot:
        return judge_fleet(self.store.latest_histories(at_s, 60.0), at_s)

    def cycle_stats(self) -> Any:
        return SimpleNamespace(cycle_count=1)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Return a watched fleet whose chains step with each cycle."""
    with open_store(tmp_path / "page.duckdb") as store:
        running = Watched(store)
        monkeypatch.setattr("collectors.runtime.get_runtime", lambda: running)
        forget_shared()
        set_failure(None)
        center = AlertCenter(running, clock=lambda: running.now_s).start()
        monkeypatch.setattr("collectors.alerts.watch", lambda _: center)
        running.center = center
        yield running
        center.stop()


def _open(**query: str) -> AppTest:
    app = AppTest.from_file("../../app.py", default_timeout=60)
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    app.switch_page("pages/saturation.py")
    app.run()
    assert not app.exception, [item.message for item in app.exception]
    return app


def _figures(app: AppTest) -> list[dict[str, Any]]:
    return [msgspec.json.decode(item.proto.bytes) for item in app.get("bidi_component")]


def _metrics(app: AppTest) -> dict[str, str]:
    return {item.label: item.value for item in app.metric}


def _saturate(watched: Watched) -> None:
    for second in range(20):
        watched.cycle(d1=40_000.0, d2=30_000.0 + 100.0 * (second % 3), p1=2_000.0)
    for second in range(15):
        watched.cycle(d1=min(99_000.0, 50_000.0 + 4_000.0 * second), d2=30_000.0, p1=2_000.0)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_an_empty_fleet_says_so(watched: Watched, lang: str) -> None:
    """No pool yet: a sentence, no figure, no zero."""
    app = _open(lang=lang)
    assert app.info
    assert not app.metric


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_pool_on_the_chain_is_shown_with_its_numbers(watched: Watched, lang: str) -> None:
    """Key figures, the alert, the strip and the loop agree on which pool is lit and how far."""
    _saturate(watched)
    app = _open(lang=lang)
    state = watched.center.chain("d1/0")
    assert state.stage >= 3
    values = list(_metrics(app).values())
    assert values[0] in ("1 of 3", "1 / 3", "2 of 3", "2 / 3")
    figures = _figures(app)
    assert len(figures) >= 6
    for figure in figures:
        assert figure["age_s"] is not None
        assert "{age}" in figure["age_text"]
        assert figure["alt"]
    strip = figures[0]["figure"]["data"][0]
    assert strip["type"] == "heatmap"
    assert "d1/0" in strip["y"]
    text = " ".join(item.value for item in app.markdown)
    assert "retraction" in text
    assert "d1/0" in text


def test_the_strip_is_blank_where_nothing_was_collected(watched: Watched) -> None:
    """Before the first sample there is no cell, not a healthy one."""
    _saturate(watched)
    from pages import _saturation_data as reads

    edges, levels = reads.strip(["d1/0", "d2/0", "p1/0"], watched.now_s - 900.0, watched.now_s)
    before = edges + (edges[1] - edges[0]) * 2 < START_S
    assert np.isnan(levels[:, before]).all()
    assert np.nanmax(levels[0]) >= 3.0
    assert np.nanmax(levels[1]) == 0.0


def test_what_cannot_be_seen_is_unknown_and_never_zero(watched: Watched) -> None:
    """Blind pools: the key figure counts them, probabilities are unknown, nothing is lit."""
    for _ in range(20):
        watched.cycle(d1=40_000.0, d2=30_000.0)
    watched.poll_state = SourceState.DOWN
    for _ in range(15):
        watched.cycle()
    app = _open()
    values = _metrics(app)
    assert values["Cannot see"] == "2"
    assert values["Highest risk"] == "unknown"
    assert values["On the chain"] == "unknown"


def test_the_past_is_read_from_the_store(watched: Watched) -> None:
    """At an instant in the middle of it the page shows the stage of then, not of now."""
    _saturate(watched)
    then_s = watched.now_s
    for _ in range(30):
        watched.cycle(d1=20_000.0, d2=30_000.0, p1=2_000.0)
    app = _open(at=f"{then_s:.3f}", pool="d1/0")
    text = " ".join(item.value for item in app.markdown)
    assert "tail latency" in text or "recompute" in text or "retraction" in text or "slower release" in text
    assert _metrics(app)["On the chain"] != "0 of 3"


def test_hostile_names_stay_text(watched: Watched) -> None:
    """A worker's name is neither markup nor a link."""
    for _ in range(20):
        watched.cycle(dx=40_000.0)
    app = _open()
    for item in (*app.markdown, *app.caption):
        if item.allow_html:
            continue
        assert "](http://evil)" not in item.value.replace("\\]\\(", "")
    drawn = [trace.get("y") for figure in _figures(app) for trace in figure["figure"]["data"]]
    names = [name for names in drawn if isinstance(names, list) for name in names if isinstance(name, str)]
    assert any("&lt;b&gt;" in name for name in names)
    assert not any("<b>x" in name for name in names)


def test_a_silence_is_made_and_ended_on_the_page(watched: Watched) -> None:
    """The button keeps the alert quiet, the page says so, and the list ends it again."""
    _saturate(watched)
    app = _open()
    (button,) = [item for item in app.button if item.key == "saturation.quiet.retraction"]
    button.click().run()
    assert len(watched.center.silences()) == 1
    assert all(each.silence is not None for each in watched.center.standing() if each.alert.rule == "retraction")
    app = _open()
    (end,) = [item for item in app.button if (item.key or "").startswith("saturation.end.")]
    end.click().run()
    assert watched.center.silences() == []


def test_figures_are_finite_or_absent(watched: Watched) -> None:
    """No NaN or infinity reaches a figure as a number a browser would refuse."""
    _saturate(watched)
    for figure in _figures(_open()):
        for trace in figure["figure"]["data"]:
            for value in trace.get("x", []) if isinstance(trace.get("x"), list) else []:
                assert value is None or isinstance(value, str) or math.isfinite(value)
