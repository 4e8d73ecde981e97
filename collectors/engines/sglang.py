"""
SGLang: what each path knows about a rank, merged into one reading per DP rank.

`/v1/loads` is the newest and comes first; `/metrics` adds the evictable part, other pools, tiers and counters;
`/server_info` and `/model_info` add constants. A worker without `/v1/loads` speaks one of the two lesser dialects:
`sglang-metrics` (only `/metrics`) or `sglang-get-load` (neither; `/get_load` of old versions).

Read next: `sglang_loads`, `sglang_metrics`, `sglang_info` (one file a wire format), `sglang_merge`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from collectors.engines.contract import Answer, NotUnderstood, Question
from collectors.engines.memo import Remembered
from collectors.engines.numbers import decode_json
from collectors.engines.sglang_info import Info, is_server_info, parse_info
from collectors.engines.sglang_loads import Loads, parse_get_load, parse_loads
from collectors.engines.sglang_merge import (
    FIELDS,
    add_bytes,
    add_constants,
    add_worker_wide,
    first_role,
    metrics_by_rank,
    settle,
)
from collectors.engines.sglang_metrics import UNLABELLED, Metrics, parse_metrics
from collectors.exposition import is_exposition
from scoring.histogram import Buckets
from scoring.model import Finding, PoolReading, Role, Severity, WorkerReading, signal_names

LOADS, METRICS, GET_LOAD = "/v1/loads", "/metrics", "/get_load"
SERVER_INFO, MODEL_INFO = "/server_info", "/model_info"
OLD_SERVER_INFO, OLD_MODEL_INFO = "/get_server_info", "/get_model_info"

ENGINE: Final = "sglang"
"""The engine of all three dialects: what a reader calls it, whichever path was read."""
METRICS_KEPT_S: Final = 60.0
"""A `/metrics` answer older than this beside a newer `/v1/loads` gives constants only (chosen: the longest rhythm)."""
_NOT_THERE: Final = (404, 405, 501)
_CONSTANTS: Final = frozenset(signal_names("constant"))
_RARE: Final = (
    Question(path=MODEL_INFO, every_s=60.0, max_bytes=1024 * 1024),
    Question(path=SERVER_INFO, every_s=60.0, max_bytes=4 * 1024 * 1024),
)
# Parsed results are shared between polls: nothing below changes them.
_metrics: Final = Remembered(parse_metrics)
_info: Final = Remembered(parse_info)
_OLD_RARE: Final = (
    Question(path=OLD_MODEL_INFO, every_s=300.0, max_bytes=1024 * 1024),
    Question(path=OLD_SERVER_INFO, every_s=300.0, max_bytes=4 * 1024 * 1024),
)


@dataclass(frozen=True, slots=True)
class Sglang:
    """
    One of SGLang's three dialects.

    Attributes:
        name: Key in ENGINES.
        essential: The path without which nothing is known.
        questions: Paths to ask, the essential one first.
    """

    name: str
    essential: str
    questions: tuple[Question, ...]

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        """Say whether these answers are SGLang's, and this dialect the richest that they allow."""
        best = _richest(answers)
        return best == self.essential

    def understand(self, answers: Mapping[str, Answer]) -> WorkerReading | NotUnderstood:
        """Merge the newest answers into one reading a rank; never raises on a payload."""
        refused = next((a for p, a in answers.items() if p == self.essential and a.status in (401, 403)), None)
        if refused is not None:
            text = f"{self.essential} answered {refused.status}: set the worker's token (token_env in the fleet file)."
            return NotUnderstood("unauthorised", text, is_unauthorised=True)
        loads_answer, metrics_answer = _good(answers, LOADS), _good(answers, METRICS)
        loads = parse_loads(loads_answer.body) if loads_answer is not None else None
        metrics = None
        if metrics_answer is not None:
            metrics = _metrics(metrics_answer.body)
            if loads is None:
                loads = parse_loads(metrics_answer.body)  # A saved `/v1/loads?format=prometheus` body.
                metrics = None if loads is not None else metrics
        get_load_answer = _good(answers, GET_LOAD) if loads is None and metrics is None else None
        by_rank = parse_get_load(get_load_answer.body) if get_load_answer is not None else None
        info = _info(_body(answers, SERVER_INFO, OLD_SERVER_INFO), _body(answers, MODEL_INFO, OLD_MODEL_INFO))
        if loads is not None and not loads.rows and loads.rejected_count:
            said = " ".join(finding.text for finding in loads.findings)
            return NotUnderstood("no-rank", f"{self.essential} came without one row that can be used. {said}".strip())
        if loads is not None:
            is_old = (
                metrics_answer is not None
                and loads_answer is not None
                and loads_answer.received_at_s - metrics_answer.received_at_s > METRICS_KEPT_S
            )
            return _from_loads(loads, metrics, info, is_metrics_old=is_old)
        if metrics is not None:
            return _from_metrics(metrics, info)
        if by_rank is not None:
            return _from_get_load(by_rank, info)
        if info.facts:
            findings = [Finding(code="no-figures", text="Server information only: it carries no pool figures.")]
            return WorkerReading(
                engine=ENGINE,
                version=info.version,
                findings=tuple(findings),
                expected_rank_count=info.rank_count,
                facts=info.facts,
            )
        return _not_understood(self.essential, answers)


def _richest(answers: Mapping[str, Answer]) -> str | None:
    """Return the essential path of the richest SGLang dialect these answers speak, or None."""
    loads, metrics, get_load = (answers.get(path) for path in (LOADS, METRICS, GET_LOAD))
    is_loads = loads is not None and loads.status == 200 and _is_loads(loads.body)
    is_metrics = metrics is not None and metrics.status == 200 and _is_sglang_text(metrics.body)
    if is_loads:
        return LOADS
    if is_metrics and metrics is not None:
        if parse_loads(metrics.body) is not None:
            return LOADS
        # 401: the token is missing, the path is there. 5xx: still starting.
        if loads is None or loads.status in _NOT_THERE:
            return METRICS
        return LOADS if loads.status in (401, 403) else None
    if get_load is not None and get_load.status == 200 and parse_get_load(get_load.body) is not None:
        return GET_LOAD
    for path in (SERVER_INFO, OLD_SERVER_INFO, MODEL_INFO, OLD_MODEL_INFO):
        if path in answers and answers[path].status == 200 and is_server_info(decode_json(answers[path].body)):
            return LOADS if loads is None and metrics is None else None
    return None


def _is_loads(body: bytes) -> bool:
    payload = decode_json(body)
    if payload is None:
        return _is_sglang_text(body) and parse_loads(body) is not None
    if not isinstance(payload, Mapping) or not isinstance(payload.get("loads"), list):
        return False
    rows = [row for row in payload["loads"] if isinstance(row, Mapping)]
    if any("worker" in row for row in rows):
        return False  # A router's table of many workers has the same rows with a name in each.
    return not payload["loads"] or any("num_used_tokens" in row or "max_total_num_tokens" in row for row in rows)


def _is_sglang_text(body: bytes) -> bool:
    return (b"sglang:" in body or b"sglang_" in body) and is_exposition(body)


def _good(answers: Mapping[str, Answer], path: str) -> Answer | None:
    answer = answers.get(path)
    return answer if answer is not None and answer.status == 200 else None


def _body(answers: Mapping[str, Answer], *paths: str) -> bytes | None:
    return next((answer.body for path in paths if (answer := _good(answers, path)) is not None), None)


def _not_understood(essential: str, answers: Mapping[str, Answer]) -> NotUnderstood:
    answer = answers.get(essential)
    if answer is None:
        return NotUnderstood("no-answer", f"{essential} was not answered; is this the worker's own port?")
    if answer.status != 200:
        code = "metrics-broken" if essential == METRICS else "loads-broken"
        text = f"{essential} answered {answer.status} while the worker is reachable: this endpoint is broken or absent."
        return NotUnderstood(code, text)
    kind = answer.content_type or "no content type"
    text = f"{essential} answered {len(answer.body)} bytes of {kind} that are not SGLang's; check the URL and the port."
    return NotUnderstood("not-sglang", text)


def _from_loads(loads: Loads, metrics: Metrics | None, info: Info, *, is_metrics_old: bool) -> WorkerReading:
    findings = [*loads.findings, *(metrics.findings if metrics is not None else ())]
    expected = info.rank_count or loads.expected_rank_count
    accelerators = loads.accelerator_count or info.accelerators_per_rank
    covered = metrics_by_rank(metrics, loads.rows, expected, findings)
    pools = []
    for rank, row in loads.rows.items():
        role = first_role(row.role, info.role, metrics.role if metrics is not None else Role.UNKNOWN)
        found: list[Finding] = [*row.findings, *row.numbers.findings]
        values: dict[str, float] = {}
        extra = covered.get(rank, {})
        if is_metrics_old:
            extra = {name: value for name, value in extra.items() if name in _CONSTANTS}
        if row.is_nothing_yet:
            text = f"Rank {rank} answers but its scheduler has published nothing yet: unknown, not empty."
            found.append(Finding(code="nothing-published-yet", text=text, severity=Severity.INFO, dp_rank=rank))
            pools.append(_pool({}, rank, role, row.numbers.anomalies, found))
            continue
        add_constants(values, info, extra)
        gib = values.pop("kv_gib_per_gpu", None) or row.kv_gib_per_gpu
        values.update(row.values)
        for name in row.numbers.anomalies:
            # What one path reports as impossible is not quietly replaced by the other path's older figure.
            values.pop(name, None)
        settle(values, row, extra, role, found)
        add_bytes(values, gib, accelerators)
        buckets: Mapping[str, Buckets] = {}
        if metrics is not None and not is_metrics_old:
            rank_count = max(expected or 1, len(loads.rows))
            buckets = add_worker_wide(values, metrics, role, info, accelerators, rank_count)
        pool = _pool(values, rank, role, row.numbers.anomalies, found, buckets)
        pools.append(replace(pool, answered_at_s=loads.answered_at_s))
    nothing_yet = bool(loads.rows) and all(row.is_nothing_yet for row in loads.rows.values())
    if not loads.rows:
        nothing_yet = True
        text = "/v1/loads lists no rank: nothing has been published yet."
        findings.append(Finding(code="nothing-published-yet", text=text, severity=Severity.INFO))
    missing = (expected or 0) - len(loads.rows)
    if missing > 0 and loads.rows:
        text = f"{len(loads.rows)} of {expected} ranks answered; worker totals are unknown, not the sum of these."
        findings.append(Finding(code="ranks-missing", text=text))
    if info.has_metrics is False:
        text = "Started without --enable-metrics: evictable prefix, hit rate and throughput gauges are unknown."
        findings.append(Finding(code="metrics-off", text=text, severity=Severity.INFO))
    if (loads.version or "").startswith("0.5.13") and info.is_multi_node and info.is_multi_tokenizer:
        text = "Early 0.5.13 builds may end at start with several nodes and tokenizers (one address bound twice)."
        findings.append(Finding(code="version-note", text=text, severity=Severity.INFO))
    facts = dict(info.facts)
    if loads.accelerator:
        facts["accelerator"] = loads.accelerator
    return _worker(loads.version or info.version, info.model or (metrics.model if metrics else None), pools,
                   findings, loads.rejected_count + (metrics.rejected_count if metrics else 0),
                   metrics.ignored_count if metrics else 0, expected, facts, nothing_yet)  # fmt: skip


def _from_metrics(metrics: Metrics, info: Info) -> WorkerReading:
    role = first_role(info.role, metrics.role)
    findings = list(metrics.findings)
    expected = info.rank_count
    labelled = {rank: values for rank, values in metrics.ranks.items() if rank != UNLABELLED}
    ranks = labelled or {0: metrics.ranks.get(UNLABELLED, {})}
    is_overwritten = not labelled and (expected or 1) > 1
    pools = []
    facts = dict(info.facts)
    for rank in sorted(ranks):
        numbers = metrics.numbers.get(rank if labelled else UNLABELLED)
        found = list(numbers.findings) if numbers is not None else []
        values = dict(info.values)
        if is_overwritten:
            text = (
                f"1 of {expected} ranks, and which one is not known: every rank writes the same unlabelled series. "
                "Usage, running and throughput are unknown, no trend is drawn. Per-rank series need dp_rank labels "
                "(a newer engine, or --enable-metrics-for-all-schedulers)."
            )
            findings.append(Finding(code="ranks-missing", text=text))
            last = {name: value for name, value in ranks[rank].items() if name in FIELDS}
            facts["last reported by some rank"] = ", ".join(f"{name} {value:g}" for name, value in sorted(last.items()))
            pools.append(_pool(values, rank, role, (), found))
            continue
        add_constants(values, info, ranks[rank])
        gib = values.pop("kv_gib_per_gpu", None)
        add_bytes(values, gib, info.accelerators_per_rank)
        rank_count = max(expected or 1, len(ranks))
        buckets = add_worker_wide(values, metrics, role, info, info.accelerators_per_rank, rank_count)
        pools.append(_pool(values, rank, role, numbers.anomalies if numbers is not None else (), found, buckets))
    if labelled and expected is not None and len(ranks) < expected:
        text = f"{len(ranks)} of {expected} ranks have series; worker totals are unknown, not the sum of these."
        findings.append(Finding(code="ranks-missing", text=text))
    return _worker(info.version, info.model or metrics.model, pools, findings, metrics.rejected_count,
                   metrics.ignored_count, expected, facts, is_nothing_yet=False)  # fmt: skip


def _from_get_load(by_rank: Mapping[int, Mapping[str, float]], info: Info) -> WorkerReading:
    pools = []
    for rank in sorted(by_rank):
        values = {**info.values, **by_rank[rank]}
        pools.append(_pool(values, rank, info.role, (), []))
    text = "Only /get_load is there: used tokens and counts, no capacity split, no engine time."
    findings = [Finding(code="legacy-loads", text=text, severity=Severity.INFO)]
    return _worker(info.version, info.model, pools, findings, 0, 0, info.rank_count, dict(info.facts),
                   is_nothing_yet=False)  # fmt: skip


def _pool(
    values: Mapping[str, float],
    rank: int,
    role: Role,
    anomalies: Any,
    findings: list[Finding],
    buckets: Mapping[str, Buckets] | None = None,
) -> PoolReading:
    known: dict[str, Any] = {name: value for name, value in values.items() if name in FIELDS}
    known.update(buckets or {})
    return PoolReading(dp_rank=rank, role=role, anomalies=tuple(anomalies), findings=tuple(findings), **known)


def _worker(
    version: str | None,
    model: str | None,
    pools: list[PoolReading],
    findings: list[Finding],
    rejected_count: int,
    ignored_count: int,
    expected: int | None,
    facts: Mapping[str, str],
    is_nothing_yet: bool,
) -> WorkerReading:
    finished = tuple(
        replace(
            pool,
            engine=ENGINE,
            version=version,
            model=model,
            expected_rank_count=expected,
            findings=(*pool.findings, *(f for f in findings if f.dp_rank in (None, pool.dp_rank))),
        )
        for pool in pools
    )
    everything = [*findings, *(finding for pool in pools for finding in pool.findings)]
    return WorkerReading(
        engine=ENGINE,
        version=version,
        pools=finished,
        findings=tuple(everything),
        rejected_count=rejected_count,
        ignored_count=ignored_count,
        expected_rank_count=expected,
        is_nothing_yet=is_nothing_yet,
        facts=facts,
    )


SGLANG: Final = Sglang(
    name="sglang",
    essential=LOADS,
    questions=(Question(path=LOADS, is_essential=True), Question(path=METRICS, accept="text/plain"), *_RARE),
)
SGLANG_METRICS: Final = Sglang(
    name="sglang-metrics",
    essential=METRICS,
    questions=(Question(path=METRICS, accept="text/plain", is_essential=True), *_RARE, *_OLD_RARE),
)
SGLANG_GET_LOAD: Final = Sglang(
    name="sglang-get-load",
    essential=GET_LOAD,
    questions=(Question(path=GET_LOAD, is_essential=True), *_RARE, *_OLD_RARE),
)
