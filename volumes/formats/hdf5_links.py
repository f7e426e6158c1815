"""Where the links of an HDF5 file lead: to other files, and in circles, which HDF5 just follows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from ...core.call_site import shorten
from ...core.errors import BadHeader, LeadsOutside
from ...storage.ranges import Folder, open_regular
from .stored_file import import_package, library_errors

# A dataset of datasets of datasets is rare already; each level takes some of HDF5's stack.
_MOST_VIRTUAL = 16
# HDF5 itself follows no more on the way to one object (H5L_NUM_LINKS).
_MOST_LINKS = 16


@dataclass(frozen=True)
class Reach:
    """How far the links of a file are followed."""

    name: str
    """What errors call the file."""
    folder: Folder | None = None
    """Which files they may lead to; None for all that are regular."""
    reached: dict[str, None] = field(default_factory=dict)
    """What they lead to, and what has led there."""

    def note(self, path: str) -> None:
        """Remember a file: where it changes, so may what is read."""
        self.reached[os.path.abspath(path)] = None

    def others(self, path: str) -> tuple[str, ...]:
        """Return all files but one."""
        return tuple(other for other in self.reached if other != os.path.abspath(path))

    def check(self, path: str, reference: str) -> None:
        """Raise ``LeadsOutside`` for what is not in the folder, ``BadHeader`` for a pipe there."""
        self.note(path)
        if self.folder is not None:
            self.folder.check(path, f"{self.name}, which names {shorten(reference)},")
        try:
            os.close(open_regular(path))
        except BadHeader as error:
            error.what = f"{error.what.rstrip('.')}, and {self.name} names it."
            raise
        except OSError:
            pass  # what is not there leads nowhere


def refuse_links(h5py: Any, file: Any, chosen: Any, reach: Reach, depth: int = 0) -> None:
    """Look at all links on the way to a dataset, before HDF5 opens what they lead to."""
    if not isinstance(chosen, str):
        return
    if depth > _MOST_LINKS:
        raise BadHeader(
            f"more than {_MOST_LINKS} links lead to {shorten(chosen)} in {reach.name}.",
            do="Link to the dataset itself.",
        )
    parts = [part for part in chosen.split("/") if part not in ("", ".")]
    for n in range(len(parts)):
        place = "/".join(parts[: n + 1])
        try:
            link = file.get(place, getlink=True)
        except (KeyError, ValueError, RuntimeError):  # h5py says so when it is opened
            return
        if isinstance(link, h5py.ExternalLink):
            path = _found(_places(file.filename, link.filename, "HDF5_EXT_PREFIX"))
            reach.check(path, link.filename)
            if os.path.isfile(path) and h5py.is_hdf5(path):
                onward = "/".join([link.path, *parts[n + 1 :]])
                with h5py.File(path, "r") as opened:
                    refuse_links(h5py, opened, onward, reach, depth + 1)
            return
        if isinstance(link, h5py.SoftLink):
            above = "" if link.path.startswith("/") else "/".join(parts[:n])
            onward = "/".join([above, link.path, *parts[n + 1 :]])
            refuse_links(h5py, file, onward, reach, depth + 1)
            return


def refuse_leading_on(path: str, name: str, follow: str) -> None:
    """Look at all of a file that another library reads, which would follow it anywhere."""
    h5py = import_package("h5py", name)
    trusted = follow == "anywhere"
    reach = Reach(name, None if trusted else Folder(os.path.dirname(os.path.abspath(path))))
    waiting, seen = [path], set[str]()
    with hdf5_errors(name):
        while waiting:
            place = waiting.pop()
            if os.path.realpath(place) in seen or not h5py.is_hdf5(place):
                continue
            seen.add(os.path.realpath(place))
            with h5py.File(place, "r") as file:
                for reference, other in _leading_on(h5py, file, reach):
                    if not trusted:
                        raise LeadsOutside(
                            f"{name} leads to other files: to {other}, as {shorten(reference)}.",
                            do='If you trust who made it: open_volume(follow="anywhere"), or '
                            "Volume(...) likewise.",
                        )
                    reach.check(other, reference)
                    waiting.append(other)


def _leading_on(h5py: Any, file: Any, reach: Reach) -> Iterator[tuple[str, str]]:
    """Yield all names of other files in a file, and where HDF5 finds these."""
    links: dict[str, int] = {}
    file.id.links.visit(lambda at, link: links.setdefault(os.fsdecode(at), link.type), info=True)
    for place, kind in links.items():
        if kind == h5py.h5l.TYPE_EXTERNAL:
            named = file.get(place, getlink=True).filename
            yield named, _found(_places(file.filename, named, "HDF5_EXT_PREFIX"))
        elif kind == h5py.h5l.TYPE_HARD and isinstance(file[place], h5py.Dataset):
            dataset = file[place]
            for named in _external(dataset):
                yield named, os.path.abspath(named)
            if dataset.is_virtual:
                refuse_circle(h5py, dataset, (), reach.name, reach)
                for named in {source.file_name for source in dataset.virtual_sources()} - {"."}:
                    yield named, _found(_places(file.filename, named, "HDF5_VDS_PREFIX"))


def _places(file: str, reference: str, variable: str) -> list[str]:
    """Return where HDF5 looks for a file that another one names, in its order.

    Where the name says, if it is absolute, and else in the folders of the variable, beside the
    file, where the process is, and beside what the file is a link to.
    """
    absolute = [reference] if os.path.isabs(reference) else []
    name = os.path.basename(reference) if absolute else reference
    beside = os.path.dirname(os.path.abspath(file))
    chosen = [
        folder.replace("${ORIGIN}", beside)
        for folder in os.environ.get(variable, "").split(os.pathsep)
        if folder
    ]
    folders = [*chosen, beside, os.getcwd(), os.path.dirname(os.path.realpath(file))]
    return [*absolute, *(os.path.join(folder, name) for folder in folders)]


def _found(places: Sequence[str]) -> str:
    """Return the first place where there is a file, or the first of all."""
    return next(filter(os.path.exists, places), places[0])


def _external(dataset: Any) -> list[str]:
    return [os.fsdecode(reference) for reference, *_ in dataset.external or ()]


def beside_its_file(h5py: Any, dataset: Any) -> Any:
    """Return a dataset whose numbers lie in other files, of names beside its own file.

    HDF5 looks for them where the process is when it reads. What a variable says goes first.
    """
    names = _external(dataset)
    if not names or dataset.id.get_access_plist().get_efile_prefix():
        return dataset
    file, path = dataset.file, dataset.name.encode()
    beside = os.path.dirname(os.path.abspath(file.filename))
    if not any(os.path.exists(os.path.join(beside, name)) for name in names):
        beside = os.getcwd()  # what is looked at is what is read, wherever the process goes
    wanted = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    wanted.set_efile_prefix(os.fsencode(beside))
    h5py.h5i.dec_ref(dataset.id)  # HDF5 opens it only once, in one way
    return h5py.Dataset(h5py.h5d.open(file.id, path, wanted))


def refuse_external(dataset: Any, reach: Reach) -> None:
    """Look at the files that hold the numbers of a dataset, where HDF5 looks for them."""
    for name in _external(dataset):
        prefix = os.fsdecode(dataset.id.get_access_plist().get_efile_prefix())
        reach.check(os.path.join(os.getcwd(), prefix, name), name)


def refuse_circle(
    h5py: Any, dataset: Any, above: tuple[tuple[str, int], ...], name: str, reach: Reach
) -> None:
    """Refuse a virtual dataset that leads back to itself: HDF5 follows it until the stack ends."""
    if not dataset.is_virtual:
        return
    file = dataset.file.filename
    # By its place in the file: it may have many names.
    here = (os.path.realpath(file), h5py.h5o.get_info(dataset.id).addr)
    if here in above or len(above) >= _MOST_VIRTUAL:
        raise BadHeader(
            f"the virtual dataset {dataset.name} of {name} leads back to itself.",
            do="Write it again, of datasets that hold numbers.",
        )
    for source in {(source.file_name, source.dset_name) for source in dataset.virtual_sources()}:
        for place, path in _matching(h5py, file, *source, reach):
            with h5py.File(place, "r") as opened:
                refuse_links(h5py, opened, path, reach)
                found = opened.get(path)
                if isinstance(found, h5py.Dataset):
                    if found.file != opened:
                        reach.check(found.file.filename, found.file.filename)
                    refuse_external(found, reach)
                    refuse_circle(h5py, found, (*above, here), name, reach)


def _matching(
    h5py: Any, file: str, file_name: str, path: str, reach: Reach
) -> Iterator[tuple[str, str]]:
    """Yield file and dataset of the sources that a name stands for; ``%b`` is a number in it."""
    names = [file]
    if file_name != ".":
        places = _places(file, file_name, "HDF5_VDS_PREFIX")
        wanted = _printf(os.path.basename(file_name))
        first: dict[str, str] = {}
        for folder in map(os.path.dirname, places):
            listed = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
            for each in filter(wanted.fullmatch, listed):
                first.setdefault(each, os.path.join(folder, each))
        names = list(first.values())
        for each in names or places[:1]:
            reach.check(each, file_name)
    for each in names:
        if not h5py.is_hdf5(each):
            continue
        if "%" not in path:
            yield each, path
            continue
        with h5py.File(each, "r") as opened:
            found = [f"/{inner}" for inner in datasets_in(h5py, opened)]
        yield from ((each, inner) for inner in found if _printf(path).fullmatch(inner))


def _printf(pattern: str) -> re.Pattern[str]:
    """Return what matches the names that HDF5 makes of a pattern, as of ``printf``."""
    parts = re.split(r"(%%|%\d*b)", pattern)
    return re.compile(
        "".join("%" if p == "%%" else r"\d+" if p[:1] == "%" else re.escape(p) for p in parts)
    )


def datasets_in(h5py: Any, file: Any) -> list[str]:
    """Return the paths of all datasets of a file or group."""
    found: list[str] = []
    file.visititems(lambda path, node: found.append(path) if _is(node, h5py.Dataset) else None)
    return found


def _is(node: Any, kind: Any) -> bool:
    return isinstance(node, kind)


def hdf5_errors(name: str) -> AbstractContextManager[None]:
    """Turn what h5py raises on a file that is damaged into errors that name it."""
    return library_errors(f"{name} is no sound HDF5 file", "Copy or write it again.")
