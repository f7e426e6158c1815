"""torchdata's place for the functions that find, replace and remove pipes."""

from .nested import find_dps, list_dps, remove_dp, replace_dp

__all__ = ["find_dps", "list_dps", "remove_dp", "replace_dp"]
