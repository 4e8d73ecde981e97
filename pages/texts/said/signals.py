"""What each raw signal of a pool means (scoring.model), what a name on the screen is, where service times are from."""

SAID: tuple[tuple[str, str], ...] = (
    # units and kinds
    ("gauge", "读数"),
    ("counter", "计数器"),
    ("constant", "常量"),
    ("{value} blocks", "{value} 块"),
    ("{value} requests", "{value} 个请求"),
    ("{value} steps", "{value} 步"),
    ("{value} blocks/s", "{value} 块/秒"),
    ("{value} requests/s", "{value} 个请求/秒"),
    ("{value} steps/s", "{value} 步/秒"),
    ("{value} pts", "{value} 个百分点"),
    # model: capacity and composition
    ("engine clock when these figures were true", "这些数据成立时的引擎时钟"),
    ("engine clock when the answer was built", "生成应答时的引擎时钟"),
    ("what the pool can hold", "池能容纳的总量"),
    ("allocation unit", "分配单位"),
    ("device memory of the pool over all GPUs behind the rank", "池的设备显存，该 rank 全部 GPU 合计"),
    ("KV bytes of one token over all GPUs behind the rank", "每 token 的 KV 字节，该 rank 全部 GPU 合计"),
    ("GPUs behind the rank", "该 rank 的 GPU 数"),
    ("held and not evictable", "被占用且不可驱逐"),
    (
        "held, evictable prefix included, where that is all an engine says",
        "被占用，含可驱逐前缀（引擎只给出这一个数时）",
    ),
    ("used plus the need of waiting requests (num_total_tokens)", "已使用加等待请求的需求（num_total_tokens）"),
    ("used less KV not yet arrived (num_active_tokens)", "已使用减去尚未到达的 KV（num_active_tokens）"),
    ("prefix cache that eviction could free", "可被驱逐释放的前缀缓存"),
    ("holds nothing", "没有任何内容"),
    ("free and evictable together, where not told apart", "空闲与可驱逐之和（未区分时）"),
    ("allocated for KV still travelling, where the engine says it", "为仍在传输的 KV 分配的部分（引擎说明时）"),
    ("the engine's own usage figure, by its own definition", "引擎自己的占用读数，按其自身定义"),
    ("upper bound where processes disagree about usage", "各进程对占用说法不一时的上限"),
    ("sliding-window pool: capacity", "滑动窗口池：容量"),
    ("sliding-window pool: held and not evictable", "滑动窗口池：被占用且不可驱逐"),
    ("sliding-window pool: evictable", "滑动窗口池：可驱逐"),
    ("sliding-window pool: free", "滑动窗口池：空闲"),
    ("sliding-window pool: the engine's usage figure", "滑动窗口池：引擎的占用读数"),
    ("recurrent-state slots", "循环状态槽位"),
    ("recurrent-state slots held", "被占用的循环状态槽位"),
    ("recurrent-state slots that eviction could free", "可被驱逐释放的循环状态槽位"),
    ("recurrent-state slots free", "空闲的循环状态槽位"),
    ("recurrent-state pool: the engine's usage figure", "循环状态池：引擎的占用读数"),
    ("held on the host tier", "主机层占用"),
    ("capacity of the host tier", "主机层容量"),
    # model: requests
    ("requests in the running batch", "运行批次中的请求"),
    (
        "their lengths added up: what a decode step reads, shared or not",
        "其长度之和：一次 decode 步所读的量，无论是否共享",
    ),
    ("cap of the running batch", "运行批次的上限"),
    ("requests the engine reports waiting, all queues", "引擎报告的等待请求，全部队列"),
    ("the main waiting queue alone", "仅主等待队列"),
    ("prefill: waiting for the decode handshake", "prefill：等待与 decode 握手"),
    ("prefill: computed, transfer not finished", "prefill：已计算，传输未完成"),
    ("decode: handshake or waiting for decode KV", "decode：握手或等待 decode 的 KV 空间"),
    ("decode: preallocated, prefill or KV still to come", "decode：已预分配，等待 prefill 或 KV 到达"),
    ("decode: retracted, to be recomputed or reloaded", "decode：被撤回，待重算或重新载入"),
    ("waiting for a grammar", "等待语法"),
    ("paused in the last log window", "最近日志窗口内被暂停"),
    ("decode: blocked by decode capacity alone", "decode：仅因 decode 容量受阻"),
    ("decode: the same, in tokens", "decode：同上，以 token 计"),
    ("prompt tokens waiting to be computed", "等待计算的提示词 token"),
    ("what the engine keeps back per admitted request", "引擎为每个已接纳请求保留的量"),
    # model: counters
    ("prompt tokens computed", "已计算的提示词 token"),
    ("seconds spent computing prompts", "计算提示词所用的秒数"),
    ("decode steps counted", "计入的 decode 步"),
    ("sum of the batch over counted steps", "所计各步的批次之和"),
    ("sum of step seconds over counted steps", "所计各步的秒数之和"),
    ("sum of batch squared", "批次平方之和"),
    ("sum of batch times step seconds", "批次乘步时之和"),
    ("tokens generated in counted steps", "所计各步生成的 token"),
    ("prompt tokens of requests, cached ones included", "请求的提示词 token，含已缓存部分"),
    ("requests retracted or preempted", "被撤回或抢占的请求"),
    ("prompt tokens of retracted requests", "被撤回请求的提示词 token"),
    ("output tokens of retracted requests", "被撤回请求的输出 token"),
    ("prefix tokens freed by eviction", "因驱逐释放的前缀 token"),
    ("tokens loaded back from the host tier", "从主机层载回的 token"),
    ("prompt tokens looked up in the prefix cache", "在前缀缓存中查找的提示词 token"),
    ("prompt tokens found there", "在其中找到的提示词 token"),
    ("prompt tokens looked up in an external cache", "在外部缓存中查找的提示词 token"),
    ("KV transfers failed", "失败的 KV 传输"),
    ("sum of transfer seconds", "传输秒数之和"),
    ("handshakes failed", "失败的握手"),
    ("sum of time to first token", "首 token 时间之和"),
    ("requests in that sum", "该和所含的请求"),
    ("sum of inter-token latency", "token 间隔之和"),
    ("gaps in that sum", "该和所含的间隔"),
    ("sum of end-to-end seconds", "端到端秒数之和"),
    ("sum of queueing seconds", "排队秒数之和"),
    ("the engine's throughput gauge", "引擎的吞吐读数"),
    ("the engine's hit-rate gauge", "引擎的命中率读数"),
    ("the engine's transfer speed gauge", "引擎的传输速度读数"),
    ("the engine's last transfer latency", "引擎最近一次传输的延迟"),
    # service: where coefficients are from
    (
        "our fit to AIConfigurator 0.12.0's vLLM 0.24 silicon tables; error against the tables: {errors:t}",
        "我们对 AIConfigurator 0.12.0 的 vLLM 0.24 实测表的拟合；与表相比的误差：{errors}",
    ),
    (
        "prefill {prefill:n} % (at most {prefill_most:n}), decode {decode:n} % (at most {decode_most:n})",
        "prefill {prefill} %（至多 {prefill_most}），decode {decode} %（至多 {decode_most}）",
    ),
    ("prefill {prefill:n} %, decode {decode:n} %", "prefill {prefill} %，decode {decode} %"),
    (
        (
            "Dynamo's mocker (perf_model.rs): 4.209989e-7 N^2 + 1.518344e-2 N + 16.50142 ms of N new tokens in the "
            "batch; -25.74 u^2 + 54.01 u + 5.74 ms, blind to batch size: for parity, not physics"
        ),
        (
            "Dynamo 的 mocker（perf_model.rs）：批次中 N 个新 token 为 4.209989e-7 N^2 + 1.518344e-2 N + 16.50142 "
            "毫秒；-25.74 u^2 + 54.01 u + 5.74 毫秒，与批次大小无关：用于对齐，而非物理"
        ),
    ),
    (
        (
            "llm-d inference-sim's form, overhead + uncached * t and (out - 1) * ITL, with its sample values (100 "
            "ms, 0.2 ms a token, 30 ms a step): chosen, not measured"
        ),
        (
            "llm-d inference-sim 的形式：固定开销 + 未缓存 * t 与（输出 - 1）* ITL，取其示例值（100 毫秒、每 token "
            "0.2 毫秒、每步 30 毫秒）：选定而非测得"
        ),
    ),
    (
        (
            "DistServe's simulator, OPT-13B TP1 on A100: prefill 18.10 + .1019 n + 7.12e-6 n^2 ms, decode 19.93 + "
            "6.27e-4 sumKV + .0385 B ms, and 7.17 + 5.80e-4 sumKV + .158 B ms from batch 95"
        ),
        (
            "DistServe 的模拟器，A100 上的 OPT-13B TP1：prefill 18.10 + .1019 n + 7.12e-6 n^2 毫秒，decode 19.93 + "
            "6.27e-4 sumKV + .0385 B 毫秒，批次 95 起为 7.17 + 5.80e-4 sumKV + .158 B 毫秒"
        ),
    ),
)
