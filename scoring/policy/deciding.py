"""
`decide`: filters, scores, pick, explanation. Pure: it reads a snapshot and returns a `Decision`, it books nothing.

A fallback is a named branch of the Decision, never a filter that quietly lets everything through.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scoring.admission import Rejection
from scoring.demand import RequestView
from scoring.leases import LeaseLedger
from scoring.model import FleetSnapshot, FloatArray, Link
from scoring.policy import models
from scoring.policy.arrays import DECODE, PREFILL, UNIFIED, BoolArray, arrays_of
from scoring.policy.decision import Chosen, Decision, Ranked, ScoreTable
from scoring.policy.explain import Term, explain_pair
from scoring.policy.filters import ROOM, refusals, rejections_of
from scoring.policy.prepare import Prepared, prepare
from scoring.policy.registry import Policy, policy_of
from scoring.policy.scorers import ScoreBlock, score_block
from scoring.policy.settings import DecideSettings, RouterState
from scoring.slo import slo_class
from scoring.steadiness import pick_near_tie, rng_of

DEFAULTS: Final = DecideSettings()
FRESH_STATE: Final = RouterState()


@dataclass(frozen=True, slots=True)
class _Run:
    """What every step of one decision reads."""

    prepared: Prepared
    settings: DecideSettings
    links: Sequence[Link]
    state: RouterState
    policy: Policy
    rng: np.random.Generator
    local: BoolArray | None


@dataclass(frozen=True, slots=True)
class _Pick:
    chosen: Ranked | None
    ranking: tuple[Ranked, ...]
    table: ScoreTable | None
    scores: models.Scores | None


def decide(
    request: RequestView,
    fleet: FleetSnapshot,
    policy: str | Policy = "joint",
    *,
    links: Sequence[Link] | None = None,
    leases: LeaseLedger | None = None,
    seed: int = 0,
    settings: DecideSettings = DEFAULTS,
    state: RouterState = FRESH_STATE,
) -> Decision:
    """
    Return where a policy would send a request on a snapshot, and why not elsewhere.

    Args:
        request: What the policy may know; never the true output length.
        fleet: Judged pools. Order does not matter.
        policy: Name in POLICIES, or an entry of it.
        links: Paths of KV; None takes the snapshot's.
        leases: Open promises to count on top of the snapshot. Leave out when the snapshot was judged with them: its
            `reserved` holds them already.
        seed: Of everything drawn; the same seed gives the same decision.
        settings: Classes, reserve, profile, pick, decider, fallback.
        state: What the router itself remembers.

    Raises:
        ValueError: Unknown policy or class.
    """
    chosen_policy = policy_of(policy) if isinstance(policy, str) else policy
    slo = slo_class(request.slo_class, settings.classes)
    arrays = arrays_of(fleet, settings.reserve.failure_count)
    prepared = prepare(request, arrays, settings, slo, leases, fleet.at_s)
    decider = chosen_policy.decider if settings.decider == "policy" else settings.decider
    local = models.is_local(decider, request.prompt_tokens, prepared.hit_tokens)
    run = _Run(
        prepared,
        settings,
        fleet.links if links is None else links,
        state,
        chosen_policy,
        rng_of(seed),
        None if local is None else local & (arrays.role == DECODE),
    )
    found = refusals(prepared, settings, chosen_policy.filters)
    refused = _any_of(found, len(arrays))
    pick = _pick(run, refused)
    fallback = pick.scores.fallback if pick.scores is not None else None
    if pick.chosen is None and settings.fallback == "least-bad":
        hard = {name: mask for name, mask in found.items() if name not in ROOM}
        again = _pick(run, _any_of(hard, len(arrays)))
        if again.chosen is not None:
            pick, fallback = replace(again, table=pick.table), "least-bad: nothing has room, so room was not asked"
    rejections = rejections_of(prepared, settings, found)
    if pick.chosen is None:
        fallback = _refusal(prepared, rejections, pick)
    return _explained(run, pick, rejections, fallback, seed=seed, at_s=fleet.at_s)


def _any_of(found: dict[str, BoolArray], size: int) -> BoolArray:
    refused = np.zeros(size, dtype=bool)
    for mask in found.values():
        refused |= mask
    return refused


def _pick(run: _Run, refused: BoolArray) -> _Pick:
    return _pick_pair(run, refused) if run.policy.is_joint else _pick_pools(run, refused)


def _members(run: _Run) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return indices of prefill pools, decode pools, and pools that serve a request alone."""
    role = run.prepared.arrays.role
    alone = role == UNIFIED
    if run.local is not None:
        alone = alone | run.local
    return np.flatnonzero(role == PREFILL), np.flatnonzero(role == DECODE), np.flatnonzero(alone)


def _pick_pair(run: _Run, refused: BoolArray) -> _Pick:
    rows, columns, alone = _members(run)
    pairs = single = None
    if rows.size and columns.size:
        pairs = score_block(
            run.prepared, run.settings, run.links, rows, columns, refused, is_alone=False, local=run.local
        )
    if alone.size:
        single = score_block(run.prepared, run.settings, run.links, alone, alone, refused, is_alone=True)
    table = ScoreTable(ids=run.prepared.arrays.ids, pairs=pairs, alone=single)
    ranking = table.ranking(run.settings.top_count)
    chosen = ranking[0] if ranking else None
    if chosen is not None and run.settings.pick != "best":
        chosen = _steady_pair(run, table, chosen)
    return _Pick(chosen, ranking, table, None)


def _steady_pair(run: _Run, table: ScoreTable, best: Ranked) -> Ranked:
    """Return the pair that two choices, near ties or stickiness make of the best one."""
    ids, band = table.ids, run.settings.near_tie
    if run.settings.pick == "sticky":
        if run.state.previous is None:
            return best
        try:
            block, row, column = table.find(*run.state.previous)
        except ValueError:
            return best  # The previous pair has left the fleet.
        score = float(block.total[row, column])
        is_kept = score <= best.score + band
        return Ranked(prefill=run.state.previous[0], decode=run.state.previous[1], score=score) if is_kept else best
    candidates: list[Ranked] = []
    for each in (table.pairs, table.alone):
        if each is None:
            continue
        cells = _drawn(run, each) if run.settings.pick == "two-choices" else _near(each, best.score + band)
        for row, column in cells:
            p = ids[int(each.rows[row])]
            d = p if each.is_alone else ids[int(each.columns[column])]
            candidates.append(Ranked(prefill=p, decode=d, score=float(each.total[row, column])))
    if not candidates:
        return best
    candidates.sort(key=lambda item: (item.prefill, item.decode))
    scores = np.array([each.score for each in candidates])
    if run.settings.pick == "near-tie":
        index = pick_near_tie(scores, run.rng, band=band)
    else:
        index = int(np.argmin(scores))
    return best if index is None else candidates[index]


def _drawn(run: _Run, block: ScoreBlock) -> list[tuple[int, int]]:
    """Return the admissible cells of two rows against two columns drawn at random."""
    is_open = np.isfinite(block.total)
    rows, columns = np.flatnonzero(is_open.any(axis=1)), np.flatnonzero(is_open.any(axis=0))
    if rows.size == 0:
        return []
    some_rows = run.rng.choice(rows, size=min(2, rows.size), replace=False)
    some_columns = run.rng.choice(columns, size=min(2, columns.size), replace=False)
    return [(int(row), int(column)) for row in some_rows for column in some_columns if is_open[row, column]]


def _near(block: ScoreBlock, limit: float) -> list[tuple[int, int]]:
    rows = np.flatnonzero(block.total.min(axis=1) <= limit)
    return [(int(row), int(column)) for row in rows for column in np.flatnonzero(block.total[row] <= limit)]


def _pick_pools(run: _Run, refused: BoolArray) -> _Pick:
    score = run.policy.score
    assert score is not None  # is_joint is the other branch
    asked = models.Asked(run.prepared, run.state, run.rng, ~refused)
    with np.errstate(all="ignore"):
        scores = score(asked)
    if run.settings.pick == "two-choices":
        scores = models.two_choices(asked, scores)
    if scores.refusal is not None:
        return _Pick(None, (), None, scores)
    draw = run.rng.random(len(run.prepared.arrays)) if scores.is_tie_random else np.zeros(len(run.prepared.arrays))
    entry, decode = _order(scores.entry, draw), _order(scores.decode, draw)
    ranking = _ranking(run, scores, entry, decode)
    chosen = ranking[0] if ranking else None
    if ranking and run.settings.pick == "near-tie":
        near = np.array([each.score for each in ranking])
        index = pick_near_tie(near, run.rng, band=run.settings.near_tie)
        chosen = ranking[0 if index is None else index]
    if ranking and run.settings.pick == "sticky" and run.state.previous is not None:
        kept = [each for each in ranking if (each.prefill, each.decode) == run.state.previous]
        if kept and kept[0].score <= ranking[0].score + run.settings.near_tie:
            chosen = kept[0]
    return _Pick(chosen, ranking, None, scores)


def _order(scores: FloatArray, draw: FloatArray) -> list[int]:
    """Return ranked indices by rising score, ties by the draw, then by id."""
    known = np.flatnonzero(np.isfinite(scores))
    return [int(index) for index in known[np.lexsort((draw[known], scores[known]))]]


def _ranking(run: _Run, scores: models.Scores, entry: list[int], decode: list[int]) -> tuple[Ranked, ...]:
    """
    Return pairs in the policy's order: by its first choice, then by its second.

    A policy that starts with the prefill end ranks unified pools there, one that starts with decode ranks them there.
    """
    ids, role, count = run.prepared.arrays.ids, run.prepared.arrays.role, run.settings.top_count
    first, second = (decode, entry) if scores.is_decode_first else (entry, decode)
    values = scores.decode if scores.is_decode_first else scores.entry
    found: list[Ranked] = []
    for one in first:
        if len(found) >= count:
            break
        score = float(values[one])
        if role[one] == UNIFIED:
            found.append(Ranked(prefill=ids[one], decode=ids[one], score=score))
            continue
        if scores.is_decode_first and run.local is not None and run.local[one]:
            found.append(Ranked(prefill=ids[one], decode=ids[one], score=score))
            continue
        for other in (index for index in second if role[index] != UNIFIED):
            p, d = (other, one) if scores.is_decode_first else (one, other)
            if run.local is not None and run.local[d]:
                p = d
            found.append(Ranked(prefill=ids[p], decode=ids[d], score=score))
            if len(found) >= count:
                break
    return tuple(dict.fromkeys(found))


def _refusal(prepared: Prepared, rejections: Sequence[Rejection], pick: _Pick) -> str:
    """Return the named reason why nothing is chosen."""
    if len(prepared.arrays) == 0:
        return "refused: the fleet has no pools"
    if pick.scores is not None and pick.scores.refusal is not None:
        return f"refused: {pick.scores.refusal}"
    largest = _larger_than_all(prepared, rejections)
    if largest is not None:
        return largest
    counts = Counter(rejection.filter for rejection in rejections)
    words = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    if len(rejections) == len(prepared.arrays):
        kinds = set(counts)
        if kinds <= {"stale", "unreachable"}:
            return f"refused: every pool is stale or unreachable ({words})"
        return f"refused: every pool is refused ({words})"
    role = prepared.arrays.role
    if not ((role == UNIFIED).any() or ((role == PREFILL).any() and (role == DECODE).any())):
        return "refused: there is no pair: a prefill pool needs a decode pool, or a unified one serves alone"
    return f"refused: no admissible pair is left ({words or 'every pair is refused'})"


def _larger_than_all(prepared: Prepared, rejections: Sequence[Rejection]) -> str | None:
    """Return that no generating pool could ever hold the request, and the largest that could."""
    arrays, room = prepared.arrays, prepared.room
    too_large = {each.pool for each in rejections if each.filter == "too-large"}
    generating = [index for index in range(len(arrays)) if arrays.role[index] in (DECODE, UNIFIED)]
    if not generating or any(arrays.ids[index] not in too_large for index in generating):
        return None
    usable = [float(arrays.usable_tokens[index]) for index in generating]
    best = generating[int(np.argmax(usable))]
    return (
        f"refused: the request needs {room.demand_tokens[best]:,.0f} tokens, more than any pool holds; the largest is "
        f"{arrays.ids[best]} with {max(usable):,.0f}"
    )


def _explained(
    run: _Run,
    pick: _Pick,
    rejections: tuple[Rejection, ...],
    fallback: str | None,
    *,
    seed: int,
    at_s: float,
) -> Decision:
    prepared, chosen = run.prepared, pick.chosen
    taken = None if chosen is None else (chosen.prefill, chosen.decode)
    others = [each for each in pick.ranking if taken is not None and (each.prefill, each.decode) != taken]
    runner_up = others[0] if others else None
    if runner_up is None and taken is not None and pick.table is not None:
        runner_up = pick.table.best_refused(taken)
    room, arrays = prepared.room, prepared.arrays
    refused = {each.pool for each in rejections if each.filter not in ("no-room", "too-large")}
    generates = (arrays.role != PREFILL) & ~np.array([name in refused for name in arrays.ids], dtype=bool)
    with np.errstate(invalid="ignore"):
        fits = room.have_tokens - room.growth_tokens - room.reserve_tokens
    fits = fits[generates & np.isfinite(fits)]
    scores = pick.scores
    return Decision(
        policy=run.policy.name,
        request=prepared.request,
        at_s=at_s,
        seed=seed,
        prepared=prepared,
        chosen=None if chosen is None else Chosen(prefill=chosen.prefill, decode=chosen.decode),
        score=None if chosen is None else chosen.score,
        score_unit=run.policy.score_unit,
        terms=() if chosen is None else terms_of(run.prepared, run.settings, run.links, pick.table, chosen),
        runner_up=runner_up,
        runner_up_terms=()
        if runner_up is None
        else terms_of(run.prepared, run.settings, run.links, pick.table, runner_up),
        margin=None if chosen is None or runner_up is None or runner_up.is_refused else runner_up.score - chosen.score,
        ranking=pick.ranking,
        rejections=rejections,
        fallback=fallback,
        notes=() if scores is None else scores.notes,
        table=pick.table,
        pool_scores={} if scores is None else {"entry": scores.entry, "decode": scores.decode},
        largest_fit_tokens=float(np.floor(fits.max())) if fits.size and fits.max() >= 1.0 else None,
    )


def terms_of(
    prepared: Prepared, settings: DecideSettings, links: Sequence[Link], table: ScoreTable | None, pair: Ranked
) -> tuple[Term, ...]:
    """Return the seven joint terms of a pair: from the table, or by scoring that one pair."""
    if table is not None:
        block, row, column = table.find(pair.prefill, pair.decode)
        return explain_pair(prepared, block, row, column)
    ids = prepared.arrays.ids
    p, d = np.array([ids.index(pair.prefill)]), np.array([ids.index(pair.decode)])
    none = np.zeros(len(ids), dtype=bool)
    block = score_block(prepared, settings, links, p, d, none, is_alone=pair.prefill == pair.decode)
    return explain_pair(prepared, block, 0, 0)
