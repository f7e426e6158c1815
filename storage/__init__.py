"""Bytes of named objects, local or remote: ranges, retries, limits, read-ahead, the disk cache."""
