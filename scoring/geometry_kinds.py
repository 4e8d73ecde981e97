"""
Which layer of a model is of which kind: full attention, window, linear, Mamba, convolution, or nothing of its own.

Configurations say it in a dozen ways; each is one function here, tried in order. A kind is a word and, for windows,
the tokens kept.
"""

from collections.abc import Callable

from scoring.geometry_config import Config, GeometryError, whole

Kind = tuple[str, int | None]
"""(`full` | `window` | `linear` | `mamba` | `hybrid` | `conv` | `none`, window in tokens or None)."""

FULL: Kind = ("full", None)
MOST_WINDOW = 1 << 40

LAYER_TYPES = {
    "full_attention": "full",
    "attention": "full",
    "global_attention": "full",
    "global": "full",
    "sliding_attention": "window",
    "sliding": "window",
    "local_attention": "window",
    "chunked_attention": "window",
    "linear_attention": "linear",
    "mamba": "mamba",
    "mamba2": "mamba",
    "hybrid": "hybrid",
    "conv": "conv",
    "moe": "none",
    "mlp": "none",
}

PATTERN_DEFAULTS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gemma3n": 5, "gemma3n_text": 5, "cohere2": 4}
"""Every n-th layer is full in these families when the file leaves `sliding_window_pattern` out (library defaults)."""


def layer_kinds(config: Config, layer_count: int) -> list[Kind]:
    """Return one kind a layer; the last layers that read another layer's cache keep nothing of their own."""
    readers: tuple[Callable[[Config, int], list[Kind] | None], ...] = (
        _by_linear_attn_config,
        _by_layer_types,
        _by_pattern_letters,
        _by_hybrid_layer_pattern,
        _by_attn_type_list,
        _by_interval,
        _by_attention_index,
        _by_chunks,
        _by_window,
    )
    kinds = next((found for read in readers if (found := read(config, layer_count)) is not None), None)
    kinds = kinds if kinds is not None else [FULL] * layer_count
    shared = config.count("num_kv_shared_layers", least=0, most=layer_count) or 0
    if shared:
        kinds = [*kinds[: layer_count - shared], *([("none", None)] * shared)]
    if config.flag("use_cla"):
        every = config.need("cla_share_factor", most=layer_count)
        kinds = [kind if index % every == 0 else ("none", None) for index, kind in enumerate(kinds)]
    return kinds


def _window(config: Config) -> int:
    return config.need("sliding_window", "attention_chunk_size", "sliding_window_size", most=MOST_WINDOW)


def _by_linear_attn_config(config: Config, layer_count: int) -> list[Kind] | None:
    part = config.part("linear_attn_config")
    if part is None:
        return None
    full = {whole("full_attn_layers", v, most=layer_count) for v in part.row("full_attn_layers") or []}
    linear = {whole("kda_layers", v, most=layer_count) for v in part.row("kda_layers") or []}
    missing = set(range(1, layer_count + 1)) - full - linear
    if missing or full & linear:
        what = f"layer {min(missing)} in neither list" if missing else f"layer {min(full & linear)} in both lists"
        raise GeometryError("linear_attn_config", f"`linear_attn_config` puts {what}")
    return [FULL if number in full else ("linear", None) for number in range(1, layer_count + 1)]


def _by_layer_types(config: Config, layer_count: int) -> list[Kind] | None:
    key = "layer_types" if config.has("layer_types") else "layers_block_type"
    words = config.row(key, layer_count)
    if words is None:
        return None
    kinds: list[Kind] = []
    for word in words:
        kind = LAYER_TYPES.get(word) if isinstance(word, str) else None
        if kind is None:
            raise GeometryError(key, f"`{key}` names a kind of layer that is not known: {str(word)[:60]!r}")
        if word == "chunked_attention":
            kinds.append(("window", config.need("attention_chunk_size", "sliding_window", most=MOST_WINDOW)))
        else:
            kinds.append((kind, _window(config) if kind == "window" else None))
    return kinds


def _by_pattern_letters(config: Config, layer_count: int) -> list[Kind] | None:
    """Nemotron-H: M is Mamba, * attention, - and E feed-forward alone."""
    pattern = config.values.get("hybrid_override_pattern")
    if pattern is None:
        return None
    letters = {"M": ("mamba", None), "*": FULL, "-": ("none", None), "E": ("none", None)}
    if not isinstance(pattern, str) or len(pattern) != layer_count or set(pattern) - set(letters):
        raise GeometryError(
            "hybrid_override_pattern", f"`hybrid_override_pattern` must be {layer_count} letters out of M * - E"
        )
    return [letters[letter] for letter in pattern]


def _by_hybrid_layer_pattern(config: Config, layer_count: int) -> list[Kind] | None:
    """MiMo: 1 is a window, 0 is full."""
    flags = config.row("hybrid_layer_pattern", layer_count)
    return None if flags is None else [("window", _window(config)) if flag else FULL for flag in flags]


def _by_attn_type_list(config: Config, layer_count: int) -> list[Kind] | None:
    """MiniMax: 1 is full attention, 0 lightning (linear) attention."""
    flags = config.row("attn_type_list", layer_count)
    return None if flags is None else [FULL if flag else ("linear", None) for flag in flags]


def _by_interval(config: Config, layer_count: int) -> list[Kind] | None:
    """Qwen3-Next: every `full_attention_interval`-th layer is full, the others linear (the family's default is 4)."""
    if not config.has("linear_num_value_heads"):
        return None
    every = config.count("full_attention_interval", most=layer_count) or 4
    return [FULL if (index + 1) % every == 0 else ("linear", None) for index in range(layer_count)]


def _by_attention_index(config: Config, layer_count: int) -> list[Kind] | None:
    """Jamba gives a period and an offset; Bamba a list of the attention layers; the rest is Mamba."""
    if config.has("attn_layer_period"):
        period = config.need("attn_layer_period", most=layer_count)
        offset = config.count("attn_layer_offset", least=0, most=layer_count) or 0
        return [FULL if index % period == offset else ("mamba", None) for index in range(layer_count)]
    listed = config.row("attn_layer_indices")
    if listed is not None:
        full = {whole("attn_layer_indices", value, most=layer_count - 1, least=0) for value in listed}
        return [FULL if index in full else ("mamba", None) for index in range(layer_count)]
    if config.model_type == "falcon_h1":  # Attention and Mamba side by side in every layer.
        return [("hybrid", None)] * layer_count
    if config.model_type in ("mamba", "mamba2", "falcon_mamba"):
        return [("mamba", None)] * layer_count
    return None


def _by_chunks(config: Config, layer_count: int) -> list[Kind] | None:
    """Llama-4: chunked where a layer has rope; `no_rope_layers` says which, else every fourth is full."""
    if config.model_type not in ("llama4", "llama4_text") or not config.has("attention_chunk_size"):
        return None
    chunk: Kind = ("window", config.need("attention_chunk_size", most=MOST_WINDOW))
    flags = config.row("no_rope_layers")
    if flags:
        if len(flags) != layer_count:
            raise GeometryError("no_rope_layers", f"`no_rope_layers` has {len(flags)} entries for {layer_count} layers")
        return [chunk if has_rope else FULL for has_rope in flags]
    every = config.count("no_rope_layer_interval", most=layer_count) or 4
    return [FULL if (index + 1) % every == 0 else chunk for index in range(layer_count)]


def _by_window(config: Config, layer_count: int) -> list[Kind] | None:
    if not config.has("sliding_window") or config.flag("use_sliding_window") is False:
        return None
    window: Kind = ("window", config.need("sliding_window", most=MOST_WINDOW))
    pattern = config.values.get("sliding_window_pattern", config.values.get("_sliding_window_pattern"))
    if pattern is None:
        pattern = PATTERN_DEFAULTS.get(config.model_type)
    if isinstance(pattern, str):  # EXAONE-4 writes LLLG: local, local, local, global.
        if not pattern or set(pattern) - set("LG"):
            raise GeometryError("sliding_window_pattern", "`sliding_window_pattern` must be letters out of L and G")
        return [FULL if pattern[index % len(pattern)] == "G" else window for index in range(layer_count)]
    if pattern is not None:
        every = whole("sliding_window_pattern", pattern, most=layer_count)
        return [FULL if (index + 1) % every == 0 else window for index in range(layer_count)]
    if config.flag("use_sliding_window") and config.has("max_window_layers"):
        first = config.need("max_window_layers", least=0, most=1_000_000)
        return [window if index >= first else FULL for index in range(layer_count)]
    return [window] * layer_count
