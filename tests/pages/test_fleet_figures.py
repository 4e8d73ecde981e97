"""The Fleet page's figures: bars add up, unknown stays unknown, names stay text, order does not matter."""

import dataclasses
import json
import random

import pytest

from pages.figures import fleet, fleet_filter, fleet_summary, fleet_table
from pages.texts import speaker
from scoring.model import Figure, Provenance, Role, SourceState, unknown

T = speaker("en")
HOSTILE = "<img src=x onerror=alert(1)><a href='http://evil'>x</a>[y](http://evil)"


def _drawn(pools, unit="tokens"):
    return json.loads(fleet.bars(pools, unit, T, "en", "Decode"))["figure"]


def _bars(figure):
    # Reserved and queued are claims drawn over and behind the bar, no part of it.
    return [trace for trace in figure["data"] if trace["type"] == "bar" and "base" not in trace]


@pytest.mark.parametrize("unit", fleet.UNITS)
def test_every_bar_is_exactly_as_long_as_what_the_pool_can_hold(fleet_of_demo, unit) -> None:
    """Conservation: the parts and the hollow rest of each bar add up to usable in every unit."""
    pools = fleet_of_demo.pools
    traces = _bars(_drawn(pools, unit))
    longest = max(v for p in pools if (v := fleet.convert(p.composition.usable_tokens.value, p, unit)) is not None)
    for place, item in enumerate(pools):
        usable = fleet.convert(item.composition.usable_tokens.value, item, unit)
        length = sum(trace["x"][place] for trace in traces)
        assert length == pytest.approx(longest if usable is None else usable, rel=0.006)


def test_unknown_capacity_is_a_hollow_bar_and_never_a_zero(make_pool) -> None:
    """A pool that tells nothing is drawn hollow, worded, and its share reads unknown."""
    figure = _drawn([make_pool(), make_pool("d1", usable=None, used=None, arrived=None, prefix=None)])
    hollow = next(trace for trace in _bars(figure) if trace["name"] == "unknown")
    assert hollow["x"][1] > 0
    assert hollow["x"][0] == 0
    assert hollow["text"][1] == "unknown"
    assert hollow["marker"]["color"] == "rgba(0,0,0,0)"
    assert "unknown" in figure["layout"]["yaxis2"]["ticktext"][1]


def test_a_part_that_is_not_told_is_hollow(make_pool) -> None:
    """Used known, free and prefix apart not: the sum stands for both, nothing is invented."""
    item = make_pool(prefix=None)
    parts = fleet.part_figures(item)
    assert "free_or_prefix" in parts
    assert not {"free", "prefix"} & set(parts)


def test_without_bytes_per_token_the_bar_in_bytes_is_hollow_and_said(make_pool) -> None:
    """An unknown conversion is said beside the figure and drawn hollow; tokens stay drawn."""
    item = make_pool(bytes_per_token=None)
    assert any(trace["name"] == "unknown" and trace["x"][0] > 0 for trace in _bars(_drawn([item], "bytes")))
    assert any("bytes" in note for note in fleet_filter.notes([item], "bytes", T))
    assert not fleet_filter.notes([item], "tokens", T)


def test_estimates_are_hatched_and_what_no_word_covers_is_cross_hatched(make_pool) -> None:
    """How a figure came to be shows in the bar: measured and derived are plain."""
    estimated = make_pool("p0", role=Role.PREFILL, arrived=None, queue_inflight_count=2.0, prompt_tokens_total=9e5)
    estimated = dataclasses.replace(
        estimated,
        composition=dataclasses.replace(
            estimated.composition,
            in_flight_tokens=Figure(value=9_000.0, provenance=Provenance.ESTIMATED, reason="by count"),
        ),
    )
    shapes = {trace["name"]: trace["marker"].get("pattern", {}).get("shape") for trace in _bars(_drawn([estimated]))}
    assert shapes["in flight"] == ["/"]
    assert shapes["unattributed"] == ["x"]
    assert shapes["prefix"] == [""]


def test_where_only_bounds_follow_the_lower_ones_are_drawn(make_pool) -> None:
    """Decode with retracted requests: active and in flight have bounds; drawn parts still add up to usable."""
    item = make_pool(
        used=150_000.0,
        arrived=60_000.0,
        prefix=10_000.0,
        queue_retracted_count=2.0,
        queue_prealloc_count=3.0,
        pending_total_tokens=190_000.0,
    )
    assert item.composition.active_tokens.value is None
    total = sum(figure.value for figure in fleet.part_figures(item).values())
    assert total == pytest.approx(200_000.0)


def test_names_from_outside_stay_text(make_pool) -> None:
    """Neither a worker's name, a model nor a label becomes markup in a figure or a note."""
    item = make_pool(HOSTILE, model=HOSTILE, bytes_per_token=None, labels={"rack": HOSTILE}, reason=HOSTILE)
    for unit in fleet.UNITS:
        figure = _drawn([item], unit)
        for trace in figure["data"]:
            # The id a click returns is never drawn; the template draws the second field.
            assert trace.get("hovertemplate", "%{customdata[1]}").startswith("%{customdata[1]}")
            trace["customdata"] = [drawn for _, drawn in trace.get("customdata", [])]
        assert "&lt;img" in json.dumps(figure)
        assert "<img" not in json.dumps(figure)
        assert "<a href" not in json.dumps(figure)
    for note in fleet_filter.notes([item], "bytes", T):
        assert "\\<img" in note
        assert "](http" not in note


def test_a_stale_pool_is_drawn_faint_with_its_age(fleet_of_demo) -> None:
    """Old figures look old: lower opacity, the state and its age beside the name."""
    stale = next(item for item in fleet_of_demo.pools if item.state is SourceState.STALE)
    fresh = next(item for item in fleet_of_demo.pools if item.state is SourceState.FRESH and item.role is stale.role)
    figure = _drawn([fresh, stale])
    opacity = _bars(figure)[0]["marker"]["opacity"]
    assert opacity[1] < 0.5 < opacity[0]
    assert "stale 42 s" in figure["layout"]["yaxis"]["ticktext"][1]


def test_engine_order_never_matters(fleet_of_demo) -> None:
    """Permutation invariance: key figures and order by name are the same however pools come in."""
    pools = list(fleet_of_demo.pools)
    shuffled = pools[:]
    random.Random(7).shuffle(shuffled)
    assert fleet_summary.summarise(pools) == fleet_summary.summarise(shuffled)
    for order in fleet_filter.ORDERS:
        assert fleet_filter.order_pools(pools, order) == fleet_filter.order_pools(shuffled, order)


def test_old_figures_enter_no_key_figure(fleet_of_demo) -> None:
    """Only scored pools count: a stale pool that were fullest changes the counts and nothing else."""
    pools = list(fleet_of_demo.pools)
    without = [item for item in pools if item.state.is_scored]
    first, second = fleet_summary.summarise(pools), fleet_summary.summarise(without)
    assert dataclasses.replace(first, states={}) == dataclasses.replace(second, states={})
    assert first.states[SourceState.STALE] == 1
    assert first.scored_count == len(without)


def test_spread_compares_only_like_with_like(make_pool) -> None:
    """A small card is not compared with large ones; ranks are compared within their node."""
    pools = [
        make_pool("big-1", used=20_000.0, arrived=20_000.0, running=0.0, prefix=0.0),
        make_pool("big-2", used=60_000.0, arrived=60_000.0, running=0.0, prefix=0.0),
        make_pool("small", usable=50_000.0, used=49_000.0, arrived=49_000.0, running=0.0, prefix=0.0),
    ]
    summary = fleet_summary.summarise(pools)
    assert summary.nodes is not None
    assert (summary.nodes.low, summary.nodes.high) == ("big-1", "big-2")
    assert summary.nodes.ratio == pytest.approx(0.2)
    assert summary.ranks is None


def test_a_fleet_that_tells_nothing_has_no_key_figures(make_pool) -> None:
    """Degenerate input: unknown everywhere gives unknown, not 0; no pool gives nothing at all."""
    silent = make_pool(usable=None, used=None, arrived=None, prefix=None, waiting=None, running=None)
    summary = fleet_summary.summarise([silent])
    assert (summary.median_ratio, summary.fullest, summary.free_blocks, summary.waiting_count) == (None,) * 4
    empty = fleet_summary.summarise([], [SourceState.DOWN])
    assert empty.pool_count == 1
    assert empty.waiting_count is None


def test_filters_narrow_and_never_invent(fleet_of_demo) -> None:
    """No filter keeps all; each filter gives a subset; values of one key widen, another key narrows."""
    pools = fleet_of_demo.pools
    assert fleet_filter.matching(pools, [], [], "") == list(pools)
    one = fleet_filter.matching(pools, [], ["rack=r0"], "")
    both = fleet_filter.matching(pools, [], ["rack=r0", "rack=r1"], "")
    assert {item.pool_id for item in one} < {item.pool_id for item in both}
    assert all(item.role is Role.DECODE for item in fleet_filter.matching(pools, ["decode"], [], ""))
    assert [item.pool_id for item in fleet_filter.matching(pools, [], [], "D3/1")] == ["d3/1"]
    assert fleet_filter.matching(pools, [], ["rack=none"], "") == []
    assert "rack=r0" in fleet_filter.label_values(pools)
    assert not [pair for pair in fleet_filter.label_values(pools) if pair.startswith("model=")]


def test_table_columns_are_of_one_length_and_unknown_is_none(fleet_of_demo, make_pool) -> None:
    """Each column has a cell a pool; what is not known is None."""
    pools = [*fleet_of_demo.pools, make_pool("x", usable=None, used=None, arrived=None, prefix=None, block=None)]
    columns = fleet_table.table(pools, {}, T)
    assert {len(column) for column in columns.values()} == {len(pools)}
    assert columns["committed"][-1] is None
    assert columns["free_blocks"][-1] is None


def test_a_trend_never_bridges_a_gap(make_pool, history) -> None:
    """The line of a table cell starts after the last gap; it is thinned, and its last point is the newest sample."""
    past = history(make_pool(), 300, gap=True)
    line = fleet_table.trends([past], float(past.at_s[-1]), 300.0)["d0/0"]
    whole = fleet_table.trends([history(make_pool(), 300, gap=False)], float(past.at_s[-1]), 300.0)["d0/0"]
    assert 2 < len(line) <= fleet_table.TREND_POINTS
    assert len(whole) <= fleet_table.TREND_POINTS
    assert line[-1] == whole[-1]
    none = dataclasses.replace(past, at_s=past.at_s[:0], columns={k: v[:0] for k, v in past.columns.items()})
    assert fleet_table.trends([none], float(past.at_s[-1]), 300.0)["d0/0"] == []


def test_committed_unknown_has_no_mark(make_pool) -> None:
    """Where committed is unknown no mark is drawn at all."""
    item = make_pool()
    item = dataclasses.replace(
        item, composition=dataclasses.replace(item.composition, committed_tokens=unknown("not reported"))
    )
    marks = next(trace for trace in _drawn([item])["data"] if trace["name"].startswith("committed"))
    assert marks["x"] == [None]


def test_reserved_ends_at_committed_and_begins_at_what_is_held(fleet_of_demo) -> None:
    """committed = held + reserved: the thin bar spans exactly the difference."""
    pools = [item for item in fleet_of_demo.pools if item.role is Role.DECODE]
    reserved = next(trace for trace in _drawn(pools)["data"] if trace["name"] == "reserved")
    for place, item in enumerate(pools):
        used = item.composition.used_tokens.value
        assert reserved["base"][place] == pytest.approx(used)
        assert reserved["base"][place] + reserved["x"][place] == pytest.approx(item.composition.committed_tokens.value)


def test_pools_that_are_not_scored_are_named_with_their_reason(fleet_of_demo, make_pool) -> None:
    """Every pool out of the score is in exactly one sentence; a fresh fleet has none; names and reasons stay text."""
    pools = [*fleet_of_demo.pools, make_pool(HOSTILE, state=SourceState.DOWN, reason=HOSTILE, age_s=None)]
    said = fleet_filter.not_scored(pools, T)
    assert len(said) == 2
    assert any("d4/1" in line and "42 s" in line for line in said)
    assert any("no figure yet" in line for line in said)
    assert not any("](http" in line for line in said)
    assert fleet_filter.not_scored([item for item in pools if item.state.is_scored], T) == []


def test_a_trend_of_the_past_holds_nothing_of_its_future(make_pool, history) -> None:
    """At a past instant the line ends there, whatever is in memory since."""
    past = history(make_pool(), 300, gap=False)
    end_s = float(past.at_s[120])
    line = fleet_table.trends([past], end_s, 60.0)["d0/0"]
    shorter = dataclasses.replace(past, at_s=past.at_s[:121], columns={k: v[:121] for k, v in past.columns.items()})
    assert line == fleet_table.trends([shorter], end_s, 60.0)["d0/0"]


def test_two_equal_nodes_have_no_spread_and_two_names(make_pool) -> None:
    """Where all are alike the difference is 0 and its ends are still two nodes."""
    summary = fleet_summary.summarise([make_pool("a"), make_pool("b"), make_pool("c")])
    assert summary.nodes is not None
    assert summary.nodes.ratio == 0
    assert summary.nodes.low != summary.nodes.high
