"""Texts of the Sources page."""

TEXTS: dict[str, tuple[str, str]] = {}
