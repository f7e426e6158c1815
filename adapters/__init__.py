"""Adapters: each rewrites a graph."""
