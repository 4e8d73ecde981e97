"""What calibration could not tell and what would tell it, why a version was kept, what a reserve follows from."""

SAID: tuple[tuple[str, str], ...] = (
    # calibration
    (
        "{known:n} windows so far, {missing:n} more are needed before anything is fitted",
        "目前有 {known} 个窗口，还需 {missing} 个才能拟合",
    ),
    ("{name:t} is at its bound 0: the rows put it at or below", "{name}在下界 0：数据给出的值不高于 0"),
    (
        "{name:t}: the load did not vary enough to tell it: {kept:t}«; {hint:t}»",
        "{name}：负载变化不足，无法得出：{kept}«；{hint}»",
    ),
    (
        "{name:t}: its interval is ±{width:n}% of itself: {kept:t}«; {hint:t}»",
        "{name}：其区间为自身的 ±{width} %：{kept}«；{hint}»",
    ),
    ("the prior's share is kept", "保留先验所占部分"),
    ("it stays unknown", "保持未知"),
    ("decode_base_s", "decode 步的基础项"),
    ("decode_per_sequence_s", "decode 步的每序列项"),
    ("decode_per_token_s", "decode 步的每 KV token 项"),
    ("prefill_base_s", "提示的基础项"),
    ("prefill_per_token_s", "提示的每 token 项"),
    ("prefill_per_token2_s", "提示的上下文项"),
    ("transfer_latency_s", "传输的延迟"),
    ("transfer_s_per_byte", "传输的带宽"),
    # calibration_service
    ("quiet minutes with few sequences would tell it", "序列很少的安静几分钟即可得出"),
    (
        "it takes batches of different size at like context, for example short and long requests at different hours",
        "需要在相近上下文下有不同大小的批次，例如在不同时段有短请求与长请求",
    ),
    (
        "it takes contexts of different length at like batch, for example long prompts among short ones",
        "需要在相近批次下有不同长度的上下文，例如短提示词中混有长提示词",
    ),
    ("it takes short prompts computed alone", "需要单独计算的短提示词"),
    ("it takes prompts of different length", "需要不同长度的提示词"),
    ("it takes prompts of many thousand tokens", "需要数千 token 的提示词"),
    ("it takes small hand-overs", "需要小的传输"),
    ("it takes hand-overs of different size", "需要不同大小的传输"),
    (
        (
            "only {count:n} prompts were computed alone: those of a window are taken as equally long, so that base "
            "and context term are rough"
        ),
        "只有 {count} 个提示词是单独计算的：同一窗口内的按等长处理，因此基础项与上下文项较粗略",
    ),
    (
        (
            "sequences that share a prefix read it once each and hold it once: the part per sequence takes that up, "
            "so it holds for traffic like this one"
        ),
        "共享前缀的序列各读一次、只占用一次：每序列项吸收了这一点，因此它适用于与此类似的流量",
    ),
    (
        "few hand-overs were alone on the link: the bandwidth is what one gets beside others",
        "很少有传输独占链路：得出的带宽是与其他传输并行时的带宽",
    ),
    ("{part:c} from {count:n} windows", "{part} 来自 {count} 个窗口"),
    ("{part:c} from {name}", "{part} 来自 {name}"),
    ("fitted to this fleet's telemetry: {parts:t}", "由此集群的遥测拟合：{parts}"),
    (
        "{pool} takes {share:n}% longer than its kind: label its hardware apart",
        "{pool} 比同种类的慢 {share} %：请将其硬件另行标注",
    ),
    (
        "{pool} takes {share:n}% less than its kind: label its hardware apart",
        "{pool} 比同种类的快 {share} %：请将其硬件另行标注",
    ),
    # calibration_reserve
    ("growth is covered at the {share:n}% quantile that the SLO states", "按 SLO 规定的 {share} % 分位覆盖增长"),
    (
        "figures were up to {span:n} s old at that quantile ({count:n} ages)",
        "在该分位上数据龄至多 {span} 秒（{count} 个数据龄）",
    ),
    ("no ages measured: the delay of figures stays as chosen", "未测得数据龄：数据延迟保持现用值"),
    (
        "growth departed from its trend by up to {share:n}% of usable at that quantile",
        "在该分位上增长偏离趋势至多为可用总量的 {share} %",
    ),
    (
        "{count:n} departures of growth measured, {needed:n} needed: the buffer stays as chosen",
        "测得 {count} 次增长偏离，需要 {needed} 次：缓冲保持现用值",
    ),
    (
        "output lengths spread {share:n}% about their median (finished requests)",
        "输出长度围绕中位数离散 {share} %（已完成的请求）",
    ),
    ("no request log: the spread of output length stays as chosen", "没有请求日志：输出长度的离散保持现用值"),
    ("{name:t} was off by {share:n}% (held out)", "{name} 偏差 {share} %（留出部分）"),
    ("{name:t}: nothing held out yet", "{name}：尚无留出部分"),
    ("step time", "步时"),
    # versions
    ("first fit", "首次拟合"),
    ("more or better rows", "数据更多或更好"),
    ("predictions drifted", "预测漂移"),
    ("by-hand", "手动保存"),
    ("version {number:n} kept: {reason:t}", "已保存版本 {number}：{reason}"),
    ("version {number:n} applied", "已启用版本 {number}"),
    ("rolled back from version {was:n} to {now:n}", "从版本 {was} 回退到 {now}"),
    ("calibration: {name} has no earlier version that was in use", "校准：{name} 没有更早的在用版本"),
    ("{name}: nothing is fitted yet", "{name}：尚未拟合"),
    ("no kind {name}; there are none yet", "没有种类 {name}；目前还没有任何种类"),
    ("no kind {name}; there are {known}", "没有种类 {name}；现有 {known}"),
    ("version {number:n} kept and applied: {source}", "版本 {number} 已保存并启用：{source}"),
    ("{source}: too few finished requests for any quantile", "{source}：完成的请求太少，无法得出任何分位"),
    ("reserve for a promise kept {share:n}% of the time", "承诺在 {share} % 的时间内兑现时的安全余量"),
    # quantile_table
    ("{count:n} requests«, taken from {source:t}»", "{count} 个请求«，取自{source}»"),
    ("class {name}, all prompts", "等级 {name}，全部提示词"),
    ("all classes, this bucket", "全部等级，此分桶"),
    ("all classes, all prompts", "全部等级，全部提示词"),
)
