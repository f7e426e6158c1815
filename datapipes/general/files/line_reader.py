"""Lines of text files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....graph import Pipe
from ...forms import offered
from .text import TextPipe


@offered("readlines")
class LineReader(TextPipe):
    r"""Yield ``(path, line)`` for each line of each ``(path, stream)``; files are closed.

    Parameters
    ----------
    parent
        Yields ``(path, stream)``, of bytes or of text.
    skip_lines
        Lines left out at the beginning of each file.
    strip_newline
        Whether lines lose their ends.
    decode
        Whether bytes become text.
    encoding, errors
        How, as of ``bytes.decode``; by default what cannot be decoded is left out.
    return_path
        Whether each line comes with the path of its file.

    Raises
    ------
    StreamError
        A file cannot be decoded (``errors="strict"``).
    SampleError
        The parent yields something else than pairs.

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
        super().__init__(
            parent,
            skip_lines=skip_lines,
            decode=decode,
            encoding=encoding,
            errors=errors,
            return_path=return_path,
        )
        self.strip_newline = strip_newline

    def of_lines(self, lines: Iterator[Any]) -> Iterator[Any]:
        """Return the lines, without their ends if so wanted."""
        if not self.strip_newline:
            return lines
        return (x.strip("\r\n") if isinstance(x, str) else x.strip(b"\r\n") for x in lines)
