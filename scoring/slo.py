"""
Service classes: what each promises, at which quantile it plans, and how it weighs the seven terms.

Read next: `cost` for the terms, `policy.scorers` for their use.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from scoring.demand import refuse_outside

WEIGHT_RANGE: Final = (0.0, 1_000.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """
    Weights of the seven terms, in the order of docs/scoring.md; each 0 to 1,000.

    Equal compute, transfer and benefit weights price exactly the uncached work.
    """

    prefill_wait: float = 1.0
    prefill_compute: float = 1.0
    transfer: float = 1.0
    decode_wait: float = 1.0
    kv_pressure: float = 1.0
    slo_risk: float = 1.0
    prefix_benefit: float = 1.0

    def __post_init__(self) -> None:
        """Refuse weights out of range."""
        for each in fields(self):
            refuse_outside(f"weight {each.name}", getattr(self, each.name), WEIGHT_RANGE)

    def as_tuple(self) -> tuple[float, float, float, float, float, float, float]:
        """Return w1 to w7."""
        return (
            self.prefill_wait,
            self.prefill_compute,
            self.transfer,
            self.decode_wait,
            self.kv_pressure,
            self.slo_risk,
            self.prefix_benefit,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SloClass:
    """
    One service class.

    Attributes:
        name: Stable key.
        ttft_s: Time-to-first-token budget; also what every term in seconds is divided by.
        tpot_s: Time-per-output-token budget.
        quantile: Output length is planned at this quantile.
        weights: Of the seven terms.
    """

    name: str
    ttft_s: float
    tpot_s: float
    quantile: float
    weights: Weights = Weights()

    def __post_init__(self) -> None:
        """Refuse budgets and quantiles out of range."""
        refuse_outside(f"{self.name}: ttft_s", self.ttft_s, (1e-3, 86_400.0))
        refuse_outside(f"{self.name}: tpot_s", self.tpot_s, (1e-4, 3_600.0))
        refuse_outside(f"{self.name}: quantile", self.quantile, (0.01, 0.999))


SLO_CLASSES: Final[Mapping[str, SloClass]] = {
    "interactive": SloClass(name="interactive", ttft_s=1.0, tpot_s=0.05, quantile=0.95, weights=Weights(slo_risk=2.0)),
    "batch": SloClass(name="batch", ttft_s=30.0, tpot_s=0.2, quantile=0.8, weights=Weights(kv_pressure=0.5)),
    "long_context": SloClass(
        name="long_context", ttft_s=15.0, tpot_s=0.08, quantile=0.9, weights=Weights(kv_pressure=2.0)
    ),
}
"""Presets, chosen, and the defaults of the fleet file, which replaces them for fleets that promised otherwise."""


def slo_class(name: str, classes: Mapping[str, SloClass] = SLO_CLASSES) -> SloClass:
    """
    Return a class by name.

    Raises:
        ValueError: Unknown; the message lists the known ones.
    """
    if name not in classes:
        raise ValueError(f"class {name!r} is not known; known are {', '.join(sorted(classes))}")
    return classes[name]


def with_weights(slo: SloClass, changes: Mapping[str, float]) -> SloClass:
    """
    Return the class with some weights changed.

    Raises:
        ValueError: A name is not a term, or a weight is out of range.
    """
    known = {each.name for each in fields(Weights)}
    for name, value in changes.items():
        if name not in known:
            raise ValueError(f"weight {name!r} is not known; known are {', '.join(sorted(known))}")
        if not math.isfinite(value):
            raise ValueError(f"weight {name} is {value}; allowed is {WEIGHT_RANGE[0]} to {WEIGHT_RANGE[1]}")
    return replace(slo, weights=replace(slo.weights, **changes))
