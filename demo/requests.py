"""
Requests under way and what became of them: the front end's histograms, counted when the real front end counts.

Read next: `state` (the histograms) and `fleet` (who opens and closes).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from demo.looks import GIGABYTE
from demo.plan import FleetPlan
from demo.state import RankState
from demo.traffic import DemoRequest
from demo.worker import Worker
from scoring.units import MIB_BYTES, MILLISECONDS_PER_S
from simulation.live import Completion, LiveFleet, LiveRequest, PoolView

BEFORE_FIRST_TOKEN: Final = frozenset({"new", "bootstrap", "queued", "prefill", "computed", "transfer"})


@dataclass(slots=True)
class _Open:
    request: DemoRequest
    pools: tuple[int, int]
    arrival_s: float
    is_held_by_prefill: bool = True
    has_left_bootstrap: bool = False
    first_token_s: float | None = None


class RequestBook:
    """
    Every open request, and the counts of those that ended. Times in are virtual, histograms are wall.

    `count` is told (pool, +1 or -1) when a request goes to a worker and when that worker is through with it: prefill
    when its KV has gone, decode at the end.
    """

    def __init__(
        self, plan: FleetPlan, workers: Mapping[str, Worker], speed: float, count: Callable[[int, int], None]
    ) -> None:
        self._tell = count
        self._plan = plan
        self._workers = workers
        self._speed = speed
        self._open: dict[str, _Open] = {}
        self._awaiting: dict[str, None] = {}
        self._count = 0
        self._outcomes: Counter[str] = Counter()
        self._transfers: dict[int, tuple[int, float]] = {}
        self._sent_bytes: dict[int, list[float]] = {}

    def open(self, request: DemoRequest, pools: tuple[int, int]) -> LiveRequest:
        """Number a request that is let in."""
        name = str(self._count)
        self._count += 1
        self._open[name] = _Open(request, pools, request.arrival_s)
        self._sent(name)
        return self.live_request(name)

    def live_request(self, name: str) -> LiveRequest:
        """Return an open request as the simulation takes it."""
        request = self._open[name].request
        return LiveRequest(
            request_id=name,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            hash_ids=request.hash_ids,
        )

    def open_at(self, pools: Sequence[int]) -> set[str]:
        """Return the open requests that were sent to any of these pools."""
        return {name for name, entry in self._open.items() if not set(pools).isdisjoint(entry.pools)}

    def _sent(self, name: str) -> None:
        entry = self._open[name]
        self._awaiting[name] = None
        entry.is_held_by_prefill = entry.pools[0] != entry.pools[1]
        self._tell(entry.pools[1], 1)
        if entry.is_held_by_prefill:
            self._tell(entry.pools[0], 1)

    def _handed_over(self, entry: _Open) -> None:
        if entry.is_held_by_prefill:
            entry.is_held_by_prefill = False
            self._tell(entry.pools[0], -1)

    def _given_up(self, entry: _Open) -> None:
        self._handed_over(entry)
        self._tell(entry.pools[1], -1)

    def refuse(self) -> None:
        """Count a request that found nobody to take it."""
        self._count += 1
        self._outcomes["rejected"] += 1

    def lost(self, name: str) -> DemoRequest:
        """Return the request that a dead worker took with it, to be routed again."""
        entry = self._open[name]
        self._outcomes["rerouted"] += 1
        self._given_up(entry)
        return entry.request

    def move(self, name: str, pools: tuple[int, int]) -> None:
        """Note where a lost request was sent."""
        self._open[name].pools = pools
        self._sent(name)

    def drop(self, name: str) -> None:
        """Count a lost request that found nobody else."""
        del self._open[name]
        self._awaiting.pop(name, None)
        self._outcomes["cancelled"] += 1

    def counts(self) -> dict[str, int]:
        """Return arrivals and outcomes: arrived = open + finished + rejected + cancelled + too_large."""
        outcomes = ("finished", "rejected", "cancelled", "too_large", "rerouted")
        return {"arrived": self._count, "open": len(self._open)} | {name: self._outcomes[name] for name in outcomes}

    def _worker(self, pool: int) -> tuple[Worker, int]:
        spec = self._plan.spec.pools[pool]
        return self._workers[spec.worker], spec.dp_rank

    def watch(self, live: LiveFleet, now_s: float) -> None:
        """Notice who has passed the handshake and who has shown a first token since the last tick."""
        for name in list(self._awaiting):
            stage = live.stage(name)
            entry = self._open[name]
            if stage != "bootstrap" and not entry.has_left_bootstrap:
                entry.has_left_bootstrap = True
                self._note_bootstrap(entry, now_s)
            if stage not in BEFORE_FIRST_TOKEN:
                self._note_first(name, entry, now_s)

    def _note_bootstrap(self, entry: _Open, now_s: float) -> None:
        if entry.pools[0] == entry.pools[1]:
            return
        waited_ms = (now_s - entry.arrival_s) / self._speed * MILLISECONDS_PER_S
        for pool in entry.pools:
            worker, rank = self._worker(pool)
            worker.rank_timings[rank].bootstrap_ms.add(waited_ms)
            worker.rank_timings[rank].alloc_ms.add(0.0)

    def _note_first(self, name: str, entry: _Open, now_s: float) -> None:
        self._awaiting.pop(name, None)
        self._handed_over(entry)
        if entry.first_token_s is not None:
            return
        entry.first_token_s = now_s
        waited_s = (now_s - entry.arrival_s) / self._speed
        front, _ = self._worker(entry.pools[1])
        front.timings.ttft_s.add(waited_s)
        if entry.pools[0] != entry.pools[1]:
            # On the prefill side the request is over when its KV has gone, one token long.
            source, _ = self._worker(entry.pools[0])
            source.timings.e2e_s.add(waited_s)
            source.timings.prompt_tokens.add(entry.request.prompt_tokens)
            source.timings.output_tokens.add(1)
            profile = self._plan.spec.pools[entry.pools[0]].profile
            size_bytes = entry.request.prompt_tokens * profile.bytes_per_token
            self._sent_bytes.setdefault(entry.pools[0], []).append(size_bytes)

    def close(self, done: Completion) -> None:
        """Count a request that ended."""
        entry = self._open.pop(done.request_id)
        self._outcomes[done.outcome] += 1
        self._given_up(entry)
        if done.outcome != "finished":
            self._awaiting.pop(done.request_id, None)
            return
        self._note_first(done.request_id, entry, done.first_token_s)
        front, _ = self._worker(entry.pools[1])
        timings = front.timings
        output_tokens = entry.request.output_tokens
        first_s = entry.first_token_s if entry.first_token_s is not None else done.finish_s
        timings.e2e_s.add((done.finish_s - entry.arrival_s) / self._speed)
        timings.prompt_tokens.add(entry.request.prompt_tokens)
        timings.output_tokens.add(output_tokens)
        timings.cached_tokens_total += done.hit_tokens
        if output_tokens > 1:
            timings.tpot_s.add(max(done.finish_s - first_s, 0.0) / self._speed / (output_tokens - 1))
        source, rank = self._worker(done.prefill)
        source.timings.uncached_tokens.add(max(done.prompt_tokens - done.hit_tokens, 0))
        if source is not front:
            # The real decode side counts the same hits once more; readers must take prefill's.
            source.timings.cached_tokens_total += done.hit_tokens
            timings.uncached_tokens.add(max(done.prompt_tokens - done.hit_tokens, 0))
        source.rank_timings[rank].queue_s.add(max(done.prefill_start_s - done.arrival_s, 0.0) / self._speed)

    def note_transfers(self, worker: Worker, rank: int, pool: int, view: PoolView, state: RankState) -> None:
        """Count the hand-overs that ended since the last look at a prefill pool, and fill the last one's figures."""
        if worker.plan.mode != "prefill":
            return
        now = (view.transfers_total, view.transfer_latency_s_total)
        before = self._transfers.get(pool, (0, 0.0))
        self._transfers[pool] = now
        published = worker.published[rank]
        state.transfer_gb_per_s, state.transfer_ms = published.transfer_gb_per_s, published.transfer_ms
        sizes = self._sent_bytes.pop(pool, [])
        count = now[0] - before[0]
        if count <= 0:
            return
        latency_s = (now[1] - before[1]) / count / self._speed
        timings = worker.rank_timings[rank]
        timings.transfer_ms.add(latency_s * MILLISECONDS_PER_S, count)
        state.transfer_ms = latency_s * MILLISECONDS_PER_S
        for size_bytes in sizes:
            timings.transfer_mib.add(size_bytes / MIB_BYTES)
            if latency_s > 0.0:
                state.transfer_gb_per_s = size_bytes / latency_s / GIGABYTE
                timings.transfer_gb_s.add(state.transfer_gb_per_s)
