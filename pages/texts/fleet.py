"""Texts of the Fleet page."""

TEXTS: dict[str, tuple[str, str]] = {}
