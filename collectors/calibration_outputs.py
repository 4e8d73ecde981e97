"""
Output lengths from a request log, kept and used like coefficients: versions in the store, by class and prompt bucket.

Live counters tell means, never a distribution: quantiles come from a log alone (`kvscope calibrate --requests`).
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from collectors.calibration_versions import note, number_applied_at
from collectors.store import Store
from scoring.calibration_in_use import OutputsInUse
from scoring.quantile_table import ALL, QuantileCell, QuantileInterval, QuantileTable

NAME: Final = "output-lengths"
"""Of the profile in the store; no kind of worker is called so, since theirs ends in engine and version."""
_FAR: Final = float("inf")
_FAR_AT_S: Final = 2.0**36


def keep_outputs(store: Store, table: QuantileTable, source: str, at_s: float) -> int:
    """
    Keep a table as the next version, put it to use, and return its number.

    Raises:
        ValueError: No cell of it has a quantile.
        StoreError: It could not be stored.
    """
    if not any(cell.points for cell in table.cells):
        raise ValueError(f"{source}: too few finished requests for any quantile")
    cells = [
        {**asdict(cell), "upper_tokens": None if cell.upper_tokens == _FAR else cell.upper_tokens}
        for cell in table.cells
    ]
    version = store.add_profile(NAME, {"outputs": cells, "source": source}, at_s)
    before = number_applied_at(store, NAME, _FAR_AT_S)
    when = at_s if before is None else max(at_s, before[1] + 1e-3)
    store.apply_profile(NAME, version, when)
    note(store, when, NAME, f"version {version} kept and applied: {source}", "applied", version)
    return version


def outputs_at(store: Store, at_s: float) -> OutputsInUse | None:
    """Return the lengths in use at an instant; None when none were, or they cannot be read."""
    found = number_applied_at(store, NAME, at_s)
    if found is None:
        return None
    record = next((each for each in store.profiles(NAME) if each.version == found[0]), None)
    if record is None:
        return None
    try:
        cells = tuple(_cell(each) for each in record.profile["outputs"])
        source = str(record.profile["source"])
    except (KeyError, TypeError, ValueError):
        return None  # Written by a version with other fields.
    whole = sum(cell.sample_count for cell in cells if cell.slo_class == ALL)
    return OutputsInUse(
        table=QuantileTable(cells=cells),
        version=record.version,
        since_at_s=found[1],
        request_count=whole,
        source=source,
    )


def _cell(values: Mapping[str, Any]) -> QuantileCell:
    upper = values["upper_tokens"]
    return QuantileCell(
        slo_class=values["slo_class"],
        upper_tokens=_FAR if upper is None else float(upper),
        sample_count=int(values["sample_count"]),
        points=tuple(QuantileInterval(**each) for each in values["points"]),
        taken_from=values["taken_from"],
    )
