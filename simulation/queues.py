# mypy: disable-error-code="no-any-return"
# State is numpy arrays or memoryviews by the way it runs, so its fields are Any.
"""
Queues of a pool: linked lists through the request rows, with counts and tokens; two of them are sets.
"""

from simulation.layout import (
    Q_COUNT,
    Q_HEAD,
    Q_MAIN,
    Q_TAIL,
    Q_TOKENS,
    R_NEXT0,
    R_NEXT1,
    State,
)


def next_column(queue: int) -> int:
    """Return the column that links a queue: a request can wait on both sides at once."""
    return R_NEXT0 if queue <= Q_MAIN else R_NEXT1


def push_back(s: State, p: int, queue: int, r: int, tokens: int) -> None:
    """Append a request to a queue."""
    column = next_column(queue)
    s.ri[r, column] = -1
    tail = s.q[p, queue, Q_TAIL]
    if tail >= 0:
        s.ri[tail, column] = r
    else:
        s.q[p, queue, Q_HEAD] = r
    s.q[p, queue, Q_TAIL] = r
    s.q[p, queue, Q_COUNT] += 1
    s.q[p, queue, Q_TOKENS] += tokens


def push_front(s: State, p: int, queue: int, r: int, tokens: int) -> None:
    """Put a request before all others of a queue."""
    column = next_column(queue)
    head = s.q[p, queue, Q_HEAD]
    s.ri[r, column] = head
    s.q[p, queue, Q_HEAD] = r
    if head < 0:
        s.q[p, queue, Q_TAIL] = r
    s.q[p, queue, Q_COUNT] += 1
    s.q[p, queue, Q_TOKENS] += tokens


def drop_from(s: State, p: int, queue: int, r: int, tokens: int) -> int:
    """Take a request out of a queue wherever it stands; return 1 when it was there."""
    column = next_column(queue)
    before = -1
    at = s.q[p, queue, Q_HEAD]
    while at >= 0 and at != r:
        before = at
        at = s.ri[at, column]
    if at < 0:
        return 0
    after = s.ri[r, column]
    if before >= 0:
        s.ri[before, column] = after
    else:
        s.q[p, queue, Q_HEAD] = after
    if after < 0:
        s.q[p, queue, Q_TAIL] = before
    s.ri[r, column] = -1
    s.q[p, queue, Q_COUNT] -= 1
    s.q[p, queue, Q_TOKENS] -= tokens
    return 1


def count_in(s: State, p: int, queue: int, tokens: int) -> None:
    """Count a request into a queue that is a set (in flight, in transfer)."""
    s.q[p, queue, Q_COUNT] += 1
    s.q[p, queue, Q_TOKENS] += tokens


def count_out(s: State, p: int, queue: int, tokens: int) -> None:
    """Count a request out of such a queue."""
    s.q[p, queue, Q_COUNT] -= 1
    s.q[p, queue, Q_TOKENS] -= tokens
