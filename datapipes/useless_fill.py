"""A fill that no volume of a chain can use: told where it is written, if the chain says enough."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..core import Origin
from ..core.errors import PolicyConflict
from ..graph import Pipe, traits_of, walk
from ..spatial.ops.op import is_hard
from ..volumes import Volume
from .cases import FromCases, ListCases
from .channels import Regrouped
from .open_volume import OpenVolume, is_volume
from .sampling import EVERY_INTENSITY, Sampling, asked_by

# Pipes of torch that pass samples on as they are.
_PASSING = ("ShufflerIterDataPipe", "ShardingFilterIterDataPipe")


def refuse_useless_fill(
    sampling: Sampling, origin: Origin, parent: Pipe, ops: Iterable[Any]
) -> None:
    """Raise if a pipe asks for a fill that some volume certainly does not use.

    Where that cannot be told from the chain, because a pipe of the user's or a source that is no
    list comes before, nothing is said; the first sample tells.

    Parameters
    ----------
    sampling, origin
        What the pipe asks for, and where it was written.
    parent
        What it reads.
    ops
        Its own spatial ops: a hard crop fills by itself.

    Raises
    ------
    PolicyConflict
        No pipe of the chain gave ``padding="constant"``.
    """
    filled = [(key, fill) for key, field, fill in sampling.changes if field == "fill"]
    if not filled or any(map(is_hard, ops)):
        return
    every = list(walk(parent))
    if not all(map(_is_plain, every)):
        return
    if any(is_hard(op) for pipe in every for op in _ops_of(pipe)):
        return
    constant = {
        key
        for changes in (sampling.changes, *map(asked_by, every))
        for key, field, value in changes
        if field == "padding" and value == "constant"
    }
    if EVERY_INTENSITY in constant:
        return
    for volume in _intensities(every):
        for key, fill in filled:
            if key in (EVERY_INTENSITY, volume) and volume not in constant:
                raise PolicyConflict(
                    f"fill={fill:g} is for padding='constant', but no pipe up to here gives "
                    f"{volume!r} that padding, and others do not use it",
                    do="Write padding='constant' beside it.",
                ).at(origin)


def _is_plain(pipe: Pipe) -> bool:
    """Whether samples keep their keys and policies in it, but for what its ``sampling`` says."""
    traits = traits_of(pipe)
    if not traits.known or traits.runs_user_code or isinstance(pipe, Regrouped):
        return False
    ours = type(pipe).__module__.rpartition(".")[0] == __package__
    return ours or type(pipe).__name__ in _PASSING


def _ops_of(pipe: Pipe) -> Iterator[Any]:
    adding = vars(pipe).get("adding")
    steps = vars(pipe).get("steps") or (() if adding is None else adding.steps)
    yield from (step.op for step in steps)


def _intensities(every: Iterable[Pipe]) -> list[str]:
    """Return the keys that certainly hold an opened intensity in the first sample."""
    pipes = list(every)
    opened = [pipe for pipe in pipes if isinstance(pipe, OpenVolume)]
    sources = [pipe for pipe in pipes if isinstance(pipe, (FromCases, ListCases))]
    if len(opened) != 1 or len(sources) != 1:
        return []
    (opening,), (source,) = opened, sources
    if isinstance(source, ListCases):
        held: Mapping[str, Any] = source.patterns
        keys = set(held)
    else:
        held = source.cases[0] if isinstance(source.cases[0], Mapping) else {}
        keys = {key for key, value in held.items() if is_volume(value)}
        # Made elsewhere, it may be a label whatever its key is.
        keys -= {key for key, value in held.items() if isinstance(value, Volume)}
    named = keys if opening.keys is None else keys & set(opening.keys)
    # What overrides the pipes says which fill there is.
    return sorted(named - set(opening.labels) - set(opening.overriding))
