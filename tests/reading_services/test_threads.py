"""Batches made in threads: nothing travels, functions meet nobody, and nothing is left."""

import ctypes
import gc
import multiprocessing
import os
import threading
from contextvars import Context
from functools import partial

import nibabel
import numpy as np
import pytest
import torch
from scenes import full_chain, same, write_cases

import voxpipe as vp
from voxpipe.batching.collate import LikelyLabels
from voxpipe.core import memory
from voxpipe.core.counters import IO_COUNTERS, count_apart, counts_here
from voxpipe.core.errors import ItemTimeout, VolumeReadError, WorkerDied
from voxpipe.reading_services.threads import _Exchange
from voxpipe.reading_services.transport import slot_reader
from voxpipe.reading_services.transport.slot_reader import BatchBuffers
from voxpipe.storage import file_reader
from voxpipe.storage.file_reader import HINTS

SEED = 7
LONGEST = 30.0
IMAGE = (2, 1, 6, 6, 6)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"))


def batches(pipe, service=None, adapters=None):
    with vp.DataLoader2(pipe, adapters, service, seed=SEED) as loader:
        return list(loader)


def threads():
    """Return the threads of epochs that run now; not the process's own, which wait for requests."""
    names = [t.name for t in threading.enumerate()]
    return [name for name in names if name.startswith("voxpipe-") and name != "voxpipe-get"]


class Bound:
    """What must not travel."""

    def __init__(self):
        self.seen = []

    def __reduce__(self):
        raise AssertionError("it was pickled")

    def __call__(self, batch):
        self.seen.append((os.getpid(), threading.get_ident()))
        return batch


def test_nothing_is_pickled_and_no_process_starts(cases):
    """An object that cannot be pickled is in the chain and in the samples, and works here."""
    bound = Bound()
    with_it = [{**case, "note": bound} for case in cases]

    with vp.DataLoader2(full_chain(with_it).map(bound), None, vp.ThreadReadingService(2)) as it:
        for batch in it:
            assert batch["note"] == [bound] * len(batch["note"])
            assert multiprocessing.active_children() == []

    assert {pid for pid, _ in bound.seen} == {os.getpid()}


def noise(thing):
    return thing + np.random.random() + torch.rand(()).item()


def add_to_batch(batch):
    return {**batch, "image": noise(batch["image"])}


def add_to_sample(sample):
    return sample.with_data(image=noise(sample["image"]))


def as_it_is(sample):
    return sample


def chains(cases):
    """Return chains in which functions stand before, between and behind what threads make."""
    whole = full_chain(cases, samples=5, batch=4)
    lazy = vp.from_cases(cases).shuffle().open_volume().lazy_patch(6, samples_per_volume=3)
    return [
        whole,
        whole.map(add_to_batch),
        lazy.realize().map(add_to_sample).batch_patches(2),
        lazy.realize()
        .map(add_to_sample)
        .brightness((-0.5, 0.5))
        .batch_patches(2)
        .map(add_to_batch),
        lazy.map(as_it_is).batch_patches(2),
        lazy.realize().map(add_to_sample),
    ]


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("number", range(6))
def test_functions_draw_as_in_one_thread(cases, number, count):
    """Wherever functions stand, and however many threads there are; limits change nothing."""
    plain = batches(chains(cases)[number])

    for adapters in ([], [vp.Timeout(item=LONGEST)]):
        found = batches(chains(cases)[number], vp.ThreadReadingService(count), adapters)
        assert len(found) == len(plain)
        for one, other in zip(found, plain, strict=True):
            assert one["image"].equal(other["image"])
            assert str(one.get("meta")) == str(other.get("meta"))


def test_functions_run_in_the_loop_and_leave_its_generators_alone(cases):
    """One at a time, in the thread that asks, which draws the same numbers as without a loader."""
    bound, drawn = Bound(), []
    np.random.seed(3)
    with vp.DataLoader2(full_chain(cases).map(bound), None, vp.ThreadReadingService(3)) as it:
        for _ in it:
            drawn.append(np.random.random())
    np.random.seed(3)

    assert {ident for _, ident in bound.seen} == {threading.get_ident()}
    assert drawn == [np.random.random() for _ in bound.seen]


def test_what_cannot_be_made_is_left_out_in_functions_too(cases):
    """The same failures, in the same batches, as in one thread."""
    broken = [*cases, {**cases[0], "case": "bad", "image": "missing.nii"}]
    found = []
    for service in (None, vp.ThreadReadingService(2)):
        chain = full_chain(broken).map(add_to_batch)
        with vp.DataLoader2(chain, [vp.OnError("replace")], service, seed=SEED) as it:
            images = [batch["image"] for batch in it]
            found.append((images, [str(failure) for failure in it.failures]))

    assert found[0][1] == found[1][1] != []
    assert all(map(torch.equal, found[0][0], found[1][0]))


@pytest.mark.parametrize("function", [None, add_to_batch])
def test_each_thread_counts_what_it_does_itself(cases, function):
    """A profile has the counts of one thread, though several read at once."""
    rows = []
    for service in (None, vp.ThreadReadingService(3)):
        profile = vp.Profile()
        chain = full_chain(cases, samples=8)
        chain = chain if function is None else chain.map(function)
        batches(chain, service, [profile])
        names = ("items", "reads", "bytes_read", "interpolations", "value_passes", "bytes_out")
        rows.append([[row[name] for name in names] for row in profile.to_json()])

    assert rows[0] == rows[1]


def test_counts_can_be_kept_apart():
    """What other threads count does not show; the sum of the process has everything."""
    before = IO_COUNTERS.snapshot()
    with count_apart():
        IO_COUNTERS.count(reads=2)
        # In a context of its own: Python without the interpreter's lock gives it a copy of this.
        count = partial(Context().run, IO_COUNTERS.count, reads=3)
        other = threading.Thread(target=count)
        other.start()
        other.join(LONGEST)
        assert counts_here().reads == 2

    assert (IO_COUNTERS - before).reads == 5
    assert counts_here() == IO_COUNTERS


class Gate:
    """A backend whose voxels come when the test lets them."""

    access, chunks, shards = "range", None, None
    open_gates = threading.Event()

    def __init__(self, request):
        self.shape = (1, 6, 6, 6)
        self.affine = torch.eye(4, dtype=torch.float64)
        self.dtype = np.dtype("int16")
        self.waits = "slow" in str(request.path)

    def __getitem__(self, slices):
        voxels = torch.zeros(self.shape, dtype=torch.int16)[slices]
        if self.waits and voxels.numel() > 1:  # it is tried with one voxel when it is opened
            assert Gate.open_gates.wait(LONGEST)
        return voxels

    def to_tensor(self):
        return self[:]


def is_gate(request):
    return request.path is not None and request.path.suffix == ".gate"


@pytest.fixture
def gated(tmp_path):
    """Return a function that makes a chain of volumes by name; the slow ones wait for a gate."""
    Gate.open_gates.clear()
    vp.register_backend("gate", is_gate, Gate)

    def chain(*names, normalizes=False):
        paths = [tmp_path / f"{n}-{name}.gate" for n, name in enumerate(names)]
        for path in paths:
            path.touch()
        cases = [{"case": str(n), "image": str(path)} for n, path in enumerate(paths)]
        volumes = vp.from_cases(cases).open_volume()
        return (volumes.normalize() if normalizes else volumes).batch_patches(1)

    yield chain
    Gate.open_gates.set()
    vp.volumes.unregister_backend("gate")


def test_the_order_is_that_of_the_plan_or_of_readiness(gated):
    """The first batch hangs: with ``as_ready`` the others pass it, and each comes once."""
    chain = gated("slow", *["fast"] * 5)
    order = []
    with vp.DataLoader2(chain, None, vp.ThreadReadingService(2, order="as_ready")) as it:
        for batch in it:
            order.append(int(batch["meta"][0]["case"]))
            if len(order) == 5:
                assert order == [1, 2, 3, 4, 5]
                Gate.open_gates.set()
    assert order == [1, 2, 3, 4, 5, 0]

    cases = [batch["meta"][0]["case"] for batch in batches(chain, vp.ThreadReadingService(2))]
    assert cases == list("012345")


def test_a_read_that_hangs_is_named_and_not_waited_for(gated):
    """ItemTimeout says which file a thread is at; when the read ends, the thread is gone."""
    limits = vp.Timeout(item=0.3, start=0.1, stop=0.2)
    with vp.DataLoader2(gated("slow", "fast"), limits, vp.ThreadReadingService(2)) as it:
        with pytest.raises(ItemTimeout, match=r"0-slow\.gate") as late:
            list(it)
        assert "Gate.open_gates.wait" in str(late.value)
        stuck = [t for t in threading.enumerate() if t.name.startswith("voxpipe-batches")]
        assert len(stuck) == 1

    Gate.open_gates.set()
    for thread in [t for t in threading.enumerate() if t.name in threads()]:
        thread.join(LONGEST)
    assert threads() == []


@pytest.mark.parametrize(
    "service",
    [None, vp.ThreadReadingService(1), vp.MultiProcessingReadingService(1, max_restarts=0)],
    ids=["in process", "threads", "workers"],
)
def test_a_pass_over_whole_volumes_is_named_where_it_is_late(gated, service):
    """ItemTimeout names the pass of normalize(), its volume, and how to avoid the wait."""
    start = 30.0 if isinstance(service, vp.MultiProcessingReadingService) else 0.1
    limits = vp.Timeout(item=0.5, start=start, stop=0.2)
    late = pytest.raises(ItemTimeout, match=r"pass over all voxels of .*0-slow\.gate is running")
    try:
        with vp.DataLoader2(gated("slow", normalizes=True), limits, service) as it, late as e:
            list(it)
    finally:
        Gate.open_gates.set()
    assert "voxpipe index" in str(e.value)
    for thread in [t for t in threading.enumerate() if t.name in threads()]:
        thread.join(LONGEST)


@pytest.mark.parametrize(
    ("service", "steps", "allowed"),
    [
        (vp.ThreadReadingService(2), lambda pipe: pipe, 1),
        (None, lambda pipe: pipe.prefetch(2), 0),
        (None, lambda pipe: pipe.threadpool_map(str, max_workers=2), 1),
    ],
    ids=["threads", "prefetch", "threadpool_map"],
)
def test_a_thread_too_many_for_the_system_is_told(gated, monkeypatch, service, steps, allowed):
    """The error names the limit of processes; threads that had started are gone."""
    pipe, started, start = steps(gated("fast", "fast", "fast")), [], threading.Thread.start

    def limited(thread):
        if len(started) == allowed:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    refused = pytest.raises(WorkerDied, match="can't start new thread")
    with vp.DataLoader2(pipe, None, service) as it, refused as e:
        list(it)
    assert "ulimit -u" in str(e.value)
    monkeypatch.undo()
    for thread in started:
        thread.join(LONGEST)
        assert not thread.is_alive()


def test_a_step_may_have_a_limit_of_its_own(gated):
    """``idle`` sees a thread that stays at one step, whatever a batch may take."""
    limits = vp.Timeout(item=LONGEST, idle=0.2, stop=0.2)
    expected = r"thread 1 of 1 has been at batch 0(.|\n)* for more than 0\.2 s\nstack of thread 1:"
    late = pytest.raises(ItemTimeout, match=expected)
    with late, vp.DataLoader2(gated("slow"), limits, vp.ThreadReadingService(1)) as it:
        list(it)
    Gate.open_gates.set()
    for thread in [t for t in threading.enumerate() if t.name in threads()]:
        thread.join(LONGEST)


def test_threads_are_gone_after_an_interrupt_which_loses_nothing(cases):
    """Ctrl-C in the midst of a batch ends the epoch; the same iterator goes on with that batch."""
    calls = []

    def interrupt(batch):
        calls.append(batch)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return batch

    plain = batches(full_chain(cases))
    with vp.DataLoader2(
        full_chain(cases).map(interrupt), None, vp.ThreadReadingService(2), seed=SEED
    ) as loader:
        it = iter(loader)
        found = [next(it)]
        with pytest.raises(KeyboardInterrupt):
            next(it)
        assert threads() == []
        found += it
        assert threads() == []

    assert same(found, plain)


def test_a_dropped_iterator_ends_its_threads(cases):
    """Nobody closes it: the threads do not keep it alive, and end with it."""
    loader = vp.DataLoader2(full_chain(cases), None, vp.ThreadReadingService(2))
    it = iter(loader)
    next(it)
    assert len(threads()) == 3
    del it, loader
    gc.collect()

    assert threads() == []


def test_a_program_may_end_in_the_midst_of_an_epoch(warm_python, cases):
    """Without a word, with its own status, though threads are at work."""
    script = (
        "import sys, voxpipe as vp\n"
        f"pipe = vp.from_cases([{{'image': {cases[0]['image']!r}}}] * 50).open_volume()\n"
        "pipe = pipe.lazy_patch(6)\n"
        "loader = vp.DataLoader2(pipe.batch_patches(2), None, vp.ThreadReadingService(2))\n"
        "batches = iter(loader)\n"
        "next(batches)\n"
        "sys.exit(3)\n"
    )
    done = warm_python.run(script)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


def taken(monkeypatch):
    """Return a list that grows with each batch that a thread begins to fill."""
    specs = []
    take = BatchBuffers.take
    monkeypatch.setattr(
        BatchBuffers, "take", lambda self, wanted: specs.append(wanted) or take(self, wanted)
    )
    return specs


@pytest.mark.parametrize("count", [1, 2])
def test_batches_in_flight_are_bounded(cases, monkeypatch, count):
    """However slow the loop is, each thread is at one, and ``prefetch_cnt`` more are ahead."""
    begun = taken(monkeypatch)
    chain = full_chain(cases, samples=16)
    with vp.DataLoader2(chain, None, vp.ThreadReadingService(count, prefetch_cnt=2)) as it:
        for delivered, _ in enumerate(it, 1):
            gc.collect()  # gives threads time
            assert len(begun) <= delivered + count + 2
    assert len(begun) == 12


def test_bytes_made_ahead_are_bounded(cases, monkeypatch):
    """With room for two batches, the one that is waited for included, two are on their way."""
    begun = taken(monkeypatch)
    size = batches(full_chain(cases))[0]["image"].nbytes * 5 // 4  # with the label of 8 bits
    service = vp.ThreadReadingService(2, prefetch_cnt=8, prefetch_bytes=2 * size)
    with vp.DataLoader2(full_chain(cases, samples=16), None, service) as it:
        for delivered, _ in enumerate(it, 1):
            # Before the first has arrived nobody knows how large they are.
            assert len(begun) <= max(delivered + 2, 4)
    assert len(begun) == 12


def test_nothing_ahead_still_makes_every_batch(cases):
    """One batch is always allowed."""
    service = vp.ThreadReadingService(2, prefetch_cnt=0, prefetch_bytes=0)

    assert same(batches(full_chain(cases), service), batches(full_chain(cases)))


def test_kept_batches_stay_and_dropped_memory_is_used_again():
    """A view of a batch keeps its memory; when the last is gone, the next batch has it."""
    buffers = BatchBuffers(most_free=2, most_bytes=10**6)
    specs = [(IMAGE, np.dtype("f4")), (IMAGE, np.dtype("u1"))]
    image, label = buffers.take(specs)
    image[...], label[...] = 1, 2
    address, view = image.ctypes.data, image[0, 0, 0]
    assert (image.shape, image.dtype, image.flags.c_contiguous) == (IMAGE, np.float32, True)
    assert (address % 64, label.ctypes.data % 64) == (0, 0)

    del image, label
    other, _ = buffers.take(specs)
    other[...] = 9
    assert other.ctypes.data != address
    assert (view == 1).all()

    del view
    assert buffers.take(specs)[0].ctypes.data == address


def test_memory_beyond_the_bound_is_that_of_the_batch():
    """Who keeps batches gets others: nothing waits, and what is free stays within its bound."""
    size = 2**16
    buffers = BatchBuffers(most_free=1, most_bytes=3 * size)
    specs = [((size,), np.dtype("u1"))]
    kept = [buffers.take(specs)[0] for _ in range(6)]
    assert len({array.ctypes.data for array in kept}) == 6
    assert len(buffers._in_use) == 3

    del kept
    buffers.settle()
    assert (len(buffers._in_use), len(buffers._free)) == (0, 1)
    buffers.close()
    assert buffers._free == []


class Device:
    """A registrar that only remembers; its device is done when the test says so."""

    def __init__(self):
        self.ready, self.done = False, False
        self.pinned, self.unpinned = [], []

    def is_ready(self):
        return self.ready

    def pin(self, address, size):
        self.pinned.append(address)
        return True

    def unpin(self, address):
        assert ctypes.string_at(address, 1) is not None  # still there
        self.unpinned.append(address)

    def mark(self):
        return lambda: self.done


def test_what_comes_back_while_memory_is_settled_is_not_lost(monkeypatch):
    """Batches are dropped in any thread at any time: also while others are taken back."""
    device = Device()
    device.ready = device.done = True
    buffers = BatchBuffers(2, 10**6, device)
    kept = [buffers.take([(IMAGE, np.dtype("f4"))]) for _ in range(2)]
    buffers.settle()

    class InUse(dict):
        def pop(self, number):
            kept.clear()
            return super().pop(number)

    monkeypatch.setattr(buffers, "_in_use", InUse(buffers._in_use))
    kept.pop()
    buffers.settle()
    buffers.settle()
    assert (len(buffers._in_use), len(buffers._free)) == (0, 2)


def test_memory_that_comes_back_after_the_end_is_dropped():
    """A thread that was given up takes memory of its own, and no number leads anywhere."""
    buffers = BatchBuffers(2, 10**6)
    specs = [(IMAGE, np.dtype("f4"))]
    first = buffers.take(specs)
    buffers.close()
    del first
    assert buffers.take(specs)[0].shape == IMAGE


def test_memory_is_page_locked_once_cuda_is_in_use():
    """And used again only when the devices are done with it; unlocked before it is freed."""
    device = Device()
    buffers = BatchBuffers(2, 10**6, device)
    specs = [(IMAGE, np.dtype("f4"))]
    first = buffers.take(specs)
    buffers.settle()
    assert device.pinned == []
    device.ready = True
    buffers.settle()
    buffers.settle()
    address = first[0].ctypes.data
    assert len(device.pinned) == 1

    del first
    second = buffers.take(specs)  # a copy may still be under way
    assert second[0].ctypes.data != address
    buffers.settle()
    assert buffers.take(specs)[0].ctypes.data not in (address, second[0].ctypes.data)
    device.done = True
    buffers.settle()
    again = buffers.take(specs)
    assert address in (again[0].ctypes.data, buffers.take(specs)[0].ctypes.data)

    del again, second
    buffers.close()
    gc.collect()
    assert sorted(device.unpinned) == sorted(device.pinned)


def test_explain_says_what_runs_where_and_what_would_do_better(cases):
    """Threads, what follows in one thread, and why a graph that is not split has one."""
    made = vp.DataLoader2(full_chain(cases), None, vp.ThreadReadingService(3)).explain()
    assert "realized in 3 threads of this process" in made
    assert "MultiProcessingReadingService" not in made
    assert "loader.diagnose() measures whether processes do better" in made

    chain = full_chain(cases).map(add_to_batch)
    functions = vp.DataLoader2(chain, None, vp.ThreadReadingService(3)).explain()
    assert "in one thread, while your loop waits for the batch\n  · map(add_to_batch" in functions
    assert "MultiProcessingReadingService(num_workers) runs them in workers" in functions

    pipe = vp.from_cases(cases).open_volume().lazy_patch(6).realize().shuffle()
    whole = vp.DataLoader2(pipe, None, vp.ThreadReadingService(3)).explain()
    assert "one thread runs it, as it is not split" in whole
    assert "depend on the number of workers" not in whole

    plans = vp.from_cases(cases).open_volume().lazy_patch(6)
    told = vp.DataLoader2(plans, None, vp.ThreadReadingService(3)).explain()
    assert "no thread is started: every pipe here plans" in told
    assert ".batch_patches(n) makes batches of patches" in told
    assert "interpreter's lock" not in told


def test_arguments_are_checked_at_once():
    """Before anything starts."""
    for arguments in ({"num_threads": 0}, {"order": "random"}, {"prefetch_cnt": -1}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            vp.ThreadReadingService(**arguments)


def test_two_threads_may_judge_a_label_at_once():
    """Once a key is over, a batch that was made beside it says nothing more."""
    likely = LikelyLabels(None)
    likely._samples["image"] = [object()]
    likely.over.add("image")

    likely.judge("image")


def test_a_stop_iteration_of_a_reader_is_no_end(gated, monkeypatch):
    """It is an error, as in a generator, and not an epoch that ends early."""
    Gate.open_gates.set()

    def stop(self, slices):
        raise StopIteration

    monkeypatch.setattr(Gate, "__getitem__", stop)
    with pytest.raises(VolumeReadError, match="StopIteration"):
        batches(gated("fast"), vp.ThreadReadingService(1))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_workers": 2}, "has no num_workers; give num_threads=2"),
        ({"threads_per_worker": 2}, "give num_threads, of which each makes a batch"),
        ({"num_thread": 3}, "give num_threads=3"),
        ({"persistent_workers": True}, "it takes num_threads, prefetch_cnt, order"),
    ],
)
def test_arguments_of_processes_are_refused_by_what_stands_for_them(arguments, words):
    """Whoever changes the name of the class alone learns what to change besides."""
    with pytest.raises(TypeError, match=words):
        vp.ThreadReadingService(**arguments)


def test_memory_of_batches_goes_back_to_the_system(monkeypatch):
    """It lies in pages of its own, so that no heap of an epoch's threads keeps a hole as large."""
    sizes = []

    def noted(size):
        sizes.append(size)
        return memory.private_pages(size)

    monkeypatch.setattr(slot_reader, "private_pages", noted)
    buffers = BatchBuffers(most_free=1, most_bytes=10**6)
    first, second = buffers.take([((3, 1000), np.dtype(np.float32)), ((5,), np.dtype(np.uint8))])

    assert sizes == [12_096]  # 12 000 bytes and 5, each from a multiple of 64 to the next
    assert not first.any()
    assert second.ctypes.data - first.ctypes.data == 12_032
    assert first.ctypes.data % 4096 == 0


def test_a_service_is_shown_as_it_was_written():
    """With what is not as usual."""
    service = vp.ThreadReadingService(2, prefetch_cnt=7, order="as_ready", memory_bytes=2**20)
    words = "num_threads=2, prefetch_cnt=7, order='as_ready', memory_bytes=1048576"
    assert repr(service) == f"ThreadReadingService({words})"
    assert repr(vp.ThreadReadingService(3)) == "ThreadReadingService(num_threads=3)"
    workers = vp.MultiProcessingReadingService(2, order="as_ready")
    assert repr(workers) == "MultiProcessingReadingService(num_workers=2, order='as_ready')"


def test_what_was_fetched_for_batches_that_nobody_makes_is_let_go_of(tmp_path, monkeypatch):
    """Else what the system may be told of would be used up by epochs that are left early."""
    enough, ended, told = threading.Event(), threading.Event(), []
    answer, end, tell = _Exchange._answer, _Exchange.end, HINTS.tell

    def tell_and_count(*args):
        told.append(tell(*args))
        if len(told) == 8:
            enough.set()
        return told[-1]

    def answer_one(self, seat, job, entry):
        if job.index > 0:  # all are handed out once it is known how large a batch is
            assert (enough if job.index == 1 else ended).wait(LONGEST)
        return answer(self, seat, job, entry)

    def end_all(self, threads):
        end(self, threads)
        ended.set()

    monkeypatch.setattr(HINTS, "is_warm", False)
    monkeypatch.setattr(file_reader, "is_cached", lambda *_: False)
    monkeypatch.setattr(HINTS, "tell", tell_and_count)
    monkeypatch.setattr(_Exchange, "_answer", answer_one)
    monkeypatch.setattr(_Exchange, "end", end_all)
    paths = [tmp_path / f"{name}.nii" for name in "abcdefgh"]
    for path in paths:
        nibabel.save(nibabel.Nifti1Image(np.ones((9, 9, 9), np.int16), np.eye(4)), path)
    cases = [{"image": str(path)} for path in paths]
    pipe = vp.from_cases(cases).open_volume().lazy_patch(8).batch_patches(1)
    service = vp.ThreadReadingService(1, prefetch_cnt=8)
    with vp.DataLoader2(pipe, None, service, seed=SEED) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
    assert any(told)
    assert HINTS.hinted_bytes == 0
