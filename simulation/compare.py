"""
The same traffic under several policies (or variants of the fleet, options and drills), and what the difference is
worth.

Every variant gets the same requests and the same seeds. A difference is taken against the first variant (the
baseline) and carries a 95 % interval from a paired bootstrap: runs of consecutive arrivals are drawn with
replacement, the same ones for both sides, so that what is common to both (a burst, a long prompt) cancels and what
follows each other in time stays together. Several seeds are drawn from together. An interval that excludes 0 is a
difference this traffic can tell; one that does not, is not.

Read next: `compare_variants` (sides), `compare_paired` (intervals), `report` (figures), `sweep` (where runs happen).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scoring.slo import SLO_CLASSES, SloClass
from simulation.compare_paired import MIN_REQUESTS, Interval, paired_differences
from simulation.compare_policies import Expectations
from simulation.compare_variants import Variant, options_of, what_varies
from simulation.faults import Fault
from simulation.fleet import FleetSpec
from simulation.report import STATISTICS, RunReport, Spread
from simulation.result import RunResult
from simulation.simulate import SimulationOptions
from simulation.sweep import Done, Job, Progress, run_jobs
from simulation.traffic import TrafficArrays


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantResult:
    """
    A variant's runs.

    Attributes:
        variant: What ran.
        runs: One outcome a seed, in the order of the seeds.
        differences: Metric (`ttft_s.mean`, ..., `goodput_ratio`, `finished_ratio`) -> difference to the baseline;
            empty for the baseline.
    """

    variant: Variant
    runs: tuple[Done, ...]
    differences: Mapping[str, Interval] = field(default_factory=dict)

    @property
    def report(self) -> RunReport:
        """The first seed's figures."""
        return self.runs[0].report

    @property
    def result(self) -> RunResult | None:
        """The first seed's run, where it was kept whole."""
        return self.runs[0].result

    @property
    def wall_s(self) -> float:
        """Seconds all its runs took."""
        return sum(run.wall_s for run in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """
    What a comparison found.

    Attributes:
        variants: In the order given; the first is the baseline.
        varied: What differs between the variants beside the policy, in sentences; empty when only the policy does.
        notes: What the reader must know.
        seeds: Seeds of the runs.
        request_count: Requests of one run.
    """

    variants: tuple[VariantResult, ...]
    varied: tuple[str, ...]
    notes: tuple[str, ...]
    seeds: tuple[int, ...]
    request_count: int

    def of(self, name: str) -> VariantResult:
        """Return a variant by name; KeyError when there is none."""
        return next(item for item in self.variants if item.variant.name == name)


def compare(
    traffic: TrafficArrays | Sequence[TrafficArrays],
    fleet: FleetSpec,
    variants: Sequence[Variant],
    *,
    seeds: Sequence[int] = (0,),
    faults: Sequence[Fault] = (),
    options: SimulationOptions | None = None,
    classes: Sequence[SloClass] = tuple(SLO_CLASSES.values()),
    tenant_names: Sequence[str] = (),
    is_reuse_known: bool = True,
    process_count: int = 1,
    ray_address: str | None = None,
    on_progress: Progress | None = None,
) -> Comparison:
    """
    Run every variant on the same traffic and seeds.

    Args:
        traffic: The requests; or one for each seed (synthetic traffic drawn anew).
        fleet: What serves, unless a variant has its own.
        variants: At least one, each with its own name.
        seeds: Of the runs, each different.
        faults: Drills.
        options: How to run.
        classes: SLO classes by class id.
        tenant_names: Tenants by id; with more than one the tenant is also the key of session affinity.
        is_reuse_known: Whether the traffic carries prefix identities.
        process_count: See `sweep.run_jobs`.
        ray_address: See `sweep.run_jobs`.
        on_progress: Told the share done; False cancels.

    Raises:
        ValueError: names or seeds twice, no requests, or something that does not fit the fleet.
        CancelledError: cancelled.
    """
    if not variants:
        raise ValueError("there is no variant to run")
    names = [variant.name for variant in variants]
    for what, values in (("variant", names), ("seed", list(seeds))):
        if not values or len(set(values)) != len(values):
            raise ValueError(f"{what}s are {values}: at least one, each once")
    traffics = [traffic] * len(seeds) if isinstance(traffic, TrafficArrays) else list(traffic)
    if len(traffics) != len(seeds):
        raise ValueError(f"{len(traffics)} traffics for {len(seeds)} seeds: give one for all, or one a seed")
    if not all(len(each) for each in traffics):
        raise ValueError("the traffic is empty: there is nothing to replay")
    options = options or SimulationOptions()
    drills = tuple(faults)
    means = expectations(traffics[0])
    jobs = [
        Job(
            name=variant.name,
            policy=variant.policy,
            traffic=_at_speed(each, variant.speed),
            fleet=variant.fleet or fleet,
            seed=seed,
            faults=drills if variant.faults is None else variant.faults,
            options=options_of(variant, options),
            classes=tuple(classes),
            means=means,
            tenant_names=tuple(tenant_names),
            is_reuse_known=is_reuse_known,
            is_sessioned=bool(np.any(each.tenant_ids != each.tenant_ids[0])),
        )
        for variant in variants
        for seed, each in zip(seeds, traffics, strict=True)
    ]
    outcomes = run_jobs(jobs, process_count=process_count, ray_address=ray_address, on_progress=on_progress)
    per_variant = [tuple(outcomes[at : at + len(seeds)]) for at in range(0, len(outcomes), len(seeds))]
    varied = what_varies(variants, fleet, options, drills)
    notes = [f"more than the policy differs: {each}" for each in varied]
    if not is_reuse_known:
        notes.append("the traffic carries no prefix identities: prefix hits are unknown, and no policy could use any")
    results = [VariantResult(variant=variants[0], runs=per_variant[0])]
    for variant, runs in zip(variants[1:], per_variant[1:], strict=True):
        differences = paired_differences(per_variant[0], runs, classes, seed=int(seeds[0]))
        results.append(VariantResult(variant=variant, runs=runs, differences=differences))
    # An end of an interval may be 0; none is None.
    if len(results) > 1 and all(found.high is None for found in results[1].differences.values()):
        notes.append(f"fewer than {MIN_REQUESTS} requests: differences carry no interval")
    return Comparison(
        variants=tuple(results),
        varied=varied,
        notes=tuple(notes),
        seeds=tuple(int(seed) for seed in seeds),
        request_count=len(traffics[0]),
    )


def _at_speed(traffic: TrafficArrays, speed: float) -> TrafficArrays:
    return traffic if speed == 1.0 else replace(traffic, arrival_s=traffic.arrival_s / speed)


def expectations(traffic: TrafficArrays) -> Expectations:
    """Return the means of the traffic, as calibration would have them from the past."""
    return Expectations(
        mean_prompt_tokens=float(traffic.prompt_tokens.mean()),
        mean_output_tokens=max(float(traffic.output_tokens.mean()), 1.0),
    )


def pooled(runs: Sequence[Done], name: str) -> Spread:
    """Return a latency's spread over all seeds: the mean of each figure over the seeds."""
    spreads = [run.report.latency[name] for run in runs]
    figures: dict[str, float | None] = {}
    for statistic in STATISTICS:
        values = [getattr(each, statistic) for each in spreads]
        known = [value for value in values if value is not None]
        figures[statistic] = sum(known) / len(known) if known else None
    return Spread(count=sum(each.count for each in spreads), **figures)
