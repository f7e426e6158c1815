"""Texts without credentials: what stores say may quote the key that they were sent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from .location import public_name

# Options whose values are no secrets, and would make texts unreadable if they were cut out.
_PUBLIC = {
    *("endpoint_url", "endpoint", "region", "region_name", "aws_region", "protocol", "mode"),
    *("target_protocol", "project", "account_name", "bucket", "addressing_style", "service_name"),
}
_VARIABLES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CONNECTION_STRING"),
)
# Shorter values are no credentials, and are found in every other word.
_SHORTEST = 4
# obstore appends the error again, at length and with its headers.
_APPENDIX = "\n\nDebug source:"


class Secrets:
    """Cuts the values of storage options out of texts. Shows none itself.

    Examples
    --------
    >>> secrets = Secrets({"key": "AKIA1", "client_kwargs": {"password": "pass1"}})
    >>> secrets.cut("AKIA1 of https://me:you@host/a?sig=1 has not pass1")
    '*** of https://host/a has not ***'
    >>> secrets
    Secrets(2)
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        found = {text for text in _texts(options) if len(text) >= _SHORTEST}
        # The longest first: one may be part of another.
        self._values = sorted(found, key=len, reverse=True)

    def cut(self, text: str) -> str:
        """Return a text without secrets, users and queries of URLs."""
        text = public_name(text.partition(_APPENDIX)[0])
        environment = [os.environ.get(name, "") for name in _VARIABLES]
        for value in [*self._values, *(v for v in environment if len(v) >= _SHORTEST)]:
            text = text.replace(value, "***")
        return text

    def describe(self, error: BaseException) -> str:
        """Return class and message of an error, without secrets."""
        told = self.cut(str(error)).rstrip(".")
        return f"{type(error).__name__}: {told}" if told else type(error).__name__

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)})"


def _texts(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, str(key))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner, name)
    elif isinstance(value, str) and name not in _PUBLIC:
        yield value
