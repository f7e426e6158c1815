"""Iterable pipes."""
