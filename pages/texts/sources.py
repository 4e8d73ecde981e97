"""Texts of the Sources page."""

TEXTS: dict[str, tuple[str, str]] = {
    "title": ("Sources", "数据来源"),
    "lead": (
        "Who is asked, what came back, what was made of it. A figure is only as good as its source.",
        "询问了谁、得到了什么、如何理解。数值的可信度取决于其来源。",
    ),
    "answering": ("Sources fresh", "新鲜的来源"),
    "answering_value": ("{fresh} of {count}", "{fresh} / {count}"),
    "answering_help": (
        "Sources whose newest poll was understood in full. The others are listed with their reason.",
        "最近一次轮询被完整理解的来源；其余列出原因。",
    ),
    "all_well": ("all understood", "全部理解"),
    "cycle": ("Cycle", "采集周期"),
    "cycle_detail": ("median; max {most}, every {interval}", "中位；最长 {most}，每 {interval}"),
    "cycle_help": (
        "From the first question of a cycle to its last answer. Longer than the interval is an overrun.",
        "一个周期中从首个询问到最后一个应答。超过间隔即为超时。",
    ),
    "lost": ("Ticks lost", "丢失的节拍"),
    "lost_detail": (
        "of {count}; {overruns} overruns, {skipped} polls skipped",
        "共 {count}；超时 {overruns}，跳过轮询 {skipped}",
    ),
    "lost_help": (
        "Ticks at which no cycle was made, for whatever reason. Skipped polls: a worker was still being asked.",
        "未进行采集的节拍（无论何因）。跳过的轮询：该节点仍在被询问中。",
    ),
    "polls": ("Polls failed", "失败的轮询"),
    "polls_detail": ("of {count} polls", "共 {count} 次轮询"),
    "polls_help": (
        "Polls that were not understood, since the start. A failed poll is stored like any other.",
        "自启动以来未被理解的轮询。失败的轮询与其他轮询一样被存储。",
    ),
    "store": ("Stored", "已存储"),
    "store_detail": ("median; file {size}, {count} cycles", "中位；文件 {size}，{count} 个周期"),
    "store_help": ("Time to store one cycle, in one transaction.", "以一个事务存储一个周期所需的时间。"),
    "received": ("Received", "已接收"),
    "received_detail": ("{readings} readings", "{readings} 个读数"),
    "received_help": ("Bytes of all answers since the start.", "自启动以来所有应答的字节数。"),
    "not_stored": ("The newest cycle was not stored: {reason}", "最近一个周期未能存储：{reason}"),
    "maintenance": ("Rollup or retention failed: {reason}", "汇总或清理失败：{reason}"),
    "problems": ("{count} problems while collecting; the newest: {reason}", "采集中有 {count} 个问题；最近：{reason}"),
    "restarted": (
        "The collecting process died and was started again {count} times.",
        "采集进程已退出并重启 {count} 次。",
    ),
    "every_source": ("Every source", "全部来源"),
    "filter": ("State", "状态"),
    "one": ("One source", "单个来源"),
    "choose": ("Source", "来源"),
    "asked": ("What is asked", "询问内容"),
    "asked_none": ("Nothing has been asked yet.", "尚未询问。"),
    "says": ("How this engine counts", "该引擎如何计数"),
    "says_sglang": (
        (
            "SGLang: the denominator is max_total_num_tokens, in tokens. Used excludes evictable prefix, so 59 % used "
            "can be a physically full pool. On decode, used includes KV that has not arrived yet; what the engine "
            "keeps back per admitted request (512 tokens by default) is not in used and is added as reserved. A zero "
            "capacity or time stamp means that nothing was published yet."
        ),
        (
            "SGLang：分母为 max_total_num_tokens（token）。已使用不含可驱逐前缀，所以“已使用 59 %”可能物理上已满。"
            "在 decode 上，已使用包含尚未到达的 KV；引擎为每个已接纳请求保留的部分（默认 512 token）不在其中，"
            "作为已预留另计。容量或时间戳为 0 表示尚未发布数据。"
        ),
    ),
    "says_vllm": (
        (
            "vLLM: the denominator is num_gpu_blocks less the one block it keeps back, in blocks. kv_cache_usage_perc "
            "is a ratio from 0 to 1 of blocks that requests hold. Its free queue contains evictable prefix, so free "
            "and prefix are one figure here and neither is known alone."
        ),
        (
            "vLLM：分母为 num_gpu_blocks 减去自留的一个块。kv_cache_usage_perc 是请求所占块的比例（0 到 1）。"
            "其空闲队列含可驱逐前缀，因此空闲与前缀在此是同一个数，各自未知。"
        ),
    ),
    "says_trtllm": (
        (
            "TensorRT-LLM: the denominator is the blocks of the KV cache manager. Used blocks include reusable ones "
            "unless the iteration says otherwise; parts it does not report are unattributed."
        ),
        ("TensorRT-LLM：分母为 KV 缓存管理器的块数。除非另有说明，已使用块包含可复用块；未报告的部分记为未归类。"),
    ),
    "says_dynamo": (
        (
            "Dynamo: worker metrics count active blocks against total blocks of a rank. Prefix that could be evicted "
            "is not told apart from free."
        ),
        "Dynamo：节点指标以 rank 的总块数为分母统计活跃块；可驱逐前缀与空闲未区分。",
    ),
    "says_router": (
        (
            "A router has no KV of its own. What it believes of its workers stands beside what they say; −1 means "
            "that it does not know and is never taken for a number."
        ),
        "路由器自身没有 KV。它对节点的看法与节点自述并列；−1 表示不知道，绝不当作数值。",
    ),
    "says_none": ("The engine is not known yet.", "引擎尚未识别。"),
    "definitions": ("Where each word comes from, pool {pool}", "各词的来源，池 {pool}"),
    "block": ("block size", "块大小"),
    "memory": ("bytes per token", "每 token 字节数"),
    "facts": ("What it says of its configuration", "它自述的配置"),
    "gone": ("No source {source} is asked here.", "此处没有被询问的来源 {source}。"),
    "facts_none": ("It says nothing of its configuration.", "没有配置信息。"),
    "findings": ("What was noticed about its answers", "对其应答的发现"),
    "vanished": ("No list has named it since {at}.", "自 {at} 起没有任何列表提到它。"),
    "lists": ("Lists of workers", "节点列表"),
    "routers": ("Router view beside engine view", "路由器视角与引擎视角"),
    "router_one": ("{router}, said {age} ago", "{router}，{age} 前"),
    "router_agrees": ("Its view and the engines' agree.", "其看法与引擎一致。"),
    "healthy": ("healthy", "健康"),
    "unhealthy": ("unhealthy", "不健康"),
    "no_clock": ("tells no time", "不报时"),
    "ahead": ("{span} ahead", "快 {span}"),
    "behind": ("{span} behind", "慢 {span}"),
    "every_cycle": ("every cycle", "每周期"),
    "essential": ("needed", "必需"),
    "optional": ("if there", "可选"),
    "not_asked": ("not asked yet", "尚未询问"),
    "col_name": ("Source", "来源"),
    "col_state": ("State", "状态"),
    "col_since": ("Since", "持续"),
    "col_reason": ("Reason", "原因"),
    "col_engine": ("Engine", "引擎"),
    "col_pools": ("Pools", "池"),
    "col_answered": ("Understood, s ago", "理解于（秒前）"),
    "col_duration": ("Took, ms", "耗时（毫秒）"),
    "col_bytes": ("Bytes", "字节"),
    "col_offset": ("Its clock", "其时钟"),
    "col_asked": ("Polls", "轮询"),
    "col_failed": ("Failed", "失败"),
    "col_skipped": ("Skipped", "跳过"),
    "col_rejected": ("Not understood", "未理解"),
    "col_ignored": ("Not needed", "不需要"),
    "col_last_error": ("Last failure", "最近一次失败"),
    "col_url": ("Address", "地址"),
    "col_origin": ("Named by", "列于"),
    "col_path": ("Path", "路径"),
    "col_every": ("How often", "频率"),
    "col_need": ("Needed", "必需性"),
    "col_status": ("Newest answer", "最近应答"),
    "col_asked_ago": ("Asked, s ago", "询问于（秒前）"),
    "col_fact": ("Setting", "配置项"),
    "col_value": ("Value", "值"),
    "col_word": ("Word", "词"),
    "col_known": ("How known", "如何得知"),
    "col_because": ("From", "来自"),
    "col_worker": ("Worker", "工作节点"),
    "col_rank": ("Rank", "Rank"),
    "col_router_health": ("Router says", "路由器认为"),
    "col_router_requests": ("Requests, router", "请求（路由器）"),
    "col_engine_requests": ("Requests, engine", "请求（引擎）"),
    "col_difference": ("Difference", "差值"),
    "col_router_tokens": ("Tokens, router", "Tokens（路由器）"),
    "col_engine_tokens": ("Tokens, engine", "Tokens（引擎）"),
    "col_list": ("List", "列表"),
    "col_read": ("Read, s ago", "读取于（秒前）"),
    "col_count": ("Workers", "节点"),
    "col_unusable": ("Unusable", "不可用"),
    "col_error": ("Error", "错误"),
}
