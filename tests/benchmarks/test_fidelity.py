"""
The fidelity study on an engine that obeys the laws exactly: what the study adds of its own must be next to nothing.
"""

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fidelity import BEGIN, END, main
from benchmarks.fidelity_demo import recovered
from benchmarks.fidelity_fit import prompt_fit
from benchmarks.fidelity_judge import Figure, study
from benchmarks.fidelity_kit import spread_cores
from benchmarks.fidelity_loads import Load, Seen, planned, read, save
from benchmarks.fidelity_record import shortened
from benchmarks.fidelity_targets import LINEAR, TARGETS, UTILIZATION
from scoring.calibration_service import fit_decode
from scoring.calibration_windows import consecutive_windows
from scoring.model import PoolReading, Role
from tests.benchmarks.simulated_engine import TRUE, USABLE_TOKENS, later, played, utilization_step_s

SINGLE, CLUSTER, MOCKER = TARGETS["sglang"], TARGETS["sglang-2p2d"], TARGETS["dynamo-mocker"]


def _record(folder: Path, target_name: str, names: tuple[str, ...], delay_s: float = 0.0) -> None:
    target = TARGETS[target_name]
    for load in shortened(target, names, 1.0):
        for turn in range(2):
            recording = later(played(target, load, turn), delay_s)
            # Of the second round the last request comes a moment late, as a busy client sends it.
            last = replace(recording.requests[-1], arrival_s=recording.requests[-1].arrival_s + 1.0 * turn)
            save(
                folder / f"{load.name}.{turn}.json",
                replace(recording, requests=(*recording.requests[:-1], last)),
            )


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of the single server's loads, every answer 30 ms late."""
    folder = tmp_path_factory.mktemp("single")
    _record(folder, "sglang", ("light", "busy", "pressure"), 0.03)
    return folder


@pytest.mark.parametrize(("fit_name", "held_name"), [("busy", "light"), ("light", "busy")])
def test_an_engine_that_obeys_the_laws_is_predicted(single: Path, fit_name: str, held_name: str) -> None:
    """
    Coefficients and the client's constant come back, and the held-out load is predicted well within each aim; two
    rounds of the same load are the same.
    """
    found = study(SINGLE, single, fit_name, held_name)
    assert found.failed_count == 0
    assert found.overhead_s == pytest.approx(0.03, abs=0.003)
    assert found.fit.profile.decode_base_s == pytest.approx(TRUE.decode_base_s, rel=0.03)
    assert found.fit.profile.decode_per_sequence_s == pytest.approx(TRUE.decode_per_sequence_s, rel=0.05)
    for name, bound in (("TPOT mean, s", 0.02), ("TTFT p50, s", 0.03), ("TTFT p99, s", 0.08), ("E2E mean, s", 0.02)):
        figure = found.figure(name)
        assert abs(figure.error_ratio) < bound, (name, figure)
        assert figure.floor_ratio == pytest.approx(0.0, abs=1e-9)
    assert found.kv_gap_ratio < 0.02
    assert found.kv_floor_ratio == pytest.approx(0.0, abs=1e-9)


def test_a_pool_asked_for_more_than_it_holds_is_predicted(single: Path) -> None:
    """Far beyond capacity the queue grows as steps and prompts take: waits within the aims, KV within 5 % of a pool."""
    found = study(SINGLE, single, "busy", "pressure")
    assert found.figure("TTFT p50, s").actual > 5.0
    for name, aim in (("TPOT mean, s", 0.05), ("TTFT p50, s", 0.10), ("TTFT p99, s", 0.15)):
        assert abs(found.figure(name).error_ratio) < aim, found.figure(name)
    assert found.kv_gap_ratio < 0.05


@pytest.mark.parametrize(("every", "is_flat"), [(1, False), (10, True)])
@pytest.mark.parametrize("name", ["light", "long"])
def test_looks_as_rare_as_requests_are_short_flatten_a_slope_and_the_interval_says_so(
    name: str, every: int, is_flat: bool
) -> None:
    """Looked at ten times a second the part per KV token is exact; once a second its interval alone holds it."""
    recording = played(SINGLE, next(load for load in SINGLE.loads if load.name == name))
    windows = consecutive_windows(recording.readings[::every])
    fit = fit_decode([each.decode for each in windows if each.decode])
    token = fit.of("decode_per_token_s")
    assert (abs(token.value / TRUE.decode_per_token_s - 1.0) > 0.2) == is_flat
    for each in (token, fit.of("decode_per_sequence_s")):
        true = getattr(TRUE, each.name)
        assert each.low * 0.99 <= true <= each.high * 1.01, each


def test_a_cluster_that_obeys_the_laws_is_predicted(tmp_path: Path) -> None:
    """Two prefill and two decode workers: prompts, hand-overs and steps are each fitted where they are counted."""
    _record(tmp_path, "sglang-2p2d", ("short", "mixed"))
    found = study(CLUSTER, tmp_path, "mixed", "short")
    assert found.fit.profile.transfer_latency_s == pytest.approx(TRUE.transfer_latency_s, rel=0.1)
    assert found.fit.profile.prefill_per_token_s == pytest.approx(TRUE.prefill_per_token_s, rel=0.1)
    for name, bound in (("TPOT mean, s", 0.03), ("TTFT p50, s", 0.05), ("TTFT p99, s", 0.15)):
        assert abs(found.figure(name).error_ratio) < bound, found.figure(name)


def test_the_mocker_s_curve_is_found_where_a_line_bends(tmp_path: Path) -> None:
    """Steps by utilization: the curve's law gives every stretch, the linear one leaves several per cent."""
    rng = np.random.default_rng(5)
    load = replace(MOCKER.loads[0], seconds=60.0)
    readings, gaps, spent = [], 0.0, 0.0
    for second in range(90):
        share = 0.5 + 0.4 * np.sin(second / 7.0)
        until = 0.5 + 0.4 * np.sin((second + 1) / 7.0)
        middle = np.array([(share + until) / 2.0])
        step_s = float(utilization_step_s(middle)[0]) * (1 + 0.002 * rng.standard_normal())
        for name, (_, role) in MOCKER.workers.items():
            readings.append(
                PoolReading(
                    worker_id=name,
                    role=role,
                    engine="dynamo",
                    received_at_s=1000.0 + second,
                    usable_tokens=32768.0,
                    block_size_tokens=16.0,
                    used_tokens=share * 32768.0,
                    running_count=10.0,
                    itl_s_total=spent,
                    itl_count_total=gaps,
                )
            )
        gaps, spent = gaps + 10.0 / step_s, spent + 10.0
    seen = [
        Seen(float(at), 100 + 10 * at, 50, 0.02 + 2e-5 * (100 + 10 * at) + 0.045, 0.02 + 2e-5 * (100 + 10 * at) + 1.515)
        for at in range(60)
    ]
    recording = replace(played(SINGLE, replace(load, rate_per_s=1.0)), load=load, requests=tuple(seen))
    save(tmp_path / "calm.0.json", replace(recording, began_at_s=1000.0, readings=tuple(readings)))
    by_law = {law: study(MOCKER, tmp_path, "calm", "calm", law).fit for law in (LINEAR, UTILIZATION)}
    assert by_law[UTILIZATION].step_scatter_ratio < 0.01 < by_law[LINEAR].step_scatter_ratio
    told = dict(by_law[UTILIZATION].coefficients)
    assert told["decode_base_s"] == pytest.approx(0.006, rel=0.1)
    assert told["decode_per_utilization_s"] == pytest.approx(0.054, rel=0.1)
    assert told["prefill_per_token_s"] == pytest.approx(2e-5, rel=0.02)


def test_prompts_are_fitted_to_what_clients_waited() -> None:
    """Base and part per token come back from TTFT less the first steps of a decode worker; too few give no fit."""
    seen = [
        Seen(float(at), tokens, 11, 0.02 + 1e-4 * tokens + 1.5 * 0.01, 0.02 + 1e-4 * tokens + 1.5 * 0.01 + 10 * 0.01)
        for at, tokens in enumerate(range(100, 2100, 50))
    ]
    values = {each.name: each.value for each in prompt_fit(seen).coefficients}
    assert values["prefill_base_s"] == pytest.approx(0.02, rel=1e-3)
    assert values["prefill_per_token_s"] == pytest.approx(1e-4, rel=1e-3)
    assert not prompt_fit(seen[:10]).is_made


def test_the_demo_fleet_s_coefficients_are_listed_with_the_truth() -> None:
    """
    Every coefficient of every kind of worker once, told or not; what steps take per token is told in ten seconds.
    The law at five minutes is tests/collectors/test_calibration_demo.py's.
    """
    found = {(each.role, each.name): each for each in recovered(10)}
    assert len(found) == 14
    assert all(each.true > 0 for each in found.values())
    token = found[Role.DECODE, "decode_per_token_s"]
    assert token.fitted == pytest.approx(token.true, rel=0.1)


def test_a_recording_reads_back_as_it_was(tmp_path: Path) -> None:
    """Requests and readings survive the file, unknown stays unknown; what is no recording is refused by name."""
    recording = replace(
        played(SINGLE, Load("x", 5.0, (10, 20), (5, 9), 2.0)),
        requests=(Seen(0.1, 10, 5, 0.2, 1.0), Seen(0.2, 12, 5, None, None, "TimeoutError")),
    )
    save(tmp_path / "x.0.json", recording)
    assert read(tmp_path / "x.0.json") == recording
    (tmp_path / "y.0.json").write_text('{"requests": []}')
    with pytest.raises(ValueError, match="is no recording"):
        read(tmp_path / "y.0.json")


def test_a_load_has_the_same_arrivals_and_lengths_in_every_round_and_no_token_twice() -> None:
    """So that rounds are the same load, and no prefix cache remembers; another seed is another load."""
    load = Load("x", 5.0, (50, 60), (5, 9), 10.0, seed=3)
    first, second = planned(load, 0), planned(load, 1)
    assert first == planned(load, 0)
    shape = [[(row.at_s, len(row.ids), row.output_tokens) for row in rows] for rows in (first, second)]
    assert shape[0] == shape[1]
    assert not {row.ids[:8] for row in first} & {row.ids[:8] for row in second}
    assert len(planned(replace(load, seed=4))) != len(first) or planned(replace(load, seed=4)) != first


def test_an_aim_is_met_missed_or_not_one() -> None:
    """Within the bound is met, beyond is missed; a figure without an aim, or with nothing to compare to, is neither."""
    assert Figure("TPOT mean, s", 1.049, 1.0).is_met
    assert Figure("TPOT mean, s", 0.94, 1.0).is_met is False
    assert Figure("E2E mean, s", 1.0, 1.0).is_met is None
    assert Figure("retractions", 3.0, 0.0).error_ratio is None
    assert Figure("retractions", 0.0, 0.0).error_ratio == 0.0


def test_every_pair_names_loads_and_every_pool_of_the_single_server_can_be_overrun() -> None:
    """No pair of a load with itself; the pressure load asks for more than the pool holds at once."""
    for target in TARGETS.values():
        names = [load.name for load in target.loads]
        assert len(set(names)) == len(names)
        for fit_name, held_name in target.pairs:
            assert {fit_name, held_name} <= set(names)
            assert fit_name != held_name
    pressure = SINGLE.loads[-1]
    assert sum(len(row.ids) + row.output_tokens for row in planned(pressure)) > 3 * USABLE_TOKENS


def test_the_tables_go_between_the_marks(tmp_path: Path) -> None:
    """What a person wrote around them stays; a page without marks, or none at all, is refused; so is no engine."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    arguments = ["--data", str(tmp_path), "--recordings", str(tmp_path), "--demo-seconds", "0", "--out", str(page)]
    assert main(arguments) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert text.count("Not recorded on this machine.") == len(TARGETS)
    page.write_text("no marks")
    assert main(arguments) == 1
    page.unlink()
    assert main(arguments) == 1
    with pytest.raises(SystemExit):
        main(["--only", "no-such-engine"])
    with pytest.raises(SystemExit):
        main(["--kit", str(tmp_path)])


def test_recordings_become_the_page_s_tables(single: Path, tmp_path: Path) -> None:
    """Each pair that was recorded has its figures with the floor beside them; each that was not says what to do."""
    (tmp_path / "sglang").symlink_to(single)
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}{END}")
    options = ["--only", "sglang", "--demo-seconds", "0", "--data", str(tmp_path)]
    assert main([*options, "--recordings", str(tmp_path), "--out", str(page)]) == 0
    text = page.read_text()
    assert "### busy -> light" in text
    assert "| sglang, busy -> light |" in text
    assert "Not judged: busy -> long" in text
    row = next(line for line in text.splitlines() if line.startswith("| TPOT mean, s |"))
    assert row.endswith("| 0.0 % |")


def test_one_scheduler_gets_a_core_of_its_own_and_several_are_left_alone() -> None:
    """Real processes under the engine's name: the scheduler on one core, its siblings on another; two: untouched."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("one core only: there is nothing to spread")

    def group(schedulers: int) -> subprocess.Popen[bytes]:
        line = " ".join(["(exec -a sglang::scheduler sleep 60) &"] * schedulers) + " sleep 60 & wait"
        return subprocess.Popen(["bash", "-c", line], start_new_session=True)

    def children(parent: int) -> dict[int, bytes]:
        found = {}
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                if folder.name.isdigit() and os.getpgid(int(folder.name)) == parent:
                    found[int(folder.name)] = (folder / "cmdline").read_bytes()
        return found

    for schedulers in (1, 2):
        leader = group(schedulers)
        try:
            end = time.monotonic() + 30.0
            while time.monotonic() < end:
                found = children(leader.pid)
                if sum(b"scheduler\0" in line[:20] for line in found.values()) == schedulers and len(found) >= 3:
                    break
            core = spread_cores([leader.pid])
            placed = {process: os.sched_getaffinity(process) for process in found}
            if schedulers == 2:
                assert core is None
                assert all(each == cores for each in placed.values())
                continue
            assert core in cores
            for process, each in placed.items():
                is_scheduler = found[process].startswith(b"sglang::scheduler")
                assert len(each) == 1
                assert (each == {core}) != is_scheduler
        finally:
            os.killpg(leader.pid, signal.SIGKILL)
            leader.wait()


def test_a_server_that_is_not_one_is_an_error_in_words(tmp_path: Path) -> None:
    """A cluster has fixed addresses; an unknown load is named with the known ones."""
    with pytest.raises(ValueError, match=r"no load nothing; it has light"):
        shortened(SINGLE, ["nothing"], 1.0)
    silent = replace(played(SINGLE, Load("light", 2.0, (20, 30), (5, 9), 5.0)), readings=())
    save(tmp_path / "light.0.json", silent)
    save(tmp_path / "busy.0.json", silent)
    with pytest.raises(ValueError, match="unified"):
        study(SINGLE, tmp_path, "light", "busy")
    assert Role.UNIFIED in {role for _, role in SINGLE.workers.values()}
