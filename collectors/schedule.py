"""Filled in by the collectors room."""
