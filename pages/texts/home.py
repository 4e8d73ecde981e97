"""Texts of the opening page: what is watched, what is wrong now, what to look at; and the form of the first minute."""

TEXTS: dict[str, tuple[str, str]] = {
    "title": ("What is being watched", "正在观察什么"),
    "watched": (
        "{workers} worker(s), {pools} pool(s): {roles}. {models}",
        "{workers} 个工作节点、{pools} 个池：{roles}。{models}",
    ),
    "role_count": ("{count} {role}", "{role} {count} 个"),
    "models": ("Serving {names}.", "服务模型：{names}。"),
    "models_unknown": ("The workers do not say which model they serve.", "工作节点未说明所服务的模型。"),
    "fresh": (
        "{fresh} of {count} pools are fresh; oldest figure {age}.",
        "{count} 个池中 {fresh} 个新鲜；最旧数据 {age}。",
    ),
    "wrong_title": ("What is wrong now", "现在哪里不对"),
    "wrong_none": (
        "Nothing: every pool answers, none is short of room, and nothing was noticed.",
        "一切正常：每个池都在应答，没有池缺少空间，也没有发现异常。",
    ),
    "wrong_cannot_see": (
        "Nothing can be said: no pool has a fresh figure.",
        "无法判断：没有任何池有新鲜数据。",
    ),
    "wrong_more": ("{count} more", "另有 {count} 项"),
    "wrong_state": ("{count} pool(s) {state}: {pools}.", "{count} 个池{state}：{pools}。"),
    "wrong_late": (
        "{count} of {of} pools answered late, so their figures lag: {pools}.",
        "{of} 个池中有 {count} 个应答延迟，数据滞后：{pools}。",
    ),
    "wrong_silent": ("{count} worker(s) gave no pool: {workers}.", "{count} 个工作节点没有给出池：{workers}。"),
    "wrong_alarm": (
        "{pool}: alarm. Probability of throwing out running answers soon: {probability}.",
        "{pool}：告警。很快踢出正在生成的回答的概率：{probability}。",
    ),
    "wrong_stage": ("{pool}: on the saturation chain, stage {stage} of 6.", "{pool}：已进入饱和链第 {stage}/6 阶段。"),
    "wrong_full": (
        "{pool}: {share} of its room is given away; what arrives next may have to wait.",
        "{pool}：空间已许出 {share}；下一个请求可能要等待。",
    ),
    "wrong_finding": ("{about}{text}", "{about}{text}"),
    "wrong_failed": ("Alarms could not be read: {reason}", "无法读取告警：{reason}"),
    "look": ("Look", "查看"),
    "open": ("Open {page}", "打开{page}"),
    "look_title": ("What to look at", "看什么"),
    "card_fullest": ("Fullest {role} pool", "最满的 {role} 池"),
    "card_fullest_detail": ("{pool}: committed {share}", "{pool}：已承诺 {share}"),
    "card_next": ("Next to run out of room", "下一个用尽空间的"),
    "card_next_detail": ("{pool}: in about {after} at the present rate", "{pool}：按当前速率约 {after}后"),
    "card_next_none": ("No pool is filling up", "没有池正在变满"),
    "card_spread": ("How uneven", "有多不均"),
    "card_spread_detail": ("{high} {high_share}, {low} {low_share}", "{high} {high_share}，{low} {low_share}"),
    "card_spread_none": ("Nothing alike to compare", "没有可比的池"),
    "card_waiting": ("Requests waiting", "等待的请求"),
    "card_waiting_detail": ("each counted once", "每个只算一次"),
    "questions": ("Questions people arrive with", "人们带着的问题"),
    "ask_fleet": ("Which pool is in trouble, and is the number even fresh?", "哪个池有麻烦？数字还新鲜吗？"),
    "ask_saturation": ("How long until a pool runs out, and what then?", "池还有多久用尽？之后会怎样？"),
    "ask_what_if": ("Where would the next request go, and why not elsewhere?", "下一个请求去哪里？为何不去别处？"),
    "ask_replay": ("Would another routing policy have served this traffic better?", "换一种路由策略会更好吗？"),
    "ask_calibration": ("How far can the predictions be trusted?", "预测有多可信？"),
    "ask_tour": ("What is this about? Five minutes, for a room of people.", "这是什么？五分钟，适合讲给大家听。"),
    "ask_glossary": ("What does a word mean?", "某个词是什么意思？"),
    "pools_title": ("Every pool now", "此刻的每个池"),
    "pools_left_out": ("The first {shown} of {count} pools.", "{count} 个池中的前 {shown} 个。"),
    # First minute.
    "first_title": ("Nothing is being watched yet", "还没有观察任何集群"),
    "first_how": (
        "Three ways to begin. The first needs no GPU and shows everything within a minute.",
        "三种开始方式。第一种无需 GPU，一分钟内即可看到全部功能。",
    ),
    "first_demo": ("A demo fleet: real HTTP workers, simulated", "演示集群：真实 HTTP 工作节点，模拟运行"),
    "first_own": ("Your own workers", "您自己的工作节点"),
    "first_check": ("Ask one worker what it tells", "询问一个工作节点能说什么"),
    "first_file": (
        "Copy this into `fleet.toml`, put in your addresses, and start the server on it.",
        "将以下内容复制到 `fleet.toml`，填入地址，然后用它启动服务器。",
    ),
    "probe_title": ("Test a worker's address", "测试工作节点地址"),
    "probe_off": (
        (
            "Testing an address from this page is off. The operator can turn it on with `server.is_url_test_on = true` "
            'and `server.url_test_networks = ["10.0.0.0/8"]` in the fleet file; or run `kvscope check URL` in a shell.'
        ),
        (
            "本页的地址测试已关闭。运维人员可在集群文件中设置 `server.is_url_test_on = true` 和 "
            "`server.url_test_networks`（例如 10.0.0.0/8）打开；也可在终端运行 `kvscope check URL`。"
        ),
    ),
    "probe_url": ("Worker's base address", "工作节点的基础地址"),
    "probe_example": ("http://10.0.0.11:30000", "http://10.0.0.11:30000"),
    "probe_help": (
        (
            "Only addresses in {networks} are reached. Redirects are not followed and no answer is shown, only what "
            "was understood of it."
        ),
        "只访问 {networks} 内的地址。不跟随重定向，也不显示应答原文，只显示从中理解的内容。",
    ),
    "probe_button": ("Test", "测试"),
    "probe_busy": ("Asking…", "正在询问……"),
    "probe_ok": (
        "Understood: {engine} {version}, {role}, {ranks} pool(s) of {usable}.",
        "已理解：{engine} {version}，{role}，{ranks} 个池，每个 {usable}。",
    ),
    "probe_router": (
        "Understood: {engine}, a router that names {count} worker(s).",
        "已理解：{engine}，一个列出 {count} 个工作节点的路由器。",
    ),
    "probe_nothing_yet": (
        "Understood: {engine}; it has published no figures yet.",
        "已理解：{engine}；尚未发布任何数据。",
    ),
    "probe_refused": ("Not asked: {reason}", "未询问：{reason}"),
    "probe_failed": ("Asked, and not understood: {reason}", "已询问，但无法理解：{reason}"),
    "probe_copy": ("A fleet file for it, to copy:", "对应的集群文件，可复制："),
    "probe_wait": ("Another address is being tested; try again in a moment.", "正在测试另一个地址；请稍后再试。"),
}
