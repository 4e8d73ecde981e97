"""The Worker page's figures: gaps stay gaps, areas add up, restarts give no rate."""

import base64
import dataclasses
import json

import numpy as np
import pytest

from pages.figures import worker, worker_table
from pages.texts import catalogue, speaker
from scoring.capacity import compose_history
from scoring.model import Role

T = speaker("en")


def _span(item):
    return worker.Span(start_s=item.at_s - 300, end_s=item.at_s, age_s=1.0, t=T, language="en")


def _array(packed):
    kind = {"f4": np.float32, "f8": np.float64}[packed["dtype"]]
    return np.frombuffer(base64.b64decode(packed["bdata"]), dtype=kind)


def test_an_area_ends_where_the_data_ends(make_pool, history) -> None:
    """No drawn point lies inside the gap of the samples, and both sides of it are drawn."""
    item = make_pool()
    past = history(item, 300, gap=True)
    figure = json.loads(worker.composition(item, past, "tokens", _span(item)))["figure"]
    gap = ((item.at_s - 149) * 1e3, (item.at_s - 101) * 1e3)
    areas = [trace for trace in figure["data"] if trace.get("fill") == "toself"]
    assert {trace["name"] for trace in areas} >= {"active", "in flight", "prefix", "free"}
    for trace in areas:
        x = _array(trace["x"])
        known = x[np.isfinite(x)]
        assert not np.any((known > gap[0]) & (known < gap[1]))
        assert known.min() < gap[0] < gap[1] < known.max()


@pytest.mark.parametrize("role", [Role.DECODE, Role.PREFILL, Role.UNIFIED])
@pytest.mark.parametrize("prefix", [40_000.0, None])
def test_stacked_parts_add_up_to_usable_at_every_sample(make_pool, history, role, prefix) -> None:
    """Conservation over time, whichever parts the engine tells."""
    past = history(make_pool(role=role, prefix=prefix), 200)
    words = compose_history(past)
    total = sum(worker._told_parts(words).values())
    np.testing.assert_allclose(total, words["usable_tokens"], rtol=1e-9)


def test_segments_part_at_gaps_and_unknown_samples() -> None:
    """Every known sample is in exactly one run; runs hold no gap and no unknown."""
    at_s = np.array([0.0, 1, 2, 20, 21, 22, 23])
    values = np.array([1.0, 1, 1, 1, np.nan, 1, 1])
    runs = worker.segments(at_s, values)
    assert [(run.start, run.stop) for run in runs] == [(0, 3), (3, 4), (5, 7)]
    assert worker.segments(at_s[:0], values[:0]) == []


def test_a_line_breaks_at_a_gap() -> None:
    """One NaN goes into each gap and no value is lost."""
    x, y = worker.with_gaps(np.array([0.0, 1, 2, 30, 31]), np.arange(5.0))
    assert np.isnan(y).sum() == 1
    assert np.array_equal(y[np.isfinite(y)], np.arange(5.0))
    assert np.all(np.diff(x) > 0)


def test_a_restart_gives_no_rate(make_pool, history) -> None:
    """A counter that fell tells nothing about that step; steps that did not happen divide nothing."""
    past = history(make_pool(decode_steps_total=1000.0, decode_step_s_total=20.0), 60, gap=False)
    steps = past.columns["decode_steps_total"].copy()
    seconds = past.columns["decode_step_s_total"].copy()
    steps[30:] -= steps[30]
    seconds[30:] -= seconds[30]
    steps[40:45] = steps[40]
    past = dataclasses.replace(
        past, columns={**past.columns, "decode_steps_total": steps, "decode_step_s_total": seconds}
    )
    ratio = worker_table.ratio_of_rises(past, "decode_step_s_total", "decode_steps_total")
    assert np.isnan(ratio[0])
    assert np.isnan(ratio[30])
    assert np.all(np.isnan(ratio[41:45]))
    assert np.isfinite(ratio[50])
    known = ratio[np.isfinite(ratio)]
    assert np.all(known >= 0)


def test_every_rate_has_a_name_and_a_unit() -> None:
    """A new rate of the judge cannot be forgotten on the page."""
    assert set(worker_table.rate_names()) == set(worker_table.RATE_UNITS)
    for name in worker_table.rate_names():
        assert f"rate_{name}" in catalogue("worker")
    for signal, _, _ in worker.QUEUES:
        assert signal in catalogue("worker")


def test_bounds_are_shown_as_bounds(make_pool) -> None:
    """Where only bounds follow the table shows both ends, not a point."""
    item = make_pool(
        used=150_000.0,
        arrived=60_000.0,
        prefix=10_000.0,
        queue_retracted_count=2.0,
        queue_prealloc_count=3.0,
        pending_total_tokens=190_000.0,
    )
    rows = worker_table.composition(item, T, "en")
    active = rows["tokens"][rows["word"].index("active")]
    assert "…" in active


def test_raw_and_missing_together_are_every_signal(make_pool) -> None:
    """Every signal is either shown with its meaning or named as not given."""
    reading = make_pool().reading
    raw = worker_table.raw(reading, T)
    assert all(raw["meaning"])
    missing = worker_table.missing(reading)
    assert not set(raw["name"]) & set(missing)
    assert len(raw["name"]) + len(missing) == len([f for f in dataclasses.fields(reading) if f.metadata])


def test_queues_never_seen_are_not_drawn(make_pool, history) -> None:
    """An engine that reports no queue gets no figure, and a queue that stayed empty no line."""
    item = make_pool(running=None, waiting=None, queue_prealloc_count=None, queue_main_count=None)
    item = dataclasses.replace(item, reading=dataclasses.replace(item.reading, queue_retracted_count=None))
    assert worker.queues(history(item, 60), _span(item)) is None
    busy = make_pool(waiting=4.0)
    drawn = json.loads(worker.queues(history(busy, 60), _span(busy)))["figure"]["data"]
    names = {trace["name"] for trace in drawn if "name" in trace}
    assert names == {"running", "waiting for decode room"}
