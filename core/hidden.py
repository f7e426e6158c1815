"""Options that may hold credentials: used as any mapping, shown nowhere."""

from __future__ import annotations

from typing import Any

_SHOWN = "{…}"


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
