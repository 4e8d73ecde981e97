"""Why the store could not be opened, read or written (collectors/store)."""

SAID: tuple[tuple[str, str], ...] = (
    (
        "store: {doing:t} took longer than allowed and was stopped; ask for a shorter range",
        "store：{doing}超时，已停止；请缩短范围",
    ),
    (
        "store: {doing:t} failed: {why}; check free space and permissions of its folder",
        "store：{doing}失败：{why}；请检查其文件夹的剩余空间与权限",
    ),
    ("store: {doing:t} failed: {why}", "store：{doing}失败：{why}"),
    ("store: {doing:t} came after the store was closed", "store：{doing}时存储已关闭"),
    (
        "store: {doing:t} needs a store opened for writing, this one is read-only",
        "store：{doing}需要以写方式打开的存储，而它是只读的",
    ),
    ("storing a cycle", "存储周期"),
    ("storing events", "存储事件"),
    ("storing alerts", "存储警报"),
    ("storing a profile", "存储参数"),
    ("applying a profile", "启用参数"),
    ("keeping a run", "保留运行"),
    ("deleting a run", "删除运行"),
    ("deleting what is too old", "删除过旧内容"),
    ("rolling up to {tier}", "汇总到 {tier}"),
    ("looking at the tiers", "查看各层"),
    ("looking at its version", "查看其版本"),
    ("upgrading its tables", "升级其表"),
    ("opening {path}", "打开 {path}"),
    ("exporting {table}", "导出 {table}"),
    ("reading a series", "读取序列"),
    ("reading polls", "读取轮询"),
    ("reading cycle statistics", "读取周期统计"),
    ("reading findings", "读取发现"),
    ("reading router views", "读取路由器视角"),
    ("reading workers", "读取节点"),
    ("reading the time span", "读取时间跨度"),
    ("reading pools", "读取池"),
    ("reading histories", "读取历史"),
    ("reading events", "读取事件"),
    ("reading alerts", "读取警报"),
    ("reading profiles", "读取参数"),
    ("reading runs", "读取运行"),
    (
        "store: {path} is a folder; name a file in it, for example {example}",
        "store：{path} 是文件夹；请在其中指定文件，例如 {example}",
    ),
    (
        "store: there is no file {path}; `kvscope serve` and `kvscope collect` make one",
        "store：没有文件 {path}；`kvscope serve` 与 `kvscope collect` 会创建它",
    ),
    (
        "store: {path} is empty, no store; `kvscope serve` and `kvscope collect` make one",
        "store：{path} 为空，不是存储；`kvscope serve` 与 `kvscope collect` 会创建它",
    ),
    ("store: cannot make the folder {path}: {why}", "store：无法创建文件夹 {path}：{why}"),
    (
        (
            "store: {path} is in use by {who:t}; stop that process first, or ask it for the data over HTTP (GET "
            "/api/export), because DuckDB lets only one process in while one writes"
        ),
        (
            "store：{path} 正被{who}使用；请先停止该进程，或经 HTTP 向其索取数据（GET /api/export），因为 DuckDB "
            "在写入时只允许一个进程"
        ),
    ),
    ("process {pid:n} ({program})", "进程 {pid}（{program}）"),
    ("another process", "另一进程"),
    (
        "store: {path} is already open in this process in the other mode; share that Store instead",
        "store：{path} 已在本进程中以另一模式打开；请共用那个 Store",
    ),
    (
        "store: {path} is not a DuckDB file; name another file or move this one away",
        "store：{path} 不是 DuckDB 文件；请指定其他文件，或将它移走",
    ),
    ("store: {path} was written by another DuckDB: {why}", "store：{path} 由另一版本的 DuckDB 写成：{why}"),
    (
        "store: {path} is a DuckDB file with {count:n} tables of something else; name another file",
        "store：{path} 是含有 {count} 个其他表的 DuckDB 文件；请指定其他文件",
    ),
    (
        (
            "store: {path} has schema {has:n} and this KVScope knows {knows:n}: a newer KVScope wrote it; start "
            "that version, or name another file"
        ),
        (
            "store：{path} 的架构为 {has}，而此 KVScope 只认识到 {knows}：由更新的 KVScope 写成；请启动该版本，"
            "或指定其他文件"
        ),
    ),
    (
        (
            "store: {path} has schema {has} and this KVScope needs {needs:n}; open it once for writing (`kvscope "
            "serve` or `kvscope collect`) to upgrade it"
        ),
        (
            "store：{path} 的架构为 {has}，而此 KVScope 需要 {needs}；请以写方式打开一次（`kvscope serve` 或 "
            "`kvscope collect`）以升级"
        ),
    ),
    ("table: there is no {name}; choose one of {known}", "table：没有 {name}；请从 {known} 中选择"),
    ("format: there is no {name}; choose one of {known}", "format：没有 {name}；请从 {known} 中选择"),
    ("time range: {end} is not after {start}", "时间范围：{end} 不晚于 {start}"),
    ("time range: it ends at {end:n} s and begins at {start:n} s", "时间范围：结束于 {end} 秒，却开始于 {start} 秒"),
    (
        "time: cannot read {text}; write 2026-11-30T14:05:00Z, epoch seconds, an age such as 15min or 24h, or now",
        "time：无法读取 {text}；请写 2026-11-30T14:05:00Z、纪元秒、如 15min 或 24h 的时长，或 now",
    ),
    ("time: {at} is no instant in epoch seconds", "time：{at} 不是以纪元秒表示的时刻"),
    ("time: not every time given is an instant in epoch seconds", "time：给出的时间并非都是以纪元秒表示的时刻"),
    ("there is no folder {path}; make it or name another", "没有文件夹 {path}；请创建它或指定其他"),
    (
        "{path} is a folder; name a file in it, for example {example}",
        "{path} 是文件夹；请在其中指定文件，例如 {example}",
    ),
    ("{what}: not strict JSON: {why}", "{what}：不是严格的 JSON：{why}"),
    (
        "signals: no such signal {names}; scoring.model.signal_names() lists them",
        "signals：没有信号 {names}；scoring.model.signal_names() 列出全部",
    ),
    ("store: there is no version {version:n} of profile {name}", "store：参数 {name} 没有版本 {version}"),
    (
        "store: a run named {name} is kept already; delete it or choose another name",
        "store：已保留名为 {name} 的运行；请删除它或换一个名称",
    ),
    ("retention: {name} is {value}; an age must be above 0", "retention：{name} 为 {value}；时长必须大于 0"),
    (
        (
            "retention: raw_s, tier_10s_s, tier_1min_s, tier_10min_s are {ages}; each must reach at least as far as "
            "the one before"
        ),
        "retention：raw_s、tier_10s_s、tier_1min_s、tier_10min_s 为 {ages}；每个都必须至少与前一个一样长",
    ),
    ("max_points: {count}; a series needs room for 2 points at least", "max_points：{count}；序列至少需要容纳 2 个点"),
)
