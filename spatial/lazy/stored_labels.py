"""Which stored labels a user means who names labels as a chain has them by then.

What decides where to cut looks at a volume as it is stored. Where ``remap_labels`` came before,
the labels that it made are those of several stored ones; behind any other op nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...core.errors import SampleError
from ...intensity import RemapLabels
from ..volume_like import made_like
from .lazy_patch import LazyPatch

Labels = tuple[int, ...]


def stored_labels(patch: Any, labels: Sequence[int], who: str, key: str) -> Labels:
    """Return the stored labels that have become ``labels``; none of them if they were taken away.

    Parameters
    ----------
    patch
        What the sample holds under ``key``; all but a lazy patch is as it is stored.
    labels
        As they are named; none for all but 0.
    who
        Which op asks, for the message.
    key
        Key of the volume, for the message.

    Raises
    ------
    SampleError
        An op changed the values that is no ``remap_labels``, or so many stored labels became one
        that they cannot be listed.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> stored_labels(SimpleNamespace(), (1, 2), "label_crop", "label")
    (1, 2)
    """
    wanted = set(labels)
    for step in _changes(patch):
        op = step.op
        if not isinstance(op, RemapLabels):
            raise SampleError(
                f"{who} looks at {key!r} as it is stored, and {op.describe()} comes before it",
                do=f"Put {who} before it, with labels as they are stored.",
            )
        new = dict(op.mapping)
        if not labels:
            _refuse_another_zero(op, new, who, key)
            continue
        if op.other is not None and op.other in wanted:
            raise SampleError(
                f"{who} asks for label {op.other} of {key!r}, which {op.describe()} makes of all "
                "labels that it does not name",
                do=f"Put {who} before it, with labels as they are stored.",
            )
        kept = wanted - set(new) if op.other is None else set()
        wanted = kept | {old for old, label in new.items() if label in wanted}
    return tuple(sorted(wanted))


def refuse_changed(patch: Any, who: str, key: str) -> None:
    """Refuse what some op changed the values of, where they are asked for as they are stored.

    Raises
    ------
    SampleError
        A value op comes before.
    """
    for step in _changes(patch):
        raise SampleError(
            f"{who} looks at {key!r} as it is stored, and {step.op.describe()} comes before it",
            do=f"Put {who} before it, or leave {key!r} out of it with keys=.",
        )


def _changes(patch: Any) -> Iterator[Any]:
    """Yield the value steps of a patch, the last one first, through flushes."""
    while isinstance(patch, LazyPatch):
        yield from reversed(patch.values)
        for member in patch.members:
            yield from _changes(member)
        made = made_like(patch.volume)
        patch = None if made is None else made.patch


def _refuse_another_zero(op: RemapLabels, new: dict[int, int], who: str, key: str) -> None:
    """Raise if what is not 0 by now is not what is stored as other than 0."""
    zero = {old for old, label in new.items() if label == 0} | ({0} - set(new))
    if zero != {0} or op.other == 0 or (op.other is not None and 0 not in new):
        raise SampleError(
            f"{who} looks at what of {key!r} is not 0 as it is stored, and {op.describe()}, which "
            "comes before it, changes what is 0",
            do=f"Name the labels, or put {who} before it.",
        )
