"""
Every word of the vocabulary as pages show it: one colour, label, unit and definition. The glossary is made from this.

A colour is written in a figure as `@word`; the live component puts in the hue of the viewer's theme, so one figure
serves both. The hues are chosen apart in lightness as well as in hue (see tests/pages/test_palette.py): neighbours in
a bar stay apart for protan, deutan and tritan readers and stand at 3:1 or more on both backgrounds.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """
    One word.

    Attributes:
        word: As in code; `@word` is its colour in a figure.
        unit: As `number.amount` reads it: `tokens`, `count`, `s`, `share`, `tokens/s`.
        label: English and Chinese, as drawn.
        meaning: English and Chinese, one or two sentences.
        light: Hue on the light theme.
        dark: Hue on the dark theme.
    """

    word: str
    unit: str
    label: tuple[str, str]
    meaning: tuple[str, str]
    light: str = "#5B6472"
    dark: str = "#A5AFBD"

    @property
    def color(self) -> str:
        """Return what a figure writes for this word's colour."""
        return f"@{self.word}"


_TERMS = (
    Term(
        word="usable",
        unit="tokens",
        label=("usable", "可用总量"),
        meaning=(
            "What the pool can hold: total less what the engine withholds. The denominator of every share.",
            "池能容纳的总量（总量减去引擎自留的部分），所有占比的分母。",
        ),
    ),
    Term(
        word="active",
        unit="tokens",
        label=("active", "活跃"),
        meaning=(
            "Held by sequences being served, locked prefixes included; cannot be reclaimed.",
            "正在服务的序列所占用（含被锁定的前缀），不可回收。",
        ),
        light="#0B5FAE",
        dark="#4E9BEA",
    ),
    Term(
        word="in_flight",
        unit="tokens",
        label=("in flight", "传输中"),
        meaning=(
            "Allocated for KV still travelling between prefill and decode. Capacity and link are both taken.",
            "已分配、但 KV 仍在 prefill 与 decode 之间传输。容量与链路都被占用。",
        ),
        light="#D27A00",
        dark="#FFC15A",
    ),
    Term(
        word="prefix",
        unit="tokens",
        label=("prefix", "前缀缓存"),
        meaning=(
            "Prefix cache that eviction could free: reclaimable, and useful while it stays.",
            "可被驱逐释放的前缀缓存：可回收，留着则能省去重算。",
        ),
        light="#1B8A6B",
        dark="#3FBF98",
    ),
    Term(
        word="fragmentation",
        unit="tokens",
        label=("fragmentation", "碎片"),
        meaning=(
            "Allocated and not filled: the empty tail of last blocks, where the engine lets it be seen.",
            "已分配但未填满：末尾块的空位（仅在引擎可见时）。",
        ),
        light="#A34F8B",
        dark="#D98BC4",
    ),
    Term(
        word="free",
        unit="tokens",
        label=("free", "空闲"),
        meaning=("Holds nothing.", "没有任何内容。"),
        light="#E3E8EE",
        dark="#333C49",
    ),
    Term(
        word="free_or_prefix",
        unit="tokens",
        label=("free or prefix", "空闲或前缀"),
        meaning=(
            "Free and evictable prefix together, where the engine does not tell them apart.",
            "空闲与可驱逐前缀之和，引擎未区分二者。",
        ),
        light="#9CC9BA",
        dark="#3D6E60",
    ),
    Term(
        word="unattributed",
        unit="tokens",
        label=("unattributed", "未归类"),
        meaning=(
            "Used, but the engine does not say by which of the other words. Always hatched.",
            "已使用，但引擎未说明属于哪一类。总以斜纹绘出。",
        ),
        light="#6B7280",
        dark="#A3ACB9",
    ),
    Term(
        word="available",
        unit="tokens",
        label=("available", "可供新需求"),
        meaning=(
            "Free + prefix = usable − active − in flight: what a new demand can draw on, by evicting prefix.",
            "空闲 + 前缀 = 可用总量 − 活跃 − 传输中：新请求可动用的量，代价是驱逐前缀。",
        ),
        light="#1B8A6B",
        dark="#3FBF98",
    ),
    Term(
        word="reserved",
        unit="tokens",
        label=("reserved", "已预留"),
        meaning=(
            (
                "Promised and not yet allocated: outstanding leases, and what the engine keeps back for admitted "
                "sequences. A claim on available."
            ),
            "已承诺但尚未分配：未兑现的租约，以及引擎为已接纳序列保留的部分。它占用“可供新需求”。",
        ),
        light="#5A46C2",
        dark="#B3A6FF",
    ),
    Term(
        word="offloaded",
        unit="tokens",
        label=("offloaded", "已卸载"),
        meaning=(
            "On host or storage tiers, outside usable; drawn apart.",
            "位于主机或存储层，不计入可用总量，单独绘出。",
        ),
        light="#3B88A5",
        dark="#7FCBE4",
    ),
    Term(
        word="queued",
        unit="tokens",
        label=("queued", "排队需求"),
        meaning=(
            "Need of requests the engine reports waiting. Holds nothing and is not in committed; shown beside it.",
            "引擎报告的等待请求所需的量。不占容量，不计入已承诺，列在其旁。",
        ),
        light="#B93A0E",
        dark="#FF8A5C",
    ),
    Term(
        word="committed",
        unit="tokens",
        label=("committed", "已承诺"),
        meaning=(
            "Active + in flight + reserved: what the pool has given away. The mark on each bar.",
            "活跃 + 传输中 + 已预留：池已经许出去的量。每条柱上的竖线标记。",
        ),
        light="#1B2430",
        dark="#F2F5F9",
    ),
    Term(
        word="used",
        unit="tokens",
        label=("used", "已使用"),
        meaning=("Held and not evictable.", "被占用且不可驱逐。"),
        light="#0B5FAE",
        dark="#4E9BEA",
    ),
    Term(
        word="growth",
        unit="tokens/s",
        label=("growth", "增长"),
        meaning=(
            "Tokens per second added to active + in flight, gross.",
            "每秒新增到“活跃 + 传输中”的 token 数（毛值）。",
        ),
        light="#B93A0E",
        dark="#FF8A5C",
    ),
    Term(
        word="release",
        unit="tokens/s",
        label=("release", "释放"),
        meaning=(
            "Tokens per second returned by active + in flight, gross.",
            "每秒由“活跃 + 传输中”归还的 token 数（毛值）。",
        ),
        light="#1B8A6B",
        dark="#3FBF98",
    ),
    Term(
        word="net",
        unit="tokens/s",
        label=("net growth", "净增长"),
        meaning=("Growth − release.", "增长 − 释放。"),
        light="#0B5FAE",
        dark="#4E9BEA",
    ),
    Term(
        word="demand",
        unit="tokens",
        label=("demand", "需求"),
        meaning=(
            (
                "What admitting one request takes from available. A prefix hit saves compute, and capacity only "
                "where the block is already active."
            ),
            "接纳一个请求会从“可供新需求”取走的量。命中前缀总能省计算，只有块已活跃时才省容量。",
        ),
        light="#A34F8B",
        dark="#D98BC4",
    ),
    Term(
        word="safety_reserve",
        unit="tokens",
        label=("safety reserve", "安全余量"),
        meaning=(
            "Kept back against growth during telemetry and decision delay, a peer's failure, and prediction error.",
            "为遥测与决策延迟期间的增长、同伴故障和预测误差而留出的余量。",
        ),
        light="#3B88A5",
        dark="#7FCBE4",
    ),
    Term(
        word="headroom",
        unit="tokens",
        label=("headroom", "净空"),
        meaning=(
            "Available − reserved − safety reserve; may be negative.",
            "可供新需求 − 已预留 − 安全余量，可为负。",
        ),
        light="#1B8A6B",
        dark="#3FBF98",
    ),
    Term(
        word="projected_utilization",
        unit="share",
        label=("projected utilization", "预计占用"),
        meaning=(
            "(Committed + demand [+ net × horizon]) / usable; may exceed 100 %.",
            "（已承诺 + 需求 [+ 净增长 × 时长]）/ 可用总量，可超过 100 %。",
        ),
    ),
    Term(
        word="step_time",
        unit="s",
        label=("step time", "步时"),
        meaning=(
            "Mean seconds of one decode step in the window, from differences of the engine's own sums.",
            "窗口内一次 decode 步的平均秒数，由引擎自身累计值的差得出。",
        ),
        light="#5A46C2",
        dark="#B3A6FF",
    ),
    Term(
        word="prefill_duty",
        unit="share",
        label=("prefill duty", "prefill 占空比"),
        meaning=(
            "Share of wall time spent computing prompts in the window.",
            "窗口内用于计算提示词的时间占比。",
        ),
        light="#D27A00",
        dark="#FFC15A",
    ),
    Term(
        word="running",
        unit="requests",
        label=("running", "运行中"),
        meaning=("Requests in the running batch.", "正在运行批次中的请求数。"),
        light="#0B5FAE",
        dark="#4E9BEA",
    ),
    Term(
        word="waiting",
        unit="requests",
        label=("waiting", "等待中"),
        meaning=(
            (
                "Requests the engine reports waiting, in any of its queues. A request waiting on both sides of a "
                "prefill/decode pair is one request."
            ),
            "引擎报告的等待请求（任一队列）。同时在 prefill 与 decode 两侧等待的请求只算一个。",
        ),
        light="#B93A0E",
        dark="#FF8A5C",
    ),
    Term(
        word="lease",
        unit="tokens",
        label=("lease", "租约"),
        meaning=(
            "Our promise of demand on one pool, with the times it was granted and expires.",
            "我们对某个池的需求承诺，含授予与到期时间。",
        ),
        light="#5A46C2",
        dark="#B3A6FF",
    ),
    Term(
        word="decision",
        unit="count",
        label=("decision", "决策"),
        meaning=(
            "The chosen pair, every rejection with its reason, the whole score table, the ages of the inputs.",
            "选出的一对、每个拒绝及其理由、完整评分表、输入的数据龄。",
        ),
    ),
    Term(
        word="pool",
        unit="count",
        label=("pool", "池"),
        meaning=(
            "The KV memory of one data-parallel rank of one worker; the unit of everything here.",
            "一个工作节点的一个数据并行 rank 的 KV 显存；一切统计的单位。",
        ),
    ),
)

TERMS: Final = {term.word: term for term in _TERMS}
"""Every word, by its name in code."""

STACK: Final = ("active", "in_flight", "unattributed", "fragmentation", "prefix", "free_or_prefix", "free")
"""The parts of usable in the order they are drawn, from what cannot be moved to what is there for the taking."""

STATES: Final = {
    "fresh": ("●", "#1B8A6B", "#3FBF98"),
    "late": ("◐", "#B36B00", "#FFC15A"),
    "stale": ("◌", "#A34F8B", "#D98BC4"),
    "down": ("✕", "#B3261E", "#FF7A70"),
    "unauthorised": ("⊘", "#B3261E", "#FF7A70"),
    "not_understood": ("?", "#5A46C2", "#B3A6FF"),
    "nothing_yet": ("…", "#5B6472", "#A5AFBD"),
}
"""State of a source -> its sign and its hue on the light and on the dark theme; the sign carries it without colour."""

PROVENANCE: Final = {"measured": "■", "derived": "◆", "estimated": "▨", "unknown": "□"}
"""How a figure came to be -> its badge."""


def language_index(language: str) -> int:
    """Return the place of `language` (`en` or `zh`) in every pair of texts."""
    return 1 if language == "zh" else 0


def label(word: str, language: str) -> str:
    """Return the drawn label of `word`."""
    return TERMS[word].label[language_index(language)]


def meaning(word: str, language: str) -> str:
    """Return the definition of `word`."""
    return TERMS[word].meaning[language_index(language)]
