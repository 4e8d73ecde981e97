"""Why a model's configuration does not tell the size of its KV (scoring: geometry*)."""

SAID: tuple[tuple[str, str], ...] = (
    (
        "dcp={dcp:n} does not divide tp={tp:n}: context is split over the GPUs of a TP group",
        "dcp={dcp} 不能整除 tp={tp}：上下文在一个 TP 组的 GPU 之间划分",
    ),
    (
        "this model keeps nothing per token, only state per sequence: it has no capacity in tokens",
        "该模型不按 token 保存内容，只有每序列的状态：没有以 token 计的容量",
    ),
    (
        "{name} must be a whole number of GPUs, 1 .. {most:n}, not {value}",
        "{name} 必须是 1 .. {most} 的整数块 GPU，而不是 {value}",
    ),
    ("a config.json is an object with keys, this is a {kind}", "config.json 应为带键的对象，而这是 {kind}"),
    ("the configuration lacks `{key}`« (or {others})»", "配置缺少 `{key}`«（或 {others}）»"),
    ("`{key}` must be true or false, not {value}", "`{key}` 必须是 true 或 false，而不是 {value}"),
    ("`{key}` must be a list, not {value}", "`{key}` 必须是列表，而不是 {value}"),
    ("`{key}` has {count:n} entries for {layers:n} layers", "`{key}` 有 {count} 项，而层数为 {layers}"),
    ("`{key}` must be an object, not {value}", "`{key}` 必须是对象，而不是 {value}"),
    ("`{key}` must be a whole number, not {value}", "`{key}` 必须是整数，而不是 {value}"),
    ("`{key}` = {value} is out of range {least:n} .. {most:n}", "`{key}` = {value} 超出范围 {least} .. {most}"),
    (
        "`linear_attn_config` puts layer {layer:n} in neither list",
        "`linear_attn_config` 没有把第 {layer} 层放入任一列表",
    ),
    ("`linear_attn_config` puts layer {layer:n} in both lists", "`linear_attn_config` 把第 {layer} 层放入了两个列表"),
    ("`{key}` names a kind of layer that is not known: {word}", "`{key}` 给出了未知的层类型：{word}"),
    (
        "`hybrid_override_pattern` must be {count:n} letters out of M * - E",
        "`hybrid_override_pattern` 必须是由 M * - E 组成的 {count} 个字母",
    ),
    ("`sliding_window_pattern` must be letters out of L and G", "`sliding_window_pattern` 必须由字母 L 与 G 组成"),
    ("none of the `num_hidden_layers` layers keeps anything", "`num_hidden_layers` 层中没有一层保存内容"),
    (
        "{heads:n} heads (`{key}`) cannot be split over tp={tp:n} GPUs: one must divide the other",
        "{heads} 个头（`{key}`）无法在 tp={tp} 块 GPU 间划分：二者须能整除",
    ),
    ("`num_key_value_heads` has no entry for layer {layer:n}", "`num_key_value_heads` 没有第 {layer} 层的项"),
    (
        "the configuration lacks `head_dim`, and hidden_size {hidden:n} is not divisible by {heads:n} heads",
        "配置缺少 `head_dim`，而 hidden_size {hidden} 不能被 {heads} 个头整除",
    ),
    (
        "num_key_value_heads {kv:n} does not divide num_attention_heads {heads:n}",
        "num_key_value_heads {kv} 不能整除 num_attention_heads {heads}",
    ),
    ("unknown KV dtype {name}; known: {known}", "未知的 KV 数据类型 {name}；已知：{known}"),
    ("no model {name} in the table; it has {known}", "表中没有模型 {name}；有 {known}"),
)
