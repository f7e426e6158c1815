"""Names for cases that were given none, no two alike; the identity of their files in states."""

from __future__ import annotations

import operator
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

from ..core.context import ContextKey
from ..core.redact import public_name
from ..storage.location import (
    WILDCARD,
    absolute_place,
    fixed_folder,
    is_url,
    literal_name,
    local_path,
)
from ..volumes import Volume
from ..volumes.catalog.find import plain_name
from ..volumes.registry import all_formats

CASE = "case"  # key under which a given case may carry its name
# A pattern whose folder is one star, and whose file begins with one.
_FILE_AS_FOLDER = re.compile(r"(^|/)\*/\*[^/]*$")


def name_of(data: Mapping[str, Any], index: int, ends: tuple[str, ...] = ()) -> str:
    """Return a name for a case that was given none: that of its first file, or its number.

    ``ends`` are the suffixes of all formats, where they are known.
    """
    paths = _first_paths(data)
    if not paths:
        return str(index)
    ends = ends or _suffixes()
    names = [_name_of_path(path, ends) for path in paths]
    if len(names) == 1:
        return names[0]
    # Files of the channels of one volume: BraTS_001_t1 and BraTS_001_t2, ct_07_0000 and _0001.
    return posixpath.commonprefix(names).rpartition("_")[0] or names[0]


def _name_of_path(path: str, ends: tuple[str, ...]) -> str:
    file = path[path.rfind("/") + 1 :]
    stem, _, end = file.partition(".")
    if stem and _is_usual(end, ends):
        return stem
    # Another ending than a format's may be a part of the name: 1.2.840, ct.v2.
    return plain_name(file) if file.lower().endswith(ends) else file


@lru_cache(maxsize=256)
def _is_usual(end: str, ends: tuple[str, ...]) -> bool:
    """Whether the text after the first dot of a file name is the suffix of a format."""
    return plain_name(f"a.{end}") == "a" and f".{end}".endswith(ends)


def _suffixes() -> tuple[str, ...]:
    return tuple(suffix for item in all_formats() for suffix in item.suffixes)


def _is_mapping(case: Any) -> bool:
    return type(case) is dict or isinstance(case, Mapping)  # the second takes ten times as long


def names_of(cases: Sequence[Any]) -> list[str]:
    """Return a name for each case: the one it carries, else one that no other case has."""
    # Files of one name in different folders are named by the difference of their folders, as in
    # ``list_cases``, else by the number of the case.
    has_case = [_is_mapping(case) and CASE in case for case in cases]
    ends = _suffixes()
    names = [
        str(case[CASE]) if has else name_of(case, index, ends) if _is_mapping(case) else ""
        for index, (case, has) in enumerate(zip(cases, has_case, strict=True))
    ]
    count = Counter(names)
    if len(count) == len(names):
        return names
    alike: dict[str, list[int]] = {}
    for index, (name, has) in enumerate(zip(names, has_case, strict=True)):
        if not has and count[name] > 1:
            alike.setdefault(name, []).append(index)
    for name, places in alike.items():
        paths = [(_first_paths(cases[index]) or [""])[0] for index in places]
        folders = _apart([path[: path.rfind("/") + 1] for path in paths])
        alone = [folder != "" and not count[folder] for folder in folders]
        is_apart = all(alone) and len(set(folders)) == len(folders)
        for index, folder in zip(places, folders, strict=True):
            names[index] = folder if is_apart else f"{name}#{index}"
            count[names[index]] += 1
    return names


# Names that a search in all paths finds; more of them take as long as the names of all cases.
_MOST_SEARCHES = 16


class CaseNames:
    """The names of a list of cases; copies of a pipe share them, and a pickle has none."""

    def __init__(self) -> None:
        self._cases: list[Any] = []
        self._key: Any = None  # of all first values, if they are alike
        self._values: list[Any] = []  # the first of each case
        self._searches = 0
        self.of_number: Callable[[int], str] | None = None
        """Returns the name of a case; None before :meth:`find`."""

    def __reduce__(self) -> tuple[type[CaseNames], tuple[()]]:
        return CaseNames, ()

    def find(self, cases: Sequence[Any]) -> Callable[[int], str]:
        """Return a function from the numbers of cases to the names of :func:`names_of`."""
        self.look(cases)
        if self.of_number is None:
            self.of_number = names_of(cases).__getitem__
        return self.of_number

    def look(self, cases: Sequence[Any]) -> None:
        """Find how to search for names, where that is quick; else the names stay unknown."""
        self._cases, self._key, self._searches = [*cases], _first_key(cases), 0
        try:
            self._values = [*_first_values(cases, self._key)]
        except KeyError:  # it begins some of the cases only
            self._key, self._values = None, [*_first_values(cases, None)]
        text = None if self._key is None else _text_of(self._values)
        if text is not None and (":" not in text or "://" not in text):
            self.of_number = partial(self._search, cases, text)

    def _search(self, cases: Sequence[Any], text: str, number: int) -> str:
        """Return the name of one case, if no other has it; else find the names of all."""
        ends = _suffixes()
        name, own = name_of(cases[number], number, ends), _text_of([self._values[number]]) or ""
        self._searches += 1
        if self._searches <= _MOST_SEARCHES and "\0" not in name:
            # A name is the file of its path, or the part before a dot.
            for parts in ((f"/{name}",), (f"/{name}.", f"/{name}/")):
                if all(text.count(part) == own.count(part) for part in parts):
                    return name
        paths = self._values
        # Texts alone, as the garbage collector follows every tuple of a long list.
        files = [path[path.rfind("/") + 1 :] for path in paths]
        stems = [file.partition(".")[0] for file in files]
        # Files that differ before their first dots have different names, too.
        if len({*stems}) < len(stems) or not all(stems):
            self.of_number = names_of(cases).__getitem__
        elif all(_is_usual(end, ends) for end in {file.partition(".")[2] for file in files}):
            self.of_number = stems.__getitem__
        else:
            self.of_number = lambda number: name_of(cases[number], number, ends)
        return self.of_number(number)

    def forget_others(self, cases: Sequence[Any]) -> None:
        """Forget the names unless a new pass has the same cases."""
        with suppress(KeyError):  # the first key of a case was removed
            if self.of_number is None or (
                len(cases) == len(self._cases)
                and all(map(operator.is_, cases, self._cases))
                and all(map(operator.is_, _first_values(cases, self._key), self._values))
            ):
                return
        self.of_number = None


def _first_key(cases: Sequence[Any]) -> Any:
    """Return the key of the first values of cases without names; None if there are several."""
    # Each step is one call of C for all cases: there may be a hundred thousand.
    if {*map(type, cases)} != {dict}:
        return None
    key = next(iter(cases[0]), CASE)
    is_alone = {*map(len, cases)} == {1}  # so all have this key, or have another one
    if not is_alone and {*map(next, map(iter, cases))} != {key}:
        return None
    has_name = key == CASE or (not is_alone and any(map(dict.__contains__, cases, repeat(CASE))))
    return None if has_name else key


def _first_values(cases: Sequence[Any], key: Any) -> Iterator[Any]:
    if key is not None:
        return map(itemgetter(key), cases)
    return (next(iter(case.values()), None) if type(case) is dict else case for case in cases)


def _text_of(paths: Sequence[Any]) -> str | None:
    """Return paths as one text, in which a slash precedes and follows each; None for others."""
    with suppress(TypeError):
        return "/\0/".join(["", *paths, ""])
    return None


def is_hidden(path: str, pattern: str) -> bool:
    """Return whether a name in ``path`` begins with a dot that the pattern does not write."""
    patterns = [part for part in pattern.split("/") if part.startswith(".")]
    names = [part for part in path.split("/") if part.startswith(".")]
    return any(not any(fnmatchcase(part, one) for one in patterns) for part in names)


def glob_paths(full: str, globs: Any) -> tuple[Any, str, list[str]]:
    """Return the file system, the pattern as a path in it, and its matches, sorted."""
    # Local file systems know no empty names; in a bucket they are names.
    full = full if is_url(full) else re.sub("/{2,}", "/", local_path(full))
    fs, path, infos = globs.match(full)
    return fs, path, [match for match in infos if not is_hidden(match, path)]


class Match(NamedTuple):
    """The case of a path, and the texts that match the wildcards of the pattern."""

    name: str  # of the case
    stars: tuple[str, ...] = ()
    """The texts that match the stars of the pattern; the name consists of them."""
    others: tuple[tuple[str, str], ...] = ()
    """Each ``?`` and ``[...]`` of the pattern, and its text: no part of the name."""

    def is_of(self, other: Match) -> bool:
        """Return whether two paths of one name can be of one case."""
        # Not where stars share a name out in other ways, (``b``, nothing) and (nothing, ``b``), and
        # not where the same ``?`` stand for other characters.
        alike = [text for text, _ in self.others] == [text for text, _ in other.others]
        if alike and self.others != other.others:
            return False
        return len(self.stars) != len(other.stars) or self.stars == other.stars


def name_by_folder(path: str, pattern: str) -> Callable[[str], Match | None]:
    """Return a function that names a case by the part of its folder that differs between cases."""
    depth = pattern.count("/") + 1
    prefix = public_name(fixed_folder(path)[0].rstrip("/"))

    def name(match: str) -> Match:
        folder = public_name(match).rsplit("/", depth)[0]
        return Match(folder[len(prefix) :].strip("/") or folder.rsplit("/", 1)[-1])

    return name


def name_by_stars(path: str) -> Callable[[str], Match | None]:
    """Return a function that names a case by the texts that match the stars of a pattern.

    Stars that follow the same word must match the same text; a path without that has no name
    (None). The name joins the texts of all other stars. Equal texts are repeated, and an empty text
    keeps its place between two: otherwise two scans could share a name. Only a file that is named
    as its folder (``*/*_t1.nii``) adds nothing. If every star matches an empty text, the file names
    the case.

    Examples
    --------
    >>> name = name_by_stars("sub-*/ses-*/sub-*_T1w.nii")
    >>> name("sub-01/ses-a/sub-01_T1w.nii").name
    '01/a'
    >>> name("sub-1/ses-1/sub-1_T1w.nii").name, name("sub-01/ses-a/sub-02_T1w.nii")
    ('1/1', None)
    >>> name_by_stars("*/*_t?.nii")("p1/p1_t1.nii")
    Match(name='p1', stars=('p1',), others=(('?', '1'),))
    """
    groups: dict[str, int] = {}
    others: list[str] = []
    stars = 0
    called_alike = _FILE_AS_FOLDER.search(path.rstrip("/")) is not None
    file = 0
    before, rest = fixed_folder(path.rstrip("/"))
    expression = re.escape(before)
    for part in re.split(r"((?<!\[)[*?]|\[[^]]+\])", rest):
        if part == "*":
            word = re.search(r"[^\W_]+[\W_]*$", before.rpartition("/")[2])
            if word and word[0] in groups:
                expression += rf"(?P=s{groups[word[0]]})"
            else:
                stars += 1
                groups[word[0] if word else f"/{stars}"] = stars
                file = stars - 1 if before == "/" else file
                expression += rf"(?P<s{stars}>[^/]*)"
            before = ""
        elif WILDCARD.match(part):
            one = "[^/]" if part == "?" else part.replace("[!", "[^", 1)
            expression += f"(?P<o{len(others)}>{one})"
            others.append(part)
        else:
            before = literal_name(part)
            expression += re.escape(before)

    def name(match: str) -> Match | None:
        if (parts := re.search(f"{expression}$", match)) is None:
            return None
        texts = [parts[f"s{star}"] for star in range(1, stars + 1)]
        wildcards = tuple((part, parts[f"o{number}"]) for number, part in enumerate(others))
        # One text less than in other names: no other match has this name.
        if called_alike and texts[file] == texts[file - 1]:
            del texts[file]
        case = "/".join(texts).strip("/") or plain_name(public_name(match))
        return Match(case, tuple(texts), wildcards)

    return name


def _first_paths(data: Any) -> list[str]:
    for key, value in data.items() if _is_mapping(data) else ():
        if type(value) is str and key != CASE:  # most are: there may be a million of them
            return [(public_name(value) if ":" in value else value).rstrip("/")]
        sources = value if isinstance(value, (list, tuple)) else [value]
        sources = [v.name if isinstance(v, Volume) and v.located_source else v for v in sources]
        if key != CASE and sources and all(isinstance(one, (str, os.PathLike)) for one in sources):
            return [public_name(os.fspath(one)).rstrip("/") for one in sources]
    return []


def _apart(folders: Sequence[str]) -> list[str]:
    """Return each folder without those that all of them begin and end with; all end in a slash."""
    head = posixpath.commonprefix([min(folders), max(folders)]).rfind("/") + 1
    rests = [f"/{folder[head:]}" for folder in folders]
    tail = min(rests, key=len)
    while not all(map(str.endswith, rests, repeat(tail))):
        tail = tail[tail.index("/", 1) :]
    return [rest[1 : -len(tail)] for rest in rests]


# Folders of the run that saved a state, with the folders of the same data in this run.
FOLDERS: ContextKey[Mapping[str, str] | None] = ContextKey(None)


def _plain_place(place: str | os.PathLike[str]) -> str:
    text = absolute_place(place)
    return text.rstrip("/") if is_url(text) else text


class PlaceIdentity:
    """Normalizes paths and URLs for states: one spelling, in the folder of the saved state."""

    def __init__(self) -> None:
        pairs = [(_plain_place(here), before) for before, here in (FOLDERS.get() or {}).items()]
        # The innermost first.
        self._pairs = sorted(pairs, key=lambda pair: -len(pair[0]))

    def of(self, value: Any) -> str:
        """Return the identity of a value of a case: its place, its name, or its type."""
        if isinstance(value, str):  # first: the other check takes ten times as long
            # A text without a slash may be a name, which does not depend on the folder.
            return self.of_place(value) if "/" in value else value
        if isinstance(value, os.PathLike):
            return self.of_place(os.fspath(value))
        return type(value).__name__

    def of_place(self, place: str) -> str:
        """Return the identity of a path or URL."""
        # Most are spelled so already, and there may be a million of them.
        has_other_spelling = "//" in place or "/." in place or ":" in place or place[-1:] == "/"
        if has_other_spelling or place[:1] in "~.":
            place = _plain_place(place)
        elif place[0] != "/":
            place = os.path.join(os.getcwd(), place)
        for here, before in self._pairs:
            if place == here or place.startswith(f"{here}/"):
                return _plain_place(before) + place[len(here) :]
        return place
