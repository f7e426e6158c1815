"""Text inside text."""

from __future__ import annotations


def indented(text: str) -> str:
    """Return ``text`` with each line two spaces to the right."""
    return "\n".join(f"  {line}" for line in text.splitlines())
