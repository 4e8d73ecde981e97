"""Less common shapes of configurations, and configurations that cannot be right."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scoring.geometry import GeometryError, config_named, kv_geometry

GQA = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
HEAD = 64 * 2 * 2
"""Key and value of one head of GQA at bf16."""


def with_(**changes):
    return {key: value for key, value in {**GQA, **changes}.items() if value is not ...}


@pytest.mark.parametrize(
    ("config", "layers_full", "layers_window"),
    [
        (with_(sliding_window=16), 0, 4),
        (with_(sliding_window=16, use_sliding_window=False), 4, 0),
        (with_(sliding_window=16, use_sliding_window=True, max_window_layers=3), 3, 1),
        (with_(sliding_window=16, model_type="gemma2"), 2, 2),
        (with_(sliding_window=16, sliding_window_pattern=4), 1, 3),
        (with_(sliding_window=16, sliding_window_pattern="LLG"), 1, 3),
        (with_(sliding_window=16, layer_types=["full_attention"] * 3 + ["sliding_attention"]), 3, 1),
        (with_(attention_chunk_size=16, model_type="llama4_text", no_rope_layers=[1, 1, 1, 0]), 1, 3),
        (with_(attention_chunk_size=16, model_type="llama4_text", no_rope_layers=[]), 1, 3),
        (with_(sliding_window=16, hybrid_layer_pattern=[0, 1, 1, 1]), 1, 3),
    ],
)
def test_windows_are_found_however_the_file_says_it(config, layers_full, layers_window):
    """A long sequence keeps every token in full layers and 16 in windowed ones."""
    geometry = kv_geometry(config)
    assert geometry.window_layers == layers_window
    assert geometry.sequence_bytes(1000) == 2 * HEAD * (1000 * layers_full + 16 * layers_window)
    assert geometry.sequence_bytes(10) == 10 * geometry.bytes_per_token


@pytest.mark.parametrize(
    ("config", "bytes_per_token"),
    [
        ({"n_layer": 4, "n_head": 8, "n_embd": 512}, 4 * 8 * HEAD),
        ({"n_layer": 4, "n_head": 8, "hidden_size": 512, "multi_query": True}, 4 * HEAD),
        ({"num_layers": 4, "num_attention_heads": 8, "kv_channels": 64, "multi_query_group_num": 2}, 4 * 2 * HEAD),
        (with_(num_key_value_heads=[1, 2, 4, 8]), 15 * HEAD),
        (with_(num_kv_shared_layers=2), 2 * 2 * HEAD),
        (with_(use_cla=True, cla_share_factor=2), 2 * 2 * HEAD),
        ({"model_type": "wrapper", "text_config": GQA}, 4 * 2 * HEAD),
        ({"thinker_config": {"text_config": GQA}}, 4 * 2 * HEAD),
        ({"llm_config": GQA, "vision_config": {"num_hidden_layers": 99}}, 4 * 2 * HEAD),
    ],
)
def test_older_and_nested_spellings_are_read(config, bytes_per_token):
    """Keys of GPT-2, Falcon, ChatGLM, OpenELM, shared layers and multimodal wrappers give the same arithmetic."""
    assert kv_geometry(config).bytes_per_token == bytes_per_token


MAMBA2 = {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 16, "conv_kernel": 4, "n_groups": 2}
MAMBA2_STATE = 4 * 8 * 16 * 4 + (4 * 8 + 2 * 2 * 16) * 3 * 2


@pytest.mark.parametrize(
    ("config", "kv_layers", "state_bytes"),
    [
        (with_(hybrid_override_pattern="M*-M", **MAMBA2), 1, 2 * MAMBA2_STATE),
        (with_(layers_block_type=["mamba", "attention", "mamba", "mamba"], **MAMBA2), 1, 3 * MAMBA2_STATE),
        (with_(layer_types=["mamba", "attention", "mamba", "attention"], **MAMBA2), 2, 2 * MAMBA2_STATE),
        (with_(attn_layer_indices=[1], **MAMBA2), 1, 3 * MAMBA2_STATE),
        (with_(model_type="falcon_h1", **MAMBA2), 4, 4 * MAMBA2_STATE),
        (
            with_(attn_layer_period=4, attn_layer_offset=2, hidden_size=32, mamba_d_state=16, mamba_d_conv=4),
            1,
            3 * (64 * 16 * 4 + 64 * 3 * 2),
        ),
        (with_(attn_type_list=[0, 0, 0, 1]), 1, 3 * 8 * 64 * 64 * 4),
        (
            with_(layer_types=["conv", "conv", "full_attention", "conv"], conv_L_cache=3, hidden_size=512),
            1,
            3 * 512 * 4,
        ),
    ],
)
def test_recurrent_layers_keep_a_state_and_no_cache(config, kv_layers, state_bytes):
    """Mamba, lightning and convolution layers add a constant to each sequence and nothing to a token."""
    geometry = kv_geometry(config)
    assert (geometry.kv_layers, geometry.state_bytes_per_sequence) == (kv_layers, state_bytes)
    assert geometry.bytes_per_token == kv_layers * 2 * HEAD
    assert geometry.sequence_bytes(0) == state_bytes


def test_block_sparse_attention_keeps_one_index_key_in_its_sparse_layers():
    """MiniMax-M3's index is one shared key of 128 in each sparse layer, on every GPU."""
    sparse = {
        "use_sparse_attention": True,
        "sparse_index_dim": 128,
        "sparse_attention_freq": [0, 1, 1, 1],
        "sparse_disable_index_value": [0, 1, 1, 1],
    }
    one, two = (kv_geometry(with_(sparse_attention_config=sparse), tp=tp) for tp in (1, 2))
    assert one.bytes_per_token == 4 * 2 * HEAD + 3 * 128 * 2
    assert two.bytes_per_token_per_gpu == 4 * HEAD + 3 * 128 * 2
    assert two.unique_bytes_per_token == pytest.approx(one.unique_bytes_per_token)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ([], "config"),
        ("text", "config"),
        (None, "config"),
        ({}, "num_hidden_layers"),
        (with_(num_hidden_layers=...), "num_hidden_layers"),
        (with_(num_hidden_layers=0), "num_hidden_layers"),
        (with_(num_hidden_layers=-3), "num_hidden_layers"),
        (with_(num_hidden_layers=10**9), "num_hidden_layers"),
        (with_(num_hidden_layers=2.5), "num_hidden_layers"),
        (with_(num_hidden_layers=True), "num_hidden_layers"),
        (with_(num_hidden_layers="32"), "num_hidden_layers"),
        (with_(num_hidden_layers=math.nan), "num_hidden_layers"),
        (with_(num_attention_heads=...), "num_attention_heads"),
        (with_(num_attention_heads=0), "num_attention_heads"),
        (with_(num_key_value_heads=3), "num_key_value_heads"),
        (with_(num_key_value_heads=-2), "num_key_value_heads"),
        (with_(num_key_value_heads=[2, 2]), "num_key_value_heads"),
        (with_(head_dim=..., hidden_size=...), "hidden_size"),
        (with_(head_dim=..., hidden_size=513), "head_dim"),
        (with_(head_dim=10**12), "head_dim"),
        (with_(head_dim=[64]), "head_dim"),
        (with_(layer_types=["full_attention"]), "layer_types"),
        (with_(layer_types="full_attention"), "layer_types"),
        (with_(layer_types=["full_attention"] * 3 + ["<b>new</b>"]), "layer_types"),
        (with_(layer_types=["sliding_attention"] * 4), "sliding_window"),
        (with_(sliding_window=0), "sliding_window"),
        (with_(sliding_window=16, use_sliding_window="no"), "use_sliding_window"),
        (with_(hybrid_override_pattern="M*?"), "hybrid_override_pattern"),
        (with_(hybrid_override_pattern="----"), "num_hidden_layers"),
        (with_(linear_attn_config={"full_attn_layers": [1, 2], "kda_layers": [2, 3]}), "linear_attn_config"),
        (with_(linear_attn_config=[1]), "linear_attn_config"),
        (with_(kv_lora_rank=512), "qk_rope_head_dim"),
        (with_(kv_lora_rank=-1, qk_rope_head_dim=64), "kv_lora_rank"),
        (with_(compress_ratios=[4]), "compress_ratios"),
        (with_(compress_ratios=[0, 0, 4, 4]), "sliding_window"),
    ],
)
def test_what_cannot_be_right_is_refused_with_the_key(config, key):
    """A configuration that lacks or contradicts itself raises GeometryError, whose text names the key."""
    with pytest.raises(GeometryError) as caught:
        kv_geometry(config)
    assert caught.value.key == key
    assert key in str(caught.value)


@pytest.mark.parametrize(("argument", "value"), [("tp", 0), ("tp", -1), ("tp", 10**9), ("tp", True), ("tp", 1.0)])
def test_gpus_are_a_whole_positive_number(argument, value):
    """tp outside 1 .. 65,536 or not whole is refused by name."""
    with pytest.raises(GeometryError, match=argument):
        kv_geometry(GQA, **{argument: value})


def test_heads_that_do_not_split_and_unknown_formats_are_refused():
    """8 heads over 3 GPUs, and a number format nobody has, are errors that say what is possible."""
    with pytest.raises(GeometryError, match="tp=3"):
        kv_geometry(config_named("llama-3.1-8b"), tp=3)
    with pytest.raises(GeometryError, match="known: auto, fp32, bf16"):
        kv_geometry(GQA, "fp7")
    with pytest.raises(GeometryError, match=r"llama-3\.1-8b"):
        config_named("llama-9-900b")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [
        *GQA,
        "hidden_size",
        "sliding_window",
        "sliding_window_pattern",
        "layer_types",
        "kv_lora_rank",
        "qk_rope_head_dim",
        "index_head_dim",
        "linear_attn_config",
        "compress_ratios",
        "text_config",
        "hybrid_layer_pattern",
        "attn_type_list",
        "max_position_embeddings",
        "v_head_dim",
        "global_head_dim",
        "sparse_attention_config",
        "model_type",
        "use_cla",
        "torch_dtype",
    ]
)


@settings(deadline=None, derandomize=True, max_examples=400, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(KEYS, JSON, max_size=5), st.sampled_from(["bf16", "auto", "fp8", "int4"]))
def test_no_configuration_breaks_it(changes, dtype):
    """Any JSON under any key gives a finite positive figure or a GeometryError, nothing else."""
    try:
        geometry = kv_geometry({**GQA, **changes}, dtype)
    except GeometryError as error:
        geometry, refused = None, error
    if geometry is None:
        assert refused.key
        assert str(refused)
        return
    assert math.isfinite(geometry.bytes_per_token)
    assert geometry.sequence_bytes(1000) > 0
