"""Texts of the tour: two sentences a step, and the words in its figures."""

TEXTS: dict[str, tuple[str, str]] = {
    "of": ("Step {step} of {count}", "第 {step} 步，共 {count} 步"),
    "next": ("Next", "下一步"),
    "back": ("Back", "上一步"),
    "restart": ("Restart", "重来"),
    "leave": ("Leave", "退出"),
    "explore": ("Explore: {page}", "深入查看：{page}"),
    "finish": ("To the fleet", "前往集群"),
    "keys": ("→ or Page Down goes on, ← or Page Up goes back.", "→ 或 Page Down 前进，← 或 Page Up 后退。"),
    "plays": (
        "Live on the demo fleet · scenario {scenario} for {elapsed}",
        "演示集群实时画面 · 场景 {scenario}，已 {elapsed}",
    ),
    "live_fleet": (
        "Live on your fleet as it is: this is no demo, so nothing is set",
        "您的集群实时画面：并非演示集群，因此不改变任何设置",
    ),
    "steer_failed": ("The demo did not take the scenario: {reason}", "演示集群未接受场景：{reason}"),
    "no_pools": (
        "No pool has answered yet; this step begins by itself once one does.",
        "还没有池应答；一旦应答，本步会自动开始。",
    ),
    "no_fresh": (
        "No pool has given a fresh figure for a while, and old ones tell no story; this step goes on once one does.",
        "所有池都已有一段时间没有新数据，旧数据不足为凭；一旦有新数据，本步会继续。",
    ),
    "needs": (
        "This step needs at least two decode pools of known size. Start the demo with `make demo` to see it.",
        "本步至少需要两个容量已知的 decode 池。请用 `make demo` 启动演示集群。",
    ),
    "building": (
        "The demo is building this up: about {after} more. The figure is live meanwhile.",
        "演示集群正在形成这一局面：约还需 {after}。期间图中为实时数据。",
    ),
    "seconds": ("{count} s", "{count} 秒"),
    # Titles and the two sentences of each step.
    "title_phases": ("Two phases, one cache", "两个阶段，一份缓存"),
    "text_phases": (
        (
            "Prefill reads the whole prompt at once; decode then writes the answer token by token, and must keep "
            "everything read and written so far: the KV cache. Each tank is one GPU pool of that cache, and while an "
            "answer is being written nobody can take it away."
        ),
        (
            "Prefill 一次读完整个提示词；decode 再逐个 token 写出回答，并且必须保留至此读过和写过的一切：KV 缓存。"
            "每个“水箱”是一个 GPU 池的这份缓存，回答写完之前谁也拿不走。"
        ),
    ),
    "title_number": ("What one number hides: {share} full, and healthy", "一个数字掩盖了什么：已满 {share}，却很健康"),
    "text_number": (
        (
            "Memory that holds anything at all looks “used”, but most of it here is prefix: prompts kept in case they "
            "come again, given up the moment someone needs the room. Taken apart, the same pools can still take almost "
            "everything."
        ),
        (
            "只要存着东西，显存看上去就是“已使用”；但这里大部分是前缀：留着以备再次出现的提示词，"
            "有人需要时立即让出。拆开来看，同样的池几乎什么都还装得下。"
        ),
    ),
    "title_share": ("The same percentage, different service", "同样的百分比，不同的服务"),
    "text_share": (
        (
            "Where the two lines cross, both pools show the same percentage. One is full of young answers that all "
            "grow, the other of old ones about to end: what counts is where the line goes next."
        ),
        (
            "两线相交之处，两个池显示同样的百分比。一个装满仍在增长的新回答，另一个则是即将结束的旧回答："
            "重要的是接下来往哪走。"
        ),
    ),
    "title_stampede": (
        "The stampede: {count} requests, one “emptiest” pool",
        "踩踏：{count} 个请求，一个“最空”的池",
    ),
    "text_stampede": (
        (
            "Telemetry is always a little old, so each router that asks “who is emptiest?” within that moment gets the "
            "same answer, and all go there. Counting what was promised but is not visible yet, and where each request "
            "really fits, spreads the same herd."
        ),
        (
            "遥测总有延迟，所以在这一瞬间，每个询问“谁最空？”的路由器都得到同样的答案，然后一拥而上。"
            "把已承诺但尚不可见的部分计入，并看每个请求真正适合哪里，同一群请求就会散开。"
        ),
    ),
    "title_choice": ("D-A or D-B? Guess first", "选 D-A 还是 D-B？先猜"),
    "title_chose": ("D-A or D-B: it goes to {node}", "选 D-A 还是 D-B：去 {node}"),
    "text_choice": (
        (
            "A request of {prompt} prompt tokens arrives, and its KV must go to one of these two decode pools. D-A "
            "shows the lower number: where would you send it?"
        ),
        (
            "来了一个提示词为 {prompt} 个 token 的请求，它的 KV 必须去这两个 decode 池之一。"
            "D-A 的数字更低：您会送到哪里？"
        ),
    ),
    "text_chose": (
        (
            "You said {guess}; by the terms, {node} is better at {at}. Utilization says whether it still fits; "
            "the cost adds waiting, transfer, how full the pool will be as decode starts, and the risk to the promise."
        ),
        (
            "您选了 {guess}；按各项代价，{at} 时 {node} 更好。利用率只回答“还装得下吗”；"
            "代价还计入等待、传输、decode 开始时池会有多满，以及违反延迟承诺的风险。"
        ),
    ),
    "title_chain": ("The chain closing, and the alarm before it", "链条闭合，以及先于它的告警"),
    "text_chain": (
        (
            "Room thins, admission stalls, running answers are thrown out, computed again and hold room even longer: "
            "full pools make themselves fuller. Used looks harmless for long; committed counts what admitted answers "
            "will still need, so the alarm comes while there is time to act."
        ),
        (
            "空间变薄，接纳停滞，正在生成的回答被踢出、重算，又占用更久：满的池让自己更满。"
            "“已使用”久久看似无害；“已承诺”计入已接纳回答仍将需要的量，因此告警在还来得及时到来。"
        ),
    ),
    "title_joint": ("Joint placement, the same traffic", "联合放置，同样的流量"),
    "text_joint": (
        (
            "The same {requests} requests, at the same instants, over a copy of this fleet in which some decode "
            "workers sit behind a congested link: to the lowest utilization, to the same while counting what was just "
            "promised, and by the joint cost. Simulated just now, with the formulas that score the live fleet."
        ),
        (
            "同样的 {requests} 个请求、同样的时刻，跑在本集群的副本上，其中部分 decode 工作节点的链路拥塞："
            "送往最低利用率、同一规则但计入刚作出的承诺、以及按联合代价。"
            "刚刚用给实时集群打分的同一套公式模拟得出，并非预录。"
        ),
    ),
    # Words in the figures.
    "two_prefill": ("Prefill reads: {rate} tokens/s", "Prefill 读：{rate} tokens/s"),
    "two_decode": ("Decode writes: {rate} tokens/s", "Decode 写：{rate} tokens/s"),
    "two_unified": ("both in one", "一体"),
    "two_link": ("KV travels: {rate}", "KV 传输：{rate}"),
    "two_link_quiet": ("KV travels", "KV 传输"),
    "two_alt": ("Every pool as a tank, prefill left, decode right.", "每个池一个水箱，左为 prefill，右为 decode。"),
    "one_name": ("holds anything", "存有内容"),
    "one_left": ("One number: memory that holds anything", "一个数字：存有内容的显存"),
    "one_right": ("The same pools, taken apart", "同样的池，拆开来看"),
    "one_available": ("{share}<br>available", "{share}<br>可供使用"),
    "one_alt": ("The same pools as one number and taken apart.", "同样的池：一个数字与拆开的构成。"),
    "same_full": ("{pool}: full in {after}", "{pool}：{after}后满"),
    "same_empties": ("{pool}: empty in {after}", "{pool}：{after}后空"),
    "same_still": ("{pool}: steady", "{pool}：平稳"),
    "same_unknown": (
        "{pool}: too few samples yet to say where it goes",
        "{pool}：样本太少，尚不能判断走向",
    ),
    "same_detail": ("{share} used by {running} answers", "{running} 个回答占 {share}"),
    "same_now": ("now", "现在"),
    "same_line": ("full", "满"),
    "same_alt": (
        "Used share of two pools over time and the straight line ahead.",
        "两个池的使用占比随时间变化及其直线外推。",
    ),
    "herd_plain": ("Lowest utilization", "最低利用率"),
    "herd_joint": ("Joint cost, promises counted", "联合代价，计入承诺"),
    "herd_result": ("fullest {share}, on {spread} pool(s)", "最满 {share}，落在 {spread} 个池"),
    "herd_refused": (", {count} told to wait", "，{count} 个被要求等待"),
    "herd_alt": (
        "Committed share of every decode pool with a herd on top, two ways to place it.",
        "每个 decode 池的已承诺占比与同一群请求的两种放置。",
    ),
    "node_a": ("D-A", "D-A"),
    "node_b": ("D-B", "D-B"),
    "node_running": ("{count} answers being written", "{count} 个回答正在生成"),
    "node_grows": ("▲ grows {rate}", "▲ 增长 {rate}"),
    "node_shrinks": ("▼ empties {rate}", "▼ 释放 {rate}"),
    "node_still": ("▬ steady", "▬ 平稳"),
    "node_unknown": ("too few samples to say how it moves", "样本太少，尚不知变化"),
    "node_link_busy": ("link busy: {amount} on the way", "链路繁忙：{amount} 在途"),
    "node_link_idle": ("link idle", "链路空闲"),
    "node_alt": ("Two decode pools: what they hold, how they move, their links.", "两个 decode 池：占用、变化与链路。"),
    "chain_used": ("used {share}", "已使用 {share}"),
    "chain_committed": ("committed {share}", "已承诺 {share}"),
    "chain_alarm": ("alarm", "告警"),
    "chain_retracted": ("first answer thrown out", "首个回答被踢出"),
    "chain_lead": (
        "{pool}: the alarm came {lead} before the first answer was thrown out.",
        "{pool}：告警比首个回答被踢出早 {lead}。",
    ),
    "chain_alarm_on": (
        "{pool}: alarm on. Probability of throwing out an answer soon: {probability}.",
        "{pool}：告警中。很快踢出回答的概率：{probability}。",
    ),
    "chain_waiting": (
        "{pool}: probability of throwing out an answer soon: {probability}. The demo fills in half a minute.",
        "{pool}：很快踢出回答的概率：{probability}。演示集群约需半分钟填满。",
    ),
    "chain_unwatched": ("The alarm cannot be read: {reason}", "无法读取告警：{reason}"),
    "chain_alt": ("One pool over time, the alarm, and the six stages.", "一个池随时间的变化、告警与六个阶段。"),
    "stage_1": ("thin headroom", "净空变薄"),
    "stage_2": ("admission stalls", "接纳停滞"),
    "stage_3": ("thrown out", "回答被踢出"),
    "stage_4": ("computed again", "重新计算"),
    "stage_5": ("slow release", "释放变慢"),
    "stage_6": ("long tail", "长尾延迟"),
    "race_running": (
        "Simulating {requests} requests under each policy: {share} done.",
        "正在用各策略模拟 {requests} 个请求：已完成 {share}。",
    ),
    "race_failed": ("The simulation could not run: {reason}", "模拟无法运行：{reason}"),
    "race_low": ("Lowest utilization", "最低利用率"),
    "race_counted": ("Lowest, own promises counted", "最低利用率，计入承诺"),
    "race_joint": ("Joint, own promises counted", "联合放置，计入承诺"),
    "race_missed": ("{count} requests late or refused", "{count} 个请求超时或被拒"),
    "race_x": ("seconds of the run", "运行秒数"),
    "race_y": ("requests that broke their promise", "违反承诺的请求数"),
    "race_alt": ("Requests that broke their promise so far, by policy.", "各策略下至今违反承诺的请求数。"),
    "race_ttft": ("Slowest 1 % wait for the first token", "最慢 1 % 的首 token 等待"),
    "race_good": ("Requests within their promise", "符合承诺的请求"),
    "race_retracted": ("Answers thrown out", "被踢出的回答"),
    "race_was": ("lowest utilization: {value}", "最低利用率：{value}"),
    "race_better": (
        "Joint placement: {share} of requests keep their promise instead of {other}",
        "联合放置：{share} 的请求符合承诺，而非 {other}",
    ),
    "race_same": (
        "Joint placement: no difference this time ({share} and {other})",
        "联合放置：这次没有差别（{share} 与 {other}）",
    ),
    "race_worse": (
        "Joint placement loses this time: {share} instead of {other}",
        "联合放置这次更差：{share}，而非 {other}",
    ),
    "yours": ("Your guess: {node}", "您猜的是 {node}"),
    "again": ("Ask again", "再问一次"),
    "case_over": (
        "The two have changed places meanwhile; the terms below are of the moment of your guess.",
        "二者此时已互换；下方各项为您作答那一刻的数值。",
    ),
}
