"""torchdata"s place for the loader"s signals."""

from .pausing import PauseIteration

__all__ = ["PauseIteration"]
