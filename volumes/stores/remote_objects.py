"""What every client of objects behind a URL answers in the same way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .location import public_name
from .ranges import ReadRange
from .redaction import Secrets
from .retry import Retry, default_retry

# What an object store sends during one round trip: a request costs as much as these bytes.
GAP_BYTES = 1024**2
# Bounds the memory of one request; several are under way at once.
MOST_BYTES = 16 * 1024**2


@dataclass(frozen=True)
class ObjectFacts:
    """What a store says of one object."""

    size: int
    """In bytes."""
    version: str
    """Differs between versions of its content; empty where the store does not tell."""
    etag: str = ""
    """With which a request can ask for this version only; empty where there is none."""


class RemoteObjects(ABC):
    """Objects below a URL.

    Parameters
    ----------
    url
        Of the root.
    options
        Storage options, as the user wrote them.
    retry
        When a failed request is sent again; by default that of the process.
    """

    gap = GAP_BYTES
    most = MOST_BYTES

    def __init__(self, url: str, options: Mapping[str, Any], retry: Retry | None = None) -> None:
        self._name = public_name(url).rstrip("/")
        self._retry = retry or default_retry()
        self._secrets = Secrets(options)

    @property
    def name(self) -> str:
        """The URL, without credentials."""
        return self._name

    def get(self, key: str) -> bytes | None:
        """Return a whole object; None where there is none."""
        return self.get_ranges([ReadRange(key)])[0]

    @abstractmethod
    def get_ranges(self, ranges: Sequence[ReadRange]) -> list[bytes | None]:
        """Return the bytes of each range; None for an object that is not there."""

    @abstractmethod
    def facts(self, key: str) -> ObjectFacts:
        """Return size and version of an object; ``VolumeNotFound`` where there is none."""

    def size(self, key: str) -> int:
        """Return the size of an object in bytes."""
        return self.facts(key).size

    def _place(self, key: str) -> str:
        return f"{self._name}/{key}" if key else self._name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"
