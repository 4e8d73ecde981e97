"""The snapshot file: what is written comes back, little is needed by hand, every mistake is named with its place."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands.check import check_files
from scoring.model import FleetSnapshot, Link, Provenance, Role, SourceState
from scoring.snapshot import fleet_from_json, fleet_to_json, judge_fleet
from scoring.snapshot_file import SnapshotFileError

ROOT = Path(__file__).resolve().parent.parent
PAYLOADS = ROOT / "payloads" / "sglang"


def fleet_of(*names):
    """A judged fleet of recorded payloads, one worker a file."""
    pools = []
    for name in names:
        path = PAYLOADS / name
        for pool in check_files([path]).pools:
            worker = name.replace("/", "-")
            reading = replace(pool.reading, worker_id=worker)
            pools.append(replace(pool, worker_id=worker, pool_id=f"{worker}/{pool.dp_rank}", reading=reading))
    links = (
        Link(source="*", target="d", bandwidth_bytes_per_s=None, latency_s=0.1),
        Link(source="a", target="*", bandwidth_bytes_per_s=5e9),
    )
    return FleetSnapshot(at_s=5.5, pools=tuple(sorted(pools, key=lambda pool: pool.pool_id)), links=links)


REAL = (
    "0.5.23/loads_decode.json",
    "0.5.23/loads_dp4.json",
    "0.5.8/loads_prefill.json",
    "0.5.23-real-2p2d/metrics_32002.prom",
)


def test_what_is_written_comes_back():
    """Every figure, bound, reason, rate, label, link and histogram survives; the same fleet, the same bytes."""
    fleet = fleet_of(*REAL)
    text = fleet_to_json(fleet)
    back = fleet_from_json(text)
    assert fleet_to_json(back) == text
    assert back.links == fleet.links
    for before, after in zip(fleet.pools, back.pools, strict=True):
        assert after.composition == before.composition
        assert after.rates == before.rates
        assert replace(after.reading, findings=()) == replace(before.reading, findings=())
        assert replace(after, reading=before.reading) == before


def test_it_is_strict_json():
    """No NaN and no infinity is written, also not in histograms."""
    json.loads(fleet_to_json(fleet_of(*REAL)), parse_constant=pytest.fail)
    assert fleet_to_json(judge_fleet([], 0.0)) == fleet_to_json(fleet_from_json(fleet_to_json(judge_fleet([], 0.0))))


def test_a_hand_written_file_needs_little():
    """A name, capacity and use: composed, fresh, unified; plain numbers are measured; nothing else is made up."""
    fleet = fleet_from_json(
        '{"pools": [{"pool": "d0", "role": "decode", "usable_tokens": 262144, "used_tokens": 120000, "waiting": 0},'
        ' {"pool": "u"}]}'
    )
    pool, empty = fleet.pools
    assert (pool.pool_id, pool.role, pool.state, pool.age_s, pool.is_serving) == (
        "d0",
        Role.DECODE,
        SourceState.FRESH,
        0.0,
        True,
    )
    assert (pool.composition.available_tokens.value, pool.composition.used_tokens.provenance) == (
        142144,
        Provenance.MEASURED,
    )
    assert (pool.waiting_count.value, pool.running_count.provenance) == (0, Provenance.UNKNOWN)
    assert (empty.role, empty.composition.used_tokens.provenance) == (Role.UNIFIED, Provenance.UNKNOWN)


def test_short_words_and_whole_figures_are_understood():
    """`waiting`, `used`, a figure with provenance and bounds, rates by name, a list instead of an object."""
    text = json.dumps(
        [
            {
                "pool": "a/3",
                "usable": 100,
                "used": 40,
                "running": 2,
                "page_size": 16,
                "bytes_per_token": 7,
                "in_flight_tokens": {"provenance": "estimated", "low": 1, "high": 9},
                "prefill_tokens_per_s": 5000,
                "rates": {"step_time_s": 0.03},
                "state": "stale",
                "labels": {"rack": 7},
            }
        ]
    )
    (pool,) = fleet_from_json(text).pools
    assert (pool.worker_id, pool.dp_rank, pool.state) == ("a", 3, SourceState.STALE)
    assert (pool.running_count.value, pool.block_size_tokens.value, pool.bytes_per_token.value) == (2, 16, 7)
    assert (pool.composition.in_flight_tokens.low, pool.composition.in_flight_tokens.high) == (1, 9)
    assert (pool.rates.prefill_tokens_per_s.value, pool.rates.step_time_s.value) == (5000, 0.03)
    assert pool.labels == {"rack": "7"}


def test_p19_loads_as_it_is():
    """A file with milliseconds and no roles: its moment in seconds, its pools in order."""
    fleet = fleet_from_json((PAYLOADS / "cases/P19/snapshot.json").read_text())
    assert [(pool.pool_id, pool.composition.committed_tokens.value) for pool in fleet.pools] == [
        ("d0", 120000),
        ("d1", 104000),
        ("d2", 118000),
        ("d3", 117000),
    ]
    assert fleet_from_json('{"t_ms": 2500, "pools": []}').at_s == 2.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["not JSON"]),
        ("5", ["pools"]),
        ('{"pools": 3}', ["pools"]),
        ('{"version": 9, "pools": []}', ["version", "9"]),
        ('{"pools": [7]}', ["pools[0]"]),
        ('{"pools": [{"usable_tokens": 1}]}', ["pools[0].pool"]),
        ('{"pools": [{"pool": "a", "used_tokens": -5}]}', ["pools[0].used_tokens", "-5"]),
        (
            '{"pools": [{"pool": "a", "used_tokens": "many"}, {"pool": "b", "role": "queen"}]}',
            ["pools[0].used_tokens", "pools[1].role", "queen", "decode"],
        ),
        ('{"pools": [{"pool": "a", "waiting": true}]}', ["pools[0]", "True"]),
        ('{"pools": [{"pool": "a", "used_tokens": NaN}]}', ["used_tokens"]),
        ('{"pools": [{"pool": "a"}, {"pool": "a"}]}', ["a appears 2 times"]),
        ('{"pools": [{"pool": "a", "state": "tired"}]}', ["pools[0].state", "tired"]),
        ('{"pools": [], "links": [5]}', ["links[0]"]),
        ('{"pools": [], "links": 5}', ["links"]),
        ('{"pools": [{"pool": "a", "findings": [{}]}]}', ["pools[0].findings[0]"]),
        ('{"pools": [{"pool": "a", "reading": {"ttft_buckets": [[1, 5], [null, 2]]}}]}', ["ttft_buckets"]),
        ('{"pools": [{"pool": "a", "active_tokens": {"value": "x"}}]}', ["pools[0].active_tokens"]),
    ],
)
def test_every_mistake_is_named_with_its_place(text, words):
    """All problems at once, each with where it is and what stands there."""
    with pytest.raises(SnapshotFileError) as error:
        fleet_from_json(text)
    for word in words:
        assert word in str(error.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "pool",
                    "role",
                    "used_tokens",
                    "reading",
                    "rates",
                    "findings",
                    "labels",
                    "dp_rank",
                    "state",
                    "value",
                    "age_s",
                    "anomalies",
                    "worker",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=15,
)


@given(st.lists(JSON, max_size=3), JSON)
@settings(max_examples=80, deadline=None)
def test_any_json_loads_or_is_refused(pools, other):
    """Whatever stands in the file: a fleet that can be written again, or a SnapshotFileError."""
    text = json.dumps({"pools": pools, "at_s": other, "links": other, "findings": other})
    try:
        fleet = fleet_from_json(text)
    except SnapshotFileError:
        return
    assert fleet_to_json(fleet_from_json(fleet_to_json(fleet))) == fleet_to_json(fleet)


def test_the_document_s_example_loads():
    """Every JSON example of docs/snapshot.md is a snapshot."""
    text = (ROOT.parent / "docs" / "snapshot.md").read_text()
    examples = [part.partition("```")[0] for part in text.split("```json\n")[1:]]
    assert examples
    for example in examples:
        assert fleet_from_json(example).pools
