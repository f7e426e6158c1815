"""What is left after an epoch that finished, failed or was abandoned: nothing."""

import gc
import multiprocessing as mp
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
from leftovers import shared_names_left
from scenes import full_chain, write_cases
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import IteratorInvalidated, LoaderShutDown, SlotsUsedUp
from voxpipe.volumes import close_volumes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"))


@pytest.fixture(scope="module", autouse=True)
def started_once(cases):
    """The fork server and its pipes belong to the interpreter, not to an epoch.

    So do volumes that tests of other files left open.
    """
    gc.collect()
    close_volumes()
    with loader(cases) as it:
        list(it)


def loader(cases, **options):
    service = vp.MultiProcessingReadingService(2, **options)
    return vp.DataLoader2(full_chain(cases), None, service, seed=7)


def open_files():
    gc.collect()
    return {(fd, os.readlink(f"/proc/self/fd/{fd}")) for fd in _fds()}


def _fds():
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


def mapped():
    """Names of the memory that is mapped: volumes and slots show here."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return {line.split()[-1] for line in lines if ".nii" in line or "memfd:voxpipe" in line}


def test_a_finished_epoch_leaves_nothing(cases):
    """No worker, no descriptor, no volume, and no slot once the batches are gone."""
    before = open_files()

    it = loader(cases)
    for batch in it:
        del batch

    assert mp.active_children() == []
    assert open_files() == before
    assert mapped() == set()


def test_an_abandoned_epoch_leaves_nothing(cases):
    """Leaving the loop ends the workers at once, without a word to the loader."""
    before = open_files()

    for _batch in loader(cases):
        break
    del _batch

    assert mp.active_children() == []
    assert open_files() == before
    assert mapped() == set()


@pytest.mark.parametrize("end", ["finished", "abandoned"])
def test_kept_batches_leave_nothing_once_they_are_gone(cases, end):
    """Batches in their slots and copies of them: what holds them is the user's list only."""
    before, shm = open_files(), set(os.listdir("/dev/shm"))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlotsUsedUp)
        it = iter(loader(cases, slot_bytes=6 * 2**21))
        kept = [next(it) for _ in range(2)] if end == "abandoned" else list(it)
    del it
    gc.collect()

    assert mp.active_children() == []
    assert open_files() == before
    assert mapped() != set()
    del kept
    gc.collect()
    assert mapped() == set()
    assert shared_names_left(shm) == set()


@pytest.mark.filterwarnings("ignore::voxpipe.core.errors.IdleWorkers")  # one works, as asked
def test_an_iterator_that_is_kept_keeps_no_slot(cases):
    """The free slots of an epoch end with it, whoever still holds its iterator."""
    pipe = full_chain(cases).filter(bool)
    service = vp.MultiProcessingReadingService(2)
    it = iter(vp.DataLoader2(pipe, None, service, seed=7))

    for batch in it:
        del batch

    assert mapped() == set()
    del it


def test_a_failed_epoch_leaves_nothing(cases, tmp_path):
    """A bad file ends the epoch and the workers."""
    bad = [*cases, {"case": "bad", "image": str(tmp_path / "no.nii"), "label": "no.nii"}]
    before = open_files()

    with pytest.raises(FileNotFoundError):
        list(loader(bad))

    assert mp.active_children() == []
    assert open_files() == before


def test_persistent_workers_stay_until_shutdown(cases):
    """With persistent_workers the same processes serve the next epoch; stop() ends them."""
    with loader(cases, persistent_workers=True) as it:
        list(it)
        first = {child.pid for child in mp.active_children()}
        list(it)
        second = {child.pid for child in mp.active_children()}

    assert len(first) == 2
    assert first == second
    assert mp.active_children() == []


def test_shutdown_twice_and_use_after(cases):
    """shutdown() may be called again; iterating afterwards says what happened."""
    it = loader(cases)
    batches = iter(it)
    next(batches)
    it.shutdown()
    it.shutdown()

    with pytest.raises(LoaderShutDown):
        iter(it)
    with pytest.raises(IteratorInvalidated, match="was shut down"):
        next(batches)
    assert mp.active_children() == []


def test_a_newer_iterator_takes_over(cases):
    """Only the last iterator of a loader runs; the older one says so."""
    with loader(cases) as it:
        old = iter(it)
        next(old)
        new = iter(it)

        assert next(new)["meta"][0]["epoch"] == 1
        with pytest.raises(IteratorInvalidated, match="a newer iterator"):
            next(old)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda it, state: it.seed(8), r"seed\(\) of its DataLoader2"),
        (lambda it, state: it.set_epoch(3), r"set_epoch\(3\) of the loader"),
        (lambda it, state: it.load_state_dict(state), r"load_state_dict\(\) of its DataLoader2"),
    ],
)
def test_what_ended_an_epoch_is_named(end, told):
    """A loop that is still running is told what ended it, and not of an iterator that is none."""
    with vp.DataLoader2(IterableWrapper(range(3)), seed=7) as it:
        batches = iter(it)
        next(batches)
        end(it, it.state_dict())

        with pytest.raises(IteratorInvalidated, match=told):
            next(batches)


def test_batches_outlive_their_loader(cases):
    """Tensors in shared memory stay valid after the workers are gone."""
    with vp.DataLoader2(full_chain(cases), seed=7) as reference:
        expected = [batch["image"].clone() for batch in reference]
    with loader(cases) as it:
        kept = [batch["image"][1:] for batch in it]
    gc.collect()

    assert all(bool((a == b[1:]).all()) for a, b in zip(kept, expected, strict=True))


SCRIPT = """
import os, signal, sys, threading
sys.path.insert(0, {tests!r})
import voxpipe as vp
from scenes import full_chain, write_cases
from pathlib import Path
import multiprocessing as mp

def hold(batch):
    threading.Event().wait()

if __name__ == "__main__":
    cases = write_cases(Path({folder!r}))
    pipe = full_chain(cases).map(hold) if {hang} else full_chain(cases)
    loader = vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(2, {method!r}), seed=7)
    batches = iter(loader)
    if {hang}:
        # tell who the workers are as soon as they run, then wait for a batch for ever
        def tell():
            while len(mp.active_children()) < 2:
                threading.Event().wait(0.1)
            print(*[c.pid for c in mp.active_children()], flush=True)
        threading.Thread(target=tell, daemon=True).start()
    else:
        kept = next(batches)
        print(*[c.pid for c in mp.active_children()], flush=True)
        {then}
    next(batches)
"""


def run(folder, method, hang=False, then="pass"):
    tests = str(Path(__file__).parent.parent)
    text = textwrap.dedent(SCRIPT).format(
        tests=tests, folder=str(folder), method=method, hang=hang, then=then
    )
    script = folder / "script.py"
    script.write_text(text)
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def gone(pid):
    """Whether a process has ended; waits for it on its own descriptor, not on a clock."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        import select

        return bool(select.select([fd], [], [], 10)[0])
    finally:
        os.close(fd)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
def test_workers_of_a_killed_parent_end(tmp_path, method):
    """Kill -9 of the consumer ends its workers and leaves nothing in /dev/shm."""
    shm = set(os.listdir("/dev/shm"))
    process = run(tmp_path, method, hang=True)
    pids = [int(pid) for pid in process.stdout.readline().split()]

    process.kill()
    process.communicate(timeout=30)

    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)
    assert shared_names_left(shm) == set()


@pytest.mark.slow
def test_batches_of_a_killed_parent_leave_nothing(tmp_path):
    """Kill -9 of a consumer that looks into slots: no worker, no name, no memory stays."""
    shm = set(os.listdir("/dev/shm"))
    process = run(tmp_path, "forkserver", then="os.kill(os.getpid(), signal.SIGKILL)")
    output, _ = process.communicate(timeout=60)

    pids = [int(pid) for pid in output.split()]
    assert process.returncode == -signal.SIGKILL
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)
    assert shared_names_left(shm) == set()


@pytest.mark.slow
def test_ctrl_c_ends_at_once(tmp_path):
    """SIGINT to the whole group: KeyboardInterrupt here, and the workers are gone."""
    process = run(tmp_path, "forkserver", hang=True)
    pids = [int(pid) for pid in process.stdout.readline().split()]

    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)

    assert "KeyboardInterrupt" in errors
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


@pytest.mark.slow
def test_leaving_the_interpreter_mid_epoch(tmp_path):
    """A script that ends in the middle of an epoch ends, with no error and no worker."""
    process = run(tmp_path, "forkserver", then="sys.exit(0)")
    output, errors = process.communicate(timeout=60)

    assert process.returncode == 0
    assert errors == ""
    assert all(gone(int(pid)) for pid in output.split())
