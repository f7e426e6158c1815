"""What every client of objects behind a URL answers in the same way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core.redact import origin_of
from .content import content_key
from .location import Secrets, public_name
from .ranges import MOST_DOCUMENT_BYTES, ReadRange
from .retry import Health, Retry, default_retry
from .small_object_cache import DOCUMENTS

# What an object store sends during one round trip: a request costs as much as these bytes.
GAP_BYTES = 1024**2
# Bounds the memory of one request; several are under way at once.
MOST_BYTES = 16 * 1024**2


class Entry(NamedTuple):
    """One object of a listing."""

    key: str
    """Below the root."""
    size: int
    """In bytes."""
    version: str
    """ETag or time of writing; empty where the store does not tell."""


@dataclass(frozen=True)
class ObjectFacts:
    """What a store says of one object."""

    size: int
    """In bytes."""
    version: str
    """Differs between versions of its content; empty where the store does not tell."""
    etag: str = ""
    """With which a request can ask for this version only; empty where there is none."""
    modified: float = 0.0
    """When it was written, in seconds since 1970 by the clock of the store; 0.0 where the store
    does not tell."""

    def entry(self, key: str) -> Entry:
        """Return the same as a listing tells it."""
        return Entry(key, self.size, self.version)


VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "mtime", "created")
"""Where file systems say which version of an object they speak of."""


def version_of(info: Mapping[str, Any]) -> str:
    """Return the version of an object as a file system tells it; empty where it does not."""
    return next((str(info[key]) for key in VERSIONS if info.get(key)), "")


_HEALTH: dict[str, Health] = {}
"""How each store answers, by host or bucket and options."""


def health_of(url: str, options: Mapping[str, Any]) -> Health:
    """Return how the store of a URL answers, as this process knows."""
    # Digested: options hold credentials.
    place = content_key(origin_of(url), (sorted(map(repr, options.items())),))
    return _HEALTH.setdefault(place, Health())


class RemoteObjects(ABC):
    """Objects below a URL."""

    gap = GAP_BYTES
    most = MOST_BYTES

    def __init__(self, url: str, options: Mapping[str, Any], retry: Retry | None = None) -> None:
        self._name = public_name(url).rstrip("/")
        self._retry = retry or default_retry()
        self._secrets = Secrets(options, url)
        self._health = health_of(url, options)
        self._documents = ""
        self.absences = 0
        """How often the store has said that there is no such object."""

    @property
    def name(self) -> str:
        """The URL, without credentials."""
        return self._name

    def get(self, key: str, limit: int = MOST_DOCUMENT_BYTES) -> bytes | None:
        """Return a whole small object, such as metadata; None where there is none.

        ``BadHeader`` where it has more than ``limit`` bytes, before its body is taken.
        """
        return self.get_ranges([ReadRange(key)], limit=limit)[0]

    @contextmanager
    def documents(self, token: str) -> Iterator[None]:
        """Keep what is read inside the ``with`` block of whole objects, and read it only once.

        That is what opening a volume reads; ``token`` names it. What cannot be opened is not kept.
        """
        self._documents = token
        try:
            yield
        except BaseException:
            DOCUMENTS.forget_all(token)
            raise
        finally:
            self._documents = ""

    @property
    def keeps_documents(self) -> bool:
        """Whether what is asked for now is kept, and may be asked for ahead."""
        return bool(self._documents)

    def _documented(
        self,
        ranges: Sequence[ReadRange],
        read: Callable[[Sequence[ReadRange], int], list[bytes | None]],
        whole: int,
        limit: int,
    ) -> list[bytes | None]:
        """Return the bytes of ranges, of which whole objects are kept or here; read others."""
        token, limit = self._documents, limit or (0 if whole else MOST_DOCUMENT_BYTES)
        here = DOCUMENTS.found(token, [(r.object,) for r in ranges if r == ReadRange(r.object)])
        asked = [r for r in ranges if (r.object,) not in here or r != ReadRange(r.object)]
        answers = dict(zip(asked, read(asked, limit) if asked else (), strict=True))
        new = {(r.object,): a for r, a in answers.items() if r == ReadRange(r.object)}
        DOCUMENTS.keep(token, {k: None if a is None else memoryview(a) for k, a in new.items()})
        kept = {key: None if piece is None else bytes(piece) for key, piece in here.items()}
        return [answers[r] if r in answers else kept[r.object,] for r in ranges]

    @abstractmethod
    def get_ranges(
        self, ranges: Sequence[ReadRange], whole: int = 0, *, limit: int = 0
    ) -> list[bytes | None]:
        """Return the bytes of each range; None for an object that is not there."""

    @abstractmethod
    def facts(self, key: str) -> ObjectFacts:
        """Return size and version of an object; ``VolumeNotFound`` where there is none."""

    @abstractmethod
    def entries(self, most: int | None = None) -> list[Entry]:
        """Return what lies below the root; of more than ``most`` objects at least one more."""

    def size(self, key: str) -> int:
        """Return the size of an object in bytes."""
        return self.facts(key).size

    def _place(self, key: str) -> str:
        return f"{self._name}/{key}" if key else self._name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"
