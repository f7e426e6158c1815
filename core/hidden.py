"""What may hold credentials, options and URLs: used as any other, shown without them."""

from __future__ import annotations

import re
from typing import Any

_SHOWN = "{…}"
_USER = re.compile(r"(?<=://)[^/@\s?#]*@")
# A signed URL carries its secret in the query, under names that differ by provider.
_QUERY = re.compile(r"(://[^\s?#'\"]*)[?#][^\s'\")]*")


class Hidden(dict[str, Any]):
    """A dictionary whose text says nothing, whoever prints it: we, torch, or a debugger.

    Examples
    --------
    >>> options = Hidden(key="AKIA", secret="s3cret")
    >>> options, f"{options}", options["secret"]
    ({…}, '{…}', 's3cret')
    """

    def __repr__(self) -> str:
        return _SHOWN if self else "{}"

    __str__ = __repr__


def public_name(location: str) -> str:
    """Return a location without user, password and query.

    Examples
    --------
    >>> public_name("https://me:secret@host/a.nii?X-Signature=abc")
    'https://host/a.nii'
    >>> public_name("/data/what?.nii")
    '/data/what?.nii'
    """
    return _QUERY.sub(r"\1", _USER.sub("", location))
