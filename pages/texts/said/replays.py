"""What a replay's fleet, variants, drills and options cannot be, and what was assumed (simulation)."""

SAID: tuple[tuple[str, str], ...] = (
    # rules many share
    ("{name} is {value}: must be a finite number of at least {low:n}", "{name} 为 {value}：必须是至少 {low} 的有限数"),
    ("{name} is {value}: must be a finite number above {low:n}", "{name} 为 {value}：必须是大于 {low} 的有限数"),
    (
        "{name} is {value}: must be above {low:n} and at most {high:n}",
        "{name} 为 {value}：必须大于 {low} 且至多 {high}",
    ),
    ("{name} is {value}: must be from {low:n} to {high:n}", "{name} 为 {value}：必须在 {low} 到 {high} 之间"),
    ("{name} is {value}: must be between {low:n} and {high:n}", "{name} 为 {value}：必须在 {low} 与 {high} 之间"),
    ("{name} is {value}: must be at least {low:n}", "{name} 为 {value}：必须至少为 {low}"),
    ("{name} is {value}: must be at most {high:n}", "{name} 为 {value}：必须至多为 {high}"),
    ("{name} is {value}: must be above {low:n}", "{name} 为 {value}：必须大于 {low}"),
    ("{name} is {value}: must be one of {known}", "{name} 为 {value}：必须是 {known} 之一"),
    ("{name} is {value}: must be in (0, 1]", "{name} 为 {value}：必须在 (0, 1] 内"),
    ("{name} is {value}: must be a whole number of at least {low:n}", "{name} 为 {value}：必须是至少 {low} 的整数"),
    # fleet
    ("worker is {value}: must name the worker", "worker 为 {value}：必须写出节点名"),
    ("{name} is {value}: must be prefill, decode or unified", "{name} 为 {value}：必须是 prefill、decode 或 unified"),
    (
        "{name} is {value}: must hold at least one block of {block:n} tokens",
        "{name} 为 {value}：必须至少容纳一个 {block} token 的块",
    ),
    ("pools is {value}: a fleet needs at least one pool", "pools 为 {value}：集群至少需要一个池"),
    ("pools is {value}: each worker/rank may appear once", "pools 为 {value}：每个 节点/rank 只能出现一次"),
    ("pools is {value}: there is no decode or unified pool", "pools 为 {value}：没有 decode 或一体池"),
    ("pools is {value}: there is no prefill or unified pool", "pools 为 {value}：没有 prefill 或一体池"),
    ("links is {value}: names no worker of the fleet", "links 为 {value}：不是集群中的节点"),
    ("no pool {name}; there are {known}", "没有池 {name}；有 {known}"),
    # fleet_file
    (
        "{text} is no fleet: write 6p2d (prefill, decode workers), 8u (unified), or name a file",
        "{text} 不是集群：请写 6p2d（prefill、decode 节点数）、8u（一体节点数），或给出文件名",
    ),
    ("every pool has {blocks:n} blocks of {block:n} tokens", "每个池有 {blocks} 块，每块 {block} token"),
    ("[{name}] is no table of a fleet file", "[{name}] 不是集群文件的表"),
    ("tables without effect on a replay: {names}", "对重放没有作用的表：{names}"),
    ("[replay] is no table", "[replay] 不是表"),
    ("[replay] {name} is no rule (known: {known})", "[replay] {name} 不是规则（已知：{known}）"),
    ("there are no [[workers]]", "没有 [[workers]]"),
    (
        (
            "{count:n} worker(s) without usable_tokens: taken as {blocks:n} blocks of {block:n} tokens each "
            "({first} is the first)"
        ),
        "{count} 个节点没有 usable_tokens：各按 {blocks} 块、每块 {block} token 处理（首个为 {first}）",
    ),
    ("keys without effect on a replay: {names}", "对重放没有作用的键：{names}"),
    ("{place} is no table", "{place} 不是表"),
    ("{place} {key} is no key (known: {known})", "{place} {key} 不是键（已知：{known}）"),
    (
        "{place} role is {role}: must be unified, prefill or decode",
        "{place} role 为 {role}：必须是 unified、prefill 或 decode",
    ),
    ("{place} is {value}: must be a whole number from 1 to {most:n}", "{place} 为 {value}：必须是 1 到 {most} 的整数"),
    ("{place}: usable_tokens and usable_blocks: give one of them", "{place}：usable_tokens 与 usable_blocks 只给其一"),
    (
        "{place} bytes_per_token is {value}: must be a number above 0",
        "{place} bytes_per_token 为 {value}：必须是大于 0 的数",
    ),
    (
        "{place} link_bandwidth_bytes_per_s is {value}: write bytes per second, '50 GB/s' or '400 Gbit/s'",
        "{place} link_bandwidth_bytes_per_s 为 {value}：请写每秒字节数、'50 GB/s' 或 '400 Gbit/s'",
    ),
    (
        "{place} bandwidth_bytes_per_s is {value}: write bytes per second or '50 GB/s'",
        "{place} bandwidth_bytes_per_s 为 {value}：请写每秒字节数或 '50 GB/s'",
    ),
    (
        "profile {name} is not known: there are {known}, or name a .json file",
        "参数 {name} 未知：有 {known}，或给出 .json 文件",
    ),
    ("[[{name}]] is no list of tables", "[[{name}]] 不是表的列表"),
    ("[slo] is no table", "[slo] 不是表"),
    ("[slo.{name}] is no table", "[slo.{name}] 不是表"),
    ("[slo.{name}]: {problem:t}", "[slo.{name}]：{problem}"),
    ("the fleet has no pool of known capacity: nothing to replay on", "集群中没有容量已知的池：无法重放"),
    ("left out, capacity not known: {names}", "容量未知，已略去：{names}"),
    ("block size not known, taken as {block:n}: {names}", "块大小未知，按 {block} 处理：{names}"),
    ("service times are the profile {name}, not this fleet's own", "服务时间取参数 {name}，不是此集群自己的"),
    ("the fleet cannot be replayed on: {problem:t}", "无法在此集群上重放：{problem}"),
    # faults
    (
        "{kind:c}: at_s is {value}: must be a finite number of at least 0",
        "{kind}：at_s 为 {value}：必须是至少 0 的有限数",
    ),
    ("{kind:c}: until_s is {value}: must lie after at_s {at}", "{kind}：until_s 为 {value}：必须晚于 at_s {at}"),
    (
        "burst: needs a finite until_s ({until}) and a factor of at least 1 ({factor})",
        "burst：需要有限的 until_s（{until}）与至少 1 的 factor（{factor}）",
    ),
    ("{kind:c}: factor is {value}: must be in (0, 1]", "{kind}：factor 为 {value}：必须在 (0, 1] 内"),
    ("{kind:c}: worker is {value}: the fleet has {known}", "{kind}：worker 为 {value}：集群有 {known}"),
    # compare, compare_variants, compare_policies
    ("there is no variant to run", "没有可运行的方案"),
    ("variants are {values}: at least one, each once", "方案为 {values}：至少一个，各一次"),
    ("seeds are {values}: at least one, each once", "种子为 {values}：至少一个，各一次"),
    (
        "{traffics:n} traffics for {seeds:n} seeds: give one for all, or one a seed",
        "{seeds} 个种子有 {traffics} 份流量：请给一份共用，或每个种子一份",
    ),
    ("the traffic is empty: there is nothing to replay", "流量为空：没有可重放的内容"),
    ("more than the policy differs: {what:t}", "不止策略不同：{what}"),
    (
        "the traffic carries no prefix identities: prefix hits are unknown, and no policy could use any",
        "流量不含前缀标识：前缀命中未知，任何策略都无法利用",
    ),
    ("fewer than {count:n} requests: differences carry no interval", "少于 {count} 个请求：差值不给出区间"),
    ("policy {name} is not known: there are {known}", "策略 {name} 未知：有 {known}"),
    ("no policy is named: give at least one", "没有指定策略：请至少给出一个"),
    ("policy named twice: {names}", "策略重复：{names}"),
    ("{name} cannot be swept: there are {known}", "{name} 不能扫描：有 {known}"),
    ("the fleet differs: {changes:t}", "集群不同：{changes}"),
    ("{one:n} and {other:n} pools", "{one} 个与 {other} 个池"),
    ("the speed of the arrivals differs: {shown}", "到达速度不同：{shown}"),
    ("the drills differ", "演练不同"),
    ("{name:w} differs: {shown}", "{name} 不同：{shown}"),
    ("variant {variant}: no option {names}; there are {known}", "方案 {variant}：没有选项 {names}；有 {known}"),
    (
        "drill {text}: {part} is none of at=, until=, worker=, factor=",
        "演练 {text}：{part} 不是 at=、until=、worker=、factor= 之一",
    ),
    ("drill {text}: {name} must be a number", "演练 {text}：{name} 必须是数"),
    ("drill {text}: at= is missing", "演练 {text}：缺少 at="),
    ("tick is {tick}: the run has {count:n} samples", "tick 为 {tick}：该次运行有 {count} 个样本"),
    # simulate, state, report
    (
        (
            "the last request arrives after {last} s, too late to sample {count:n} pools every {period} s: cut the "
            "traffic or sample less often"
        ),
        "最后一个请求在 {last} 秒后到达，过晚，无法每 {period} 秒对 {count} 个池采样：请截短流量或降低采样频率",
    ),
    (
        "telemetry_age_s is {value}: needs a telemetry_period_s above 0",
        "telemetry_age_s 为 {value}：需要大于 0 的 telemetry_period_s",
    ),
    ("slo_classes is empty: give at least one", "slo_classes 为空：请至少给出一个"),
    (
        "policy is {value}: must be one of {known}, or have a method choose",
        "policy 为 {value}：必须是 {known} 之一，或具有 choose 方法",
    ),
    (
        "policy {policy} chose {side} {pool} for row {row}: takes no requests",
        "策略 {policy} 为第 {row} 行选择了 {side} {pool}：不接收请求",
    ),
    (
        "policy {policy} chose prefill pool {pool} to decode row {row}",
        "策略 {policy} 选择 prefill 池 {pool} 来 decode 第 {row} 行",
    ),
    (
        (
            "pool {pool}: block_size_tokens {block:n} and the traffic's hash_block_tokens {hash:n} do not divide "
            "one another; give the pool another block size or is_prefix_cached=False"
        ),
        (
            "池 {pool}：block_size_tokens {block} 与流量的 hash_block_tokens {hash} 不能整除；请给该池另一块大小，"
            "或设 is_prefix_cached=False"
        ),
    ),
    ("classes is empty: goodput needs at least one SLO class", "classes 为空：有效吞吐至少需要一个 SLO 等级"),
    ("{name} is {value}: must ascend from 0", "{name} 为 {value}：必须从 0 递增"),
    (
        (
            "{name}: {count:n} request(s) larger than the pool they went to, counted as rejected (first: row "
            "{row:n}, {need:n} tokens; the largest pool holds {largest:n})"
        ),
        "{name}：{count} 个请求大于其所去的池，计为被拒（首个：第 {row} 行，{need} token；最大的池容纳 {largest}）",
    ),
    (
        (
            "{name}: {count:n} request(s) larger than the pool they went to, counted as rejected (first: a burst's "
            "request, {need:n} tokens; the largest pool holds {largest:n})"
        ),
        "{name}：{count} 个请求大于其所去的池，计为被拒（首个：突发中的请求，{need} token；最大的池容纳 {largest}）",
    ),
    # pages: replays of viewers
    ("the replay ended with status {status}", "重放以状态 {status} 结束"),
    (
        "{count:n} replays are under way on this server: wait for one to end",
        "此服务器上有 {count} 个重放正在进行：请等待其中一个结束",
    ),
    (
        "a name is 1 to 64 letters, digits, spaces, or one of . + - _, and begins with a letter or digit",
        "名称为 1 到 64 个字母、数字、空格或 . + - _，且以字母或数字开头",
    ),
    ("cannot write {path}: {why}", "无法写入 {path}：{why}"),
    # service profiles
    ("service profile: {problem:t}", "服务参数：{problem}"),
    ("{name:w} is no field (known: {known})", "{name} 不是字段（已知：{known}）"),
    ("{name:w} is missing", "缺少 {name}"),
    ("{name:w} is {value}: must be a text", "{name} 为 {value}：必须是文本"),
    ("{name:w} is {value}: must be a finite number", "{name} 为 {value}：必须是有限数"),
    ("curve is {value}: must be one of {known}", "curve 为 {value}：必须是 {known} 之一"),
)
