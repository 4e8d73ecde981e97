"""
SGLang's rare answers: `/server_info` and `/model_info`, read through a whitelist.

`/server_info` holds API keys and a key password in clear in every version inspected. Nothing outside the lists
below is read, so nothing outside them can reach a store, a page or a log.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from collectors.engines.numbers import as_mapping, as_number, as_text, decode_json
from collectors.engines.sglang_loads import MAX_RANKS
from scoring.model import Role

FACT_KEYS: Final = (
    "served_model_name",
    "context_length",
    "page_size",
    "kv_cache_dtype",
    "mem_fraction_static",
    "tp_size",
    "pp_size",
    "dp_size",
    "enable_dp_attention",
    "nnodes",
    "max_running_requests",
    "max_total_tokens",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "disable_radix_cache",
    "radix_eviction_policy",
    "swa_full_tokens_ratio",
    "max_mamba_cache_size",
    "enable_hierarchical_cache",
    "hicache_ratio",
    "hicache_size",
    "hicache_write_policy",
    "load_balance_method",
    "disaggregation_mode",
    "disaggregation_transfer_backend",
    "disaggregation_decode_enable_radix_cache",
    "num_reserved_decode_tokens",
    "enable_metrics",
    "enable_metrics_for_all_schedulers",
    "load_snapshot_publish_interval",
    "speculative_algorithm",
    "model_type",
    "load_format",
    "weight_version",
)
"""What `/server_info` and `/model_info` may tell the reader; never a key, a path of a key, or a launch command."""

_ROLES: Final = {"null": Role.UNIFIED, "prefill": Role.PREFILL, "decode": Role.DECODE}


@dataclass(slots=True)
class Info:
    """
    What the rare answers say.

    Attributes:
        values: PoolReading fields that hold for every rank.
        rank_count: DP ranks, or None.
        tp_count: Tensor-parallel size over the whole worker, or None.
        accelerators_per_rank: GPUs behind one DP rank, or None.
        has_metrics: Whether `--enable-metrics` is set, or None.
        facts: Whitelisted texts.
    """

    role: Role = Role.UNKNOWN
    version: str | None = None
    model: str | None = None
    values: dict[str, float] = field(default_factory=dict)
    rank_count: int | None = None
    tp_count: int | None = None
    accelerators_per_rank: float | None = None
    has_metrics: bool | None = None
    is_multi_node: bool = False
    is_multi_tokenizer: bool = False
    facts: dict[str, str] = field(default_factory=dict)


def parse_info(server_info: bytes | None, model_info: bytes | None) -> Info:
    """Return what either answer says; the server's word before the model's. Never raises."""
    info = Info()
    for body in (model_info, server_info):
        payload = as_mapping(decode_json(body)) if body is not None else {}
        if payload:
            _take(info, payload)
    return info


def is_server_info(payload: object) -> bool:
    """Say whether a JSON value looks like `/server_info` (arguments) or `/model_info` of an SGLang worker."""
    keys = set(as_mapping(payload))
    return "model_path" in keys and bool(keys & {"tp_size", "is_generation", "internal_states", "tokenizer_path"})


def _take(info: Info, payload: Mapping[str, Any]) -> None:
    for key in FACT_KEYS:
        value = payload.get(key)
        if isinstance(value, bool):
            info.facts[key] = "yes" if value else "no"
        elif (text := as_text(value)) is not None:
            info.facts[key] = text
        elif (number := as_number(value)) is not None:
            info.facts[key] = f"{number:g}" if number < 1e6 else f"{number:.0f}"
    mode = payload.get("disaggregation_mode")
    if isinstance(mode, str) and mode in _ROLES:
        info.role = _ROLES[mode]
    info.version = as_text(payload.get("version")) or info.version
    info.model = as_text(payload.get("served_model_name")) or info.model or _last_part(payload.get("model_path"))
    counts = {key: as_number(payload.get(key), largest=MAX_RANKS) for key in ("dp_size", "tp_size", "pp_size")}
    if counts["dp_size"]:
        info.rank_count = int(counts["dp_size"])
    if counts["tp_size"]:
        info.tp_count = int(counts["tp_size"])
        gpus = counts["tp_size"] * (counts["pp_size"] or 1.0)
        # With DP attention the ranks share the tensor-parallel group; without it each has one of its own.
        is_shared = payload.get("enable_dp_attention") is True and bool(counts["dp_size"])
        info.accelerators_per_rank = gpus / (counts["dp_size"] or 1.0) if is_shared else gpus
    info.is_multi_node |= (as_number(payload.get("nnodes")) or 1) > 1
    info.is_multi_tokenizer |= (as_number(payload.get("tokenizer_worker_num")) or 1) > 1
    if isinstance(payload.get("enable_metrics"), bool):
        info.has_metrics = payload["enable_metrics"]
    states = payload.get("internal_states")
    memory: Mapping[str, Any] = {}
    if isinstance(states, list) and states:
        memory = as_mapping(as_mapping(states[0]).get("memory_usage"))
    for name, raw in (
        ("usable_tokens", payload.get("max_total_num_tokens")),
        ("block_size_tokens", payload.get("page_size")),
        ("max_running_count", payload.get("max_running_requests")),
        ("window_usable_tokens", memory.get("token_capacity_swa")),
        ("state_slot_count", payload.get("max_mamba_cache_size")),
        ("reserved_per_request_tokens", payload.get("num_reserved_decode_tokens")),
    ):
        value = as_number(raw)
        if value or (value == 0 and name == "reserved_per_request_tokens"):
            info.values[name] = value


def _last_part(path: object) -> str | None:
    """Return the last part of a model path: the directories of a host are nobody's business."""
    text = as_text(path, longest=1000)
    return as_text(text.rstrip("/").rpartition("/")[2]) if text else None
