"""Contracts and fakes, for ourselves and for plug-ins."""
