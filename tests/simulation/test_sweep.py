"""Where runs happen does not change what comes out; a cancel ends them; Ray is an extra."""

import importlib.util
import pickle

import pytest

from simulation.compare import compare
from simulation.compare_variants import variants_of
from simulation.fleet_file import FleetDefaults, fleet_from_shorthand
from simulation.simulate import SimulationOptions
from simulation.sweep import CancelledError, Job, RayMissingError, core_count, run_job, run_jobs
from simulation.workload import Synthesis, synthesise

FLEET = fleet_from_shorthand("1p1d", FleetDefaults(blocks=4_000)).spec
TRAFFIC = synthesise(Synthesis(rate_per_s=3.0, duration_s=20.0), seed=2).traffic
PLAIN = SimulationOptions(is_compiled=False)


def jobs(count: int = 3) -> list[Job]:
    """Return a few jobs that differ in seed."""
    return [
        Job(name=f"j{seed}", policy="random", traffic=TRAFFIC, fleet=FLEET, seed=seed, options=PLAIN)
        for seed in range(count)
    ]


def test_processes_give_the_same_as_here_in_the_same_order() -> None:
    """Two processes and none: the same names and the same bytes of every request column."""
    here, there = run_jobs(jobs()), run_jobs(jobs(), process_count=2)
    assert [done.job_name for done in there] == ["j0", "j1", "j2"]
    for one, two in zip(here, there, strict=True):
        assert one.report == two.report
        assert one.result.requests.finish_s.tobytes() == two.result.requests.finish_s.tobytes()


def test_a_job_and_its_outcome_travel() -> None:
    """Both survive pickling, which is how they reach other processes."""
    done = run_job(pickle.loads(pickle.dumps(jobs(1)[0])))
    again = pickle.loads(pickle.dumps(done))
    assert again.report == done.report


@pytest.mark.parametrize("processes", [1, 2])
def test_a_cancel_stops_runs_and_leaves_no_result(processes: int) -> None:
    """Saying False at the first progress raises; nothing is returned."""
    long = [
        Job(
            name=f"long{seed}",
            policy="joint",
            traffic=synthesise(Synthesis(rate_per_s=5.0, duration_s=900.0), seed=seed).traffic,
            fleet=FLEET,
            options=PLAIN,
        )
        for seed in range(2)
    ]
    with pytest.raises(CancelledError):
        run_jobs(long, process_count=processes, on_progress=lambda share: False)


def test_progress_rises_to_one() -> None:
    """Shares are between 0 and 1, never fall, and end at 1."""
    shares: list[float] = []

    def heard(share: float) -> bool:
        shares.append(share)
        return True

    run_jobs(jobs(), on_progress=heard)
    assert shares == sorted(shares)
    assert shares[0] >= 0.0
    assert shares[-1] == 1.0


def test_a_job_that_does_not_fit_fails_with_its_sentence_wherever_it_runs() -> None:
    """An unknown policy raises ValueError here and out of a process."""
    wrong = [Job(name="x", policy="nobody", traffic=TRAFFIC, fleet=FLEET), *jobs(1)]
    for processes in (1, 2):
        with pytest.raises(ValueError, match="nobody"):
            run_jobs(wrong, process_count=processes)
    with pytest.raises(ValueError, match="process_count"):
        run_jobs(jobs(), process_count=-1)
    assert run_jobs([]) == []
    assert core_count() >= 1


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_message_says_which_extra() -> None:
    """Asking for a cluster without the extra is an error with what to install."""
    with pytest.raises(RayMissingError, match="extra `ray`"):
        run_jobs(jobs(), ray_address="local")


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra `ray`)")
def test_a_local_ray_with_two_workers_gives_the_same_as_here() -> None:
    """The same jobs on Ray: the same reports in the same order."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        there = compare(TRAFFIC, FLEET, variants_of(["round-robin", "random"]), options=PLAIN, ray_address="auto")
    finally:
        ray.shutdown()
    here = compare(TRAFFIC, FLEET, variants_of(["round-robin", "random"]), options=PLAIN)
    for one, two in zip(here.variants, there.variants, strict=True):
        assert one.report == two.report
        assert one.differences == two.differences
