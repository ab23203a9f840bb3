"""Measurements ↔ tokens."""
