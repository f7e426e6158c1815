"""Bytes of local and remote objects: ranges, retries, limits, prefetch, and the disk cache."""
