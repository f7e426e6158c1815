"""torchdata's path to :class:`ShuffleSpec`, which there is an empty class."""

from ..datapipes.shuffle_plans import ShuffleSpec

__all__ = ["ShuffleSpec"]
