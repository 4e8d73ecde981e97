# mypy: disable-error-code="no-any-return"
# State is numpy arrays or memoryviews by the way it runs, so its fields are Any.
"""
Blocks of a pool: free, held, and the prefix cache with its least-recently-used order.

A prefix *unit* is the coarser of the traffic's hash block and the pool's block. A node of the cache is one unit (or,
with key KEY_OUTPUT, the generated blocks of one finished request). Locked nodes are used, unlocked ones evictable; a
release unlocks from the tail of the prompt to its head, so that the order of eviction is leaf first.
usable = used + evictable + free at every moment, `used` being what is left.
"""

from simulation.layout import (
    C_EVICTED,
    KEY_OUTPUT,
    N_BLOCKS,
    N_KEY,
    N_NEXT,
    N_PREV,
    N_REF,
    P_CACHES,
    P_CACHES_OUTPUT,
    P_EVICTABLE,
    P_FREE,
    P_LRU_HEAD,
    P_LRU_TAIL,
    P_MASK,
    P_NODE_FREE,
    P_PAGE,
    P_RATIO,
    P_TAIL,
    P_UNIT,
    P_UNIT_BLOCKS,
    R_ALLOC0,
    R_KEYS,
    R_LOCK0,
    R_OFFSET,
    State,
)


def blocks_up(tokens: int, page: int) -> int:
    """Return the blocks that `tokens` positions take."""
    return (tokens + page - 1) // page


def slot_of(key: int, mask: int) -> int:
    """Return where the search for a key starts (multiplicative hashing; ids are dense, so any odd factor spreads)."""
    return ((key * 0x9E3779B1) >> 12) & mask


def find(s: State, p: int, key: int) -> int:
    """Return the node that holds `key` in pool `p`, or -1."""
    mask = s.pi[p, P_MASK]
    i = slot_of(key, mask)
    while s.table[p, i, 1] >= 0:
        if s.table[p, i, 0] == key:
            return s.table[p, i, 1]
        i = (i + 1) & mask
    return -1


def table_put(s: State, p: int, key: int, node: int) -> None:
    """Enter an absent key."""
    mask = s.pi[p, P_MASK]
    i = slot_of(key, mask)
    while s.table[p, i, 1] >= 0:
        i = (i + 1) & mask
    s.table[p, i, 0] = key
    s.table[p, i, 1] = node


def table_drop(s: State, p: int, key: int) -> None:
    """Remove a present key, moving later entries of its cluster back so that no gap breaks a search."""
    mask = s.pi[p, P_MASK]
    i = slot_of(key, mask)
    while s.table[p, i, 0] != key or s.table[p, i, 1] < 0:
        i = (i + 1) & mask
    j = i
    while True:
        j = (j + 1) & mask
        if s.table[p, j, 1] < 0:
            break
        home = slot_of(s.table[p, j, 0], mask)
        if ((j - home) & mask) >= ((j - i) & mask):
            s.table[p, i, 0] = s.table[p, j, 0]
            s.table[p, i, 1] = s.table[p, j, 1]
            i = j
    s.table[p, i, 1] = -1


def lru_push(s: State, p: int, node: int) -> None:
    """Make an unlocked node the most recently used."""
    tail = s.pi[p, P_LRU_TAIL]
    s.nodes[p, node, N_PREV] = tail
    s.nodes[p, node, N_NEXT] = -1
    if tail >= 0:
        s.nodes[p, tail, N_NEXT] = node
    else:
        s.pi[p, P_LRU_HEAD] = node
    s.pi[p, P_LRU_TAIL] = node
    s.pi[p, P_EVICTABLE] += s.nodes[p, node, N_BLOCKS]


def lru_remove(s: State, p: int, node: int) -> None:
    """Take a node out of the order of eviction."""
    before = s.nodes[p, node, N_PREV]
    after = s.nodes[p, node, N_NEXT]
    if before >= 0:
        s.nodes[p, before, N_NEXT] = after
    else:
        s.pi[p, P_LRU_HEAD] = after
    if after >= 0:
        s.nodes[p, after, N_PREV] = before
    else:
        s.pi[p, P_LRU_TAIL] = before
    s.pi[p, P_EVICTABLE] -= s.nodes[p, node, N_BLOCKS]


def evict(s: State, p: int, blocks: int) -> None:
    """Evict at least `blocks` blocks, oldest first: a prompt unit whole, generated blocks one by one."""
    left = blocks
    while left > 0:
        node = s.pi[p, P_LRU_HEAD]
        size = s.nodes[p, node, N_BLOCKS]
        if s.nodes[p, node, N_KEY] == KEY_OUTPUT and size > left:
            s.nodes[p, node, N_BLOCKS] = size - left
            s.pi[p, P_EVICTABLE] -= left
            s.pi[p, P_FREE] += left
            s.pi[p, C_EVICTED] += left * s.pi[p, P_PAGE]
            return
        lru_remove(s, p, node)
        if s.nodes[p, node, N_KEY] != KEY_OUTPUT:
            table_drop(s, p, s.nodes[p, node, N_KEY])
        s.nodes[p, node, N_NEXT] = s.pi[p, P_NODE_FREE]
        s.pi[p, P_NODE_FREE] = node
        s.pi[p, P_FREE] += size
        s.pi[p, C_EVICTED] += size * s.pi[p, P_PAGE]
        left -= size


def take(s: State, p: int, blocks: int) -> None:
    """Take blocks from free, evicting what is missing; the caller knows that there are enough."""
    free = s.pi[p, P_FREE]
    if free < blocks:
        evict(s, p, blocks - free)
    s.pi[p, P_FREE] -= blocks


def new_node(s: State, p: int, key: int, blocks: int) -> int:
    """Return a node out of the order of eviction; the oldest one makes way when all nodes are in use, else -1."""
    if s.pi[p, P_NODE_FREE] < 0:
        if s.pi[p, P_LRU_HEAD] < 0:
            return -1
        evict(s, p, s.nodes[p, s.pi[p, P_LRU_HEAD], N_BLOCKS])
    node = s.pi[p, P_NODE_FREE]
    s.pi[p, P_NODE_FREE] = s.nodes[p, node, N_NEXT]
    s.nodes[p, node, N_KEY] = key
    s.nodes[p, node, N_REF] = 0
    s.nodes[p, node, N_BLOCKS] = blocks
    return node


def unit_key(s: State, p: int, r: int, unit: int) -> int:
    """Return the key of a unit of the prompt: that of its last hash block."""
    return s.keys[s.ri[r, R_OFFSET] + (unit + 1) * s.pi[p, P_RATIO] - 1]


def hit_units(s: State, p: int, r: int, target: int) -> int:
    """Return how many leading units are cached; one token at least is left to compute."""
    if s.pi[p, P_CACHES] == 0:
        return 0
    most = min(s.ri[r, R_KEYS] // s.pi[p, P_RATIO], (target - 1) // s.pi[p, P_UNIT])
    hits = 0
    while hits < most and find(s, p, unit_key(s, p, r, hits)) >= 0:
        hits += 1
    return hits


def admit(s: State, p: int, r: int, side: int, target: int, withheld: int, extra: int) -> int:
    """
    Lock the cached head of the prompt and allocate the rest, or do nothing.

    `withheld` blocks are promised to others and `extra` positions beyond the target must fit too.
    Returns the units hit, or -1 when there is no room.
    """
    page = s.pi[p, P_PAGE]
    hits = hit_units(s, p, r, target)
    unit_blocks = s.pi[p, P_UNIT_BLOCKS]
    need = blocks_up(target + extra, page) - hits * unit_blocks
    room = s.pi[p, P_FREE] + s.pi[p, P_EVICTABLE] - withheld
    if need > room:
        return -1
    offset = s.ri[r, R_OFFSET]
    for unit in range(hits):
        node = find(s, p, unit_key(s, p, r, unit))
        s.locks[side, offset + unit] = node
        if s.nodes[p, node, N_REF] == 0:
            room -= s.nodes[p, node, N_BLOCKS]
    if need > room:
        return -1
    for unit in range(hits):
        node = s.locks[side, offset + unit]
        if s.nodes[p, node, N_REF] == 0:
            lru_remove(s, p, node)
        s.nodes[p, node, N_REF] += 1
    own = blocks_up(target, page)
    take(s, p, own - hits * unit_blocks)
    s.pi[p, P_TAIL] += own * page - target
    s.ri[r, R_LOCK0 + side] = hits
    s.ri[r, R_ALLOC0 + side] = target
    return hits


def publish(s: State, p: int, r: int, side: int) -> int:
    """
    Make the computed units of the prompt findable; a unit that another request published first is shared instead.

    Returns the blocks given back because the unit was there already.
    """
    if s.pi[p, P_CACHES] == 0:
        return 0
    offset = s.ri[r, R_OFFSET]
    unit_blocks = s.pi[p, P_UNIT_BLOCKS]
    full = min(s.ri[r, R_KEYS] // s.pi[p, P_RATIO], s.ri[r, R_ALLOC0 + side] // s.pi[p, P_UNIT])
    given_back = 0
    for unit in range(s.ri[r, R_LOCK0 + side], full):
        key = unit_key(s, p, r, unit)
        node = find(s, p, key)
        if node < 0:
            node = new_node(s, p, key, unit_blocks)
            table_put(s, p, key, node)
        else:
            if s.nodes[p, node, N_REF] == 0:
                lru_remove(s, p, node)
            s.pi[p, P_FREE] += unit_blocks
            given_back += unit_blocks
        s.nodes[p, node, N_REF] += 1
        s.locks[side, offset + unit] = node
    s.ri[r, R_LOCK0 + side] = max(full, s.ri[r, R_LOCK0 + side])
    return given_back


def release(s: State, p: int, r: int, side: int, held: int, is_finished: int) -> None:
    """Give back what a request holds on one side: `held` positions, locked units included."""
    page = s.pi[p, P_PAGE]
    locked = s.ri[r, R_LOCK0 + side]
    own = blocks_up(held, page)
    s.pi[p, P_TAIL] -= own * page - held
    own -= locked * s.pi[p, P_UNIT_BLOCKS]
    if is_finished != 0 and s.pi[p, P_CACHES_OUTPUT] != 0:
        kept = held // page - locked * s.pi[p, P_UNIT_BLOCKS]
        if kept > 0:
            node = new_node(s, p, KEY_OUTPUT, kept)
            if node >= 0:
                lru_push(s, p, node)
                own -= kept
    s.pi[p, P_FREE] += own
    offset = s.ri[r, R_OFFSET]
    for unit in range(locked - 1, -1, -1):
        node = s.locks[side, offset + unit]
        s.nodes[p, node, N_REF] -= 1
        if s.nodes[p, node, N_REF] == 0:
            lru_push(s, p, node)
    s.ri[r, R_LOCK0 + side] = 0
    s.ri[r, R_ALLOC0 + side] = 0
