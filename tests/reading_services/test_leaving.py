"""Leaving an epoch in its middle, again and again, leaves nothing; Ctrl-C is one traceback."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

import pytest
from leftovers import alive, left_behind
from scenes import full_chain, write_cases
from test_replaced_workers import whole_graph

import voxpipe as vp

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    # forking with threads of torch around is what these tests ask for
    pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning"),
]
# Two hundred times, in parts: a busy machine needs more than the limit of one test for all.
PARTS, OFTEN, ENOUGH = 4, 50, 5


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Temporary files of this test alone: other programs of the machine make theirs meanwhile."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"))


def present():
    """Return what may be left: names of files and shared memory, mapped slots, any thread."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    slots = sum("memfd:voxpipe" in line for line in maps)
    shared = {name for name in os.listdir("/dev/shm") if "voxpipe" in name}
    threads = len(os.listdir("/proc/self/task"))
    return shared | set(os.listdir(tempfile.gettempdir())), slots, threads


def leave(loader, how):
    """Take a batch and leave: by a break, by dropping the iterator, by an error in the loop."""
    if how == 0:
        for _batch in loader:
            break
    elif how == 1:
        next(iter(loader))
    else:
        with pytest.raises(KeyError):
            fail_in_the_loop(loader)


def fail_in_the_loop(loader):
    for _batch in loader:
        raise KeyError("in the loop")


def check(cases, times, chain, **options):
    # A fork has torch, which whole graphs need, without an import in each of so many workers.
    method = "fork" if chain == "whole graph" else "forkserver"
    service, make = vp.MultiProcessingReadingService(2, method, **options), CHAINS[chain]
    # What the process keeps for good: the fork server, its pipes.
    leave(vp.DataLoader2(make(cases), None, service, seed=7), 0)
    before, there = alive(), present()
    kept = vp.DataLoader2(make(cases), None, service, seed=7)
    for number in range(times):
        # In turn one loader that lives on, and a new one that is dropped.
        loader = kept if number % 2 else vp.DataLoader2(make(cases), None, service, seed=7)
        leave(loader, number % 3)
        del loader
    kept.shutdown()
    del kept

    assert left_behind(before) == set()
    assert present() == there


CHAINS = {"planned": full_chain, "whole graph": whole_graph}


@pytest.mark.parametrize(
    ("chain", "stay"),
    [
        ("planned", False),
        ("planned", True),
        ("whole graph", False),
        pytest.param("whole graph", True, marks=pytest.mark.slow),
    ],
)
def test_leaving_leaves_nothing(cases, chain, stay):
    """No process, thread, descriptor, shared memory or file, some times."""
    check(cases, ENOUGH, chain, persistent_workers=stay, main_prefetch_cnt=4)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("chain", CHAINS)
def test_leaving_often_leaves_nothing(cases, chain, part):
    """Nor two hundred times."""
    check(cases, OFTEN, chain, main_prefetch_cnt=4)


SCRIPT = """
import os, signal, sys
sys.path[:0] = [{tests!r}, {here!r}]
import multiprocessing as mp
from pathlib import Path
import voxpipe as vp
from scenes import full_chain, write_cases
from test_replaced_workers import whole_graph

if __name__ == "__main__":
    cases = write_cases(Path({folder!r}))
    service = vp.MultiProcessingReadingService(2, main_prefetch_cnt=4)
    for number, batch in enumerate(vp.DataLoader2({chain}(cases), None, service, seed=7)):
        print(*[child.pid for child in mp.active_children()], flush=True)
        os.killpg(0, signal.SIGINT)
"""


@pytest.mark.parametrize(
    "chain", ["full_chain", pytest.param("whole_graph", marks=pytest.mark.slow)]
)
def test_ctrl_c_in_the_middle_is_one_traceback(warm_python, tmp_path, chain):
    """SIGINT to all processes of a terminal: the consumer says so, and all are gone."""
    here = Path(__file__).parent
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(SCRIPT).format(
            tests=str(here.parent), here=str(here), folder=str(tmp_path), chain=chain
        )
    )

    ended = warm_python.run(script, new_session=True)

    assert ended.returncode == -signal.SIGINT
    assert ended.stderr.count("Traceback (most recent call last)") == 1
    assert ended.stderr.rstrip().endswith("KeyboardInterrupt")
    pids = ended.stdout.split()
    assert len(pids) == 2
    # The consumer waited for its workers: they are gone, not on their way out.
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


ABOUT_A_FORK = threading.Event()


def test_ctrl_c_about_a_fork_is_not_lost(cases):
    """Python prints and forgets what its hooks about a fork raise."""
    os.register_at_fork(  # for the life of the process: harmless unless it is asked for
        after_in_parent=lambda: ABOUT_A_FORK.is_set() and signal.raise_signal(signal.SIGINT)
    )
    service = vp.MultiProcessingReadingService(1, multiprocessing_context="fork")
    ABOUT_A_FORK.set()
    try:
        with pytest.raises(KeyboardInterrupt):
            next(iter(vp.DataLoader2(full_chain(cases), None, service, seed=7)))
    finally:
        ABOUT_A_FORK.clear()


FIRST = """
import multiprocessing as mp, os, signal, sys, threading
from torch.utils.data.datapipes.iter import IterableWrapper
import voxpipe as vp

ASK = "import signal; print(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"

def started(number):
    import subprocess
    return number, subprocess.run([sys.executable, "-c", ASK], capture_output=True).stdout

def here():
    print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGINT).__name__)

def epoch(method):
    service = vp.MultiProcessingReadingService(1, method)
    print(*vp.DataLoader2(IterableWrapper(range(2)).map(started), None, service), flush=True)

if __name__ == "__main__":
    method, thread = {method!r}, {thread!r}
    if method == "fork":
        ours = os.getpid()
        os.register_at_fork(after_in_child=lambda: os.getppid() == ours and os.kill(os.getpid(), 2))
    if thread:
        other = threading.Thread(target=epoch, args=(method,))
        other.start()
        other.join()
    else:
        epoch(method)
    if method != "fork":
        mine = mp.get_context(method).Process(target=here)
        mine.start()
        mine.join()
    here()
"""
# Imported by every Python that starts: is this the one to which Ctrl-C shall come?
INTO_A_NEW_ONE = """
import os, signal, sys
if {where!r} in " ".join(sys.orig_argv):
    try:
        os.mkdir("came")  # to the first of them
        os.kill(os.getpid(), signal.SIGINT)
    except FileExistsError:
        pass
"""
# What the fork server calls once a child has the handlers of a process of its own.
INTO_A_CHILD_OF_THE_SERVER = """
import multiprocessing.spawn as spawn, os, signal, sys
if "forkserver" in " ".join(sys.orig_argv):
    main = spawn._main
    def interrupted(*arguments):
        try:
            os.mkdir("came")
            os.kill(os.getpid(), signal.SIGINT)
        except FileExistsError:
            pass
        return main(*arguments)
    spawn._main = interrupted
"""


@pytest.mark.parametrize(
    ("method", "thread", "hook"),
    [
        pytest.param("fork", False, "", marks=pytest.mark.slow),
        ("fork", True, ""),
        pytest.param(
            "forkserver",
            False,
            INTO_A_CHILD_OF_THE_SERVER,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "forkserver",
            False,
            INTO_A_NEW_ONE.format(where="from multiprocessing.forkserver"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "spawn",
            False,
            INTO_A_NEW_ONE.format(where="--multiprocessing-fork"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["fork", "fork-in-a-thread", "child-of-server", "server", "spawn"],
)
def test_ctrl_c_before_a_workers_first_line_is_ignored(warm_python, tmp_path, method, thread, hook):
    """Each batch, and no word; what workers start, and your own processes, have it let in."""
    script = tmp_path / "script.py"
    script.write_text(FIRST.format(method=method, thread=thread))
    if hook:
        (tmp_path / "sitecustomize.py").write_text(hook)
        ended = subprocess.run(
            [sys.executable, script],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
    else:
        ended = warm_python.run(script, cwd=tmp_path)

    assert ended.stderr == ""
    assert (tmp_path / "came").exists() == bool(hook)
    lines = ended.stdout.splitlines()
    assert lines[0] == r"(0, b'0\n') (1, b'0\n')"
    assert set(lines[1:]) == {"set() default_int_handler"}


STUCK = """
import asyncio, os, signal, sys, threading
from torch.utils.data.datapipes.iter import IterableWrapper
import voxpipe as vp

def stuck(number):
    if number == 2:
        os.kill(int(os.environ["CONSUMER"]), signal.SIGINT)
        threading.Event().wait()
    return number

async def stuck_later(number):
    await asyncio.sleep(0)
    return stuck(number)

async def waiting(number):
    if number == 2:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
    return number

if __name__ == "__main__":
    os.environ["CONSUMER"] = str(os.getpid())
    for batch in vp.DataLoader2({pipe}, None, {service}):
        print(batch, flush=True)
"""
WORKERS = "vp.MultiProcessingReadingService(1)"
HERE = "vp.reading_services.InProcessReadingService()"


@pytest.mark.parametrize(
    ("pipe", "service", "is_told"),
    [
        pytest.param(
            ".map(stuck).to_device('cpu').prefetch(2)", WORKERS, False, marks=pytest.mark.slow
        ),
        (".map(stuck)", WORKERS, False),
        pytest.param(".map(stuck).prefetch(2)", HERE, False, marks=pytest.mark.slow),
        (".threadpool_map(stuck, max_workers=2)", HERE, True),
        pytest.param(".async_map_batches(stuck_later, 3)", HERE, True, marks=pytest.mark.slow),
        pytest.param(".async_map_batches(waiting, 3)", HERE, False, marks=pytest.mark.slow),
    ],
    ids=["behind-workers", "workers", "prefetch", "threads", "blocked-loop", "loop"],
)
def test_ctrl_c_waits_for_no_call_of_the_users(warm_python, tmp_path, pipe, service, is_told):
    """A call that never returns: the program ends all the same, and threads of ours are told of."""
    script = tmp_path / "script.py"
    script.write_text(STUCK.format(pipe=f"IterableWrapper(range(4)){pipe}", service=service))

    ended = warm_python.run(script)

    assert ended.returncode == -signal.SIGINT
    assert ended.stderr.count("Traceback (most recent call last)") == 1
    assert ended.stderr.rstrip().endswith("KeyboardInterrupt")
    assert ("is still at one item" in ended.stderr) == is_told
