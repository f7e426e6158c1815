"""Contracts and fakes, for ourselves and for plug-ins."""

from .store_contract import StoreCase, StoreContract

__all__ = ["StoreCase", "StoreContract"]
