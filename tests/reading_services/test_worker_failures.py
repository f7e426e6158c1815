"""A worker that raises, hangs or is killed: one readable error, and the loader goes on."""

import copyreg
import functools
import os
import signal
import sys
import threading
import time

import pytest
from scenes import full_chain, same, write_cases

import voxpipe as vp
from voxpipe.core.errors import ItemTimeout, NotPicklable, WorkerDied

pytestmark = pytest.mark.filterwarnings(
    # forking with threads of torch around is what these tests ask for
    "ignore:This process.*is multi-threaded:DeprecationWarning"
)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"))


class TwoArguments(Exception):
    """Cannot be unpickled: its constructor wants more than its message."""

    def __init__(self, what, where):
        super().__init__(f"{what} at {where}")


def at_case(name, act, batch):
    """Do ``act`` in the batch that holds a patch of case ``name``."""
    if any(meta["case"] == name for meta in batch["meta"]):
        act()
    return batch


def raise_value_error():
    raise ValueError("a user's mistake")


def raise_two_arguments():
    raise TwoArguments("this", "there")


def leave():
    sys.exit(5)


def kill_me():
    os.kill(os.getpid(), signal.SIGKILL)


HELD = threading.Event()


def hang():
    HELD.wait()


@pytest.fixture
def released():
    """Let the thread of this process go on afterwards: its epoch would stay open for all tests."""
    yield
    HELD.set()
    HELD.clear()


SEED_WITH_CASE2_LAST = 0


def loader(cases, act, *adapters, workers=2, method="fork"):
    pipe = full_chain(cases).map(functools.partial(at_case, "case1", act))
    # What a replacement does is tested in test_replaced_workers.py.
    service = vp.MultiProcessingReadingService(workers, method, max_restarts=0)
    return vp.DataLoader2(pipe, adapters, service, seed=7)


def test_an_exception_arrives_as_itself(cases):
    """The type and message are the user's; the worker's traceback is the cause."""
    it = loader(cases, raise_value_error, method="forkserver")
    with it, pytest.raises(ValueError, match="mistake") as e:
        list(it)

    cause = str(e.value.__cause__)
    assert "raise_value_error" in cause
    assert "test_worker_failures.py" in cause
    assert "while making batch" in cause
    assert "case1" in cause


def test_an_exception_that_cannot_travel_is_told(cases, monkeypatch):
    """What cannot be unpickled becomes a WorkerDied that quotes it."""
    # tblib, which other tests may have imported, pickles any exception.
    monkeypatch.delitem(copyreg.dispatch_table, TwoArguments, raising=False)
    with loader(cases, raise_two_arguments) as it, pytest.raises(WorkerDied, match="this at there"):
        list(it)


def test_exit_in_a_worker_does_not_end_the_consumer(cases):
    """SystemExit in a worker is an error here, not an exit."""
    with loader(cases, leave) as it, pytest.raises(WorkerDied, match="SystemExit: 5"):
        list(it)


def test_a_killed_worker_is_named_with_its_case(cases):
    """The error says which worker, which signal, which cases, and what to try."""
    with loader(cases, kill_me) as it, pytest.raises(WorkerDied) as e:
        list(it)

    text = str(e.value)
    assert "was killed by SIGKILL" in text
    assert "case1" in text
    assert "smaller batches" in text


def test_a_hanging_worker_is_named_with_its_case(cases):
    """At the time limit the error says what each worker was busy with."""
    # Of the seed's order, this case is in the last batch: the first ones come in time.
    pipe = full_chain(cases).map(functools.partial(at_case, "case2", hang))
    service = vp.MultiProcessingReadingService(2, "fork")

    with (
        vp.DataLoader2(pipe, vp.Timeout(item=3.0), service, seed=SEED_WITH_CASE2_LAST) as it,
        pytest.raises(ItemTimeout) as e,
    ):
        list(it)

    assert "case2" in str(e.value)
    assert "Timeout(item=" in str(e.value)


def test_a_hang_in_process_shows_where(cases, released):
    """Without workers the error holds the stack that is stuck."""
    pipe = full_chain(cases).map(functools.partial(at_case, "case1", hang))

    limits = vp.Timeout(item=0.5, start=0.5)
    with vp.DataLoader2(pipe, limits, seed=7) as it, pytest.raises(ItemTimeout) as e:
        list(it)

    assert "in hang" in str(e.value)


def stop_me():
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_stopped_worker_keeps_nobody_waiting(cases):
    """A worker that takes no messages any more runs into the limit, and is killed."""
    large = [{**case, "note": "x" * 300_000} for case in cases]  # more than a socket buffers
    limits = vp.Timeout(item=1.0, start=20.0)

    with loader(large, stop_me, limits, workers=1) as it, pytest.raises(ItemTimeout) as e:
        for _batch in it:
            pass

    assert "case1" in str(e.value)


def warn_locally():
    class Local(UserWarning):
        pass

    import warnings

    warnings.warn("only here", Local, stacklevel=1)


def test_a_warning_class_of_the_workers_own_arrives_as_a_warning(cases):
    """A class that cannot travel becomes a UserWarning; the worker lives on."""
    with loader(cases, warn_locally) as it, pytest.warns(UserWarning, match="only here"):
        assert len(list(it)) == 3


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


def raise_unspeakable():
    raise Unspeakable


def test_an_exception_without_words_arrives(cases):
    """An exception whose message fails is still told by its class."""
    with loader(cases, raise_unspeakable) as it, pytest.raises((Unspeakable, WorkerDied)):
        list(it)


@pytest.mark.parametrize("act", [raise_value_error, kill_me], ids=["raised", "killed"])
def test_the_loader_goes_on_after_a_failure(cases, act):
    """The next epoch starts new workers; batches before the failing one were delivered."""
    with loader(cases, act) as it:
        for _ in range(2):
            with pytest.raises((ValueError, WorkerDied)):
                list(it)

        assert it.state_dict()["epoch"] >= 1


def test_batches_before_the_failing_one_arrive(cases):
    """An error comes in its turn: everything planned before it is delivered first."""
    with vp.DataLoader2(full_chain(cases), seed=7) as whole:
        expected = list(whole)
    failing = next(
        n for n, b in enumerate(expected) if any(m["case"] == "case1" for m in b["meta"])
    )

    got = []

    def take_all(batches):
        for batch in batches:
            got.append(batch)

    with loader(cases, raise_value_error, workers=3) as it, pytest.raises(ValueError, match="m"):
        take_all(it)

    assert same(got, expected[:failing])


def test_a_lambda_is_refused_before_anything_starts(cases):
    """What cannot travel is named at construction, with the fix, and by us alone."""
    pipe = full_chain(cases).map(lambda batch: batch)  # torch's own warning would be an error

    with pytest.raises(NotPicklable, match=r"map\(<lambda> test_worker_failures.py:\d+\)") as e:
        vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(2))

    assert "at .map(<lambda>)   test_worker_failures.py:" in str(e.value)
    assert "top level of a module that you import" in str(e.value)


def test_a_lambda_is_fine_without_workers(cases):
    """In one process nothing needs to travel."""
    pipe = full_chain(cases).map(lambda batch: batch)

    with vp.DataLoader2(pipe, seed=7) as it:
        assert len(list(it)) == 3


def warn_and_raise():
    import warnings

    warnings.warn("before the mistake", RuntimeWarning, stacklevel=1)
    raise ValueError("a user's mistake")


def test_what_a_failing_worker_warned_of_arrives(cases):
    """A warning often says why; it comes with the error."""
    with (
        loader(cases, warn_and_raise) as it,
        pytest.warns(RuntimeWarning, match="before the mistake"),
        pytest.raises(ValueError, match="a user's mistake"),
    ):
        list(it)


def test_what_a_failing_worker_counted_arrives(cases):
    """The profile knows the patches that were realized for the batch that failed."""
    profile = vp.Profile()
    pipe = full_chain(cases[1:2]).map(functools.partial(at_case, "case1", raise_value_error))
    service = vp.MultiProcessingReadingService(1, "fork", worker_prefetch_cnt=1)

    with vp.DataLoader2(pipe, [profile], service, seed=7) as it:
        with pytest.raises(ValueError, match="mistake"):
            list(it)
        row = next(line for line in it.profile().splitlines() if "batch_patches" in line)

    assert " 1 " in row


def kill_idle(it, number):
    """Kill a worker that has nothing to do, and wait until it is gone."""
    process = it._service._pool.workers[number].process
    process.kill()
    process.join()


def test_an_idle_worker_may_die(cases):
    """While others make what is left, nobody misses it."""
    # Two batches and three workers: the third never gets a job.
    pipe = full_chain(cases[:2])
    with vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(3, "fork"), seed=7) as it:
        batches = iter(it)
        first = next(batches)
        kill_idle(it, 2)

        assert len([first, *batches]) == 2


def test_a_worker_that_died_idle_is_named_when_it_is_needed(cases):
    """Given a job, it fails the epoch, after the batches that the others have made."""
    pipe = full_chain(cases, samples=16)
    service = vp.MultiProcessingReadingService(2, "fork", worker_prefetch_cnt=1, max_restarts=0)
    got = []
    with vp.DataLoader2(pipe, None, service, seed=7) as it:
        batches = iter(it)
        got.append(next(batches))
        pool = it._service._pool
        # Until the answer of the second is here, and it is idle.
        while pool.workers[1].jobs:
            for worker, answer in pool.answers(time.monotonic() + 60, 60):
                batches._running.batches._store(worker, answer)
        kill_idle(it, 1)
        with pytest.raises(WorkerDied, match=r"worker 1 .*SIGKILL while it had "):
            got.extend(batches)

    assert len(got) >= 2
