"""Laws of the judge: order of pools never matters, evidence is needed over time, degenerate fleets have a snapshot."""

from dataclasses import replace

import pytest

from commands.check import history_of
from scoring.leases import Lease, LeaseLedger
from scoring.model import Finding, Link, PoolReading, Provenance, Role, Severity, SourceState
from scoring.snapshot import JudgeSettings, judge_fleet, waiting_once


def past(worker, role=Role.UNIFIED, count=6, rank=0, step_s=1.0, **columns):
    """A history; a column is a constant or a function of the sample's index."""
    rows = []
    for index in range(count):
        values = {name: column(index) if callable(column) else column for name, column in columns.items()}
        at_s = 1000.0 + step_s * index
        rows.append(
            PoolReading(worker_id=worker, dp_rank=rank, role=role, received_at_s=at_s, reported_at_s=at_s, **values)
        )
    return history_of(rows)


def codes(findings):
    """Codes of findings."""
    return {finding.code for finding in findings}


CALM = {"usable_tokens": 1000.0, "used_tokens": 100.0, "running_count": 2.0, "waiting_count": 0.0}


def test_the_order_of_histories_changes_nothing():
    """The same fleet in any order is the same snapshot, pools ascending by name."""
    histories = [past(name, rank=rank, **CALM) for name, rank in (("b", 1), ("a", 0), ("b", 0), ("c", 10), ("c", 2))]
    fleet = judge_fleet(histories, 1005.0)
    assert fleet == judge_fleet(histories[::-1], 1005.0)
    assert [pool.pool_id for pool in fleet.pools] == sorted(pool.pool_id for pool in fleet.pools)


def test_no_fleet_is_a_fleet():
    """No pools: an empty snapshot, nothing waits, nothing raised."""
    fleet = judge_fleet([], 5.0)
    assert (fleet.pools, fleet.findings, fleet.at_s) == ((), (), 5.0)
    assert waiting_once(fleet.pools).provenance is Provenance.UNKNOWN


def test_a_pool_twice_is_a_broken_contract():
    """The caller is told which."""
    with pytest.raises(ValueError, match="w/0"):
        judge_fleet([past("w", **CALM), past("w", **CALM)], 1005.0)


def test_a_worker_never_answered_is_judged_without_figures():
    """A history without samples: unknown figures, its state from the poll, no number made up."""
    empty = replace(past("w", **CALM), at_s=past("w", **CALM).at_s[:0], columns={}, last=PoolReading(worker_id="w"))
    (pool,) = judge_fleet([replace(empty, poll_state=SourceState.DOWN, poll_detail="refused")], 1005.0).pools
    assert (pool.state, pool.state_reason, pool.age_s, pool.received_at_s) == (SourceState.DOWN, "refused", None, None)
    assert pool.composition.used_tokens.provenance is pool.running_count.provenance is Provenance.UNKNOWN


def test_held_tokens_need_time_and_idleness():
    """Held with nothing running for seconds is a leak; while something runs, waits or travels, or briefly: not."""
    idle = {"usable_tokens": 1000.0, "used_tokens": 50.0, "running_count": 0.0, "waiting_count": 0.0}

    def found(at_s=1008.0, **changed):
        return codes(judge_fleet([past("w", count=9, **{**idle, **changed})], at_s).pools[0].findings)

    assert "held-with-nothing-running" in found()
    for innocent in (
        {"running_count": 1.0},
        {"waiting_count": 2.0},
        {"queue_inflight_count": 1.0},
        {"queue_transfer_count": 1.0},
        {"used_tokens": 0.0},
        {"running_count": None},
        {"running_count": lambda index: float(index == 7)},
    ):
        assert "held-with-nothing-running" not in found(**innocent), innocent
    short = judge_fleet([past("w", count=3, **idle)], 1002.0).pools[0]
    assert "held-with-nothing-running" not in codes(short.findings)
    assert short.composition.active_tokens.value == 50


def test_what_is_held_by_nothing_is_unattributed():
    """A leak is no activity: unattributed takes it, active is 0, and it is still not available."""
    (pool,) = judge_fleet(
        [past("w", count=9, usable_tokens=1000.0, used_tokens=50.0, running_count=0.0, waiting_count=0.0)], 1008.0
    ).pools
    composition = pool.composition
    assert (composition.active_tokens.value, composition.unattributed_tokens.value) == (0, 50)
    assert composition.available_tokens.value == 950


STUCK = {
    "usable_tokens": 1000.0,
    "used_tokens": 0.0,
    "waiting_count": lambda i: 20.0 + 4 * i,
    "queue_main_count": 0.0,
    "queue_bootstrap_count": lambda i: 20.0 + 4 * i,
    "queue_inflight_count": 0.0,
    "prefill_uncached_tokens_total": 1000.0,
    "prefill_busy_s_total": 1.0,
}
FULL_DECODE = {
    "usable_tokens": 1000.0,
    "used_tokens": 950.0,
    "running_count": 5.0,
    "waiting_count": 30.0,
    "queue_prealloc_count": 30.0,
    "queue_transfer_count": 0.0,
    "prealloc_ready_count": 30.0,
    "reserved_per_request_tokens": 1.0,
}


def test_a_stuck_prefill_pool_is_not_serving():
    """Handshakes that only pile up: an error, not serving, prompt speed withheld."""
    (pool,) = judge_fleet([past("p", Role.PREFILL, **STUCK)], 1005.0).pools
    (finding,) = [f for f in pool.findings if f.code == "handshake-not-completing"]
    assert finding.severity is Severity.ERROR
    assert not pool.is_serving
    assert pool.rates.prefill_tokens_per_s.provenance is Provenance.UNKNOWN


@pytest.mark.parametrize(
    "changed",
    [
        {"prefill_uncached_tokens_total": lambda i: 1000.0 * i, "prefill_busy_s_total": lambda i: 0.5 * i},
        {"queue_bootstrap_count": 20.0},
        {"queue_bootstrap_count": lambda i: 60.0 - 4 * i},
        {"queue_inflight_count": 90.0},
        {"queue_bootstrap_count": lambda i: 1.0 + i},
        {"prefill_uncached_tokens_total": None, "prefill_busy_s_total": None},
    ],
)
def test_a_prefill_pool_with_progress_or_without_evidence_keeps_serving(changed):
    """Computing, shrinking, handing over, a short queue, or nothing known about progress: no verdict."""
    (pool,) = judge_fleet([past("p", Role.PREFILL, **{**STUCK, **changed})], 1005.0).pools
    assert pool.is_serving
    assert "handshake-not-completing" not in codes(pool.findings)


STUCK_DECODE = {
    "usable_tokens": 1000.0,
    "used_tokens": 0.0,
    "running_count": 0.0,
    "queue_prealloc_count": lambda i: 20.0 + 4 * i,
    "queue_transfer_count": 0.0,
    "queue_main_count": 0.0,
}


def test_a_decode_pool_that_never_shakes_hands_is_not_serving():
    """An empty decode pool whose prealloc queue only grows looks like the best target and is none."""
    (pool,) = judge_fleet([past("d", Role.DECODE, **STUCK_DECODE)], 1005.0).pools
    assert not pool.is_serving
    assert "handshake-not-completing" in codes(pool.findings)
    for changed in (
        {"running_count": 3.0},
        {"used_tokens": 500.0},
        {"queue_transfer_count": 30.0},
        {"queue_prealloc_count": 20.0},
    ):
        (pool,) = judge_fleet([past("d", Role.DECODE, **{**STUCK_DECODE, **changed})], 1005.0).pools
        assert pool.is_serving, changed


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"window_usage_ratio": 0.99}, "window-pool-binds"),
        ({"max_running_count": 2.0}, "slots-bind"),
        ({"state_slot_count": 8.0, "state_free_count": 0.0, "state_prefix_count": 0.0}, "slots-bind"),
    ],
)
def test_what_holds_requests_back_is_named(columns, code):
    """With ample KV and a queue, the pool or cap that is full is named; without a queue or with KV full it is not."""
    busy = {"usable_tokens": 1000.0, "used_tokens": 100.0, "running_count": 2.0, "waiting_count": 5.0, **columns}
    assert code in codes(judge_fleet([past("w", **busy)], 1005.0).pools[0].findings)
    for innocent in ({"waiting_count": 0.0}, {"used_tokens": 990.0}):
        assert code not in codes(judge_fleet([past("w", **{**busy, **innocent})], 1005.0).pools[0].findings), innocent


def test_state_slots_that_nobody_holds_are_missing():
    """315 free and 138 cached of 454 with nothing running: one slot is missing; all accounted for: none."""

    def found(free):
        idle = past(
            "w",
            usable_tokens=1000.0,
            used_tokens=0.0,
            running_count=0.0,
            waiting_count=0.0,
            state_slot_count=454.0,
            state_used_count=0.0,
            state_prefix_count=138.0,
            state_free_count=free,
        )
        return [f for f in judge_fleet([idle], 1005.0).pools[0].findings if f.code == "state-slots-missing"]

    assert found(316.0) == []
    (missing,) = found(315.0)
    assert missing.text.startswith("1 of 454")


def test_full_decode_pools_excuse_prefill():
    """When every decode pool is full, the queue is decode's: prefill serves, a fleet finding says what holds it."""
    fleet = judge_fleet([past("p", Role.PREFILL, **STUCK), past("d", Role.DECODE, **FULL_DECODE)], 1005.0)
    assert all(pool.is_serving for pool in fleet.pools)
    assert codes(fleet.findings) == {"decode-room-holds-prefill"}
    assert all(pool.rates.prefill_tokens_per_s.value == 1000 for pool in fleet.pools if pool.role is Role.PREFILL)
    roomy = past("e", Role.DECODE, **{**FULL_DECODE, "used_tokens": 10.0, "prealloc_ready_count": 0.0})
    other = judge_fleet([past("p", Role.PREFILL, **STUCK), past("d", Role.DECODE, **FULL_DECODE), roomy], 1005.0)
    assert not next(pool for pool in other.pools if pool.worker_id == "p").is_serving


def test_waiting_requests_of_both_sides_are_counted_once():
    """max(prefill side, decode side) + what only one side has; pools that are not scored are left out."""
    prefill = past("p", Role.PREFILL, usable_tokens=10.0, waiting_count=40.0, queue_inflight_count=2.0)
    decode = past(
        "d", Role.DECODE, usable_tokens=10.0, waiting_count=45.0, queue_prealloc_count=38.0, queue_transfer_count=3.0
    )
    alone = past("u", Role.UNIFIED, usable_tokens=10.0, waiting_count=7.0)
    fleet = judge_fleet([prefill, decode, alone], 1005.0)
    assert waiting_once(fleet.pools).value == max(42, 41) + (45 - 41) + 7
    down = replace(alone, poll_state=SourceState.DOWN)
    assert waiting_once(judge_fleet([prefill, decode, down], 1005.0).pools).value == 42 + 4


def test_leases_are_reserved_until_the_engine_shows_them():
    """A lease granted after the figures were true is reserved; one that they must show already is not."""
    ledger = LeaseLedger(visible_after_s=1.0)
    ledger.grant(Lease(lease_id="new", pool_id="w/0", tokens=70, granted_at_s=1005.0, expires_at_s=1100.0))
    ledger.grant(Lease(lease_id="old", pool_id="w/0", tokens=30, granted_at_s=990.0, expires_at_s=1100.0))
    (pool,) = judge_fleet([past("w", **CALM)], 1005.0, leases=ledger).pools
    (without,) = judge_fleet([past("w", **CALM)], 1005.0).pools
    assert pool.composition.reserved_tokens.value - without.composition.reserved_tokens.value == 70
    assert ledger.outstanding("w/0", 1005.0).tokens == 100


def test_a_refused_figure_is_said_and_left_out():
    """An anomaly without a dialect's sentence still has one; the fleet counts the pool as left out."""
    broken = past("w", usable_tokens=1000.0, used_tokens=None, running_count=1.0)
    broken = replace(broken, last=replace(broken.last, anomalies=("used_tokens",)))
    fleet = judge_fleet([broken, past("x", **CALM)], 1005.0)
    assert "figure-not-credible" in codes(fleet.pools[0].findings)
    (left_out,) = [finding for finding in fleet.findings if finding.code == "pools-left-out"]
    assert left_out.text.startswith("1 of 2")


def test_a_dialect_s_findings_reach_the_page_once():
    """What the dialect said of a pool is passed on, once."""
    said = Finding(code="ranks-missing", text="1 of 8")
    noted = past("w", **CALM)
    noted = replace(noted, last=replace(noted.last, findings=(said, said)))
    assert judge_fleet([noted], 1005.0).pools[0].findings.count(said) == 1


def test_bytes_per_token_come_from_the_engine_then_the_file_then_the_geometry():
    """In this order; an unknown model is unknown; labels that are no number count for nothing."""
    plain = past("w", **CALM)

    def size(reading_model=None, engine=None, **labels):
        history = replace(plain, last=replace(plain.last, model=reading_model, bytes_per_token=engine), labels=labels)
        return judge_fleet([history], 1005.0).pools[0].bytes_per_token

    assert (size(engine=5.0, bytes_per_token="7").value, size(bytes_per_token="7").value) == (5.0, 7.0)
    geometry = size(reading_model="meta-llama/Llama-3.1-8B")
    assert (geometry.value, geometry.provenance) == (131072, Provenance.ESTIMATED)
    assert size(reading_model="nobody/knows").provenance is Provenance.UNKNOWN
    assert size(bytes_per_token="many").provenance is Provenance.UNKNOWN


def test_line_rates_belong_to_the_link_of_the_worker():
    """A gauge above its own line rate is a contradiction; above another worker's, or without a link, it is not."""
    fast = past("p", Role.PREFILL, **CALM, transfer_reported_bytes_per_s=60e9)

    def found(*links, **labels):
        return codes(judge_fleet([replace(fast, labels=labels)], 1005.0, links=links).pools[0].findings)

    assert "transfer-gauge-above-line-rate" in found(Link(source="p", target="*", bandwidth_bytes_per_s=50e9))
    assert found(Link(source="q", target="*", bandwidth_bytes_per_s=50e9)) == set()
    assert found(Link(source="p", target="*", bandwidth_bytes_per_s=None)) == set()
    assert found() == set()
    assert "transfer-gauge-above-line-rate" in found(link_bandwidth_bytes_per_s="5e10")
    assert found(link_bandwidth_bytes_per_s="fast") == set()


def test_a_restart_is_told():
    """Counters that fell within the window: a finding, and rates from the start of the new life."""
    (pool,) = judge_fleet(
        [past("w", **CALM, prompt_tokens_total=lambda i: 100.0 * (i if i < 3 else i - 3))], 1005.0
    ).pools
    assert "restarted" in codes(pool.findings)


def test_settings_move_the_limits():
    """Ages are judged by the thresholds given."""
    history = past("w", **CALM)
    assert judge_fleet([history], 1009.0).pools[0].state is SourceState.LATE
    strict = JudgeSettings(late_after_s=1.0, stale_after_s=2.0)
    assert judge_fleet([history], 1009.0, strict).pools[0].state is SourceState.STALE
