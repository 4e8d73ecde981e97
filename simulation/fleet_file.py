"""
A replay fleet from words: a parsed fleet file, a shorthand such as `6p2d`, or a snapshot of a live fleet.

Nothing is opened here. The file is the operator's own fleet file with a few keys more (docs/replay.md): keys that
only concern collecting are passed over and named, keys that nobody knows are errors, capacities that a file does
not give are taken from the defaults and said so.

Read next: `fleet` (what the result is made of).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from scoring.model import Figure, FleetSnapshot, Role
from scoring.service import PROFILES, ServiceProfile, profile_from_mapping
from simulation.fleet import DEFAULT_PROFILE, FleetSpec, LinkSpec, PoolSpec

DEFAULT_BLOCKS: Final = 16_384
DEFAULT_BLOCK_SIZE_TOKENS: Final = 64
COUNT_MAX: Final = 100_000

RULES: Final = ("handshake", "sharing", "transfer_mode", "overlap_ratio", "decider", "retraction")
_POOL_KEYS: Final = tuple(
    f.name for f in fields(PoolSpec) if f.name not in ("worker", "dp_rank", "role", "profile", "bandwidth_bytes_per_s")
)
_OTHER_KEYS: Final = (
    *("name", "role", "count", "rank_count", "usable_blocks", "profile", "link_bandwidth_bytes_per_s"),
    "bytes_per_token",
)
_COLLECTING_KEYS: Final = frozenset(
    (
        *("url", "engine", "model", "rack", "zone", "tenants", "labels", "model_config_path", "kv_dtype", "tp"),
        *("token_env", "is_draining"),
    )
)
_COLLECTING_TABLES: Final = frozenset(
    (
        *("poll", "freshness", "auth", "tls", "store", "view", "slo", "discovery", "alerts", "server", "router"),
        *("routers", "policy", "admission", "saturation", "calibration", "risk", "reserve", "leases"),
    )
)
_BITS: Final = {"bit": 1 / 8, "b": 1.0}
_SCALES: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_RATE: Final = re.compile(r"\s*([0-9.]+)\s*([kmgt]?)(bit|b)(?:/s|ps)\s*", re.IGNORECASE)
_SHORTHAND: Final = re.compile(r"(?:(\d+)p(\d+)d|(\d+)u)", re.IGNORECASE)


class FleetFileError(ValueError):
    """The fleet cannot be built; the message lists every problem with its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDefaults:
    """
    What is taken where a fleet does not say.

    Attributes:
        profile: Service times.
        blocks: Capacity of a pool, in blocks.
        block_size_tokens: Allocation unit.
        reserve_tokens: Kept back per admitted request.
    """

    profile: ServiceProfile = DEFAULT_PROFILE
    blocks: int = DEFAULT_BLOCKS
    block_size_tokens: int = DEFAULT_BLOCK_SIZE_TOKENS
    reserve_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("blocks", "block_size_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFleet:
    """
    A fleet to replay on.

    Attributes:
        spec: What the simulation takes.
        notes: What was assumed, in sentences.
        source: Where it comes from, in a few words.
    """

    spec: FleetSpec
    notes: tuple[str, ...] = ()
    source: str = ""


def is_shorthand(text: str) -> bool:
    """Say whether `text` is a shorthand: `6p2d` (prefill and decode workers) or `8u` (unified ones)."""
    return _SHORTHAND.fullmatch(text.strip()) is not None


def fleet_from_shorthand(
    text: str, defaults: FleetDefaults | None = None, rules: Mapping[str, Any] | None = None
) -> ReplayFleet:
    """
    Return the fleet of a shorthand; every pool is the default one.

    Raises:
        FleetFileError: it is none, or a fleet without decode or prefill pools.
    """
    defaults = defaults or FleetDefaults()
    match = _SHORTHAND.fullmatch(text.strip())
    if match is None:
        raise FleetFileError(
            f"{text!r} is no fleet: write 6p2d (prefill, decode workers), 8u (unified), or name a file"
        )
    groups = {"prefill": match[1], "decode": match[2], "unified": match[3]}
    workers = [
        {"name": role[0], "role": role, "count": int(count), "usable_blocks": defaults.blocks}
        for role, count in groups.items()
        if count and int(count)
    ]
    fleet = fleet_from_mapping({"workers": workers, "replay": dict(rules or {})}, defaults, source=text.strip())
    note = f"every pool has {defaults.blocks} blocks of {defaults.block_size_tokens} tokens"
    return replace(fleet, notes=(note, *fleet.notes))


def fleet_from_mapping(
    document: Mapping[str, Any],
    defaults: FleetDefaults | None = None,
    *,
    load_profile: Callable[[str], Mapping[str, Any]] | None = None,
    source: str = "",
) -> ReplayFleet:
    """
    Return the fleet of a parsed fleet file.

    Args:
        document: `[[workers]]`, `[[links]]`, `[replay]` and tables that only concern collecting.
        defaults: For what the file does not say.
        load_profile: Path of a profile file -> its mapping; None allows names in PROFILES only.
        source: Name for reports.

    Raises:
        FleetFileError: with every problem of the file and its place.
    """
    defaults = defaults or FleetDefaults()
    problems: list[str] = []
    notes: list[str] = []
    known_tables = {"workers", "links", "replay", *_COLLECTING_TABLES}
    problems += [f"[{name}] is no table of a fleet file" for name in document if name not in known_tables]
    passed_over = sorted(name for name in document if name in _COLLECTING_TABLES - {"slo"})
    if passed_over:
        notes.append(f"tables without effect on a replay: {', '.join(passed_over)}")
    rules = document.get("replay", {})
    if not isinstance(rules, Mapping):
        problems.append("[replay] is no table")
        rules = {}
    for name in rules:
        if name not in RULES:
            problems.append(f"[replay] {name} is no rule (known: {', '.join(RULES)})")
    workers = document.get("workers")
    if not isinstance(workers, Sequence) or isinstance(workers, str) or not workers:
        raise FleetFileError("; ".join(["there are no [[workers]]", *problems]))
    builder = _Builder(defaults, problems, load_profile)
    for number, worker in enumerate(workers, start=1):
        builder.worker(number, worker)
    links = [_link(number, link, problems) for number, link in enumerate(_list(document, "links", problems), start=1)]
    if builder.without_capacity:
        notes.append(
            f"{len(builder.without_capacity)} worker(s) without usable_tokens: taken as {defaults.blocks} blocks of"
            f" {defaults.block_size_tokens} tokens each ({builder.without_capacity[0]} is the first)"
        )
    if builder.passed_over:
        notes.append(f"keys without effect on a replay: {', '.join(sorted(builder.passed_over))}")
    if problems:
        raise FleetFileError("; ".join(problems))
    try:
        spec = FleetSpec(
            pools=tuple(builder.pools),
            links=tuple(link for link in links if link is not None),
            **{name: rules[name] for name in RULES if name in rules},
        )
    except (TypeError, ValueError) as error:
        raise FleetFileError(str(error)) from error
    return ReplayFleet(spec=spec, notes=tuple(notes), source=source)


class _Builder:
    """Workers of a file -> pools, problems collected."""

    def __init__(
        self, defaults: FleetDefaults, problems: list[str], load_profile: Callable[[str], Mapping[str, Any]] | None
    ) -> None:
        self.defaults = defaults
        self.problems = problems
        self.load_profile = load_profile
        self.pools: list[PoolSpec] = []
        self.without_capacity: list[str] = []
        self.passed_over: set[str] = set()

    def worker(self, number: int, worker: object) -> None:
        """Add one `[[workers]]` table."""
        place = f"workers[{number}]"
        if not isinstance(worker, Mapping):
            self.problems.append(f"{place} is no table")
            return
        for key in worker:
            if key in _COLLECTING_KEYS:
                self.passed_over.add(key)
            elif key not in _POOL_KEYS and key not in _OTHER_KEYS:
                self.problems.append(f"{place} {key} is no key (known: {', '.join((*_OTHER_KEYS, *_POOL_KEYS))})")
        name = str(worker.get("name") or _host(worker.get("url")) or f"w{number - 1}")
        count, ranks = (self._whole(worker, key, place, 1, COUNT_MAX) for key in ("count", "rank_count"))
        if count is None or ranks is None or count * ranks > COUNT_MAX:
            return
        role = str(worker.get("role", "unified"))
        if role not in ("unified", "prefill", "decode"):
            self.problems.append(f"{place} role is {role!r}: must be unified, prefill or decode")
            return
        values: dict[str, Any] = {key: worker[key] for key in _POOL_KEYS if key in worker}
        values.setdefault("block_size_tokens", self.defaults.block_size_tokens)
        values.setdefault("reserve_tokens", 0 if role == "prefill" else self.defaults.reserve_tokens)
        self._capacity(worker, values, place, name)
        values["profile"] = self._profile(worker.get("profile"), place, worker.get("bytes_per_token"))
        rate = worker.get("link_bandwidth_bytes_per_s")
        if rate is not None:
            values["bandwidth_bytes_per_s"] = self._rate(rate, place)
        for index in range(count):
            for rank in range(ranks):
                own = name if "count" not in worker else f"{name}{index}"
                try:
                    self.pools.append(PoolSpec(worker=own, role=Role(role), dp_rank=rank, **values))
                except (TypeError, ValueError) as error:
                    self.problems.append(f"{place}: {error}")
                    return

    def _whole(self, worker: Mapping[str, Any], key: str, place: str, default: int, most: int) -> int | None:
        value = worker.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
            self.problems.append(f"{place} {key} is {value!r}: must be a whole number from 1 to {most:,}")
            return None
        return value

    def _capacity(self, worker: Mapping[str, Any], values: dict[str, Any], place: str, name: str) -> None:
        block = values["block_size_tokens"]
        if "usable_blocks" in worker:
            blocks = self._whole(worker, "usable_blocks", place, 1, 10**12)
            if "usable_tokens" in worker:
                self.problems.append(f"{place}: usable_tokens and usable_blocks: give one of them")
            values["usable_tokens"] = (blocks or 1) * block if isinstance(block, int) else 1
        elif "usable_tokens" not in worker:
            self.without_capacity.append(name)
            values["usable_tokens"] = self.defaults.blocks * block if isinstance(block, int) else 1

    def _profile(self, wanted: object, place: str, bytes_per_token: object) -> ServiceProfile:
        profile = self.defaults.profile
        try:
            if wanted is not None:
                profile = named_profile(str(wanted), self.load_profile)
        except ValueError as error:
            self.problems.append(f"{place} {error}")
        if bytes_per_token is None:
            return profile
        is_number = isinstance(bytes_per_token, int | float) and not isinstance(bytes_per_token, bool)
        if not is_number or not 0 < bytes_per_token < math.inf:  # type: ignore[operator] # checked to be a number.
            self.problems.append(f"{place} bytes_per_token is {bytes_per_token!r}: must be a number above 0")
            return profile
        return _with_bytes(profile, float(bytes_per_token))  # type: ignore[arg-type] # checked to be a number.

    def _rate(self, value: object, place: str) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        match = _RATE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            self.problems.append(
                f"{place} link_bandwidth_bytes_per_s is {value!r}: write bytes per second, '50 GB/s' or '400 Gbit/s'"
            )
            return 1.0
        return float(match[1]) * _SCALES[match[2].lower()] * _BITS[match[3].lower()]


def named_profile(name: str, load_profile: Callable[[str], Mapping[str, Any]] | None = None) -> ServiceProfile:
    """
    Return a profile by its name in PROFILES, or from a file where `load_profile` is given.

    Raises:
        ValueError: there is none, or the file describes none.
    """
    if name in PROFILES:
        return PROFILES[name]
    if load_profile is None or not name.endswith(".json"):
        raise ValueError(f"profile {name!r} is not known: there are {', '.join(PROFILES)}, or name a .json file")
    return profile_from_mapping(load_profile(name))


def _host(url: object) -> str:
    return url.partition("://")[2].rstrip("/") if isinstance(url, str) else ""


def _list(document: Mapping[str, Any], name: str, problems: list[str]) -> Sequence[Any]:
    value = document.get(name, [])
    if not isinstance(value, Sequence) or isinstance(value, str):
        problems.append(f"[[{name}]] is no list of tables")
        return []
    return value


def _link(number: int, link: object, problems: list[str]) -> LinkSpec | None:
    place = f"links[{number}]"
    if not isinstance(link, Mapping):
        problems.append(f"{place} is no table")
        return None
    known = tuple(f.name for f in fields(LinkSpec))
    unknown = [key for key in link if key not in known]
    problems += [f"{place} {key} is no key (known: {', '.join(known)})" for key in unknown]
    values = {key: link[key] for key in link if key not in unknown}
    rate = values.get("bandwidth_bytes_per_s")
    if isinstance(rate, str):
        match = _RATE.fullmatch(rate)
        if match is None:
            problems.append(f"{place} bandwidth_bytes_per_s is {rate!r}: write bytes per second or '50 GB/s'")
            return None
        values["bandwidth_bytes_per_s"] = float(match[1]) * _SCALES[match[2].lower()] * _BITS[match[3].lower()]
    try:
        return LinkSpec(**values)
    except (TypeError, ValueError) as error:
        problems.append(f"{place}: {error}")
        return None


def _known(figure: Figure) -> float | None:
    value = figure.value
    return value if value is not None and math.isfinite(value) else None


def fleet_from_snapshot(fleet: FleetSnapshot, defaults: FleetDefaults | None = None) -> ReplayFleet:
    """
    Return the live fleet as it is: roles, capacities, block sizes, batch caps, reserves and links.

    Pools whose capacity is not known are left out and named. Service times are the default profile's: telemetry
    gives rates, not coefficients (calibration fits those). KV bytes per token are the pool's own where known.

    Raises:
        FleetFileError: nothing is left that could serve.
    """
    defaults = defaults or FleetDefaults()
    pools: list[PoolSpec] = []
    left_out: list[str] = []
    guessed: list[str] = []
    for pool in fleet.pools:
        usable = _known(pool.composition.usable_tokens)
        if not usable or usable < 1:
            left_out.append(pool.pool_id)
            continue
        block = _known(pool.block_size_tokens)
        if not block or block < 1 or block > usable:
            guessed.append(pool.pool_id)
            block = min(float(defaults.block_size_tokens), usable)
        most = _known(pool.max_running_count)
        reserve = pool.reading.reserved_per_request_tokens
        own = _known(pool.bytes_per_token)
        rate = pool.labels.get("link_bandwidth_bytes_per_s")
        pools.append(
            PoolSpec(
                worker=pool.worker_id,
                dp_rank=pool.dp_rank,
                role=Role.UNIFIED if pool.role is Role.UNKNOWN else pool.role,
                usable_tokens=int(usable),
                block_size_tokens=int(block),
                profile=_with_bytes(defaults.profile, own),
                max_running_count=int(most) if most and most >= 1 else 256,
                reserve_tokens=0 if pool.role is Role.PREFILL or not reserve else int(reserve),
                bandwidth_bytes_per_s=_positive(rate) or 64e9,
            )
        )
    if not pools:
        raise FleetFileError("the fleet has no pool of known capacity: nothing to replay on")
    notes = []
    if left_out:
        notes.append(f"left out, capacity not known: {', '.join(left_out)}")
    if guessed:
        notes.append(f"block size not known, taken as {defaults.block_size_tokens}: {', '.join(guessed)}")
    notes.append(f"service times are the profile {defaults.profile.name}, not this fleet's own")
    names = {pool.worker for pool in pools}
    links = tuple(
        LinkSpec(
            source=link.source,
            target=link.target,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s or None,
            latency_s=link.latency_s,
        )
        for link in fleet.links
        if {link.source, link.target} <= {*names, "*"}
    )
    try:
        spec = FleetSpec(pools=tuple(pools), links=links)
    except ValueError as error:
        raise FleetFileError(f"the fleet cannot be replayed on: {error}") from error
    return ReplayFleet(spec=spec, notes=tuple(notes), source="snapshot")


def _positive(text: str | None) -> float | None:
    try:
        value = float(text) if text else 0.0
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _with_bytes(profile: ServiceProfile, bytes_per_token: float | None) -> ServiceProfile:
    if not bytes_per_token or bytes_per_token <= 0:
        return profile
    return replace(profile, bytes_per_token=float(bytes_per_token))


def describe(spec: FleetSpec) -> dict[str, Any]:
    """Return the fleet in a few figures for a report: pools by role, capacity, block sizes, profiles, rules."""
    roles = {role.value: len(spec.indices(role)) for role in (Role.PREFILL, Role.DECODE, Role.UNIFIED)}
    return {
        "pools": {role: count for role, count in roles.items() if count},
        "usable_tokens": sum(pool.usable_blocks * pool.block_size_tokens for pool in spec.pools),
        "block_size_tokens": sorted({pool.block_size_tokens for pool in spec.pools}),
        "profiles": sorted({pool.profile.name for pool in spec.pools}),
        "reserve_tokens": sorted({pool.reserve_tokens for pool in spec.pools}),
        **{name: getattr(spec, name) for name in RULES},
    }
