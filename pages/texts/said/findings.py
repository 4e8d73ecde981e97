"""Findings about pools, the fleet and its routers (scoring: evidence, bottleneck, router_view)."""

SAID: tuple[tuple[str, str], ...] = (
    (
        "Counters fell: the worker restarted within the window; flows count from its start.",
        "计数器回落：节点在窗口内重启过；流量从其启动时算起。",
    ),
    (
        "{held:n} tokens are held with nothing running, waiting or in transfer: a leak is likely.",
        "没有运行、等待或传输，却有 {held} 个 token 被占用：很可能泄漏。",
    ),
    (
        "It grows by {each:n} tokens per request: full after {count:n} more.",
        "每个请求增长 {each} token：再有 {count} 个就满。",
    ),
    ("It grew by {growth:n} tokens in {span:n} s.", "{span} 秒内增长了 {growth} token。"),
    (
        (
            "The handshake with prefill does not complete: {count:n} requests wait for it (+{rate:n} per second), "
            "nothing runs, {used:n} tokens used. Not idle: it takes no new work. Is prefill reachable from it? The "
            "first requests fail about {limit:n} s after they arrived."
        ),
        (
            "与 prefill 的握手没有完成：{count} 个请求在等待（每秒 +{rate}），没有请求在运行，已使用 {used} token。"
            "并非空闲：它不接收新任务。它能连到 prefill 吗？最早的请求将在到达约 {limit} 秒后失败。"
        ),
    ),
    (
        (
            "The handshake with decode does not complete: {count:n} requests wait for it (+{rate:n} per second), "
            "{computed:n} prompt tokens per second computed, {used:n} tokens used. Not idle: it takes no new work. "
            "Is decode reachable from it, and has decode room? The first requests fail about {limit:n} s after they "
            "arrived."
        ),
        (
            "与 decode 的握手没有完成：{count} 个请求在等待（每秒 +{rate}），每秒计算 {computed} 个提示词 token，"
            "已使用 {used} token。并非空闲：它不接收新任务。它能连到 decode 吗？decode "
            "有空间吗？最早的请求将在到达约 {limit} 秒后失败。"
        ),
    ),
    (
        (
            "Request slots bind, not KV: {running:n} of {cap:n} requests run, {waiting:n} wait, and {available:n} "
            "tokens are free or reclaimable."
        ),
        (
            "瓶颈是请求槽位而非 KV：{cap} 个槽位中运行 {running} 个，{waiting} 个在等待，而 {available} token "
            "空闲或可回收。"
        ),
    ),
    ("{free:n} of {slots:n} state slots stay unused.", "{slots} 个状态槽位中有 {free} 个未用。"),
    (
        "State slots bind, not KV: all {slots:n} are held, {waiting:n} requests wait.",
        "瓶颈是状态槽位而非 KV：{slots} 个全部被占用，{waiting} 个请求在等待。",
    ),
    (
        (
            "The sliding-window pool binds, not the full one: it is {share:n} % used, {waiting:n} requests wait, "
            "and {available:n} tokens of the full pool are free or reclaimable."
        ),
        (
            "瓶颈是滑动窗口池而非完整池：前者已用 {share} %，{waiting} 个请求在等待，而完整池有 {available} token "
            "空闲或可回收。"
        ),
    ),
    (
        "token_usage {usage:n} leaves out the state pool, which is at {state:n}: read them apart.",
        "token_usage {usage} 不含状态池，后者为 {state}：请分开看。",
    ),
    (
        "{missing:n} of {slots:n} state slots are neither held, cached nor free.",
        "{slots} 个状态槽位中有 {missing} 个既未占用、也未缓存或空闲。",
    ),
    (
        (
            "The engine reports {speed} per transfer on a link of {line}: impossible (all chunks' bytes over the "
            "last chunk's time). Not used."
        ),
        "引擎报告单次传输 {speed}，而链路只有 {line}：不可能（用全部分块的字节数除以最后一块的时间）。不采用。",
    ),
    (
        (
            "The engine reports at most {speed} per transfer, {count:n} at a time, the volume counter proves "
            "{moved}: its clock runs past the transfer. Not used."
        ),
        "引擎报告单次传输至多 {speed}，同时 {count} 个，而流量计数器证明为 {moved}：其计时超出了传输本身。不采用。",
    ),
    (
        (
            "{count:n} transfers« of {size:n} MiB each» wait ({wait:t}) while the link carries {rate:n} MiB/s, "
            "{share:n} % of its rate: overhead per transfer, not a full link. A larger page size sends fewer, "
            "larger pieces."
        ),
        (
            "{count} 个传输在等待«（每个 {size} MiB）»，{wait}，而链路只有 {rate} MiB/s，仅为其速率的 {share} %："
            "是单次传输的开销，不是链路已满。更大的页会发送更少、更大的块。"
        ),
    ),
    ("{span:n} s to drain", "需 {span} 秒排空"),
    ("no end in sight", "看不到尽头"),
    ("Not credible, shown as unknown and not scored: {names}.", "不可信，显示为未知且不参与评分：{names}。"),
    (
        (
            "Decode room holds prefill up: {pools:n} decode pools are committed to {share:n} % (usage says "
            "{usage:n} %), {ready:n} requests wait there for room and {handshakes:n} wait on prefill for the same "
            "room. The two queues are the same requests: count them once."
        ),
        (
            "decode 空间拖住了 prefill：{pools} 个 decode 池已承诺 {share} %（usage 显示 {usage} %），{ready} "
            "个请求在那里等待空间，{handshakes} 个在 prefill 侧等待同样的空间。两个队列是同一批请求：只计一次。"
        ),
    ),
    (
        (
            "{known:n} of {all:n} pools have a credible figure for tokens held; left out of every minimum, mean and "
            "sum: {names}."
        ),
        "{all} 个池中有 {known} 个的占用量可信；不计入任何最小值、平均与总和的：{names}。",
    ),
    # bottleneck
    (
        "KV binds: {waiting:n} wait, {used:n} of {usable:n} tokens are held« and {reserved:n} reserved».",
        "瓶颈是 KV：{waiting} 个在等待，{usable} token 中已占用 {used}«，另预留 {reserved}»。",
    ),
    (
        (
            "KV binds: {running:n} requests run, {waiting:n} wait, {used:n} of {usable:n} tokens are held« and "
            "{reserved:n} reserved»."
        ),
        "瓶颈是 KV：运行 {running} 个请求，{waiting} 个在等待，{usable} token 中已占用 {used}«，另预留 {reserved}»。",
    ),
    ("{count:n} requests were preempted within the window.", "窗口内有 {count} 个请求被抢占。"),
    (
        (
            "Request slots bind, not KV: {cap:n} requests run on {ranks:n} ranks and more on none, so {likely:n} is "
            "likely the cap; {waiting:n} wait here, and {available:n} tokens are free or reclaimable."
        ),
        (
            "瓶颈是请求槽位而非 KV：{ranks} 个 rank 各运行 {cap} 个请求，没有更多的，因此上限很可能是 {likely}；"
            "此处 {waiting} 个在等待，而 {available} token 空闲或可回收。"
        ),
    ),
    # router_view
    (
        (
            "Router blind: it knows no load of {blind:n} of {all:n} workers, while all {same:n} of them answer when "
            "asked themselves. It routes without looking at load."
        ),
        (
            "路由器看不见负载：{all} 个节点中它不知道 {blind} 个的负载，而这 {same} 个直接询问时都有应答。"
            "它在不看负载的情况下路由。"
        ),
    ),
    (
        (
            "Router counters do not follow the engines on {apart:n} of {all:n} workers: {shown:t} (requests in "
            "flight at the router against running and waiting at the engine). Another router may feed them too, or "
            "its counters are reset or never raised: it cannot see imbalance."
        ),
        (
            "路由器的计数与引擎不符（{all} 个节点中的 {apart} 个）：{shown}（路由器的在途请求对引擎的运行与等待）。"
            "可能另有路由器在派发，或其计数被清零、从不增加：它看不到不均衡。"
        ),
    ),
    ("{place} rank {rank:n} {router:n} against {engine:n}", "{place} rank {rank}：{router} 对 {engine}"),
    ("{place:w} {router:n} against {engine:n}", "{place}：{router} 对 {engine}"),
    (
        "it addresses {place} as ranks {asked}, that worker owns {owned}",
        "它把 {place} 当作 rank {asked}，而该节点拥有的是 {owned}",
    ),
    (
        "it addresses {place} as ranks {asked}, that worker owns {owned} and runs {running:n} requests",
        "它把 {place} 当作 rank {asked}，而该节点拥有的是 {owned}，正运行 {running} 个请求",
    ),
    (
        (
            "The router addresses ranks that do not exist: {parts:t}. An idle worker here is not free room: "
            "requests sent to it fail."
        ),
        "路由器寻址到不存在的 rank：{parts}。这里的空闲节点并不是可用空间：发往它的请求会失败。",
    ),
    (
        (
            "The router addresses ranks that do not exist: {parts:t}. {failed:n} of {total:n} requests failed "
            "({share:n}%). An idle worker here is not free room: requests sent to it fail."
        ),
        (
            "路由器寻址到不存在的 rank：{parts}。{total} 个请求中有 {failed} 个失败（{share} %）。"
            "这里的空闲节点并不是可用空间：发往它的请求会失败。"
        ),
    ),
)
