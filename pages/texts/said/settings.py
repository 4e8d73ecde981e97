"""Problems of a fleet file (collectors/settings)."""

SAID: tuple[tuple[str, str], ...] = (
    ("{place:w}: {key:w} {problem:t}", "{place}：{key} {problem}"),
    # load
    (
        "{file}: no such file; write one (examples/fleet.toml shows every key)",
        "{file}：没有这个文件；请写一个（examples/fleet.toml 列出所有键）",
    ),
    (
        "{file}: cannot be read ({why}); it must be a UTF-8 text you may read",
        "{file}：无法读取（{why}）；它必须是您可读的 UTF-8 文本",
    ),
    ("{file}: is not valid TOML: {why}", "{file}：不是有效的 TOML：{why}"),
    ("is missing; add it", "缺少；请补上"),
    ("must be a table, as in [{name}]", "必须是表，如 [{name}]"),
    ('must be a list, as in ["a", "b"] (or [[tables]])', '必须是列表，如 ["a", "b"]（或 [[表]]）'),
    ("is not right: {why:t}", "不对：{why}"),
    ("= {value} is not right: {why:t}", "= {value} 不对：{why}"),
    ("input should be greater than {least:n}", "应大于 {least}"),
    ("input should be greater than or equal to {least:n}", "应大于或等于 {least}"),
    ("input should be less than {most:n}", "应小于 {most}"),
    ("input should be less than or equal to {most:n}", "应小于或等于 {most}"),
    ("input should be a finite number", "应为有限数"),
    ("input should be a valid number", "应为数"),
    ("input should be a valid integer", "应为整数"),
    ("input should be a valid boolean", "应为 true 或 false"),
    ("input should be a valid string", "应为文本"),
    ("input should be {known}", "应为 {known}"),
    (
        "is refused: secrets do not belong in the file; write token_env = the NAME of an environment variable",
        "被拒：密钥不应出现在文件中；请写 token_env = 环境变量的名称",
    ),
    ("is not a key of the fleet file; {hint:t}", "不是集群文件的键；{hint}"),
    ("did you mean {name}?", "是否想写 {name}？"),
    ("known here: {names}", "此处已知：{names}"),
    ("remove it", "请删除"),
    # checks
    (
        "= {value:n} s must be more than {other} = {limit:n} s, or every figure is late; about {usual:n} is usual",
        "= {value} 秒必须大于 {other} = {limit} 秒，否则所有数据都是延迟；通常约 {usual}",
    ),
    ("= {value:n} s must be more than {other} = {limit:n} s", "= {value} 秒必须大于 {other} = {limit} 秒"),
    (
        "= {value:n} s must be more than {other} = {limit:n} s, or a lease ends before telemetry can show it",
        "= {value} 秒必须大于 {other} = {limit} 秒，否则租约在遥测显示之前就到期",
    ),
    ("= {value:n} s must not exceed {other} = {limit:n} s", "= {value} 秒不得超过 {other} = {limit} 秒"),
    (
        "= {value:n} s must hold at least two polls ({span:n} s apart)",
        "= {value} 秒必须至少容纳两次轮询（相隔 {span} 秒）",
    ),
    (
        "= {value:n} s must be more than {other} = {limit:n} s, or figures are stale before the next ones come",
        "= {value} 秒必须大于 {other} = {limit} 秒，否则下一批数据到来前就已陈旧",
    ),
    (
        "= {value:n} s must not be less than {other} = {limit:n} s: the coarser rollup is what remains",
        "= {value} 秒不得小于 {other} = {limit} 秒：留下来的是更粗的汇总",
    ),
    (
        "is the address of workers[{index:n}] already; list each worker once",
        "已是 workers[{index}] 的地址；每个节点只列一次",
    ),
    (
        "{name} is the name of workers[{index:n}] already; names are unique",
        "{name} 已是 workers[{index}] 的名称；名称必须唯一",
    ),
    ("= {value} is not an engine we speak; {hint:t}", "= {value} 不是我们支持的引擎；{hint}"),
    ("known: auto, {names}", "已知：auto、{names}"),
    (
        "is empty: no tenant could ever use the worker; remove it for everyone",
        "为空：没有租户能使用该节点；若对所有人开放请删除",
    ),
    ("= {value} is no worker of this file; {hint:t}", "= {value} 不是此文件中的节点；{hint}"),
    ("write a worker's name or *", "请写节点名或 *"),
    ("= {path}: holds no PEM certificate that can be read", "= {path}：没有可读取的 PEM 证书"),
    (
        "= {path}: does not hold a PEM certificate with its key (or client_key_file does not)",
        "= {path}：不含带密钥的 PEM 证书（或 client_key_file 不含）",
    ),
    ("= {path}: no such file", "= {path}：没有这个文件"),
    (
        "is set without client_cert_file; a key alone proves nothing",
        "已设定，却没有 client_cert_file；仅有密钥不能证明什么",
    ),
    ("= {path}: the folder does not exist; make it", "= {path}：文件夹不存在；请创建"),
    ("= {path}: is a folder; name a file in it", "= {path}：是文件夹；请在其中指定文件"),
    (
        "names the environment variable {name}, which is not set; set it before the start",
        "指定的环境变量 {name} 未设置；请在启动前设置",
    ),
    (
        "names {name}, whose value holds a space, line break or non-ASCII character",
        "指定的 {name}，其值含有空格、换行或非 ASCII 字符",
    ),
    (
        (
            "= {address} is reachable from outside; set server.token_env too, or listen on 127.0.0.1 behind a proxy "
            "that asks for a login"
        ),
        "= {address} 可从外部访问；请同时设定 server.token_env，或在要求登录的代理之后监听 127.0.0.1",
    ),
    (
        "is on without url_test_networks; list the networks the form may reach",
        "已打开，却没有 url_test_networks；请列出表单可访问的网络",
    ),
    ("is set beside webhook_url; keep one of the two", "与 webhook_url 同时设定；请只保留其一"),
    ("needs a name (text)", "需要名称（文本）"),
    ("= {name} is used by rules[{index:n}] already", "= {name} 已被 rules[{index}] 使用"),
    # units, values
    (
        "is not {what:t}; write a number with a unit, for example {example}",
        "不是{what}；请写带单位的数，例如 {example}",
    ),
    ("a duration", "时长"),
    ("a size", "大小"),
    ("a bandwidth", "带宽"),
    (
        'is not a duration; write seconds as a number, or text such as "500 ms"',
        '不是时长；请以数写秒，或写文本如 "500 ms"',
    ),
    ("has the unknown unit {unit}; known: {known}", "单位 {unit} 未知；已知：{known}"),
    ('is not a size; write bytes as a number, or text such as "8 MiB"', '不是大小；请以数写字节，或写文本如 "8 MiB"'),
    (
        'is not a bandwidth; write bytes per second, or text such as "50 GB/s" or "400 Gbit/s"',
        '不是带宽；请写每秒字节数，或写文本如 "50 GB/s" 或 "400 Gbit/s"',
    ),
    (
        'has the unit {unit}, which is a size; a bandwidth is per second, for example "50 GB/s"',
        '单位为 {unit}，那是大小；带宽以每秒计，例如 "50 GB/s"',
    ),
    (
        "has the unknown unit {unit}; known: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, and bit for bits",
        "单位 {unit} 未知；已知：B、kB、MB、GB、TB、KiB、MiB、GiB、TiB，比特写 bit",
    ),
    ("is not a finite number", "不是有限数"),
    (
        "looks like a token; keep tokens out of the file: write the NAME of an environment variable that holds it",
        "看起来像令牌；请勿将令牌写入文件：请写存放它的环境变量的名称",
    ),
    (
        "is not the name of an environment variable (letters, digits and _, not starting with a digit)",
        "不是环境变量名（字母、数字与 _，不以数字开头）",
    ),
    (
        "is not an http:// or https:// address, for example http://10.0.0.5:30000",
        "不是 http:// 或 https:// 地址，例如 http://10.0.0.5:30000",
    ),
    ("has a port that is not a number from 1 to 65535", "端口不是 1 到 65535 的数"),
    ("has port 0; write the port the server listens on", "端口为 0；请写服务器监听的端口"),
    (
        "carries a user name or password; remove it and name an environment variable with token_env",
        "带有用户名或密码；请删除，并用 token_env 指定环境变量",
    ),
    (
        "carries a token in its query; remove it and name an environment variable with token_env",
        "查询部分带有令牌；请删除，并用 token_env 指定环境变量",
    ),
    (
        "has a query or fragment; write the worker's base address alone, the paths are the engine's",
        "带有查询或片段；请只写节点的基础地址，路径由引擎决定",
    ),
    (
        "is no usable name: 1 to 120 characters, no slash, no line break, no space at either end",
        "不是可用的名称：1 到 120 个字符，不含斜杠与换行，两端没有空格",
    ),
    (
        'is not a network in CIDR form ({why}); for example "10.20.0.0/16"',
        '不是 CIDR 形式的网络（{why}）；例如 "10.20.0.0/16"',
    ),
    # geometry of a configured model
    ("= {path}: cannot be read as JSON ({why})", "= {path}：无法作为 JSON 读取（{why}）"),
    ("= {path}: is no model configuration (a JSON object)", "= {path}：不是模型配置（JSON 对象）"),
    ("= {path}: {problem:t}", "= {path}：{problem}"),
)
