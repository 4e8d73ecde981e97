"""Texts of the Saturation page."""

TEXTS: dict[str, tuple[str, str]] = {
    "title": ("Saturation", "饱和"),
    "lead": (
        (
            "Near full, every reaction makes new work. High use alone is no sign; committed for long, growing "
            "fast, with little to reclaim, is."
        ),
        "接近满载时，每个反应都会制造新的工作。高占用本身不是征兆；长时间高承诺、快速增长、几乎无可回收，才是。",
    ),
    "no_pools": ("No pool has answered yet, so no chain can be drawn.", "还没有池应答，无法绘制链条。"),
    "pool": ("Pool (· is the gravest)", "池（· 为最严重者）"),
    "gone": ("Pool {pool} is not in this fleet at this instant.", "此时刻集群中没有池 {pool}。"),
    "range": ("Strip", "时间范围"),
    "range_5m": ("5 min", "5 分钟"),
    "range_15m": ("15 min", "15 分钟"),
    "range_1h": ("1 h", "1 小时"),
    "range_6h": ("6 h", "6 小时"),
    "range_24h": ("24 h", "24 小时"),
    "without": ("What if this node dies", "若此节点宕机"),
    "stage_cannot_see": ("cannot see", "看不见"),
    "stage_healthy": ("well", "正常"),
    "stage_thin_headroom": ("thin headroom", "净空变薄"),
    "stage_admission_stalls": ("admission stalls", "接纳停滞"),
    "stage_retraction": ("eviction and retraction", "驱逐与撤回"),
    "stage_recompute": ("recompute and swap", "重算与换入"),
    "stage_slow_release": ("slower release", "释放变慢"),
    "stage_tail_latency": ("tail latency", "尾延迟"),
    "key_lit": ("On the chain", "处于链条上"),
    "key_lit_help": ("Pools with at least one of the six stages lit.", "六个阶段中至少亮起一个的池。"),
    "key_alarm": ("Alarm", "警报"),
    "key_alarm_help": (
        "Pools whose forecast of a first retraction is above its threshold and has held.",
        "首次撤回的预测概率超过阈值并持续的池。",
    ),
    "key_risk": ("Highest risk", "最高风险"),
    "key_risk_help": (
        "P(first retraction soon), fitted on simulated runs; docs/backtest.md says how well it does. Estimated.",
        "近期首次撤回的概率，由模拟运行拟合；docs/backtest.md 说明其效果。为估计值。",
    ),
    "risk_detail": ("of a retraction within 25 s", "25 秒内发生撤回"),
    "key_soonest": ("Soonest full", "最早耗尽"),
    "key_soonest_help": (
        "Expected time until nothing is available, if the drift of the last seconds stays. Estimated.",
        "若最近的漂移保持，预计到无可用量的时间。为估计值。",
    ),
    "key_danger": ("Danger triple", "危险三联"),
    "key_danger_help": (
        "High water for long, fast net growth and little reclaimable, all three at once.",
        "长时间高水位、快速净增长、可回收极少，三者同时出现。",
    ),
    "key_blind": ("Cannot see", "看不见"),
    "key_blind_help": (
        "Pools without data that can be judged. Missing data raises no other alarm.",
        "没有可判断数据的池。缺失数据不会引发其他警报。",
    ),
    "n_of": ("{count} of {all}", "{count} / {all}"),
    "nobody": ("nobody", "无"),
    "no_alerts": ("No alert fires.", "没有警报。"),
    "no_receiver": (
        "Nobody is told: the fleet file names neither a webhook nor an Alertmanager.",
        "无人接收：集群文件未指定 webhook 或 Alertmanager。",
    ),
    "telling": (
        "Told: {names}. {delivered} delivered, {pending} on their way.",
        "接收方：{names}。已送达 {delivered}，在途 {pending}。",
    ),
    "rule_problem": (
        "A rule of the fleet file was refused and the default ones watch: {problem}",
        "集群文件中的一条规则被拒绝，改用默认规则：{problem}",
    ),
    "more_alerts": ("and {count} more", "等，另有 {count} 个"),
    "alert_line": ("**{rule}** on **{pool}** since {at}: {text}", "**{pool}** 上的 **{rule}**，自 {at}：{text}"),
    "quiet": ("silenced", "已静默"),
    "silence_hour": ("Silence 1 h", "静默 1 小时"),
    "see_begin": ("Its begin", "查看起点"),
    "by_viewer": ("viewer", "浏览者"),
    "silenced": ("{rule} on {pool} is silenced.", "{pool} 上的 {rule} 已静默。"),
    "strip": ("Stages over time", "阶段随时间的变化"),
    "strip_title": ("{count} pools were on the chain; gravest: {worst}", "{count} 个池曾处于链条上；最严重：{worst}"),
    "no_data": ("nothing collected", "未采集"),
    "chain_of": ("The chain of {pool}", "{pool} 的链条"),
    "loop_alt": ("The six stages of {pool}; lit: {lit}", "{pool} 的六个阶段；亮起：{lit}"),
    "not_shown": ("not reported", "未报告"),
    "not_looked": ("not looked at", "未观察"),
    "of_limit": ("{value} (limit {limit})", "{value}（阈值 {limit}）"),
    "since": ("since {at}", "自 {at}"),
    "yes": ("yes", "是"),
    "no": ("no", "否"),
    "never": ("not at this drift", "按此漂移不会"),
    "verdict": (
        (
            "Retraction within 25 s: **{retraction}** · exhausted within 30 s: **{exhausted}** · reserve touched "
            "within 30 s: **{thin}** · expected full in **{expected}**  \n"
            "High water for long: **{long}** ({high}) · fast net growth: **{fast}** · little reclaimable: **{little}**"
        ),
        (
            "25 秒内撤回：**{retraction}** · 30 秒内耗尽：**{exhausted}** · 30 秒内触及余量：**{thin}** · "
            "预计 **{expected}** 后满  \n"
            "长时间高水位：**{long}**（{high}） · 快速净增长：**{fast}** · 可回收极少：**{little}**"
        ),
    ),
    "rank_title": ("{pool} is full first, in {time}", "{pool} 最先满，约 {time} 后"),
    "rank_axis": ("time to exhaustion, with its 80 % interval", "耗尽时间及其 80 % 区间"),
    "rank_hover": (
        (
            "expected {expected} (80 %: {low} to {high})<br>exhausted within 30 s: {probability}<br>"
            "retraction within 25 s: {retraction}"
        ),
        "预计 {expected}（80 %：{low} 至 {high}）<br>30 秒内耗尽：{probability}<br>25 秒内撤回：{retraction}",
    ),
    "nobody_fills": ("No pool fills at its present drift.", "按当前漂移没有池会填满。"),
    "phase_of": ("Where {pool} has been in five minutes", "{pool} 五分钟内的轨迹"),
    "phase_alt": (
        "Committed share of {pool} against its queue and its step time",
        "{pool} 的已承诺占比与其队列、步时的关系",
    ),
    "phase_x": ("committed", "已承诺"),
    "phase_queue": ("requests waiting for room", "等待容量的请求"),
    "phase_step": ("step time, ms", "步时（毫秒）"),
    "phase_hover": (
        "committed %{x:.0f} % · %{y:.3g}<br>%{text} ago",
        "已承诺 %{x:.0f} % · %{y:.3g}<br>%{text} 前",
    ),
    "reserve": ("The safety reserve, taken apart", "安全余量的构成"),
    "reserve_help": (
        "Kept back on each pool, beside what is left of it (the mark). Left of the bar's end is thin headroom.",
        "每个池留出的量，与其剩余量（竖线）并列。竖线在柱端以左即净空变薄。",
    ),
    "reserve_title": (
        "{count} of {all} pools have less left than their reserve",
        "{all} 个池中有 {count} 个剩余少于余量",
    ),
    "reserve_axis": ("share of usable", "占可用总量"),
    "reserve_unknown": ("No pool's capacity is known, so neither is a reserve.", "没有池的容量已知，因此余量也未知。"),
    "part_delay_growth": ("growth during the delays", "延迟期间的增长"),
    "part_failure_share": ("a peer's failure", "同伴故障"),
    "part_prediction_error": ("prediction error", "预测误差"),
    "left": ("available less reserved", "可供新需求 − 已预留"),
    "limits": ("What {pool} is held against", "{pool} 的判定界限"),
    "limits_help": (
        "Alerts are judged by the same numbers. No limit is a share of use.",
        "警报使用相同的数值。没有任何界限是占用比例。",
    ),
    "col_judged": ("Judged", "判定项"),
    "col_now": ("Now", "当前"),
    "col_limit": ("Limit", "界限"),
    "col_rests": ("Rests on", "依据"),
    "on_off": ("on at {on}, off below {off}", "达 {on} 触发，低于 {off} 解除"),
    "alarm_by_forecast": ("alarm: P(retraction within 25 s)", "警报：25 秒内撤回的概率"),
    "alarm_by_walk": ("alarm: P(exhausted within 30 s)", "警报：30 秒内耗尽的概率"),
    "threshold_calibrated": (
        "calibrated: {promise} of first retractions told of {lead} before, by {count} of this fleet",
        "已校准：提前 {lead} 预告 {promise} 的首次撤回，依据本集群的 {count} 次",
    ),
    "threshold_history": (
        "the pool's own history, until {needed} retractions are seen ({count} so far): raised to where nothing came",
        "池自身历史，直到见到 {needed} 次撤回（目前 {count} 次）：提高到其后并无撤回的水平",
    ),
    "threshold_simulated": (
        (
            "simulated runs: {promise} of first retractions told of {lead} before, until {needed} are seen here "
            "({count} so far)"
        ),
        "模拟运行：提前 {lead} 预告 {promise} 的首次撤回，直到此处见到 {needed} 次（目前 {count} 次）",
    ),
    "threshold_chosen": (
        "chosen for want of counters, until {needed} retractions ({count} so far) or the pool's own history say more",
        "缺少计数器而选定，直到有 {needed} 次撤回（目前 {count} 次）或池自身历史",
    ),
    "threshold_kept": ("it would have told of {share} of those seen", "已见的撤回中可预告 {share}"),
    "threshold_quiet": (
        "{count} quiet minutes of its own stood below {level}, {false} an hour at the threshold",
        "自身 {count} 个平静分钟低于 {level}，每小时 {false} 次达到阈值",
    ),
    "rests_reserve_calibrated": (
        "the safety reserve, calibrated for a promise kept {promise} of the time",
        "安全余量，按承诺在 {promise} 的时间内兑现校准",
    ),
    "rests_reserve_file": (
        "the safety reserve of the fleet file, at the {promise} quantile: nothing is calibrated yet",
        "集群文件的安全余量，取 {promise} 分位：尚无校准",
    ),
    "rests_reserve": ("the safety reserve", "安全余量"),
    "rests_calibrated": ("calibrated step times, and their error at the promise", "校准的步时间及其在承诺下的误差"),
    "rests_slo": ("the stated SLO: the interactive TTFT budget", "写明的 SLO：交互等级的 TTFT 预算"),
    "rests_history": ("what is usual for this pool", "该池的通常水平"),
    "rests_count": ("one is too many", "出现一次即算"),
    "prefill": ("Held back on the prefill side", "prefill 侧的积压"),
    "prefill_title_decode": ("Prefill waits for decode to make room", "prefill 在等待 decode 腾出容量"),
    "prefill_title_link": ("Computed prompts wait for the link", "已计算的提示词在等待链路"),
    "prefill_title_compute": ("Prompts wait to be computed", "提示词在等待计算"),
    "prefill_title_nothing": ("Nothing waits on the prefill side", "prefill 侧没有等待"),
    "prefill_axis": ("requests", "请求"),
    "prefill_detail": (
        "Decode holds back {ready} ready requests for want of room; transfers waiting now are through in {drain}.",
        "decode 因容量不足挡住 {ready} 个就绪请求；当前等待的传输将在 {drain} 后完成。",
    ),
    "wait_decode": ("for decode (not computed)", "等待 decode（未计算）"),
    "wait_link": ("for the link (computed)", "等待链路（已计算）"),
    "wait_compute": ("for compute", "等待计算"),
    "death": ("If {worker} dies", "若 {worker} 宕机"),
    "death_title": (
        "{count} of {all} survivors would be short after {worker}",
        "{worker} 之后，{all} 个存活池中有 {count} 个不足",
    ),
    "death_axis": ("headroom, share of usable", "净空（占可用总量）"),
    "death_before": ("now", "现在"),
    "death_after": ("after", "之后"),
    "death_nobody": ("It has no peer of its role that could inherit.", "没有同角色的池可以接手。"),
    "death_help": (
        "What it had committed goes to the survivors of its role by capacity and uses up their reserve for that.",
        "它已承诺的全部按容量分给同角色的存活池，动用其为同伴故障留出的余量。",
    ),
    "silences": ("Silences ({count})", "静默（{count}）"),
    "silence_line": (
        "**{rule}** on **{pool}** until {until} · {by} {comment}",
        "**{pool}** 上的 **{rule}** 至 {until} · {by} {comment}",
    ),
    "silence_end": ("End", "结束"),
    "form_rule": ("Rule", "规则"),
    "form_pool": ("Pools (pattern)", "池（模式）"),
    "form_length": ("For", "时长"),
    "form_comment": ("Why", "原因"),
    "form_go": ("Silence", "静默"),
    "length_15m": ("15 min", "15 分钟"),
    "length_1h": ("1 h", "1 小时"),
    "length_8h": ("8 h", "8 小时"),
    "length_3d": ("3 days", "3 天"),
    "recent": ("Alerts that ended in the last hour ({count})", "过去一小时结束的警报（{count}）"),
    "col_rule": ("Rule", "规则"),
    "col_pool": ("Pool", "池"),
    "col_began": ("Began", "开始"),
    "col_lasted": ("Lasted", "持续"),
    "col_text": ("What ended it", "结束原因"),
}
