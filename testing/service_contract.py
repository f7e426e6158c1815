"""The contract of reading services, as tests: subclass it, and say how a service is made.

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

from ..adapters import OnError, Timeout
from ..core.errors import ItemTimeout
from ..dataloader2 import DataLoader2
from ..datapipes.iter import from_cases
from ..graph import Pipe

_CASES, _SEED = 3, 7
# Seconds of an item, of its beginning, and of what hangs, where nobody ends it before.
_LIMIT, _START, _LONGEST = 1.0, 2.0, 15.0
_LET_GO = threading.Event()


class ServiceContract:
    """Tests of one service; ``make`` returns a new one."""

    splits = True
    """Whether it runs a graph that is split, batch by batch, each with random numbers of its own;
    one in torchdata's form runs the whole as it is."""

    def make(self) -> Any:
        """Return a service that no loader has used."""
        raise NotImplementedError

    def chain(self) -> Pipe:
        """Return what is run: rotated patches of small volumes, two a batch, six batches."""
        voxels = np.arange(8 * 9 * 10, dtype=np.int16).reshape(8, 9, 10)
        cases = [{"case": f"case{n}", "image": voxels + n} for n in range(_CASES)]
        batches: Pipe = self.patches(cases).batch_patches(2)
        return batches

    def patches(self, cases: Any) -> Any:
        """Return rotated patches of volumes, four of each."""
        patches = from_cases(cases).shuffle().open_volume().lazy_patch(4, samples_per_volume=4)
        return patches.augment(rotate=15)

    def loader(self, pipe: Pipe, *adapters: Any) -> Any:
        """Return a loader that runs ``pipe`` by a new service."""
        return DataLoader2(pipe, adapters, self.make(), seed=_SEED)

    def test_batches_are_those_of_one_process(self) -> None:
        """In this epoch and in the next one, voxels and provenance."""
        with self.loader(self.chain()) as ours, DataLoader2(self.chain(), seed=_SEED) as plain:
            for _ in range(2):
                assert _contents(ours) == _contents(plain)

    def test_functions_draw_as_in_one_process(self) -> None:
        """From the global generators, of which each batch has its own state."""
        if not self.splits:
            pytest.skip("it seeds no batches")
        chain = self.chain().map(_add_noise)
        with self.loader(chain) as ours, DataLoader2(chain, seed=_SEED) as plain:
            assert _contents(ours) == _contents(plain)

    def test_bad_cases_are_left_out(self) -> None:
        """Under ``OnError("skip")``, the same ones, and the loader tells which."""
        if not self.splits:
            pytest.skip("it makes no batch again")
        cases = [{"image": np.zeros((4, 4, 4), np.int16)}, {"image": "missing.nii"}]
        chain = self.patches(cases).batch_patches(2)
        skip = OnError("skip")
        with self.loader(chain, skip) as ours, DataLoader2(chain, skip, seed=_SEED) as plain:
            assert _contents(ours) == _contents(plain)
            assert [one.batch for one in ours.failures] == [one.batch for one in plain.failures]
            assert ours.failures

    def test_a_graph_that_is_not_split_runs(self) -> None:
        """Whole, by somebody, so that each item comes once."""
        chain = from_cases([{"number": n} for n in range(9)]).shuffle().sharding_filter()
        with self.loader(chain.map(_number)) as ours:
            assert sorted(ours) == list(range(9))

    def test_it_goes_on_from_a_state(self) -> None:
        """In another loader, after every number of batches."""
        with self.loader(self.chain()) as whole:
            batches = _contents(whole)
        for count in range(0, len(batches) + 1, 2):
            with self.loader(self.chain()) as first:
                _contents(itertools.islice(first, count))
                state = json.loads(json.dumps(first.state_dict()))
            with self.loader(self.chain()) as second:
                second.load_state_dict(state)
                assert _contents(second) == batches[count:]

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
                _contents(itertools.islice(ours, count))
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


def _contents(batches: Any) -> list[Any]:
    """Return voxels and provenance of batches, for comparison."""
    return [(b["image"].numpy().tobytes(), str(b["image"].dtype), b["meta"]) for b in batches]


def _running() -> set[Any]:
    return {*threading.enumerate(), *(p.pid for p in multiprocessing.active_children())}


def _refuse(batch: Any) -> Any:
    if "case1" in [meta["case"] for meta in batch["meta"]]:
        raise ValueError("a mistake in case1")
    return batch


def _add_noise(batch: Any) -> Any:
    return {**batch, "image": batch["image"] + np.random.random()}


def _number(sample: Any) -> int:
    return int(sample["number"])


def _hang(batch: Any) -> Any:
    _LET_GO.wait(_LONGEST)
    return batch
