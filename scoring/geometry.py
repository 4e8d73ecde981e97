"""
KV bytes per token from a model's Hugging Face config.json: what a pool of so many GiB holds, and why.

`kv_geometry` reads the configuration, asks `geometry_layers` what each layer keeps, and adds up. Every family is a
kind of layer there: full attention (MHA, GQA, MQA), a window or chunk, a latent (MLA) with or without a sparse
indexer, a compressed latent (DeepSeek-V4), a constant recurrent state.

Read next: `geometry_layers` (layers of a config), `kv_dtype` (bytes of one cached vector), `model_table` (by name).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scoring.geometry_config import Config, GeometryError
from scoring.geometry_layers import LayerGroup, layer_groups
from scoring.kv_dtype import KvDtype, kv_dtype_named
from scoring.model_table import MODELS, config_named
from scoring.units import GIB_BYTES, blocks_to_tokens, tokens_to_blocks_down

__all__ = ["MODELS", "GeometryError", "KvGeometry", "LayerGroup", "capacity_tokens", "config_named", "kv_geometry"]

MOST_GIB = 1 << 20
"""A million GiB of one GPU is a typing error."""
MOST_GPUS = 65_536
"""Refuse more GPUs behind one rank than any machine has: it is a typing error, not a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGeometry:
    """
    What one model keeps per token and per sequence, in bytes.

    Attributes:
        family: Word for the kind: `gqa`, `mha`, `mqa`, `mla`, `mla+indexer`, `compressed-mla`, `window`, `hybrid`, ...
        kv_dtype: Canonical name of the cache's number format.
        tp: GPUs the layers are split over (tensor parallel).
        dcp: GPUs a sequence's tokens are split over (decode context parallel), 1 when not used.
        bytes_per_token: Over all GPUs behind the rank; what is replicated is counted once for each copy. All attention
            layers are charged, windows too, as an engine without a hybrid cache manager does. Only a compressed cache,
            where no single figure exists, gives the mean of a sequence of the model's full context.
        bytes_per_token_per_gpu: The same on one GPU: the divisor for that GPU's KV memory.
        unique_bytes_per_token: With every replica counted once: what a transfer between pools has to carry.
        growth_bytes_per_token: Over all GPUs, once every window is full: full-attention layers only.
        window_bytes_per_sequence: Over all GPUs, the most that windowed layers keep of one sequence.
        state_bytes_per_sequence: Over all GPUs, recurrent and convolution state; constant however long the sequence.
        state_bytes_per_sequence_per_gpu: The same on one GPU.
        window_layers: Number of layers bounded by a window or chunk.
        window_tokens: The widest of those windows, or None.
        kv_layers: Layers that keep a token-by-token cache.
        state_layers: Layers that keep a state instead.
        groups: Layers of a kind together, in the order of their first layer.
        explanation: Plain words with the numbers.
    """

    family: str
    kv_dtype: str
    tp: int
    dcp: int
    bytes_per_token: float
    bytes_per_token_per_gpu: float
    unique_bytes_per_token: float
    growth_bytes_per_token: float
    window_bytes_per_sequence: float
    state_bytes_per_sequence: float
    state_bytes_per_sequence_per_gpu: float
    window_layers: int
    window_tokens: int | None
    kv_layers: int
    state_layers: int
    groups: tuple[LayerGroup, ...]
    explanation: str

    def sequence_bytes(self, tokens: float) -> float:
        """Return the bytes that one sequence of `tokens` holds over all GPUs, windows bounded, state included."""
        return self.tp * sum(_group_sequence_bytes(group, tokens) for group in self.groups)


def _group_sequence_bytes(group: LayerGroup, tokens: float) -> float:
    kept = tokens if group.window_tokens is None else min(tokens, float(group.window_tokens))
    side = min(tokens, float(group.side_window_tokens)) * group.side_bytes_per_token_per_gpu
    return group.layers * (kept * group.bytes_per_token_per_gpu + side + group.state_bytes_per_gpu)


def kv_geometry(config: Mapping[str, Any], kv_dtype: str = "bf16", tp: int = 1, *, dcp: int = 1) -> KvGeometry:
    """
    Return what `config` (a Hugging Face config.json, parsed) keeps per token at `kv_dtype` over `tp` GPUs.

    Formulas: full attention `kv_heads * (key_dim + value_dim) * bytes` a layer, head_dim as configured; MLA
    `(kv_lora_rank + qk_rope_head_dim) * bytes`, kept whole on every GPU; checked against engines' logs and an
    independent calculator (data/models, data/oracle of the tests).

    Raises:
        GeometryError: the configuration lacks a key, or a value cannot be right; names the key.
    """
    reader = Config.of(config)
    tp = _gpus("tp", tp)
    dcp = _gpus("dcp", dcp)
    if tp % dcp:
        raise GeometryError("dcp", f"dcp={dcp} does not divide tp={tp}: context is split over the GPUs of a TP group")
    dtype = kv_dtype_named(kv_dtype, reader)
    family, groups, notes = layer_groups(reader, dtype, tp)
    context = reader.count("max_position_embeddings", most=1 << 40) or 1 << 17
    per_gpu = sum(_charged_per_token(group, context) for group in groups) / dcp
    return KvGeometry(
        family=family,
        kv_dtype=dtype.name,
        tp=tp,
        dcp=dcp,
        bytes_per_token=per_gpu * tp,
        bytes_per_token_per_gpu=per_gpu,
        unique_bytes_per_token=sum(g.unique_share * _charged_per_token(g, context) for g in groups) * tp,
        growth_bytes_per_token=tp * sum(g.layers * g.bytes_per_token_per_gpu for g in groups if not g.window_tokens),
        window_bytes_per_sequence=tp * sum(_window_bytes(g) for g in groups),
        state_bytes_per_sequence=tp * sum(g.layers * g.state_bytes_per_gpu for g in groups),
        state_bytes_per_sequence_per_gpu=sum(g.layers * g.state_bytes_per_gpu for g in groups),
        window_layers=sum(g.layers for g in groups if g.window_tokens or g.side_window_tokens),
        window_tokens=max((max(g.window_tokens or 0, g.side_window_tokens) for g in groups), default=0) or None,
        kv_layers=sum(g.layers for g in groups if g.bytes_per_token_per_gpu or g.side_window_tokens),
        state_layers=sum(g.layers for g in groups if g.state_bytes_per_gpu),
        groups=groups,
        explanation=_explain(family, dtype, tp, dcp, per_gpu, groups, notes, context),
    )


def _charged_per_token(group: LayerGroup, context_tokens: int) -> float:
    """Return a group's share of bytes_per_token_per_gpu; a side window is spread over the full context."""
    side = group.side_bytes_per_token_per_gpu * min(group.side_window_tokens, context_tokens) / context_tokens
    return group.layers * (group.bytes_per_token_per_gpu + side)


def _window_bytes(group: LayerGroup) -> float:
    main = group.bytes_per_token_per_gpu * group.window_tokens if group.window_tokens else 0.0
    return group.layers * (main + group.side_bytes_per_token_per_gpu * group.side_window_tokens)


def capacity_tokens(
    geometry: KvGeometry, kv_gib_per_gpu: float, block_size_tokens: int = 1, *, sequences: int = 0
) -> int:
    """
    Return the tokens that `kv_gib_per_gpu` GiB of KV memory on each GPU hold, rounded down to whole blocks.

    Args:
        geometry: What a token takes.
        kv_gib_per_gpu: KV memory of one GPU in GiB (2^30 bytes), as engines print it.
        block_size_tokens: Allocation unit.
        sequences: Sequences whose constant state comes out of the same memory first (hybrid models).

    Raises:
        ValueError: memory, block size or sequences out of range, or the model keeps nothing per token.
    """
    if not 0 <= kv_gib_per_gpu <= MOST_GIB:
        raise ValueError(f"kv_gib_per_gpu must be a number of GiB, 0 .. {MOST_GIB:,}, not {kv_gib_per_gpu}")
    if not 1 <= block_size_tokens <= 1 << 30:
        raise ValueError(f"block_size_tokens must be 1 .. 2^30, not {block_size_tokens}")
    if sequences < 0:
        raise ValueError(f"sequences must be >= 0, not {sequences}")
    if geometry.bytes_per_token_per_gpu <= 0:
        raise ValueError("this model keeps nothing per token, only state per sequence: it has no capacity in tokens")
    room = kv_gib_per_gpu * GIB_BYTES - sequences * geometry.state_bytes_per_sequence_per_gpu
    tokens = max(room, 0.0) / geometry.bytes_per_token_per_gpu
    return int(blocks_to_tokens(float(tokens_to_blocks_down(tokens, block_size_tokens)), block_size_tokens))


def _gpus(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_GPUS:
        raise GeometryError(name, f"{name} must be a whole number of GPUs, 1 .. {MOST_GPUS}, not {value!r}")
    return value


def _explain(
    family: str,
    dtype: KvDtype,
    tp: int,
    dcp: int,
    per_gpu: float,
    groups: tuple[LayerGroup, ...],
    notes: tuple[str, ...],
    context_tokens: int,
) -> str:
    sentences = [f"{group.layers} layers: {group.words}." for group in groups]
    sentences.append(f"Number format {dtype.name}: {dtype.words}.")
    sentences.append(
        f"{per_gpu:,.10g} B per token on one GPU, {per_gpu * tp:,.10g} B over the {tp} GPU(s) of the rank."
    )
    if any(g.window_tokens for g in groups) and family != "window":
        full = sum(g.layers * g.bytes_per_token_per_gpu for g in groups if not g.window_tokens)
        sentences.append(
            "Windowed layers are charged for every token, as an engine without a hybrid cache manager does; "
            f"once its windows are full, a sequence grows by {full:,.10g} B per token on one GPU."
        )
    if any(g.side_window_tokens for g in groups):
        sentences.append(
            f"Bytes per token depend on length; this is the mean of a full context of {context_tokens:,} tokens."
        )
    if dcp > 1:
        sentences.append(f"A sequence's tokens are split over {dcp} GPUs (decode context parallel).")
    return " ".join([*sentences, *notes])
