"""
The fleet file of a running demo: the same `fleet.toml` an operator writes for real workers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLine:
    """
    What the fleet file says of one worker.

    Attributes:
        name: Worker id.
        url: Base URL.
        role: prefill, decode or unified; None leaves it to the worker's own answer.
        settings: Further keys of the worker's table, for example `link_bandwidth`.
        labels: Free labels, for example rack and zone.
    """

    name: str
    url: str
    role: str | None = None
    settings: Mapping[str, str | float | bool] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


Value = str | float | bool | Sequence[str]


def _value(value: Value) -> str:
    # A JSON scalar or list is a TOML one too, but for non-finite numbers, which no caller has.
    return json.dumps(value)


def fleet_toml(workers: Sequence[WorkerLine], *, comment: str, sections: Mapping[str, Mapping[str, Value]]) -> str:
    """
    Return the text of a fleet file.

    Args:
        workers: In the order to write.
        comment: First line, without the sign.
        sections: Table name -> keys, written before the workers.
    """
    lines = [f"# {comment}", ""]
    for table, keys in sections.items():
        lines += [f"[{table}]", *(f"{key} = {_value(value)}" for key, value in keys.items()), ""]
    for worker in workers:
        lines += ["[[workers]]", f"name = {_value(worker.name)}", f"url = {_value(worker.url)}"]
        if worker.role is not None:
            lines.append(f"role = {_value(worker.role)}")
        lines += [f"{key} = {_value(value)}" for key, value in worker.settings.items()]
        if worker.labels:
            inner = ", ".join(f"{key} = {_value(value)}" for key, value in worker.labels.items())
            lines.append(f"labels = {{ {inner} }}")
        lines.append("")
    return "\n".join(lines)


class FleetFileError(Exception):
    """The fleet file cannot be written; the message says where and why."""


def write_fleet_file(path: Path, text: str) -> None:
    """
    Write the file whole or not at all: a reader never sees half of it.

    Raises:
        FleetFileError: The place cannot be written to.
    """
    half = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half.write_text(text)
        half.replace(path)
    except OSError as error:
        raise FleetFileError(f"cannot write the fleet file {path}: {error}; choose another --fleet-file") from error
