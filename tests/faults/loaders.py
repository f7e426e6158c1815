"""Loaders for attacks, drawn: where the graph runs, with which adapters, over small cases."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

from scenes import full_chain, write_cases
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp

# The rare ones start interpreters, which takes seconds.
RARE = 12


def cases(number: int = 2) -> list[dict[str, str]]:
    """Write cases outside of the folder of temporary files, in which nothing may be left."""
    folder = Path(tempfile.gettempdir()).parent / "cases"
    folder.mkdir(exist_ok=True)
    return write_cases(folder, number)


def chain(rng: random.Random, of: list[dict[str, str]], samples: int = 8) -> Any:
    """Return a graph that is split, or one that is not."""
    pipe = full_chain(of, samples=samples, batch=2)
    if rng.random() < 0.25:
        pipe = pipe.map(_same)
    if rng.random() < 0.25:
        pipe = pipe.prefetch(2)
    return pipe


def whole_graph(items: int) -> Any:
    """Return a graph that is not split, of items that are their own numbers."""
    return IterableWrapper(range(items)).shuffle().sharding_filter().map(_same)


def _same(item: Any) -> Any:
    return item


def adapters(rng: random.Random) -> list[Any]:
    """Return nothing, or limits, with which waits here are watched by a thread."""
    return rng.choice([[], [vp.Timeout(item=60.0)]])


def workers(rng: random.Random, **options: Any) -> Any:
    """Return a service with workers."""
    method = "forkserver" if rng.randrange(RARE) == RARE - 1 else "fork"
    options["persistent_workers"] = rng.choice([None, True])
    options["main_prefetch_cnt"] = rng.choice([0, 3])
    return vp.MultiProcessingReadingService(rng.choice([1, 2]), method, **options)


def service(rng: random.Random) -> Any:
    """Return any service."""
    if rng.random() < 0.5:
        return vp.reading_services.InProcessReadingService(prefetch_cnt=rng.choice([0, 2]))
    return workers(rng)
