"""
What each layer of a model keeps: one `LayerGroup` for every kind of layer a configuration describes.

Adding a family is one branch in `layer_kinds` (which layers are of which kind) and, where it stores something new,
one function that returns what one such layer keeps.
"""

from dataclasses import dataclass, replace

from scoring.geometry_config import LAYER_KEYS, MOST_HEADS, MOST_LAYERS, Config, GeometryError, whole
from scoring.geometry_kinds import layer_kinds
from scoring.kv_dtype import KvDtype

STATE_BYTES = 4
"""Recurrent state is float32 in vLLM and SGLang by default; a measured SGLang log agrees (Qwen3.5-9B, 24.1 MiB)."""
CONV_BYTES = 2
"""Convolution state keeps the model's 16-bit format there."""
MLA_FP8_BLOCK = 128
"""Sparse MLA in fp8 keeps a float32 scale for 128 latent numbers and the rope part in bf16 (656 B for 512 + 64)."""
V4_FP8_BLOCK = 64
"""DeepSeek-V4 in fp8 keeps a one-byte scale for 64 numbers, padded to a multiple of 8 bytes, and rope in bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """
    Layers that keep the same.

    Attributes:
        kind: `full`, `window`, `mla`, `compressed`, `state` or `none`.
        layers: How many.
        words: What one of them keeps, in plain words with numbers.
        bytes_per_token_per_gpu: Of one layer on one GPU.
        unique_share: Share of the bytes over all GPUs that is not a copy of another GPU's (1 without replication).
        window_tokens: Bound on the tokens kept of one sequence, or None.
        side_bytes_per_token_per_gpu: Of a second cache of the same layer, bounded by `side_window_tokens`.
        side_window_tokens: That bound; 0 when there is no second cache.
        state_bytes_per_gpu: Constant state of one sequence in one layer on one GPU.
    """

    kind: str
    layers: int
    words: str
    bytes_per_token_per_gpu: float = 0.0
    unique_share: float = 1.0
    window_tokens: int | None = None
    side_bytes_per_token_per_gpu: float = 0.0
    side_window_tokens: int = 0
    state_bytes_per_gpu: float = 0.0


def layer_groups(config: Config, dtype: KvDtype, tp: int) -> tuple[str, tuple[LayerGroup, ...], tuple[str, ...]]:
    """Return the family's word, the groups in order of their first layer, and remarks for the explanation."""
    layer_count = config.need(*LAYER_KEYS, most=MOST_LAYERS)
    notes: list[str] = []
    if config.has("compress_ratios"):
        layers = [_compressed(config, dtype, ratio) for ratio in _compress_ratios(config, layer_count)]
        return "compressed-mla", _merged([replace(g, unique_share=1 / tp) for g in layers]), ()
    kinds = layer_kinds(config, layer_count)
    is_mla = config.has("kv_lora_rank") and config.flag("use_mla") is not False
    made: list[LayerGroup] = []
    for index, (kind, window_tokens) in enumerate(kinds):
        if kind == "none":
            continue
        if kind == "linear":
            made.append(_linear(config, tp))
        elif kind == "mamba":
            made.append(_mamba(config, tp))
        elif kind == "conv":
            made.append(_short_conv(config, tp))
        elif is_mla:
            made.append(replace(_latent(config, dtype), unique_share=1 / tp))
        else:
            made.append(_attention(config, dtype, tp, index, layer_count, window_tokens))
            if kind == "hybrid":
                made.append(_mamba(config, tp))
    if not made:
        raise GeometryError("num_hidden_layers", "none of the `num_hidden_layers` layers keeps anything")
    groups = _merged(made)
    if config.count("num_nextn_predict_layers", "mtp_num_hidden_layers", least=0, most=MOST_LAYERS):
        notes.append(
            "Draft (MTP) layers are not counted; an engine that keeps their cache takes one layer more for each."
        )
    if is_mla and any(g.kind == "mla" for g in groups) and tp > 1:
        notes.append("A latent is kept whole on every GPU: tensor parallelism does not divide it.")
    return _family(groups, config), groups, tuple(notes)


def _merged(layers: list[LayerGroup]) -> tuple[LayerGroup, ...]:
    counts: dict[LayerGroup, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(replace(layer, layers=count) for layer, count in counts.items())


def _family(groups: tuple[LayerGroup, ...], config: Config) -> str:
    kinds = {group.kind for group in groups}
    if "state" in kinds:
        return "hybrid" if len(kinds) > 1 else "state"
    if "mla" in kinds:
        return "mla+indexer" if config.has("index_head_dim") else "mla"
    if "window" in kinds:
        return "window+full" if "full" in kinds else "window"
    heads = config.count("num_attention_heads", "n_head", "n_heads", most=MOST_HEADS) or 0
    kv_heads = _kv_heads(config, 0, heads)
    return "mqa" if kv_heads == 1 else "mha" if kv_heads == heads else "gqa"


def _split_heads(key: str, heads: int, tp: int) -> int:
    """Return heads on one GPU; fewer heads than GPUs are copied, as vLLM and SGLang do."""
    if heads >= tp and heads % tp == 0:
        return heads // tp
    if heads < tp and tp % heads == 0:
        return 1
    raise GeometryError(key, f"{heads} heads (`{key}`) cannot be split over tp={tp} GPUs: one must divide the other")


def _attention_heads(config: Config) -> int:
    return config.need("num_attention_heads", "n_head", "n_heads", most=MOST_HEADS)


def _kv_heads(config: Config, index: int, heads: int) -> int:
    value = config.values.get("num_key_value_heads")
    if isinstance(value, list):  # OpenELM and pruned models give one figure a layer.
        if index >= len(value):
            raise GeometryError("num_key_value_heads", f"`num_key_value_heads` has no entry for layer {index}")
        return whole("num_key_value_heads", value[index], most=MOST_HEADS)
    found = config.count("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", most=MOST_HEADS)
    if found is not None and not (config.flag("multi_query") and not config.has("num_key_value_heads")):
        return found
    return 1 if config.flag("multi_query") else heads


def _attention(
    config: Config, dtype: KvDtype, tp: int, index: int, layer_count: int, window_tokens: int | None
) -> LayerGroup:
    heads = _attention_heads(config)
    kv_heads = _kv_heads(config, index, heads)
    key_dim = config.count("head_dim", "attention_head_dim", "kv_channels", "d_kv")
    if key_dim is None:
        hidden = config.need("hidden_size", "n_embd", "d_model")
        if hidden % heads:
            raise GeometryError(
                "head_dim",
                f"the configuration lacks `head_dim`, and hidden_size {hidden} is not divisible by {heads} heads",
            )
        key_dim = hidden // heads
    value_dim = config.count("v_head_dim") or key_dim
    if window_tokens is not None and config.has("swa_num_key_value_heads"):
        kv_heads = config.need("swa_num_key_value_heads", most=MOST_HEADS)
        key_dim = config.count("swa_head_dim") or key_dim
        value_dim = config.count("swa_v_head_dim") or value_dim
    elif window_tokens is None and config.has("global_head_dim"):
        kv_heads = config.count("num_global_key_value_heads", most=MOST_HEADS) or kv_heads
        key_dim = value_dim = config.need("global_head_dim")
    elif heads % kv_heads:
        raise GeometryError(
            "num_key_value_heads", f"num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}"
        )
    on_gpu = _split_heads("num_key_value_heads", kv_heads, tp)
    head_bytes = dtype.vector_bytes(key_dim) + dtype.vector_bytes(value_dim)
    dims = f"{key_dim}" if key_dim == value_dim else f"{key_dim}+{value_dim}"
    words = f"keys and values of {kv_heads} heads x {dims}"
    if kv_heads < tp:
        words += f", each copied to {tp // kv_heads} GPUs"
    if window_tokens is not None:
        words += f", at most {window_tokens:,} tokens of a sequence (window)"
    index_bytes, index_words = _sparse_index(config, dtype, index, layer_count)
    total = on_gpu * head_bytes + index_bytes
    return LayerGroup(
        kind="full" if window_tokens is None else "window",
        layers=1,
        words=words + index_words,
        bytes_per_token_per_gpu=total,
        unique_share=(kv_heads * head_bytes + index_bytes) / (tp * total),
        window_tokens=window_tokens,
    )


def _sparse_index(config: Config, dtype: KvDtype, index: int, layer_count: int) -> tuple[float, str]:
    """Return the bytes of a block-sparse index (MiniMax-M3): one shared key head in the layers that have it."""
    sparse = config.part("sparse_attention_config")
    if sparse is None or sparse.flag("use_sparse_attention") is False:
        return 0.0, ""
    flags = sparse.row("sparse_attention_freq", layer_count)
    if flags is None or not flags[index]:
        return 0.0, ""
    dim = sparse.need("sparse_index_dim")
    no_values = sparse.row("sparse_disable_index_value", layer_count)
    vectors = 1 if no_values is not None and no_values[index] else 2
    return vectors * dtype.vector_bytes(dim), f", and a sparse index of {vectors} x {dim} on every GPU"


def _latent(config: Config, dtype: KvDtype) -> LayerGroup:
    """Return one MLA layer: latent and rope part, stored once (not doubled); a sparse indexer's key beside it."""
    rank = config.need("kv_lora_rank")
    rope = config.need("qk_rope_head_dim", least=0)
    index_dim = config.count("index_head_dim")
    if index_dim is not None and dtype.is_fp8:
        blocks = -(-rank // MLA_FP8_BLOCK)
        latent_bytes: float = rank + 4 * blocks + 2 * rope
        index_bytes: float = index_dim + 4 * -(-index_dim // MLA_FP8_BLOCK)
    else:
        latent_bytes = dtype.vector_bytes(rank + rope)
        index_bytes = dtype.vector_bytes(index_dim) if index_dim is not None else 0.0
    words = f"one latent of {rank} + {rope} (rope), {latent_bytes:g} B"
    if index_dim is not None:
        words += f", and an indexer key of {index_dim}, {index_bytes:g} B"
    return LayerGroup(kind="mla", layers=1, words=words, bytes_per_token_per_gpu=latent_bytes + index_bytes)


def _compress_ratios(config: Config, layer_count: int) -> list[int]:
    ratios = config.row("compress_ratios") or []
    if len(ratios) < layer_count:
        raise GeometryError("compress_ratios", f"`compress_ratios` has {len(ratios)} entries for {layer_count} layers")
    # Entries beyond the layers belong to draft (MTP) layers, whose cache is not counted.
    return [whole("compress_ratios", ratio, most=1 << 20, least=0) for ratio in ratios[:layer_count]]


def _compressed(config: Config, dtype: KvDtype, ratio: int) -> LayerGroup:
    """
    Return one DeepSeek-V4 layer: an entry for `ratio` tokens, a window of plain entries, and the 4:1 layers' indexer.

    Ratio 0 keeps the window alone. The indexer keeps 4-bit keys unless the cache is fp8, where it keeps fp8 ones.
    Reproduces 8,415.625 and 5,877.375 B/token at 1,048,576 tokens (Pro, Flash) of an independent calculator.
    """
    dim = config.need("head_dim")
    window_tokens = config.need("sliding_window", most=1 << 40)
    if dtype.is_fp8:
        rope = config.need("qk_rope_head_dim", least=0)
        scales = -(-(dim - rope) // V4_FP8_BLOCK)
        entry_bytes: float = (dim - rope) + 2 * rope + 8 * -(-scales // 8)
    else:
        entry_bytes = dtype.vector_bytes(dim)
    per_token = entry_bytes / ratio if ratio else 0.0
    words = f"one entry of {dim} ({entry_bytes:g} B) for {ratio} tokens" if ratio else "no long-range entries"
    if ratio == 4:
        index_dim = config.need("index_head_dim")
        index_bytes = index_dim + 4 * -(-index_dim // MLA_FP8_BLOCK) if dtype.is_fp8 else -(-index_dim // 2)
        per_token += index_bytes / ratio
        words += f", an indexer key of {index_bytes} B for each entry"
    return LayerGroup(
        kind="compressed",
        layers=1,
        words=f"{words}, and {entry_bytes:g} B for each of the last {window_tokens} tokens",
        bytes_per_token_per_gpu=per_token,
        side_bytes_per_token_per_gpu=entry_bytes,
        side_window_tokens=window_tokens,
    )


def _state(words: str, tp: int, state_numbers: int, conv_numbers: int) -> LayerGroup:
    size = (state_numbers * STATE_BYTES + conv_numbers * CONV_BYTES) / tp
    return LayerGroup(
        kind="state", layers=1, words=f"{words}, {size:,.0f} B a sequence on one GPU", state_bytes_per_gpu=size
    )


def _linear(config: Config, tp: int) -> LayerGroup:
    """Return one linear-attention layer: gated delta net (Qwen3-Next), KDA (Kimi) or lightning (MiniMax-01)."""
    kda = config.part("linear_attn_config")
    if kda is not None:
        heads, dim = kda.need("num_heads", most=MOST_HEADS), kda.need("head_dim")
        taps = kda.count("short_conv_kernel_size") or 1
        return _state(
            f"a delta-rule state of {heads} heads x {dim} x {dim}, no cache",
            tp,
            heads * dim * dim,
            3 * heads * dim * (taps - 1),
        )
    if config.has("linear_num_value_heads"):
        value_heads = config.need("linear_num_value_heads", most=MOST_HEADS)
        key_heads = config.need("linear_num_key_heads", most=MOST_HEADS)
        key_dim, value_dim = config.need("linear_key_head_dim"), config.need("linear_value_head_dim")
        taps = config.need("linear_conv_kernel_dim")
        return _state(
            f"a delta-net state of {value_heads} heads x {key_dim} x {value_dim}, no cache",
            tp,
            value_heads * key_dim * value_dim,
            (2 * key_heads * key_dim + value_heads * value_dim) * (taps - 1),
        )
    heads = _attention_heads(config)
    dim = config.count("head_dim") or config.need("hidden_size") // heads
    return _state(f"a linear-attention state of {heads} heads x {dim} x {dim}, no cache", tp, heads * dim * dim, 0)


def _mamba(config: Config, tp: int) -> LayerGroup:
    """Return one Mamba layer: Mamba-2 where the file gives heads, else Mamba-1."""
    state = config.need("ssm_state_size", "mamba_d_state", "state_size")
    taps = config.need("conv_kernel", "mamba_d_conv", "d_conv", "mamba_conv_kernel")
    heads = config.count("mamba_num_heads", "mamba_n_heads", most=MOST_HEADS)
    if heads is not None:
        dim = config.need("mamba_head_dim", "mamba_d_head", "mamba_headdim")
        groups = config.count("n_groups", "mamba_n_groups", "mamba_ngroups") or 1
        inner = heads * dim
        conv = (inner + 2 * groups * state) * (taps - 1)
        return _state(f"a Mamba-2 state of {heads} heads x {dim} x {state}, no cache", tp, inner * state, conv)
    given = config.count("mamba_d_inner", "intermediate_size") if config.model_type == "mamba" else None
    inner = given or config.need("hidden_size", "d_model") * (config.count("mamba_expand", "expand") or 2)
    return _state(f"a Mamba state of {inner} x {state}, no cache", tp, inner * state, inner * (taps - 1))


def _short_conv(config: Config, tp: int) -> LayerGroup:
    taps = config.need("conv_L_cache", "conv_kernel")
    hidden = config.need("hidden_size")
    return _state(f"a short convolution over {taps} tokens, no cache", tp, 0, hidden * (taps - 1))
