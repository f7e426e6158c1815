"""Contracts and fakes, for ourselves and for plug-ins.

The contracts are pytest classes, and pytest comes with the ``test`` extra only. What else is here
does without it: the demo's S3 server runs where nobody tests.
"""

from importlib.util import find_spec

if find_spec("pytest") is not None:
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
