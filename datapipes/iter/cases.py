"""Where a chain begins: a list of cases, given or found by patterns."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ...core import Sample
from ...core.errors import SampleError, VolumeNotFound, placed
from ...core.hidden import Hidden, public_name
from ...volumes.stores.location import is_url
from ..datapipe import DataPipe
from .case_names import CASE, name_of, names_of
from .files.connection import reached, tried

# A ? that stands for one character has no = behind it.
_QUERY = re.compile(r"\?[^?]*=.*")
# Cases of one list are stored alike; a few tell the format.
_LOOKED_AT = 8


class Seeded(DataPipe):
    """A pipe that stamps seed and epoch on every sample that it makes.

    The loader calls :meth:`begin`; torch's own loaders call :meth:`set_seed`. If nobody
    does, each pass draws a seed from torch's global generator, as torch's ``shuffle``
    does, so that ``torch.manual_seed`` makes it repeatable.
    """

    def __init__(self) -> None:
        super().__init__()
        self._run: tuple[int, int] | None = None
        self._source = 0

    def begin(self, seed: int, epoch: int, source: int = 0) -> None:
        """Set the seed of the run, the epoch of the next pass, and the number of this source."""
        self._run = (seed, epoch)
        self._source = source

    def _identity(self, index: int) -> tuple[int, ...]:
        """Return the identity of the ``index``-th case; no other source of the graph has it."""
        return (-self._source, index) if self._source else (index,)

    def set_seed(self, seed: int) -> Seeded:
        """Set the seed of the next pass."""
        self._run = (seed, 0)
        return self

    def coming_run(self) -> tuple[int, int]:
        """Return seed and epoch of the next pass, which stay what they are."""
        self._run = self._next_run()
        return self._run

    def skip_run(self) -> None:
        """Begin no pass, and forget what was set for it."""
        self._run = None

    def _next_run(self) -> tuple[int, int]:
        run, self._run = self._run, None
        return run or (int(torch.empty((), dtype=torch.int64).random_().item()), 0)


class FromCases(Seeded):
    """Yield one sample per given case; see :func:`from_cases`."""

    chained = "from_cases"

    def __init__(self, cases: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.cases: Any = cases
        if isinstance(cases, Mapping):
            do = "Write brackets around it: from_cases([{...}]); one mapping is one case."
            raise SampleError("from_cases takes a list of cases, got one mapping", do=do).at(
                self.origin
            )
        if not hasattr(self.cases, "__getitem__") or not hasattr(self.cases, "__len__"):
            msg = f"from_cases takes a sequence of cases, got {type(cases).__name__}"
            do = "Write list(...) around it: every epoch begins with the first case again."
            raise SampleError(msg, do=do).at(self.origin)
        if not len(self.cases):
            do = "See where the list is made: is the folder or the filter right?"
            raise SampleError("from_cases got a list without any case", do=do).at(self.origin)

    def __iter__(self) -> Iterator[Sample]:
        """Yield the cases in the order in which they were given."""
        seed, epoch = self._next_run()
        # Another sequence may make its cases when asked: each is asked for once.
        names = names_of(self.cases) if isinstance(self.cases, (list, tuple)) else None
        for index, case in enumerate(self.cases):
            if not isinstance(case, Mapping):
                msg = f"case {index} is a {type(case).__name__}, not a mapping of key to volume"
                error = SampleError(msg, do='Write each case as {"image": ..., "label": ...}.')
                raise error.at(self.origin)
            data = {k: v for k, v in case.items() if k != CASE}
            name = names[index] if names else str(case.get(CASE, name_of(data, index)))
            yield Sample(data, case=name, identity=self._identity(index), seed=seed, epoch=epoch)

    def __len__(self) -> int:
        """Return the number of cases."""
        return len(self.cases)

    def describe(self) -> str:
        """Return the number of cases rather than all of them."""
        return f"from_cases({len(self.cases)} cases)"

    def settings(self) -> Any:
        """Return nothing: which cases there are is what :meth:`data_hash` is about."""
        return ()

    @property
    def imports(self) -> tuple[str, ...]:  # type: ignore[override]
        """Ask for zarr if the first cases are zarr."""
        return imports_for(str(case) for case in self.cases[:_LOOKED_AT])

    def data_hash(self) -> str:
        """Return 16 hex digits over the names and sources of the cases; reads no file."""
        digest = hashlib.blake2b(digest_size=8)
        for index, case in enumerate(self.cases):
            for key, value in case.items():
                text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else key
                digest.update(f"{index}{key}{text}\0".encode())
        return digest.hexdigest()

    def data_texts(self) -> Iterator[str]:
        """Yield a text for each case, to say which of them differ."""
        for case in self.cases:
            yield ", ".join(
                f"{k}={os.fspath(v) if isinstance(v, (str, os.PathLike)) else type(v).__name__}"
                for k, v in case.items()
            )


class ListCases(Seeded):
    """Yield one sample per case found by patterns; see :func:`list_cases`."""

    chained = "list_cases"

    def __init__(
        self,
        url: str | os.PathLike[str] | None,
        patterns: Mapping[str, str],
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        super().__init__()
        self.url = None if url is None else os.fspath(url)
        self.patterns = dict(patterns)
        self.storage_options = Hidden(storage_options or {})
        self._cases: list[dict[str, str]] | None = None
        self.origin = dataclasses.replace(self.origin, call=self.describe())
        self._check()

    def _check(self) -> None:
        if not self.patterns:
            raise ValueError('list_cases needs a pattern per volume: image="ct.nii.gz"')
        if self.url is None:
            for key, pattern in self.patterns.items():
                if pattern.count("*") != 1:
                    shown = public_name(pattern)
                    msg = f"without a folder, {key}= needs one * for the case: {shown!r}"
                    raise ValueError(msg)

    def __iter__(self) -> Iterator[Sample]:
        """List the storage (once in the life of the pipe) and yield the cases by name."""
        seed, epoch = self._next_run()
        for index, case in enumerate(self.listing()):
            data = {k: v for k, v in case.items() if k != CASE}
            yield Sample(
                data, case=case[CASE], identity=self._identity(index), seed=seed, epoch=epoch
            )

    def __len__(self) -> int:
        """Return the number of cases; lists the storage."""
        return len(self.listing())

    def describe(self) -> str:
        """Return the patterns as the user wrote them."""
        url, patterns = self.settings()
        shown = [repr(url)] if url is not None else []
        return f"list_cases({', '.join(shown + [f'{k}={v!r}' for k, v in patterns.items()])})"

    def settings(self) -> Any:
        """Return the patterns; credentials stay out, those in URLs too."""
        url = None if self.url is None else public_name(self.url)
        patterns = {key: public_name(pattern) for key, pattern in self.patterns.items()}
        if is_url(self.url or ""):
            patterns = {key: _QUERY.sub("", pattern) for key, pattern in patterns.items()}
        return (url, patterns)

    @property
    def imports(self) -> tuple[str, ...]:  # type: ignore[override]
        """Ask for zarr if a pattern names it."""
        return imports_for([str(self.url), *self.patterns.values()])

    def data_hash(self) -> str:
        """Return 16 hex digits over the listing."""
        text = "\0".join(f"{k}={v}" for case in self.listing() for k, v in case.items())
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def data_texts(self) -> Iterator[str]:
        """Yield a text for each case, to say which of them differ."""
        for case in self.listing():
            yield ", ".join(f"{key}={value}" for key, value in case.items())

    def listing(self) -> list[dict[str, str]]:
        """Return the cases, sorted by name: ``{"case": name, key: path or URL, ...}``.

        Raises
        ------
        VolumeNotFound
            If nothing matches, or a case lacks one of its volumes.
        VolumeReadError
            The storage cannot be listed.
        """
        if self._cases is None:
            try:
                found = {key: self._matches(key, p) for key, p in self.patterns.items()}
            except Exception as error:
                raise placed(error, self.origin)  # noqa: B904  the very same error
            self._cases = self._joined(found)
        return self._cases

    def _matches(self, key: str, pattern: str) -> dict[str, str]:
        """Return path by case name for one key."""
        full = pattern if self.url is None else posixpath.join(self.url, pattern)
        fs, path = reached(full, self.storage_options)
        found = tried(full, self.storage_options, "listing", lambda: fs.glob(path))
        matches = sorted(str(match).rstrip("/") for match in found)
        name = _by_star(path) if self.url is None else _by_folder(path, pattern)
        by_case: dict[str, str] = {}
        for match in matches:
            case = name(match)
            if case in by_case:
                msg = f"case {case} has two volumes for {key}=: {by_case[case]} and {match}"
                raise SampleError(msg, do="Make the pattern narrower.")
            by_case[case] = fs.unstrip_protocol(match) if "://" in full else match
        return by_case

    def _joined(self, found: dict[str, dict[str, str]]) -> list[dict[str, str]]:
        names = sorted(set().union(*found.values()))
        if not names:
            msg = f"no case matches {self.describe()}"
            error = VolumeNotFound(msg, do="Check the folder and the patterns.")
            raise error.at(self.origin)
        for name in names:
            for key, by_case in found.items():
                if name not in by_case:
                    msg = f"case {name} has no {key} ({self.settings()[1][key]})"
                    do = "Add the file, or narrow the pattern so that the case is left out."
                    raise VolumeNotFound(msg, do=do).at(self.origin)
        return [{CASE: n, **{k: by_case[n] for k, by_case in found.items()}} for n in names]


def imports_for(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that a worker needs for places of these names."""
    return ("zarr",) if any(".zarr" in text for text in texts) else ()


def _by_folder(path: str, pattern: str) -> Any:
    """Name a case by the part of its folder that differs between cases."""
    depth = pattern.count("/") + 1
    fixed = path.split("*", 1)[0].rsplit("/", 1)[0]

    def name(match: str) -> str:
        folder = public_name(match).rsplit("/", depth)[0]
        return folder[len(fixed) :].strip("/") or folder.rsplit("/", 1)[-1]

    return name


def _by_star(path: str) -> Any:
    """Name a case by what the star stands for."""
    before, after = path.split("*")
    expression = re.compile(re.escape(before) + "(.*)" + re.escape(after.rstrip("/")) + "$")

    def name(match: str) -> str:
        found = expression.search(match)
        return found.group(1) if found else match

    return name


def from_cases(cases: Sequence[Mapping[str, Any]]) -> FromCases:
    """Begin a chain with cases that are given as mappings of key to volume.

    Parameters
    ----------
    cases
        One mapping per case. A value is a path, a URL, a tensor, an array, a nibabel
        image or a zarr store; numbers and other things travel along. The key
        ``"case"``, if present, names the case; else its first file does, or, where others
        are called the same, what differs in their folders. Opening costs no file access.

    Examples
    --------
    >>> import numpy as np
    >>> pipe = from_cases([{"image": np.zeros((4, 4, 4)), "case": "phantom"}])
    >>> [sample.case for sample in pipe]
    ['phantom']
    """
    return FromCases(cases)


def list_cases(
    url: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    **patterns: str,
) -> ListCases:
    """Begin a chain with the cases found in a folder or bucket.

    Parameters
    ----------
    url
        A glob of folders, one case per folder: ``"s3://scans/train/*/"``. Leave it out to
        give each key a pattern of its own.
    storage_options
        For fsspec: credentials, endpoint and the like. They never appear in messages.
        ``open_volume()`` opens what was found with them, unless it is given others.
    **patterns
        Per key, the file inside the case's folder (``image="ct.nii.gz"``, wildcards
        allowed); or, without ``url``, a path with one ``*`` that stands for the case
        (``image="imagesTr/*_0000.nii.gz", label="labelsTr/*.nii.gz"``).

    Raises
    ------
    VolumeNotFound
        At the first iteration: nothing matches, or a case lacks a volume.
    StoreUnavailable
        The store kept failing; see ``$VOXPIPE_REMOTE_DEADLINE``.
    VolumeReadError
        Any other failure of the store.

    Notes
    -----
    Listing happens once, at the first iteration, with one glob per key.
    """
    return ListCases(url, patterns, Hidden(storage_options or {}))
