"""
Shapes of models by name, for when no config.json is at hand: the keys of the published configuration that matter.

Names compare without owner, case, dots, dashes and underscores, so `meta-llama/Llama-3.1-8B` finds `llama-3.1-8b`.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from scoring.geometry_config import GeometryError


def _gqa(layers: int, heads: int, kv_heads: int, head_dim: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        **more,
    }


def _mla(layers: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        **more,
    }


def _alternating(layers: int, every: int) -> list[str]:
    return ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)]


def _delta_net(layers: int, heads: int, kv_heads: int, **more: Any) -> dict[str, Any]:
    return _gqa(
        layers,
        heads,
        kv_heads,
        256,
        full_attention_interval=4,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        **more,
    )


_V4_PRO_RATIOS: Final = [128, *([128, 4] * 30)]
_V4_FLASH_RATIOS: Final = [0, 0, *([4, 128] * 20), 4]
_KIMI_K3_FULL: Final = [*range(4, 93, 4), 93]

MODELS: Final[dict[str, Mapping[str, Any]]] = {
    "llama-2-7b": _gqa(32, 32, 32, 128),
    "llama-2-13b": _gqa(40, 40, 40, 128),
    "llama-2-70b": _gqa(80, 64, 8, 128),
    "llama-3.1-8b": _gqa(32, 32, 8, 128, max_position_embeddings=131072),
    "llama-3.1-70b": _gqa(80, 64, 8, 128, max_position_embeddings=131072),
    "llama-3.1-405b": _gqa(126, 128, 8, 128, max_position_embeddings=131072),
    "llama-3.2-1b": _gqa(16, 32, 8, 64, max_position_embeddings=131072),
    "llama-3.2-3b": _gqa(28, 24, 8, 128, max_position_embeddings=131072),
    "llama-3.3-70b": _gqa(80, 64, 8, 128, max_position_embeddings=131072),
    "llama-4-scout-17b-16e": _gqa(48, 40, 8, 128, model_type="llama4_text", attention_chunk_size=8192),
    "mistral-7b-v0.1": _gqa(32, 32, 8, 128, sliding_window=4096),
    "llama-4-maverick-17b-128e": _gqa(48, 40, 8, 128, model_type="llama4_text", attention_chunk_size=8192),
    "mistral-7b-v0.2": _gqa(32, 32, 8, 128),
    "mistral-7b-v0.3": _gqa(32, 32, 8, 128),
    "mistral-nemo-12b": _gqa(40, 32, 8, 128, hidden_size=5120),
    "mistral-small-24b": _gqa(40, 32, 8, 128, hidden_size=5120),
    "mistral-small-3.2-24b": _gqa(40, 32, 8, 128, hidden_size=5120),
    "mistral-large-123b": _gqa(88, 96, 8, 128, hidden_size=12288),
    "mixtral-8x7b": _gqa(32, 32, 8, 128),
    "mixtral-8x22b": _gqa(56, 48, 8, 128),
    "phi-4": _gqa(40, 40, 10, 128),
    "qwen2.5-0.5b": _gqa(24, 14, 2, 64),
    "qwen2.5-1.5b": _gqa(28, 12, 2, 128),
    "qwen2.5-3b": _gqa(36, 16, 2, 128),
    "qwen2.5-7b": _gqa(28, 28, 4, 128),
    "qwen2.5-14b": _gqa(48, 40, 8, 128),
    "qwen2.5-32b": _gqa(64, 40, 8, 128),
    "qwen2.5-72b": _gqa(80, 64, 8, 128, sliding_window=131072, use_sliding_window=False, max_window_layers=70),
    "qwen3-0.6b": _gqa(28, 16, 8, 128, hidden_size=1024),
    "qwen3-1.7b": _gqa(28, 16, 8, 128, hidden_size=2048),
    "qwen3-4b": _gqa(36, 32, 8, 128, hidden_size=2560),
    "qwen3-8b": _gqa(36, 32, 8, 128, hidden_size=4096),
    "qwen3-14b": _gqa(40, 40, 8, 128, hidden_size=5120),
    "qwen3-32b": _gqa(64, 64, 8, 128, hidden_size=5120),
    "qwen3-30b-a3b": _gqa(48, 32, 4, 128, hidden_size=2048),
    "qwen3-235b-a22b": _gqa(94, 64, 4, 128, hidden_size=4096),
    "qwen3-coder-30b-a3b": _gqa(48, 32, 4, 128, hidden_size=2048),
    "qwen3-coder-480b-a35b": _gqa(62, 96, 8, 128, hidden_size=6144),
    "qwen3-next-80b-a3b": _delta_net(48, 16, 2),
    "qwen3.5-9b": _delta_net(32, 16, 4, mtp_num_hidden_layers=1),
    "deepseek-v2-lite": _mla(27, 16),
    "deepseek-v2": _mla(60, 128),
    "deepseek-v3": _mla(61, 128, num_nextn_predict_layers=1),
    "deepseek-v3.1": _mla(61, 128, num_nextn_predict_layers=1),
    "deepseek-r1": _mla(61, 128, num_nextn_predict_layers=1),
    "deepseek-r1-distill-qwen-32b": _gqa(64, 40, 8, 128),
    "deepseek-v3.2": _mla(61, 128, index_head_dim=128, index_n_heads=64, index_topk=2048),
    "deepseek-v4-pro": _gqa(
        61,
        128,
        1,
        512,
        qk_rope_head_dim=64,
        index_head_dim=128,
        sliding_window=128,
        max_position_embeddings=1048576,
        compress_ratios=_V4_PRO_RATIOS,
    ),
    "deepseek-v4-flash": _gqa(
        43,
        64,
        1,
        512,
        qk_rope_head_dim=64,
        index_head_dim=128,
        sliding_window=128,
        max_position_embeddings=1048576,
        compress_ratios=_V4_FLASH_RATIOS,
    ),
    "kimi-k2": _mla(61, 64),
    "kimi-k2.5": _mla(61, 64),
    "kimi-k3": _mla(
        93,
        96,
        linear_attn_config={
            "full_attn_layers": _KIMI_K3_FULL,
            "kda_layers": [n for n in range(1, 94) if n not in _KIMI_K3_FULL],
            "num_heads": 96,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
        },
    ),
    "gpt-oss-20b": _gqa(24, 64, 8, 64, layer_types=_alternating(24, 2), sliding_window=128),
    "gpt-oss-120b": _gqa(36, 64, 8, 64, layer_types=_alternating(36, 2), sliding_window=128),
    "gemma-2-9b": _gqa(42, 16, 8, 256, layer_types=_alternating(42, 2), sliding_window=4096),
    "gemma-2-27b": _gqa(46, 32, 16, 128, layer_types=_alternating(46, 2), sliding_window=4096),
    "gemma-3-4b": _gqa(34, 8, 4, 256, layer_types=_alternating(34, 6), sliding_window=1024),
    "gemma-3-12b": _gqa(48, 16, 8, 256, layer_types=_alternating(48, 6), sliding_window=1024),
    "gemma-3-27b": _gqa(62, 32, 16, 128, layer_types=_alternating(62, 6), sliding_window=1024),
    "gemma-4-26b-a4b": _gqa(
        30,
        16,
        8,
        256,
        global_head_dim=512,
        num_global_key_value_heads=2,
        layer_types=_alternating(30, 6),
        sliding_window=1024,
    ),
    "glm-4.5": _gqa(92, 96, 8, 128, hidden_size=5120),
    "glm-4.5-air": _gqa(46, 96, 8, 128, hidden_size=4096),
    "glm-4.6": _gqa(92, 96, 8, 128, hidden_size=5120),
    "minimax-m2": _gqa(62, 48, 8, 128),
    "minimax-m2.5": _gqa(62, 48, 8, 128),
    "minimax-m2.7": _gqa(62, 48, 8, 128),
    "mimo-v2-flash": _gqa(
        48,
        64,
        4,
        192,
        v_head_dim=128,
        swa_num_key_value_heads=8,
        swa_head_dim=192,
        swa_v_head_dim=128,
        sliding_window=128,
        hybrid_layer_pattern=[0, *([1, 1, 1, 1, 0]), *([1, 1, 1, 1, 1, 0] * 7)],
    ),
}
"""Model name -> the keys of its configuration that decide KV size."""

_DECORATION: Final = frozenset(
    [
        *("instruct", "chat", "it", "base", "hf", "meta", "thinking", "reasoner", "exp", "preview", "terminus", "text"),
        *(
            "fp8",
            "nvfp4",
            "mxfp4",
            "mxfp8",
            "fp4",
            "int4",
            "int8",
            "bf16",
            "fp16",
            "awq",
            "gptq",
            "gguf",
            "4bit",
            "8bit",
        ),
        *("w8a8", "w4a16", "dynamic", "block", "quantized"),
    ]
)
"""Words of a name that say how a model was tuned or packed, not what shape it has."""


def _plain(name: str) -> str:
    words = re.split(r"[-_. :]+", name.strip().rstrip("/\\").lower().replace("\\", "/").rsplit("/", 1)[-1])
    return "".join(word for word in words if word not in _DECORATION and not re.fullmatch(r"\d{4}", word))


_VERSION: Final = re.compile(r"[-_]v\d+(\.\d+)*$", re.IGNORECASE)
"""A version at the end, as in Mixtral-8x7B-Instruct-v0.1, where the table has only one shape of that name."""
_BY_PLAIN: Final = {_plain(name): name for name in MODELS}


def known_model(name: str) -> str | None:
    """Return the table's name for a model as an engine or a hub writes it, or None."""
    return _BY_PLAIN.get(_plain(name)) or _BY_PLAIN.get(_plain(_VERSION.sub("", name.strip())))


def config_named(name: str) -> Mapping[str, Any]:
    """Return the configuration of a model by name; GeometryError with the nearest names when the table lacks it."""
    found = known_model(name)
    if found is None:
        head = re.match(r"[a-z]+", _plain(name))
        near = [known for known in MODELS if head and known.startswith(head.group())]
        raise GeometryError("model", f"no model {name[:80]!r} in the table; it has {', '.join(near or MODELS)}")
    return MODELS[found]
