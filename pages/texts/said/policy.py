"""Why a pool, a pair or a request is refused, what a score is made of and rests on (scoring: policy, demand, slo)."""

SAID: tuple[tuple[str, str], ...] = (
    # filters: their names
    ("unreachable", "不可达"),
    ("role", "角色未知"),
    ("draining", "排空中"),
    ("incompatible", "不兼容"),
    ("tenant", "租户"),
    ("data-domain", "数据域"),
    ("not-credible", "数据不可信"),
    ("capacity-unknown", "容量未知"),
    ("not-serving", "未在服务"),
    ("overloaded", "过载"),
    ("no-room", "空间不足"),
    ("too-large", "请求过大"),
    ("topology", "拓扑"),
    ("full-at-decode-start", "decode 开始时已满"),
    ("unbounded-wait", "等待无上限"),
    ("local-prefill", "就地 prefill"),
    ("pool", "池"),
    ("{name:t} {count:n}", "{name} {count}"),
    # filters
    ("demand {tokens:n}", "需求 {tokens}"),
    ("growth {tokens:n}", "增长 {tokens}"),
    ("reserve {tokens:n}", "余量 {tokens}"),
    ("available {tokens:n}", "可供新需求 {tokens}"),
    ("reserved {tokens:n}", "已预留 {tokens}"),
    ("requests ahead {tokens:n}", "前面的请求 {tokens}"),
    ("no room: needs {need:t} tokens, has {have:t}", "空间不足：需要 {need} token，现有 {have}"),
    (
        "no room: needs {need:t} tokens, has {have:t}; it holds {usable:n} in all, so this request never fits here",
        "空间不足：需要 {need} token，现有 {have}；该池总共只有 {usable}，此请求永远放不下",
    ),
    ("not serving: {reason:t}", "未在服务：{reason}"),
    ("work sent here does not come back; the wait is unbounded", "发往此处的请求没有返回；等待没有上限"),
    ("{state:t}, of unknown age«: {reason:t}»", "{state}，数据龄未知«：{reason}»"),
    ("{state:t}, {age:n} s old«: {reason:t}»", "{state}，数据龄 {age} 秒«：{reason}»"),
    ("unreachable: {reason:t}", "不可达：{reason}"),
    ("not_understood", "无法理解"),
    ("nothing_yet", "尚无数据"),
    ("not_understood: {reason:t}", "无法理解：{reason}"),
    ("nothing_yet: {reason:t}", "尚无数据：{reason}"),
    ("its role is not known: set it in the fleet file", "其角色未知：请在集群文件中设定"),
    ("draining: takes no new requests", "排空中：不接收新请求"),
    ("serves an unknown model, not {wanted}", "所服务的模型未知，不是 {wanted}"),
    ("serves {model}, not {wanted}", "服务的是 {model}，不是 {wanted}"),
    ("kept for {tenants}, not anyone", "专供 {tenants}，不对所有人开放"),
    ("kept for {tenants}, not {tenant}", "专供 {tenants}，不含 {tenant}"),
    ("outside {domain}", "在 {domain} 之外"),
    ("figure not credible: {names}", "数据不可信：{names}"),
    ("usable or used is not known", "可用总量或已使用未知"),
    ("overloaded: retracted requests wait to be recomputed", "过载：被撤回的请求等待重算"),
    # deciding
    ("least-bad: nothing has room, so room was not asked", "取最不坏：没有池有空间，因此不再要求空间"),
    ("refused: the fleet has no pools", "被拒：集群中没有池"),
    ("refused: {reason:t}", "被拒：{reason}"),
    ("refused: every pool is stale or unreachable ({words:t})", "被拒：每个池都陈旧或不可达（{words}）"),
    ("refused: every pool is refused ({words:t})", "被拒：每个池都被拒（{words}）"),
    (
        "refused: there is no pair: a prefill pool needs a decode pool, or a unified one serves alone",
        "被拒：没有可用的组合：prefill 池需要配 decode 池，或由一体池单独服务",
    ),
    ("refused: no admissible pair is left ({words:t})", "被拒：没有剩下可接纳的组合（{words}）"),
    ("every pair is refused", "每个组合都被拒"),
    (
        "refused: the request needs {need:n} tokens, more than any pool holds; the largest is {pool} with {usable:n}",
        "被拒：请求需要 {need} token，超过任何池的容量；最大的是 {pool}，有 {usable}",
    ),
    ("{prefill} -> {decode} is not a pair of this fleet", "{prefill} -> {decode} 不是此集群的组合"),
    # explain
    ("unknown", "未知"),
    ("unbounded", "无上限"),
    ("{value:n} s", "{value} 秒"),
    ("{value:n} ms", "{value} 毫秒"),
    ("unknown; scored as {value:t} ({formula:t})", "未知；按 {value} 计分（{formula}）"),
    ("{ahead:t} tokens ahead / {rate:t} tokens/s = {value:t}", "前面 {ahead} token / {rate} token/秒 = {value}"),
    (
        "{prompt:n} tokens at {rate:t} tokens/s and their context = {value:t}",
        "{prompt} token，{rate} token/秒，含上下文项 = {value}",
    ),
    ("computed where it is decoded: nothing to hand over = 0 s", "在 decode 处计算：无需移交 = 0 秒"),
    (
        "latency + ({size:t} GB + {ahead:t} GB ahead) / {rate:t} GB/s = {value:t}",
        "延迟 +（{size} GB + 前面 {ahead} GB）/ {rate} GB/秒 = {value}",
    ),
    (
        (
            "room for {need:t} of {left:t} tokens, net {net:t}/s, slot in {slot:t}, after {start:t}; first step "
            "{step:t} = {value:t}"
        ),
        "{left} token 中需 {need}，净增长 {net}/秒，{slot} 后有槽位，{start} 后开始；首步 {step} = {value}",
    ),
    (
        (
            "U = ({committed:t} {net:n}/s x {start:t} + {need:t}) / {usable:t} = {ratio:n}; reserve {reserve:n}; "
            "max(reserve / (1 - U) - 1, 0) = {value:t}"
        ),
        (
            "U =（{committed} {net}/秒 × {start} + {need}）/ {usable} = {ratio}；余量 {reserve}；max(余量 / (1 - U) "
            "- 1, 0) = {value}"
        ),
    ),
    (
        "P(TTFT {ttft:t} > {budget:t} or TPOT {tpot:t} > {limit:t}) = {value:n}",
        "P（TTFT {ttft} > {budget} 或 TPOT {tpot} > {limit}）= {value}",
    ),
    (
        "hit of {hit:t} tokens saves {saved:t} of prefill = {value:t}",
        "命中 {hit} token，省下 prefill {saved} = {value}",
    ),
    (
        "hit of {hit:t} tokens saves {saved:t} of prefill and {sent:t} of transfer = {value:t}",
        "命中 {hit} token，省下 prefill {saved} 与传输 {sent} = {value}",
    ),
    ("({terms}) / budget = {total:n}", "（{terms}）/ 预算 = {total}"),
    ("{left} or {right} is refused by itself", "{left} 或 {right} 自身被拒"),
    (
        "KV of {left} cannot be read by {right}: model or KV format differ",
        "{right} 无法读取 {left} 的 KV：模型或 KV 格式不同",
    ),
    ("{left} and {right} are in different zones", "{left} 与 {right} 位于不同可用区"),
    (
        "{right} would be full when decode starts in {start:t}: U = {ratio:n}",
        "{start}后 decode 开始时 {right} 将会满：U = {ratio}",
    ),
    ("the wait through {left} and {right} has no bound", "经由 {left} 与 {right} 的等待没有上限"),
    ("the decider lets {right} compute this prompt itself", "决策者让 {right} 自行计算此提示词"),
    # arrays, prepare: what a score rests on
    (
        "capacity is not reported: running requests x mean length (else {held:n}) / usage ratio",
        "未报告容量：运行请求数 × 平均长度（否则取 {held}）/ 占用比例",
    ),
    ("capacity is not reported: the smallest known pool of the role", "未报告容量：取同角色中最小的已知池"),
    ("committed is known by bounds only: the upper one is taken", "已承诺仅知范围：取上限"),
    ("committed is not known: used is taken", "已承诺未知：取已使用"),
    ("available is known by bounds only: the lower one is taken", "可供新需求仅知范围：取下限"),
    ("available is free or prefix", "可供新需求取空闲与前缀之和"),
    ("tokens held are the engine's usage ratio times capacity", "占用量取引擎的占用比例乘以容量"),
    ("block size is not known: {tokens:n} is taken", "块大小未知：取 {tokens}"),
    (
        "waiting prompt tokens are estimated: requests waiting x mean prompt",
        "等待的提示词 token 为估计：等待请求数 × 平均提示词长度",
    ),
    (
        "prefill rate is the mean over the worker's life: nothing was computed in the window",
        "prefill 速度取自节点启动以来的平均：窗口内没有计算",
    ),
    (
        "step time is the mean over the worker's life: no step was counted in the window",
        "步时取自节点启动以来的平均：窗口内未计入任何步",
    ),
    (
        "bytes on the link are estimated: transfers under way x mean prompt",
        "链路上的字节为估计：进行中的传输数 × 平均提示词长度",
    ),
    ("active is not told apart: used is taken", "活跃未区分：取已使用"),
    ("reserved is not known: only our own leases are counted", "已预留未知：只计我方租约"),
    (
        "growth is not known: the fastest known growth of the fleet, or 2 % of usable in the growth horizon",
        "增长未知：取集群中已知的最快增长，或增长时长内可用总量的 2 %",
    ),
    ("spread of growth is not known: 2 % of usable is kept back for it", "增长的离散未知：为此留出可用总量的 2 %"),
    ("need of the requests ahead is not known: one like this is assumed", "前面请求的需求未知：假定与此请求相同"),
    ("prefill rate is not measured: the service profile is taken", "prefill 速度未测得：取服务参数"),
    ("prefill rate is not known: the slowest known one of the fleet", "prefill 速度未知：取集群中已知最慢者"),
    (
        "no prefill rate of the fleet is known: one TTFT budget a prompt",
        "集群的 prefill 速度均未知：每个提示词取一个 TTFT 预算",
    ),
    ("prompt tokens ahead are not known: one prompt like this", "前面的提示词 token 未知：取一个与此相同的提示词"),
    ("KV bytes per token are not known: the fleet's largest", "每 token 的 KV 字节未知：取集群中最大者"),
    (
        "bytes on the link are not known: one transfer like this is assumed",
        "链路上的字节未知：假定有一个与此相同的传输",
    ),
    (
        "running requests are not known: one is assumed for the spread of output lengths",
        "运行请求数未知：计算输出长度离散时假定为一个",
    ),
    ("step time is not measured: the service profile is taken", "步时未测得：取服务参数"),
    (
        "step time is not known: the slowest known one of the fleet, or the class's TPOT budget",
        "步时未知：取集群中已知最慢者，或该等级的 TPOT 预算",
    ),
    ("wait for a batch slot is not known: one TTFT budget is taken", "等待批次槽位的时间未知：取一个 TTFT 预算"),
    ("bandwidth is not measured: the calibrated one is taken", "带宽未测得：取校准值"),
    # models
    ("no pool reports utilization: fewest requests instead", "没有池报告占用：改取请求最少者"),
    ("{side}: counts out of balance, fewest in flight", "{side}：计数失衡，取在途最少者"),
    ("{side}: match {match:n} > {limit:n}, affinity", "{side}：匹配 {match} > {limit}，按亲和"),
    ("{side}: match {match:n} too low, fewest in flight", "{side}：匹配 {match} 太低，取在途最少者"),
    ("a token load is missing: request counts of both instead", "缺少一方的 token 负载：改用双方的请求数"),
    ("best predicted TTFT {ttft:n} s is over the SLO of {slo:n} s", "预测的最佳 TTFT {ttft} 秒超过 SLO {slo} 秒"),
    ("best predicted TBT {tbt:n} s is over the SLO of {slo:n} s", "预测的最佳 TBT {tbt} 秒超过 SLO {slo} 秒"),
    ("no session: fewest requests instead", "没有会话：改取请求最少者"),
    ("the better of two drawn by the seed", "由种子抽取两个，取较好者"),
    # registry: where a policy's rule is from
    (
        "docs/scoring.md: seven terms over every (prefill, decode) pair, after admission",
        "docs/scoring.md：接纳之后，对每个（prefill，decode）组合计七项",
    ),
    (
        "hard gates of docs/scoring.md, then the lowest (committed + demand) / usable",
        "docs/scoring.md 的硬性条件，然后取（已承诺 + 需求）/ 可用总量最低者",
    ),
    ("the router everyone writes first: argmin of used / usable", "人人首先写出的路由器：取 已使用 / 可用总量 最小者"),
    ("one after the other in order of id", "按编号依次轮流"),
    ("each pool equally likely", "每个池机会均等"),
    (
        "sglang-router 0.3.2 cache_aware, CLI defaults: cache_threshold 0.3, balance_abs 64, balance_rel 1.5",
        "sglang-router 0.3.2 的 cache_aware，命令行默认值：cache_threshold 0.3、balance_abs 64、balance_rel 1.5",
    ),
    (
        "sglang-router 0.3.2 power_of_two: lower cached token load of two drawn at random",
        "sglang-router 0.3.2 的 power_of_two：随机抽两个，取缓存的 token 负载较低者",
    ),
    (
        "smg least_load: (queued + in flight since poll) / (throughput or 2,000 tokens/s) + 0.15 * k / (1 - k)",
        "smg 的 least_load：（排队 + 自轮询以来的在途）/（吞吐，或 2,000 token/秒）+ 0.15 * k / (1 - k)",
    ),
    (
        "ai-dynamo lib/kv-router selector/default.rs: prefill scale 1, credit 1, temperature 0, ties random",
        "ai-dynamo lib/kv-router selector/default.rs：prefill 系数 1、credit 1、温度 0，平局随机",
    ),
    (
        "llm-d inference scheduler: prefix 3, queue 2, kv 2; decode first, remote prefill from 16 uncached",
        "llm-d inference scheduler：prefix 3、queue 2、kv 2；先选 decode，未缓存满 16 起远程 prefill",
    ),
    (
        "Mooncake (FAST 2025) Algorithm 1: least predicted TTFT, then decode by TBT, refused over the SLO",
        "Mooncake（FAST 2025）算法 1：先取预测 TTFT 最小者，再按 TBT 选 decode，超过 SLO 则拒绝",
    ),
    ("vLLM DP load balancer: waiting * 4 + running", "vLLM DP 负载均衡：等待 * 4 + 运行"),
    (
        "vLLM production-stack session routing: hash ring on the session key, else fewest requests",
        "vLLM production-stack 会话路由：以会话键做哈希环，否则取请求最少者",
    ),
    # demand, slo, settings: requests that cannot be asked
    ("{what:t} is {value}; allowed is {low} to {high}", "{what}为 {value}；允许 {low} 至 {high}"),
    ("{name} is {value}; allowed is {low} to {high}", "{name} 为 {value}；允许 {low} 至 {high}"),
    ("output quantile", "输出分位"),
    ("prefix hit on {pool}", "{pool} 上的前缀命中"),
    ("active hit on {pool}", "{pool} 上的活跃命中"),
    (
        "output quantiles are empty; give at least one, for example 0.5=300",
        "输出分位为空；请至少给出一个，例如 0.5=300",
    ),
    ("output quantiles must ascend: {first} is followed by {second}", "输出分位必须递增：{first} 之后是 {second}"),
    ("{bounds:n} bounds for {buckets:n} buckets; need one each", "{buckets} 个桶有 {bounds} 个上界；应各有一个"),
    ("bucket bounds must ascend: {bounds}", "桶的上界必须递增：{bounds}"),
    ("class {name} is not known; known are {known}", "等级 {name} 未知；已知的有 {known}"),
    ("weight {name} is not known; known are {known}", "权重 {name} 未知；已知的有 {known}"),
    ("policy {name} is not known; known are {known}", "策略 {name} 未知；已知的有 {known}"),
    ("{name} is {value}; allowed are {known}", "{name} 为 {value}；允许的有 {known}"),
    ("given as one number", "以单个数给出"),
    ("given", "给定"),
)
