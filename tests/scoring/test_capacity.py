"""Laws of the composition: parts add up, more held never leaves more room, unknown stays unknown, one formula."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring.capacity import WORDS, compose, compose_history, compose_many
from scoring.model import Composition, PoolHistory, PoolReading, Provenance, Role, signal_names

TOKENS = st.integers(0, 10**6).map(float)
COUNT = st.integers(0, 200).map(float)


def maybe(values):
    """A value or unknown."""
    return st.none() | values


READINGS = st.builds(
    PoolReading,
    role=st.sampled_from(Role),
    engine=st.sampled_from(["sglang", "vllm"]),
    usable_tokens=maybe(TOKENS),
    used_tokens=maybe(TOKENS),
    allocated_tokens=maybe(TOKENS),
    pending_total_tokens=maybe(TOKENS),
    arrived_tokens=maybe(TOKENS),
    prefix_tokens=maybe(TOKENS),
    free_tokens=maybe(TOKENS),
    free_or_prefix_tokens=maybe(TOKENS),
    in_flight_tokens=maybe(TOKENS),
    offloaded_tokens=maybe(TOKENS),
    block_size_tokens=maybe(st.sampled_from([1.0, 16.0, 64.0])),
    running_count=maybe(COUNT),
    waiting_count=maybe(COUNT),
    queue_main_count=maybe(COUNT),
    queue_inflight_count=maybe(COUNT),
    queue_prealloc_count=maybe(COUNT),
    queue_transfer_count=maybe(COUNT),
    queue_retracted_count=maybe(COUNT),
    prealloc_ready_tokens=maybe(TOKENS),
    waiting_uncached_tokens=maybe(TOKENS),
    reserved_per_request_tokens=maybe(st.sampled_from([0.0, 512.0])),
    prompt_tokens_total=maybe(TOKENS),
    finished_total=maybe(COUNT),
)


def value(composition: Composition, word: str) -> float | None:
    """The point of a word."""
    return getattr(composition, f"{word}_tokens").value


def filled(composition: Composition, word: str) -> float:
    """What a bar of the word takes: its point, else its lower bound, else nothing."""
    figure = getattr(composition, f"{word}_tokens")
    return figure.value if figure.value is not None else figure.low or 0.0


@given(READINGS)
@settings(max_examples=120, deadline=None)
def test_parts_add_up_to_usable(reading):
    """usable = active + in flight + prefix + fragmentation + free + unattributed, wherever use is within capacity."""
    c = compose(reading)
    if c.usable_tokens.value is None or c.used_tokens.value is None or c.used_tokens.value > c.usable_tokens.value:
        return
    room = (
        [filled(c, "free"), filled(c, "prefix")]
        if value(c, "free") is not None and value(c, "prefix") is not None
        else [filled(c, "free_or_prefix")]
    )
    total = sum([filled(c, "active"), filled(c, "in_flight"), filled(c, "unattributed"), *room])
    if reading.in_flight_tokens is not None and reading.in_flight_tokens > c.used_tokens.value:
        return  # The engine contradicts itself.
    assert total == pytest.approx(c.usable_tokens.value)


@given(READINGS)
@settings(max_examples=25, deadline=None)
def test_every_figure_is_well_formed(reading):
    """Nothing is negative; unknown means exactly that nothing is given; every figure says why; bounds are in order."""
    c = compose(reading)
    for word in WORDS:
        figure = getattr(c, word)
        given_any = any(part is not None for part in (figure.value, figure.low, figure.high))
        assert (figure.provenance is Provenance.UNKNOWN) == (not given_any), word
        assert figure.reason
        assert figure.value is None or figure.value >= 0
        if figure.low is not None and figure.high is not None:
            assert 0 <= figure.low <= figure.high


@given(READINGS, TOKENS)
@settings(max_examples=60, deadline=None)
def test_more_held_never_leaves_more_room(reading, more):
    """With more tokens used, available does not rise and committed does not fall."""
    if reading.used_tokens is None:
        return
    before, after = compose(reading), compose(replace(reading, used_tokens=reading.used_tokens + more))
    if value(before, "available") is not None:
        assert value(after, "available") <= value(before, "available")
    if value(before, "committed") is not None:
        assert value(after, "committed") >= value(before, "committed")


@given(READINGS, TOKENS)
@settings(max_examples=40, deadline=None)
def test_a_lease_adds_its_tokens_to_reserved_and_committed_and_to_nothing_else(reading, lease):
    """A promise is a claim: it changes reserved and committed by exactly its size."""
    without, with_lease = compose(reading), compose(reading, lease)
    for word in ("reserved", "committed"):
        if value(without, word) is not None:
            assert value(with_lease, word) == pytest.approx(value(without, word) + lease)
    for word in WORDS:
        if word not in ("reserved_tokens", "committed_tokens"):
            assert getattr(with_lease, word) == getattr(without, word)


@given(st.lists(READINGS, min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
def test_a_fleet_is_composed_as_its_pools(readings):
    """Composing many at once, in any order, gives what composing each alone gives."""
    alone = [compose(reading) for reading in readings]
    assert compose_many(readings) == alone
    assert compose_many(readings[::-1]) == alone[::-1]
    assert compose_many([]) == []


@given(st.lists(READINGS, min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
def test_a_history_says_what_each_sample_says(readings):
    """At every sample a history has the very value that the reading of that moment composes to."""
    last = readings[-1]
    constant = {"role": last.role, "engine": last.engine}
    for name in ("usable_tokens", "block_size_tokens", "reserved_per_request_tokens"):
        constant[name] = getattr(last, name)
    same = [replace(reading, **constant) for reading in readings]
    columns = {n: np.array([np.nan if getattr(r, n) is None else getattr(r, n) for r in same]) for n in signal_names()}
    history = PoolHistory(last=same[-1], at_s=np.arange(len(same), dtype=float), columns=columns)
    got = compose_history(history)
    for index, reading in enumerate(same):
        c = compose(reading)
        for word in WORDS:
            expected = getattr(c, word).value
            assert np.isnan(got[word][index]) if expected is None else got[word][index] == expected, word


def test_a_constant_asked_rarely_holds_for_the_whole_history():
    """The reserve per request is read once a minute: earlier samples without it are composed with it."""
    last = PoolReading(
        role=Role.DECODE, usable_tokens=100.0, used_tokens=10.0, running_count=2.0, reserved_per_request_tokens=5.0
    )
    columns = {
        "usable_tokens": np.array([100.0, 100.0]),
        "used_tokens": np.array([8.0, 10.0]),
        "running_count": np.array([1.0, 2.0]),
    }
    got = compose_history(PoolHistory(last=last, at_s=np.array([0.0, 1.0]), columns=columns))
    assert got["committed_tokens"].tolist() == [13.0, 20.0]


DECODE = PoolReading(
    role=Role.DECODE,
    engine="sglang",
    usable_tokens=524288.0,
    used_tokens=401216.0,
    pending_total_tokens=448616.0,
    arrived_tokens=331516.0,
    running_count=96.0,
    waiting_count=34.0,
    queue_main_count=4.0,
    queue_prealloc_count=11.0,
    queue_transfer_count=18.0,
    queue_retracted_count=0.0,
)


def test_decode_in_flight_is_exact_without_retracted_requests():
    """used - arrived, derived, and active is the rest."""
    c = compose(DECODE)
    assert (value(c, "in_flight"), value(c, "active")) == (401216 - 331516, 331516)
    assert c.in_flight_tokens.provenance is Provenance.DERIVED


def test_decode_in_flight_is_bounded_with_retracted_requests():
    """The retracted part lies between a token a request and what the preallocating ones leave of the backlog."""
    c = compose(replace(DECODE, queue_retracted_count=1.0, prealloc_ready_tokens=12288.0))
    assert c.in_flight_tokens.value is None
    assert (c.in_flight_tokens.low, c.in_flight_tokens.high) == (69701, 69700 + 47400 - 12288)
    assert (c.active_tokens.low, c.active_tokens.high) == (401216 - c.in_flight_tokens.high, 401216 - 69701)
    assert value(c, "unattributed") == c.in_flight_tokens.high - c.in_flight_tokens.low
    assert value(c, "available") == 524288 - 401216


def test_decode_in_flight_is_exact_again_when_only_retracted_requests_are_the_backlog():
    """With an empty prealloc queue the whole backlog is retracted: in flight = used - arrived + backlog."""
    c = compose(replace(DECODE, queue_retracted_count=2.0, queue_prealloc_count=0.0))
    assert value(c, "in_flight") == 69700 + 47400
    assert c.in_flight_tokens.provenance is Provenance.DERIVED


def test_prefill_in_flight_is_an_estimate_of_count_and_mean_prompt():
    """7 transfers x the mean of the queue; a mean from the recent past comes first; never more than is used."""
    prefill = PoolReading(
        role=Role.PREFILL,
        usable_tokens=524288.0,
        used_tokens=182336.0,
        pending_total_tokens=298992.0,
        waiting_count=14.0,
        queue_inflight_count=7.0,
    )
    c = compose(prefill)
    assert value(c, "in_flight") == pytest.approx(7 * (298992 - 182336) / 14)
    assert c.in_flight_tokens.provenance is c.active_tokens.provenance is Provenance.ESTIMATED
    assert value(compose(prefill, mean_prompt_tokens=1000.0), "in_flight") == 7000
    assert value(compose(prefill, mean_prompt_tokens=1e6), "in_flight") == 182336
    assert value(compose(replace(prefill, queue_inflight_count=0.0)), "in_flight") == 0


def test_committed_is_full_where_usage_is_half():
    """used + 512 x admitted: 0.5 in use and 11 requests of 512 fill a pool of 12000."""
    busy = PoolReading(
        role=Role.DECODE,
        engine="sglang",
        usable_tokens=12000.0,
        used_tokens=6000.0,
        running_count=11.0,
        queue_transfer_count=0.0,
        queue_main_count=0.0,
    )
    c = compose(busy)
    assert value(c, "committed") == 6000 + 512 * 11
    assert c.committed_tokens.provenance is Provenance.ESTIMATED
    known = compose(replace(busy, reserved_per_request_tokens=512.0))
    assert (value(known, "committed"), known.committed_tokens.provenance) == (value(c, "committed"), Provenance.DERIVED)
    other = compose(replace(busy, engine="vllm"))
    assert value(other, "committed") == 6000


def test_queued_is_counted_beside_and_once():
    """Need of waiting requests holds nothing: it is in queued, never in committed, used or available."""
    c, idle = compose(DECODE), compose(replace(DECODE, pending_total_tokens=401216.0))
    assert value(c, "queued") == 47400
    for word in ("committed", "used", "available"):
        assert value(c, word) == value(idle, word)
    unknown = compose(replace(DECODE, pending_total_tokens=None))
    assert unknown.queued_tokens.provenance is Provenance.UNKNOWN
    assert value(compose(replace(DECODE, pending_total_tokens=None, waiting_count=0.0)), "queued") == 0


def test_used_is_never_taken_from_free():
    """usable - free is not used: prefix and what nobody names lie between. Without a used figure it is unknown."""
    c = compose(PoolReading(role=Role.UNIFIED, usable_tokens=262144.0, free_tokens=212992.0))
    assert c.used_tokens.provenance is Provenance.UNKNOWN
    both = compose(PoolReading(role=Role.UNIFIED, usable_tokens=100.0, free_or_prefix_tokens=40.0))
    assert (value(both, "used"), both.used_tokens.provenance) == (60, Provenance.DERIVED)


def test_what_no_part_names_is_unattributed():
    """used + prefix + free below usable: the rest is unattributed and not available."""
    c = compose(
        PoolReading(role=Role.UNIFIED, usable_tokens=454.0, used_tokens=0.0, prefix_tokens=138.0, free_tokens=315.0)
    )
    assert value(c, "unattributed") == 1
    assert value(c, "available") == 138 + 315


@pytest.mark.parametrize("usable", [None, 0.0])
def test_a_pool_without_capacity_has_no_room_and_no_ratio(usable):
    """Capacity 0 or unknown is unknown: not full, not empty, and never divided by."""
    c = compose(PoolReading(role=Role.UNIFIED, usable_tokens=usable, used_tokens=5.0))
    assert (value(c, "usable"), value(c, "available")) == (None, None)
    assert value(c, "used") == 5
