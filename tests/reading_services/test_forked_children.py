"""What a process that is forked in the middle of an epoch does is no concern of its parent's.

Each test is a script: a process with the threads of a test run should not be forked.
The children leave by ``os._exit``, as any child of ``multiprocessing`` does, unless it is said.
"""

import pytest

SCRIPT = """
import os, sys, warnings
warnings.simplefilter("error", RuntimeWarning)
from torch.utils.data.datapipes.iter import IterableWrapper
from voxpipe.core.errors import IteratorInvalidated
from voxpipe.dataloader2 import DataLoader2, MultiProcessingReadingService

def check(does, method, stay):
    service = MultiProcessingReadingService(2, method, persistent_workers=stay)
    loader = DataLoader2(IterableWrapper(range(12)).shuffle().map(str), None, service, seed=7)
    batches = iter(loader)
    seen = [next(batches) for _ in range(3)]
    child = os.fork()
    if not child:
        does(loader, batches)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    seen += batches
    whole = sorted(seen, key=int) == [str(n) for n in range(12)]
    print(status, len(seen), whole, len(list(loader)), flush=True)
    loader.shutdown()

def drops_it(loader, batches):
    del batches, loader

def shuts_it_down(loader, batches):
    loader.shutdown()

def iterates_it_anew(loader, batches):
    assert len(list(loader)) == 12
    loader.shutdown()

def iterates_it_anew_and_leaves_by_exit(loader, batches):
    assert len(list(loader)) == 12
    sys.exit()

def leaves_by_exit(loader, batches):
    sys.exit()

def goes_on_with_it(loader, batches):
    try:
        next(batches)
    except IteratorInvalidated as error:
        assert "before a fork" in str(error)
    else:
        os._exit(3)

for does in [{children}]:
    print(does.__name__, end=" ", flush=True)
    check(does, "{method}", {stay})
"""
SHORT = ("drops_it", "shuts_it_down", "iterates_it_anew", "goes_on_with_it")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("children", "method", "stay"),
    [
        pytest.param(SHORT, "fork", False, marks=pytest.mark.slow),
        ((*SHORT, "leaves_by_exit"), "fork", True),
        pytest.param(
            ("iterates_it_anew_and_leaves_by_exit",), "forkserver", True, marks=pytest.mark.slow
        ),
    ],
    ids=["", "persistent", "forkserver"],
)
def test_a_forked_child_leaves_the_workers_alone(warm_python, children, method, stay):
    """The parent gets every batch, from the workers that it had: a new one would be told of."""
    script = SCRIPT.format(children=", ".join(children), method=method, stay=stay)

    run = warm_python.run(script)

    expected = [f"{child} 0 12 True 12" for child in children]
    assert (run.returncode, run.stdout.splitlines(), run.stderr) == (0, expected, "")


HELD = """
import os, sys
import numpy as np
from torch.utils.data.datapipes.iter import IterableWrapper
from voxpipe.dataloader2 import DataLoader2, MultiProcessingReadingService

SIZE = 100_000

def full(number):
    return np.full(SIZE, number)

service = MultiProcessingReadingService(1, "fork", worker_prefetch_cnt=1)
loader = DataLoader2(IterableWrapper(range(1, 9)).map(full), None, service, seed=7)
batches = iter(loader)
held = next(batches)
ended, end = os.pipe()
child = os.fork()
if not child:
    os.close(end)
    os.read(ended, 1)  # until the parent has had the whole epoch, or is gone
    os._exit(0 if (held == 1).all() else 3)
del held
rest = [batch[0] for batch in batches]
os.write(end, b"x")
_, status = os.waitpid(child, 0)
assert status == 0, os.waitstatus_to_exitcode(status)
loader.shutdown()
print(*rest)
"""


def test_a_batch_that_a_child_holds_is_not_written_over(warm_python):
    """The slot in which it lies is not used again, though the parent has dropped the batch."""
    run = warm_python.run(HELD)

    assert (run.returncode, run.stdout.strip(), run.stderr) == (0, "2 3 4 5 6 7 8", "")


HERE = """
import os, warnings
# Python 3.12 and later warn of a fork beside threads.
warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
from torch.utils.data.datapipes.iter import IterableWrapper
from voxpipe.adapters import Timeout
from voxpipe.core.errors import IteratorInvalidated
from voxpipe.dataloader2 import DataLoader2, InProcessReadingService

def ask(batches, loader):
    try:
        next(batches)
    except IteratorInvalidated as error:
        return 0 if "before a fork" in str(error) and len(list(loader)) == 12 else 4
    return 3

def check(pipe, adapters=None, service=None):
    loader = DataLoader2(pipe, adapters, service, seed=7)
    batches = iter(loader)
    seen = [next(batches) for _ in range(3)]
    child = os.fork()
    if not child:
        os._exit(ask(batches, loader))
    _, status = os.waitpid(child, 0)
    seen += batches
    print(os.waitstatus_to_exitcode(status), sorted(seen) == list(range(12)))

pipe = IterableWrapper(range(12)).shuffle()
check(pipe)
check(pipe, Timeout(item=60))
check(pipe, None, InProcessReadingService(prefetch_cnt=2))
check(pipe.prefetch(2))
check(pipe.threadpool_map(abs, max_workers=2))
"""


def test_a_forked_child_is_refused_at_once(warm_python):
    """No wait for a thread that only the parent has; anew it gets every batch."""
    run = warm_python.run(HERE)

    assert (run.returncode, run.stdout.split("\n"), run.stderr) == (0, [*["0 True"] * 5, ""], "")


GARBAGE = """
import functools, gc, os
from torch.utils.data.datapipes.iter import IterableWrapper
from voxpipe.dataloader2 import DataLoader2, MultiProcessingReadingService

class Left:
    def __init__(self):
        self.itself, self.process = self, os.getpid()

    def __del__(self):
        if os.getpid() != self.process:
            os.write(2, b"collected in a child")

service = MultiProcessingReadingService(1, "fork")
loader = DataLoader2(IterableWrapper(range(4)).shuffle().map(str), None, service, seed=7)
gc.collect()
gc.set_threshold(10**9)
os.register_at_fork(after_in_child=functools.partial(gc.set_threshold, 1))
Left()
print(len(list(loader)))
loader.shutdown()
"""


def test_a_forked_worker_collects_nothing_that_its_parent_left(warm_python):
    """What ends such things, a group of ranks for instance, may wait for threads that are gone."""
    run = warm_python.run(GARBAGE)

    assert (run.returncode, run.stdout.strip(), run.stderr) == (0, "4", "")
