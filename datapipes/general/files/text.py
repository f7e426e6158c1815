"""Lines and rows of open files: what the pipes that read text share."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from ....core.errors import StreamError
from ....graph import Pipe, Traits
from ...datapipe import DataPipe
from .streams import janitor, pair_of


class TextPipe(DataPipe):
    """A pipe that yields several things of each file, and closes the file.

    Parameters
    ----------
    parent
        Yields ``(path, stream)``; the stream may be of bytes or of text.
    skip_lines
        Lines left out at the beginning of each file.
    decode
        Whether bytes become text; text stays text.
    encoding, errors
        How, as of ``bytes.decode``.
    return_path
        Whether each item is a pair with the path of its file.
    **fmtparams
        Of what takes the lines apart, for a pipe that yields rows.
    """

    # What it yields holds no open file.
    traits: ClassVar[Any] = Traits(plain=True)

    def __init__(
        self,
        parent: Pipe,
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = False,
        **fmtparams: Any,
    ) -> None:
        super().__init__()
        if skip_lines < 0:
            msg = f"'skip_lines' is required to be a positive integer, got {skip_lines}"
            raise ValueError(msg)
        self.parent = parent
        self.skip_lines = skip_lines
        self.decode = decode
        self.encoding, self.errors = encoding, errors
        self.return_path = return_path
        self.fmtparams = fmtparams

    newline: ClassVar[str] = "\n"
    """Where lines end, as of ``open``: "" keeps the ends that a quoted field may hold."""

    def of_lines(self, lines: Iterator[Any]) -> Iterator[Any]:
        """Return what a file gives, of its lines."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        """Yield what each file gives; a file is closed at its end, or when nobody goes on."""
        for item in self.parent:
            path, stream = pair_of(self, item)
            del item
            try:
                lines = lines_of(stream, self.decode, self.encoding, self.errors, self.newline)
                found = self.of_lines(itertools.islice(lines, self.skip_lines, None))
                for each in _named(path, found, self):
                    yield (path, each) if self.return_path else each
            finally:
                _close(stream)


def _named(path: Any, found: Iterator[Any], pipe: DataPipe) -> Iterator[Any]:
    """Yield what was found; what cannot be decoded or parsed names its file."""
    import csv

    try:
        yield from found
    except (UnicodeError, csv.Error) as error:
        do = "Check encoding= and errors=, and the form of the file."
        raise StreamError(f"{path} cannot be read: {error}.", do=do).at(pipe.origin) from error


def lines_of(stream: Any, decode: bool, encoding: str, errors: str, newline: str) -> Iterator[Any]:
    r"""Return the lines of a stream, with their ends.

    Text is split after it is decoded: half of the two bytes of a UTF-16 letter may look like the
    end of a line.

    Examples
    --------
    >>> stream = io.BytesIO("a\nb\n".encode("utf-16"))
    >>> list(lines_of(stream, True, "utf-16", "strict", "\n"))
    ['a\n', 'b\n']
    """
    if decode and _is_binary(stream):
        return iter(io.TextIOWrapper(stream, encoding=encoding, errors=errors, newline=newline))
    if not decode:
        return iter(stream)
    return (x.decode(encoding, errors) if isinstance(x, bytes) else x for x in stream)


def _is_binary(stream: Any) -> bool:
    """Whether a stream gives bytes, and can be asked for some; a list of lines cannot."""
    asked: Callable[..., Any] | None = getattr(stream, "readable", None)
    return asked is not None and isinstance(stream.read(0), bytes)


def _close(stream: Any) -> None:
    janitor(stream)
    if hasattr(stream, "close"):
        stream.close()
