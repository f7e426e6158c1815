"""What a process that is forked in the middle of an epoch does is no concern of its parent's.

Each test is a script of its own: a process with the threads of a test run should not be forked.
The children leave by ``os._exit``, as any child of ``multiprocessing`` does, unless it is said.
"""

import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
from torch.utils.data.datapipes.iter import IterableWrapper
from voxpipe.core.errors import IteratorInvalidated
from voxpipe.dataloader2 import DataLoader2, MultiProcessingReadingService

service = MultiProcessingReadingService(2, "{method}", persistent_workers={stay})
loader = DataLoader2(IterableWrapper(range(12)).shuffle().map(str), None, service, seed=7)
batches = iter(loader)
seen = [next(batches) for _ in range(3)]
child = os.fork()
if not child:
{child}
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
seen += batches
assert sorted(seen, key=int) == [str(n) for n in range(12)], seen
assert len(list(loader)) == 12
loader.shutdown()
print("all", len(seen))
"""
CHILDREN = {
    "drops it": "    del batches, loader",
    "shuts it down": "    loader.shutdown()",
    "iterates it anew": "    assert len(list(loader)) == 12\n    loader.shutdown()",
    "iterates it anew and leaves by sys.exit": "    assert len(list(loader)) == 12\n    sys.exit()",
    "leaves by sys.exit": "    sys.exit()",
    "goes on with it": """
    try:
        next(batches)
    except IteratorInvalidated as error:
        assert "before a fork" in str(error)
    else:
        os._exit(3)
""",
}


SHORT = ("drops it", "shuts it down", "iterates it anew", "goes on with it")
LEAVES_ALONE = [
    *((name, "fork", stay) for stay in (False, True) for name in SHORT),
    ("leaves by sys.exit", "fork", True),
    ("iterates it anew and leaves by sys.exit", "forkserver", True),
]


@pytest.mark.parametrize(("name", "method", "stay"), LEAVES_ALONE)
def test_a_forked_child_leaves_the_workers_alone(name, method, stay):
    """The parent gets every batch, from the workers that it had: a new one would be told of."""
    script = SCRIPT.format(child=CHILDREN[name], method=method, stay=stay)
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", script]

    run = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert (run.returncode, run.stdout.strip(), run.stderr) == (0, "all 12", "")


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


def test_a_batch_that_a_child_holds_is_not_written_over():
    """The slot in which it lies is not used again, though the parent has dropped the batch."""
    command = [sys.executable, "-c", HELD]

    run = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert (run.returncode, run.stdout.strip(), run.stderr) == (0, "2 3 4 5 6 7 8", "")


HERE = """
import os
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


def test_a_forked_child_is_refused_at_once():
    """No wait for a thread that only the parent has; anew it gets every batch."""
    run = subprocess.run([sys.executable, "-c", HERE], capture_output=True, text=True, timeout=60)

    assert (run.returncode, run.stdout.split("\n"), run.stderr) == (0, [*["0 True"] * 5, ""], "")
