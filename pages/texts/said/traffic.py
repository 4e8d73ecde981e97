"""What a traffic file could not give, and what was done to traffic (simulation: trace*, workload*)."""

SAID: tuple[tuple[str, str], ...] = (
    # trace, trace_rows
    ("the trace is empty: not one line that is not blank", "流量文件为空：没有一行非空"),
    ("no trace format is called {name}: there are {known}", "没有名为 {name} 的流量格式：有 {known}"),
    (
        "this is no text: a trace is lines of JSON or CSV, as they are or in gzip",
        "这不是文本：流量文件是 JSON 或 CSV 行，可为原样或 gzip 压缩",
    ),
    (
        "no trace format fits row {row:n} ({shown}): there are {known}; say which it is",
        "没有流量格式适合第 {row} 行（{shown}）：有 {known}；请指明是哪种",
    ),
    ("no {name:w}", "缺少 {name}"),
    ("no Request tokens", "缺少 Request tokens"),
    ("no Response tokens", "缺少 Response tokens"),
    ("{name} is no number", "{name} 不是数"),
    ("{name} is no count", "{name} 不是计数"),
    ("{name} is no whole number", "{name} 不是整数"),
    ("{name} is below {least:n}", "{name} 小于 {least}"),
    ("{name} is above {most:n}", "{name} 大于 {most}"),
    ("{name} is not finite", "{name} 不是有限数"),
    ("hash_ids are not whole numbers of 64 bits", "hash_ids 不是 64 位整数"),
    ("hash_ids are negative", "hash_ids 为负"),
    ("{reason:t} ({count:n} rows, first {row:n})", "{reason}（{count} 行，首行为第 {row} 行）"),
    ("no usable row in this {name:w} trace: {reasons:t}", "此 {name} 流量文件中没有可用的行：{reasons}"),
    ("it has no data rows", "没有数据行"),
    (
        "{count:n} row(s) earlier than the row before, sorted by time (first: row {row:n})",
        "{count} 行早于其前一行，已按时间排序（首个：第 {row} 行）",
    ),
    (
        (
            "arrivals are quantised to about {tick:n} s: {count:n} requests on {times:n} distinct times; spread "
            "them inside the tick to avoid bursts that are not real"
        ),
        (
            "到达时间被量化到约 {tick} 秒：{count} 个请求只落在 {times} 个不同时刻；请在刻度内打散，"
            "以免出现并不存在的突发"
        ),
    ),
    (
        "no prefix information: the hit ratio is unknown, and results that rest on reuse are withheld",
        "没有前缀信息：命中率未知，依赖复用的结果不予给出",
    ),
    (
        "{missing:n} of {count:n} requests carry no prefix information: their reuse is unknown, not 0",
        "{count} 个请求中有 {missing} 个没有前缀信息：其复用未知，而不是 0",
    ),
    ("stopped after {count:n} rows, as asked", "按要求在 {count} 行后停止"),
    # trace_json
    ("not a JSON object (cut or malformed)", "不是 JSON 对象（被截断或格式错误）"),
    ("not a JSON object", "不是 JSON 对象"),
    (
        "no input_length: a row of text needs a tokenizer, which is not part of the trace",
        "缺少 input_length：文本行需要 tokenizer，而流量文件不含它",
    ),
    ("no timestamp: usable for closed-loop replay only", "缺少 timestamp：只能用于闭环重放"),
    ("hash_ids are not a list of whole numbers", "hash_ids 不是整数列表"),
    (
        "more hash_ids than its prompt has blocks of {block:n} tokens« (say another block size)»",
        "hash_ids 多于其提示词按 {block} token 一块的块数«（请指明另一块大小）»",
    ),
    (
        "a hash id twice in one prompt: ids must stand for a block and all before it",
        "同一提示词中 hash id 重复：id 必须代表一个块及其之前的全部",
    ),
    (
        (
            "times have fractions and span {span:n}: taken as seconds, not the format's milliseconds (as "
            "milliseconds {count:n} requests would arrive within {within:n} ms); --time-unit says otherwise"
        ),
        (
            "时间带小数且跨度为 {span}：按秒而非该格式的毫秒处理（若按毫秒，{count} 个请求将在 {within} 毫秒内到达）"
            "；可用 --time-unit 另行指定"
        ),
    ),
    ("fields not used: {names}", "未使用的字段：{names}"),
    (
        "{count:n} row(s) name fewer whole blocks than their prompt has: the rest is taken as new",
        "{count} 行给出的整块少于其提示词的块数：其余按新内容处理",
    ),
    (
        "every row's hash_ids fit blocks of {fitting:n} tokens, not {block:n}: say --block-size {size:n}",
        "每行的 hash_ids 都符合 {fitting} token 的块，而不是 {block}：请指明 --block-size {size}",
    ),
    (
        "content ids without token lengths: pieces are reused out of order, prefix reuse cannot be told",
        "内容 id 没有 token 长度：片段以不同顺序复用，无法判断前缀复用",
    ),
    (
        "some requests have no output: they end with their prefill and have no TPOT",
        "有些请求没有输出：它们随 prefill 结束，没有 TPOT",
    ),
    ("not a request.finished event", "不是 request.finished 事件"),
    ("no out.meta_info", "缺少 out.meta_info"),
    (
        "request ids told twice are taken once (first: rows {first:n} and {second:n})",
        "重复出现的请求 id 只取一次（首个：第 {first} 与 {second} 行）",
    ),
    ("a request id met before", "请求 id 已出现过"),
    (
        "some arrivals are taken as request_finished_ts - e2e_latency (no request_received_ts)",
        "部分到达时间取 request_finished_ts - e2e_latency（没有 request_received_ts）",
    ),
    (
        "no arrival time (start the server with --enable-metrics to have request_received_ts)",
        "缺少到达时间（以 --enable-metrics 启动服务器才有 request_received_ts）",
    ),
    ("hash_block_tokens differs from {block:n} of the rows before", "hash_block_tokens 与前面各行的 {block} 不同"),
    # trace_csv
    ("TIMESTAMP has more than nine fractional digits", "TIMESTAMP 的小数多于九位"),
    ("TIMESTAMP is no date and time", "TIMESTAMP 不是日期时间"),
    (
        "row 1: the columns {names} are missing; found: {found}. Add them or name another format",
        "第 1 行：缺少列 {names}；现有：{found}。请补上，或指明另一格式",
    ),
    (
        (
            "row 1: the columns {names} are missing (optional and missing too: {also}); found: {found}. Add them or "
            "name another format"
        ),
        "第 1 行：缺少列 {names}（可选且也缺少：{also}）；现有：{found}。请补上，或指明另一格式",
    ),
    ("columns not used: {names}", "未使用的列：{names}"),
    (
        "{count:n} columns expected, another number found (cut or badly quoted)",
        "应有 {count} 列，实际数目不同（被截断或引号有误）",
    ),
    ("the times carry no zone: taken as UTC", "时间没有时区：按 UTC 处理"),
    ("Response tokens is 0: a failed request, not replayed", "Response tokens 为 0：失败的请求，不重放"),
    (
        "{failed:n} of {met:n} failed (kept as asked): their Response tokens is 0",
        "{met} 个中有 {failed} 个失败（按要求保留）：其 Response tokens 为 0",
    ),
    (
        "{failed:n} of {met:n} failed (left out): their Response tokens is 0",
        "{met} 个中有 {failed} 个失败（已略去）：其 Response tokens 为 0",
    ),
    (
        "{count:n} row(s) whose Total tokens is not the sum of both: the column is not used",
        "{count} 行的 Total tokens 不等于两者之和：不使用该列",
    ),
    (
        "reuse between turns of a session is an estimate: at most the turn before, prompt and answer",
        "会话各轮之间的复用为估计：至多为上一轮的提示词与回答",
    ),
    # trace_readings
    (
        "no request finished in these {count:n} readings: a longer time, or engines that count them",
        "这 {count} 个读数中没有请求完成：请取更长时间，或使用会计数的引擎",
    ),
    (
        "{count:n} requests finished in these readings: at most {most:n}, take a shorter time",
        "这些读数中完成了 {count} 个请求：至多 {most} 个，请取更短时间",
    ),
    (
        "the readings count requests but no prompt or output tokens: lengths are unknown",
        "读数计了请求，却没有提示词或输出 token：长度未知",
    ),
    (
        (
            "rebuilt from counters: {count:n} requests finished in {readings:n} readings; all requests of one "
            "stretch of {span:n} s are alike and evenly spaced, and arrive when they were counted as finished"
        ),
        (
            "由计数器重建：{readings} 个读数中完成 {count} 个请求；同一 {span} 秒内的请求彼此相同、均匀分布，"
            "并以其被计为完成的时间为到达时间"
        ),
    ),
    ("{count:n} counter(s) fell: the worker restarted and counts from 0", "{count} 个计数器回落：节点重启，从 0 计起"),
    # trace_sessions
    ("requests are no list, or nested too deep", "requests 不是列表，或嵌套过深"),
    ("session {number:n} is no whole JSON document: {why}", "会话 {number} 不是完整的 JSON 文档：{why}"),
    ("session {number:n} has no `requests` list", "会话 {number} 没有 `requests` 列表"),
    (
        "session {number:n} has blocks of {block:n} tokens, those before {before:n}: read them apart",
        "会话 {number} 的块为 {block} token，前面的为 {before}：请分开读取",
    ),
    (
        "{count:n} sessions, each from its own time zero: stagger them to spread their starts",
        "{count} 个会话，各自从时间零开始：请错开以分散其开始",
    ),
    # trace_files
    (
        "{path}: looks like a pickle, which is never loaded; export the requests as JSON lines",
        "{path}：看起来是 pickle，从不加载；请将请求导出为 JSON 行",
    ),
    ("{path}: binary, no text trace", "{path}：二进制文件，不是文本流量"),
    ("{path}: a line is longer than {most:n} bytes", "{path}：有一行超过 {most} 字节"),
    ("{path}: no *.json session documents in this folder", "{path}：此文件夹中没有 *.json 会话文档"),
    ("{path}: no such file", "{path}：没有这个文件"),
    ("{path}: cannot be read ({why})", "{path}：无法读取（{why}）"),
    # workload
    ("swing_ratio is {value}: must be between 0 and 1", "swing_ratio 为 {value}：必须在 0 与 1 之间"),
    ("mixes must hold at least one kind, each with a weight above 0", "mixes 至少要有一种，权重都须大于 0"),
    (
        "rate_per_s * duration_s is {count:n} requests: at most {most:n}",
        "rate_per_s * duration_s 为 {count} 个请求：至多 {most}",
    ),
    (
        "synthetic: {arrivals:t} at {rate:n}/s for {span:n} s, seed {seed:n}",
        "合成：{arrivals}，每秒 {rate} 个，历时 {span} 秒，种子 {seed}",
    ),
    ("poisson", "泊松"),
    ("gamma", "突发（Gamma）"),
    ("diurnal", "起伏"),
    ("even", "均匀"),
    ("the trace has no label {name}: it has {known}", "流量没有标签 {name}：有 {known}"),
    ("the trace has no label {name}: sessions cannot be told apart", "流量没有标签 {name}：无法区分会话"),
    ("{kept:n} of {count:n} requests kept by the filter", "过滤后保留 {count} 个请求中的 {kept} 个"),
    ("speed is {value}: must be a finite number above 0", "speed 为 {value}：必须是大于 0 的有限数"),
    ("arrivals {speed:n} times as fast", "到达速度为 {speed} 倍"),
    ("keep_ratio is {value}: must be above 0 and at most 1", "keep_ratio 为 {value}：必须大于 0 且至多 1"),
    (
        "{kept:n} of {count:n} requests kept at random (seed {seed:n})",
        "随机保留 {count} 个请求中的 {kept} 个（种子 {seed}）",
    ),
    ("arrivals spread inside ticks of {tick:n} s (seed {seed:n})", "到达时间在 {tick} 秒的刻度内打散（种子 {seed}）"),
    ("sessions start {gap:n} s apart on average (seed {seed:n})", "会话平均相隔 {gap} 秒开始（种子 {seed}）"),
    # workload_shape
    ("the filters leave no request: widen them", "过滤后没有请求：请放宽条件"),
    ("class {name} is not known: there are {known}", "等级 {name} 未知：有 {known}"),
    ("the trace names class {name}: there are {known}", "流量中出现等级 {name}：有 {known}"),
    ("{word} is no way of arriving: there are {known}", "{word} 不是到达方式：有 {known}"),
    ("synthetic: {name} is not known: there are {known}", "合成：{name} 未知：有 {known}"),
    ("synthetic: {name} is {value}: must be a number", "合成：{name} 为 {value}：必须是数"),
    ("the recipe brings no request: raise rate or duration", "此配方不产生请求：请提高速率或时长"),
    # traffic
    ("{name} must be numbers, got {kind}", "{name} 必须是数，得到的是 {kind}"),
    ("{name} is {value}: must be a whole number", "{name} 为 {value}：必须是整数"),
    ("{name:w} has {count:n} rows, {expected:n} expected", "{name} 有 {count} 行，应为 {expected}"),
    (
        "offsets must rise from 0 to {count:n}, the number of hash_ids",
        "offsets 必须从 0 升至 {count}，即 hash_ids 的个数",
    ),
    ("{name} is {value}: must not be negative", "{name} 为 {value}：不得为负"),
)
