"""
What a decision is: the pair, the whole score table, every rejection, the fallback taken, the ages of the inputs and
the leases it would book. It is a value; nothing is booked by making one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scoring.admission import Gate, Rejection
from scoring.demand import RequestView
from scoring.leases import LEASE_TTL_S, Lease
from scoring.model import FloatArray
from scoring.policy import explain
from scoring.policy.arrays import PREFILL
from scoring.policy.explain import Term
from scoring.policy.filters import PAIR_FILTERS
from scoring.policy.prepare import Prepared
from scoring.policy.scorers import ScoreBlock

MOST_REFUSED_COMPARED: Final = 50_000
"""Beyond this many pairs the best refused one is not looked for: with so many, others are admissible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A pair by pool ids; both are the same where a pool serves both phases."""

    prefill: str
    decode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """
    One pair of the ranking: score by the policy's own rule, lower is better.

    `is_refused` only ever holds for a runner-up, where no other pair is admissible: then it is the best of the
    refused, so that there is something to compare with.
    """

    prefill: str
    decode: str
    score: float
    is_refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTable:
    """
    Every pair's score and terms.

    Attributes:
        pairs: Prefill pools against decode pools; None where there are none of either.
        alone: Unified pools, and decode pools that compute this prompt themselves, each with itself; or None.
        ids: Pool ids the blocks' indices point into.
    """

    ids: tuple[str, ...]
    pairs: ScoreBlock | None
    alone: ScoreBlock | None

    @property
    def prefill_ids(self) -> tuple[str, ...]:
        """Return the rows of `pairs`."""
        return () if self.pairs is None else tuple(self.ids[index] for index in self.pairs.rows)

    @property
    def decode_ids(self) -> tuple[str, ...]:
        """Return the columns of `pairs`."""
        return () if self.pairs is None else tuple(self.ids[index] for index in self.pairs.columns)

    @property
    def alone_ids(self) -> tuple[str, ...]:
        """Return the rows of `alone`."""
        return () if self.alone is None else tuple(self.ids[index] for index in self.alone.rows)

    def find(self, prefill: str, decode: str) -> tuple[ScoreBlock, int, int]:
        """
        Return (block, row, column) of a pair.

        Raises:
            ValueError: The table has no such pair.
        """
        if prefill in self.ids and decode in self.ids:
            p, d = self.ids.index(prefill), self.ids.index(decode)
            if p == d and self.alone is not None and (rows := np.flatnonzero(self.alone.rows == p)).size:
                return self.alone, int(rows[0]), 0
            if self.pairs is not None:
                rows, columns = np.flatnonzero(self.pairs.rows == p), np.flatnonzero(self.pairs.columns == d)
                if rows.size and columns.size:
                    return self.pairs, int(rows[0]), int(columns[0])
        raise ValueError(f"{prefill} -> {decode} is not a pair of this fleet")

    def ranking(self, count: int) -> tuple[Ranked, ...]:
        """Return the best admissible pairs by rising score; equal scores as `ScoreBlock.best` orders them."""
        found = []
        for block in (self.pairs, self.alone):
            if block is None:
                continue
            for row, column in block.best(count):
                p = self.ids[int(block.rows[row])]
                d = p if block.is_alone else self.ids[int(block.columns[column])]
                found.append(Ranked(prefill=p, decode=d, score=float(block.total[row, column])))
        found.sort(key=lambda item: item.score)
        return tuple(found[:count])

    def best_refused(self, chosen: tuple[str, str]) -> Ranked | None:
        """Return the refused pair with the least score its terms would give, None when none has a finite one."""
        found: Ranked | None = None
        for block in (self.pairs, self.alone):
            if block is None or block.total.size == 0 or block.total.size > MOST_REFUSED_COMPARED:
                continue
            with np.errstate(all="ignore"):
                would = np.broadcast_to(block.model.score(block.model.parts(slice(None))), block.shape)
            would = np.where(np.isfinite(would) & (block.codes > 0), would, np.inf)
            for flat in np.argsort(would, axis=None, kind="stable")[:2]:
                row, column = int(flat // block.shape[1]), int(flat % block.shape[1])
                p = self.ids[int(block.rows[row])]
                d = p if block.is_alone else self.ids[int(block.columns[column])]
                score = float(would[row, column])
                is_better = found is None or score < found.score
                if np.isfinite(score) and (p, d) != chosen and is_better:
                    found = Ranked(prefill=p, decode=d, score=score, is_refused=True)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """
    What a policy would do with a request, and why.

    Attributes:
        policy: Its name in POLICIES.
        at_s: Instant of the snapshot.
        seed: Of everything drawn at random.
        chosen: The pair, or None.
        score: By the policy's own rule (`score_unit` says which), lower is better; None without a choice.
        terms: The seven terms of the chosen pair by the joint cost, whichever policy chose it.
        runner_up, runner_up_terms: The best pair that differs from the chosen one; the best of the refused where no
            other is admissible (`is_refused`); or None and ().
        margin: Score of an admissible runner-up less the chosen one's, or None.
        ranking: Best pairs by the policy's own rule.
        rejections: One a refused pool, by this policy's filters; refused pairs are coded in `table`.
        fallback: Named branch taken when the rule could not be followed, or None.
        notes: What the policy saw or could not see.
        table: Joint scores of every pair (the joint policy), else None.
        pool_scores: The policy's own score of each pool it ranked (the others), NaN where not ranked.
        largest_fit_tokens: Largest demand some generating pool would admit now; None when none would.
    """

    policy: str
    request: RequestView
    at_s: float
    seed: int
    prepared: Prepared
    chosen: Chosen | None
    score: float | None
    score_unit: str
    terms: tuple[Term, ...] = ()
    runner_up: Ranked | None = None
    runner_up_terms: tuple[Term, ...] = ()
    margin: float | None = None
    ranking: tuple[Ranked, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    fallback: str | None = None
    notes: tuple[str, ...] = ()
    table: ScoreTable | None = None
    pool_scores: Mapping[str, FloatArray] = field(default_factory=dict)
    largest_fit_tokens: float | None = None

    def ages_s(self) -> dict[str, float | None]:
        """Return the age of each pool's figures, None where unknown."""
        arrays = self.prepared.arrays
        return {name: None if np.isnan(age) else float(age) for name, age in zip(arrays.ids, arrays.age_s, strict=True)}

    def gate(self, pool_id: str) -> Gate:
        """Return the admission inequality of one pool with its numbers."""
        return explain.gate_of(self.prepared, self.prepared.arrays.ids.index(pool_id))

    def marks(self, pool_id: str) -> tuple[str, ...]:
        """Return every estimate and fallback the figures of one pool rest on."""
        return self.prepared.notes_of(self.prepared.arrays.ids.index(pool_id))

    def pair_refusal(self, prefill: str, decode: str) -> tuple[str, str]:
        """Return (filter, reason) of a refused pair, ("", "") for an admissible one; joint decisions only."""
        if self.table is None:
            return "", ""
        block, row, column = self.table.find(prefill, decode)
        code = int(block.codes[row, column])
        return PAIR_FILTERS[code], explain.explain_pair_refusal(self.prepared, block, row, column)

    def leases(self, ttl_s: float = LEASE_TTL_S) -> tuple[Lease, ...]:
        """Return the leases that booking this decision grants, one an end; () without a choice."""
        if self.chosen is None:
            return ()
        ids, room = self.prepared.arrays.ids, self.prepared.room
        p, d = ids.index(self.chosen.prefill), ids.index(self.chosen.decode)
        name = self.request.request_id
        uncached = int(self.request.prompt_tokens - self.prepared.hit_tokens[p])
        until_s = self.at_s + ttl_s
        if p == d:
            lease = Lease(
                lease_id=f"{name}/unified",
                pool_id=ids[d],
                tokens=int(room.demand_tokens[d]),
                uncached_tokens=uncached,
                granted_at_s=self.at_s,
                expires_at_s=until_s,
            )
            return (lease,)
        return (
            Lease(
                lease_id=f"{name}/prefill",
                pool_id=ids[p],
                tokens=int(room.demand_tokens[p]),
                uncached_tokens=uncached,
                granted_at_s=self.at_s,
                expires_at_s=until_s,
            ),
            Lease(
                lease_id=f"{name}/decode",
                pool_id=ids[d],
                tokens=int(room.demand_tokens[d]),
                transfer_tokens=int(self.request.prompt_tokens - self.prepared.hit_tokens[d]),
                granted_at_s=self.at_s,
                expires_at_s=until_s,
            ),
        )


def reject_mask(decision: Decision) -> NDArray[np.bool_]:
    """Return which pools the decision's filters refused, in order of `prepared.arrays`."""
    refused = {rejection.pool for rejection in decision.rejections}
    return np.array([name in refused for name in decision.prepared.arrays.ids], dtype=bool)


def is_prefill_only(decision: Decision, pool_id: str) -> bool:
    """Say whether a pool only computes prompts."""
    arrays = decision.prepared.arrays
    return bool(arrays.role[arrays.ids.index(pool_id)] == PREFILL)
