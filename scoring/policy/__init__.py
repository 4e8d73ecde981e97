"""
Policies: readings and a request in, a Decision out.

Read `deciding` first, then `prepare` (one request as columns), `filters`, `scorers` (pairs), `models` (what people run
today) and `registry` (POLICIES).
"""

from scoring.policy.deciding import decide
from scoring.policy.decision import Chosen, Decision, Ranked, ScoreTable
from scoring.policy.registry import POLICIES, Policy, policy_of
from scoring.policy.settings import DecideSettings, RouterState

__all__ = [
    "POLICIES",
    "Chosen",
    "DecideSettings",
    "Decision",
    "Policy",
    "Ranked",
    "RouterState",
    "ScoreTable",
    "decide",
    "policy_of",
]
