"""Texts of the glossary; the words themselves are in `pages.figures.terms`."""

TEXTS: dict[str, tuple[str, str]] = {
    "title": ("Glossary", "词汇表"),
    "intro": (
        "One word, one meaning, one colour on every page. The unit of everything is the token: one position of KV.",
        "每个词在所有页面上只有一个含义、一种颜色。一切以 token 为单位：KV 的一个位置。",
    ),
    "find": ("Find", "查找"),
    "find_hint": ("word, label or meaning", "词、标签或含义"),
    "none": ("No word matches “{text}”.", "没有词匹配“{text}”。"),
    "unit": ("in {unit}", "单位：{unit}"),
    "bar": ("How a bar is read", "如何看一条柱"),
    "bar_text": (
        (
            "From what cannot be moved to what is there for the taking: {parts}. They add up to usable wherever all "
            "are known; the mark is committed."
        ),
        "从不可移动到可随时取用：{parts}。只要全部已知，它们之和就是可用总量；竖线标记为已承诺。",
    ),
    "words": ("Words", "词"),
    "provenance": ("How a figure came to be", "数字从何而来"),
    "measured": ("Read off the source as it is.", "直接从来源读出。"),
    "derived": ("Follows exactly from measured figures by an identity.", "由测得的数字按恒等式精确推出。"),
    "estimated": ("Comes from a model; hatched in bars.", "来自模型；柱中以斜纹绘出。"),
    "unknown": (
        "The source does not say. Drawn hollow and worded, never as zero.",
        "来源没有说明。以空心绘出并注明，绝不画成零。",
    ),
    "states": ("How far a source can be trusted", "来源可信到什么程度"),
    "state_fresh": ("Young enough to be scored.", "足够新，可参与评分。"),
    "state_late": ("Older than usual, still scored.", "比平常旧，仍参与评分。"),
    "state_stale": ("Too old: not scored, drawn faint.", "太旧：不参与评分，淡化绘出。"),
    "state_down": ("Several polls in a row failed.", "连续多次轮询失败。"),
    "state_unauthorised": ("It refuses our token.", "它拒绝我们的令牌。"),
    "state_not_understood": ("It answers, and no dialect understands it.", "它有应答，但没有方言能理解。"),
    "state_nothing_yet": (
        "It answers, and its scheduler has published nothing so far: unknown, not empty.",
        "它有应答，但调度器尚未发布任何数据：未知，而非空。",
    ),
}
