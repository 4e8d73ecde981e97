"""
Folds the flat rooms into one package when a wheel is built, and leaves an editable install alone.

An editable install that force-includes would copy the rooms into site-packages, and the old copies would answer.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOMS = (
    "app.py",
    "cli.py",
    "commands",
    "pages",
    "demo",
    "collectors",
    "simulation",
    "scoring",
    ".streamlit/config.toml",
)


class FoldRooms(BuildHookInterface):
    """Adds every room under `kvscope/` to a standard wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name what goes where."""
        if version != "editable":
            build_data["force_include"].update({room: f"kvscope/{room}" for room in ROOMS})
