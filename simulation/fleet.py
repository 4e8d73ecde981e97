"""
What a simulated fleet is made of: pools (one a DP rank), the links between workers, and the rules they share.

A spec is checked when it is built: a wrong one raises `ValueError` naming the field and the value.
Read next: `state` (specs -> arrays) and `engine` (the events).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scoring.model import Role, pool_id
from scoring.service import PROFILES, ServiceProfile

DEFAULT_PROFILE = PROFILES["llama-3.1-8b-h100-tp1"]

HANDSHAKES = ("before-prefill", "after-prefill")
"""SGLang's decode preallocates before prefill starts; vLLM's and Dynamo's allocates when the KV is ready to travel."""
SHARINGS = ("equal", "max-min")
DECIDERS = ("always", "never", "dynamo", "llm-d")
RETRACTIONS = ("youngest", "fewest-output")
TRANSFER_MODES = ("full", "missing")


def _check(is_right: bool, name: str, value: object, rule: str) -> None:
    if not is_right:
        raise ValueError(f"{name} is {value!r}: {rule}")


def _check_number(owner: str, spec: object, name: str, low: float, *, is_open: bool = False) -> None:
    value = getattr(spec, name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    is_right = is_number and (value > low if is_open else value >= low)
    _check(
        is_right, f"{owner}{name}", value, f"must be a finite number {'above' if is_open else 'of at least'} {low:g}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """
    One pool: the KV memory of one DP rank and the engine that serves from it.

    Attributes:
        worker: Name of the worker; ranks of one worker share its network end and die together.
        dp_rank: Rank, from 0.
        role: PREFILL, DECODE or UNIFIED.
        usable_tokens: Capacity; rounded down to whole blocks.
        block_size_tokens: Allocation unit.
        profile: Service times.
        max_running_count: Cap of the running batch, prompts being computed included.
        prefill_budget_tokens: Prompt tokens of one iteration (chunked prefill).
        reserve_tokens: Kept back per admitted request (SGLang's num_reserved_decode_tokens).
        bandwidth_bytes_per_s: Network rate of the worker's end, each direction.
        max_incoming_count: Decode credit: concurrent incoming transfers; 0 is without limit.
        is_prefix_cached: Whether prompt blocks stay as evictable prefix after release.
        is_output_cached: Whether generated blocks stay too (never found again: traffic has no output hashes).
        is_mixed: Whether prompts and decode steps share an iteration (vLLM) or take turns (SGLang's default).
    """

    worker: str
    role: Role
    usable_tokens: int
    dp_rank: int = 0
    block_size_tokens: int = 64
    profile: ServiceProfile = DEFAULT_PROFILE
    max_running_count: int = 256
    prefill_budget_tokens: int = 8192
    reserve_tokens: int = 0
    bandwidth_bytes_per_s: float = 64e9
    max_incoming_count: int = 0
    is_prefix_cached: bool = True
    is_output_cached: bool = False
    is_mixed: bool = False

    def __post_init__(self) -> None:
        owner = f"pool {self.worker}/{self.dp_rank}: "
        _check(bool(self.worker), "worker", self.worker, "must name the worker")
        _check(self.role is not Role.UNKNOWN, owner + "role", self.role, "must be prefill, decode or unified")
        for name, low in (
            ("dp_rank", 0),
            ("usable_tokens", 1),
            ("block_size_tokens", 1),
            ("max_running_count", 1),
            ("prefill_budget_tokens", 1),
            ("reserve_tokens", 0),
            ("max_incoming_count", 0),
        ):
            _check_number(owner, self, name, low)
            value = getattr(self, name)
            _check(int(value) == value, owner + name, value, "must be a whole number")
        _check_number(owner, self, "bandwidth_bytes_per_s", 0.0, is_open=True)
        _check(
            self.usable_tokens >= self.block_size_tokens,
            owner + "usable_tokens",
            self.usable_tokens,
            f"must hold at least one block of {self.block_size_tokens} tokens",
        )

    @property
    def pool_id(self) -> str:
        """Name of the pool: worker/rank."""
        return pool_id(self.worker, self.dp_rank)

    @property
    def usable_blocks(self) -> int:
        """Whole blocks the pool holds."""
        return self.usable_tokens // self.block_size_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """
    What one path adds to the limits of its two ends; later links override earlier ones.

    Attributes:
        source: Worker of the prefill end, or "*".
        target: Worker of the decode end, or "*".
        bandwidth_bytes_per_s: Rate shared by the transfers of the path; None is without limit of its own.
        latency_s: Fixed seconds before the first byte; None takes the source pool's profile's.
    """

    source: str = "*"
    target: str = "*"
    bandwidth_bytes_per_s: float | None = None
    latency_s: float | None = None

    def __post_init__(self) -> None:
        owner = f"link {self.source}->{self.target}: "
        if self.bandwidth_bytes_per_s is not None:
            _check_number(owner, self, "bandwidth_bytes_per_s", 0.0, is_open=True)
        if self.latency_s is not None:
            _check_number(owner, self, "latency_s", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """
    Pools, links and shared rules.

    Attributes:
        pools: In the order that results use.
        links: Overrides of paths.
        handshake: When decode allocates: "before-prefill" (SGLang) or "after-prefill" (vLLM, Dynamo).
        sharing: How concurrent transfers share: "equal" (the least of the equal shares at each limit) or "max-min".
        transfer_mode: "full" sends the whole prompt, "missing" only what the decode pool's cache lacks.
        overlap_ratio: Share of the KV that layer-wise sending can move under the prefill's own compute, as far as
            the line rate lets it.
        decider: Whether a prompt goes to a prefill pool: "always", "never" (decode computes it), "dynamo"
            (remote unless fewer than 2048 uncached tokens and under 0.7 of the prompt), "llm-d" (remote from 16
            uncached tokens).
        retraction: Whom a full decode pool retracts: "youngest" (LIFO, vLLM and Dynamo) or "fewest-output" (SGLang).
    """

    pools: tuple[PoolSpec, ...]
    links: tuple[LinkSpec, ...] = field(default=())
    handshake: str = "before-prefill"
    sharing: str = "equal"
    transfer_mode: str = "full"
    overlap_ratio: float = 0.0
    decider: str = "always"
    retraction: str = "youngest"

    def __post_init__(self) -> None:
        _check(bool(self.pools), "pools", self.pools, "a fleet needs at least one pool")
        names = [pool.pool_id for pool in self.pools]
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        _check(not twice, "pools", twice, "each worker/rank may appear once")
        for name, allowed in (
            ("handshake", HANDSHAKES),
            ("sharing", SHARINGS),
            ("transfer_mode", TRANSFER_MODES),
            ("decider", DECIDERS),
            ("retraction", RETRACTIONS),
        ):
            _check(getattr(self, name) in allowed, name, getattr(self, name), f"must be one of {', '.join(allowed)}")
        _check_number("", self, "overlap_ratio", 0.0)
        _check(self.overlap_ratio <= 1.0, "overlap_ratio", self.overlap_ratio, "must be at most 1")
        roles = {pool.role for pool in self.pools}
        if Role.UNIFIED not in roles:
            _check(Role.DECODE in roles, "pools", names, "there is no decode or unified pool")
            is_remote = self.decider != "never"
            _check(Role.PREFILL in roles or not is_remote, "pools", names, "there is no prefill or unified pool")
        workers = {pool.worker for pool in self.pools}
        for link in self.links:
            for end in (link.source, link.target):
                _check(end == "*" or end in workers, "links", end, "names no worker of the fleet")

    def indices(self, *roles: Role) -> tuple[int, ...]:
        """Return the pools of these roles, by index in `pools`."""
        return tuple(i for i, pool in enumerate(self.pools) if pool.role in roles)

    def index_of(self, name: str) -> int:
        """Return the index of pool `worker/rank`; ValueError with the known names when there is none."""
        for i, pool in enumerate(self.pools):
            if pool.pool_id == name:
                return i
        raise ValueError(f"no pool {name!r}; there are {', '.join(pool.pool_id for pool in self.pools)}")


def disaggregated_fleet(
    prefill_count: int, decode_count: int, *, prefill: PoolSpec, decode: PoolSpec, rules: Sequence[tuple[str, str]] = ()
) -> FleetSpec:
    """Return a fleet of copies of `prefill` and `decode`, workers named p0.. and d0..; `rules` set FleetSpec fields."""

    pools = [replace(prefill, worker=f"p{i}", role=Role.PREFILL) for i in range(prefill_count)]
    pools += [replace(decode, worker=f"d{i}", role=Role.DECODE) for i in range(decode_count)]
    return FleetSpec(pools=tuple(pools), **dict(rules))  # type: ignore[arg-type] # only the worded fields are set so.
