"""Whole volumes out of overlapping windows, with no more in memory than windows still touch."""
