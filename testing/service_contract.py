"""The contract of reading services, as tests: subclass it, with a method that makes a service.

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
import os
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..adapters import OnError, Timeout
from ..core.errors import ItemTimeout, WorkerDied
from ..dataloader2 import DataLoader2
from ..datapipes.iter import from_cases
from ..graph import Pipe

_CASES, _SEED = 3, 7
# Seconds: timeouts of an item and of a start, and the longest hang of a function.
_LIMIT, _START, _LONGEST = 1.0, 2.0, 15.0
_PAUSE = 0.1
_END_OF_HANG = threading.Event()


class ServiceContract:
    """Tests of one service; ``make`` returns a new one."""

    splits = True
    """Whether it runs a split graph, where each batch has its own random numbers; services in
    torchdata's form run the whole graph."""

    def make(self) -> Any:
        """Return a new service, not yet used by a loader."""
        raise NotImplementedError

    def chain(self) -> Pipe:
        """Return a chain of six batches, each of two rotated patches of small volumes."""
        voxels = np.arange(8 * 9 * 10, dtype=np.int16).reshape(8, 9, 10)
        cases = [{"case": f"case{n}", "image": voxels + n} for n in range(_CASES)]
        batches: Pipe = self.patches(cases).batch_patches(2)
        return batches

    def patches(self, cases: Any) -> Any:
        """Return rotated patches, four per volume."""
        patches = from_cases(cases).shuffle().open_volume().lazy_patch(4, samples_per_volume=4)
        return patches.augment(rotate=15)

    def loader(self, pipe: Pipe, *adapters: Any) -> Any:
        """Return a loader that runs ``pipe`` with a new service."""
        return DataLoader2(pipe, adapters, self.make(), seed=_SEED)

    def test_batches_are_those_of_one_process(self) -> None:
        """Voxels and provenance are equal in two epochs."""
        with self.loader(self.chain()) as ours, DataLoader2(self.chain(), seed=_SEED) as plain:
            for _ in range(2):
                assert _contents(ours) == _contents(plain)

    def test_functions_draw_as_in_one_process(self) -> None:
        """Global generators have their own state for each batch."""
        if not self.splits:
            pytest.skip("it seeds no batches")
        chain = self.chain().map(_add_noise)
        with self.loader(chain) as ours, DataLoader2(chain, seed=_SEED) as plain:
            assert _contents(ours) == _contents(plain)

    def test_bad_cases_are_left_out(self) -> None:
        """``OnError("skip")`` leaves out the same cases, and the loader lists them."""
        if not self.splits:
            pytest.skip("it makes no batch again")
        cases = [{"image": np.zeros((4, 4, 4), np.int16)}, {"image": "missing.nii"}]
        chain = self.patches(cases).batch_patches(2)
        skip = OnError("skip")
        with self.loader(chain, skip) as ours, DataLoader2(chain, skip, seed=_SEED) as plain:
            assert _contents(ours) == _contents(plain)
            assert [f.batch for f in ours.failures] == [f.batch for f in plain.failures]
            assert ours.failures

    def test_a_graph_that_is_not_split_runs(self) -> None:
        """A graph that cannot be split yields each item once."""
        chain = from_cases([{"number": n} for n in range(9)]).shuffle().sharding_filter()
        with self.loader(chain.map(_number)) as ours:
            assert sorted(ours) == list(range(9))

    def test_it_goes_on_from_a_state(self) -> None:
        """Another loader resumes after any number of batches."""
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
        """An error of a function keeps its class and message."""
        with (
            self.loader(self.chain().map(_refuse)) as ours,
            pytest.raises(ValueError, match="a mistake in case1"),
        ):
            list(ours)

    def test_nothing_is_left(self) -> None:
        """An epoch that ended, failed or was dropped leaves no process and no thread."""
        before = _running()
        for pipe, count in ((self.chain(), 9), (self.chain(), 1), (self.chain().map(_refuse), 9)):
            with contextlib.suppress(ValueError), self.loader(pipe) as ours:
                _contents(itertools.islice(ours, count))
            del ours
            gc.collect()
            assert _running() <= before

    def test_a_hang_ends(self) -> None:
        """A hang raises the error of the loader's ``Timeout``."""
        _END_OF_HANG.clear()
        try:
            limits = Timeout(item=_LIMIT, start=_START, stop=_LIMIT)
            with self.loader(self.chain().map(_hang), limits) as ours, pytest.raises(ItemTimeout):
                list(ours)
        finally:
            _END_OF_HANG.set()


class PoolContract(ServiceContract):
    """Tests of a service whose workers are processes, here or elsewhere.

    ``make`` returns a service with two workers.
    """

    makes_late_batches_again = False
    """Whether a free worker makes the batches of one that is stopped."""

    def make_without_room(self) -> Any:
        """Return a service whose workers cannot start; None if they always can."""
        return None

    def pretend(self, patch: pytest.MonkeyPatch) -> str:
        """Give this process another version of a package than workers, and return its name.

        Return "" if workers run the code of this process.
        """
        return ""

    def pids(self, loader: Any) -> list[int]:
        """Return the process numbers of the workers that are up."""
        return [worker.process.pid for worker in loader.reading_service._pool.workers]

    def long_chain(self, file: Path | None = None) -> Pipe:
        """Return a chain of 24 batches, slow in the process that writes ``file`` first."""
        voxels = np.arange(8 * 9 * 10, dtype=np.int16).reshape(8, 9, 10)
        cases = [{"case": f"case{n}", "image": voxels + n} for n in range(12)]
        chain: Pipe = self.patches(cases).batch_patches(2)
        return chain if file is None else chain.map(partial(_wait_in_one, file=file))

    def whole(self) -> list[Any]:
        """Return the contents of one pass in this process."""
        with DataLoader2(self.long_chain(), seed=_SEED) as plain:
            return _contents(plain)

    @pytest.mark.filterwarnings("ignore::voxpipe.core.errors.WorkerReplaced")
    def test_workers_that_are_killed(self) -> None:
        """The batches of a worker that is killed are made again."""
        batches: list[Any] = []
        with self.loader(self.long_chain()) as ours:
            for number, batch in enumerate(ours):
                batches.append(batch)
                if number in (3, 9):
                    os.kill(self.pids(ours)[0], signal.SIGKILL)
        assert _contents(batches) == self.whole()

    def test_a_worker_that_is_stopped(self) -> None:
        """Others make its batches, or an ItemTimeout names it."""
        limits = Timeout(item=_LIMIT if not self.makes_late_batches_again else _LONGEST)
        with self.loader(self.long_chain(), limits) as ours:
            it, error = iter(ours), None
            batches = list(itertools.islice(it, 10))
            pid = self.pids(ours)[0]
            os.kill(pid, signal.SIGSTOP)
            try:
                batches += it
            except ItemTimeout as late:
                error = late
            finally:
                with contextlib.suppress(ProcessLookupError):  # the loader has killed it
                    os.kill(pid, signal.SIGCONT)
        if self.makes_late_batches_again:
            assert _contents(batches) == self.whole()
        else:
            assert f"(pid {pid})" in str(error)

    def test_a_worker_that_is_slow(self, tmp_path: Path) -> None:
        """Batches keep their order while one worker is slow."""
        with self.loader(self.long_chain(tmp_path / "pid")) as ours:
            assert _contents(ours) == self.whole()

    def test_no_worker_is_up(self) -> None:
        """The error names the workers that have not started."""
        if (service := self.make_without_room()) is None:
            pytest.skip("its workers start")
        limits = Timeout(item=_PAUSE, start=_LIMIT)
        with (
            DataLoader2(self.chain(), limits, service, seed=_SEED) as ours,
            pytest.raises(ItemTimeout, match="no worker is up"),
        ):
            list(ours)

    def test_a_worker_of_another_version_makes_no_batch(self, monkeypatch: Any) -> None:
        """The error names the package and both versions."""
        if not (package := self.pretend(monkeypatch)):
            pytest.skip("its workers run this code")
        with (
            self.loader(self.chain()) as ours,
            pytest.raises(WorkerDied, match=f"{package} is .* there, and .* here"),
        ):
            list(ours)

    def test_workers_come_and_go(self) -> None:
        """``scale`` adds and ends workers within a pass, and between two."""
        with self.loader(self.long_chain()) as ours:
            batches: list[Any] = []
            for number, batch in enumerate(ours):
                batches.append(batch)
                if number in (2, 8, 16):
                    ours.reading_service.scale({2: 4, 8: 1, 16: 3}[number])
            assert _contents(batches) == self.whole()
            ours.reading_service.scale(2)
            with DataLoader2(self.long_chain(), seed=_SEED) as plain:
                _contents(plain)
                assert _contents(ours) == _contents(plain)

    def test_batches_that_are_kept(self) -> None:
        """No later batch changes them."""
        with self.loader(self.long_chain()) as ours:
            pairs = [(batch, _contents([batch])) for batch in ours]
        assert [_contents([batch]) for batch, _ in pairs] == [before for _, before in pairs]


def _wait_in_one(batch: Any, file: Path) -> Any:
    """Wait in the first process that comes here."""
    with contextlib.suppress(FileExistsError), file.open("x") as note:
        note.write(str(os.getpid()))
    if file.read_text() == str(os.getpid()):
        _END_OF_HANG.wait(_PAUSE)
    return batch


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
    _END_OF_HANG.wait(_LONGEST)
    return batch
