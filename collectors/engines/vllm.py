"""
vLLM's `/metrics`, v0 and v1 names, colon or underscore.

`kv_cache_usage_perc` is a ratio 0..1 of blocks that requests hold; vLLM's free queue contains the evictable prefix
blocks, so free and prefix are one figure here. v1 keeps one block back (block 0 is its null block): the denominator
is `num_gpu_blocks - 1`. The label `engine` is the DP rank; `pid` is a process and no identity.
"""

from collections.abc import Mapping
from typing import Final

from collectors.engines.contract import Answer, NotUnderstood, Question
from collectors.engines.numbers import as_mapping, as_text, decode_json
from collectors.engines.ranked_series import RankedSeries, refusal
from collectors.engines.scan_notes import scan_findings
from collectors.engines.vllm_pool import COUNTERS, HISTOGRAMS, block_denominators, read_pool
from collectors.exposition import is_exposition, scan, spellings
from scoring.model import Finding, PoolReading, WorkerReading

METRICS: Final = "/metrics"
VERSION: Final = "/version"

VITAL: Final = (
    "kv_cache_usage_perc",
    "gpu_cache_usage_perc",
    "num_requests_running",
    "num_requests_waiting",
)
"""One of these makes a body vLLM's."""

GAUGES: Final = (
    *VITAL,
    "cpu_cache_usage_perc",
    "num_requests_swapped",
    "num_requests_waiting_by_reason",
    "cache_config_info",
    "engine_sleep_state",
    "gpu_prefix_cache_hit_rate",
)
_HISTOGRAM_ENDS: Final = ("_sum", "_count")
_BUCKETS_WANTED: Final = ("time_to_first_token_seconds", "inter_token_latency_seconds", "time_per_output_token_seconds")

NAMES: Final = (
    *GAUGES,
    *(name for names in COUNTERS.values() for name in names),
    "prompt_tokens_by_source_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "gpu_prefix_cache_queries_total",
    "gpu_prefix_cache_hits_total",
    "external_prefix_cache_queries_total",
    "external_prefix_cache_hits_total",
    *(f"{name}{end}" for names, _, _ in HISTOGRAMS for name in names for end in _HISTOGRAM_ENDS),
    *(f"{name}_bucket" for name in _BUCKETS_WANTED),
)
WANTED: Final = spellings("vllm", NAMES)
_WANTED_VITAL: Final = spellings("vllm", VITAL)


class Vllm:
    """vLLM behind one port, one engine or several."""

    name = "vllm"
    questions = (
        Question(path=METRICS, accept="text/plain", is_essential=True),
        Question(path=VERSION, every_s=300.0, max_bytes=65536),
    )
    wanted = WANTED

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        """Say whether the body carries vLLM's own gauges and is not Dynamo's worker, which re-exports them."""
        answer = answers.get(METRICS)
        if answer is None or answer.status != 200 or not is_exposition(answer.body):
            return False
        if b"vllm" not in answer.body or b"dynamo_component_" in answer.body:
            return False
        return bool(scan(answer.body, _WANTED_VITAL).samples)

    def understand(self, answers: Mapping[str, Answer]) -> WorkerReading | NotUnderstood:
        """Turn the newest bodies into one pool an engine; never raise on a payload."""
        refused = refusal(answers, METRICS, self.name)
        if refused is not None:
            return refused
        reading = read_vllm(answers[METRICS].body, engine=self.name, version=_version(answers.get(VERSION)))
        if reading is None:
            return NotUnderstood(
                "no-vllm-series",
                f"vllm: {METRICS} carries none of vllm:{', vllm:'.join(VITAL)}; is this a vLLM server?",
            )
        return reading


def read_vllm(body: bytes, *, engine: str, version: str | None) -> WorkerReading | None:
    """Return the reading of an exposition that carries vLLM's series, or None when it has none of the vital ones."""
    exposition = scan(body, WANTED)
    series = RankedSeries.of(exposition, "vllm")
    if not any((name, rank) in series.samples for name in VITAL for rank in series.ranks):
        return None
    denominators = block_denominators(series)
    pools: list[PoolReading] = []
    findings: list[Finding] = []
    for rank in series.ranks:
        if not any((name, rank) in series.samples for name in VITAL):
            continue  # A counter of the whole server (no engine label) beside engines 4..7 is no pool of its own.
        pool = read_pool(series, rank, denominators.get(rank), engine=engine, version=version)
        pools.append(pool)
        findings.extend(pool.findings)
    return WorkerReading(
        engine=engine,
        version=version,
        pools=tuple(pools),
        findings=(*scan_findings(exposition, "vllm"), *dict.fromkeys(findings)),
        rejected_count=exposition.rejected_count + series.rejected_count,
        ignored_count=exposition.ignored_count,
        facts=_facts(series, exposition.duplicate_count),
    )


_FACT_LABELS: Final = (
    "block_size",
    "num_gpu_blocks",
    "cache_dtype",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "kv_cache_size_tokens",
    "sliding_window",
    "num_cpu_blocks",
    "kv_offloading_size",
)


def _facts(series: RankedSeries, duplicate_count: int) -> dict[str, str]:
    facts: dict[str, str] = {}
    for rank in series.ranks[:1]:
        for label in _FACT_LABELS:
            text = series.label(rank, "cache_config_info", label)
            if text is not None and text != "None":
                facts[label] = text
    if not any(name == "cache_config_info" for name, _ in series.samples):
        facts["not exported"] = "cache_config_info: capacity is unknown"
    elif "num_gpu_blocks" not in facts:
        # A store that keeps at most 30 labels a series cuts this one: it has more.
        facts["not exported"] = "num_gpu_blocks (not yet known, or cut from cache_config_info): capacity is unknown"
    if duplicate_count:
        facts["repeated series"] = str(duplicate_count)
    return facts


def _version(answer: Answer | None) -> str | None:
    if answer is None or answer.status != 200:
        return None
    return as_text(as_mapping(decode_json(answer.body)).get("version"), longest=60)
