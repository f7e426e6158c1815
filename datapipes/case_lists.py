"""Lists of cases: Decathlon's and tables; sources that find their cases; the pipe of a place."""

from __future__ import annotations

import csv
import io
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import BadManifest, LeadsOutside, SampleError, VolumeNotFound
from ..core.redact import RedactedDict
from ..core.sample import parse_json
from ..core.validate import is_empty_cell
from ..graph import is_pipe
from ..storage.location import absolute_place, is_url, public_name
from ..volumes import find_volumes, is_by_columns, is_glob, is_volume, matches_volumes
from ..volumes.catalog.manifest import document_at, folder_of
from .case_names import CASE
from .cases import FindsCases, FromCases, FromManifest, ListCases

Cases = list[dict[str, Any]]
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_FILE_NAME = re.compile(r"[^\s]*[^\s./]\.[A-Za-z][A-Za-z0-9]{1,5}/?")


class CaseFinder(FindsCases, FromCases):
    """Cases of a layout: looked for when the pipe is made, and at the beginning of each pass."""

    def __init__(self, path: str | os.PathLike[str], storage_options: Any = None) -> None:
        self.location = absolute_place(path)
        self.storage_options = RedactedDict(storage_options or {})
        super().__init__([{}])  # which says where the user wrote it
        self._listing.cases = None
        self.listing()

    @property
    def cases(self) -> Any:
        """The cases of this pass."""
        return self.listing()

    @cases.setter
    def cases(self, cases: Any) -> None:
        self._listing.cases = cases

    def describe(self) -> str:
        return f"{self.form_name}({public_name(self.location)!r}, {len(self.cases)} cases)"


class FromDecathlon(CaseFinder):
    """Begin a chain with the cases of a Medical Segmentation Decathlon, or of a list like it.

    Files of which the name begins with a dot, such as macOS's ``._case.nii.gz``, are left out.

    Parameters
    ----------
    path
        Path or URL of its ``dataset.json``, or its folder; files are relative to that folder.
    part
        Which list of it: ``"training"``, ``"test"``, or another that it has.
    storage_options
        For fsspec, for the list; give them to ``open_volume()`` for the volumes.

    Raises
    ------
    VolumeNotFound
        There is no such file.
    SampleError
        It has no such list, or the list has no cases.
    LeadsOutside
        A remote list names a file that is not below its folder.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = pathlib.Path(folder, "dataset.json")
    ...     entry = {"image": "./imagesTr/la_7.nii.gz", "label": "./labelsTr/la_7.nii.gz"}
    ...     _ = place.write_text(json.dumps({"training": [entry]}))
    ...     [sample.case for sample in from_decathlon(place)]
    ['la_7']
    """

    form_name = "from_decathlon"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        part: str = "training",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.part = part
        super().__init__(path, storage_options)

    def look(self) -> Cases:
        if not is_url(self.location) and os.path.isdir(self.location):
            self.location = os.path.join(self.location, "dataset.json")
        document = read_json(self.location, self.storage_options)
        is_mapping = isinstance(document, Mapping)
        entries = document.get(self.part) if is_mapping else None
        if not isinstance(entries, Sequence) or isinstance(entries, str):
            items = document.items() if is_mapping else ()
            lists = [k for k, v in items if isinstance(v, list) and v]
            msg = f"{public_name(self.location)} has no list {self.part!r}"
            do = f"Give part= as one of {', '.join(map(repr, lists))}." if lists else ""
            raise SampleError(msg, do=do)
        cases = [{"image": one} if isinstance(one, str) else one for one in entries]
        entries = [case for case in cases if isinstance(case, Mapping) and not _is_hidden(case)]
        return _with_places(entries, self.location, f"the list {self.part!r}")


class FromTable(CaseFinder):
    r"""Begin a chain with the rows of a table: each column is a key.

    Cells that name a file of the table's folder, or a URL, become volumes. Numbers become numbers,
    other text is kept. An empty cell is a key that the case lacks. The column ``case`` names the
    cases. ``open_volume()`` opens text with a dot or a slash as a path. If a column has other such
    text, name the columns of paths in its ``keys=``.

    Parameters
    ----------
    path
        Path or URL of a ``.csv``, ``.tsv``, ``.json`` (a list of mappings) or ``.jsonl`` file.
    storage_options
        As in ``from_decathlon``.

    Raises
    ------
    VolumeNotFound, SampleError, LeadsOutside
        As in ``from_decathlon``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = pathlib.Path(folder, "cases.csv")
    ...     _ = place.write_text("case,image,age\nanna,scans/a.nii.gz,61\n")
    ...     [(sample.case, sample["age"]) for sample in from_table(place)]
    [('anna', 61)]
    """

    form_name = "from_table"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(path, storage_options)

    def look(self) -> Cases:
        kind = public_name(self.location).lower().rpartition(".")[2]
        text = _text(self.location, self.storage_options)
        if kind in ("json", "jsonl"):
            rows = _rows_of_json(text, kind, public_name(self.location))
        elif kind in ("csv", "tsv"):
            name = public_name(self.location)
            try:
                rows = _rows_of_text(text, "\t" if kind == "tsv" else ",", name)
            except csv.Error as error:
                do = f"A cell has at most {csv.field_size_limit()} letters: see the quotes before."
                raise SampleError(f"{name} is no table: {error}", do=do) from None
        else:
            msg = f"{public_name(self.location)} is no table: its name ends in .{kind}"
            raise SampleError(msg, do="Write .csv, .tsv, .json or .jsonl.")
        return _with_places(rows, self.location, "the table")


def _is_hidden(case: Mapping[str, Any]) -> bool:
    places = [place for value in case.values() for place in _each(value)]
    return any(posixpath.basename(place.replace("\\", "/")).startswith(".") for place in places)


def _each(value: Any) -> list[str]:
    """Return the texts of a cell, which may be a list of them."""
    several = value if isinstance(value, (list, tuple)) else [value]
    return [one for one in several if isinstance(one, str)]


def _with_places(cases: Sequence[Mapping[str, Any]], base: str, what: str) -> Cases:
    """Return the cases with paths as seen from the list that names them."""
    if not cases:
        raise SampleError(f"{what} of {public_name(base)} has no cases")
    return [{key: _with_place(key, value, base) for key, value in case.items()} for case in cases]


def _with_place(key: str, value: Any, base: str) -> Any:
    if isinstance(value, (list, tuple)) and value and len(_each(value)) == len(value):
        return [_with_place(key, one, base) for one in value]
    if not isinstance(value, str) or key == CASE or is_empty_cell(value):
        return value
    # An existing file, or a name like that of a file; other text is kept.
    is_place = is_url(value) or _FILE_NAME.fullmatch(value) is not None
    if not is_place and not is_url(base):
        is_place = os.path.exists(os.path.join(folder_of(base), value))
    return place_in(value, base) if is_place else value


def place_in(name: str, base: str) -> str:
    """Return the path or URL of a file that a list names; a remote list names files below it."""
    if not is_url(base):
        return name if is_url(name) else os.path.normpath(os.path.join(folder_of(base), name))
    below = posixpath.normpath(name)
    if is_url(name) or below.startswith(("/", "..")):
        msg = f"{public_name(base)} names {public_name(name)}, which does not lie below it"
        raise LeadsOutside(msg, do="Copy the list to a local disk if you trust it.")
    return f"{folder_of(base)}{below}"


def read_json(place: str, options: Mapping[str, Any] | None = None) -> Any:
    """Return the contents of a local or remote JSON file; refuse one that is too large."""
    text = _text(place, options or {})
    try:
        return parse_json(text)
    except ValueError as error:
        raise SampleError(f"{public_name(place)} is no JSON: {error}") from None


def _rows_of_json(text: str, kind: str, name: str) -> list[dict[str, Any]]:
    lines = text.split("\n") if kind == "jsonl" else [text]
    rows: Any = []
    for number, line in enumerate(lines, 1):
        try:
            rows += [parse_json(line)] if line.strip() else []
        except ValueError as error:
            where = f"line {number} of {name}" if kind == "jsonl" else name
            raise SampleError(f"{where} is no JSON: {error}") from None
    if kind == "json":
        (rows,) = rows or (None,)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        msg = f"{name} is no list of mappings"
        raise SampleError(msg, do="Of one with several lists: vp.from_decathlon(place, part=).")
    return [{k: v for k, v in row.items() if not is_empty_cell(v)} for row in rows]


def _rows_of_text(text: str, separator: str, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table, without cells that are empty."""
    first = text.partition("\n")[0]
    if separator not in first:  # spreadsheets write another one where a comma is part of numbers
        separator = next((other for other in ";\t" if other in first), separator)
    lines = io.StringIO(text, newline="")  # a cell in quotes may hold line ends
    table = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    columns = [column.strip() for column in next(table, [])]
    for column in columns:
        if _FILE_NAME.fullmatch(column):
            msg = f"the first line of {name} names a file, {column}, and not the columns"
            raise SampleError(msg, do='Write the keys above it: "image,label".')
        if columns.count(column) > 1:
            raise SampleError(f"{name} has several columns {column!r}", do="Rename one.")
    rows = []
    for cells in table:
        if len(cells) > len(columns):
            msg = f"line {table.line_num} of {name} has {len(cells)} cells for {len(columns)} "
            raise SampleError(f"{msg}columns", do='Put "quotes" around a cell with the separator.')
        row = zip(columns, cells, strict=False)  # the last ones may be missing
        if any(cells):
            rows.append({k: _cell(k, text) for k, text in row if k and not is_empty_cell(text)})
    return rows


def _cell(column: str, text: str) -> Any:
    """Return a number where the text is written as one; ``007`` and ``1_000`` are names."""
    if column == CASE or not _NUMBER.fullmatch(text):
        return text
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _text(place: str, options: Mapping[str, Any]) -> str:
    """Return a document, UTF-8, with or without a mark of the byte order."""
    try:
        return document_at(place, options).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SampleError(f"{public_name(place)} is not in UTF-8", do="Save it as UTF-8.") from None


from_decathlon, from_table = FromDecathlon, FromTable


def pipe_of(cases: Any, storage_options: Mapping[str, Any] | None) -> Any:
    """Return a pipe of the cases that :func:`~voxpipe.check` takes."""
    if isinstance(cases, (str, os.PathLike)):
        return _pipe_of_place(os.fspath(cases), storage_options)
    if is_pipe(cases):
        return cases
    case_list = list(cases)
    if not case_list:
        raise no_cases()
    return FromCases(case_list)


def _pipe_of_place(place: str, options: Mapping[str, Any] | None) -> Any:
    if is_manifest(place):
        try:
            return FromManifest(place, storage_options=options)
        except BadManifest:
            if (pipe := _pipe_of_json(place, options)) is None:
                raise
            return pipe
    if public_name(place).lower().endswith((".csv", ".tsv", ".jsonl")):
        return FromTable(place, storage_options=options)
    # Without a single star nothing names a case: such volumes are called by their files.
    names_cases = is_glob(place) and "*" in place and "**" not in place
    if names_cases and matches_volumes(place, options):
        return ListCases(image=place, storage_options=options)
    if is_volume(place):
        return FromCases([{"image": place}])
    by_case = find_volumes(place, options)
    return FromCases([{"case": case, **volumes} for case, volumes in by_case.items()])


def _pipe_of_json(place: str, options: Mapping[str, Any] | None) -> Any:
    """Return the pipe of a JSON file that is a table, or a list of Decathlon; else None."""
    document = None if is_by_columns(place) else read_json(place, options)
    if isinstance(document, list):
        return FromTable(place, storage_options=options)
    is_list = isinstance(document, dict) and isinstance(document.get("training"), list)
    return FromDecathlon(place, storage_options=options) if is_list else None


def is_manifest(place: str) -> bool:
    """Whether the name of a file is that of a manifest; other lists end in .json, too."""
    return place.lower().endswith(".json") or is_by_columns(place)


def no_cases() -> VolumeNotFound:
    """Return the error of a list without cases."""
    return VolumeNotFound("there are no cases.", do="Check the list or the patterns.")
