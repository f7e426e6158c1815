"""What pipes that reach storage share: hidden options, one retry policy, errors without secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from ...core.redact import Redacted, public_value
from ...storage.location import Secrets, public_name, remote_errors
from ...storage.retry import Attempts, default_retry, retried_here
from ..datapipe import DataPipe

T = TypeVar("T")


class Connected(DataPipe):
    """A pipe with options that may hold credentials: they are shown nowhere, nor told apart.

    torchdata gives them as plain keywords; ``storage_options=`` takes them, too.
    """

    plain_arguments: ClassVar[frozenset[str]] = frozenset()
    """Keywords that hold no credentials."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Connected:
        """Remember where the pipe was written, without its options and without queries of URLs."""
        shown = {key: value for key, value in kwargs.items() if key in cls.plain_arguments}
        if len(shown) < len(kwargs):
            shown["storage_options"] = Redacted(kwargs)
        made = super().__new__(
            cls, *map(public_value, args), **{k: public_value(v) for k, v in shown.items()}
        )
        assert isinstance(made, Connected)
        return made


def options_of(given: Mapping[str, Any]) -> Redacted:
    """Return connection options, those in ``storage_options`` and those beside it."""
    beside = {key: value for key, value in given.items() if key != "storage_options"}
    return Redacted({**(given.get("storage_options") or {}), **beside})


def tried(url: str, options: Mapping[str, Any], doing: str, call: Callable[[], T]) -> T:
    """Return what ``call`` returns; what fails for a moment is tried again, until the deadline.

    Raises
    ------
    VolumeNotFound
        There is nothing at the URL.
    AccessDenied
        The store refuses.
    StoreUnavailable
        It kept failing.
    VolumeReadError
        Any other failure; no message holds a secret.
    """
    name = public_name(url)
    with remote_errors(url, options, doing):
        attempts = Attempts(default_retry(), f"{doing} {name}", Secrets(options, url).describe)
        return retried_here(call, attempts)
