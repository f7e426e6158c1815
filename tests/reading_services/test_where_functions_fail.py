"""A user's function that raises, exits, crashes or hangs: its pipe, line and case are told."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from scenes import write_cases

import voxpipe as vp
from voxpipe.core.errors import ItemTimeout, SampleError, WorkerDied

FILE = os.path.basename(__file__)
noted = pytest.mark.skipif(sys.platform != "linux", reason="memfd_create")


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"))


def fail(thing):
    raise KeyError("a user's mistake")


def stop(thing):
    raise StopIteration


def nothing(thing):
    """A function whose author forgot to return."""


def is_case1(sample):
    return sample.get("meta", [{"case": getattr(sample, "case", "")}])[0]["case"] == "case1"


def leave(sample):
    if is_case1(sample):
        os._exit(3)
    return sample


def exits(sample):
    if is_case1(sample):
        sys.exit(5)
    return sample


def kill(sample):
    if is_case1(sample):
        os.kill(os.getpid(), signal.SIGSEGV)
    return sample


GO_ON = threading.Event()


def hang(sample):
    if is_case1(sample):
        GO_ON.wait()
    return sample


def same(thing):
    return thing


def planned(cases, function):
    return vp.from_cases(cases).map(function).open_volume().batch_patches(2)


def per_sample(cases, function):
    chain = vp.from_cases(cases).open_volume().lazy_patch(4).realize().map(same)
    return chain.map(function).map(same).batch_patches(2)


def per_batch(cases, function):
    return vp.from_cases(cases).open_volume().lazy_patch(4).batch_patches(2).map(function)


def whole_graph(cases, function):
    """A filter on voxels cannot be cut: each worker runs everything."""
    return per_sample(cases, function).filter(same)


def line_of(make):
    """Return the line on which a chain above is given its function."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    start = make.__code__.co_firstlineno
    return next(n for n in range(start, len(lines)) if "map(function)" in lines[n - 1])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("chain", [planned, per_sample, per_batch])
def test_an_error_keeps_its_type_and_names_the_pipe_and_the_case(cases, chain, workers):
    """Wherever the function runs, a note says which pipe it belongs to, as it was written."""
    service = vp.MultiProcessingReadingService(workers, "fork")

    with (
        vp.DataLoader2(chain(cases, fail), None, service, seed=1) as it,
        pytest.raises(KeyError) as e,
    ):
        list(it)

    assert e.value.args == ("a user's mistake",)
    assert f"at .map(fail)   {FILE}:{line_of(chain)}" in e.value.__notes__
    assert any(note.startswith("in case case") for note in e.value.__notes__)


SERVICES = {
    "here": lambda: None,
    "threads": lambda: vp.ThreadReadingService(1),
    "workers": lambda: vp.MultiProcessingReadingService(1, "fork"),
}


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("chain", [planned, per_sample, per_batch, whole_graph])
def test_a_stop_iteration_names_the_function_and_the_pipe(cases, chain, service):
    """Python turns it into an error that has lost the frames of both."""
    with (
        vp.DataLoader2(chain(cases, stop), None, SERVICES[service](), seed=1) as it,
        pytest.raises(RuntimeError, match=rf"^stop\(\) .*{FILE}:\d+\) raised StopIteration") as e,
    ):
        list(it)

    line = line_of(per_sample if chain is whole_graph else chain)
    assert f"at .map(stop)   {FILE}:{line}" in e.value.__notes__


def stop_at_start(pipe, info):
    return next(iter(()))


def test_a_stop_iteration_of_a_worker_ends_no_epoch(cases):
    """It would look like a share without items."""
    service = vp.MultiProcessingReadingService(1, "fork", worker_init_fn=stop_at_start)
    with (
        vp.DataLoader2(per_batch(cases, same), None, service, seed=1) as it,
        pytest.raises(RuntimeError, match=r"^stop_at_start\(\) .* raised StopIteration") as e,
    ):
        list(it)

    assert "in worker_init_fn=stop_at_start of worker 0" in e.value.__notes__


def test_a_function_that_returns_nothing_is_told_to_return(cases):
    """The batch cannot know which function it was, but what is wrong."""
    with (
        vp.DataLoader2(per_sample(cases, nothing), None, seed=1) as it,
        pytest.raises(SampleError) as e,
    ):
        list(it)

    assert "returned nothing: let it return the sample" in str(e.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_a_graph_that_is_not_split_names_the_pipe(cases, workers):
    """Whole graphs say it as well."""
    service = vp.MultiProcessingReadingService(workers, "fork")

    with (
        vp.DataLoader2(whole_graph(cases, fail), None, service, seed=1) as it,
        pytest.raises(KeyError) as e,
    ):
        list(it)

    assert f"at .map(fail)   {FILE}:{line_of(per_sample)}" in e.value.__notes__


@pytest.mark.parametrize("chain", [per_sample, per_batch, whole_graph])
def test_a_function_that_exits_in_a_worker_names_the_pipe_and_the_item(cases, chain):
    """It is told as other errors are: in which pipe, on which line, of which item."""
    service = vp.MultiProcessingReadingService(1, "fork")
    only = cases[1:2] if chain is per_batch else cases
    place = "in item 0" if chain is whole_graph else "in case case1"

    with (
        vp.DataLoader2(chain(only, exits), None, service, seed=1) as it,
        pytest.raises(WorkerDied, match="a worker raised SystemExit: 5") as e,
    ):
        list(it)

    _, *lines = str(e.value).splitlines()
    told = per_sample if chain is whole_graph else chain
    assert sorted(lines[:2])[0] == f"  at .map(exits)   {FILE}:{line_of(told)}"
    assert any(line.startswith(f"  {place}") for line in lines[:2])


def test_a_function_that_exits_in_process_ends_it(cases):
    """There it is the user's own process, and what a script means by it."""
    with vp.DataLoader2(per_sample(cases, exits), None, seed=1) as it, pytest.raises(SystemExit):
        list(it)


@noted
@pytest.mark.parametrize(("function", "ended"), [(leave, "exit status 3"), (kill, "by SIGSEGV")])
@pytest.mark.parametrize("chain", [per_sample, per_batch])
def test_a_worker_that_a_function_ends_is_told_with_its_pipe(cases, chain, function, ended):
    """The error says how it ended, in which pipe, for which case and files, and what to do."""
    service = vp.MultiProcessingReadingService(1, "fork", max_restarts=0)
    only = cases[1:2] if chain is per_batch else cases

    with (
        vp.DataLoader2(chain(only, function), None, service, seed=1) as it,
        pytest.raises(WorkerDied) as e,
    ):
        list(it)

    text = str(e.value)
    assert text.startswith("worker 0 (pid ")
    assert ended in text
    assert f"at .map({function.__name__})   {FILE}:{line_of(chain)}" in text
    assert "of case1 (" in text
    assert "case1_image.nii" in text
    assert "num_workers=0" in text


@noted
def test_a_function_that_hangs_in_a_worker_is_named(cases):
    """At the limit the error names the pipe that is stuck, the sample and its files."""
    service, limits = vp.MultiProcessingReadingService(1, "fork"), vp.Timeout(item=3.0, start=60.0)
    first = [cases[0], cases[2], cases[1]]  # the first batch comes in time: workers are up then

    with (
        vp.DataLoader2(per_sample(first, hang), limits, service, seed=1) as it,
        pytest.raises(ItemTimeout) as e,
    ):
        list(it)

    text = str(e.value)
    assert f"at .map(hang)   {FILE}:{line_of(per_sample)}" in text
    assert "of case1 (" in text
    assert "case0" not in text


def test_a_function_that_hangs_in_process_is_named(cases):
    """The pipe is told beside the stack."""
    limits = vp.Timeout(item=0.5, start=0.5)

    try:
        with (
            vp.DataLoader2(per_sample(cases, hang), limits, seed=1) as it,
            pytest.raises(ItemTimeout) as e,
        ):
            list(it)
    finally:
        GO_ON.set()  # the epoch runs, and keeps volumes open, as long as the function hangs

    assert f"at .map(hang)   {FILE}:{line_of(per_sample)}" in str(e.value)
