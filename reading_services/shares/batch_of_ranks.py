"""What a batch size means on ranks: the items of all ranks together, of any graph.

A plan is divided batch by batch. A graph that is not split runs on every rank, on its share of the
items: there the pipe that gathers at its end is given the part of one rank.
"""

from __future__ import annotations

from typing import Any

from ...graph import Pipe, describe, parents_of, rebuilt, traits_of, walk
from ...graph.node import copy_pipe
from ...graph.walk import readers
from .part import Part


def gathered_by(sink: Pipe) -> Pipe | None:
    """Return the pipe that makes the batches which a graph yields; None if it yields items.

    Behind it every pipe takes its items one by one.
    """
    counts = readers(sink)
    pipe = sink
    while True:
        traits, parents = traits_of(pipe), parents_of(pipe)
        if traits.group:
            return pipe
        if (
            len(parents) != 1
            or not (traits.per_item or traits.main_process)
            or counts[id(pipe)] > 1
        ):
            return None
        pipe = parents[0]


def with_own_batches(sink: Pipe, part: Part) -> Pipe:
    """Return a whole graph whose batches are one rank's part of those that were asked for.

    Raises
    ------
    GraphError
        The ranks cannot have equal parts of a batch.
    """
    gatherer = gathered_by(sink)
    if gatherer is None or traits_of(gatherer).group == 1:
        return sink
    own: Any = copy_pipe(gatherer)
    own.batch_size = part.size(traits_of(gatherer).group) // part.ranks
    return rebuilt(sink, lambda old, here: own if old is gatherer else here)


def explained(sink: Pipe, part: Part, *, whole: bool) -> str:
    """Return what one rank makes of a graph, in words.

    Parameters
    ----------
    sink
        The graph, with the batches that the user asked for if it is split, else with the rank's.
    part
        Which rank.
    whole
        Whether it is not split.
    """
    gatherer = gathered_by(sink)
    group = traits_of(gatherer).group if gatherer is not None else 1
    if group > 1:
        asked, own = (group * part.ranks, group) if whole else (group, group // part.ranks)
        how = f"{part.name}: its share" if whole else str(part)
        return f"{how}; {own} of the {asked} items that a batch of all ranks has"
    items = "its share of the items" if whole else f"of each {part.ranks} items it has one"
    inside = next((p for p in reversed([*walk(sink)]) if traits_of(p).group > 1), None)
    if inside is None:
        return f"{part.name}: {items}"
    return (
        f"{part.name}: {items}; what {describe(inside)} gathers stays whole, as more than pipes "
        "that take one item follow it"
    )
