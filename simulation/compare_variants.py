"""
The sides of a comparison: a policy, and what else may differ from the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from scoring.model import Role
from simulation.compare_policies import check_policy
from simulation.faults import Fault
from simulation.fleet import FleetSpec
from simulation.simulate import SimulationOptions

SWEPT_OPTIONS: Final = ("telemetry_age_s", "telemetry_period_s", "reserve_ratio", "gate_ratio")
SWEPT_FLEET: Final = ("reserve_tokens", "blocks")
SWEEPS: Final = (*SWEPT_OPTIONS, *SWEPT_FLEET, "speed")
"""What `swept` can vary."""
TELEMETRY_PERIOD_S: Final = 1.0
"""Period of reports that an age brings with it (chosen: what pollers use)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """
    One side of a comparison.

    Attributes:
        name: How it is called in results.
        policy: Policy, as `compare_policies.resolve` takes it.
        fleet: Its own fleet; None takes the comparison's.
        options: Fields of SimulationOptions that differ from the comparison's.
        faults: Its own drills; None takes the comparison's.
        speed: Arrivals so many times as fast as in the comparison's traffic.
        point: (name of what was swept, value), for drawing; None when nothing was.
    """

    name: str
    policy: str
    fleet: FleetSpec | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] | None = None
    speed: float = 1.0
    point: tuple[str, float] | None = None


def variants_of(policies: Sequence[str]) -> tuple[Variant, ...]:
    """
    Return a variant for each policy's name.

    Raises:
        ValueError: a name is not known, given twice, or there is none.
    """
    given = [name.strip() for name in policies if name.strip()]
    if not given:
        raise ValueError("no policy is named: give at least one")
    names = [check_policy(name) for name in given]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"policy named twice: {', '.join(twice)}")
    return tuple(Variant(name=own, policy=name) for own, name in zip(given, names, strict=True))


def swept(variant: Variant, fleet: FleetSpec, name: str, value: float) -> Variant:
    """
    Return the variant with one thing set to a value of a sweep, named after it.

    Args:
        variant: What to change.
        fleet: Its fleet, where it has none of its own.
        name: One of SWEEPS. `reserve_tokens` changes pools that decode, `blocks` the capacity of every pool; a
            telemetry age above 0 brings a period of at most that age, but for one already set.
        value: What to set it to.

    Raises:
        ValueError: the name is not known, or the value is out of range.
    """
    changed = replace(variant, name=f"{variant.name} {name}={value:g}", point=(name, value))
    if name == "speed":
        if not 0 < value < float("inf"):
            raise ValueError(f"speed is {value}: must be above 0")
        return replace(changed, speed=value)
    if name in SWEPT_OPTIONS:
        options = {**variant.options, name: value}
        if name == "telemetry_age_s" and value > 0:
            options.setdefault("telemetry_period_s", min(value, TELEMETRY_PERIOD_S))
        return replace(changed, options=options)
    if name not in SWEPT_FLEET:
        raise ValueError(f"{name!r} cannot be swept: there are {', '.join(SWEEPS)}")
    if value != int(value) or value < 0:
        raise ValueError(f"{name} is {value:g}: must be a whole number of at least 0")
    own = variant.fleet or fleet
    pools = tuple(
        replace(pool, usable_tokens=int(value) * pool.block_size_tokens)
        if name == "blocks"
        else pool
        if pool.role is Role.PREFILL
        else replace(pool, reserve_tokens=int(value))
        for pool in own.pools
    )
    return replace(changed, fleet=replace(own, pools=pools))


def what_varies(
    variants: Sequence[Variant], fleet: FleetSpec, options: SimulationOptions, faults: tuple[Fault, ...]
) -> tuple[str, ...]:
    """Return what differs between variants beside their policy, one sentence a thing."""
    found = []
    fleets = [variant.fleet or fleet for variant in variants]
    if any(other != fleets[0] for other in fleets[1:]):
        found.append(f"the fleet differs: {', '.join(_fleet_changes(fleets))}")
    all_options = [options_of(variant, options) for variant in variants]
    for each in fields(SimulationOptions):
        values = [getattr(item, each.name) for item in all_options]
        if any(value != values[0] for value in values[1:]):
            shown = ", ".join(f"{variant.name} {value}" for variant, value in zip(variants, values, strict=True))
            found.append(f"{each.name} differs: {shown}")
    if any(variant.speed != variants[0].speed for variant in variants[1:]):
        found.append(f"the speed of the arrivals differs: {', '.join(f'{v.name} {v.speed:g}' for v in variants)}")
    drills = [faults if variant.faults is None else variant.faults for variant in variants]
    if any(drill != drills[0] for drill in drills[1:]):
        found.append("the drills differ")
    return tuple(found)


def _fleet_changes(fleets: Sequence[FleetSpec]) -> list[str]:
    first = fleets[0]
    changes = set()
    for other in fleets[1:]:
        changes |= {
            each.name
            for each in fields(FleetSpec)
            if each.name != "pools" and getattr(other, each.name) != getattr(first, each.name)
        }
        if len(other.pools) != len(first.pools):
            changes.add(f"{len(first.pools)} and {len(other.pools)} pools")
            continue
        for one, two in zip(first.pools, other.pools, strict=True):
            changes |= {key.name for key in fields(type(one)) if getattr(one, key.name) != getattr(two, key.name)}
    return sorted(changes)


def options_of(variant: Variant, options: SimulationOptions) -> SimulationOptions:
    """
    Return a variant's options.

    Raises:
        ValueError: an option that does not exist, or a value out of range.
    """
    known = {each.name for each in fields(SimulationOptions)}
    wrong = sorted(set(variant.options) - known)
    if wrong:
        raise ValueError(f"variant {variant.name}: no option {', '.join(wrong)}; there are {', '.join(sorted(known))}")
    return replace(options, **variant.options)


def drill_of(text: str) -> Fault:
    """
    Return the drill of `death,at=600,until=900,worker=d0`.

    Raises:
        ValueError: a part is not understood.
    """
    kind, *parts = (part.strip() for part in text.split(","))
    values: dict[str, Any] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        key = {"at": "at_s", "until": "until_s", "worker": "worker", "factor": "factor"}.get(name)
        if not equals or key is None:
            raise ValueError(f"drill {text!r}: {part!r} is none of at=, until=, worker=, factor=")
        try:
            values[key] = value if key == "worker" else float(value)
        except ValueError:
            raise ValueError(f"drill {text!r}: {name} must be a number") from None
    if "at_s" not in values:
        raise ValueError(f"drill {text!r}: at= is missing")
    return Fault(kind=kind, **values)
