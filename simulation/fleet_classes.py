"""SLO classes from a fleet file: the presets, with what `[slo.NAME]` says over them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from scoring.slo import SLO_CLASSES, SloClass, with_weights
from simulation.fleet_file import FleetFileError


def classes_from_mapping(document: Mapping[str, Any]) -> tuple[SloClass, ...]:
    """
    Return the SLO classes of a fleet file's `[slo.NAME]` tables over the presets, in the presets' order, new ones last.

    Raises:
        FleetFileError: a key is not known or a value is out of range.
    """
    tables = document.get("slo", {})
    if not isinstance(tables, Mapping):
        raise FleetFileError("[slo] is no table")
    found = dict(SLO_CLASSES)
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise FleetFileError(f"[slo.{name}] is no table")
        values = dict(table)
        weights = values.pop("weights", {})
        renamed = {_SLO_KEYS.get(key, key): _seconds(value) for key, value in values.items()}
        try:
            base = found.get(str(name)) or SloClass(name=str(name), ttft_s=2.0, tpot_s=0.05, quantile=0.9)
            found[str(name)] = with_weights(replace(base, **renamed), weights)
        except (TypeError, ValueError, AttributeError) as error:
            raise FleetFileError(f"[slo.{name}]: {error}") from error
    return tuple(found.values())


_SLO_KEYS: Final = {"ttft_budget_s": "ttft_s", "tpot_budget_s": "tpot_s", "output_quantile_ratio": "quantile"}
_SECONDS: Final = {"ms": 1e-3, "s": 1.0, "min": 60.0}


def _seconds(value: Any) -> Any:
    """Return a duration text such as `500 ms` in seconds; anything else as it is."""
    if isinstance(value, str):
        number, _, unit = value.strip().partition(" ")
        if unit in _SECONDS:
            return float(number) * _SECONDS[unit]
    return value
