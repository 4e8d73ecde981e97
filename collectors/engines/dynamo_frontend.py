"""
Dynamo's frontend: what its KV router believes of every worker and rank, and what it knows of the model.

It is no pool. Active decode blocks of a worker become tokens by the model's block size, where all models served agree
on one.
"""

from collections.abc import Mapping
from typing import Any, Final

from collectors.engines.contract import Answer, NotUnderstood, Question
from collectors.engines.numbers import as_number, as_text
from collectors.engines.ranked_series import refusal
from collectors.engines.scan_notes import scan_findings
from collectors.exposition import Exposition, Sample, is_exposition, scan, spellings
from scoring.model import Role, RouterWorker, WorkerReading

METRICS: Final = "/metrics"
PREFIX: Final = "dynamo_frontend"
MOST_WORKERS: Final = 10_000
_ROLES: Final = {"prefill": Role.PREFILL, "decode": Role.DECODE, "aggregated": Role.UNIFIED}
_MODEL_FACTS: Final = {
    "model_kv_cache_block_size": "block size (tokens)",
    "model_total_kv_blocks": "KV blocks of a worker",
    "model_max_num_seqs": "largest batch",
    "model_max_num_batched_tokens": "largest prefill (tokens)",
    "inflight_requests": "requests in flight",
    "queued_requests": "requests queued",
}
NAMES: Final = (*_MODEL_FACTS, "worker_active_decode_blocks", "worker_active_prefill_tokens")
WANTED: Final = spellings(PREFIX, NAMES)


class DynamoFrontend:
    """Dynamo's HTTP frontend with its KV router."""

    name = "dynamo-frontend"
    questions = (Question(path=METRICS, accept="text/plain", is_essential=True),)
    wanted = WANTED

    def recognises(self, answers: Mapping[str, Answer]) -> bool:
        """Say whether `/metrics` carries a Dynamo frontend's series."""
        answer = answers.get(METRICS)
        if answer is None or answer.status != 200 or b"dynamo_frontend" not in answer.body:
            return False
        return is_exposition(answer.body) and bool(scan(answer.body, WANTED).samples)

    def understand(self, answers: Mapping[str, Answer]) -> WorkerReading | NotUnderstood:
        """Turn the body into rows of workers; never raise on a payload."""
        refused = refusal(answers, METRICS, self.name)
        if refused is not None:
            return refused
        exposition = scan(answers[METRICS].body, WANTED)
        if not exposition.samples:
            return NotUnderstood(
                "no-frontend-series", f"dynamo-frontend: {METRICS} carries no {PREFIX}_ series that is needed."
            )
        workers, rejected = _workers(exposition)
        return WorkerReading(
            engine=self.name,
            router_workers=workers,
            findings=tuple(scan_findings(exposition, PREFIX)),
            rejected_count=exposition.rejected_count + rejected,
            ignored_count=exposition.ignored_count,
            facts=_facts(exposition),
        )


def _bare(sample: Sample) -> str:
    return sample.name[len(PREFIX) + 1 :]


def _block_size_tokens(exposition: Exposition) -> float | None:
    sizes = {s.value for s in exposition.samples if _bare(s) == "model_kv_cache_block_size" and s.value}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if size is not None and 0 < size <= 1e6 else None


def _workers(exposition: Exposition) -> tuple[tuple[RouterWorker, ...], int]:
    block = _block_size_tokens(exposition)
    rows: dict[tuple[str, int | None], dict[str, Any]] = {}
    rejected = 0
    for sample in exposition.samples:
        name = _bare(sample)
        if name not in ("worker_active_decode_blocks", "worker_active_prefill_tokens"):
            continue
        worker, rank = as_text(sample.labels.get("worker_id"), longest=80), sample.labels.get("dp_rank", "0")
        if worker is None or not (rank.isascii() and rank.isdigit() and len(rank) <= 6) or len(rows) > MOST_WORKERS:
            rejected += 1
            continue
        row = rows.setdefault((worker, int(rank)), {"role": _ROLES.get(sample.labels.get("worker_type", ""))})
        row[name] = as_number(sample.value)
    made = []
    for (worker, at_rank), row in sorted(rows.items()):
        role = row["role"] or Role.UNKNOWN
        blocks = row.get("worker_active_decode_blocks")
        tokens = None if blocks is None or block is None else blocks * block
        if role is Role.PREFILL:
            tokens = row.get("worker_active_prefill_tokens")
        made.append(RouterWorker(url=f"dynamo://{worker}", dp_rank=at_rank, role=role, load_tokens=tokens))
    return tuple(made), rejected


def _facts(exposition: Exposition) -> dict[str, str]:
    facts: dict[str, str] = {}
    models = {s.labels.get("model", "") for s in exposition.samples if s.labels.get("model")}
    for sample in exposition.samples:
        words = _MODEL_FACTS.get(_bare(sample))
        if words is None or sample.value is None or sample.value < 0 or len(facts) >= 200:
            continue
        model = as_text(sample.labels.get("model"), longest=80)
        facts[f"{model}: {words}" if len(models) > 1 and model else words] = f"{sample.value:.0f}"
    if len(models) == 1:
        facts["model"] = as_text(next(iter(models))) or ""
    return facts
