"""torchdata's path to :class:`ShuffleSpec`, which there is an empty class."""

from ..datapipes.shuffle_spec import ShuffleSpec

__all__ = ["ShuffleSpec"]
