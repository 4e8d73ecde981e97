"""
The saturation chain: each stage lights on its evidence and on nothing else, dwell and hysteresis hold, and nothing is
ever concluded from missing data, gaps, restarts, clocks set back or a changed capacity.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring.chain import (
    EVENT_ALARM,
    EVENT_BREAK,
    EVENT_SIGN,
    EVENT_STAGE,
    ChainEvent,
    ChainSettings,
    ChainState,
    step,
)
from scoring.chain_evidence import STAGES, Stage
from scoring.model import PoolHistory, PoolReading, Role, SourceState
from scoring.snapshot import judge_fleet

START_S = 1_780_000_000.0
USABLE = 100_000.0
SAFETY = 5_000.0
SETTINGS = ChainSettings()

BUCKETS = (0.1, 0.5, 1.0, 5.0, 30.0, math.inf)


def buckets(*counts: float) -> tuple[tuple[float, float], ...]:
    """Return a cumulative histogram with so many observations per bucket of BUCKETS."""
    total, rows = 0.0, []
    for bound, count in zip(BUCKETS, counts, strict=True):
        total += count
        rows.append((bound, total))
    return tuple(rows)


@dataclass
class Pool:
    """A decode pool whose figures a test sets second by second, judged by the real judge, stepped by the chain."""

    role: Role = Role.DECODE
    settings: ChainSettings = SETTINGS
    now_s: float = START_S
    signals: dict[str, Any] = field(
        default_factory=lambda: {
            "usable_tokens": USABLE,
            "used_tokens": 40_000.0,
            "running_count": 10.0,
            "waiting_count": 0.0,
            "queue_transfer_count": 0.0,
            "queue_main_count": 0.0,
            "queue_prealloc_count": 0.0,
            "queue_retracted_count": 0.0,
            "prealloc_ready_count": 0.0,
            "reserved_per_request_tokens": 512.0,
            "decode_generated_tokens_total": 0.0,
            "decode_steps_total": 0.0,
            "decode_step_s_total": 0.0,
            "decode_batch_sum_total": 0.0,
            "retracted_total": 0.0,
        }
    )
    state: ChainState = field(default_factory=ChainState)
    events: list[ChainEvent] = field(default_factory=list)
    rows: list[tuple[float, PoolReading]] = field(default_factory=list)
    poll_state: SourceState = SourceState.FRESH
    texts: dict[str, Any] = field(default_factory=dict)

    def look(self, seconds: float = 1.0, *, is_polled: bool = True, **changes: Any) -> None:
        """Let time pass, change figures (a callable gets the old value), poll and step."""
        self.now_s += seconds
        for name, value in changes.items():
            target = self.texts if name.endswith("_buckets") else self.signals
            target[name] = value(target.get(name, 0.0)) if callable(value) else value
        if is_polled:
            reading = PoolReading(
                worker_id="d", role=self.role, engine="sglang", received_at_s=self.now_s, **self.signals, **self.texts
            )
            self.rows.append((self.now_s, reading))
        names = {name for _, reading in self.rows for name in self.signals}
        columns = {
            name: np.array([math.nan if (v := getattr(r, name)) is None else v for _, r in self.rows], float)
            for name in names
        }
        history = PoolHistory(
            last=self.rows[-1][1],
            at_s=np.array([at for at, _ in self.rows]),
            columns=columns,
            polled_at_s=self.now_s,
            poll_state=self.poll_state,
        )
        (pool,) = judge_fleet([history], self.now_s).pools
        self.state, found = step(self.state, pool, history, self.settings, SAFETY)
        self.events += found

    def run(self, seconds: int, **changes: Any) -> None:
        """Look once a second; a healthy pool generates and gives back evenly unless told otherwise."""
        for _ in range(seconds):
            base = {
                "decode_generated_tokens_total": lambda old: old + 500.0,
                "decode_steps_total": lambda old: old + 50.0,
                "decode_step_s_total": lambda old: old + 1.0,
                "decode_batch_sum_total": lambda old: old + 500.0,
            }
            self.look(**{**base, **changes})

    def kinds(self, kind: str) -> list[ChainEvent]:
        """Return events of a kind."""
        return [event for event in self.events if event.kind == kind]


def up(amount: float) -> Callable[[float | None], float]:
    """Return what adds to a figure."""
    return lambda old: (old or 0.0) + amount


def test_a_quiet_pool_is_well_and_says_so_once() -> None:
    """A constant series is one event: the first look; no stage, no alarm, whatever time passes."""
    pool = Pool()
    pool.run(90)
    assert pool.state.stage is Stage.HEALTHY
    assert [event.kind for event in pool.events] == [EVENT_STAGE]
    assert not pool.state.alarm.is_on


def test_thin_headroom_lights_after_its_dwell_and_goes_out_after_a_longer_one() -> None:
    """Available less reserved below the reserve for two seconds lights; above it for eight puts out."""
    pool = Pool()
    pool.run(20)
    pool.run(2, used_tokens=92_000.0)
    assert pool.state.lit == ()
    pool.run(1, used_tokens=92_000.0)
    assert pool.state.lit == (Stage.THIN_HEADROOM,)
    pool.run(7, used_tokens=40_000.0)
    assert pool.state.stage is Stage.THIN_HEADROOM
    pool.run(3, used_tokens=40_000.0)
    assert pool.state.stage is Stage.HEALTHY
    began, ended = pool.kinds(EVENT_SIGN)
    assert began.details["is_lit"]
    assert began.details["value"] == pytest.approx(100_000 - 92_000 - 5_120 - 5_000)
    assert not ended.details["is_lit"]
    assert "headroom" in ended.text


def test_a_full_prefix_cache_is_no_sign() -> None:
    """A pool that is physically full of evictable prefix is well: available counts what eviction could free."""
    pool = Pool(role=Role.UNIFIED)
    pool.run(60, used_tokens=30_000.0, prefix_tokens=69_500.0, free_tokens=500.0, evicted_tokens_total=up(400.0))
    assert pool.state.stage is Stage.HEALTHY


def test_admission_stalls_when_ready_requests_wait_for_room() -> None:
    """Requests that capacity alone keeps out, for as long as a queue needs to be no passing one."""
    pool = Pool()
    pool.run(20)
    pool.run(2, prealloc_ready_count=4.0)
    assert Stage.ADMISSION_STALLS not in pool.state.lit
    pool.run(6, prealloc_ready_count=4.0)
    assert pool.state.stage is Stage.ADMISSION_STALLS


def test_a_waiting_queue_alone_is_no_stall_where_there_is_room() -> None:
    """A unified worker with room and a queue waits for compute, not for KV."""
    pool = Pool(role=Role.UNIFIED)
    pool.run(60, used_tokens=20_000.0, waiting_count=30.0, queue_main_count=30.0)
    assert pool.state.stage is Stage.HEALTHY


def test_retraction_and_recompute_light_from_counters() -> None:
    """A retraction lights stage 3, its tokens stage 4; both go out once the windows have passed."""
    pool = Pool()
    pool.run(20)
    pool.run(1, retracted_total=up(2.0), retracted_input_tokens_total=800.0, retracted_output_tokens_total=300.0)
    pool.run(6)
    assert {Stage.RETRACTION, Stage.RECOMPUTE} <= set(pool.state.lit)
    pool.run(60)
    assert pool.state.stage is Stage.HEALTHY


def test_a_counter_that_appears_at_its_first_event_counts() -> None:
    """SGLang creates some counters at the first retraction: absent, then 3, is three retractions."""
    pool = Pool()
    pool.run(20, retracted_total=None)
    pool.run(4, retracted_total=3.0)
    assert pool.state.light(Stage.RETRACTION).is_lit
    assert pool.state.light(Stage.RETRACTION).sign.value == 3.0


def _begin(pool: Pool) -> None:
    """Bring a pool that has been well into a stall."""
    pool.run(60, used_tokens=lambda old: 60_000.0 - (len(pool.rows) % 10) * 900.0)
    pool.run(8, prealloc_ready_count=5.0)
    assert Stage.ADMISSION_STALLS in pool.state.lit


def test_slow_release_is_held_against_the_pools_own_past() -> None:
    """Half the usual share given back lights stage 5, but only once the chain has begun."""
    alone = Pool()
    alone.run(60, used_tokens=lambda old: 60_000.0 - (len(alone.rows) % 10) * 900.0)
    alone.run(30, used_tokens=up(500.0))  # All that is generated stays: nothing is given back.
    assert Stage.SLOW_RELEASE not in alone.state.lit
    pool = Pool()
    _begin(pool)
    pool.run(25, used_tokens=up(500.0), prealloc_ready_count=5.0)
    light = pool.state.light(Stage.SLOW_RELEASE)
    assert light.is_lit
    assert light.sign.value < light.sign.threshold


def test_a_long_tail_is_read_off_the_histogram_of_the_last_seconds() -> None:
    """The 99th percentile of new observations, not of all since the start, lights stage 6."""
    pool = Pool()
    count = [0.0]

    def healthy(_: Any) -> Any:
        count[0] += 10.0
        return buckets(count[0], 0, 0, 0, 0, 0)

    for _ in range(60):
        pool.run(1, ttft_buckets=healthy)
    slow = [0.0]

    def late(_: Any) -> Any:
        slow[0] += 5.0
        return buckets(count[0], 0, 0, 0, slow[0], 0)

    for _ in range(15):
        pool.run(1, ttft_buckets=late, prealloc_ready_count=5.0)
    assert Stage.TAIL_LATENCY in pool.state.lit
    assert pool.state.at.ttft_s > 5.0
    for _ in range(120):
        pool.run(1, ttft_buckets=lambda old: buckets(count[0] + 10_000, 0, 0, 0, slow[0], 0), prealloc_ready_count=0.0)
    assert pool.state.stage is Stage.HEALTHY


def test_long_tails_alone_are_not_saturation() -> None:
    """Late stages need a stall or a retraction before them: a slow network is no KV chain."""
    pool = Pool()
    pool.run(60, ttft_s_total=up(0.2), ttft_count_total=up(1.0))
    pool.run(40, ttft_s_total=up(20.0), ttft_count_total=up(1.0))
    assert pool.state.stage is Stage.HEALTHY


@pytest.mark.parametrize("state", [SourceState.DOWN, SourceState.UNAUTHORISED, SourceState.NOT_UNDERSTOOD])
def test_missing_data_is_its_own_state_and_nothing_else(state: SourceState) -> None:
    """A pool that cannot be seen is CANNOT_SEE after its dwell; its lights go out as unseen, no alarm is left on."""
    pool = Pool()
    pool.run(20)
    pool.run(4, used_tokens=92_000.0)
    pool.poll_state = state
    for _ in range(9):
        pool.look(is_polled=False)
    assert pool.state.stage is Stage.THIN_HEADROOM
    for _ in range(20):
        pool.look(is_polled=False)
    assert pool.state.stage is Stage.CANNOT_SEE
    assert pool.state.lit == ()
    assert pool.state.risk.exhausted_probability is None
    assert "cannot be seen" in pool.kinds(EVENT_SIGN)[-1].text
    pool.poll_state = SourceState.FRESH
    pool.run(3, used_tokens=40_000.0)
    assert pool.state.stage is Stage.HEALTHY
    assert pool.kinds(EVENT_ALARM) == []


def test_unknown_composition_cannot_be_seen() -> None:
    """An engine that does not say what is held gives neither stage nor alarm."""
    pool = Pool()
    pool.run(40, used_tokens=None)
    assert pool.state.stage is Stage.CANNOT_SEE
    assert "held" in pool.state.blind_reason


def test_a_restart_begins_anew() -> None:
    """Counters that fall are a restart: lights out, what was normal forgotten, said as a break, no flow invented."""
    pool = Pool()
    pool.run(40)
    pool.run(5, used_tokens=92_000.0)
    assert pool.state.learnt
    pool.look(used_tokens=1_000.0, decode_generated_tokens_total=10.0, decode_steps_total=1.0)
    assert pool.state.lit == ()
    assert not pool.state.learnt
    assert "restarted" in pool.kinds(EVENT_BREAK)[-1].text
    pool.run(5, used_tokens=1_000.0)
    assert pool.state.risk.exhausted_probability in (None, 0.0)


def test_a_changed_capacity_begins_anew() -> None:
    """The same tokens in half the room are no growth; it is said, and no probability rests on it."""
    pool = Pool()
    pool.run(40)
    pool.look(usable_tokens=50_000.0)
    assert "capacity changed from 100000 to 50000" in pool.kinds(EVENT_BREAK)[-1].text
    assert pool.state.risk.exhausted_probability is None
    pool.run(20)
    assert pool.state.risk.exhausted_probability is not None


@pytest.mark.parametrize("jump", [-3600.0, -1.5, 45.0, 86_400.0])
def test_clocks_that_jump_and_gaps_ripen_nothing(jump: float) -> None:
    """A sign seen once before and once after a jump has not held in between."""
    pool = Pool()
    pool.run(30)
    pool.run(1, used_tokens=92_000.0)
    if jump < 0:
        # The collector begins the past anew when its clock is set back.
        pool.rows.clear()
    pool.look(jump, used_tokens=92_000.0)
    assert pool.state.lit == ()
    assert pool.kinds(EVENT_BREAK)
    pool.run(4, used_tokens=92_000.0)
    assert pool.state.lit == (Stage.THIN_HEADROOM,)
    assert pool.kinds(EVENT_ALARM) == []


def test_a_single_sample_gives_no_probability() -> None:
    """One look at a nearly full pool: headroom is known, flow is not, no alarm."""
    pool = Pool()
    pool.look(used_tokens=99_000.0)
    assert pool.state.risk.exhausted_probability is None
    assert pool.state.risk.exhaustion is None
    assert pool.state.risk.headroom_tokens < 0
    assert pool.state.lit == ()


def test_the_same_history_gives_the_same_events() -> None:
    """Deterministic: no clock, no chance."""

    def course() -> list[ChainEvent]:
        pool = Pool()
        _begin(pool)
        pool.run(25, used_tokens=up(500.0))
        return pool.events

    assert course() == course()


def test_every_event_can_be_stored_and_begins_and_ends_alternate() -> None:
    """Details hold finite numbers and words only; a stage never begins twice without an end between."""
    pool = Pool()
    _begin(pool)
    pool.run(30, used_tokens=up(500.0), retracted_total=up(0.2))
    pool.run(90, used_tokens=40_000.0, prealloc_ready_count=0.0)
    lit: dict[str, bool] = {}
    for event in pool.events:
        assert event.text
        for value in event.details.values():
            assert isinstance(value, str | bool) or math.isfinite(value)
        if event.kind == EVENT_SIGN:
            stage, is_lit = event.details["stage"], event.details["is_lit"]
            assert lit.get(stage, False) != is_lit
            lit[stage] = is_lit
    assert not any(lit.values())
    assert pool.state.stage is Stage.HEALTHY


COURSE = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.2, 1.0, 1.0, 1.0, 4.0, 30.0, -5.0]),
        st.one_of(st.none(), st.floats(0.0, 120_000.0)),
        st.floats(0.0, 50.0),
        st.booleans(),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(COURSE)
def test_no_course_of_figures_breaks_the_machine(course: list[tuple[float, float | None, float, bool]]) -> None:
    """Whatever comes: the stage is the furthest lit one, lights end, probabilities are probabilities."""
    pool = Pool()
    pool.look()
    for seconds, used, queue, is_polled in course:
        newest = pool.rows[-1][0]
        if pool.now_s + seconds <= newest:
            is_polled = False
        pool.look(seconds, is_polled=is_polled, used_tokens=used, prealloc_ready_count=queue)
        state = pool.state
        if state.stage is not Stage.CANNOT_SEE:
            assert state.stage == max(state.lit, default=Stage.HEALTHY)
        else:
            assert state.lit == ()
            assert not state.alarm.is_on
        for probability in (state.risk.exhausted_probability, state.risk.thin_probability):
            assert probability is None or 0.0 <= probability <= 1.0
    assert len(STAGES) == 6


def test_knobs_that_cannot_work_are_refused() -> None:
    """A negative dwell or a past of nothing is an error that names the field."""
    with pytest.raises(ValueError, match="on_dwell_s"):
        ChainSettings(on_dwell_s=-1.0)
    with pytest.raises(ValueError, match="past_s"):
        ChainSettings(past_s=0.0)
    assert isinstance(replace(SETTINGS).alarm.horizon_s, float)
