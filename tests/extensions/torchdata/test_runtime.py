"""One pipe in threads or processes of its own, on a device, or pinned; the same batches."""

import functools
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.adapters import Runtime
from voxpipe.core.errors import GraphError, NotPicklable, WorkerDied
from voxpipe.datapipes.iter import IterableWrapper

ARRAYS = [np.random.default_rng(n).random((8, 8, 8), dtype=np.float32) for n in range(3)]


def add_one(sample):
    """Add one to each voxel."""
    return sample.with_data(image=sample["image"] + 1)


def scale(sample):
    """Scale by a number of each global generator."""
    factor = float(np.random.rand()) + float(torch.rand(()))
    return sample.with_data(image=sample["image"] * factor)


def double(batch):
    """Double a batch."""
    return {**batch, "image": batch["image"] * 2}


def fail(number):
    """Refuse a number."""
    if number == 2:
        raise KeyError("two")
    return number


def end_of_file(number):
    """Raise an error that a pipe of processes knows, too."""
    raise EOFError("of the function itself")


def end_process(number):
    """End the process as the system would without memory."""
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def place(_):
    """Return the process, the cores and the thread's device."""
    return os.getpid(), tuple(sorted(os.sched_getaffinity(0)))


def unpicklable(_):
    """Return what no process can send."""
    return lambda: 0


def chain(function, *, late=False):
    """Return a chain with a function before or after the batch."""
    pipe = vp.from_cases([{"image": array} for array in ARRAYS]).open_volume()
    pipe = pipe.lazy_patch((4, 4, 4), samples_per_volume=3).augment(flip=0.5)
    return (
        pipe.batch_patches(2).map(double) if late else pipe.realize().map(function).batch_patches(2)
    )


def images(pipe, adapters=(), service=None):
    """Return the images of an epoch."""
    with vp.DataLoader2(pipe, [*adapters], service, seed=5) as loader:
        return [batch["image"] for batch in loader]


SETTINGS = [{"threads": 2}, {"processes": 2}, {"cores": [min(os.sched_getaffinity(0))]}]
SETTINGS += [{"device": "cpu", "threads": 2}]


@pytest.mark.parametrize("late", [False, True], ids=["before the batch", "after it"])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_batches_stay_the_same(setting, workers, late):
    """Here and in a worker, before the batch and after it."""
    pipe = chain(add_one, late=late)
    service = vp.MultiProcessingReadingService(num_workers=workers) if workers else None
    expected = images(pipe)

    found = images(pipe, [Runtime("map", **setting)], service)

    assert len(found) == len(expected) == 5
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_processes_draw_the_same_numbers(workers):
    """A function that draws from global generators draws in its process what it draws here."""
    service = vp.MultiProcessingReadingService(num_workers=workers) if workers else None

    found = images(chain(scale), [Runtime("map", processes=2)], service)

    assert all(torch.equal(a, b) for a, b in zip(found, images(chain(scale)), strict=True))


def test_threads_refuse_a_function_that_draws():
    """Threads would mix the numbers of items; a single one takes item after item."""
    assert images(chain(scale), [Runtime("map", device="cpu")])
    with pytest.raises(GraphError, match=r"map\(scale.*draws from a global generator"):
        images(chain(scale), [Runtime("map", threads=2)])


def draw(_):
    """Return a number of a global generator."""
    return float(np.random.rand())


def draw_later(number):
    """Draw from the third item on."""
    return float(np.random.rand()) if number > 1 else 0.0


@pytest.mark.parametrize(
    ("setting", "function"),
    [({"threads": 2}, draw), ({"processes": 2}, draw), ({"processes": 2}, draw_later)],
)
def test_items_at_once_share_no_numbers(setting, function):
    """Without a loader nothing seeds an item: a function that draws is refused."""
    pipe = IterableWrapper(range(8)).map(function)
    with pytest.raises(GraphError, match="would mix their numbers"):
        list(Runtime("map", **setting)(pipe))
    assert len(list(Runtime("map", threads=1)(pipe))) == 8


def scale_batch(batch):
    """Scale a batch by a number of a global generator."""
    return {**batch, "image": batch["image"] * float(np.random.rand())}


@pytest.mark.parametrize("setting", [{"threads": 2}, {"processes": 2}], ids=str)
def test_draws_of_the_last_pipe_are_refused(setting):
    """It runs in the loader's process, where its numbers would be others."""
    pipe = chain(add_one).map(scale_batch)
    with pytest.raises(GraphError, match="draws from a global generator"):
        images(pipe, [Runtime("map", **setting)])


def test_items_of_a_batch_and_batches_run_at_once():
    """All threads meet: items of one batch before it, whole batches after it."""
    meeting = threading.Barrier(2, timeout=30)

    def meet(sample):
        if not meeting.broken and sample is not None:
            meeting.wait()
        return sample

    first = iter([True])

    def meet_after_the_first(thing):
        return thing if next(first, False) else meet(thing)

    pipe = vp.from_cases([{"image": array} for array in ARRAYS]).open_volume()
    pipe = pipe.lazy_patch((4, 4, 4), samples_per_volume=3)
    late = pipe.batch_patches(3).map(meet_after_the_first)
    assert len(images(late, [Runtime("map", threads=2)])) == 3
    first = iter([True])
    early = pipe.realize().map(meet_after_the_first).batch_patches(9)
    assert len(images(early, [Runtime("map", threads=2)])) == 1


class Broken(IterableWrapper):
    """A source that fails after four items."""

    def __iter__(self):
        """Yield four numbers."""
        yield from range(4)
        raise OSError("the source is gone")


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_an_error_of_the_source_comes_after_earlier_items(setting):
    """As it would without the adapter."""
    found = []
    with pytest.raises(OSError, match="the source is gone"):
        found += iter(Runtime("map", **setting)(Broken([]).map(fail_never)))
    assert found == [0, 1, 2, 3]


def fail_never(number):
    """Return a number."""
    return number


def test_a_lambda_is_named():
    """Processes need a function of a module."""
    with pytest.warns(UserWarning, match="not supported by pickle"):
        pipe = IterableWrapper(range(2)).map(lambda number: number)
    with pytest.raises(NotPicklable, match=r"map\(.*cannot be sent to a process"):
        list(Runtime("map", processes=1)(pipe))


def test_an_op_of_ours():
    """Value ops draw from the stream of their sample, in any thread or process."""
    pipe = vp.from_cases([{"image": array} for array in ARRAYS]).open_volume()
    pipe = pipe.lazy_patch((4, 4, 4), samples_per_volume=2).realize().noise(std=(0.1, 1))
    expected = images(pipe.batch_patches(2))
    for setting in SETTINGS[:2]:
        found = images(pipe.batch_patches(2), [Runtime("noise", **setting)])
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_plain_chain_keeps_its_order():
    """A graph that is not split; items of any kind."""
    pipe = IterableWrapper(range(20)).map(fail)
    with pytest.raises(KeyError, match="two"):
        list(Runtime("map", processes=2)(pipe))
    whole = IterableWrapper([*range(3, 20)]).map(fail)
    for setting in SETTINGS:
        twin = Runtime("map", **setting)(whole)
        assert list(twin) == list(twin) == [*range(3, 20)]
        twin.shutdown()


def test_processes_of_its_own_on_their_cores():
    """Two processes make the items in turn, on the cores that were given."""
    core = max(os.sched_getaffinity(0))
    pipe = Runtime("map", processes=2, cores=[core])(IterableWrapper(range(6)).map(place))

    found = list(pipe)
    pipe.shutdown()

    assert len({pid for pid, _ in found}) == 2
    assert os.getpid() not in {pid for pid, _ in found}
    assert {cores for _, cores in found} == {(core,)}


def test_an_abandoned_pass_leaves_nothing():
    """The next pass begins anew, with the right items."""
    pipe = Runtime("map", processes=2)(IterableWrapper(range(3, 9)).map(fail))
    for item in pipe:
        assert item == 3
        break

    assert list(pipe) == [3, 4, 5, 6, 7, 8]
    first = iter(pipe)  # held, and not ended
    assert next(first) == 3
    assert list(pipe) == [3, 4, 5, 6, 7, 8]
    pipe.shutdown()


def hang_once(marker, number):
    """Sleep at the second number, unless a file says that this has happened."""
    if number == 1 and not marker.exists():
        marker.touch()
        time.sleep(60)
    return number


def interrupt_after(marker):
    """Interrupt this process when a file exists."""
    while not marker.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def test_an_item_at_work_does_not_delay_the_next_pass(tmp_path):
    """Its process is replaced."""
    marker = tmp_path / "hung"
    pipe = IterableWrapper(range(3)).map(functools.partial(hang_once, marker))
    pipe = Runtime("map", processes=1)(pipe)
    items = iter(pipe)
    assert next(items) == 0
    threading.Thread(target=interrupt_after, args=(marker,)).start()
    with pytest.raises(KeyboardInterrupt):
        next(items)

    assert list(pipe) == [0, 1, 2]
    pipe.shutdown()


def test_a_process_that_dies_is_named():
    """So is a result that cannot travel."""
    with pytest.raises(WorkerDied, match=r"a process of map\(end_process.*died"):
        list(Runtime("map", processes=1)(IterableWrapper(range(4)).map(end_process)))
    with pytest.raises(Exception, match="pickle"):
        list(Runtime("map", processes=1)(IterableWrapper(range(1)).map(unpicklable)))
    for setting in SETTINGS[:2]:
        with pytest.raises(EOFError, match="of the function itself"):
            list(Runtime("map", **setting)(IterableWrapper(range(1)).map(end_of_file)))


def test_explain_shows_it():
    """Next to the pipe, with its settings; a state fits loaders with and without it."""
    pipe = chain(add_one)
    with vp.DataLoader2(pipe, [Runtime("map", threads=2)], seed=1) as loader:
        assert "map(add_one" in loader.explain()
        assert "[threads=2]" in loader.explain()
        batches = iter(loader)
        first = next(batches)["image"]
        state = loader.state_dict()
        rest = [batch["image"] for batch in batches]
    with vp.DataLoader2(pipe, seed=1) as other:
        other.load_state_dict(state)
        assert all(torch.equal(a, b["image"]) for a, b in zip(rest, other, strict=True))
    assert first.shape == (2, 1, 4, 4, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("map",), ValueError, "changes nothing"),
        (("map", 1), TypeError, "positional"),
    ],
)
def test_wrong_arguments(arguments, error, text):
    """Each is refused at construction."""
    with pytest.raises(error, match=text):
        Runtime(*arguments)


def test_settings_that_contradict():
    """Threads and processes, cores that are not there, negative numbers."""
    with pytest.raises(ValueError, match="not both"):
        Runtime("map", threads=1, processes=1)
    with pytest.raises(ValueError, match="this process may use"):
        Runtime("map", cores=[10**6])
    with pytest.raises((ValueError, TypeError), match="threads"):
        Runtime("map", threads=-1)


def test_pipes_that_cannot_run_apart():
    """A name that is not there, and a pipe that remembers items."""
    pipe = chain(add_one)
    with pytest.raises(GraphError, match=r"names no pipe; there is FromCases, .*map"):
        Runtime("filter", threads=2)(pipe)
    with pytest.raises(GraphError, match=r"batch_patches\(2\) does not take single items"):
        Runtime("batch_patches", threads=2)(pipe)


@pytest.mark.parametrize("setting", [{"threads": 2}, {"threads": 1}, {"device": "cpu"}], ids=str)
@pytest.mark.parametrize("service", [None, vp.ThreadReadingService(2)], ids=["here", "threads"])
def test_a_diagnosis_has_the_function(setting, service):
    """Wherever it runs: the slowest part does not vanish from the report."""

    def sleep(batch):
        """Take much longer than all other parts."""
        time.sleep(0.02)
        return batch

    def loader(adapters):
        return vp.DataLoader2(chain(None, late=True).map(sleep), adapters, service, seed=5)

    with loader([Runtime("map", **setting)]) as running:
        before = torch.get_rng_state()
        found = running.diagnose(seconds=0.05, batches=2)
        assert torch.equal(before, torch.get_rng_state())
        assert found.limit == "functions"
        assert "map(sleep" in found.facts.function_names
        assert found.ceilings["functions"] < (110 if setting.get("threads") == 2 else 55)
        assert found.end_to_end < 110
        assert len([*running]) == 5
    assert not [t for t in threading.enumerate() if t.name.startswith("voxpipe-batches")]


@pytest.mark.slow
def test_a_diagnosis_has_the_function_of_processes():
    """They start for the diagnosis, and end with it."""
    with vp.DataLoader2(chain(None, late=True), [Runtime("map", processes=2)], seed=5) as loader:
        found = loader.diagnose(seconds=0.05, batches=2)

    assert "functions" in found.ceilings
    assert found.costs.tail > 0
    assert found.costs.tail_ahead
