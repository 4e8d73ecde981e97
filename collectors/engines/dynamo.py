"""
Dynamo's workers: their own `dynamo_component_*` series around the engine's, which they re-export under its names.

The engine's series are read by that engine's dialect; Dynamo adds the role, finished requests and, in older versions,
block counts. `gpu_cache_usage_percent` is 0..1 whatever its name says, and with TensorRT-LLM its denominator may
include a host tier: shown as reported, never turned into tokens.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from collectors.engines.contract import Answer, NotUnderstood, Question
from collectors.engines.numbers import Numbers, as_text
from collectors.engines.ranked_series import RankedSeries, refusal
from collectors.engines.scan_notes import scan_findings
from collectors.engines.sglang import SGLANG_METRICS
from collectors.engines.trtllm import read_text
from collectors.engines.vllm import read_vllm
from collectors.exposition import Exposition, is_exposition, scan, spellings
from scoring.model import Finding, PoolReading, Role, Severity, WorkerReading

METRICS: Final = "/metrics"
PREFIX: Final = "dynamo_component"
ENDPOINT: Final = "generate"
"""The endpoint of a component that serves requests; others answer the router's questions."""

_USAGE: Final = ("kvstats_gpu_cache_usage_percent", "gpu_cache_usage_percent", "kvstats_gpu_cache_usage")
_TOTAL: Final = ("kvstats_total_blocks", "total_blocks")
_ACTIVE: Final = ("kvstats_active_blocks", "active_blocks")
_HIT: Final = ("kvstats_gpu_prefix_cache_hit_rate",)
NAMES: Final = (
    *_USAGE,
    *_TOTAL,
    *_ACTIVE,
    *_HIT,
    "inflight_requests",
    "requests_total",
    "request_duration_seconds_sum",
    "request_duration_seconds_count",
    "uptime_seconds",
)
WANTED: Final = spellings(PREFIX, NAMES)
_ENGINE_NAMES: Final = (b"vllm:", b"sglang:", b"trtllm:", b"\nvllm_", b"\nsglang_", b"\ntrtllm_")


class DynamoWorker:
    """One Dynamo worker process."""

    name = "dynamo"
    questions = (Question(path=METRICS, accept="text/plain", is_essential=True),)
    wanted = WANTED

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        """Say whether `/metrics` is a Dynamo component's that is not a frontend."""
        answer = answers.get(METRICS)
        if answer is None or answer.status != 200 or not is_exposition(answer.body):
            return False
        if b"dynamo_component_" not in answer.body or b"dynamo_frontend_" in answer.body:
            return False
        return bool(scan(answer.body, WANTED).samples)

    def understand(self, answers: Mapping[str, Answer]) -> WorkerReading | NotUnderstood:
        """Turn the body into one pool a rank; never raise on a payload."""
        refused = refusal(answers, METRICS, self.name)
        if refused is not None:
            return refused
        body = answers[METRICS].body
        exposition = scan(body, WANTED)
        series = RankedSeries.of(exposition, PREFIX, ("dp_rank",))
        if not series.ranks:
            return NotUnderstood(
                "no-dynamo-series", f"dynamo: {METRICS} carries no {PREFIX}_ series; is this a Dynamo worker?"
            )
        component = _component(exposition)
        engine = _engine_reading(answers)
        role = _role(component)
        if engine is not None:
            pools = tuple(_with_component(pool, series, role) for pool in engine.pools)
            reading = replace(engine, engine=self.name, pools=pools)
        else:
            reading = _own_reading(series, role)
        facts = dict(reading.facts)
        facts["component"] = component or "unnamed"
        if (instance := _instance(exposition)) is not None:
            facts["worker id"] = instance
        inflight = series.total(0, "inflight_requests", dynamo_endpoint=ENDPOINT)
        if inflight is not None and inflight >= 0:
            facts["requests in the worker's handler"] = f"{inflight:.0f}"
        return replace(
            reading,
            findings=tuple(dict.fromkeys((*reading.findings, *scan_findings(exposition, PREFIX)))),
            rejected_count=exposition.rejected_count + series.rejected_count,
            ignored_count=reading.ignored_count or exposition.ignored_count,
            facts=facts,
        )


def _component(exposition: Exposition) -> str | None:
    for sample in exposition.samples:
        word = as_text(sample.labels.get("dynamo_component"), longest=80)
        if word is not None:
            return word
    return None


def _instance(exposition: Exposition) -> str | None:
    """Return the worker's own id as its frontend writes it: decimal there, the same number in hexadecimal here."""
    for sample in exposition.samples:
        text = sample.labels.get("worker_id", "")
        if 0 < len(text) <= 16 and all(sign in "0123456789abcdef" for sign in text):
            return str(int(text, 16))
    return None


def _role(component: str | None) -> Role:
    """Return the role a component's name states; `backend` serves either way and states none."""
    word = (component or "").lower()
    if "prefill" in word:
        return Role.PREFILL
    return Role.DECODE if "decode" in word else Role.UNKNOWN


def _engine_reading(answers: Mapping[str, Answer]) -> WorkerReading | None:
    """Return what the re-exported engine series say, or None when there are none."""
    body = answers[METRICS].body
    if b"vllm" in body:
        vllm = read_vllm(body, engine=DynamoWorker.name, version=None)
        if vllm is not None:
            return vllm
    if b"sglang:" in body or b"\nsglang_" in body:
        sglang = SGLANG_METRICS.understand({METRICS: answers[METRICS]})
        if isinstance(sglang, WorkerReading) and sglang.pools:
            pools = tuple(replace(pool, engine=DynamoWorker.name) for pool in sglang.pools)
            return replace(sglang, pools=pools)
    if b"trtllm" in body:
        trtllm = read_text(answers[METRICS])
        if trtllm is not None:
            pools = tuple(replace(pool, engine=DynamoWorker.name) for pool in trtllm.pools)
            return replace(trtllm, pools=pools)
    return None


def _finished(series: RankedSeries, numbers: Numbers) -> dict[str, Any]:
    """Return finished requests and their seconds, of the endpoint that serves."""
    fields: dict[str, Any] = {}
    for name, end in (("finished_total", "count"), ("e2e_s_total", "sum"), ("e2e_count_total", "count")):
        source = f"request_duration_seconds_{end}"
        fields[name] = numbers.take(series.total(0, source, dynamo_endpoint=ENDPOINT), name, source=source)
    return fields


def _with_component(pool: PoolReading, series: RankedSeries, role: Role) -> PoolReading:
    """Add what only Dynamo knows: the role, and finished requests where the engine counts none."""
    # An engine inside that calls itself unified does not know what Dynamo uses it for; `backend` may be decode, too.
    own = Role.UNKNOWN if pool.role is Role.UNIFIED else pool.role
    more: dict[str, Any] = {"role": own if role is Role.UNKNOWN else role}
    numbers = Numbers(dp_rank=pool.dp_rank)
    if len(series.ranks) == 1:
        # These series speak for the process: with several ranks in it they cannot be told apart.
        finished = _finished(series, numbers)
        more.update({name: value for name, value in finished.items() if getattr(pool, name) is None})
    if pool.waiting_count is None and pool.queue_main_count is not None and not any(_other_queues(pool)):
        # An engine of no known role that reports one queue: what waits there is all that it reports waiting.
        more["waiting_count"] = pool.queue_main_count + (pool.queue_grammar_count or 0.0)
    more["anomalies"] = (*pool.anomalies, *numbers.anomalies)
    more["findings"] = (*pool.findings, *numbers.findings)
    return replace(pool, **more)


def _other_queues(pool: PoolReading) -> tuple[bool, ...]:
    queues = (pool.queue_bootstrap_count, pool.queue_inflight_count, pool.queue_prealloc_count)
    return tuple(count is not None for count in (*queues, pool.queue_transfer_count))


def _own_reading(series: RankedSeries, role: Role) -> WorkerReading:
    """Return pools from Dynamo's own series alone: a prefill worker, or an old version's block counts."""
    pools = []
    facts: dict[str, str] = {}
    kv_ranks = [rank for rank in series.ranks if any((name, rank) in series.samples for name in (*_USAGE, *_TOTAL))]
    for rank in kv_ranks or [0]:
        numbers = Numbers(dp_rank=rank)
        fields: dict[str, Any] = _finished(series, numbers) if len(kv_ranks) <= 1 else {}
        usage = numbers.take(
            series.gauge(rank, *_USAGE).value, "reported_usage_ratio", source="gpu_cache_usage_percent", largest=1.0
        )
        fields["reported_usage_ratio"] = usage
        fields["reported_hit_ratio"] = numbers.take(
            series.gauge(rank, *_HIT).value, "reported_hit_ratio", source="gpu_prefix_cache_hit_rate", largest=1.0
        )
        findings = [*numbers.findings, _note(rank, usage, kv_ranks)]
        for word, names in (("active blocks", _ACTIVE), ("total blocks", _TOTAL)):
            value = series.gauge(rank, *names).value
            if value is not None and value >= 0:
                facts[word if len(kv_ranks) <= 1 else f"{word}, rank {rank}"] = f"{value:.0f}"
        pool = PoolReading(
            dp_rank=rank,
            role=role,
            engine=DynamoWorker.name,
            anomalies=tuple(numbers.anomalies),
            findings=tuple(findings),
        )
        pools.append(replace(pool, **fields))
    return WorkerReading(
        engine=DynamoWorker.name,
        pools=tuple(pools),
        findings=tuple(finding for pool in pools for finding in pool.findings),
        facts=facts,
    )


def _note(rank: int, usage: float | None, kv_ranks: list[int]) -> Finding:
    if not kv_ranks:
        return Finding(
            code="no-kv-series",
            text="This Dynamo worker exports no KV or batch series (prefill workers never do, others not before their "
            "first request): only its finished requests are known. The frontend's view of it is the only other source.",
            severity=Severity.INFO,
        )
    shown = f"{usage:.1%} is" if usage is not None else "Usage is"
    return Finding(
        code="usage-denominator-unsure",
        text=f"{shown} shown as reported: the block total may include a host tier, and no block size is given. "
        "Not compared with pools of other engines.",
        severity=Severity.INFO,
        dp_rank=rank,
    )
