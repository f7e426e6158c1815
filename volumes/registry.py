"""Which backend opens what: an ordered list of matchers, extensible from outside.

The names and rules are TorchIO's, so that a backend written for it works here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .handles import close_volumes


class _LazyTensor:
    """A field that keeps what it is given and hands out a torch tensor.

    The factories that look at the affine want a tensor; all others should not pay
    for importing torch.
    """

    def __get__(self, request: Any, owner: type) -> Any:
        if request is None:
            return None  # the default of the dataclass field
        value = request.__dict__["affine"]
        if isinstance(value, np.ndarray):
            import torch

            return torch.from_numpy(np.array(value, dtype=np.float64))
        return value

    def __set__(self, request: Any, value: Any) -> None:
        request.__dict__["affine"] = value


@dataclass(frozen=True)
class BackendRequest:
    """What a factory gets to know about a source."""

    path: Path | None = None
    """Local path, None for URLs and objects."""
    remote_zarr_uri: str | None = field(default=None, repr=False)  # may hold credentials
    """URL of a zarr array or group."""
    zarr_store: Any = None
    """A zarr Store, Array or Group object."""
    affine: Any = _LazyTensor()
    """4x4 float64 torch tensor that overrides the stored one, or None."""
    reader_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further keywords of ``Volume``."""
    reader: Any = None
    """The reader given to ``Volume``."""
    uri: str | None = field(default=None, repr=False)
    """URL of anything that is no local path."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options for fsspec."""
    source: Any = field(default=None, repr=False)
    """What the user gave."""
    io: str = "auto"
    """How bare voxels of local files are to be read: one of ``IO_MODES``."""
    follow: str = "beside"
    """How far what a header names is followed: ``"beside"``, in its folder, or ``"anywhere"``."""


Matcher = Callable[[BackendRequest], bool]
Factory = Callable[[BackendRequest], Any]


class _Entry(NamedTuple):
    name: str
    matcher: Matcher
    factory: Factory


_ENTRIES: list[_Entry] = []


def register_backend(
    name: str, matcher: Matcher, factory: Factory, *, prepend: bool = True
) -> None:
    """Let ``factory`` open the sources that ``matcher`` recognises.

    Parameters
    ----------
    name
        A registration of the same name is replaced.
    matcher
        Whether a request is for this backend.
    factory
        Returns the backend: ``shape`` (C, I, J, K), ``affine``, ``dtype``,
        ``backend[slices]`` (a 4-D tensor) and ``to_tensor()``.
    prepend
        Ask this matcher before those already registered, or after them.

    Notes
    -----
    Registrations belong to the process. Make them when a module is imported, so
    that workers have them too.
    """
    unregister_backend(name)  # which also drops handles that others have opened
    _ENTRIES.insert(0 if prepend else len(_ENTRIES), _Entry(name, matcher, factory))


def unregister_backend(name: str) -> None:
    """Forget a backend; nothing happens if there is none of this name."""
    _ENTRIES[:] = [entry for entry in _ENTRIES if entry.name != name]
    close_volumes()


def resolve_backend(request: BackendRequest) -> Any | None:
    """Return the backend that opens ``request``, or None if no matcher recognises it.

    A reader that the user gave comes first; then the first matcher that answers
    true. What a factory raises is not hidden by trying the next one.
    """
    if request.reader is not None:
        return _read_with(request)
    for entry in tuple(_ENTRIES):
        if entry.matcher(request):
            return entry.factory(request)
    return None


def recognised(request: BackendRequest) -> bool:
    """Return whether a registered backend would open ``request``; opens nothing."""
    return any(entry.matcher(request) for entry in tuple(_ENTRIES))


def registered_names() -> tuple[str, ...]:
    """Return the names of all backends, in the order in which they are asked."""
    return tuple(entry.name for entry in _ENTRIES)


def custom_backends() -> tuple[tuple[str, Matcher, Factory], ...]:
    """Return what was registered from outside this package, in the order in which it is asked.

    A worker that is not a fork has only what importing gives it; this is what it is told.
    """
    here = __name__.partition(".")[0]
    return tuple(
        (entry.name, entry.matcher, entry.factory)
        for entry in _ENTRIES
        if getattr(entry.factory, "__module__", "").partition(".")[0] != here
    )


def _read_with(request: BackendRequest) -> Any:
    reader = request.reader
    if hasattr(reader, "create_backend"):
        return reader.create_backend(request)
    from .reader import ReaderBackend

    return ReaderBackend(reader, request)
