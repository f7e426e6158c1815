"""Lazy patches: a volume, its pending ops, and their realization."""
