"""The sources of samples: cases that are given, found by patterns, or read from a manifest."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any, ClassVar

from ..core import Sample
from ..core.call_site import is_looking_ahead
from ..core.errors import SampleError, VolumeNotFound, VoxpipeError, add_location
from ..core.lru_cache import cached_property
from ..core.progress import progress_line
from ..core.redact import RedactedDict, public_name, public_value
from ..core.suggest import closest, path_hint
from ..core.validate import count_text
from ..graph import Pipe, rebuild, walk
from ..graph.node import copy_pipe
from ..storage.location import WILDCARD, is_url, local_path, lower_schemes, readable_name
from ..storage.remote import Globs
from ..volumes import Manifest, Volume, is_picture, read_manifest, sources_of
from .case_names import (
    CASE,
    CaseNames,
    Match,
    PlaceIdentity,
    glob_paths,
    name_by_folder,
    name_by_stars,
    name_of,
)
from .datapipe import locate_errors
from .epoch import SeedStamper
from .item_numbers import NumberedItems

_STARS_NAME = (
    "Write the pattern so that one star stands for all of a name: a ? or [...] is no part of it, "
    "and what is around two stars does not tell which of them stands for nothing."
)
# Names of arguments, and how alike a key is that was meant for one: option, optionals.
_ARGUMENTS = ("optional", "storage_options")
_LIKE_ARGUMENT = 0.75
_DOTS = re.compile(r"(^|/)(?:\./+)+")
# Cases of one list are stored alike; a few show the format.
_LOOKED_AT = 8
_RUN = 4096  # cases whose texts are hashed at once


class _CaseSource(SeedStamper):
    def case(self, number: int) -> tuple[str, dict[str, Any]]:
        """Return name and volumes of a case of this pass."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def each_case(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and volumes of each case of this pass."""
        return map(self.case, range(len(self)))

    def begin_pass(self) -> None:
        """Prepare the cases of a new pass."""

    def __iter__(self) -> Iterator[Sample]:
        # No generator: list(pipe) calls len() before the first next(), and both are of one pass.
        self.begin_pass()
        return iter(_Samples(self))

    def by_number(self, items: Any) -> NumberedItems:
        return _Samples(self, begins=True)

    def settings(self) -> Any:
        """Return nothing: :meth:`data_hash` covers the cases."""
        return ()

    def places(self) -> Iterable[str]:
        """Return texts that say, by their suffixes, how volumes are stored."""
        raise NotImplementedError

    @property
    def imports(self) -> tuple[str, ...]:  # type: ignore[override]
        """Ask for zarr if a place names it."""
        return ("zarr",) if any(".zarr" in place for place in self.places()) else ()

    def data_texts(self) -> Iterator[str]:
        """Yield a text for each case that identifies it, perhaps with credentials; read no file."""
        raise NotImplementedError

    hashes_texts: Any = True  # whether :meth:`data_hash` has all of :meth:`data_texts`

    def data_hash(self) -> str:
        """Return 16 hex digits over the cases."""
        digest, texts = hashlib.blake2b(digest_size=8), iter(self.data_texts())
        while run := "\0".join(islice(texts, _RUN)):
            digest.update(f"{run}\0".encode())
        return digest.hexdigest()


class _Samples(NumberedItems):
    """The samples of a source in one pass, under its seed."""

    def __init__(self, source: _CaseSource, *, begins: bool = False) -> None:
        self.source, self._begins, self.cases = source, begins, self

    @cached_property
    def run(self) -> tuple[int, int, tuple[int, ...], int]:
        """Seed, epoch, first entries of all identities, and the number of cases."""
        if self._begins:
            self.source.begin_pass()
        of_source = self.source._identity(0)[:-1]  # the entries before the index of a case
        return (*self.source._next_run(), of_source, len(self.source))

    def __len__(self) -> int:
        return self.run[3]

    def __getitem__(self, number: int) -> Sample:
        seed, epoch, of_source, _ = self.run
        name, data = self.source.case(number)
        return Sample(data, case=name, identity=(*of_source, number), seed=seed, epoch=epoch)


class FromCases(_CaseSource):
    """Begin a chain with cases that are given as mappings of key to volume.

    Parameters
    ----------
    cases
        One mapping per case. A value is a path, a URL, a tensor, an array, a nibabel
        image or a zarr store; numbers and other things travel along. The key
        ``"case"``, if present, names the case; else its first file does, or, for equal names, the
        difference of their folders. Opening costs no file access.

    Examples
    --------
    >>> import numpy as np
    >>> pipe = from_cases([{"image": np.zeros((4, 4, 4)), "case": "phantom"}])
    >>> [sample.case for sample in pipe]
    ['phantom']
    """

    form_name = "from_cases"
    takes_data: ClassVar[bool] = True
    """Arguments of this very class may be long, and only ``public_arguments`` reads them."""

    def __init__(self, cases: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.cases: Any = cases
        self._names = CaseNames()
        if isinstance(cases, Mapping):
            msg = "from_cases takes a list of cases, got one mapping"
            do = "Write brackets around it: from_cases([{...}]); one mapping is one case."
        elif not hasattr(self.cases, "__getitem__") or not hasattr(self.cases, "__len__"):
            msg = f"from_cases takes a sequence of cases, got {type(cases).__name__}"
            do = "Write list(...) around it: every epoch begins with the first case again."
        elif not len(self.cases):
            msg = "from_cases got a list without any case"
            do = "See where the list is made: is the folder or the filter right?"
        else:
            if isinstance(cases, (list, tuple)):
                self._names.look(cases)
            return
        raise SampleError(msg, do=do).at(self.origin)

    def public_arguments(self) -> Any:
        if "takes_data" not in vars(type(self)):
            return super().public_arguments()
        losses: list[str] = []
        cases = public_value(self.cases, losses=losses)
        self._hides_arguments = bool(losses)
        return (cases,), {}

    def each_case(self) -> Iterator[tuple[str, dict[str, Any]]]:
        self._names.forget_others(self.cases)
        return super().each_case()

    def begin_pass(self) -> None:
        super().begin_pass()
        self._names.forget_others(self.cases)

    def case(self, number: int) -> tuple[str, dict[str, Any]]:
        case = self.cases[number]
        if type(case) is not dict and not isinstance(case, Mapping):
            msg = f"case {number} is a {type(case).__name__}, not a mapping of key to volume"
            do = 'Write each case as {"image": ..., "label": ...}.'
            raise SampleError(msg, do=do).at(self.origin)
        data = {**case}
        if CASE in data:
            return str(data.pop(CASE)), data
        # Another sequence may make its cases on access: names do not access them all.
        if not isinstance(self.cases, (list, tuple)):
            return name_of(data, number), data
        return (self._names.of_number or self._names.find(self.cases))(number), data

    def __len__(self) -> int:
        return len(self.cases)

    def describe(self) -> str:
        return f"from_cases({len(self.cases)} cases)"

    def places(self) -> Iterable[str]:
        return map(str, self.cases[:_LOOKED_AT])

    def data_texts(self) -> Iterator[str]:
        text_of = PlaceIdentity().of
        for case in self.cases:
            yield ", ".join([f"{key}={text_of(value)}" for key, value in case.items()])


class FindsCases(_CaseSource):
    """A source that lists a storage: at the beginning of each pass, once for all keys.

    A loader lists in its own process at the beginning of each epoch, and workers get that list. A
    worker of torch's ``DataLoader`` iterates a copy of the pipe, and lists for itself.
    """

    looks_once: ClassVar[bool] = False  # whether all passes have the cases of the first

    def __init__(self, *arguments: Any) -> None:
        # Copies of a pipe share it; one that a loader holds is made anew for each epoch.
        self._listing = SimpleNamespace(cases=None, is_held=False)
        super().__init__(*arguments)

    def look(self) -> list[dict[str, Any]]:
        """Return the cases that the storage holds now, with their names."""
        raise NotImplementedError

    def listing(self) -> list[dict[str, Any]]:
        """Return the cases of this pass: ``{"case": name, key: path or URL, ...}``."""
        if self._listing.cases is None:
            with locate_errors(self), progress_line("listing cases"):
                self._listing.cases = self.look()
        return self._listing.cases  # type: ignore[no-any-return]

    def hold(self, cases: list[dict[str, Any]]) -> None:
        """Let this pass have these cases, which another rank has listed."""
        self._listing.cases = cases

    def begin_pass(self) -> None:
        if not (self.looks_once or self._listing.is_held or is_looking_ahead()):
            self._listing.cases = None
        super().begin_pass()


def hold_listings(graph: Pipe, *, anew: bool = False) -> Pipe:
    """Return the graph for a loader, which lists at the beginning of each epoch; ``anew``: now."""

    def own(old: Pipe, here: Pipe) -> Pipe:
        if isinstance(old, FindsCases):
            cases = None if anew and not old.looks_once else old._listing.cases
            twin: Any = copy_pipe(old)
            twin._listing = SimpleNamespace(cases=cases, is_held=True)
            return twin  # type: ignore[no-any-return]
        return here

    return rebuild(graph, own)


def take_listings(graph: Pipe, other: Pipe) -> bool:
    """Give a graph the cases of another one like it; return whether they differ from its own."""
    differs = False
    for mine, theirs in zip(walk(graph), walk(other), strict=True):
        if isinstance(mine, FindsCases) and isinstance(theirs, FindsCases):
            before, mine._listing.cases = mine._listing.cases, theirs.listing()
            differs |= before != mine._listing.cases
    return differs


class ListCases(FindsCases):
    """Begin a chain with the cases found in a folder or bucket.

    Each pass lists the storage at its beginning, for all keys together; ``from_cases(list(...))``
    keeps the cases of one time. A star never stands for a hidden name, such as macOS's
    ``._ct.nii``. A folder that exists as it is written is no pattern, so that
    ``"scans [2021]/*/"`` works; ``glob.escape()`` writes others.

    Parameters
    ----------
    path
        A glob of folders, one case per folder: ``"s3://scans/train/*/"``. Leave it out to
        give each key a pattern of its own.
    optional
        Keys that a case may lack; its sample comes without them. A case that lacks another
        key is an error.
    storage_options
        For fsspec: credentials, endpoint and the like. They never appear in messages.
        ``open_volume()`` opens these files with them, unless it is given others.
    **patterns
        Per key, the file inside the case's folder (``image="ct.nii.gz"``, wildcards
        allowed); or, without ``path``, a path in which ``*`` stands for the case
        (``image="imagesTr/*_0000.nii.gz", label="labelsTr/*.nii.gz"``). Stars that follow the
        same word stand for the same text (``"sub-*/anat/sub-*_T1w.nii.gz"``); all others name the
        case together (``"sub-*/ses-*/ct.nii"`` finds ``01/pre`` and ``1/1``), but for a file that
        is called as its folder (``"*/*_t1.nii"``).

    Raises
    ------
    VolumeNotFound
        At the beginning of a pass: nothing matches, or a case lacks a volume.
    StoreUnavailable
        The store kept failing; see ``$VOXPIPE_REMOTE_DEADLINE``.
    VolumeReadError
        Any other failure of the store.
    """

    form_name = "list_cases"

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        optional: str | Iterable[str] = (),
        storage_options: Mapping[str, Any] | None = None,
        **patterns: str,
    ) -> None:
        super().__init__()
        self.path = None if path is None else lower_schemes(os.fspath(path))
        self.patterns = patterns
        self.storage_options = RedactedDict(storage_options or {})
        self.optional = (optional,) if isinstance(optional, str) else tuple(optional)
        self._check()
        self.patterns = {k: lower_schemes(os.fspath(one)) for k, one in patterns.items()}
        if self.path is not None and not is_url(self.path):  # listings have no "./" in their paths
            self.patterns = {k: _DOTS.sub(r"\1", one) for k, one in self.patterns.items()}
        self.origin = dataclasses.replace(self.origin, call=self.describe())
        url, by_key = self._show()
        self._hides_arguments = by_key != self.patterns or url != self.path
        optional = {"optional": self.optional} if self.optional else {}
        self._arguments = (() if url is None else (url,), {**by_key, **optional})

    def _check(self) -> None:
        if not self.patterns:
            raise ValueError('list_cases needs a pattern per volume: image="ct.nii.gz"')
        for key in self.optional:
            if key not in self.patterns:
                near = closest(key, self.patterns, 0.5)
                hint = f"; did you mean optional={near[0]!r}?" if near else ""
                msg = f"optional={key!r} is none of the keys: {', '.join(self.patterns)}{hint}"
                raise ValueError(msg)
        patterns: Mapping[str, Any] = self.patterns  # unchecked types
        for key, pattern in patterns.items():
            near = closest(key.lower(), _ARGUMENTS, _LIKE_ARGUMENT)
            hint = f"; did you mean {near[0]}=?" if near else ""
            if not isinstance(pattern, (str, os.PathLike)):
                kind = type(pattern).__name__
                raise TypeError(f"{key}= takes a pattern of files, got {kind}{hint}")
            if near == ["optional"] and pattern in self.patterns:
                msg = f"{key}={pattern!r} names a key, and takes a pattern of files{hint}"
                raise ValueError(msg)
            if key.endswith("?"):
                raise ValueError(f"{key!r} is no key; did you mean optional={key.rstrip('?')!r}?")
            if self.path is None and ("*" not in str(pattern) or "**" in str(pattern)):
                text = public_name(str(pattern))
                msg = f"without a folder, {key}= needs one * or more for the case: {text!r}"
                raise ValueError(msg)

    def case(self, number: int) -> tuple[str, dict[str, Any]]:
        case = self.listing()[number]
        return case[CASE], {k: v for k, v in case.items() if k != CASE}

    def __len__(self) -> int:
        """Return the number of cases of this pass; list the storage before the first."""
        return len(self.listing())

    def describe(self) -> str:
        return f"list_cases({self._words()})"

    def _words(self) -> str:
        url, patterns = self._show()
        arguments = [repr(url)] if url is not None else []
        arguments += [f"{key}={pattern!r}" for key, pattern in patterns.items()]
        arguments += [f"optional={self.optional!r}"] if self.optional else []
        return ", ".join(arguments)

    def __dir__(self) -> list[str]:
        secret = "" if self._show()[1] == self.patterns else "patterns"  # ?X-Signature=, say
        return [name for name in super().__dir__() if name != secret]

    def settings(self) -> Any:
        """Return the patterns; credentials stay out, those in URLs too."""
        url, patterns = self._show()
        if url is None:
            patterns = {key: PlaceIdentity().of_place(one) for key, one in patterns.items()}
        else:
            url = PlaceIdentity().of_place(url)
        return (url, patterns, self.optional) if self.optional else (url, patterns)

    def _show(self) -> tuple[str | None, dict[str, str]]:
        url = None if self.path is None else public_name(self.path)
        patterns = {key: public_name(pattern) for key, pattern in self.patterns.items()}
        if url is not None and is_url(url):
            base = f"{url.rpartition('://')[0]}://_/"  # a pattern may end in a query, as URLs do
            names = {key: public_name(base + pattern) for key, pattern in patterns.items()}
            patterns = {key: name.removeprefix(base) for key, name in names.items()}
        return (url, patterns)

    def places(self) -> Iterable[str]:
        return [str(self.path), *self.patterns.values()]

    def data_texts(self) -> Iterator[str]:
        identity_of = PlaceIdentity().of_place
        for case in self.listing():
            texts = [f"{k}={v if k == CASE else identity_of(v)}" for k, v in case.items()]
            yield ", ".join(texts)

    def look(self) -> list[dict[str, Any]]:
        cases = self.find()
        for case in cases:
            for error in self.missing(case).values():
                raise error
        return cases

    def find(self) -> list[dict[str, str]]:
        """Return the cases as :meth:`look` does, also those that lack a volume."""
        with locate_errors(self):
            globs = Globs(self.storage_options)
            matches = {key: self._matches(key, p, globs) for key, p in self.patterns.items()}
            first: dict[str, tuple[str, Match, str]] = {}
            for key, name, entry in [(k, n, f) for k, m in matches.items() for n, f in m.items()]:
                before, other, there = first.setdefault(name, (key, *entry))
                if not entry[0].is_of(other):
                    msg = f"case {name} would have volumes of two cases: {before}="
                    msg += f"{public_name(there)} and {key}={public_name(entry[1])}"
                    raise SampleError(msg, do=_STARS_NAME)
            names = sorted(set().union(*matches.values()))
            if not names:
                raise VolumeNotFound(f"no case matches {self._words()}", do=self._advice())
        each = {n: {k: m[n][1] for k, m in matches.items() if n in m} for n in names}
        return [{CASE: name, **places} for name, places in each.items()]

    def lenient(self) -> Any:
        """Return a pipe of all cases that are there now, also those that lack a volume."""
        pipe: Any = hold_listings(self)
        pipe._listing.cases = self.find()
        return pipe

    def missing(self, case: Mapping[str, str]) -> dict[str, VoxpipeError]:
        """Return an error for each key that a found case has to have and lacks."""
        errors: dict[str, VoxpipeError] = {}
        for key, pattern in self._show()[1].items():
            if key not in case and key not in self.optional:
                do = "Add the file, narrow the pattern so that the case is left out, or write "
                do += f"⟦optional=({key!r},)⟧ to have the case without it."
                if pattern.endswith("?"):
                    do = f"A ? stands for one character; did you mean ⟦optional={key!r}⟧?"
                what = f"case {case[CASE]} has no {key} ({pattern})"
                errors[key] = VolumeNotFound(what, do=do).at(self.origin)
        return errors

    def _matches(self, key: str, pattern: str, globs: Globs) -> dict[str, tuple[Match, str]]:
        """Return the match of each path, and the path or URL, by case name for one key."""
        full = pattern if self.path is None else posixpath.join(self.path, pattern)
        fs, path, matches = glob_paths(full, globs)
        matches = [match for match in matches if not is_picture(match, pattern)]
        name = name_by_stars(path) if self.path is None else name_by_folder(path, pattern)
        by_case: dict[str, tuple[Match, str]] = {}
        for match in matches:
            if (found_of := name(match)) is None:
                continue
            place = fs.unstrip_protocol(match) if "://" in full else match
            if (case := readable_name(found_of.name, place)) in by_case:
                earlier, other = by_case[case]
                msg = f"case {case} has two volumes for {key}=: "
                msg += f"{public_name(other)} and {public_name(place)}"
                do = "Make the pattern narrower."
                if self.path is not None and not WILDCARD.search(self.path):
                    do = f"{public_name(self.path)} is one case here. If it holds many, leave the "
                    do += "folder out and let a star stand for the case: "
                    do += 'image="data/images/*.nii.gz".'
                do = do if earlier.is_of(found_of) else _STARS_NAME
                raise SampleError(msg, do=do)
            by_case[case] = found_of, place
        if matches and not by_case:
            text = count_text(len(matches), "file matches", "files match")
            msg = f"{text} {key}={public_name(pattern)!r}, e.g. {public_name(matches[0])}, "
            msg += "but stars that follow the same word stand for different texts"
            raise VolumeNotFound(msg, do="Give the files of a case the name of their folder.")
        return by_case

    def _advice(self) -> str:
        """Return the cure if nothing matches; checks whether folders of cases were meant."""
        if self.path is not None and not WILDCARD.search(self.path):
            below = posixpath.join(self.path, "*/")
            globs = Globs(self.storage_options)
            if any(glob_paths(posixpath.join(below, p), globs)[2] for p in self.patterns.values()):
                return f"Did you mean {public_name(below)!r}? Each folder that it finds is a case."
        asking = [key for key, pattern in self.patterns.items() if pattern.endswith("?")]
        if asking:
            return f"A ? stands for one character; did you mean ⟦optional={asking[0]!r}⟧?"
        for pattern in self.patterns.values():
            full = pattern if self.path is None else posixpath.join(self.path, pattern)
            if "{" in pattern and self.path is not None:  # planes of one volume
                folder, _, name = pattern.rpartition("/")
                where = f"image={folder!r}" if folder else "a star for their folder, image='exp/*'"
                return f"For planes write {where}, and open_volume(pattern={name!r})."
            if "[" in full:
                return "Brackets stand for one character; write [[] for a bracket: glob.escape()."
            if is_url(full):  # whose listing would be asked for once more
                continue
            folder = local_path(WILDCARD.split(full)[0].rpartition("/")[0])
            if folder and not os.path.isdir(folder):
                return path_hint(folder)
            if self.path and not WILDCARD.search(pattern):
                cases = glob_paths(self.path, Globs(self.storage_options))[2]
                if cases:
                    return path_hint(os.path.join(cases[0], pattern))
        return "Check the folder and the patterns."


class FromManifest(_CaseSource):
    """Begin a chain with the cases of a manifest that ``voxpipe index`` wrote.

    Chain ``open_volume()`` as after :func:`list_cases`. Shapes, affines and types come from
    the manifest; ``normalize()`` takes its statistics from there too. When a process first
    reads voxels of a volume, its version is compared with that of the manifest.

    Parameters
    ----------
    path
        Path or URL of the manifest.
    storage_options
        For fsspec, for the manifest and for the volumes. They are never written anywhere.
    follow
        ``"same_folder"``: volumes are below the manifest. Those of a remote one may be anywhere on
        the same host, with the same scheme; those of a local one in the folder that it was made of.
        Files named by their headers are in their folder. ``"anywhere"``: all files may be anywhere,
        and credentials are sent there.

    Raises
    ------
    BadManifest
        It is no manifest; or, at the first use of a volume, its entry is senseless or elsewhere.
    StaleEntry
        Later, where voxels are read: the volume has changed since; the message says how.
    """

    form_name = "from_manifest"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        follow: str = "same_folder",
    ) -> None:
        super().__init__()
        self.storage_options = RedactedDict(storage_options or {})
        with locate_errors(self):
            self.manifest: Manifest = read_manifest(path, self.storage_options, follow)
        self._source_of = sources_of(self.manifest.name, self.storage_options, follow)
        # Locations of a manifest by columns are below its folder.
        self._folder = getattr(self.manifest.entries, "folder", "")
        self.hashes_texts = not self._folder

    def case(self, number: int) -> tuple[str, dict[str, Volume]]:
        try:
            name, entries = self.manifest.case(number)
        except Exception as error:
            raise add_location(error, self.origin)  # noqa: B904  the very same error
        return name, {e.key: Volume.of_source(self._source_of(e), e.kind) for e in entries}

    def __len__(self) -> int:
        return self.manifest.case_count

    def describe(self) -> str:
        return f"from_manifest({self.manifest.name!r}, {len(self)} cases)"

    def places(self) -> Iterable[str]:
        return (entry.location for entry in islice(self.manifest.entries, _LOOKED_AT))

    def data_texts(self) -> Iterator[str]:
        if self._folder:
            return self.manifest.texts()
        place = PlaceIdentity().of_place
        return (
            f"case={e.case}, {e.key}={place(e.location)} ({e.kind}, {e.header.shape}, "
            f"{e.header.affine}, {e.stamp.size} bytes of version {e.stamp.version})"
            for e in self.manifest.entries
        )

    def data_hash(self) -> str:
        if not self._folder:
            return super().data_hash()
        entries: Any = self.manifest.entries
        own = PlaceIdentity().of_place(self._folder), entries.columns.digest
        return hashlib.blake2b(repr(own).encode(), digest_size=8).hexdigest()


from_cases, list_cases, from_manifest = FromCases, ListCases, FromManifest
