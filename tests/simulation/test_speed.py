"""
The compiled kernel: the same bytes as the plain one, a cache that a changed source cannot fool, and its cost bounded.
"""

import inspect
import tracemalloc
from dataclasses import fields, replace

import numpy as np
import pytest

from scoring.model import Role
from scoring.service import PROFILES
from simulation import compiled, layout
from simulation.faults import Fault
from simulation.fleet import PoolSpec, disaggregated_fleet
from simulation.layout import FLOAT_TABLES, ROW_WIDTHS, State
from simulation.simulate import POLICIES, SimulationOptions, simulate
from simulation.state import make_state
from simulation.traffic import TrafficArrays


def fleet(**rules):
    base = PoolSpec(
        worker="x",
        role=Role.PREFILL,
        usable_tokens=24_576,
        block_size_tokens=16,
        reserve_tokens=16,
        profile=PROFILES["dynamo-mocker"],
    )
    decode = replace(base, profile=PROFILES["distserve-opt-13b-a100"], is_output_cached=True, max_incoming_count=3)
    return disaggregated_fleet(2, 2, prefill=base, decode=decode, rules=list(rules.items()))


def traffic(count=400):
    rng = np.random.default_rng(9)
    prompts = rng.integers(1, 3000, count)
    lengths = prompts // 64
    families = rng.integers(0, 20, count)
    return TrafficArrays(
        arrival_s=rng.uniform(0, 30, count),
        prompt_tokens=prompts,
        output_tokens=rng.integers(0, 250, count),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        hash_ids=np.concatenate([families[i] * 100 + np.arange(n) for i, n in enumerate(lengths)]),
        class_ids=rng.integers(0, 3, count),
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_compiled_and_plain_give_the_same_bytes(policy):
    """One source, two ways to run: every column of requests and samples is equal to the last bit."""
    rules = {"sharing": "max-min", "overlap_ratio": 0.5, "transfer_mode": "missing"} if policy == "joint" else {}
    faults = [
        Fault(kind="death", at_s=8.0, until_s=15.0, worker="d0"),
        Fault(kind="cancel-storm", at_s=20.0, factor=0.5),
        Fault(kind="slow-link", at_s=10.0, until_s=20.0, worker="d1", factor=0.05),
    ]
    options = SimulationOptions(telemetry_period_s=0.3, telemetry_age_s=0.5, is_leasing=policy != "random")
    one, other = (
        simulate(traffic(), fleet(**rules), policy, 2, faults, replace(options, is_compiled=is_compiled))
        for is_compiled in (True, False)
    )
    for table in ("requests", "samples"):
        for spec in fields(getattr(one, table)):
            a, b = getattr(getattr(one, table), spec.name), getattr(getattr(other, table), spec.name)
            assert a.tobytes() == b.tobytes(), f"{table}.{spec.name}"
    assert one.event_count == other.event_count
    assert one.itl_counts.tobytes() == other.itl_counts.tobytes()


def test_compiled_kernel_asks_python_policies():
    """A Python policy drives the compiled kernel too, and gets the same answers from it."""

    class Alternate:
        def choose(self, request, fleet):
            return fleet.prefill[request.row % 2], fleet.decode[request.hit_tokens.sum() % 2]

    runs = [
        simulate(traffic(100), fleet(), Alternate(), options=SimulationOptions(is_compiled=is_compiled))
        for is_compiled in (True, False)
    ]
    np.testing.assert_array_equal(runs[0].requests.finish_s, runs[1].requests.finish_s)


def test_more_ticks_than_first_thought_are_made_room_for():
    """A run that outlives its last arrival by far keeps its samples, all of them."""
    one = TrafficArrays(arrival_s=np.zeros(1), prompt_tokens=[100], output_tokens=[20_000])
    options = SimulationOptions(is_compiled=True, sample_period_s=0.25)
    result = simulate(one, fleet(), options=options)
    assert len(result.samples.at_s) > 600
    np.testing.assert_array_equal(result.samples.at_s, np.arange(len(result.samples.at_s)) * 0.25)
    assert result.samples.active_tokens.max() > 20_000


def test_every_table_says_how_it_is_laid_out():
    """The rewriting knows each table: its dimensions are those of a real state."""
    assert set(ROW_WIDTHS) == set(State._fields)
    state = make_state(fleet(), request_count=3, key_count=5, hash_block_tokens=64, seed=1)
    for name, table in zip(State._fields, state, strict=True):
        assert table.ndim == len(ROW_WIDTHS[name]) + 1, name
        assert table.dtype == (np.float64 if name in FLOAT_TABLES else np.int64), name
        for axis, width in enumerate(ROW_WIDTHS[name]):
            if width:
                assert eval(width, vars(layout)) == int(np.prod(table.shape[axis + 1 :])), name


def test_pack_keeps_every_value_and_shares_memory():
    """The flat form and its views are one memory."""
    state = make_state(fleet(), request_count=3, key_count=5, hash_block_tokens=64, seed=1)
    flat, views = compiled.pack(state)
    for before, after in zip(state, views, strict=True):
        np.testing.assert_array_equal(before, after)
    views.pi[2, 5] = 77
    views.rf[1, 1] = 0.125
    assert 77 in flat.i
    assert 0.125 in flat.f


def test_cache_is_void_when_any_source_changes(monkeypatch):
    """The stamp covers every module of the kernel and scoring's formulas, not only the entry's file."""
    before = compiled.source_stamp()
    real = inspect.getsource
    for module in (*compiled.FORMULAS, *compiled.MODULES, layout):
        monkeypatch.setattr(inspect, "getsource", lambda m, module=module: real(m) + ("#" if m is module else ""))
        assert compiled.source_stamp() != before, module.__name__
    monkeypatch.setattr(inspect, "getsource", real)
    assert compiled.source_stamp() == before


def test_memory_grows_with_the_traffic_not_with_its_events():
    """A hundred thousand requests cost less than 1.5 KiB each while they run."""
    count = 100_000
    rng = np.random.default_rng(3)
    many = TrafficArrays(
        arrival_s=np.sort(rng.uniform(0, 20_000, count)),
        prompt_tokens=rng.integers(1, 500, count),
        output_tokens=rng.integers(1, 50, count),
    )
    tracemalloc.start()
    result = simulate(many, fleet(), options=SimulationOptions(sample_period_s=10.0, is_compiled=True))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.requests.is_finished.all()
    assert peak < 1536 * count
