"""
A fleet stepped from outside: the demo submits requests with their pools chosen, lets time pass and looks.

Runs the kernel's functions as plain Python over memoryviews of the state's arrays (three times faster than numpy
scalars, and nothing to compile at start). Time starts at 0 and only moves in `advance`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scoring.service import ServiceProfile
from simulation import engine
from simulation import layout as lay
from simulation.fleet import FleetSpec
from simulation.layout import State
from simulation.leaving import cancel
from simulation.live_view import PoolView, pool_view
from simulation.network import advance_flows, plan_network
from simulation.runs import sync
from simulation.state import ends_of, make_state

__all__ = ["Completion", "LiveFleet", "LiveRequest", "PoolView"]

OUTCOMES = ("open", "finished", "rejected", "cancelled", "too_large")
STAGES = (
    "new",
    "bootstrap",
    "queued",
    "prefill",
    "computed",
    "transfer",
    "arrived",
    "decode",
    "retracted",
    "done",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRequest:
    """
    A request to submit.

    Attributes:
        request_id: Unique among those not yet collected.
        prompt_tokens: At least 1.
        output_tokens: 0 ends with the prefill.
        hash_ids: One id a whole hash block of the prompt, standing for it and all before it.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    hash_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What became of a request; times in seconds of the fleet's clock, NaN where it never got so far."""

    request_id: str
    outcome: str
    prefill: int
    decode: int
    prompt_tokens: int
    output_tokens: int
    generated_tokens: int
    hit_tokens: int
    retraction_count: int
    recomputed_tokens: int
    arrival_s: float
    prefill_start_s: float
    prefill_end_s: float
    transfer_start_s: float
    transfer_end_s: float
    first_token_s: float
    finish_s: float


@dataclass(slots=True)
class _Slots:
    """Which rows of the request arrays are in use."""

    row_of: dict[str, int] = field(default_factory=dict)
    name_of: dict[int, str] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    keys_used: int = 0


class LiveFleet:
    """
    A small fleet in steps.

    Args:
        fleet: Pools and rules.
        profile: Replaces every pool's profile when given.
        seed: Of the kernel's random numbers.
        hash_block_tokens: Tokens of one id in `LiveRequest.hash_ids`.
    """

    def __init__(
        self,
        fleet: FleetSpec,
        profile: ServiceProfile | None = None,
        seed: int = 0,
        *,
        hash_block_tokens: int | None = None,
    ) -> None:
        if profile is not None:
            fleet = replace(fleet, pools=tuple(replace(pool, profile=profile) for pool in fleet.pools))
        self.fleet = fleet
        block = hash_block_tokens or max(pool.block_size_tokens for pool in fleet.pools)
        self._arrays = make_state(fleet, request_count=64, key_count=4096, hash_block_tokens=block, seed=seed)
        self._arrays.g[lay.G_KEEP] = 1
        self._arrays.g[lay.G_POLICY] = lay.POLICY_PYTHON
        self._slots = _Slots(free=list(range(63, -1, -1)))
        self._done: list[Completion] = []
        self._view()

    def _view(self) -> None:
        """Look at the arrays through memoryviews: Python numbers in and out."""
        self._state = State(*(memoryview(a) if a.size else a for a in self._arrays))

    @property
    def now_s(self) -> float:
        """The fleet's clock."""
        return float(self._arrays.gf[lay.V_NOW])

    def submit(self, request: LiveRequest, prefill: int, decode: int) -> None:
        """
        Let a request in now, computed by pool `prefill` and decoded by pool `decode` (the same one: unified).

        Raises:
            ValueError: unknown pool, dead pool, bad lengths or a request_id in use.
        """
        self._check(request, prefill, decode)
        if not self._slots.free:
            self._grow_rows()
        ids = list(request.hash_ids)
        if self._slots.keys_used + len(ids) > len(self._arrays.keys):
            self._pack_keys(len(ids))
        row = self._slots.free.pop()
        s = self._state
        blank = np.zeros(lay.NR, np.int64)
        blank[[lay.R_HIT, lay.R_NEXT0, lay.R_NEXT1]] = -1
        self._arrays.ri[row] = blank
        self._arrays.rf[row] = np.nan
        offset = self._slots.keys_used
        self._arrays.keys[offset : offset + len(ids)] = ids
        self._slots.keys_used += len(ids)
        for column, value in (
            (lay.R_PROMPT, request.prompt_tokens),
            (lay.R_OUTPUT, request.output_tokens),
            (lay.R_OFFSET, offset),
            (lay.R_KEYS, len(ids)),
            (lay.R_P, prefill),
            (lay.R_D, decode),
        ):
            s.ri[row, column] = value
        s.rf[row, lay.F_ARRIVAL] = self.now_s
        s.rf[row, lay.F_BYTES] = 0.0
        self._slots.row_of[request.request_id] = row
        self._slots.name_of[row] = request.request_id
        s.g[lay.G_COUNT] = max(s.g[lay.G_COUNT], row + 1)
        engine.place(s, row, self.now_s)

    def _check(self, request: LiveRequest, prefill: int, decode: int) -> None:
        count = len(self.fleet.pools)
        for name, pool in (("prefill", prefill), ("decode", decode)):
            if not 0 <= pool < count:
                raise ValueError(f"{name} is {pool}: there are pools 0 to {count - 1}")
            if not self._state.pi[pool, lay.P_UP]:
                raise ValueError(f"{name} is {pool}: the pool {self.fleet.pools[pool].pool_id} is down")
        if request.prompt_tokens < 1:
            raise ValueError(f"prompt_tokens is {request.prompt_tokens}: must be at least 1")
        if request.output_tokens < 0:
            raise ValueError(f"output_tokens is {request.output_tokens}: must not be negative")
        if request.request_id in self._slots.row_of:
            raise ValueError(f"request_id {request.request_id!r} is in use")

    def _grow_rows(self) -> None:
        old = self._arrays
        count = len(old.ri)
        grown = {
            "ri": np.concatenate([old.ri, np.zeros_like(old.ri)]),
            "rf": np.concatenate([old.rf, np.full_like(old.rf, np.nan)]),
            "order": np.arange(2 * count, dtype=np.int64),
            "leases": np.concatenate([old.leases, np.zeros_like(old.leases)]),
            "fi": np.concatenate([old.fi, np.zeros_like(old.fi)]),
            "ff": np.concatenate([old.ff, np.zeros_like(old.ff)]),
        }
        self._arrays = old._replace(**grown)
        self._slots.free.extend(range(2 * count - 1, count - 1, -1))
        self._view()

    def _pack_keys(self, more: int) -> None:
        """Move the keys of living requests to the front, into a larger array when that is not enough."""
        old = self._arrays
        rows = sorted(self._slots.name_of)
        total = int(sum(old.ri[row, lay.R_KEYS] for row in rows))
        size = len(old.keys)
        while size < 2 * (total + more):
            size *= 2
        keys = np.zeros(size, np.int64)
        locks = np.zeros((2, size), np.int64)
        at = 0
        for row in rows:
            offset, count = int(old.ri[row, lay.R_OFFSET]), int(old.ri[row, lay.R_KEYS])
            keys[at : at + count] = old.keys[offset : offset + count]
            locks[:, at : at + count] = old.locks[:, offset : offset + count]
            old.ri[row, lay.R_OFFSET] = at
            at += count
        self._arrays = old._replace(keys=keys, locks=locks)
        self._slots.keys_used = at
        self._view()

    def advance(self, until_s: float) -> list[Completion]:
        """
        Let time pass to `until_s` and return what ended on the way, in order of the ends.

        A request that a living prefill pool was still computing when its decode pool died (see `kill`) goes on to
        the living pool of the same role that holds least, or ends as "rejected" when there is none.

        Raises:
            ValueError: when `until_s` lies before `now_s`.
        """
        if until_s < self.now_s:
            raise ValueError(f"until_s is {until_s}: the fleet's clock is at {self.now_s} already")
        while engine.run(self._state, until_s) == lay.RUN_DECISION:
            self._place_again(int(self._state.g[lay.G_PENDING]))
        return self._collect()

    def _place_again(self, row: int) -> None:
        """Give a request whose decode pool died another one."""
        s, pi = self._state, self._arrays.pi
        role = pi[s.ri[row, lay.R_D], lay.P_ROLE]
        living = np.flatnonzero((pi[:, lay.P_ROLE] == role) & (pi[:, lay.P_UP] != 0))
        if not len(living):
            s.ri[row, lay.R_P] = s.ri[row, lay.R_D] = -1
            return
        room = (pi[living, lay.P_FREE] + pi[living, lay.P_EVICTABLE]) / pi[living, lay.P_USABLE]
        s.ri[row, lay.R_D] = int(living[np.argmax(room)])

    def _collect(self) -> list[Completion]:
        ri, rf = self._arrays.ri, self._arrays.rf
        rows = np.flatnonzero(ri[:, lay.R_STAGE] == lay.S_DONE)
        ended = [int(row) for row in rows if int(row) in self._slots.name_of]
        ended.sort(key=lambda row: (rf[row, lay.F_FINISH], row))
        out = [self._completion(row) for row in ended]
        for row in ended:
            del self._slots.row_of[self._slots.name_of.pop(row)]
            ri[row, lay.R_STAGE] = lay.S_NEW
            self._slots.free.append(row)
        return out

    def _completion(self, row: int) -> Completion:
        i = self._arrays.ri[row].tolist()
        f = self._arrays.rf[row].tolist()
        return Completion(
            request_id=self._slots.name_of[row],
            outcome=OUTCOMES[i[lay.R_OUTCOME]],
            prefill=i[lay.R_P],
            decode=i[lay.R_D],
            prompt_tokens=i[lay.R_PROMPT],
            output_tokens=i[lay.R_OUTPUT],
            generated_tokens=i[lay.R_GENERATED],
            hit_tokens=max(i[lay.R_HIT], 0),
            retraction_count=i[lay.R_RETRACTED],
            recomputed_tokens=i[lay.R_RECOMPUTED],
            arrival_s=f[lay.F_ARRIVAL],
            prefill_start_s=f[lay.F_PREFILL_START],
            prefill_end_s=f[lay.F_PREFILL_END],
            transfer_start_s=f[lay.F_TRANSFER_START],
            transfer_end_s=f[lay.F_TRANSFER_END],
            first_token_s=f[lay.F_FIRST],
            finish_s=f[lay.F_FINISH],
        )

    def cancel(self, request_id: str) -> bool:
        """Cancel a request; False when it is unknown or done. It shows up in the next `advance`."""
        row = self._slots.row_of.get(request_id)
        if row is None:
            return False
        cancel(self._state, row, self.now_s)
        return True

    def kill(self, worker: str) -> list[LiveRequest]:
        """
        Let a worker die now: its KV and cache are gone.

        Returns:
            The requests it takes with it, their tokens already out added to the prompt and taken off the output,
            for the caller to submit again elsewhere. They are known no more.
        """
        for i in self._pools_of(worker):
            engine.die(self._state, i, self.now_s)
        g, ri = self._arrays.g, self._arrays.ri
        lost = []
        while g[lay.G_RETRY_HEAD] >= 0:
            row = int(engine.take_arrival(self._state))
            name = self._slots.name_of.pop(row)
            del self._slots.row_of[name]
            self._slots.free.append(row)
            offset, count = int(ri[row, lay.R_OFFSET]), int(ri[row, lay.R_KEYS])
            generated = int(ri[row, lay.R_GENERATED])
            lost.append(
                LiveRequest(
                    request_id=name,
                    prompt_tokens=int(ri[row, lay.R_PROMPT]) + generated,
                    output_tokens=int(ri[row, lay.R_OUTPUT]) - generated,
                    hash_ids=tuple(int(key) for key in self._arrays.keys[offset : offset + count]),
                )
            )
        return lost

    def revive(self, worker: str) -> None:
        """Bring a dead worker back, empty."""
        for i in self._pools_of(worker):
            self._state.pi[i, lay.P_UP] = 1

    def set_bandwidth(self, worker: str, bandwidth_bytes_per_s: float) -> None:
        """
        Change the network rate of a worker's end, transfers under way included.

        Raises:
            ValueError: unknown worker, or a rate that is not above 0.
        """
        if not bandwidth_bytes_per_s > 0:
            raise ValueError(f"bandwidth_bytes_per_s is {bandwidth_bytes_per_s}: must be above 0")
        self._pools_of(worker)
        s, now_s = self._state, self.now_s
        advance_flows(s, now_s)
        end = ends_of(self.fleet).index(worker)
        s.ends[end, 0] = s.ends[end, 1] = bandwidth_bytes_per_s
        plan_network(s, now_s)

    def _pools_of(self, worker: str) -> tuple[int, ...]:
        found = tuple(i for i, pool in enumerate(self.fleet.pools) if pool.worker == worker)
        if not found:
            raise ValueError(f"no worker {worker!r}; there are {', '.join(ends_of(self.fleet))}")
        return found

    def stage(self, request_id: str) -> str:
        """Return where a request is (one of STAGES); "done" when it is unknown."""
        row = self._slots.row_of.get(request_id)
        return "done" if row is None else STAGES[self._arrays.ri[row, lay.R_STAGE]]

    def look(self, pool: int) -> PoolView:
        """Return pool `pool` as it is now; looking changes nothing but what is counted so far."""
        sync(self._state, pool, self.now_s)
        return pool_view(self._arrays, pool, self.fleet.pools[pool].pool_id, self.now_s)

    def looks(self) -> list[PoolView]:
        """Return all pools."""
        return [self.look(i) for i in range(len(self.fleet.pools))]

    def itl_counts(self, pool: int) -> np.ndarray:
        """Return the pool's inter-token gaps by logarithmic bin (edges: `layout.ITL_FLOOR_S` and on). A copy."""
        return np.array(self._arrays.hist[pool])
