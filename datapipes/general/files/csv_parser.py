"""Rows of CSV files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from ....graph import Pipe
from ...forms import offered
from .text import TextPipe


class _Rows(TextPipe):
    # As the module csv asks for: a quoted field may hold ends of lines.
    newline: ClassVar[str] = ""


@offered("parse_csv")
class CSVParser(_Rows):
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
    SampleError
        The parent yields something else than pairs.

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
        super().__init__(
            parent,
            skip_lines=skip_lines,
            decode=decode,
            encoding=encoding,
            errors=errors,
            return_path=return_path,
            **fmtparams,
        )
        self.as_tuple = as_tuple

    def of_lines(self, lines: Iterator[Any]) -> Iterator[Any]:
        """Return the rows."""
        import csv

        rows = csv.reader(lines, **self.fmtparams)
        return map(tuple, rows) if self.as_tuple else rows


@offered("parse_csv_as_dict")
class CSVDictParser(_Rows):
    r"""Yield each row of each CSV file as a dict by the names in its first row; files are closed.

    Parameters
    ----------
    parent
        Yields ``(path, stream)``, of bytes or of text.
    skip_lines
        Lines left out at the beginning of each file, before the names.
    decode, encoding, errors
        Whether and how bytes become text; what cannot be decoded is left out by default.
    return_path
        Whether each row comes with the path of its file.
    **fmtparams
        Of ``csv.DictReader``: ``fieldnames``, ``delimiter``, ...

    Raises
    ------
    StreamError
        A file cannot be decoded, or is no CSV.
    SampleError
        The parent yields something else than pairs.

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
