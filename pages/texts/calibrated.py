"""Texts about what calibration has in use, shared by What-if, Saturation and Calibration."""

TEXTS: dict[str, tuple[str, str]] = {
    "told_growth_quantile_ratio": ("the promise stated in the fleet file", "集群文件写明的承诺"),
    "told_telemetry_delay_s": ("measured: {count} ages of figures", "测得：{count} 个数据龄"),
    "told_error_buffer_ratio": (
        "measured: {count} departures of growth from its trend",
        "测得：增长偏离趋势的 {count} 个样本",
    ),
    "told_output_error_ratio": ("measured: {count} requests of a log", "测得：日志中的 {count} 个请求"),
    "told_ttft_error_ratio": ("measured: {count} settled predictions", "测得：{count} 个已了结的预测"),
    "told_tpot_error_ratio": ("measured: {count} settled predictions", "测得：{count} 个已了结的预测"),
    "few_telemetry_delay_s": (
        "fallback: {count} of {needed} ages: as in the fleet file",
        "退回默认：仅 {count} / {needed} 个数据龄，沿用集群文件",
    ),
    "few_error_buffer_ratio": (
        "fallback: {count} of {needed} departures of growth: as in the fleet file",
        "退回默认：增长偏离样本仅 {count} / {needed}，沿用集群文件的值",
    ),
    "few_output_error_ratio": (
        "fallback: no request log in use, as chosen",
        "退回默认：没有在用的请求日志，沿用选定的离散度",
    ),
    "few_ttft_error_ratio": (
        "fallback: {count} of {needed} predictions settled, as chosen",
        "退回默认：已了结的预测仅 {count} / {needed}，沿用选定的离散度",
    ),
    "few_tpot_error_ratio": (
        "fallback: {count} of {needed} predictions settled, as chosen",
        "退回默认：已了结的预测仅 {count} / {needed}，沿用选定的离散度",
    ),
    "file": ("from the fleet file", "来自集群文件"),
    "chosen": ("chosen, not in the fleet file", "选定值，不在集群文件中"),
    "part_fitted": (
        "fitted to {count} rows, version {version}, in use since {at}",
        "由 {count} 行拟合，版本 {version}，自 {at} 起启用",
    ),
    "part_rough": ("prompts of a window taken as equally long", "同一窗口内的提示按等长处理"),
    "part_believed": (
        "the load did not tell it: kept as believed before, version {version}, in use since {at}",
        "负载未能得出：沿用先前取值，版本 {version}，自 {at} 起启用",
    ),
    "departing": (
        "not for {worker}, whose newest rows take {error} of what is predicted: its own figures are used",
        "{worker} 除外：其最新数据为预测值的 {error}，改用其自身数据",
    ),
    "part_decode": ("decode step", "decode 步"),
    "part_prefill": ("prompt", "提示计算"),
    "part_transfer": ("hand-over", "传输"),
    "instead_decode": (
        "the pool's own step time",
        "池自身的步时间",
    ),
    "instead_prefill": (
        "the pool's own rate, linear in length",
        "池自身速率，按长度线性",
    ),
    "instead_transfer": (
        "counters' and line's bandwidth, no latency",
        "计数器与线路的带宽，不计延迟",
    ),
    "fallback": ("fallback: {instead}; {why}", "退回默认：{instead}；{why}"),
    "no_version": ("no version is in use yet", "尚无在用版本"),
    "no_version_missing": (
        "no version yet, {missing} rows short",
        "尚无版本，还差 {missing} 行",
    ),
    "no_version_past": ("no version was in use at that instant", "该时刻没有在用版本"),
    "not_told": ("version {version} does not tell it", "版本 {version} 未能得出"),
    "not_told_missing": (
        "version {version} does not tell it, {missing} rows short",
        "版本 {version} 未能得出，还差 {missing} 行",
    ),
    "switched_off": ("the fleet file was asked for", "已选择使用集群文件"),
    "output_at": ("output planned for, {quantile} quantile", "计划输出（{quantile} 分位）"),
    "output_given": ("given in the form", "表单给定"),
    "output_log": (
        "{count} requests of {source}, version {version}, in use since {at}",
        "{source} 的 {count} 个请求，版本 {version}，自 {at} 起启用",
    ),
    "output_log_wider": (
        (
            "{count} requests of {source} (its own cell has {own}: taken from a wider one), version {version}, in use "
            "since {at}"
        ),
        "{source} 的 {count} 个请求（该格仅 {own} 个，取自更宽的一格），版本 {version}，自 {at} 起启用",
    ),
    "output_default": (
        "fallback: no request log in use, as chosen",
        "退回默认：没有在用的请求日志，取选定值",
    ),
    "col_value": ("value", "数值项"),
    "col_now": ("used", "取值"),
    "col_of": ("of", "对象"),
    "col_rests": ("rests on", "依据"),
    "reserve_line": (
        "- **{part}**: {tokens}, {share} of usable. {rests}",
        "- **{part}**：{tokens}，占可用 {share}。{rests}",
    ),
    "whole_fleet": ("the fleet", "整个集群"),
    "this_request": ("this request", "此请求"),
    "growth_rests": (
        "{delay} of figures and {decision} of deciding, at the {quantile} quantile; delay {delay_rests}",
        "数据延迟 {delay} 与决策 {decision}，取 {quantile} 分位；延迟{delay_rests}",
    ),
    "failure_rests": (
        "{count} largest peers, of whose load {share} must find room at once: from the fleet file and chosen",
        "最大的 {count} 个同伴，其负载的 {share} 须立即容纳：来自集群文件与选定值",
    ),
    "error_rests": (
        "at least {buffer} of usable ({buffer_rests}), or {spread} of the outputs under way ({spread_rests})",
        "至少为可用的 {buffer}（{buffer_rests}），或进行中输出的 {spread}（{spread_rests}）",
    ),
    "reserve_in_use": (
        "For a promise kept {promise} of the time; in use since {at}.",
        "承诺在 {promise} 的时间内兑现；自 {at} 起启用。",
    ),
    "reserve_not_yet": (
        "For a promise kept {promise} of the time; nothing is measured yet.",
        "承诺在 {promise} 的时间内兑现；尚无测量。",
    ),
    "reserve_none_then": (
        "No calibrated reserve was in use at that instant: the fleet file's is shown.",
        "该时刻没有校准过的余量在用：显示集群文件的值。",
    ),
    "age_of_pool": ("the age of each pool", "各池数据龄"),
}
