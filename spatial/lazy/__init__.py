"""Patches that are not made yet: a volume, what is pending, and how it is realized."""
