"""Texts without credentials: what stores say may quote the key or the URL that they were sent."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from ..core.redact import public_name, public_text, secrets_in

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
# RFC 3986: gen-delims and sub-delims.
_RESERVED = "/?:@!$&'()*+,;=-._~"
# obstore appends the error again, at length and with its headers.
_APPENDIX = "\n\nDebug source:"


class Secrets:
    """Cuts the values of storage options, and what URLs hold, out of texts. Shows none itself.

    Parameters
    ----------
    options
        Those of fsspec.
    *urls
        As the user wrote them: whatever a store makes of them, their passwords and queries are
        known by their place in them.

    Examples
    --------
    >>> secrets = Secrets({"key": "AKIA1", "client_kwargs": {"password": "pass1"}})
    >>> secrets.cut("AKIA1 of https://me:you@host/a?sig=1 has not pass1")
    '*** of https://host/a has not ***'
    >>> secrets
    Secrets(2)
    >>> Secrets({}, "https://h/a b.nii?sig=x(1)y").cut("no /a%20b.nii?sig=x%281%29y")
    'no /a%20b.nii?sig=***'
    """

    def __init__(self, options: Mapping[str, Any], *urls: str) -> None:
        self._found = {text for text in _texts(options) if len(text) >= _SHORTEST}
        self._urls = [url for url in urls if public_name(url) != url]

    def cut(self, text: str) -> str:
        """Return a text without secrets, users and queries of URLs."""
        text = text.partition(_APPENDIX)[0]
        for url in self._urls:
            for form in _forms(url):
                text = text.replace(form, public_name(url))
        text = public_text(text)
        for value in self._values():
            text = text.replace(value, "***")
        return text

    def _values(self) -> list[str]:
        found = set(self._found)
        found.update(form for url in self._urls for one in secrets_in(url) for form in _forms(one))
        environment = (os.environ.get(name, "") for name in _VARIABLES)
        found.update(value for value in environment if len(value) >= _SHORTEST)
        # The longest first: one may be part of another.
        return sorted(found, key=len, reverse=True)

    def describe(self, error: BaseException) -> str:
        """Return class and message of an error, without secrets."""
        told = self.cut(str(error)).rstrip(".")
        return f"{type(error).__name__}: {told}" if told else type(error).__name__

    def __repr__(self) -> str:
        return f"Secrets({len(self._found)})"


def _forms(secret: str) -> set[str]:
    """Return how clients write a secret: as it is, escaped for a URL, for Python, for a header."""
    forms = {secret, repr(secret)[1:-1], secret.replace("'", "\\'"), secret.replace('"', '\\"')}
    # What may stand in a query without being escaped differs from client to client.
    forms |= {quote(secret, safe=safe) for safe in ("", "/", _RESERVED, f"%{_RESERVED}")}
    forms |= {quote_plus(secret), base64.b64encode(secret.encode()).decode()}
    return {form for form in forms if len(form) >= _SHORTEST}


def _texts(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, str(key))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner, name)
    elif isinstance(value, str) and name not in _PUBLIC:
        yield value
    elif isinstance(value, str):
        yield from secrets_in(value)  # of an endpoint: http://user:password@host
