"""Seed the random pipes of a graph from one generator of seeds."""

from __future__ import annotations

from collections.abc import Collection

from ...graph import Pipe, traits_of, walk
from ..random import SeedGenerator


def set_datapipes_seed(
    datapipes: Collection[Pipe],
    seed_generator: SeedGenerator,
    distributed_shared: bool,
) -> None:
    """Call ``set_seed`` on those that have it, with shared or with the worker's own seeds."""
    for pipe in datapipes:
        if callable(getattr(type(pipe), "set_seed", None)):
            seed = (
                seed_generator.generate_shared_seed()
                if distributed_shared
                else seed_generator.generate_seed()
            )
            pipe.set_seed(seed)


def set_graph_random_seed(datapipe: Pipe, seed_generator: SeedGenerator) -> Pipe:
    """Seed the pipes that draw: alike on all workers before they share items out, apart after.

    A pipe before any ``sharding_filter`` gets a shared seed, so that all workers shuffle alike
    and their shares are disjoint.
    """
    shared = {
        id(before)
        for pipe in walk(datapipe)
        if traits_of(pipe).shards or hasattr(type(pipe), "apply_sharding")
        for before in walk(pipe)
    }
    everything = list(walk(datapipe))
    set_datapipes_seed([p for p in everything if id(p) in shared], seed_generator, True)
    set_datapipes_seed([p for p in everything if id(p) not in shared], seed_generator, False)
    return datapipe
