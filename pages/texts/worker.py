"""Texts of the Worker page."""

TEXTS: dict[str, tuple[str, str]] = {}
