"""
Many runs: one after the other here, over processes, or on a Ray cluster; the same jobs, the same results.

A job is data and runs by itself, so where it runs cannot change what comes out. Results come back in the order of
the jobs whatever order they finish in.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from scoring.model import Role
from scoring.slo import SLO_CLASSES, SloClass
from simulation.compare_policies import Expectations, resolve
from simulation.compiled import compiled_run, is_ready
from simulation.faults import Fault
from simulation.fleet import FleetSpec, PoolSpec
from simulation.report import RunReport, report_run
from simulation.result import RunResult
from simulation.simulate import PLAIN_REQUESTS, SimulationOptions, simulate
from simulation.traffic import TrafficArrays

WAIT_S: Final = 0.5
"""Between two looks at a cancel flag while runs are under way elsewhere."""


class CancelledError(Exception):
    """The caller asked to stop; what had finished is lost with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """
    One run.

    Attributes:
        name: Variant it belongs to.
        policy: Name that `compare_policies.resolve` takes.
        traffic: What arrives.
        fleet: What serves.
        seed: Of the run.
        faults: Drills.
        options: How to run.
        classes: SLO classes by class id, for the policy and for goodput.
        means: What a scored policy expects of the traffic.
        tenant_names: Tenants by id.
        is_reuse_known: Whether the traffic carries prefix identities.
        is_sessioned: Whether the tenant is the session key.
        is_kept_whole: Give the `RunResult` back too (large), not only its report.
    """

    name: str
    policy: str
    traffic: TrafficArrays
    fleet: FleetSpec
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    options: SimulationOptions = field(default_factory=SimulationOptions)
    classes: tuple[SloClass, ...] = tuple(SLO_CLASSES.values())
    means: Expectations = field(default_factory=Expectations)
    tenant_names: tuple[str, ...] = ()
    is_reuse_known: bool = True
    is_sessioned: bool = False
    is_kept_whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """
    One run's outcome.

    Attributes:
        job_name: Variant.
        seed: Seed.
        wall_s: Seconds the run took, compiling and reporting left out.
        report: Its figures.
        result: The run, where the job keeps it whole.
    """

    job_name: str
    seed: int
    wall_s: float
    report: RunReport
    result: RunResult | None


Progress = Callable[[float], bool]
"""Told the share done, 0 to 1; False cancels."""


def run_job(job: Job, on_progress: Progress | None = None) -> Done:
    """
    Run one job here.

    Raises:
        ValueError: policy, fault or fleet do not fit.
        CancelledError: `on_progress` said False.
    """
    policy = resolve(
        job.policy,
        job.fleet,
        seed=job.seed,
        classes=job.classes,
        means=job.means,
        is_sessioned=job.is_sessioned,
    )
    total = max(len(job.traffic), 1)
    is_cancelled = False

    def heard(_: float, done_count: int) -> bool:
        nonlocal is_cancelled
        assert on_progress is not None
        is_cancelled = not on_progress(min(done_count / total, 1.0))
        return not is_cancelled

    options = replace(job.options, slo_classes=job.classes)
    if options.is_compiled is not False and (options.is_compiled or total > PLAIN_REQUESTS or is_ready()):
        # Compiling is no part of a run's wall time.
        warm_up()
    began = time.perf_counter()
    result = simulate(
        job.traffic,
        job.fleet,
        policy,
        job.seed,
        job.faults,
        options,
        on_progress=None if on_progress is None else heard,
    )
    wall_s = time.perf_counter() - began
    if is_cancelled:
        raise CancelledError("cancelled")
    report = report_run(result, classes=job.classes, tenant_names=job.tenant_names, is_reuse_known=job.is_reuse_known)
    return Done(
        job_name=job.name,
        seed=job.seed,
        wall_s=wall_s,
        report=report,
        result=result if job.is_kept_whole else None,
    )


_warm: list[bool] = []


def warm_up() -> float:
    """
    Compile the kernel, or load what was compiled before, and return the seconds that took; 0 when it was warm.

    The first time on a machine, and after each change of the simulation's source, this compiles.
    """
    if _warm:
        return 0.0
    began = time.perf_counter()
    pool = PoolSpec(worker="w", role=Role.UNIFIED, usable_tokens=1024)
    one = TrafficArrays(arrival_s=np.zeros(1), prompt_tokens=np.ones(1, np.int64), output_tokens=np.ones(1, np.int64))
    compiled_run()
    simulate(one, FleetSpec(pools=(pool,)), "joint")
    _warm.append(True)
    return time.perf_counter() - began


def core_count() -> int:
    """Return the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(
    jobs: Sequence[Job],
    *,
    process_count: int = 1,
    ray_address: str | None = None,
    on_progress: Progress | None = None,
) -> list[Done]:
    """
    Run jobs and return their outcomes in the same order.

    Args:
        jobs: What to run.
        process_count: 1 runs them here, more over so many processes, 0 over all cores.
        ray_address: Address of a Ray cluster ("auto", "local", "ray://host:10001"); then `process_count` is not used.
        on_progress: Told the share done; False cancels.

    Raises:
        ValueError: a job does not fit, or `process_count` is negative.
        CancelledError: cancelled.
        RayMissingError: `ray_address` without the `ray` extra.
    """
    if process_count < 0:
        raise ValueError(f"process_count is {process_count}: must be at least 0")
    if not jobs:
        return []
    if ray_address is not None:
        return list(_on_ray(jobs, ray_address, on_progress))
    workers = min(process_count or core_count(), len(jobs))
    if workers > 1:
        return _over_processes(jobs, workers, on_progress)
    return list(_here(jobs, on_progress))


def _here(jobs: Sequence[Job], on_progress: Progress | None) -> Iterator[Done]:
    for place, job in enumerate(jobs):
        if on_progress is None:
            yield run_job(job)
            continue
        yield run_job(job, _part(on_progress, place, len(jobs)))
    if on_progress is not None:
        on_progress(1.0)


def _part(listener: Progress, place: int, count: int) -> Progress:
    return lambda share: listener((place + share) / count)


def _over_processes(jobs: Sequence[Job], workers: int, on_progress: Progress | None) -> list[Done]:
    # Spawned, not forked: the caller may be a server with threads, whose locks a fork would copy in any state.
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    waiting: set[Future[Done]] = set()
    try:
        futures = [pool.submit(run_job, job) for job in jobs]
        waiting = set(futures)
        while waiting:
            finished, waiting = wait(waiting, timeout=WAIT_S, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()
            if on_progress is not None and not on_progress(1.0 - len(waiting) / len(jobs)):
                raise CancelledError("cancelled")
        return [future.result() for future in futures]
    finally:
        if waiting:
            for process in list((pool._processes or {}).values()):  # the pool has no public way to stop a run.
                process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


_NO_TRAFFIC: Final = TrafficArrays(
    arrival_s=np.zeros(0), prompt_tokens=np.zeros(0, np.int64), output_tokens=np.zeros(0, np.int64)
)


def _run_with(job: Job, traffic: TrafficArrays) -> Done:
    return run_job(replace(job, traffic=traffic))


class RayMissingError(RuntimeError):
    """Ray was asked for and is not installed."""


def _on_ray(jobs: Sequence[Job], address: str, on_progress: Progress | None) -> Iterator[Done]:
    try:
        import ray  # an optional extra.
    except ImportError as error:
        raise RayMissingError("ray is not installed: install the extra `ray`, or leave --ray out") from error
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(address=None if address == "local" else address, log_to_driver=False, include_dashboard=False)
    try:
        remote: Any = ray.remote(_run_with)
        # The traffic is put once for all jobs that share it, not sent with each.
        shared = {id(job.traffic): ray.put(job.traffic) for job in jobs}
        pending = [remote.remote(replace(job, traffic=_NO_TRAFFIC), shared[id(job.traffic)]) for job in jobs]
        open_refs = list(pending)
        while open_refs:
            _, open_refs = ray.wait(open_refs, num_returns=1, timeout=WAIT_S)
            if on_progress is not None and not on_progress(1.0 - len(open_refs) / len(jobs)):
                for ref in open_refs:
                    ray.cancel(ref, force=True)
                raise CancelledError("cancelled")
        yield from ray.get(pending)
    finally:
        if is_ours:
            ray.shutdown()
