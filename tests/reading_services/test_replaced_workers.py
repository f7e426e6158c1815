"""A worker that dies is replaced: every batch exactly once, in order, and nothing of it is left."""

import errno
import functools
import gc
import multiprocessing
import os
import random
import signal
import sys
import threading
import warnings
from collections import deque
from pathlib import Path

import nibabel
import pytest
from leftovers import open_files, services, shared_names_left
from scenes import full_chain, same, write_cases
from test_worker_failures import at_case

import voxpipe as vp
from voxpipe.batching.job import Job
from voxpipe.core.errors import WorkerDied, WorkerReplaced
from voxpipe.reading_services.workers.pool import Affinity, WorkerPool
from voxpipe.reading_services.workers.worker_process import Worker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills processes")
FILE = Path(__file__).name


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"))


@pytest.fixture(scope="module")
def started_once(cases):
    """The fork server and its pipes belong to the interpreter."""
    with vp.DataLoader2(full_chain(cases), None, vp.MultiProcessingReadingService(1)) as it:
        list(it)


def own_files():
    """Return the open files, without those of the fork server.

    A first graph that is not split replaces a server that has not imported its functions.
    """
    gc.collect()
    return open_files() - services()


def kill_me():
    os.kill(os.getpid(), signal.SIGKILL)


def segfault():
    os.kill(os.getpid(), signal.SIGSEGV)


def leave():
    os._exit(3)


def once(folder, key, act):
    """Do ``act`` the first time that any process comes here with ``key``."""
    try:
        os.close(os.open(Path(folder) / key, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    act()


def dying(cases, folder, deaths, **options):
    """Return the chain with a death at each of the cases, once."""
    pipe = full_chain(cases, **options)
    for name, act in deaths.items():
        pipe = pipe.map(
            functools.partial(at_case, name, functools.partial(once, folder, name, act))
        )
    return pipe


def expected(cases, epochs=1, **options):
    with vp.DataLoader2(full_chain(cases, **options), seed=7) as it:
        return [list(it) for _ in range(epochs)]


@pytest.mark.parametrize("act", [kill_me, segfault, leave])
def test_two_deaths_change_nothing(cases, tmp_path, act):
    """However a worker ends, another makes its batches again; it is told, with pipe and case."""
    pipe = dying(cases, tmp_path, {"case0": act, "case2": act})
    service = vp.MultiProcessingReadingService(2)

    with (
        pytest.warns(
            WorkerReplaced, match=r"(?s)worker \d .* while it had batch .*max_res"
        ) as told,
        vp.DataLoader2(pipe, None, service, seed=7) as it,
    ):
        batches = list(it)

    assert same(batches, expected(cases)[0])
    assert len(told) == 2
    assert all("case" in str(warning.message) for warning in told)
    assert all(Path(warning.filename).name == FILE for warning in told)


def test_as_ready_gives_every_batch_once(cases, tmp_path):
    """Where the order is free, each batch still comes exactly once."""
    pipe = dying(cases, tmp_path, {"case1": kill_me}, samples=8)
    service = vp.MultiProcessingReadingService(2, order="as_ready")

    with pytest.warns(WorkerReplaced), vp.DataLoader2(pipe, None, service, seed=7) as it:
        batches = list(it)

    order = {str(b["meta"]): n for n, b in enumerate(expected(cases, samples=8)[0])}
    assert sorted(order[str(batch["meta"])] for batch in batches) == list(range(6))


def test_the_error_after_the_last_restart_says_how_often(cases):
    """A batch that kills whoever makes it ends the epoch: signal, pipe, file, case, and count."""
    pipe = full_chain(cases).map(functools.partial(at_case, "case1", kill_me))
    service = vp.MultiProcessingReadingService(2, max_restarts=2)
    got = []

    def take_all(it):
        for batch in it:
            got.append(batch)

    with (
        pytest.warns(WorkerReplaced) as told,
        vp.DataLoader2(pipe, None, service, seed=7) as it,
        pytest.raises(WorkerDied) as e,
    ):
        take_all(it)

    text = str(e.value)
    assert len(told) == 2
    assert "was killed by SIGKILL while it had batch " in text
    assert "case1_image.nii" in text
    assert f"   {FILE}:" in text
    assert "2 workers were replaced in this epoch before" in text
    assert same(got, expected(cases)[0][: len(got)])


def test_each_epoch_may_replace_anew(cases, tmp_path):
    """The count is of one epoch; workers that stay may be replacements."""
    pipe = dying(cases, tmp_path, {"case1": kill_me})
    service = vp.MultiProcessingReadingService(2, persistent_workers=True, max_restarts=1)
    with vp.DataLoader2(pipe, None, service, seed=7) as it:
        with pytest.warns(WorkerReplaced):
            first = list(it)
        (tmp_path / "case1").unlink()
        with pytest.warns(WorkerReplaced):
            second = list(it)

    whole = expected(cases, epochs=2)
    assert same(first, whole[0])
    assert same(second, whole[1])


def test_a_replacement_that_cannot_start_is_told(cases, tmp_path, monkeypatch):
    """The death is raised with the cause, after batches made before; every process has ended."""
    pipe = dying(cases, tmp_path, {"case1": kill_me})
    start = WorkerPool._start

    def start_two(self, number, before=None):
        if before is not None:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return start(self, number, before)

    monkeypatch.setattr(WorkerPool, "_start", start_two)
    loader = vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(2), seed=7)
    with pytest.warns(WorkerReplaced), loader as it, pytest.raises(WorkerDied) as e:
        list(it)

    text = str(e.value)
    assert "was killed by SIGKILL while it had batch " in text
    assert "no other could be started in its place: BlockingIOError" in text
    assert isinstance(e.value.__cause__, BlockingIOError)
    assert multiprocessing.active_children() == []


def test_what_fails_at_one_worker_spares_no_other(cases, monkeypatch):
    """Stopping goes on to the next, and raises what failed."""
    loader = vp.DataLoader2(full_chain(cases), None, vp.MultiProcessingReadingService(2), seed=7)
    it = iter(loader)
    next(it)
    release = Worker.release

    def release_badly(self):
        release(self)
        if self.number == 0:
            raise ValueError("process object is closed")

    monkeypatch.setattr(Worker, "release", release_badly)
    with pytest.raises(ValueError, match="is closed"):
        loader.shutdown()

    assert multiprocessing.active_children() == []


def test_no_restarts_is_a_setting(cases):
    """max_restarts=0 fails at the first death, as it was."""
    pipe = full_chain(cases).map(functools.partial(at_case, "case1", leave))
    service = vp.MultiProcessingReadingService(2, max_restarts=0)

    with vp.DataLoader2(pipe, None, service, seed=7) as it, pytest.raises(WorkerDied) as e:
        list(it)

    assert "were replaced" not in str(e.value)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
# forking with threads of torch around is what the user asked for here
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_any_start_method_replaces(cases, tmp_path, method):
    """A forked replacement holds no end of another's channel: the epoch ends as usual."""
    pipe = dying(cases, tmp_path, {"case1": kill_me})
    service = vp.MultiProcessingReadingService(2, method)

    with pytest.warns(WorkerReplaced), vp.DataLoader2(pipe, None, service, seed=7) as it:
        batches = list(it)

    assert same(batches, expected(cases)[0])


def is_bright(sample):
    return bool(sample["image"].float().mean() > -50)


def whole_graph(cases, folder=None):
    """A graph that cannot be split, with a death in the middle of a share."""
    pipe = vp.from_cases(cases).shuffle().sharding_filter().open_volume()
    pipe = pipe.lazy_patch(6, samples_per_volume=5).rotate((-15, 15)).realize().filter(is_bright)
    if folder is not None:
        pipe = pipe.map(functools.partial(die_in_the_third, str(folder)))
    return pipe.batch_patches(1)


def die_in_the_third(folder, sample):
    if sample.identity == (1, 2):
        once(folder, "third", kill_me)
    return sample


def test_a_dead_worker_of_a_whole_graph_leaves_no_files(cases, tmp_path, started_once):
    """The descriptors of the worker are closed, also where its graph replaced the fork server."""
    before = own_files()
    service = vp.MultiProcessingReadingService(2)
    with (
        pytest.warns(WorkerReplaced),
        vp.DataLoader2(whole_graph(cases, tmp_path), None, service, seed=7) as it,
    ):
        deque(it, maxlen=0)

    assert own_files() == before


def test_a_share_of_a_whole_graph_is_run_again(cases, tmp_path):
    """The replacement makes again what had arrived; that is dropped, and the rest follows."""
    service = vp.MultiProcessingReadingService(2)
    with vp.DataLoader2(whole_graph(cases), None, service, seed=7) as it:
        whole = list(it)

    with (
        pytest.warns(WorkerReplaced, match="of its share"),
        vp.DataLoader2(whole_graph(cases, tmp_path), None, service, seed=7) as it,
    ):
        batches = list(it)

    assert same(batches, whole)


def test_a_dead_worker_leaves_nothing(cases, tmp_path, started_once):
    """Its descriptors, channel and slots are freed at once, but for batches that are in use."""
    pipe = dying(cases, tmp_path, {"case0": kill_me, "case2": kill_me}, samples=16)
    before = own_files()
    service = vp.MultiProcessingReadingService(2)
    with vp.DataLoader2(pipe, None, service, seed=7) as it:
        batches = iter(it)
        with warnings.catch_warnings(record=True) as texts:
            warnings.simplefilter("always")
            kept = next(batches)
            copy = {key: kept[key].clone() for key in ("image", "label")}
            budget = it._service._budget
            deque(batches, maxlen=0)
        assert {one.category for one in texts} == {WorkerReplaced}
        # Whoever made it, alive or not: what is kept is as it was, and counts.
        assert all(bool((kept[key] == copy[key]).all()) for key in copy)
        assert budget.slots.batches == 1
        del kept
        gc.collect()
        assert budget.slots.bytes == 0

    del batches
    assert own_files() == before
    assert "memfd:voxpipe" not in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_what_dead_workers_left_counts_in_the_share_of_the_next(cases, tmp_path):
    """Batches that are kept take no more than slot_bytes, replaced workers or not."""
    pipe = dying(cases, tmp_path, {"case1": kill_me}, samples=32)
    slot = 2 * 2**20
    service = vp.MultiProcessingReadingService(1, worker_prefetch_cnt=1, slot_bytes=4 * slot)
    peak = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with vp.DataLoader2(pipe, None, service, seed=7) as it:
            kept = []
            for batch in it:
                kept.append(batch)
                peak = max(peak, it._service._budget.slots.bytes)

    assert len(kept) == 24
    assert peak <= 3 * slot  # one is left for the batch in flight


def test_a_death_while_a_volume_is_decoded_holds_nobody_up(tmp_path, monkeypatch):
    """A worker dies in a .map() beside a half-decoded cache entry: the next one takes over."""
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cases").mkdir()
    cases = write_cases(tmp_path / "cases")
    for case in cases:
        for key in ("image", "label"):
            packed = case[key] + ".gz"
            nibabel.save(nibabel.load(case[key]), packed)
            case[key] = packed
    pipe = dying(cases, tmp_path, {"case0": kill_me, "case1": kill_me})

    with (
        pytest.warns(WorkerReplaced),
        vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(2), seed=7) as it,
    ):
        batches = list(it)

    assert same(batches, expected(cases)[0])


def test_a_replacement_knows_no_case():
    """Batches go to the worker that has their chunks: a new one has none."""

    class One:
        def __init__(self, number):
            self.number, self.jobs, self.most_jobs = number, [0] * number, 9

    affinity, workers = Affinity(), [One(0), One(1)]

    class Item:
        identity = (5, 0)

    job = Job(0, (Item(),))
    affinity.remember(job, workers[1])
    assert affinity.choose(job, workers, 4, coming=9) is workers[1]

    affinity.forget(1)

    assert affinity.choose(job, workers, 4, coming=9) is workers[0]


class Killer:
    """Kills workers of a loader at random moments from a thread of its own, so many times."""

    def __init__(self, loader, times, seed):
        self.kills = 0
        self._loader, self._times, self._random = loader, times, random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        self._thread.join()

    def _run(self):
        while self.kills < self._times and not self._stop.wait(self._random.uniform(0.0, 0.4)):
            pool = self._loader._service._pool
            try:
                os.kill(self._random.choice(pool.workers).process.pid, signal.SIGKILL)
            except (AttributeError, IndexError, ValueError, ProcessLookupError):
                continue  # between two epochs, or it was replaced meanwhile
            self.kills += 1


@pytest.mark.slow
@pytest.mark.parametrize("split", [True, False], ids=["planned", "whole graph"])
def test_fifty_kills_at_random_moments(cases, started_once, split):
    """Every batch exactly once and in order, whoever is killed when; nothing is left."""
    build = functools.partial(full_chain if split else long_whole_graph, cases, samples=4000)
    # Shares are taken in turn, so a whole graph is compared with as many of them.
    alone = None if split else vp.MultiProcessingReadingService(2)
    limits, kills = vp.Timeout(item=120, start=120), 50
    service = vp.MultiProcessingReadingService(2, max_restarts=100)
    before, shm = own_files(), set(os.listdir("/dev/shm"))
    done = 0
    with (
        vp.DataLoader2(build(), None, alone, seed=7) as whole,
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        with (
            vp.DataLoader2(build(), limits, service, seed=7) as it,
            Killer(it, kills, seed=1) as killer,
        ):
            while killer.kills < kills:  # an epoch of a fast machine may be too short for all
                for one, other in zip(it, whole, strict=True):
                    assert same([one], [other])
                    done += 1
        del one, other

    assert killer.kills == kills
    assert done >= 3
    assert sum(issubclass(w.category, WorkerReplaced) for w in told) > kills // 2
    assert own_files() == before
    assert shared_names_left(shm) == set()


def long_whole_graph(cases, samples):
    pipe = vp.from_cases(cases).shuffle().sharding_filter().open_volume()
    return (
        pipe.lazy_patch(6, samples_per_volume=samples // 10)
        .realize()
        .filter(is_bright)
        .batch_patches(1)
    )
