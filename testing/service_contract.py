"""What every reading service promises, as tests: subclass it, and say how a service is made.

::

    class TestMyReadingService(ServiceContract):
        def make(self) -> ReadingService:
            return MyReadingService()
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import multiprocessing
import threading
from typing import Any

import numpy as np
import pytest

from ..adapters import Timeout
from ..core.errors import ItemTimeout
from ..dataloader2 import DataLoader2
from ..datapipes.iter import from_cases
from ..graph import Pipe

_CASES, _SEED = 3, 7
# Seconds of an item, of its beginning, and of what hangs, which in a thread here is let go.
_LIMIT, _START, _LONGEST = 1.0, 2.0, 120.0
_LET_GO = threading.Event()


class ServiceContract:
    """Tests of one service; ``make`` returns a new one."""

    def make(self) -> Any:
        """Return a service that no loader has used."""
        raise NotImplementedError

    def chain(self) -> Pipe:
        """Return what is run: rotated patches of small volumes, two a batch, six batches."""
        voxels = np.arange(8 * 9 * 10, dtype=np.int16).reshape(8, 9, 10)
        cases = [{"case": f"case{n}", "image": voxels + n} for n in range(_CASES)]
        patches = from_cases(cases).shuffle().open_volume().lazy_patch(4, samples_per_volume=4)
        batches: Pipe = patches.augment(rotate=15).batch_patches(2)
        return batches

    def loader(self, pipe: Pipe, *adapters: Any) -> Any:
        """Return a loader that runs ``pipe`` by a new service."""
        return DataLoader2(pipe, adapters, self.make(), seed=_SEED)

    def test_batches_are_those_of_one_process(self) -> None:
        """In this epoch and in the next one, voxels and provenance."""
        with self.loader(self.chain()) as ours, DataLoader2(self.chain(), seed=_SEED) as plain:
            for _ in range(2):
                assert _told(ours) == _told(plain)

    def test_it_goes_on_from_a_state(self) -> None:
        """In another loader, after every number of batches."""
        with self.loader(self.chain()) as whole:
            batches = _told(whole)
        for count in range(0, len(batches) + 1, 2):
            with self.loader(self.chain()) as first:
                _told(itertools.islice(first, count))
                state = json.loads(json.dumps(first.state_dict()))
            with self.loader(self.chain()) as second:
                second.load_state_dict(state)
                assert _told(second) == batches[count:]

    def test_an_error_is_raised_as_it_is(self) -> None:
        """With its class and message; what came before it was delivered."""
        with (
            self.loader(self.chain().map(_refuse)) as ours,
            pytest.raises(ValueError, match="a mistake in case1"),
        ):
            list(ours)

    def test_nothing_is_left(self) -> None:
        """No process and no thread, after an epoch that ended, failed or was dropped."""
        before = _running()
        for pipe, count in ((self.chain(), 9), (self.chain(), 1), (self.chain().map(_refuse), 9)):
            with contextlib.suppress(ValueError), self.loader(pipe) as ours:
                _told(itertools.islice(ours, count))
            del ours
            gc.collect()
            assert _running() <= before

    def test_a_hang_ends(self) -> None:
        """With an error that the limit of the loader's ``Timeout`` raises."""
        _LET_GO.clear()
        try:
            limits = Timeout(item=_LIMIT, start=_START, stop=_LIMIT)
            with self.loader(self.chain().map(_hang), limits) as ours, pytest.raises(ItemTimeout):
                list(ours)
        finally:
            _LET_GO.set()


def _told(batches: Any) -> list[Any]:
    """Return voxels and provenance of batches, for comparison."""
    return [(b["image"].numpy().tobytes(), str(b["image"].dtype), b["meta"]) for b in batches]


def _running() -> set[Any]:
    return {*threading.enumerate(), *(p.pid for p in multiprocessing.active_children())}


def _refuse(batch: Any) -> Any:
    if "case1" in [meta["case"] for meta in batch["meta"]]:
        raise ValueError("a mistake in case1")
    return batch


def _hang(batch: Any) -> Any:
    _LET_GO.wait(_LONGEST)
    return batch
