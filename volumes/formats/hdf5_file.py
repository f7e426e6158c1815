"""A remote file as HDF5 may read it: no read waits.

h5py holds one lock for all threads while HDF5 reads a file, and takes it to free any object of its
own. A read that waited for the thread that brings bytes would wait for ever if just that thread
were collecting garbage with an object of h5py in it. So a read of what is not here fails, the bytes
are fetched once HDF5 has been left, and the call is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from ...core.errors import BadHeader
from ...storage.ranges import Span
from ...storage.remote import Piece, RangeFile, RemoteFile

T = TypeVar("T")

# What one call may read: the tables of 100 000 chunks take 8 MB, in nodes scattered over pages.
_MOST_BYTES = 128 * 1024**2


class _NotHere(OSError):
    """What was asked for has to be fetched first."""


class Hdf5File(RangeFile):
    """A file for one thread at a time, read by calls that are made again until all is here.

    Parameters
    ----------
    file
        Behind a URL.
    """

    def __init__(self, file: RemoteFile) -> None:
        super().__init__(file)
        self._name = file.name
        self._brought: dict[Span, Piece] | None = None  # only while a call is made
        self._absent: list[Span] = []

    def run(self, call: Callable[[], T], errors: Callable[[], AbstractContextManager[None]]) -> T:
        """Return what a function of HDF5 returns, which may be called several times.

        Parameters
        ----------
        call
            Asks h5py for something.
        errors
            Returns a context that makes errors of voxpipe of what HDF5 raises.

        Raises
        ------
        BadHeader
            It reads more than fits in memory.
        """
        self._brought = {}
        try:
            while True:
                self._absent.clear()
                try:
                    with errors():
                        found = call()
                except Exception:
                    if not self._absent:
                        raise
                # Also where it returned: HDF5 takes some reads that fail for "there is none".
                if not self._absent:
                    return found
                self._bring(self._absent[0], self._brought)
        finally:
            self._brought = None

    def _bring(self, span: Span, brought: dict[Span, Piece]) -> None:
        if sum(map(len, brought.values())) + span[1] - span[0] > _MOST_BYTES:
            raise BadHeader(
                f"the tables of {self._name} take more than {_MOST_BYTES} bytes.",
                do="Give dataset=, or copy the file to a local disk.",
            )
        brought[span] = super()._fetch([span])[0]

    def _fetch(self, spans: Sequence[Span]) -> list[Piece]:
        if self._brought is None:
            return super()._fetch(spans)
        for span in spans:
            if span not in self._brought:
                self._absent.append(span)
                raise _NotHere(f"bytes {span[0]} to {span[1]} are fetched first")
        return [self._brought[span] for span in spans]
