"""What is asked of a remote store, and whether an answer is that: every client is checked here.

A proxy, a cache or a cut connection gives other bytes than those that were asked for, under a
status that says that all is well. So start, stop and total of an answer, its version and its
length are compared with what was asked for: before anything is allocated for its body where the
client tells, and once more when the body is here.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

# Whole objects of which nothing is known: a chunk of 1024 x 1024 x 256 floats, and no film.
MOST_WHOLE = 1024**3
# Stored chunks may be larger than decoded ones: noise that is compressed, and headers.
_SLACK, _LEAST_WHOLE = 2, 1024**2
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")


class WrongAnswer(OSError):
    """An answer that holds other bytes than those that were asked for."""


class OtherVersion(WrongAnswer):
    """An answer of another version than the one that was asked for.

    Parameters
    ----------
    message
        What is other.
    version
        ETag, size and time of that version; None where nobody tells.
    """

    def __init__(self, message: str, version: tuple[str, int | None, float] | None = None) -> None:
        super().__init__(message)
        self.version = version


class TooLong(OSError):
    """An object of more bytes than anybody needs of what it is."""

    def __init__(self, size: int, most: int) -> None:
        super().__init__(f"it is of {size} bytes, {most} at most")
        self.size, self.most = size, most


class Gone(OtherVersion):
    """No object where there was one before: removed, or hidden by what is on the way."""


class NoRanges(OSError):
    """A server that sends all of an object when asked for a part of it."""


class Head(NamedTuple):
    """What an answer says to hold."""

    start: int
    """First byte."""
    stop: int
    """One past the last byte."""
    total: int | None
    """Bytes of the whole object; None where the answer does not say."""
    etag: str = ""
    """Version of the object; empty where the answer does not say."""
    modified: float = 0.0
    """When the object was written, in seconds since 1970 by the clock of the store; 0.0 where the
    answer does not say."""

    @classmethod
    def parse(cls, content_range: str, length: int, etag: str, modified: float = 0.0) -> Head:
        """Return what headers of HTTP say; ``WrongAnswer`` where they make no sense.

        Parameters
        ----------
        content_range
            Header of a partial answer; empty for a whole one.
        length, etag, modified
            The other headers.

        Examples
        --------
        >>> Head.parse("bytes 4-6/9", 3, "v")
        Head(start=4, stop=7, total=9, etag='v', modified=0.0)
        >>> Head.parse("", 9, "")
        Head(start=0, stop=9, total=9, etag='', modified=0.0)
        """
        if not content_range:
            return cls(0, length, length, etag, modified)
        found = _CONTENT_RANGE.fullmatch(content_range.strip())
        if found is None:
            raise WrongAnswer("the range of an answer makes no sense")
        total = None if found[3] == "*" else int(found[3])
        return cls(int(found[1]), int(found[2]) + 1, total, etag, modified)


class Answer(NamedTuple):
    """The bytes that a store sent."""

    body: Any
    """Bytes-like."""
    head: Head | None = None
    """What it says to hold; None where the client hides it."""


class Asked(NamedTuple):
    """Bytes of one object, and what is known of it.

    Examples
    --------
    >>> Asked("a", 4, 7).check(Head(4, 7, 9))
    >>> Asked("a", -2, None).check(Head(4, 6, 9))
    Traceback (most recent call last):
        ...
    voxpipe.storage.remote_answers.WrongAnswer: it sent bytes 4 to 6 of 9, not 7 to 9
    """

    key: str
    """Below the root of the store."""
    start: int = 0
    """First byte; counted from the end if it is negative."""
    stop: int | None = None
    """One past the last byte; None for the end."""
    etag: str = ""
    """The only version that will do; any if it is empty."""
    modified: float = 0.0
    """When that was written, in seconds since 1970: what tells it where there are no ETags. 0.0 for
    any."""
    size: int | None = None
    """Bytes of the whole object, where that is known."""
    most: int = 0
    """Bytes that a whole object has at most, about; 0 where that is not known."""
    limit: int = 0
    """Bytes of which a whole object must not have more; 0 for no such limit."""

    @property
    def end(self) -> int | None:
        """One past the last byte to ask for of a client that tells nothing before the body."""
        return self.limit + 1 if self.limit and self.is_whole else self.stop

    @property
    def is_whole(self) -> bool:
        """Whether the whole object is asked for, and no range of it."""
        return self.start == 0 and self.stop is None

    @property
    def condition(self) -> str:
        """The ETag for ``If-Match``; a weak one never matches."""
        return "" if self.etag.startswith("W/") else self.etag

    @property
    def range_header(self) -> str:
        """The ``Range`` header of HTTP; empty for everything.

        Examples
        --------
        >>> Asked("a", 3, 5).range_header, Asked("a", -5).range_header, Asked("a").range_header
        ('bytes=3-4', 'bytes=-5', '')
        """
        if self.is_whole:
            return ""
        if self.start < 0:
            return f"bytes={self.start}"
        return f"bytes={self.start}-{'' if self.stop is None else self.stop - 1}"

    def is_of(self, facts: Any) -> bool:
        """Whether the version that is asked for is the one of which a store tells these facts."""
        if self.size not in (None, facts.size):
            return False
        if self.etag and facts.etag:
            return bool(self.etag == facts.etag)
        return not (self.modified and facts.modified) or int(self.modified) == int(facts.modified)

    def check(self, head: Head) -> None:
        """Raise ``WrongAnswer`` unless an answer says to hold what is asked for.

        ``TooLong`` where that is more than the limit.
        """
        if self.limit and head.stop - head.start > self.limit:
            raise TooLong(head.stop - head.start, self.limit)
        if self.etag and head.etag:
            is_other = head.etag != self.etag
        else:  # headers of HTTP tell whole seconds
            known = bool(self.modified and head.modified)
            is_other = known and int(head.modified) != int(self.modified)
        version = (head.etag, head.total, head.modified)
        if is_other:
            raise OtherVersion("it is of another version", version)
        if self.size is not None and head.total not in (None, self.size):
            size = f"{head.total} bytes in all, not {self.size}"
            raise OtherVersion(f"it is of {size}", version)
        total = self.size if head.total is None else head.total
        first, last = self._span(total)
        if last is None:  # neither the object nor the answer says where it ends
            fits = head.start == self.start >= 0 and head.stop > head.start
        else:
            fits = (head.start, head.stop) == (first, last)
        if not fits:
            whole = "" if total is None else f" of {total}"
            raise WrongAnswer(
                f"it sent bytes {head.start} to {head.stop}{whole}, not {first} to {last}"
            )
        most = max(_SLACK * self.most, _LEAST_WHOLE) if self.most else MOST_WHOLE
        if self.stop is None and self.size is None and head.stop - head.start > most:
            raise WrongAnswer(f"it says to be of {head.stop - head.start} bytes, {most} at most")

    def check_body(self, answer: Answer) -> None:
        """Raise ``WrongAnswer`` unless an answer holds what it says, and is what is asked for."""
        length = len(answer.body)
        if answer.head is not None:
            self.check(answer.head)
            expected: int | None = answer.head.stop - answer.head.start
        else:
            first, last = self._span(self.size)
            if 0 < self.limit < length:
                raise TooLong(length, self.limit)
            expected = None if self.size is None or last is None else last - first
            room = -self.start if self.start < 0 else None
            room = room if self.stop is None else self.stop - self.start
            if room is not None and length > room:
                raise NoRanges(f"{length} bytes instead of {room}")
        if expected is not None and length != expected:
            raise WrongAnswer(f"it holds {length} of {expected} bytes")

    def _span(self, total: int | None) -> tuple[int, int | None]:
        """Return first byte and end of the answer; None for an end that nobody knows."""
        if total is None:
            return max(0, self.start), self.stop if self.start >= 0 else None
        first = max(0, total + self.start) if self.start < 0 else min(self.start, total)
        last = total if self.stop is None else min(self.stop, total)
        return first, max(first, last)
