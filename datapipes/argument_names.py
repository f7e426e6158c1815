"""Arguments that do not exist: what was meant by them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping

# So near that nothing else can be meant, where an argument may be for somebody else: "labls", "label", "keyes".
_NEARLY = 0.75


def refuse_unknown_arguments(
    name: str,
    given: Iterable[str],
    known: Collection[str],
    words: Mapping[str, str],
    *,
    only_misspelt: bool = False,
) -> None:
    """Raise where an argument is none of a pipe's, and say which one is.

    Parameters
    ----------
    name
        The chained form.
    given
        The names that were given.
    known
        The names that there are.
    words
        Words of other libraries, and ours for each of them.
    only_misspelt
        Whether names that resemble none of ``known`` are let through, for somebody else.

    Raises
    ------
    TypeError
        As Python would, with the argument that was meant.
    """
    for one in given:
        if one in known:
            continue
        near = difflib.get_close_matches(one, known, n=1, cutoff=_NEARLY)
        meant = words.get(one) or next(iter(near), None)
        if meant is None and only_misspelt:
            continue
        hint = f"; did you mean {meant!r}?" if meant else f"; it has {', '.join(known)}"
        msg = f"{name}() has no argument {one!r}{hint}"
        raise TypeError(msg)
