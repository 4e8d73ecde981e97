"""
Answers of the PromQL HTTP API, and how series become a worker's exposition text again.

Sans I/O: bytes in, rows and text out. Malformed rows are counted, never fatal.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from collectors.engines.numbers import as_mapping, as_text, decode_json

SAMPLE_NAMES: Final = "(vllm|sglang|trtllm|dynamo_component|dynamo_frontend|smg|sgl_router)[:_].+"
"""Regular expression of every engine's names, colon or underscore."""
BUCKET_NAMES: Final = (
    "(vllm|sglang|trtllm)[:_](time_to_first_token|inter_token_latency|time_per_output_token)_seconds_bucket"
)
"""The histograms whose buckets are wanted; all others would be most of the answer."""
TIME_NAMES: Final = (
    "(vllm|sglang):num_(requests_running|running_reqs)",
    "(vllm|sglang)_num_(requests_running|running_reqs)",
    "vllm:kv_cache_usage_perc",
    "sglang:token_usage",
    "trtllm_kv_cache_utilization",
    "dynamo_component_uptime_seconds",
    "dynamo_frontend_model_kv_cache_block_size",
    "smg_worker_pool_size",
)
"""Names whose sample time stands for their target's; each selector must hit one name a target, or labels collide."""

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_TARGET_LABELS: Final = frozenset({"__name__", "job", "instance"})
_EXPORTED: Final = "exported_"


class PromqlError(ValueError):
    """The answer is no vector; the text says what came."""


@dataclass(frozen=True, slots=True)
class Row:
    """
    One series of an instant vector.

    Attributes:
        labels: Its labels, `__name__` among them where the expression keeps it.
        text: The value as written: a number, NaN, +Inf or -Inf.
        value: The number, None where it is not finite.
    """

    labels: Mapping[str, str]
    text: str
    value: float | None


@dataclass(frozen=True, slots=True)
class Vector:
    """The rows of an answer, and how many were malformed."""

    rows: tuple[Row, ...]
    rejected_count: int = 0


@dataclass(frozen=True, slots=True)
class Instant:
    """One value, or None and the reason."""

    value: float | None
    reason: str


def selector(name_pattern: str, matchers: Sequence[str], *, without_buckets: bool = False) -> str:
    """Return a PromQL selector of names like `name_pattern` under further label matchers."""
    parts = [f'__name__=~"{name_pattern}"']
    if without_buckets:
        parts.append('__name__!~".+_(bucket|created)"')
    return "{" + ",".join([*parts, *matchers]) + "}"


def parse_vector(body: bytes, status: int) -> Vector:
    """Return the rows of a query's answer (status 200, `resultType` vector or scalar); PromqlError otherwise."""
    document = as_mapping(decode_json(body))
    if status != 200 or document.get("status") != "success":
        said = as_text(document.get("error")) or "no Prometheus answer"
        raise PromqlError(f"answered {status}: {said}; is this a PromQL server, and are the matchers right?")
    data = as_mapping(document.get("data"))
    kind, result = data.get("resultType"), data.get("result")
    if kind == "scalar" and isinstance(result, list):
        result, kind = [{"metric": {}, "value": result}], "vector"
    if kind != "vector" or not isinstance(result, list):
        raise PromqlError(f"an instant vector was expected, {as_text(kind) or 'nothing'} came")
    rows, rejected = [], 0
    for item in result:
        row = _row(item)
        if row is None:
            rejected += 1
        else:
            rows.append(row)
    return Vector(tuple(rows), rejected)


def _row(item: Any) -> Row | None:
    words = as_mapping(item)
    labels, pair = words.get("metric"), words.get("value")
    if not isinstance(labels, Mapping) or not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[1], str):
        return None
    if any(not isinstance(text, str) for text in labels.values()):
        return None
    text = pair[1]
    try:
        number = float(text)
    except ValueError:
        return None
    if "_" in text or not text.isascii() or text != text.strip():
        return None
    return Row(labels, text, number if math.isfinite(number) else None)


def worker_names(rows: Iterable[Row], worker_label: str) -> dict[tuple[str, str], str]:
    """Return (job, worker label) -> worker id: the label alone, with the job before it where two jobs share one."""
    keys = {(row.labels.get("job", ""), row.labels.get(worker_label, "")) for row in rows}
    keys = {key for key in keys if key[1]}
    jobs: dict[str, int] = {}
    for _, name in keys:
        jobs[name] = jobs.get(name, 0) + 1
    return {(job, name): name if jobs[name] == 1 else f"{job}/{name}" for job, name in sorted(keys)}


def expositions(rows: Iterable[Row], names: Mapping[tuple[str, str], str], worker_label: str) -> dict[str, bytes]:
    """Return worker id -> exposition text of its series; rows without a name or a worker are left out."""
    lines: dict[str, list[str]] = {}
    for row in rows:
        worker = names.get((row.labels.get("job", ""), row.labels.get(worker_label, "")))
        name = row.labels.get("__name__", "")
        if worker is None or not _NAME.match(name):
            continue
        lines.setdefault(worker, []).append(f"{name}{_label_text(row.labels, worker_label)} {row.text}")
    return {worker: ("\n".join(sorted(texts)) + "\n").encode() for worker, texts in lines.items()}


def _label_text(labels: Mapping[str, str], worker_label: str) -> str:
    """Return `{a="b"}` without the target's labels; `exported_a`, the engine's own a, gets its name back."""
    # Servers since Prometheus 3 allow dots in label names; no engine's label has one.
    kept = {k: v for k, v in labels.items() if k not in _TARGET_LABELS and k != worker_label and _LABEL.match(k)}
    for label in [label for label in kept if label.startswith(_EXPORTED)]:
        kept[label.removeprefix(_EXPORTED)] = kept.pop(label)
    if not kept:
        return ""
    return "{" + ",".join(f'{label}="{_escaped(text)}"' for label, text in sorted(kept.items())) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
