"""Texts of the Fleet page."""

TEXTS: dict[str, tuple[str, str]] = {
    "title": ("Fleet", "集群"),
    "unit": ("Show in", "单位"),
    "role": ("Roles", "角色"),
    "order": ("Order", "排序"),
    "order_name": ("name", "名称"),
    "order_committed": ("fullest", "最满"),
    "order_waiting": ("most waiting", "等待最多"),
    "labels": ("Labels", "标签"),
    "labels_any": ("any", "任意"),
    "find": ("Find a pool", "查找池"),
    "find_hint": ("part of a name", "名称的一部分"),
    "pools": ("Pools fresh", "新鲜的池"),
    "pools_value": ("{fresh} of {count}", "{fresh} / {count}"),
    "pools_all_fresh": ("all answering", "全部应答"),
    "pools_none": ("no pool yet", "还没有池"),
    "pools_help": (
        "Pools whose figures are fresh enough to be scored. Workers that never answered are counted as down.",
        "数据足够新、可参与评分的池。从未应答的工作节点计为离线。",
    ),
    "committed": ("Committed", "已承诺"),
    "committed_max": ("{role} median; max {share} {pool}", "{role} 中位；最高 {share} {pool}"),
    "committed_help": (
        "Active + in flight + reserved, as a share of each pool's own usable, over {role} pools that are scored.",
        "活跃 + 传输中 + 已预留，占各池自身可用总量的比例；统计 {role} 中可评分的池。",
    ),
    "nodes": ("Node spread", "节点间差异"),
    "nodes_detail": ("{high} {high_share} · {low} {low_share}", "{high} {high_share} · {low} {low_share}"),
    "nodes_help": (
        (
            "Largest difference of committed share between {role} nodes of the same size; nodes of another size are "
            "not compared with them."
        ),
        "相同容量的 {role} 节点之间，已承诺占比的最大差值；容量不同的节点不互相比较。",
    ),
    "ranks": ("Rank spread", "Rank 间差异"),
    "ranks_detail": ("{worker}: {low_share} to {high_share}", "{worker}：{low_share} 至 {high_share}"),
    "ranks_help": (
        "Largest difference of committed share between DP ranks of one node.",
        "同一节点的 DP rank 之间，已承诺占比的最大差值。",
    ),
    "not_comparable": ("nothing to compare", "无可比较"),
    "free": ("Free blocks", "空闲块"),
    "free_help": (
        (
            "Blocks that hold nothing, summed over scored pools where the engine tells free from prefix. Evictable "
            "prefix comes on top."
        ),
        "没有内容的块，对能区分空闲与前缀的可评分池求和；可驱逐的前缀另计。",
    ),
    "free_prefix": ("+ {blocks} evictable", "+ {blocks} 可驱逐"),
    "free_no_prefix": ("no evictable prefix", "无可驱逐前缀"),
    "waiting_requests": ("requests, each once", "请求，各计一次"),
    "free_unknown": ("{count} pools do not tell", "{count} 个池未说明"),
    "waiting": ("Waiting", "等待请求"),
    "waiting_tokens": ("need {tokens}", "需要 {tokens}"),
    "waiting_help": (
        (
            "Each waiting request once: one that waits on a prefill and on a decode worker at the same time is one "
            "request."
        ),
        "每个等待请求只计一次：同时在 prefill 与 decode 上等待的是同一个请求。",
    ),
    "waiting_unknown": ("{count} pools do not tell", "{count} 个池未说明"),
    "section": ("{role} · {count} pools", "{role} · {count} 个池"),
    "section_one": ("{role} · 1 pool", "{role} · 1 个池"),
    "tick": ("as of {at} · oldest scored figure {age} old", "截至 {at} · 参与评分的最旧数据 {age}"),
    "section_numbers": (
        "committed median {median}, max {max} ({pool}) · {free} free · {waiting} waiting",
        "已承诺中位 {median}，最高 {max}（{pool}）· 空闲 {free} · 等待 {waiting}",
    ),
    "prefill_empty": (
        "Prefill pools hold a prompt only until it is handed over: little active here is normal.",
        "Prefill 池只在移交前保存提示词：这里活跃很少是正常的。",
    ),
    "bars_alt": (
        "{title}: composition of {count} pools as stacked bars.",
        "{title}：{count} 个池构成的堆叠条形图。",
    ),
    "row_numbers": ("{committed} · {running} run · {waiting} wait", "{committed} · 运行 {running} · 等待 {waiting}"),
    "row_head": ("committed · running · waiting", "已承诺 · 运行 · 等待"),
    "note_hatched": (
        "Hatched: estimated, or the part that is certain where only bounds are known.",
        "斜纹：估计值，或仅知范围时可以确定的部分。",
    ),
    "note_crossed": (
        "Cross-hatched: held, and the engine does not say by what.",
        "交叉纹：被占用，但引擎未说明由谁占用。",
    ),
    "note_hollow": ("Hollow: unknown.", "空心：未知。"),
    "note_faint": ("Faint: old, the last that was seen.", "变淡：陈旧，最后一次观测到的内容。"),
    "not_scored": ("{sign} **{state}** for {age}: {pools}. {reason}", "{sign} **{state}** 已 {age}：{pools}。{reason}"),
    "between": ("between {low} and {high}", "介于 {low} 与 {high} 之间"),
    "rest_unknown": (
        "the source does not say what this part holds",
        "来源未说明这部分保存了什么",
    ),
    "no_conversion": ("known in tokens, not in this unit", "以 token 计已知，无法换算为此单位"),
    "conversion_missing": (
        "{count} of {total} pools cannot be shown in {unit}: {pools}. Their bars are hollow; tokens are known.",
        "{total} 个池中有 {count} 个无法以“{unit}”显示：{pools}。以空心柱绘出，token 数已知。",
    ),
    "share_note": (
        "Shares are of each pool's own usable; pools of different size are not comparable by share.",
        "占比以各池自身可用总量为分母；大小不同的池不能按占比比较。",
    ),
    "left_out": (
        "Showing {shown} of {count} pools. Filter by role, label or name to see the others; the table has all.",
        "显示 {count} 个池中的 {shown} 个。请按角色、标签或名称筛选查看其余；表格包含全部。",
    ),
    "no_match": ("No pool matches these filters.", "没有池符合这些筛选条件。"),
    "all_old": (
        "Every figure here is old: no pool has answered for {age}. Nothing below is current.",
        "这里所有数据都已陈旧：{age} 内没有任何池应答。以下内容均非当前。",
    ),
    "none_answered": (
        "No worker has answered yet; nothing is known of the fleet.",
        "还没有工作节点应答；对集群一无所知。",
    ),
    "tick_none": ("as of {at} · no figure is fresh enough to be scored", "截至 {at} · 没有足够新、可评分的数据"),
    "not_scored_ever": (
        "{sign} **{state}**, no figure yet: {pools}. {reason}",
        "{sign} **{state}**，尚无数据：{pools}。{reason}",
    ),
    "silent": ("Not answering: {workers}", "未应答：{workers}"),
    "findings": ("Findings", "发现"),
    "findings_none": ("Nothing to report.", "没有需要报告的事项。"),
    "findings_more": ("and {count} more", "另有 {count} 项"),
    "findings_count": ("{count} findings", "{count} 项发现"),
    "table": ("All pools", "全部池"),
    "table_hint": ("Select a row to open the pool.", "选中一行可打开该池。"),
    "click_hint": ("Click a bar to open the pool.", "点击柱子可打开该池。"),
    "col_pool": ("Pool", "池"),
    "col_role": ("Role", "角色"),
    "col_state": ("State", "状态"),
    "col_age": ("Age, s", "数据龄（秒）"),
    "col_committed": ("Committed", "已承诺"),
    "col_trend": ("Committed, last {minutes} min", "已承诺，最近 {minutes} 分钟"),
    "col_trend_help": (
        "Since the last gap in the data; a line never bridges what was not seen.",
        "自最近一次数据缺口以来；曲线不会跨越未观测的时段。",
    ),
    "col_available": ("Available, tokens", "可供（tokens）"),
    "col_free_blocks": ("Free, blocks", "空闲（块）"),
    "col_running": ("Running", "运行中"),
    "col_waiting": ("Waiting", "等待中"),
    "col_queued": ("Queued, tokens", "排队（tokens）"),
    "col_net": ("Net growth, tokens/s", "净增长（tokens/s）"),
    "col_step": ("Step, ms", "步时（毫秒）"),
    "col_duty": ("Prefill duty", "Prefill 占空比"),
    "col_hit": ("Prefix hits", "前缀命中"),
    "col_usable": ("Usable, tokens", "可用总量（tokens）"),
    "col_memory": ("Usable, GiB", "可用总量（GiB）"),
    "col_offloaded": ("Offloaded, tokens", "已卸载（tokens）"),
    "col_model": ("Model", "模型"),
    "col_engine": ("Engine", "引擎"),
    "col_labels": ("Labels", "标签"),
}
