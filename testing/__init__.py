"""Contracts and fakes, for ourselves and for plug-ins.

The contracts are pytest classes, and pytest comes with the ``test`` extra only. What else is here
does without it: the demo's S3 server runs where nobody tests.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .decoder_contract import DecoderCase, DecoderContract
    from .range_store_contract import RANGE_OBJECTS, RangeStoreContract
    from .spatial_op_contract import SpatialOpContract
    from .store_contract import StoreCase, StoreContract
    from .value_op_contract import ValueOpContract

__all__ = [
    "RANGE_OBJECTS",
    "DecoderCase",
    "DecoderContract",
    "RangeStoreContract",
    "SpatialOpContract",
    "StoreCase",
    "StoreContract",
    "ValueOpContract",
]

# Imported at first use: the S3 server and the child that a store's contract spawns need neither
# pytest nor what the other contracts are about, of which torch alone takes a second.
_HOMES = {
    "decoder_contract": ("DecoderCase", "DecoderContract"),
    "range_store_contract": ("RANGE_OBJECTS", "RangeStoreContract"),
    "spatial_op_contract": ("SpatialOpContract",),
    "store_contract": ("StoreCase", "StoreContract"),
    "value_op_contract": ("ValueOpContract",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a contract at its first use."""
    home = _HOME_OF.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*(n for n in globals() if n.startswith("__")), *__all__})
