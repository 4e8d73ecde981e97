"""Composition root of the dashboard; filled in by the pages room."""
