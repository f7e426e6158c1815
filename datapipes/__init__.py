"""Data pipes."""
