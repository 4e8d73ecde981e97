"""
What happens to the demo fleet, minute by minute. A scenario is a list of phases; the last one lasts, or the list
begins again after `period_s`.

Rates are chosen for the default fleet of `plan`: about 10 requests a second of the everyday mix is a third of its
decode room, and long answers fill it because growth is not in their prompts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from demo.traffic import BATCH, INTERACTIVE, LONG_CONTEXT, REASONING, TrafficClass, TrafficMix

EVERYDAY: Final[Mapping[TrafficClass, float]] = {INTERACTIVE: 0.62, BATCH: 0.31, LONG_CONTEXT: 0.07}
LONG_ANSWERS: Final[Mapping[TrafficClass, float]] = {INTERACTIVE: 0.3, REASONING: 0.6, BATCH: 0.1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """
    Equal requests that arrive together on a given pair.

    Attributes:
        prefill: Worker that computes them.
        decode: Worker that decodes them.
        spread_s: They arrive evenly over this long.
        output_step_tokens: Each answer is this much longer than the one before, so that they do not end at once.
    """

    count: int
    prompt_tokens: int
    output_tokens: int
    prefill: str
    decode: str
    spread_s: float = 2.0
    output_step_tokens: int = 0
    class_name: str = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """
    A stretch of a scenario.

    Attributes:
        start_s: Since the scenario began.
        mix: Arrivals.
        down: Workers that do not answer and lose what they held.
        slow: Worker -> bytes per second of its network end.
        hot_pool: Pool that draws `hot_ratio` of the traffic, or None.
        cohorts: Requests that arrive at the start of the phase.
    """

    start_s: float
    mix: TrafficMix
    down: frozenset[str] = frozenset()
    slow: Mapping[str, float] = field(default_factory=dict)
    hot_pool: str | None = None
    hot_ratio: float = 0.0
    cohorts: tuple[Cohort, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """
    A named course of events.

    Attributes:
        summary: One line for `--list` and for the control endpoint.
        phases: Ascending by start; the first starts at 0.
        period_s: After so long it begins again; None: the last phase lasts.
        preroll_s: Virtual seconds already lived when the fleet opens its ports in this scenario.
        fleet: Plan it needs: "default" or "two-node".
    """

    name: str
    summary: str
    phases: tuple[Phase, ...]
    period_s: float | None = None
    preroll_s: float = 0.0
    fleet: str = "default"

    def __post_init__(self) -> None:
        starts = [phase.start_s for phase in self.phases]
        if not starts or starts[0] != 0.0 or starts != sorted(set(starts)):
            raise ValueError(f"scenario {self.name}: phases must start at 0 and ascend, got {starts}")
        if self.period_s is not None and self.period_s <= starts[-1]:
            raise ValueError(f"scenario {self.name}: period_s {self.period_s} ends before its last phase")

    def at(self, elapsed_s: float) -> tuple[int, int]:
        """Return the round and the index of the phase `elapsed_s` after the scenario began."""
        round_index = 0
        if self.period_s is not None:
            rounds, elapsed_s = divmod(elapsed_s, self.period_s)
            round_index = int(rounds)
        index = max(i for i, phase in enumerate(self.phases) if phase.start_s <= elapsed_s)
        return round_index, index


def scaled(scenario: Scenario, factor: float) -> Scenario:
    """Return the scenario with every arrival rate times `factor`, for a fleet that much larger than the default."""
    phases = tuple(
        replace(phase, mix=replace(phase.mix, rate_per_s=phase.mix.rate_per_s * factor)) for phase in scenario.phases
    )
    return replace(scenario, phases=phases)


def _mix(rate_per_s: float, shares: Mapping[TrafficClass, float] = EVERYDAY, burst_factor: float = 1.5) -> TrafficMix:
    return TrafficMix(rate_per_s=rate_per_s, shares=shares, burst_factor=burst_factor)


_QUIET: Final = TrafficMix(rate_per_s=0.0, shares=EVERYDAY)

_ALL: Final = (
    Scenario(
        name="calm",
        summary="healthy everyday traffic; prefix caches warm up until prefill pools are physically full",
        phases=(Phase(start_s=0.0, mix=_mix(9.0)),),
        preroll_s=45.0,
    ),
    Scenario(
        name="rush",
        summary="the same traffic in bursts: several times the rate for seconds at a time",
        phases=(Phase(start_s=0.0, mix=_mix(11.0, burst_factor=6.0)),),
    ),
    Scenario(
        name="saturation",
        summary="long answers fill the decode pools: headroom thins, admission stalls, retraction, recompute, slower "
        "release, tail latency, and back, every three and a half minutes",
        phases=(
            Phase(start_s=0.0, mix=_mix(9.0)),
            Phase(start_s=15.0, mix=_mix(12.0, LONG_ANSWERS)),
            # Many of one age: together they outgrow what the engine reserved for each of them.
            Phase(start_s=40.0, mix=TrafficMix(rate_per_s=66.0, shares={REASONING: 1.0})),
            Phase(start_s=50.0, mix=_mix(8.0)),
            Phase(start_s=90.0, mix=_mix(5.0)),
        ),
        period_s=210.0,
    ),
    Scenario(
        name="hotspot",
        summary="one DP rank of decode-2 draws a third of the traffic while its sibling idles along",
        phases=(Phase(start_s=0.0, mix=_mix(9.0), hot_pool="decode-2/1", hot_ratio=0.3),),
    ),
    Scenario(
        name="slow-link",
        summary="the network end of prefill-2 crawls: computed prompts pile up behind it, waiting to be handed over",
        phases=(
            Phase(start_s=0.0, mix=_mix(10.0)),
            Phase(start_s=10.0, mix=_mix(10.0), slow={"prefill-2": 1.2e9}),
        ),
    ),
    Scenario(
        name="node-loss",
        summary="decode-3 dies, refuses connections for 45 s while the others take its work, and comes back empty",
        phases=(
            Phase(start_s=0.0, mix=_mix(12.0)),
            Phase(start_s=20.0, mix=_mix(12.0), down=frozenset({"decode-3"})),
            Phase(start_s=65.0, mix=_mix(12.0)),
        ),
        period_s=150.0,
    ),
    Scenario(
        name="same-share",
        summary="for the tour: decode-1 fills with young sequences, decode-2 empties of old ones; shares meet",
        phases=(
            Phase(
                start_s=0.0,
                mix=_mix(1.5),
                cohorts=(
                    Cohort(
                        count=12,
                        prompt_tokens=6_500,
                        output_tokens=500,
                        output_step_tokens=95,
                        prefill="prefill-1",
                        decode="decode-2",
                        spread_s=1.5,
                        class_name="long_context",
                    ),
                ),
            ),
            Phase(
                start_s=4.0,
                mix=_mix(1.5),
                cohorts=tuple(
                    Cohort(
                        count=23,
                        prompt_tokens=900,
                        output_tokens=1_500,
                        output_step_tokens=20,
                        prefill=prefill,
                        decode="decode-1",
                    )
                    for prefill in ("prefill-2", "prefill-3")
                ),
            ),
            Phase(start_s=40.0, mix=_mix(1.5)),
        ),
        period_s=45.0,
    ),
    Scenario(
        name="two-choices",
        summary="for the tour: decode-4 holds less but grows behind a slow link, decode-5 holds more and empties",
        phases=(
            Phase(
                start_s=0.0,
                mix=_mix(1.5),
                cohorts=(
                    Cohort(
                        count=13,
                        prompt_tokens=7_400,
                        output_tokens=420,
                        output_step_tokens=110,
                        prefill="prefill-1",
                        decode="decode-5",
                        spread_s=1.5,
                        class_name="long_context",
                    ),
                ),
            ),
            Phase(
                start_s=5.0,
                mix=_mix(1.5),
                cohorts=tuple(
                    Cohort(
                        count=16,
                        prompt_tokens=800,
                        output_tokens=1_700,
                        output_step_tokens=20,
                        prefill=prefill,
                        decode="decode-4",
                        spread_s=1.0,
                    )
                    for prefill in ("prefill-2", "prefill-3")
                ),
            ),
            Phase(
                start_s=8.0,
                mix=_mix(1.5),
                slow={"decode-4": 0.3e9},
                cohorts=(
                    Cohort(
                        count=2,
                        prompt_tokens=10_000,
                        output_tokens=100,
                        prefill="prefill-4",
                        decode="decode-4",
                        spread_s=0.5,
                        class_name="long_context",
                    ),
                ),
            ),
            Phase(start_s=34.0, mix=_mix(1.5)),
        ),
        period_s=45.0,
    ),
    Scenario(
        name="chain",
        summary="for the tour: saturation without its quiet beginning; the first pool retracts in half a minute",
        phases=(
            Phase(start_s=0.0, mix=_mix(12.0, LONG_ANSWERS)),
            Phase(start_s=12.0, mix=TrafficMix(rate_per_s=66.0, shares={REASONING: 1.0})),
            Phase(start_s=22.0, mix=_mix(8.0)),
            Phase(start_s=62.0, mix=_mix(5.0)),
        ),
        period_s=150.0,
    ),
    Scenario(
        name="two-node",
        summary="D-A: 45 % used, 80 sequences at the start of long answers, growing, link congested; "
        "D-B: 68 % used, 24 sequences near their end, shrinking, link idle",
        phases=(
            Phase(
                start_s=0.0,
                mix=_QUIET,
                cohorts=(
                    Cohort(
                        count=24,
                        prompt_tokens=13_600,
                        output_tokens=1_750,
                        output_step_tokens=25,
                        prefill="P-B",
                        decode="D-B",
                        class_name="long_context",
                    ),
                ),
            ),
            Phase(
                start_s=28.0,
                mix=_QUIET,
                cohorts=(
                    # Through both prefill workers, so that all are young together.
                    Cohort(
                        count=40,
                        prompt_tokens=2_050,
                        output_tokens=2_600,
                        output_step_tokens=20,
                        prefill="P-A",
                        decode="D-A",
                    ),
                    Cohort(
                        count=40,
                        prompt_tokens=2_050,
                        output_tokens=2_610,
                        output_step_tokens=20,
                        prefill="P-B",
                        decode="D-A",
                    ),
                ),
            ),
            Phase(
                start_s=38.0,
                mix=_QUIET,
                slow={"D-A": 0.4e9},
                cohorts=(
                    Cohort(count=2, prompt_tokens=12_000, output_tokens=300, prefill="P-A", decode="D-A", spread_s=0.5),
                ),
            ),
            Phase(start_s=70.0, mix=_QUIET),
        ),
        period_s=140.0,
        preroll_s=43.0,
        fleet="two-node",
    ),
)

SCENARIOS: Final[Mapping[str, Scenario]] = {scenario.name: scenario for scenario in _ALL}
