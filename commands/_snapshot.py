"""A fleet snapshot that a command was given."""

from scoring.model import FleetSnapshot
from scoring.snapshot import fleet_from_json


def named_snapshot(body: str | bytes, where: str) -> FleetSnapshot:
    """
    Return the fleet of a snapshot in JSON.

    Raises:
        ValueError: It is none; the message begins with `where`, its file or address.
    """
    try:
        return fleet_from_json(body)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
