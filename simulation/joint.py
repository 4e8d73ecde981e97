# mypy: disable-error-code="no-any-return"
# State is numpy arrays or memoryviews by the way it runs, so its fields are Any.
"""
The joint policy: prefill and decode chosen as a pair by the cost of scoring, over what the router sees.

The terms are `scoring.cost`'s and `scoring.service`'s own functions. What a live decision takes from measured rates
comes here from the pools' profiles and from what the router itself has placed and seen finish.
"""

import math

from scoring.cost import (
    breach_probability,
    decode_wait_s,
    kv_pressure_ratio,
    pair_score,
    prefill_wait_s,
    prefix_benefit_s,
    room_wait_s,
    slo_risk_ratio,
    slot_wait_s,
    utilization_ratio,
)
from scoring.service import decode_run_s, prefill_s, transfer_s
from simulation.blocks import hit_units
from simulation.layout import (
    G_ENDED,
    G_ENDED_TOKENS,
    G_PLACED,
    G_PLACED_TOKENS,
    G_VIEW,
    K_BASE,
    K_BYTES,
    K_LARGE_BASE,
    K_LARGE_SEQUENCE,
    K_LARGE_TOKEN,
    K_PREFILL_BASE,
    K_PREFILL_TOKEN,
    K_PREFILL_TOKEN2,
    K_SEQUENCE,
    K_TOKEN,
    K_TOKEN2,
    P_BUDGET,
    P_LARGE,
    P_MAX_RUNNING,
    P_PAGE,
    P_POLY,
    P_ROLE,
    P_UNIT,
    P_USABLE,
    R_CLASS,
    R_D,
    R_P,
    R_PROMPT,
    W_RESERVE,
    W_TPOT,
    W_TTFT,
    X_ARRIVED,
    X_INFLIGHT,
    X_PREALLOC,
    X_RETRACTED,
    X_RUNNING,
    State,
)
from simulation.network import line_rate
from simulation.views import ROLE_DECODE, ROLE_PREFILL, ROLE_UNIFIED, held_ratio, takes, waiting_tokens

PRIOR_OUTPUT_TOKENS = 256.0
"""Expected output before anything has finished (chosen); afterwards the mean of what has."""
TTFT_ERROR_RATIO = 0.3
"""Relative spread of a TTFT prediction (the one published figure for its tail is BLIS's 29 %)."""
TPOT_ERROR_RATIO = 0.1
UNBOUNDED = 1e6
"""What an unbounded term counts as, so that pairs that are all beyond their room are still told apart by the rest."""


def mean_prompt_tokens(s: State) -> float:
    """Return the mean prompt of the requests placed so far, the one in hand included."""
    return s.g[G_PLACED_TOKENS] / max(s.g[G_PLACED], 1)


def expected_output_tokens(s: State) -> float:
    """Return the mean output of the requests finished so far, with one prior request."""
    return (PRIOR_OUTPUT_TOKENS + s.g[G_ENDED_TOKENS]) / (1.0 + s.g[G_ENDED])


def prompt_s(s: State, p: int, new_tokens: float, context_tokens: float) -> float:
    """Return seconds to compute a prompt alone; where the profile counts a batch as a whole, chunk by chunk."""
    base = s.pf[p, K_PREFILL_BASE]
    per_token = s.pf[p, K_PREFILL_TOKEN]
    per_token2 = s.pf[p, K_PREFILL_TOKEN2]
    if s.pi[p, P_POLY] == 0:
        return prefill_s(new_tokens, context_tokens, base, per_token, per_token2)
    chunk = min(new_tokens, float(s.pi[p, P_BUDGET]))
    return new_tokens / max(chunk, 1.0) * prefill_s(chunk, 0.0, base, per_token, per_token2)


def decode_terms(s: State, d: int, demand_tokens: float, start_s: float) -> float:
    """Return DecodeWait: seconds from `start_s` until the pool has room, a slot and has done one step."""
    usable = float(s.pi[d, P_USABLE] * s.pi[d, P_PAGE])
    held = held_ratio(s, d, 0) * usable
    running = 0.0
    ahead = 0.0
    row = s.g[G_VIEW]
    if row >= 0:
        running = s.seen[row, d, X_RUNNING]
        ahead = s.seen[row, d, X_PREALLOC] + s.seen[row, d, X_ARRIVED] + s.seen[row, d, X_RETRACTED]
    step_s = next_step_s(s, d, running + 1.0, held + demand_tokens)
    finished_per_s = running / (step_s * expected_output_tokens(s))
    # With nothing new admitted a pool returns a mean prompt (and what it grew by) with every finish.
    net_tokens_per_s = -finished_per_s * mean_prompt_tokens(s)
    wanted = demand_tokens + ahead * mean_prompt_tokens(s)
    room_s = room_wait_s(wanted, usable - held, net_tokens_per_s, start_s)
    slot_s = slot_wait_s(running, ahead, float(s.pi[d, P_MAX_RUNNING]), finished_per_s)
    return decode_wait_s(room_s, slot_s, start_s, step_s)


def next_step_s(s: State, d: int, batch_count: float, kv_tokens: float) -> float:
    """Return seconds of one decode step."""
    large = s.pi[d, P_LARGE]
    if large > 0 and batch_count >= large:
        return decode_run_s(
            1.0, batch_count, kv_tokens, s.pf[d, K_LARGE_BASE], s.pf[d, K_LARGE_SEQUENCE], s.pf[d, K_LARGE_TOKEN], 0.0
        )
    return decode_run_s(
        1.0, batch_count, kv_tokens, s.pf[d, K_BASE], s.pf[d, K_SEQUENCE], s.pf[d, K_TOKEN], s.pf[d, K_TOKEN2]
    )


def pair_cost(s: State, r: int, p: int, d: int) -> float:
    """Return the joint score of a pair (DESIGN section 5), from scoring's own terms; lower is better."""
    prompt = float(s.ri[r, R_PROMPT])
    hit = float(hit_units(s, p, r, s.ri[r, R_PROMPT]) * s.pi[p, P_UNIT])
    typical = mean_prompt_tokens(s)
    rate = typical / prompt_s(s, p, typical, 0.0)
    wait = prefill_wait_s(waiting_tokens(s, p), rate)
    whole = prompt_s(s, p, prompt, 0.0)
    uncached = prompt_s(s, p, prompt - hit, hit)
    transfer = 0.0
    row = s.g[G_VIEW]
    if p != d:
        size = prompt * s.pf[p, K_BYTES]
        queued = 0.0
        if row >= 0:
            queued = s.seen[row, p, X_INFLIGHT] * typical * s.pf[p, K_BYTES]
        transfer = transfer_s(size, line_rate(s, p, d), s.paths[p, d, 1], queued)
    start_s = wait + uncached + transfer
    usable = float(s.pi[d, P_USABLE] * s.pi[d, P_PAGE])
    demand = prompt + expected_output_tokens(s)
    decode = decode_terms(s, d, demand, start_s)
    ratio = utilization_ratio(held_ratio(s, d, 0) * usable, demand, usable)
    kind = min(s.ri[r, R_CLASS], len(s.weights) - 1)
    reserve = s.weights[kind, W_RESERVE]
    pressure = kv_pressure_ratio(ratio, reserve)
    running = 0.0
    if row >= 0:
        running = s.seen[row, d, X_RUNNING]
    step_s = next_step_s(s, d, running + 1.0, min(ratio, 1.0) * usable)
    late = breach_probability(start_s + decode, s.weights[kind, W_TTFT], TTFT_ERROR_RATIO)
    slow = breach_probability(step_s, s.weights[kind, W_TPOT], TPOT_ERROR_RATIO)
    budget = s.weights[kind, W_TTFT]
    return pair_score(
        min(wait / budget, UNBOUNDED),
        whole / budget,
        transfer / budget,
        min(decode / budget, UNBOUNDED),
        min(pressure, UNBOUNDED),
        slo_risk_ratio(late, slow),
        prefix_benefit_s(whole, uncached, 0.0) / budget,
        s.weights[kind, 0],
        s.weights[kind, 1],
        s.weights[kind, 2],
        s.weights[kind, 3],
        s.weights[kind, 4],
        s.weights[kind, 5],
        s.weights[kind, 6],
    )


def choose_pair(s: State, r: int) -> int:
    """Set the pair with the least cost, the first of equals; return 0 when there is no pair to take it."""
    best = math.inf
    for d in range(len(s.pi)):
        if not takes(s, d, ROLE_DECODE | ROLE_UNIFIED):
            continue
        for p in range(len(s.pi)):
            is_self = p == d and (s.pi[d, P_ROLE] & ROLE_UNIFIED) != 0
            is_pair = (s.pi[d, P_ROLE] & ROLE_DECODE) != 0 and takes(s, p, ROLE_PREFILL)
            if is_self or is_pair:
                cost = pair_cost(s, r, p, d)
                if cost < best:
                    best = cost
                    s.ri[r, R_P] = p
                    s.ri[r, R_D] = d
    if best == math.inf:
        return 0
    return 1
