"""Stream training patches out of volumes that do not fit in memory."""

from ._version import __version__

__all__ = ["__version__"]
