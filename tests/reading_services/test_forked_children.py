"""What a process that is forked in the middle of an epoch does is no concern of its parent's.

Each test is a script of its own: a process with the threads of a test run should not be forked.
The children leave by ``os._exit``, as any child of ``multiprocessing`` does; one that leaves by
``sys.exit`` has Python's own ``multiprocessing`` end the processes of its parent.
"""

import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
from torch.utils.data.datapipes.iter import IterableWrapper
from voxpipe.core.errors import IteratorInvalidated
from voxpipe.dataloader2 import DataLoader2, MultiProcessingReadingService

service = MultiProcessingReadingService(2, "fork", persistent_workers={stay})
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
    "goes on with it": """
    try:
        next(batches)
    except IteratorInvalidated as error:
        assert "before a fork" in str(error)
    else:
        os._exit(3)
""",
}


@pytest.mark.parametrize("stay", [False, True])
@pytest.mark.parametrize("name", CHILDREN)
def test_a_forked_child_leaves_the_workers_alone(name, stay):
    """The parent gets every batch, from the workers that it had: a new one would be told of."""
    script = SCRIPT.format(child=CHILDREN[name], stay=stay)
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", script]

    run = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert (run.returncode, run.stdout.strip(), run.stderr) == (0, "all 12", "")
