"""
Where everything sits in the kernel's arrays: one row an entity, one named column a quantity.

The kernel (`blocks`, `network`, `runs`, `requests`, `pools`, `routing`, `engine`) reads and writes these arrays only,
by scalar index, so that the same functions run compiled over numpy arrays and plain over memoryviews of them (see
`compiled` and `live`).
Times are seconds; -1 stands for "no such row" in columns that hold an index; NaN for "has not happened" in times.
"""

from typing import Any, NamedTuple

# Requests, whole numbers (State.ri).
(
    R_PROMPT,  # prompt tokens
    R_OUTPUT,  # output tokens, the policy never sees them
    R_OFFSET,  # first of the request's block keys in State.keys
    R_KEYS,  # how many
    R_P,  # pool that computes the prompt
    R_D,  # pool that decodes
    R_STAGE,
    R_GENERATED,  # tokens emitted so far
    R_TARGET,  # tokens the current prefill must reach: prompt, or prompt + generated when recomputing
    R_DONE,  # of these, in the cache or computed
    R_CHUNK,  # tokens the running iteration computes
    R_SIDE,  # where it computes: 0 the prefill pool, 1 the decode pool
    R_HIT,  # prefix hit tokens of the first admission, where computed
    R_LOCK0,  # units locked in the prefill pool, R_LOCK0 + 1 in the decode pool
    R_LOCK1,
    R_ALLOC0,  # positions allocated in the prefill pool (decode: R_ALLOC0 + 1); the locked units included
    R_ALLOC1,
    R_FLIGHT0,  # blocks counted as in flight on that side
    R_FLIGHT1,
    R_FLIGHT_TOKENS0,
    R_FLIGHT_TOKENS1,
    R_BASE,  # positions held less the pool's step counter, constant while it decodes
    R_FIN,  # the pool's step counter when the last token is out
    R_JOIN,  # rises with each join, so that the youngest can be found
    R_NEXT0,  # next in a queue of the prefill side
    R_NEXT1,  # next in a queue of the decode side
    R_FLAG,
    R_OUTCOME,
    R_RETRACTED,  # times
    R_RECOMPUTED,  # tokens computed again
    R_SENT,  # units that need not travel (transfer_mode missing), in tokens
    R_CLASS,
    R_REROUTED,  # times placed again after a worker died
    R_LEASED,  # leases outstanding: bit 1 on the prefill pool, bit 2 on the decode pool
    NR,
) = range(35)

# Requests, times (State.rf).
(
    F_ARRIVAL,
    F_PREFILL_START,
    F_PREFILL_END,
    F_TRANSFER_START,
    F_TRANSFER_END,
    F_FIRST,
    F_FINISH,
    F_ALLOCATED,
    F_LAST,  # last token out, for inter-token gaps of those that join
    F_BYTES,  # sent over links
    F_PLACED,  # given to its pools, the last time
    NF,
) = range(12)

# Stages.
(
    S_NEW,
    S_BOOTSTRAP,  # waits for decode to preallocate
    S_QUEUED,  # waits to be computed
    S_PREFILL,  # in the pool's work list
    S_COMPUTED,  # computed; decode has no room yet
    S_TRANSFER,  # KV travels, or waits for a credit
    S_ARRIVED,  # KV complete, waits to join the batch
    S_DECODE,
    S_RETRACTED,
    S_DONE,
) = range(10)

(FLAG_NONE, FLAG_CANCEL, FLAG_REROUTE) = range(3)
(O_OPEN, O_FINISHED, O_REJECTED, O_CANCELLED, O_TOO_LARGE) = range(5)

# Queues (State.q[pool, queue, column]).
(Q_BOOTSTRAP, Q_MAIN, Q_INFLIGHT, Q_PREALLOC, Q_TRANSFER, Q_ARRIVED, Q_RETRACTED, Q_CREDIT, NQ) = range(9)
(Q_HEAD, Q_TAIL, Q_COUNT, Q_TOKENS, NQC) = range(5)

# Pools, whole numbers (State.pi).
(
    P_USABLE,  # blocks
    P_PAGE,  # tokens of a block
    P_UNIT,  # tokens of a prefix unit
    P_UNIT_BLOCKS,
    P_RATIO,  # keys in State.keys per unit
    P_ROLE,  # bit 1 computes prompts for others, bit 2 decodes
    P_CACHES,
    P_CACHES_OUTPUT,
    P_MIXED,
    P_MAX_RUNNING,
    P_BUDGET,
    P_RESERVE,
    P_CREDIT,  # most concurrent incoming transfers, 0 without limit
    P_INCOMING,
    P_END,  # network end (worker)
    P_FREE,  # blocks
    P_EVICTABLE,  # blocks
    P_TAIL,  # positions allocated and not filled
    P_FLIGHT,  # blocks in flight
    P_FLIGHT_TOKENS,  # their filled positions
    P_ADMITTED,  # requests that hold room on the decode side
    P_PHASE,
    P_K,  # steps of the run
    P_APPLIED,  # of these, steps whose positions are allocated
    P_COUNTED,  # of these, steps whose tokens are counted
    P_RUN_KV,  # tokens the first step of the run reads
    P_RUN_B,  # batch of the run
    P_STEP,  # steps ever done
    P_KV,  # positions held by the batch at P_STEP
    P_NB,  # running batch
    P_NW,  # work list
    P_JOINED,  # of the batch, sequences that joined since the last step
    P_LRU_HEAD,
    P_LRU_TAIL,
    P_NODE_FREE,
    P_NODES,
    P_MASK,
    P_UP,  # 0 while the worker is dead
    P_OPEN,  # 0 while draining
    P_LARGE,  # batch from which the large coefficients hold
    P_POLY,  # 1: prefill takes the tokens of a batch together
    C_STEPS,
    C_BATCH,  # sum of the batch over steps
    C_BATCH2,
    C_GENERATED,
    C_UNCACHED,  # prompt tokens computed
    C_PROMPT,  # prompt tokens of admitted requests
    C_HIT,  # of these, found in the cache
    C_RETRACTED,
    C_RETRACTED_IN,
    C_RETRACTED_OUT,
    C_RECOMPUTED,
    C_EVICTED,  # tokens
    C_FINISHED,
    C_TRANSFERS,
    C_STARTED,  # iterations of prompt work
    C_TOO_LARGE,
    C_MOVED,  # positions ever allocated to batches, for growth
    NP,
) = range(59)

# Pools, times and sums (State.pf).
(
    T_RUN,  # when the iteration started
    T_NEXT,  # when it ends; inf when idle
    T_LAST,  # end of the last decode step
    K_BASE,
    K_SEQUENCE,
    K_TOKEN,
    K_TOKEN2,
    K_LARGE_BASE,
    K_LARGE_SEQUENCE,
    K_LARGE_TOKEN,
    K_PREFILL_BASE,
    K_PREFILL_TOKEN,
    K_PREFILL_TOKEN2,
    K_BYTES,  # of one token
    C_STEP_S,
    C_BATCH_STEP_S,
    C_BUSY_S,  # computing prompts
    C_BYTES,  # sent (prefill) or received (decode)
    C_TRANSFER_S,
    L_PROMPT,  # leased to prompts to compute and not yet visible in telemetry, tokens
    L_ROOM,  # leased to requests to decode and not yet visible in telemetry, tokens
    NPF,
) = range(22)

(PHASE_IDLE, PHASE_PREFILL, PHASE_DECODE, PHASE_MIXED) = range(4)

# Cache nodes (State.nodes[pool, node, column]).
(N_KEY, N_REF, N_BLOCKS, N_PREV, N_NEXT, NN) = range(6)
KEY_OUTPUT = -2
"""Key of a node that holds generated blocks: counted, evictable, never found."""

# Flows (State.fi, State.ff).
(L_REQUEST, L_SOURCE, L_TARGET, L_FIXED, NFI) = range(5)
(L_REMAINING, L_RATE, L_START, L_END, L_PATH_RATE, NFF) = range(6)

# Global, whole numbers (State.g).
(
    G_COUNT,  # rows of requests in use
    G_NEXT,  # arrivals taken from State.order
    G_ARRIVALS,  # rows of State.order
    G_OPEN,  # placed and not done
    G_FLOWS,
    G_JOIN,
    G_PENDING,  # request that waits for a Python policy, or -1
    G_POLICY,
    G_RANDOM1,
    G_RANDOM2,
    G_TURN_P,
    G_TURN_D,
    G_HANDSHAKE,
    G_SHARING,
    G_MISSING,
    G_DECIDER,
    G_FEWEST,
    G_RETRY_HEAD,
    G_RETRY_TAIL,
    G_SAMPLES,
    G_FAULT,  # next row of State.faults
    G_KEEP,  # run to the given time even when nothing is left to do
    G_LEASES,
    G_SEEN,  # telemetry rows taken
    G_ON_FULL,  # 0 queue, 1 reject
    G_EVENTS,
    G_FROZEN,  # telemetry stands still
    G_LEASE_COUNT,  # rows of State.leases in use
    G_VIEW,  # row of State.seen that the decision in hand reads, or -1
    G_PLACED,
    G_PLACED_TOKENS,  # prompts
    G_ENDED,
    G_ENDED_TOKENS,  # outputs of finished requests
    NG,
) = range(34)

# Global, times (State.gf).
(
    V_NOW,
    V_NET,  # next event of the network
    V_NET_AT,  # when flows were last advanced
    V_SAMPLE,  # next sample
    V_PERIOD,
    V_TELEMETRY,  # next telemetry
    V_TELEMETRY_PERIOD,
    V_AGE,
    V_OVERLAP,
    V_GATE,
    V_BUDGET,  # TTFT budget of the joint policy
    NV,
) = range(12)

(
    POLICY_GIVEN,
    POLICY_PYTHON,
    POLICY_ROUND_ROBIN,
    POLICY_RANDOM,
    POLICY_LOWEST,
    POLICY_TWO,
    POLICY_GUARDED,
    POLICY_JOINT,
) = range(8)
(RUN_DONE, RUN_TIME, RUN_DECISION, RUN_SAMPLES) = range(4)

# Samples and telemetry (State.samples[tick, pool, column]).
(
    X_ACTIVE,
    X_FLIGHT,
    X_PREFIX,
    X_FRAGMENTATION,
    X_FREE,
    X_RUNNING,
    X_BOOTSTRAP,
    X_MAIN,
    X_INFLIGHT,
    X_PREALLOC,
    X_TRANSFER,
    X_ARRIVED,
    X_RETRACTED,
    X_WAITING_TOKENS,  # uncached upper bound: prompt tokens queued to be computed, less what is done
    X_RESERVED,  # promised to admitted requests by the engine's reserve
    X_LINK_BYTES,  # KV bytes sent (prefill) or received (decode) so far
    NX,
) = range(17)

# Weights of the joint policy by class: seven weights, then what the terms are measured by.
(W_TTFT, W_TPOT, W_RESERVE, NW) = range(7, 11)

# Faults (State.faults, times in State.fault_at).
(A_DEATH, A_RECOVERY, A_END_RATE, A_FREEZE, A_THAW, A_DRAIN, A_UNDRAIN, A_CANCEL) = range(8)

ITL_BINS = 2048
ITL_FLOOR_S = 1e-4
ITL_BINS_PER_E = 128.0
"""Inter-token gaps are counted in logarithmic bins: bin i starts at 0.1 ms * e^(i / 128), 0.8 % wide."""


ROW_WIDTHS: dict[str, tuple[str, ...]] = {
    "ri": ("NR",),
    "rf": ("NF",),
    "pi": ("NP",),
    "pf": ("NPF",),
    "q": ("NQ * NQC", "NQC"),
    "work": ("",),
    "batch": ("",),
    "keys": (),
    "locks": ("",),
    "table": ("", "2"),
    "nodes": ("", "NN"),
    "fi": ("NFI",),
    "ff": ("NFF",),
    "ends": ("4",),
    "paths": ("", "2"),
    "g": (),
    "gf": (),
    "order": (),
    "samples": ("", "NX"),
    "look": ("NX",),
    "seen": ("", "NX"),
    "seen_at": (),
    "faults": ("2",),
    "fault_at": ("2",),
    "hist": ("ITL_BINS",),
    "leases": (),
    "weights": ("NW",),
}
"""Strides of each table in elements, outermost first; "" where it depends on the fleet. One more dimension follows."""
FLOAT_TABLES = frozenset(
    ("rf", "pf", "ff", "ends", "paths", "gf", "samples", "look", "seen", "seen_at", "fault_at", "weights")
)


class State(NamedTuple):
    """
    The kernel's arrays; int64 (`ri pi q work batch keys locks table nodes fi g order faults hist`) or float64.

    Shapes: ri (requests, NR), rf (requests, NF), pi (pools, NP), pf (pools, NPF), q (pools, NQ, NQC),
    work and batch (pools, width), keys (all block keys), locks (2, all block keys): the cache nodes a request holds,
    table (pools, slots, 2): open addressing key -> node, nodes (pools, nodes, NN), fi/ff (flows, NFI/NFF),
    ends (ends, 4): egress, ingress rate and counts, paths (pools, pools, 2): rate (0 none) and latency,
    g (NG), gf (NV), order (requests): rows by arrival, samples (ticks, pools, NX), look (pools, NX), seen
    (rows, pools, NX), seen_at (rows), faults (n, 2) and fault_at (n, 2): kind, target; time, value; hist (pools,
    ITL_BINS), leases (requests): rows whose lease is outstanding, weights (classes, NW).
    """

    ri: Any
    rf: Any
    pi: Any
    pf: Any
    q: Any
    work: Any
    batch: Any
    keys: Any
    locks: Any
    table: Any
    nodes: Any
    fi: Any
    ff: Any
    ends: Any
    paths: Any
    g: Any
    gf: Any
    order: Any
    samples: Any
    look: Any
    seen: Any
    seen_at: Any
    faults: Any
    fault_at: Any
    hist: Any
    leases: Any
    weights: Any
