"""Lines and rows of open files: what the pipes that read text share."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from ...core.errors import StreamError, add_location
from ...graph import Pipe, Traits
from ..datapipe import DataPipe, PerItem
from ..forms import offered
from .streams import janitor, named_stream, pair_of

_ENDED = object()


class _TextPipe(DataPipe):
    """A pipe that yields several things of each file, and closes the file."""

    # What it yields holds no open file.
    traits: ClassVar[Any] = Traits(plain=True)

    def __init__(
        self,
        parent: Pipe,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = False,
        **fmtparams: Any,
    ) -> None:
        super().__init__()
        if skip_lines < 0:
            raise ValueError(f"'skip_lines' is required to be a positive integer, got {skip_lines}")
        self.parent = parent
        self.skip_lines, self.return_path, self.fmtparams = skip_lines, return_path, fmtparams
        self.decode, self.encoding, self.errors = decode, encoding, errors

    newline: ClassVar[str] = ""
    """Where lines end, as of ``open``: "" keeps the ends that a quoted field may hold, for csv."""

    def of_lines(self, lines: Iterator[Any]) -> Iterator[Any]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        import csv

        for item in self.parent:
            path, stream = pair_of(self, item)
            del item
            try:
                lines = lines_of(stream, self.decode, self.encoding, self.errors, self.newline)
                found = self.of_lines(itertools.islice(lines, self.skip_lines, None))
                while True:
                    try:
                        each = next(found, _ENDED)
                    except (UnicodeError, csv.Error) as error:
                        do = "Check encoding= and errors=, and the form of the file."
                        msg = f"{path} cannot be read: {error}."
                        raise StreamError(msg, do=do).at(self.origin) from error
                    if each is _ENDED:
                        break
                    yield (path, each) if self.return_path else each
            finally:  # at the end, or when nobody goes on
                janitor(stream)
                if hasattr(stream, "close"):
                    stream.close()


def lines_of(stream: Any, decode: bool, encoding: str, errors: str, newline: str) -> Iterator[Any]:
    r"""Return the lines of a stream, with their ends.

    Text is split after it is decoded: half of the two bytes of a UTF-16 letter may look like the
    end of a line.
    """
    # A list of lines cannot be asked for bytes.
    if decode and hasattr(stream, "readable") and isinstance(stream.read(0), bytes):
        return iter(io.TextIOWrapper(stream, encoding=encoding, errors=errors, newline=newline))
    if not decode:
        return iter(stream)
    return (x.decode(encoding, errors) if isinstance(x, bytes) else x for x in stream)


@offered("parse_csv")
class CSVParser(_TextPipe):
    r"""Yield each row of each CSV file as a list of texts; files are closed.

    Parameters
    ----------
    parent
        Yields ``(path, stream)``, of bytes or of text.
    skip_lines
        Lines left out at the beginning of each file.
    decode, encoding, errors
        Whether and how bytes become text; what cannot be decoded is left out by default.
    return_path
        Whether each row comes with the path of its file.
    as_tuple
        Whether rows are tuples.
    **fmtparams
        Of ``csv.reader``: ``delimiter``, ``quotechar``, ...

    Raises
    ------
    StreamError
        A file cannot be decoded, or is no CSV.

    Examples
    --------
    >>> import io
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> files = [("a.csv", io.BytesIO(b'key;item\na;"1\n2"\n'))]
    >>> list(IterableWrapper(files, deepcopy=False).parse_csv(delimiter=";"))
    [['key', 'item'], ['a', '1\n2']]
    """

    def __init__(
        self,
        parent: Pipe,
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = False,
        as_tuple: bool = False,
        **fmtparams: Any,
    ) -> None:
        super().__init__(parent, skip_lines, decode, encoding, errors, return_path, **fmtparams)
        self.as_tuple = as_tuple

    def of_lines(self, lines: Iterator[Any]) -> Iterator[Any]:
        """Return the rows."""
        import csv

        rows = csv.reader(lines, **self.fmtparams)
        return map(tuple, rows) if self.as_tuple else rows


@offered("parse_csv_as_dict")
class CSVDictParser(_TextPipe):
    r"""Yield each row of each CSV file as a dict by the names in its first row; files are closed.

    Parameters
    ----------
    parent, skip_lines, decode, encoding, errors, return_path
        As of :class:`CSVParser`; the lines that are left out come before the names.
    **fmtparams
        Of ``csv.DictReader``: ``fieldnames``, ``delimiter``, ...

    Examples
    --------
    >>> import io
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> files = [("a.csv", io.StringIO("key,item\na,1\nb,2\n"))]
    >>> list(IterableWrapper(files, deepcopy=False).parse_csv_as_dict())
    [{'key': 'a', 'item': '1'}, {'key': 'b', 'item': '2'}]
    """

    def of_lines(self, lines: Iterator[Any]) -> Iterator[Any]:
        """Return the rows as dicts."""
        import csv

        return iter(csv.DictReader(lines, **self.fmtparams))


@offered("parse_json_files")
class JsonParser(PerItem):
    """Yield ``(path, contents)`` for each ``(path, stream)`` of JSON; files are closed.

    Parameters
    ----------
    parent
        Yields ``(path, stream)``, of bytes or of text.
    **kwargs
        Of ``json.loads``.

    Raises
    ------
    json.JSONDecodeError
        A file is no JSON; a note says which.

    Examples
    --------
    >>> import io
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> files = [("a.json", io.BytesIO(b'{"spacing": [1, 1, 2.5]}'))]
    >>> list(IterableWrapper(files, deepcopy=False).parse_json_files())
    [('a.json', {'spacing': [1, 1, 2.5]})]
    """

    traits: ClassVar[Any] = Traits(per_item=True, plain=True)

    def __init__(self, parent: Pipe, **kwargs: Any) -> None:
        super().__init__(parent)
        self.kwargs = kwargs

    def apply(self, item: Any) -> tuple[str, Any]:
        """Return the contents of one file."""
        name, stream = named_stream(self, item)
        try:
            data = stream.read()
        finally:
            stream.close()
        try:
            return name, json.loads(data, **self.kwargs)
        except (ValueError, RecursionError) as error:
            raise add_location(error, self.origin, name)  # noqa: B904  the very same error


@offered("readlines")
class LineReader(_TextPipe):
    r"""Yield ``(path, line)`` for each line of each ``(path, stream)``; files are closed.

    Parameters
    ----------
    parent, skip_lines, encoding, errors, return_path
        As of :class:`CSVParser`; each line comes with the path of its file by default.
    strip_newline
        Whether lines lose their ends.
    decode
        Whether bytes become text.

    Raises
    ------
    StreamError
        A file cannot be decoded (``errors="strict"``).

    Examples
    --------
    >>> import io
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> files = [("a.txt", io.StringIO("one\ntwo\r\n")), ("b.txt", io.StringIO("three"))]
    >>> list(IterableWrapper(files, deepcopy=False).readlines())
    [('a.txt', 'one'), ('a.txt', 'two'), ('b.txt', 'three')]
    """

    def __init__(
        self,
        parent: Pipe,
        *,
        skip_lines: int = 0,
        strip_newline: bool = True,
        decode: bool = False,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = True,
    ) -> None:
        super().__init__(parent, skip_lines, decode, encoding, errors, return_path)
        self.strip_newline = strip_newline

    newline: ClassVar[str] = "\n"

    def of_lines(self, lines: Iterator[Any]) -> Iterator[Any]:
        """Return the lines, without their ends if so wanted."""
        if not self.strip_newline:
            return lines
        return (x.strip("\r\n") if isinstance(x, str) else x.strip(b"\r\n") for x in lines)


def join_lines(lines: Sequence[str]) -> str:
    """Return lines as one text, with ends of lines in between."""
    return "\n".join(lines)


@offered("lines_to_paragraphs")
class ParagraphAggregator(DataPipe):
    """Yield ``(path, paragraph)``: lines of one file up to an empty one, joined.

    Parameters
    ----------
    parent
        Yields ``(path, line)``.
    joiner
        Makes a paragraph of a list of lines; by default ends of lines come in between.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> lines = [("a", "one"), ("a", "two"), ("a", ""), ("a", "three"), ("b", "four")]
    >>> list(IterableWrapper(lines).lines_to_paragraphs(" ".join))
    [('a', 'one two'), ('a', 'three'), ('b', 'four')]
    """

    @property
    def traits(self) -> Traits:
        """Runs a function, if it was given one."""
        return Traits(runs_user_code=self.joiner is not join_lines)

    def __init__(self, parent: Pipe, joiner: Callable[[list[Any]], Any] = join_lines) -> None:
        super().__init__()
        self.parent = parent
        self.joiner = joiner

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        held: list[Any] = []
        of = None
        for item in self.parent:
            path, line = pair_of(self, item)
            if held and (not line or path != of):
                yield of, self.joiner(held)
                held = []
            of = path
            if line:
                held.append(line)
        if held:
            yield of, self.joiner(held)
