"""What is said about a chained form that no pipe has."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHORTEST = 4
"""Letters of a name that is looked for inside another: ``crop``, but not ``zip``."""
_MOST = 3
"""Names that are proposed."""


class UnknownForm(AttributeError):
    """No pipe has this chained form. What to say is worked out when it is read: many only probe.

    Parameters
    ----------
    pipe
        As the user wrote it.
    asked
        The name.
    """

    def __init__(self, pipe: str, asked: str) -> None:
        super().__init__(pipe, asked)

    def __str__(self) -> str:
        from torch.utils.data import IterDataPipe

        pipe, asked = self.args
        return unknown_form(pipe, asked, IterDataPipe.functions)


def unknown_form(pipe: str, asked: str, known: Iterable[str]) -> str:
    """Return a sentence about ``asked``, with the chained forms that are likely meant.

    Examples
    --------
    >>> unknown_form("open_volume()", "gaussian_noise", ["noise", "blur", "rotate"])
    "open_volume() has no chained form 'gaussian_noise'; did you mean 'noise'?"
    >>> unknown_form("open_volume()", "rotat", ["noise", "blur", "rotate"])
    "open_volume() has no chained form 'rotat'; did you mean 'rotate'?"
    """
    names = sorted(known)
    spelt = asked.lower()
    near = difflib.get_close_matches(spelt, names, n=_MOST, cutoff=0.75)
    # Other libraries say more in a name: gaussian_noise, rand_affine, RandFlipd.
    inside = sorted((n for n in names if len(n) >= _SHORTEST and n in spelt), key=len, reverse=True)
    meant = list(dict.fromkeys([*near, *inside]))[:_MOST]
    hint = f"; did you mean {' or '.join(map(repr, meant))}?" if meant else ""
    return f"{pipe} has no chained form {asked!r}{hint}"
