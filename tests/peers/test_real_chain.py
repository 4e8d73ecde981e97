"""
The saturation chain over the seconds that real engines were watched: it names what each of them suffered.

Uses the watches of the other modules (kept or made again), so what is judged here is the same run.
"""

from collections.abc import Callable

import pytest

from commands.check import history_of
from scoring.chain import EVENT_STAGE, ChainEvent, ChainSettings, ChainState, step
from scoring.chain_evidence import Stage
from scoring.model import Role
from tests.peers import test_real_pd_cluster, test_real_vllm
from tests.peers.seen import Seen

pytestmark = pytest.mark.peer


def _chain(seen: Seen, pool_id: str) -> tuple[list[ChainEvent], set[Stage], ChainState]:
    """Walk the chain over each new answer of a pool; return its events, every stage it stood at, and its last state."""
    state, readings, events, stages = ChainState(), [], [], set()
    for _, pool in seen.samples(pool_id):
        readings.append(pool.reading)
        state, found = step(state, pool, history_of(readings), ChainSettings())
        events += found
        stages.add(state.stage)
    return events, stages, state


def test_preemptions_of_a_real_vllm_light_retraction_and_go_out(seen_of: Callable[..., Seen]) -> None:
    """While vLLM preempts, the chain stands at retraction or beyond; in the quiet after, nothing new is lit."""
    seen = seen_of("vllm", test_real_vllm._watch)
    events, stages, _ = _chain(seen, "real/0")
    assert stages & {Stage.RETRACTION, Stage.RECOMPUTE, Stage.SLOW_RELEASE, Stage.TAIL_LATENCY}
    assert any("retracted" in event.text for event in events)
    last_busy_s = max(j.fleet.at_s for j, pool in seen.samples("real/0") if pool.running_count.value)
    late = [event for event in events if event.kind == EVENT_STAGE and event.at_s > last_busy_s + 5.0]
    assert all("well again" in event.text or "nothing" in event.text for event in late), late


def test_a_full_decode_pool_stalls_admission_and_prefill_is_not_blamed(seen_of: Callable[..., Seen]) -> None:
    """Decode pools with a queue for room stand at stalled admission or beyond; the prefill pools stay well."""
    seen = seen_of("pd_cluster", test_real_pd_cluster._watch)
    stalled = 0
    for pool in seen.judged[-1].fleet.pools:
        _, stages, _ = _chain(seen, pool.pool_id)
        if pool.role is Role.DECODE:
            stalled += bool(stages & {stage for stage in Stage if stage >= Stage.ADMISSION_STALLS})
        else:
            assert not stages & {Stage.RETRACTION, Stage.RECOMPUTE}
    assert stalled == 2
