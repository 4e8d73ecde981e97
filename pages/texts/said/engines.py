"""What dialects notice about a worker's or router's answers, and why they cannot read one (collectors/engines)."""

SAID: tuple[tuple[str, str], ...] = (
    # numbers, scan_notes
    (
        "{name} is {value} ({why:t}): not credible, shown as unknown and not scored.",
        "{name} 为 {value}（{why}）：不可信，显示为未知且不参与评分。",
    ),
    ("negative", "为负"),
    ("too large or not finite", "过大或不是有限数"),
    ("not a number", "不是数"),
    ("an empty text", "空文本"),
    ("capacity is {usable:n}", "容量为 {usable}"),
    ("below num_used_tokens {used:n}", "低于 num_used_tokens {used}"),
    ("above num_total_tokens {total:n}", "高于 num_total_tokens {total}"),
    ("a ratio", "这是比例"),
    ("a list of another length", "列表长度不符"),
    ("six numbers expected", "应为六个数"),
    ("more than {most:n}", "多于 {most}"),
    ("{excess:n} more than maxNumBlocks {most:n}", "比 maxNumBlocks {most} 多 {excess}"),
    ("{count:n} processes disagree, this is the largest", "{count} 个进程说法不一，此为最大值"),
    (
        "{count:n} lines of {path} are no samples (cut off or malformed) and were left out.",
        "{path} 中有 {count} 行不是样本（被截断或格式错误），未采用。",
    ),
    (
        "NaN, infinite or contradictory, hence unknown and not 0: {names}.",
        "为 NaN、无穷或互相矛盾，因此为未知而不是 0：{names}。",
    ),
    (
        "{count:n} series appear twice; where they contradict, the figure is unknown.",
        "{count} 个序列出现两次；互相矛盾之处，数值为未知。",
    ),
    # every dialect
    ("{engine}: nothing came back for {path}; is the address right?", "{engine}：{path} 没有返回任何内容；地址对吗？"),
    (
        "{engine}: {path} answered {status:n}; give the worker's token in the fleet file.",
        "{engine}：{path} 应答 {status}；请在集群文件中给出该节点的令牌。",
    ),
    (
        "{engine}: {path} answered {status:n}: the worker is alive, its figures are not.",
        "{engine}：{path} 应答 {status}：节点还在，但没有数据。",
    ),
    (
        "{engine}: {path} answered {status:n}, expected 200; are metrics switched on?",
        "{engine}：{path} 应答 {status}，应为 200；是否打开了指标？",
    ),
    ("{engine}: {path} answered 200 with nothing in it.", "{engine}：{path} 应答 200，但内容为空。"),
    # sglang
    (
        "{path} answered {status:n}: set the worker's token (token_env in the fleet file).",
        "{path} 应答 {status}：请设定该节点的令牌（集群文件中的 token_env）。",
    ),
    ("{path} came without one row that can be used.« {said:t}»", "{path} 中没有一行可用。«{said}»"),
    ("Server information only: it carries no pool figures.", "只有服务器信息：不含池的数据。"),
    ("{path} was not answered; is this the worker's own port?", "{path} 没有应答；这是节点自己的端口吗？"),
    (
        "{path} answered {status:n} while the worker is reachable: this endpoint is broken or absent.",
        "{path} 应答 {status}，而节点可达：该接口损坏或不存在。",
    ),
    ("no content type", "无内容类型"),
    (
        "{path} answered {size:n} bytes of {kind:t} that are not SGLang's; check the URL and the port.",
        "{path} 应答 {size} 字节的 {kind}，不是 SGLang 的格式；请检查 URL 与端口。",
    ),
    (
        "Rank {rank:n} answers but its scheduler has published nothing yet: unknown, not empty.",
        "rank {rank} 有应答，但其调度器尚未发布任何数据：未知，而不是空。",
    ),
    ("/v1/loads lists no rank: nothing has been published yet.", "/v1/loads 未列出任何 rank：尚未发布任何数据。"),
    (
        "{known:n} of {all:n} ranks answered; worker totals are unknown, not the sum of these.",
        "{all} 个 rank 中有 {known} 个应答；节点总量未知，而不是这些之和。",
    ),
    (
        "{known:n} of {all:n} ranks have series; worker totals are unknown, not the sum of these.",
        "{all} 个 rank 中有 {known} 个有序列；节点总量未知，而不是这些之和。",
    ),
    (
        "Started without --enable-metrics: evictable prefix, hit rate and throughput gauges are unknown.",
        "启动时未加 --enable-metrics：可驱逐前缀、命中率与吞吐读数未知。",
    ),
    (
        "Early 0.5.13 builds may end at start with several nodes and tokenizers (one address bound twice).",
        "早期 0.5.13 版本在多节点、多 tokenizer 时可能在启动时退出（同一地址绑定两次）。",
    ),
    (
        (
            "1 of {all:n} ranks, and which one is not known: every rank writes the same unlabelled series. Usage, "
            "running and throughput are unknown, no trend is drawn. Per-rank series need dp_rank labels (a newer "
            "engine, or --enable-metrics-for-all-schedulers)."
        ),
        (
            "{all} 个 rank 中只见到 1 个，且不知是哪个：每个 rank 都写同一个无标签序列。占用、运行数与吞吐未知，"
            "不绘趋势。要按 rank 区分需要 dp_rank 标签（更新的引擎，或 --enable-metrics-for-all-schedulers）。"
        ),
    ),
    (
        "Only /get_load is there: used tokens and counts, no capacity split, no engine time.",
        "只有 /get_load：有已使用 token 与计数，没有容量构成，也没有引擎时间。",
    ),
    (
        "Rank {rank:n} appears more than once with different figures: none of them is used.",
        "rank {rank} 出现多次且数据不同：一个也不采用。",
    ),
    (
        "{nameless:n} of {all:n} rows of /v1/loads name no rank (or are no object) and were left out.",
        "/v1/loads 的 {all} 行中有 {nameless} 行没有 rank（或不是对象），未采用。",
    ),
    (
        "num_used_tokens {used:n} is above max_total_num_tokens {usable:n}; drawn as full.",
        "num_used_tokens {used} 高于 max_total_num_tokens {usable}；按已满绘出。",
    ),
    (
        (
            "/metrics carries one series without dp_rank for {count:n} ranks: whichever rank wrote last. Not used; "
            "per-rank series need a newer engine or --enable-metrics-for-all-schedulers."
        ),
        (
            "/metrics 对 {count} 个 rank 只有一个没有 dp_rank 的序列：以最后写入的为准。不采用；要按 rank "
            "区分需要更新的引擎或 --enable-metrics-for-all-schedulers。"
        ),
    ),
    (
        "num_total_tokens counts preallocated requests twice before 0.5.14: the backlog is unknown.",
        "0.5.14 之前 num_total_tokens 将预分配的请求计了两次：积压未知。",
    ),
    (
        (
            "{count:n} processes disagree about {name}, at most {high:n}; one may be dead. Only an upper bound is "
            "known: shown as unknown and not scored."
        ),
        "{count} 个进程对 {name} 说法不一，至多 {high}；可能有一个已退出。只知上限：显示为未知且不参与评分。",
    ),
    (
        "{count:n} requests were retracted in the engine's last log window.",
        "引擎最近的日志窗口内撤回了 {count} 个请求。",
    ),
    ("last reported by some rank", "某个 rank 最近的报告"),
    # vllm
    (
        "vllm: {path} carries none of {names}; is this a vLLM server?",
        "vllm：{path} 不含 {names} 中的任何一个；这是 vLLM 服务器吗？",
    ),
    ("not exported", "未导出"),
    ("repeated series", "重复的序列"),
    ("cache_config_info: capacity is unknown", "cache_config_info：容量未知"),
    (
        "num_gpu_blocks (not yet known, or cut from cache_config_info): capacity is unknown",
        "num_gpu_blocks（尚未得知，或从 cache_config_info 中被截去）：容量未知",
    ),
    (
        "vLLM says this engine sleeps (engine_sleep_state awake = 0): it serves nothing until woken.",
        "vLLM 表示该引擎处于休眠（engine_sleep_state awake = 0）：唤醒前不提供服务。",
    ),
    (
        (
            "{count:n} processes disagree about the usage of engine {rank:n}, at most {high:n}; one may be dead. "
            "Shown as an upper bound, not scored as measured."
        ),
        "{count} 个进程对引擎 {rank} 的占用说法不一，至多 {high}；可能有一个已退出。显示为上限，不按测得值评分。",
    ),
    (
        "External lookups ({external:n} tokens) repeat the local ones: local hits taken out, {rest:n} remain.",
        "外部查找（{external} token）重复了本地查找：扣除本地命中后剩 {rest}。",
    ),
    (
        (
            "Prefix hits are inflated: {repeated:n} of the queried tokens are repeats ({preempted:n} preemptions or "
            "retried admissions); true hits are at most {hits:n} of {prompt:n} prompt tokens."
        ),
        (
            "前缀命中虚高：查询的 token 中有 {repeated} 个是重复（{preempted} 次抢占或重试接纳）；{prompt} 个提示词 "
            "token 中真正命中至多 {hits}。"
        ),
    ),
    # trtllm
    ("trtllm: the text at {path} has no trtllm_ series.", "trtllm：{path} 的文本中没有 trtllm_ 序列。"),
    (
        "trtllm: {path} should be a JSON list of iterations; this is something else or cut.",
        "trtllm：{path} 应为迭代的 JSON 列表；得到的是别的内容或被截断。",
    ),
    ("trtllm: none of {count:n} rows at {path} is an iteration.", "trtllm：{path} 的 {count} 行中没有一行是迭代。"),
    (
        "No iteration since the last asking: an idle engine reports nothing, its last figures grow old.",
        "自上次询问以来没有迭代：空闲的引擎什么也不报告，最后的数据会变旧。",
    ),
    (
        "Rows carry no rank: only rank 0 is covered. Other ranks of this worker, if any, are not seen.",
        "各行没有 rank：只覆盖 rank 0。该节点若有其他 rank 则看不到。",
    ),
    (
        (
            "maxNumBlocks {most:n} counts host blocks too: {held:n} blocks were ever allocated and {free:n} are "
            "free, so the device pool is {device:n} blocks and {host:n} lie on the host. Usage is {usage:n}%, not "
            "{other:n}%."
        ),
        (
            "maxNumBlocks {most} 也计入主机块：曾分配 {held} 块、空闲 {free} 块，因此设备池为 {device} 块，{host} "
            "块在主机上。占用为 {usage} %，而不是 {other} %。"
        ),
    ),
    (
        "used {used:n} + free {free:n} blocks are not max {most:n}: off by {off:n}.",
        "已用 {used} + 空闲 {free} 块不等于最大 {most}：相差 {off}。",
    ),
    # dynamo
    (
        "dynamo: {path} carries no {prefix}_ series; is this a Dynamo worker?",
        "dynamo：{path} 不含 {prefix}_ 序列；这是 Dynamo 节点吗？",
    ),
    (
        (
            "This Dynamo worker exports no KV or batch series (prefill workers never do, others not before their "
            "first request): only its finished requests are known. The frontend's view of it is the only other "
            "source."
        ),
        (
            "该 Dynamo 节点不导出 KV 或批次序列（prefill 节点从不导出，其他节点在首个请求之前不导出）："
            "只知道完成的请求。前端对它的看法是唯一的其他来源。"
        ),
    ),
    (
        (
            "{usage:n}% is shown as reported: the block total may include a host tier, and no block size is given. "
            "Not compared with pools of other engines."
        ),
        "{usage} % 按其报告显示：总块数可能含主机层，且未给出块大小。不与其他引擎的池比较。",
    ),
    (
        (
            "Usage is shown as reported: the block total may include a host tier, and no block size is given. Not "
            "compared with pools of other engines."
        ),
        "占用按其报告显示：总块数可能含主机层，且未给出块大小。不与其他引擎的池比较。",
    ),
    (
        "dynamo-frontend: {path} carries no {prefix}_ series that is needed.",
        "dynamo-frontend：{path} 不含所需的 {prefix}_ 序列。",
    ),
    ("worker id", "节点编号"),
    ("requests in the worker's handler", "节点处理程序中的请求"),
    ("active blocks«, rank {rank:n}»", "活跃块«，rank {rank}»"),
    ("total blocks«, rank {rank:n}»", "总块数«，rank {rank}»"),
    ("block size (tokens)", "块大小（token）"),
    ("KV blocks of a worker", "每节点的 KV 块数"),
    ("largest batch", "最大批次"),
    ("largest prefill (tokens)", "最大 prefill（token）"),
    ("requests in flight", "在途请求"),
    ("requests queued", "排队请求"),
    ("{model}: block size (tokens)", "{model}：块大小（token）"),
    ("{model}: KV blocks of a worker", "{model}：每节点的 KV 块数"),
    ("{model}: largest batch", "{model}：最大批次"),
    ("{model}: largest prefill (tokens)", "{model}：最大 prefill（token）"),
    ("{model}: requests in flight", "{model}：在途请求"),
    ("{model}: requests queued", "{model}：排队请求"),
    ("physical workers", "物理节点"),
    # router
    (
        "{name}: neither {first}, {second} nor {third} looks like an SGLang router's.",
        "{name}：{first}、{second} 与 {third} 都不像 SGLang 路由器的应答。",
    ),
    (
        (
            "The router reports no load (-1) for {unknown:n} of {all:n} workers. -1 is unknown: it enters no "
            "minimum, mean or sum."
        ),
        "路由器对 {all} 个节点中的 {unknown} 个未报告负载（-1）。-1 表示未知：不计入最小值、平均或总和。",
    ),
    (
        (
            "The router's {path} answers {status:n}: a fault of the router; the workers behind it are asked "
            "directly and are not down for that."
        ),
        "路由器的 {path} 应答 {status}：是路由器的故障；其后的节点直接询问，并不因此离线。",
    ),
)
