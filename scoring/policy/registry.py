"""
POLICIES: every policy by its stable name, with where its rule comes from and what it cannot see.

Adding one is an entry here and, where it is new, a function in `models`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from scoring.policy import models
from scoring.policy.filters import EVERY, REACHABLE
from scoring.policy.models import Asked, Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """
    One way to choose.

    Attributes:
        name: Stable kebab-case; stored in rows and traces.
        title: For people.
        source: Where the rule and its constants come from.
        blind_spots: What it cannot see, one sentence.
        filters: Names of the pool filters it applies.
        score_unit: What its own score counts.
        score: Its rule over single pools; None for the joint policy, which scores pairs.
        decider: Conditional disaggregation it ships with.
        is_drawn: Its answer depends on the seed or the turn, not on the fleet and the request alone.
    """

    name: str
    title: str
    source: str
    blind_spots: str
    filters: tuple[str, ...]
    score_unit: str
    score: Callable[[Asked], Scores] | None
    decider: str = "always-remote"
    is_drawn: bool = False

    @property
    def is_joint(self) -> bool:
        """Say whether it scores pairs."""
        return self.score is None


_ALL: Final = (
    Policy(
        name="joint",
        title="Joint pair score",
        source="docs/scoring.md: seven terms over every (prefill, decode) pair, after admission",
        blind_spots="Only what telemetry and leases show; its predictions err by the calibrated spread.",
        filters=EVERY,
        score_unit="TTFT budgets",
        score=None,
    ),
    Policy(
        name="guarded-utilization",
        title="Guarded utilization",
        source="hard gates of docs/scoring.md, then the lowest (committed + demand) / usable",
        blind_spots="Queues, speed, the link, where KV grows or shrinks, prefix hits.",
        filters=EVERY,
        score_unit="ratio of usable",
        score=models.guarded_utilization,
    ),
    Policy(
        name="lowest-utilization",
        title="Lowest utilization",
        source="the router everyone writes first: argmin of used / usable",
        blind_spots="Demand, reserve, queues, growth, the link, prefix hits, the age of the figure.",
        filters=REACHABLE,
        score_unit="ratio of usable",
        score=models.lowest_utilization,
    ),
    Policy(
        name="round-robin",
        title="Round robin",
        source="one after the other in order of id",
        blind_spots="Everything but health.",
        filters=REACHABLE,
        score_unit="turns",
        score=models.round_robin,
        is_drawn=True,
    ),
    Policy(
        name="random",
        title="Random",
        source="each pool equally likely",
        blind_spots="Everything but health.",
        filters=REACHABLE,
        score_unit="draw",
        score=models.random,
        is_drawn=True,
    ),
    Policy(
        name="sglang-cache-aware",
        title="SGLang cache-aware",
        source="sglang-router 0.3.2 cache_aware, CLI defaults: cache_threshold 0.3, balance_abs 64, balance_rel 1.5",
        blind_spots="KV room and request size: long contexts fill a pool before request counts differ (smg PR 1621).",
        filters=REACHABLE,
        score_unit="requests, or minus the match",
        score=models.sglang_cache_aware,
    ),
    Policy(
        name="sglang-power-of-two",
        title="SGLang power of two",
        source="sglang-router 0.3.2 power_of_two: lower cached token load of two drawn at random",
        blind_spots="Capacity (tokens, not ratio), queues, the link, prefix hits; loads are as old as its poll.",
        filters=REACHABLE,
        score_unit="tokens",
        score=models.sglang_power_of_two,
        is_drawn=True,
    ),
    Policy(
        name="smg-least-load",
        title="smg least load",
        source="smg least_load: (queued + in flight since poll) / (throughput or 2,000 tokens/s) + 0.15 * k / (1 - k)",
        blind_spots="This request's size and prefix, growth, the link; throughput is 0 without --enable-metrics.",
        filters=REACHABLE,
        score_unit="s",
        score=models.smg_least_load,
    ),
    Policy(
        name="dynamo-kv",
        title="Dynamo KV router",
        source="ai-dynamo lib/kv-router selector/default.rs: prefill scale 1, credit 1, temperature 0, ties random",
        blind_spots="Speed of a worker, the link, growth, room (busy thresholds are off by default).",
        filters=REACHABLE,
        score_unit="blocks",
        score=models.dynamo_kv,
        is_drawn=True,
    ),
    Policy(
        name="llm-d-weighted",
        title="llm-d weighted scorers",
        source="llm-d inference scheduler: prefix 3, queue 2, kv 2; decode first, remote prefill from 16 uncached",
        blind_spots="Demand, seconds, growth, the link; queues are relative: equally long everywhere scores as empty.",
        filters=REACHABLE,
        score_unit="minus weighted score",
        score=models.llmd_weighted,
        is_drawn=True,
        decider="llm-d",
    ),
    Policy(
        name="mooncake-min-ttft",
        title="Mooncake minimum TTFT",
        source="Mooncake (FAST 2025) Algorithm 1: least predicted TTFT, then decode by TBT, refused over the SLO",
        blind_spots="KV room and growth on the decode side; the pair's hand-over when it picks the prefill end.",
        filters=REACHABLE,
        score_unit="s",
        score=models.mooncake_min_ttft,
    ),
    Policy(
        name="vllm-dp",
        title="vLLM data-parallel balancer",
        source="vLLM DP load balancer: waiting * 4 + running",
        blind_spots="KV, prompt length, prefix hits: eight long contexts weigh as much as eight short ones.",
        filters=REACHABLE,
        score_unit="requests",
        score=models.vllm_dp,
    ),
    Policy(
        name="production-stack-session",
        title="Production-stack session affinity",
        source="vLLM production-stack session routing: hash ring on the session key, else fewest requests",
        blind_spots="Everything about the pool the session is bound to.",
        filters=REACHABLE,
        score_unit="ring distance",
        score=models.production_stack_session,
    ),
)

POLICIES: Final[dict[str, Policy]] = {each.name: each for each in _ALL}
"""Every policy by name."""


def policy_of(name: str) -> Policy:
    """
    Return a policy by name.

    Raises:
        ValueError: Unknown; the message lists the known ones.
    """
    if name not in POLICIES:
        raise ValueError(f"policy {name!r} is not known; known are {', '.join(POLICIES)}")
    return POLICIES[name]
