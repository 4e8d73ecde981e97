"""
How much of a trace's prompts a prefix cache of given size would serve: LRU, FIFO, infinite, and the oracle bound.

A cached block is of use only when every block before it is cached too, so hits are leading runs. Blocks form a
trie: the same id behind another parent is another block. What the rules mean here (the definitions of the public
KVCache.AI simulator, whose results are the oracle of our tests):

- `lru`: only a leaf (a block no cached block continues) can go, the least recently used first; a request's own
  path is protected while it is inserted; the blocks of the leading run are touched front to back, so a leaf is
  always newer than its parents.
- `fifo`: blocks leave in order of arrival, whatever continues them.
- `oracle`: Belady's rule over leaves (farthest next use goes first), and a block that would be used no sooner than
  every candidate to go is not cached at all.
- `infinite`: nothing ever leaves; the ceiling of all.

A prompt's last block counts with the tokens it really holds; `is_tail_cached=False` leaves part-filled blocks
out, as engines that cache whole blocks only do.
"""

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from simulation.traffic import IntArray, TrafficArrays

Rule = Literal["lru", "fifo", "infinite", "oracle"]
RULES: Final[tuple[Rule, ...]] = ("lru", "fifo", "infinite", "oracle")
NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseResult:
    """
    What a cache served.

    Attributes:
        prefix_hit_tokens: Prompt tokens found in the cache, in the measured requests.
        total_tokens: Prompt tokens of the measured requests.
        hit_ratio: Their quotient; None when nothing was measured.
        measured_count: Requests measured (those after the warm-up).
        unknown_count: Measured requests whose prefix identity the trace does not carry; they count as misses.
        unique_block_count: Different blocks in the whole trace.
        is_filled: Whether the cache was full before measuring began (always true for `infinite`).
    """

    prefix_hit_tokens: int
    total_tokens: int
    hit_ratio: float | None
    measured_count: int
    unknown_count: int
    unique_block_count: int
    is_filled: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    """The trace as trie nodes (0 is the root): `nodes[offsets[i]:offsets[i+1]]` is request i's path."""

    offsets: list[int]
    nodes: list[int]
    tokens: list[int]
    parents: list[int]


def regroup(traffic: TrafficArrays, block_size_tokens: int) -> tuple[IntArray, IntArray]:
    """
    Return (offsets, ids) of the prompts cut into blocks of `block_size_tokens`.

    A smaller block is a part of a hash block and named after it and its place; a larger one is named after the last
    hash block in it (an id stands for everything before it), and a group that is not whole is named apart.

    Raises:
        ValueError: neither size divides the other.
    """
    own = traffic.hash_block_tokens
    if block_size_tokens < 1:
        raise ValueError(f"block_size_tokens is {block_size_tokens}: must be at least 1")
    if block_size_tokens == own:
        return traffic.offsets, traffic.hash_ids
    lengths = np.diff(traffic.offsets)
    if own % block_size_tokens == 0:
        parts = own // block_size_tokens
        known_tokens = np.minimum(lengths * own, traffic.prompt_tokens)
        wanted = np.where(lengths > 0, -(-known_tokens // block_size_tokens), 0)
        offsets = np.concatenate(([0], np.cumsum(wanted)))
        place = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], wanted)
        source = np.repeat(traffic.offsets[:-1], wanted) + place // parts
        return offsets, traffic.hash_ids[source] * parts + place % parts
    if block_size_tokens % own == 0:
        group = block_size_tokens // own
        wanted = -(-lengths // group)
        offsets = np.concatenate(([0], np.cumsum(wanted)))
        place = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], wanted)
        last = np.minimum((place + 1) * group, np.repeat(lengths, wanted)) - 1
        ids = traffic.hash_ids[np.repeat(traffic.offsets[:-1], wanted) + last]
        is_part = (last + 1) % group != 0
        # A part-filled group must not be taken for the whole group that ends in another block.
        return offsets, ids * 2 + is_part
    raise ValueError(
        f"block_size_tokens is {block_size_tokens}: must divide the trace's hash block of {own} tokens,"
        f" or be a multiple of it"
    )


def _plan(traffic: TrafficArrays, block_size_tokens: int, is_tail_cached: bool) -> _Plan:
    offsets, ids = regroup(traffic, block_size_tokens)
    children: dict[tuple[int, int], int] = {}
    parents = [0]
    nodes: list[int] = []
    tokens: list[int] = []
    cuts = [0]
    id_list = ids.tolist()
    prompts = traffic.prompt_tokens.tolist()
    bounds = offsets.tolist()
    for request, prompt in enumerate(prompts):
        parent = 0
        left = prompt
        for at in range(bounds[request], bounds[request + 1]):
            filled = block_size_tokens if left >= block_size_tokens else left
            left -= filled
            if filled <= 0 or (filled < block_size_tokens and not is_tail_cached):
                break
            key = (parent, id_list[at])
            node = children.get(key)
            if node is None:
                node = len(parents)
                children[key] = node
                parents.append(parent)
            nodes.append(node)
            tokens.append(filled)
            parent = node
        cuts.append(len(nodes))
    return _Plan(cuts, nodes, tokens, parents)


def prefix_reuse(
    traffic: TrafficArrays,
    *,
    block_size_tokens: int,
    rule: Rule,
    capacity_blocks: int | None = None,
    warmup_count: int = 0,
    is_tail_cached: bool = True,
) -> ReuseResult:
    """
    Run one cache over all prompts in order of arrival and count hit tokens.

    Args:
        traffic: Requests with prefix identities; rows without any count as misses and are told.
        block_size_tokens: Block of the cache; divides the trace's hash block, or is a multiple of it.
        rule: Which block goes when the cache is full.
        capacity_blocks: Size of the cache; needed by every rule but `infinite`.
        warmup_count: Requests at the start that fill the cache and are not measured.
        is_tail_cached: Whether a part-filled last block is cached and hit with the tokens it holds.

    Raises:
        ValueError: an argument is out of range.
    """
    if rule not in RULES:
        raise ValueError(f"rule is {rule!r}: must be one of {', '.join(RULES)}")
    if rule != "infinite" and (capacity_blocks is None or capacity_blocks < 1):
        raise ValueError(f"capacity_blocks is {capacity_blocks}: rule {rule} needs a cache of at least 1 block")
    if not 0 <= warmup_count <= len(traffic):
        raise ValueError(f"warmup_count is {warmup_count}: must be between 0 and the {len(traffic)} requests")
    plan = _plan(traffic, block_size_tokens, is_tail_cached)
    capacity = len(plan.parents) if capacity_blocks is None else capacity_blocks
    if rule == "infinite":
        hits, is_filled = _infinite(plan, warmup_count), True
    elif rule == "fifo":
        hits, is_filled = _fifo(plan, capacity, warmup_count)
    else:
        hits, is_filled = _leaves(plan, capacity, warmup_count, is_oracle=rule == "oracle")
    total = int(traffic.prompt_tokens[warmup_count:].sum())
    unknown = int(np.count_nonzero(np.diff(traffic.offsets)[warmup_count:] == 0))
    return ReuseResult(
        prefix_hit_tokens=hits,
        total_tokens=total,
        hit_ratio=hits / total if total else None,
        measured_count=len(traffic) - warmup_count,
        unknown_count=unknown,
        unique_block_count=len(plan.parents) - 1,
        is_filled=is_filled,
    )


def _infinite(plan: _Plan, warmup_count: int) -> int:
    seen = bytearray(len(plan.parents))
    hits = 0
    for request in range(len(plan.offsets) - 1):
        is_leading = True
        for at in range(plan.offsets[request], plan.offsets[request + 1]):
            node = plan.nodes[at]
            if not seen[node]:
                is_leading = False
                seen[node] = 1
            elif is_leading and request >= warmup_count:
                hits += plan.tokens[at]
    return hits


def _fifo(plan: _Plan, capacity: int, warmup_count: int) -> tuple[int, bool]:
    is_cached = bytearray(len(plan.parents))
    queue: deque[int] = deque()
    hits = 0
    is_filled = False
    for request in range(len(plan.offsets) - 1):
        if request == warmup_count:
            is_filled = len(queue) >= capacity
        path = range(plan.offsets[request], plan.offsets[request + 1])
        if request >= warmup_count:
            for at in path:
                if not is_cached[plan.nodes[at]]:
                    break
                hits += plan.tokens[at]
        for at in path:
            node = plan.nodes[at]
            if is_cached[node]:
                continue
            if len(queue) >= capacity:
                is_cached[queue.popleft()] = 0
            is_cached[node] = 1
            queue.append(node)
    return hits, is_filled


def _next_uses(plan: _Plan) -> list[int]:
    """Return, by place in the plan, the next request that uses the same block, or NEVER."""
    next_use = [NEVER] * len(plan.nodes)
    upcoming: dict[int, int] = {}
    for request in range(len(plan.offsets) - 2, -1, -1):
        for at in range(plan.offsets[request], plan.offsets[request + 1]):
            node = plan.nodes[at]
            next_use[at] = upcoming.get(node, NEVER)
            upcoming[node] = request
    return next_use


def _leaves(plan: _Plan, capacity: int, warmup_count: int, *, is_oracle: bool) -> tuple[int, bool]:
    """
    Evict leaves only: the least recently used, or the one used farthest ahead.

    The heap holds (priority, -node, stamp); an entry whose stamp is old, or whose block has gone or grown a child,
    is passed over. Equal priorities let the later-born block go first, as the oracle of our tests does.
    """
    count = len(plan.parents)
    is_cached = bytearray(count)
    is_cached[0] = 1
    child_count = [0] * count
    stamp = [0] * count
    priority = [0] * count
    guarded_by = [-1] * count
    heap: list[tuple[int, int, int]] = []
    cached_count = 0
    clock = 0
    hits = 0
    is_filled = False
    next_use = _next_uses(plan) if is_oracle else []

    def offer(node: int) -> None:
        if child_count[node] == 0:
            stamp[node] += 1
            heapq.heappush(heap, (priority[node], -node, stamp[node]))

    def use(node: int, at: int) -> None:
        nonlocal clock
        clock += 1
        # The heap gives the smallest first: the oldest use, or the farthest next use.
        priority[node] = -next_use[at] if is_oracle else clock
        offer(node)

    def evict(request: int, ceiling: int) -> bool:
        nonlocal cached_count
        held: list[tuple[int, int, int]] = []
        victim = 0
        while heap:
            entry = heapq.heappop(heap)
            node = -entry[1]
            if not is_cached[node] or child_count[node] or entry[2] != stamp[node]:
                continue
            if guarded_by[node] == request:
                held.append(entry)
                continue
            if is_oracle and entry[0] >= ceiling:
                held.append(entry)
                break
            victim = node
            break
        for entry in held:
            heapq.heappush(heap, entry)
        if not victim:
            return False
        is_cached[victim] = 0
        cached_count -= 1
        parent = plan.parents[victim]
        child_count[parent] -= 1
        if parent:
            offer(parent)
        return True

    for request in range(len(plan.offsets) - 1):
        if request == warmup_count:
            is_filled = cached_count >= capacity
        path = range(plan.offsets[request], plan.offsets[request + 1])
        is_leading = True
        for at in path:
            node = plan.nodes[at]
            if not is_cached[node]:
                is_leading = False
            else:
                guarded_by[node] = request
                if is_leading:
                    if request >= warmup_count:
                        hits += plan.tokens[at]
                    use(node, at)
        for at in path:
            node = plan.nodes[at]
            if is_cached[node]:
                continue
            if cached_count >= capacity and not evict(request, -next_use[at] if is_oracle else 0):
                break
            if not is_cached[plan.parents[node]]:
                break
            is_cached[node] = 1
            cached_count += 1
            child_count[plan.parents[node]] += 1
            use(node, at)
    return hits, is_filled
