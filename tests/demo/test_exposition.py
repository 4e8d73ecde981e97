"""The `/metrics` of a demo worker: names, types, label names and bucket edges of a real server of its role."""

import re
from collections import defaultdict
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from demo.plan import FleetPlan, default_plan
from demo.state import RankState
from demo.worker import Worker

NOT_SIMULATED = re.compile(
    r"sglang:(dp_attention_\w+|scheduler_stage_\w+|process_cpu_\w+|startup_\w+|routing_key\w+|per_stage_\w+|"
    r"failed_session_\w+|get_loads_\w+|scheduler_process_cpu_seconds)"
)
"""What a real server says of its own process, of attention parallelism and of routing keys: nothing the demo knows."""
APPEARS_LATER = {
    "sglang:num_retracted_requests",
    "sglang:num_retracted_input_tokens",
    "sglang:num_retracted_output_tokens",
    "sglang:num_transfer_failed_reqs",
}
"""Counters whose series the real server makes at the first event; no capture had one."""

Shape = dict[str, tuple[str, frozenset[frozenset[str]], tuple[str, ...]]]


def _shape(text: str) -> Shape:
    """Return family -> (type, label-name sets, bucket edges), by the reference parser."""
    shape: Shape = {}
    for family in text_string_to_metric_families(text):
        labels: dict[str, set[frozenset[str]]] = defaultdict(set)
        edges: list[str] = []
        for sample in family.samples:
            labels[family.name].add(frozenset(sample.labels) - {"le"})
            if "le" in sample.labels and sample.labels["le"] not in edges:
                edges.append(sample.labels["le"])
        shape[family.name] = (family.type, frozenset(labels[family.name]), tuple(edges))
    return shape


def _worker(name: str, plan: FleetPlan | None = None) -> Worker:
    fleet = plan or default_plan()
    worker = Worker(next(plan for plan in fleet.workers if plan.name == name), clock=lambda: 1_900_000_000.0)
    for index, facts in enumerate(worker.plan.ranks):
        worker.published[index] = RankState(
            at_s=1_899_999_999.5,
            used_tokens=1000,
            prefix_tokens=500,
            free_tokens=facts.usable_tokens - 1500,
            running_count=3,
            retracted_total=1,
            retracted_input_tokens_total=10,
            retracted_output_tokens_total=5,
            transfer_failed_total=1,
        )
    worker.requests["/v1/loads", "200"] = 3
    return worker


@pytest.mark.parametrize(
    ("name", "capture"),
    [
        ("prefill-1", "sglang_real_2p2d/metrics_32001.txt"),
        ("decode-1", "sglang_real_2p2d/metrics_32002.txt"),
        ("unified-1", "sglang_real/load_metrics.txt"),
    ],
)
def test_series_are_the_real_servers(shared: Path, name: str, capture: str) -> None:
    """Every family of the demo is the real one's, and every real family the simulation knows is there."""
    real = _shape((shared / "fixtures" / capture).read_text())
    ours = _shape(_worker(name).metrics().decode())
    has_ranks = name.startswith("decode")
    for family, (kind, labels, edges) in ours.items():
        if family in APPEARS_LATER:
            continue
        assert family in real, family
        real_kind, real_labels, real_edges = real[family]
        assert (kind, edges) == (real_kind, real_edges), family
        stripped = {names - ({"dp_rank"} if has_ranks else set()) for names in labels}
        assert stripped <= {names - ({"dp_rank"} if has_ranks else set()) for names in real_labels}, family
    missing = {family for family in real if family not in ours and not NOT_SIMULATED.match(family)}
    assert not missing


def test_ranks_are_told_apart_by_label_only_where_there_are_several(shared: Path) -> None:
    """A worker of two ranks labels its scheduler series as the real dp=2 server does, each rank once."""
    real = _shape((shared / "fixtures" / "sglang_real" / "dp2_load_metrics.txt").read_text())
    ours = _shape(_worker("decode-1").metrics().decode())
    for family in ("sglang:kv_evictable_tokens", "sglang:num_running_reqs", "sglang:queue_time_seconds"):
        assert ours[family][1] == real[family][1]
    text = _worker("decode-1").metrics().decode()
    assert sorted(re.findall(r'^sglang:kv_used_tokens\{dp_rank="(\d)"', text, re.MULTILINE)) == ["0", "1"]
    assert "dp_rank" not in re.findall(r"^sglang:kv_used_tokens.*$", _worker("prefill-1").metrics().decode(), re.M)[0]


def test_failure_counters_appear_with_the_first_failure() -> None:
    """Before the first retraction there is no series, as in the real server: absent is not zero."""
    worker = _worker("decode-1")
    assert b"num_retracted_requests_total" in worker.metrics()
    worker.published = [RankState(at_s=1.0) for _ in worker.plan.ranks]
    assert b"num_retracted_requests_total" not in worker.metrics()


def test_histograms_are_cumulative_and_close_with_their_count() -> None:
    """Buckets never fall, the last one is the count, and the sum is what was put in."""
    worker = _worker("decode-1")
    values = [0.05, 0.1, 0.3, 7.0, 1000.0]
    for value in values:
        worker.timings.ttft_s.add(value)
    families = {f.name: f for f in text_string_to_metric_families(worker.metrics().decode())}
    samples = families["sglang:time_to_first_token_seconds"].samples
    buckets = {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket")}
    counts = list(buckets.values())
    assert counts == sorted(counts)
    assert buckets["0.1"] == 2.0  # an edge belongs to its own bucket
    assert buckets["+Inf"] == len(values) == next(s.value for s in samples if s.name.endswith("_count"))
    assert next(s.value for s in samples if s.name.endswith("_sum")) == pytest.approx(sum(values))
