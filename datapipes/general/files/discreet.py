"""A file of somebody else's file system, whose errors quote what it was opened with."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ....volumes.stores.location import remote_errors


class DiscreetFile:
    """Does what the file does; what fails in it arrives as an error without secrets.

    Parameters
    ----------
    file
        Opened, for bytes or text.
    url
        Where.
    options
        What it was opened with: their values are cut out of messages.
    """

    def __init__(self, file: Any, url: str, options: Mapping[str, Any]) -> None:
        self._file = file
        self._place = (url, options)

    def __getattr__(self, name: str) -> Any:
        if name in ("_file", "_place"):  # a copy is asked for these before it has them
            raise AttributeError(name)
        with self._errors():
            value = getattr(self._file, name)
        return self._guarded(value) if callable(value) else value

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._errors():
            item = next(self._file, None)  # of a file, which yields lines
        if item is None:
            raise StopIteration
        return item

    def __enter__(self) -> DiscreetFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            with self._errors():
                return call(*args, **kwargs)

        return guarded

    @contextmanager
    def _errors(self) -> Iterator[None]:
        passed: Exception | None = None
        with remote_errors(*self._place):
            try:
                yield
            except (AttributeError, io.UnsupportedOperation) as error:
                passed = error  # what a file cannot do is asked by trying
            except ValueError as error:
                if not getattr(self._file, "closed", False):
                    raise
                passed = error  # it was closed before: nothing of the store's
        if passed is not None:
            raise passed
