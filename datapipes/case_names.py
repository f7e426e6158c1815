"""Names for cases that were given none, no two alike; the identity of their files in states."""

from __future__ import annotations

import operator
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from ..core.context import ContextKey
from ..core.redact import public_name
from ..storage.location import WILDCARD, absolute_place, fixed_folder, is_url, literal_name
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
    # Another ending than a format's may be a part of the name: 1.2.840, ct.v2.
    ends = ends or _suffixes()
    names = [plain_name(p) if p.lower().endswith(ends) else posixpath.basename(p) for p in paths]
    if len(names) == 1:
        return names[0]
    # Files of the channels of one volume: BraTS_001_t1 and BraTS_001_t2, ct_07_0000 and _0001.
    return posixpath.commonprefix(names).rpartition("_")[0] or names[0]


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
        folders = _apart([path.split("/")[:-1] for path in paths])
        alone = [folder != "" and not count[folder] for folder in folders]
        is_apart = all(alone) and len(set(folders)) == len(folders)
        for index, folder in zip(places, folders, strict=True):
            names[index] = folder if is_apart else f"{name}#{index}"
            count[names[index]] += 1
    return names


class CaseNames:
    """The names of a list of cases; copies of a pipe share them, and a pickle has none."""

    def __init__(self) -> None:
        self._values: list[Any] = []  # the first of each case
        self.of_number: Callable[[int], str] | None = None
        """Returns the name of a case; None before :meth:`find`."""

    def __reduce__(self) -> tuple[type[CaseNames], tuple[()]]:
        return CaseNames, ()

    def find(self, cases: Sequence[Any]) -> Callable[[int], str]:
        """Return a function from the numbers of cases to the names of :func:`names_of`."""
        self._values = _first_values(cases)
        self.of_number = _quick_names(cases) or names_of(cases).__getitem__
        return self.of_number

    def forget_others(self, cases: Sequence[Any]) -> None:
        """Forget the names unless a new pass has the same cases."""
        if self.of_number is not None:
            values = _first_values(cases)
            if len(values) != len(self._values) or not all(map(operator.is_, values, self._values)):
                self._values, self.of_number = [], None


def _first_values(cases: Sequence[Any]) -> list[Any]:
    return [next(iter(case.values()), None) if type(case) is dict else case for case in cases]


def _quick_names(cases: Sequence[Any]) -> Callable[[int], str] | None:
    """Return the names of many cases that begin with paths of one kind; None for others."""
    # A hundred thousand of them would take half a second otherwise.
    if {*map(type, cases)} != {dict} or any(CASE in case or not case for case in cases):
        return None
    paths = _first_values(cases)
    keys, kinds = {*map(next, map(iter, cases))}, {*map(type, paths)}
    if len(keys) > 1 or kinds != {str} or re.search("://|/\0", "\0".join([*paths, ""])):
        return None
    ends, files = _suffixes(), {path[path.rfind("/") + 1 :] for path in paths}
    # Files that differ before their first dots have different names, too.
    stems = [path[path.rfind("/") + 1 :].partition(".")[0] for path in paths]
    if len({*stems}) == len(paths):
        usual = {file.partition(".")[2] for file in files}
        is_plain = all(plain_name(f"a.{end}") == "a" and f".{end}".endswith(ends) for end in usual)
        is_plain = is_plain and all(stems)
        return stems.__getitem__ if is_plain else lambda n: name_of(cases[n], n, ends)
    if len(files) > 1:
        return None
    name, folders = name_of(cases[0], 0, ends), [path[: path.rfind("/") + 1] for path in paths]
    head = posixpath.commonprefix([min(folders), max(folders)]).rfind("/") + 1
    rests = [folder[head:-1] for folder in folders]
    backwards = [f"{rest[::-1]}/" for rest in rests]
    tail = posixpath.commonprefix([min(backwards), max(backwards)]).rfind("/") + 1
    names = [rest[: max(0, len(rest) - tail)] for rest in rests]
    is_apart = len({*names, "", name}) == len(names) + 2
    return names.__getitem__ if is_apart else lambda number: f"{name}#{number}"


def is_hidden(path: str, pattern: str) -> bool:
    """Return whether a name in ``path`` begins with a dot that the pattern does not write."""
    patterns = [part for part in pattern.split("/") if part.startswith(".")]
    names = [part for part in path.split("/") if part.startswith(".")]
    return any(not any(fnmatchcase(part, one) for one in patterns) for part in names)


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
            return [public_name(value).rstrip("/")]
        sources = value if isinstance(value, (list, tuple)) else [value]
        sources = [v.name if isinstance(v, Volume) and v.located_source else v for v in sources]
        if key != CASE and sources and all(isinstance(one, (str, os.PathLike)) for one in sources):
            return [public_name(os.fspath(one)).rstrip("/") for one in sources]
    return []


def _apart(folders: list[list[str]]) -> list[str]:
    """Return each path without the folders that all paths begin and end with."""
    head = len(posixpath.commonprefix(folders))
    tails = [parts[head:][::-1] for parts in folders]
    end = len(posixpath.commonprefix(tails))
    return ["/".join(parts[end:][::-1]) for parts in tails]


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
        if isinstance(value, os.PathLike):
            return self.of_place(os.fspath(value))
        if not isinstance(value, str):
            return type(value).__name__
        # A text without a slash may be a name, which does not depend on the folder.
        return self.of_place(value) if "/" in value else value

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
