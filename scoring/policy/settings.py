"""
What a decision is asked for and with: settings, the router's own state, and the prepared request.

Read next: `filters`, `scorers`, `decide`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from scoring.demand import refuse_outside
from scoring.reserve import ReserveSettings
from scoring.service import ServiceProfile
from scoring.slo import SLO_CLASSES, SloClass

PICKS: Final = ("best", "two-choices", "near-tie", "sticky")
DECIDERS: Final = ("policy", "always-remote", "dynamo", "llm-d")
FALLBACKS: Final = ("refuse", "least-bad")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideSettings:
    """
    How to decide.

    Attributes:
        classes: Service classes by name.
        reserve: Knobs of the safety reserve.
        profile: Service-time coefficients for the context term and for what telemetry does not give; None: linear.
        profiles: The same by worker id, where they differ. A coefficient that is NaN is not known.
        are_profiles_first: Prompt and step times come from the profiles, and from the pool's own window where it has
            none; else the window comes first. Calibrated profiles are fitted to many rows of this very fleet, a
            window's mean hides how times grow with length and batch.
        bandwidths_bytes_per_s: Worker id -> bandwidth of its hand-overs, taken where its counters tell none just now;
            a slower line still counts.
        ttft_error_ratio: Relative spread of predicted TTFT (peers publish 17 to 45 % at p99; chosen until calibrated).
        tpot_error_ratio: Relative spread of predicted TPOT.
        pick: "best"; "two-choices" (the better of two drawn); "near-tie" (at random within the band); "sticky" (the
            previous pair while it is within the band).
        near_tie: Width of the near-tie band in units of the score (1 = one TTFT budget).
        decider: Conditional disaggregation: whether a prompt is computed on its decode worker. "policy" takes what
            the policy ships with, "always-remote" switches it off.
        fallback: What to do when nothing passes the filters: "refuse", or "least-bad" among pools refused for room.
        is_same_zone: Pairs must share the label `zone` where both ends state one.
        top_count: Rows of the ranking.
    """

    classes: Mapping[str, SloClass] = field(default_factory=lambda: SLO_CLASSES)
    reserve: ReserveSettings = field(default_factory=ReserveSettings)
    profile: ServiceProfile | None = None
    profiles: Mapping[str, ServiceProfile] = field(default_factory=dict)
    are_profiles_first: bool = False
    bandwidths_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    ttft_error_ratio: float = 0.3
    tpot_error_ratio: float = 0.2
    pick: str = "best"
    near_tie: float = 0.1
    decider: str = "policy"
    fallback: str = "refuse"
    is_same_zone: bool = False
    top_count: int = 10

    def __post_init__(self) -> None:
        """Refuse words that are not known and numbers out of range."""
        for name, value, known in (
            ("pick", self.pick, PICKS),
            ("decider", self.decider, DECIDERS),
            ("fallback", self.fallback, FALLBACKS),
        ):
            if value not in known:
                raise ValueError(f"{name} is {value!r}; allowed are {', '.join(known)}")
        refuse_outside("ttft_error_ratio", self.ttft_error_ratio, (1e-3, 10.0))
        refuse_outside("tpot_error_ratio", self.tpot_error_ratio, (1e-3, 10.0))
        refuse_outside("near_tie", self.near_tie, (0.0, 1_000.0))
        refuse_outside("top_count", self.top_count, (1, 1_000))

    def profile_of(self, worker_id: str) -> ServiceProfile | None:
        """Return the coefficients of a worker, or None."""
        return self.profiles.get(worker_id, self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterState:
    """
    What a router remembers itself, beside telemetry.

    Attributes:
        turn: Requests decided so far (round robin).
        in_flight_count: Pool id -> requests this router has sent and not seen end. None: the engines' own running and
            waiting counts, which is what an honest counter of a single router would show.
        previous: (prefill, decode) chosen last time, for policies that stick.
    """

    turn: int = 0
    in_flight_count: Mapping[str, float] | None = None
    previous: tuple[str, str] | None = None
