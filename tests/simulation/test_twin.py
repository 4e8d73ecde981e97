"""
Exactness: the event kernel against a twin that walks token by token.

The twin shares no code with the kernel: blocks are objects in lists, every decode step is an event, every formula is
written out. It is slow and meant to be read. The law: same finish times (1e-9 relative), same allocations at every
sample, same retractions, same hits, same outcomes, whatever the fleet's rules.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from scoring.model import Role
from scoring.service import ServiceProfile
from simulation.fleet import FleetSpec, LinkSpec, PoolSpec
from simulation.live import LiveFleet, LiveRequest
from simulation.simulate import SimulationOptions, simulate
from simulation.traffic import TrafficArrays

HASH_BLOCK = 8


@dataclass(eq=False)
class Unit:
    """Blocks in the cache under one key (None: generated blocks, never found)."""

    key: int | None
    blocks: list
    users: set = field(default_factory=set)


@dataclass(eq=False)
class Req:
    row: int
    arrival: float
    prompt: int
    output: int
    keys: list
    p: int
    d: int
    stage: str = "new"
    generated: int = 0
    done: int = 0
    chunk: int = 0
    units: dict = field(default_factory=dict)  # pool -> locked units in prompt order
    own: dict = field(default_factory=dict)  # pool -> own blocks
    held: int = 0
    hits: int | None = None
    start: float = math.nan
    end: float = math.nan
    arrived: float = math.nan
    first: float = math.nan
    finish: float = math.nan
    retractions: int = 0
    recomputed: int = 0
    computes_at: int = -1
    found_at_decode: int = 0
    cancelled: bool = False

    @property
    def target(self):
        return self.prompt + self.generated


class TwinPool:
    def __init__(self, index, spec):
        self.index, self.spec = index, spec
        self.page = spec.block_size_tokens
        self.total = spec.usable_tokens // self.page
        self.free = list(range(self.total))
        self.lru = []  # unused units, oldest first
        self.cache = {}  # key -> unit
        self.unit = max(self.page, HASH_BLOCK)
        self.bootstrap, self.main, self.prealloc, self.arrived, self.retracted, self.credit = [], [], [], [], [], []
        self.work, self.batch = [], []
        self.admitted = 0
        self.incoming = 0
        self.busy_until = math.inf
        self.doing = ""

    def up(self, tokens):
        return math.ceil(tokens / self.page)

    def evictable(self):
        return sum(len(unit.blocks) for unit in self.lru)

    def allocate(self, count):
        while len(self.free) < count:
            oldest = self.lru[0]
            if oldest.key is None:
                self.free.append(oldest.blocks.pop())
                if not oldest.blocks:
                    self.lru.pop(0)
            else:
                self.lru.pop(0)
                del self.cache[oldest.key]
                self.free.extend(oldest.blocks)
        return [self.free.pop() for _ in range(count)]

    def keys_of(self, req):
        ratio = self.unit // HASH_BLOCK
        return [req.keys[(i + 1) * ratio - 1] for i in range(len(req.keys) // ratio)]

    def admit(self, req, withheld=0, extra=0):
        found = []
        if self.spec.is_prefix_cached:
            for i, key in enumerate(self.keys_of(req)):
                if key not in self.cache or (i + 1) * self.unit > req.target - 1:
                    break
                found.append(self.cache[key])
        room = len(self.free) + self.evictable() - sum(len(u.blocks) for u in found if not u.users) - withheld
        cached_blocks = sum(len(u.blocks) for u in found)
        if self.up(req.target + extra) - cached_blocks > room:
            return None
        for unit in found:
            if not unit.users:
                self.lru.remove(unit)
            unit.users.add(req.row)
        req.units[self.index] = list(found)
        req.own[self.index] = self.allocate(self.up(req.target) - cached_blocks)
        return len(found) * self.unit

    def admit_decode(self, req):
        reserve = self.spec.reserve_tokens
        withheld, extra = (0, 0) if self.admitted == 0 else (self.up(reserve * self.admitted), reserve)
        hit = self.admit(req, withheld, extra)
        if hit is not None:
            self.admitted += 1
        return hit

    def publish(self, req):
        if not self.spec.is_prefix_cached:
            return
        units, own = req.units[self.index], req.own[self.index]
        per_unit = self.unit // self.page
        full = min(len(self.keys_of(req)), req.target // self.unit)
        for key in self.keys_of(req)[len(units) : full]:
            mine = own[:per_unit]
            del own[:per_unit]
            if key in self.cache:
                unit = self.cache[key]
                if not unit.users:
                    self.lru.remove(unit)
                self.free.extend(mine)
            else:
                unit = self.cache[key] = Unit(key, mine)
            unit.users.add(req.row)
            units.append(unit)

    def release(self, req, held, finished=False):
        units, own = req.units.pop(self.index), req.own.pop(self.index)
        if finished and self.spec.is_output_cached:
            full = held // self.page - sum(len(u.blocks) for u in units)
            if full > 0:
                self.lru.append(Unit(None, own[:full]))
                own = own[full:]
        self.free.extend(own)
        for unit in reversed(units):
            unit.users.remove(req.row)
            if not unit.users:
                self.lru.append(unit)


class Flow:
    def __init__(self, req, size, start, ends):
        self.req, self.left, self.start, self.ends, self.rate = req, size, start, ends, 0.0


class Twin:
    """Steps a fleet event by event, decode step by decode step."""

    def __init__(self, fleet, reqs, cancels=(), ticks=0, period=1.0):
        self.fleet = fleet
        self.pools = [TwinPool(i, spec) for i, spec in enumerate(fleet.pools)]
        self.reqs = reqs
        self.now = 0.0
        self.flows = []
        self.arrivals = sorted(reqs, key=lambda r: r.arrival)
        self.cancels = sorted(cancels, key=lambda c: c[1])
        self.ticks, self.period = ticks, period
        self.samples = []

    # The network.

    def limits(self, flow):
        p, d = flow.req.p, flow.req.d
        named = {("out", self.fleet.pools[p].worker): self.fleet.pools[p].bandwidth_bytes_per_s}
        named["in", self.fleet.pools[d].worker] = self.fleet.pools[d].bandwidth_bytes_per_s
        path = self.path(p, d)
        if path.bandwidth_bytes_per_s:
            named["path", p, d] = path.bandwidth_bytes_per_s
        return named

    def path(self, p, d):
        rate, latency = None, self.fleet.pools[p].profile.transfer_latency_s
        for link in self.fleet.links:
            if link.source in ("*", self.fleet.pools[p].worker) and link.target in ("*", self.fleet.pools[d].worker):
                rate = link.bandwidth_bytes_per_s or rate
                latency = latency if link.latency_s is None else link.latency_s
        return LinkSpec(bandwidth_bytes_per_s=rate, latency_s=latency)

    def set_rates(self):
        running = [f for f in self.flows if f.start <= self.now]
        for flow in self.flows:
            flow.rate = 0.0
        if self.fleet.sharing == "equal":
            for flow in running:
                shares = []
                for name, rate in self.limits(flow).items():
                    shares.append(rate / sum(name in self.limits(other) for other in running))
                flow.rate = min(shares)
            return
        left = {name: rate for flow in running for name, rate in self.limits(flow).items()}
        while running:
            counts = {name: sum(name in self.limits(f) for f in running) for name in left}
            tight = min((n for n in left if counts[n]), key=lambda n: left[n] / counts[n])
            share = left[tight] / counts[tight]
            for flow in [f for f in running if tight in self.limits(f)]:
                flow.rate = share
                running.remove(flow)
                for name in self.limits(flow):
                    left[name] -= share

    def flow_end(self, flow):
        if flow.start > self.now:
            return flow.start
        return self.now if flow.left <= 0 else self.now + flow.left / flow.rate

    def move_flows(self, to):
        for flow in self.flows:
            flow.left -= flow.rate * (to - self.now)

    # Requests.

    def hand_over(self, req):
        d = self.pools[req.d]
        req.stage = "transfer"
        if d.spec.max_incoming_count and d.incoming >= d.spec.max_incoming_count:
            d.credit.append(req)
            return
        d.incoming += 1
        tokens = req.target - (req.found_at_decode if self.fleet.transfer_mode == "missing" else 0)
        size = tokens * self.fleet.pools[req.p].profile.bytes_per_token
        flow = Flow(req, size, self.now + self.path(req.p, req.d).latency_s, None)
        line = min(self.limits(flow).values())
        flow.left -= min(size * self.fleet.overlap_ratio, line * (req.end - req.start))
        self.flows.append(flow)
        self.set_rates()

    def credit_back(self, d):
        d.incoming -= 1
        if d.credit:
            self.hand_over(d.credit.pop(0))

    def delivered(self, req):
        p, d = self.pools[req.p], self.pools[req.d]
        p.release(req, req.target)
        self.wake(p)
        d.publish(req)
        req.arrived = self.now
        if math.isnan(req.first):
            req.first = self.now
        req.stage = "arrived"
        d.arrived.append(req)
        self.wake(d)
        self.credit_back(d)

    def arrive(self, req):
        p, d = self.pools[req.p], self.pools[req.d]
        req.computes_at = req.p
        if ((req.p != req.d or req.output > 1) and d.up(req.target) > d.total) or p.up(req.target) > p.total:
            req.stage, req.finish = "too_large", self.now
        elif p is not d and self.fleet.handshake == "before-prefill":
            req.stage = "bootstrap"
            p.bootstrap.append(req)
            d.prealloc.append(req)
            self.wake(d)
        else:
            req.stage = "queued"
            p.main.append(req)
            self.wake(p)

    def wake(self, pool):
        """An idle scheduler looks at once; a busy one at the end of its step anyway."""
        if not pool.doing:
            pool.busy_until = self.now

    def computed(self, pool, req):
        pool.publish(req)
        req.end = self.now
        held = req.target
        req.generated += req.output > 0
        last = req.generated >= req.output
        local = req.computes_at == req.d
        if (local or last) and req.output > 0 and math.isnan(req.first):
            req.first = self.now
        if local and not last:
            req.held = held
            req.stage = "decode"
            pool.batch.append(req)
        elif last:
            pool.release(req, held, finished=local)
            if local:
                pool.admitted -= 1
            else:
                self.drop_decode(req)
            req.stage, req.finish = "finished", self.now
        else:
            # What travels is the KV computed; the token just generated has none yet.
            req.generated -= 1
            if self.fleet.handshake == "before-prefill":
                self.hand_over(req)
            else:
                req.stage = "computed"
                self.pools[req.d].prealloc.append(req)
                self.wake(self.pools[req.d])

    def drop_decode(self, req):
        d = self.pools[req.d]
        if req.d in req.own:
            d.release(req, req.target)
            d.admitted -= 1
        elif req in d.prealloc:
            d.prealloc.remove(req)
        self.wake(d)

    def cancel(self, req):
        p, d = self.pools[req.p], self.pools[req.d]
        if req.stage in ("finished", "cancelled", "too_large"):
            return
        if req.stage in ("prefill", "decode"):
            req.cancelled = True
            return
        if req.stage == "bootstrap":
            p.bootstrap.remove(req)
            self.drop_decode(req)
        elif req.stage == "queued":
            p.main.remove(req)
            if p is not d and self.fleet.handshake == "before-prefill":
                self.drop_decode(req)
        elif req.stage in ("computed", "transfer"):
            mine = [f for f in self.flows if f.req is req]
            if mine:
                self.flows.remove(mine[0])
                self.set_rates()
                self.credit_back(d)
            elif req in d.credit:
                d.credit.remove(req)
            p.release(req, req.target)
            self.drop_decode(req)
        elif req.stage == "arrived":
            d.arrived.remove(req)
            d.release(req, req.target)
            d.admitted -= 1
        elif req.stage == "retracted":
            d.retracted.remove(req)
        req.stage, req.finish = "cancelled", self.now
        self.wake(p)
        self.wake(d)

    # A pool's scheduler.

    def boundary(self, pool):
        doing, pool.doing, pool.busy_until = pool.doing, "", math.inf
        if "decode" in doing:
            for req in list(pool.batch):
                req.generated += 1
                if req.generated >= req.output or req.cancelled:
                    pool.batch.remove(req)
                    finished = req.generated >= req.output
                    pool.release(req, req.held, finished)
                    pool.admitted -= 1
                    req.stage, req.finish = ("finished" if finished else "cancelled"), self.now
        if "prefill" in doing:
            for req in list(pool.work):
                req.done += req.chunk
                req.chunk = 0
                if req.cancelled:
                    pool.work.remove(req)
                    pool.release(req, req.target)
                    if req.computes_at == req.d:
                        pool.admitted -= 1
                    else:
                        self.drop_decode(req)
                    req.stage, req.finish = "cancelled", self.now
                elif req.done >= req.target:
                    pool.work.remove(req)
                    self.computed(pool, req)
        self.schedule(pool)

    def schedule(self, pool):
        spec = pool.spec

        def has_slot():
            return len(pool.batch) + len(pool.work) < spec.max_running_count

        while pool.retracted and has_slot():
            req = pool.retracted[0]
            hit = pool.admit_decode(req)
            if hit is None:
                break
            pool.retracted.pop(0)
            req.computes_at = pool.index
            req.recomputed += req.target - hit
            self.take_up(pool, req, hit)
        while pool.prealloc and not pool.retracted:
            req = pool.prealloc[0]
            hit = pool.admit_decode(req)
            if hit is None:
                break
            pool.prealloc.pop(0)
            req.found_at_decode = hit
            if req.stage == "bootstrap":
                p = self.pools[req.p]
                p.bootstrap.remove(req)
                req.stage = "queued"
                p.main.append(req)
                self.wake(p)
            else:
                self.hand_over(req)
        while pool.arrived and has_slot():
            req = pool.arrived.pop(0)
            req.held = req.target
            req.generated += 1
            req.stage = "decode"
            pool.batch.append(req)
        budget = spec.prefill_budget_tokens - (len(pool.batch) if spec.is_mixed else 0)
        for req in pool.work:
            req.chunk = max(min(req.target - req.done, budget), 0)
            budget -= req.chunk
        while pool.main and budget > 0 and has_slot():
            req = pool.main[0]
            hit = pool.admit_decode(req) if req.p == req.d else pool.admit(req)
            if hit is None:
                break
            pool.main.pop(0)
            self.take_up(pool, req, hit)
            req.chunk = min(req.target - req.done, budget)
            budget -= req.chunk
        chunks = [(req.chunk, req.done) for req in pool.work if req.chunk]
        retracted = False
        if pool.batch and (not chunks or spec.is_mixed):
            retracted = self.make_room(pool)
        seconds = 0.0
        if chunks:
            seconds += self.prefill_s(spec.profile, chunks)
            pool.doing = "prefill"
        if pool.batch and (not chunks or spec.is_mixed):
            for req in pool.batch:
                if req.held % pool.page == 0:
                    req.own[pool.index] += pool.allocate(1)
                req.held += 1
            seconds += self.step_s(spec.profile, len(pool.batch), sum(r.held for r in pool.batch), pool)
            pool.doing += "decode"
        if pool.doing:
            pool.busy_until = self.now + seconds
        elif retracted:
            pool.busy_until = self.now

    def take_up(self, pool, req, hit):
        req.stage = "prefill"
        req.done = hit
        req.start = self.now
        req.hits = hit if req.hits is None else req.hits
        pool.work.append(req)

    def make_room(self, pool):
        any_retracted = False
        while pool.batch:
            need = sum(req.held % pool.page == 0 for req in pool.batch)
            if need <= len(pool.free) + pool.evictable():
                break
            victim = pool.batch[-1]
            if self.fleet.retraction == "fewest-output":
                victim = min(reversed(pool.batch), key=lambda r: (r.generated, -r.prompt))
            pool.batch.remove(victim)
            pool.release(victim, victim.held)
            pool.admitted -= 1
            victim.retractions += 1
            any_retracted = True
            if pool.up(victim.target) > pool.total:
                victim.stage, victim.finish = "too_large", self.now
            else:
                victim.stage = "retracted"
                pool.retracted.insert(0, victim)
        return any_retracted

    @staticmethod
    def prefill_s(f, chunks):
        if f.curve == "dynamo-polynomial":
            n = sum(n for n, _ in chunks)
            return f.prefill_base_s + f.prefill_per_token_s * n + f.prefill_per_token2_s * n * n
        total = f.prefill_base_s
        for n, context in chunks:
            total += f.prefill_per_token_s * n + f.prefill_per_token2_s * ((context + n) ** 2 - context**2)
        return total

    @staticmethod
    def step_s(f, batch, kv, pool):
        if f.large_batch_count and batch >= f.large_batch_count:
            return f.large_decode_base_s + f.large_decode_per_sequence_s * batch + f.large_decode_per_token_s * kv
        u = kv / (pool.total * pool.page)
        linear = f.decode_base_s + f.decode_per_sequence_s * batch + f.decode_per_token_s * kv
        return linear + f.decode_per_utilization_s * u + f.decode_per_utilization2_s * u * u

    # The clock.

    def run(self):
        while True:
            network = min((self.flow_end(f) for f in self.flows), default=math.inf)
            arrival = self.arrivals[0].arrival if self.arrivals else math.inf
            pool = min(self.pools, key=lambda p: p.busy_until)
            tick = len(self.samples) * self.period if len(self.samples) < self.ticks else math.inf
            cancel = self.cancels[0][1] if self.cancels else math.inf
            at = min(network, arrival, pool.busy_until, tick, cancel)
            if at == math.inf:
                return
            ended = [f for f in self.flows if f.start <= self.now and self.flow_end(f) <= at] if network <= at else []
            self.move_flows(at)
            self.now = at
            if network <= at:
                for flow in ended:
                    self.flows.remove(flow)
                    self.set_rates()
                    self.delivered(flow.req)
                self.set_rates()
            elif arrival <= at:
                self.arrive(self.arrivals.pop(0))
            elif pool.busy_until <= at:
                self.boundary(pool)
            elif tick <= at:
                self.samples.append([(len(p.free), p.evictable(), len(p.batch)) for p in self.pools])
            else:
                self.cancel(self.cancels.pop(0)[0])


PROFILES = (
    ServiceProfile(
        name="linear",
        source="made up for the twin",
        prefill_base_s=0.00317,
        prefill_per_token_s=2.13e-4,
        prefill_per_token2_s=3.7e-7,
        decode_base_s=0.00711,
        decode_per_sequence_s=1.91e-4,
        decode_per_token_s=2.9e-6,
        transfer_latency_s=0.00123,
        bytes_per_token=1000.0,
    ),
    ServiceProfile(
        name="polynomial",
        source="made up for the twin",
        prefill_base_s=0.00523,
        prefill_per_token_s=1.77e-4,
        prefill_per_token2_s=2.3e-7,
        decode_base_s=0.0057,
        decode_per_sequence_s=0.0,
        decode_per_token_s=0.0,
        decode_per_utilization_s=0.0541,
        decode_per_utilization2_s=-0.0257,
        bytes_per_token=800.0,
        curve="dynamo-polynomial",
    ),
    ServiceProfile(
        name="two-fits",
        source="made up for the twin",
        prefill_base_s=0.0041,
        prefill_per_token_s=1.9e-4,
        prefill_per_token2_s=1.1e-7,
        decode_base_s=0.0099,
        decode_per_sequence_s=3.3e-5,
        decode_per_token_s=6.3e-6,
        large_batch_count=3,
        large_decode_base_s=0.0071,
        large_decode_per_sequence_s=1.6e-4,
        large_decode_per_token_s=5.8e-6,
        bytes_per_token=1200.0,
    ),
)


def random_fleet(rng):
    """Draw a small fleet with scarce memory and every rule at random."""
    pools = []
    is_plain = rng.random() < 0.25
    for kind, count in ((Role.PREFILL, rng.integers(1, 3)), (Role.DECODE, rng.integers(1, 4)), (Role.UNIFIED, 1)):
        if (is_plain and kind is not Role.UNIFIED) or (not is_plain and kind is Role.UNIFIED and rng.random() < 0.6):
            continue
        for i in range(int(count)):
            page = int(rng.choice([1, 4, 8, 16]))
            pools.append(
                PoolSpec(
                    worker=f"{kind.value}{i // 2}",
                    dp_rank=i,
                    role=kind,
                    usable_tokens=int(rng.integers(160, 900)),
                    block_size_tokens=page,
                    profile=PROFILES[int(rng.integers(len(PROFILES)))],
                    max_running_count=int(rng.integers(2, 12)),
                    prefill_budget_tokens=int(rng.choice([32, 64, 200, 5000])),
                    reserve_tokens=int(rng.choice([0, 0, 8, 40])),
                    bandwidth_bytes_per_s=1.7e6,
                    max_incoming_count=int(rng.choice([0, 0, 1, 2])),
                    is_prefix_cached=bool(rng.random() < 0.7),
                    is_output_cached=bool(rng.random() < 0.5),
                    is_mixed=bool(rng.random() < 0.5),
                )
            )
    links = (LinkSpec(bandwidth_bytes_per_s=0.9e6), LinkSpec(target="decode0", latency_s=0.0171))
    has_decode = any(pool.worker == "decode0" for pool in pools)
    return FleetSpec(
        pools=tuple(pools),
        links=links[: int(rng.integers(0, 3))] if has_decode else (),
        handshake=str(rng.choice(["before-prefill", "after-prefill"])),
        sharing=str(rng.choice(["equal", "max-min"])),
        transfer_mode=str(rng.choice(["full", "missing"])),
        overlap_ratio=float(rng.choice([0.0, 0.7])),
        retraction=str(rng.choice(["youngest", "fewest-output"])),
    )


def random_requests(rng, fleet, count):
    """Draw requests with shared prefixes, dense in time, a few larger than some pools."""
    prefill, decode = fleet.indices(Role.PREFILL), fleet.indices(Role.DECODE)
    unified = fleet.indices(Role.UNIFIED)
    reqs = []
    for row in range(count):
        prompt = int(rng.integers(1, 240))
        family = int(rng.integers(0, 4)) if rng.random() < 0.6 else 10 + row
        keys = [family * 1000 + i for i in range(prompt // HASH_BLOCK)]
        if unified and (not decode or rng.random() < 0.3):
            p = d = int(rng.choice(unified))
        elif rng.random() < 0.15:
            p = d = int(rng.choice(decode))  # the decider said: compute it where it is decoded.
        else:
            p, d = int(rng.choice(prefill)), int(rng.choice(decode))
        output = int(rng.choice([0, 1, 2, int(rng.integers(1, 90)), int(rng.integers(1, 200))]))
        reqs.append(Req(row, float(rng.uniform(0, 6)), prompt, output, keys, p, d))
    return reqs


class Given:
    """A policy that was told."""

    def __init__(self, reqs):
        self.pairs = [(req.p, req.d) for req in reqs]

    def choose(self, request, fleet):
        return self.pairs[request.row]


def traffic_of(reqs):
    return TrafficArrays(
        arrival_s=np.array([r.arrival for r in reqs]),
        prompt_tokens=[r.prompt for r in reqs],
        output_tokens=[r.output for r in reqs],
        offsets=np.concatenate([[0], np.cumsum([len(r.keys) for r in reqs])]),
        hash_ids=[key for r in reqs for key in r.keys],
        hash_block_tokens=HASH_BLOCK,
    )


def assert_same(twin, have):
    """`have`: name -> values by row, as the kernel gives them."""
    reqs = twin.reqs
    assert list(have["outcome"]) == [r.stage for r in reqs]
    for name, of in (("retractions", "retractions"), ("recomputed", "recomputed")):
        assert list(have[name]) == [getattr(r, of) for r in reqs], name
    assert list(have["hits"]) == [r.hits or 0 for r in reqs]
    for name in ("start", "end", "arrived", "first", "finish"):
        want = np.array([getattr(r, name) for r in reqs])
        np.testing.assert_allclose(have[name], want, rtol=1e-9, atol=0, err_msg=name)


@pytest.mark.parametrize("seed", range(60))
def test_kernel_equals_the_per_token_twin(seed):
    """Random fleet, rules and traffic: same times, outcomes, retractions, hits, and blocks at every sample."""
    rng = np.random.default_rng(seed)
    fleet = random_fleet(rng)
    reqs = random_requests(rng, fleet, int(rng.integers(5, 45)))
    result = simulate(
        traffic_of(reqs), fleet, Given(reqs), options=SimulationOptions(is_checked=True, is_compiled=False)
    )
    ticks = len(result.samples.at_s)
    twin = Twin(fleet, reqs, ticks=ticks)
    twin.run()
    q = result.requests
    assert_same(
        twin,
        {
            "outcome": [("open", "finished", "rejected", "cancelled", "too_large")[code] for code in q.outcome],
            "retractions": q.retraction_count,
            "recomputed": q.recomputed_tokens,
            "hits": q.hit_tokens,
            "start": q.prefill_start_s,
            "end": q.prefill_end_s,
            "arrived": q.transfer_end_s,
            "first": q.first_token_s,
            "finish": q.finish_s,
        },
    )
    pages = np.array([pool.block_size_tokens for pool in fleet.pools])
    want = np.array(twin.samples).reshape(ticks, len(pages), 3)
    np.testing.assert_array_equal(result.samples.free_tokens, want[:, :, 0] * pages)
    np.testing.assert_array_equal(result.samples.prefix_tokens, want[:, :, 1] * pages)
    np.testing.assert_array_equal(result.samples.running_count, want[:, :, 2])


@pytest.mark.parametrize("seed", range(30))
def test_live_fleet_with_cancels_equals_the_twin(seed):
    """The same in steps of a few milliseconds with a third of the requests cancelled: looking changes nothing."""
    rng = np.random.default_rng(1000 + seed)
    fleet = random_fleet(rng)
    reqs = sorted(random_requests(rng, fleet, 30), key=lambda r: r.arrival)
    reqs = [replace(r, row=i, units={}, own={}) for i, r in enumerate(reqs)]
    cancels = [(r, r.arrival + float(rng.exponential(0.4))) for r in reqs if rng.random() < 0.35]
    live = LiveFleet(fleet, hash_block_tokens=HASH_BLOCK)
    done = {}
    moments = [(r.arrival, 0, r) for r in reqs] + [(at, 1, r) for r, at in cancels]
    for at, kind, req in sorted(moments, key=lambda m: m[0]):
        while live.now_s + 0.05 < at:
            done.update((c.request_id, c) for c in live.advance(live.now_s + 0.05))
            live.looks()
        done.update((c.request_id, c) for c in live.advance(at))
        if kind == 0:
            live.submit(
                LiveRequest(
                    request_id=str(req.row), prompt_tokens=req.prompt, output_tokens=req.output, hash_ids=req.keys
                ),
                req.p,
                req.d,
            )
        else:
            live.cancel(str(req.row))
    done.update((c.request_id, c) for c in live.advance(1e6))
    twin = Twin(fleet, reqs, cancels)
    twin.run()
    rows = [done[str(r.row)] for r in reqs]
    assert_same(
        twin,
        {
            "outcome": [c.outcome for c in rows],
            "retractions": [c.retraction_count for c in rows],
            "recomputed": [c.recomputed_tokens for c in rows],
            "hits": [c.hit_tokens for c in rows],
            "start": [c.prefill_start_s for c in rows],
            "end": [c.prefill_end_s for c in rows],
            "arrived": [c.transfer_end_s for c in rows],
            "first": [c.first_token_s for c in rows],
            "finish": [c.finish_s for c in rows],
        },
    )
