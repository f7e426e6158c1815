"""Workers leave none of the named semaphores that libraries make in them."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

NAMES = Path("/dev/shm")
SCRIPT = """
    import voxpipe as vp

    if __name__ == "__main__":
        cases = vp.from_cases([{{"image": {folder!r}, "case": str(n)}} for n in range(4)])
        pipe = cases.open_volume().lazy_patch(4).batch_patches(2)
        loader = vp.DataLoader2(pipe, [], vp.MultiProcessingReadingService(2))
        print(sum(len(list(loader)) for epoch in range(2)))
"""


LOCKS = """
    from multiprocessing import get_context
    from pathlib import Path
    from voxpipe.reading_services.workers.worker import make_semaphores_nameless

    def name_of(lock):
        return lock._semlock.name

    before = get_context("spawn").Lock()
    file = Path("/dev/shm", "sem." + name_of(before).lstrip("/"))
    was_there = file.exists()
    make_semaphores_nameless()
    after = get_context("spawn").Lock()
    with before, after:
        again = [lock.acquire(block=False) for lock in (before, after)]
    make_semaphores_nameless()
    print(was_there, file.exists(), name_of(after), again, name_of(get_context("spawn").RLock()))
"""


@pytest.mark.skipif(not NAMES.is_dir(), reason="lists the names where Linux has them")
def test_names_are_gone_and_locks_go_on():
    """Those of locks that are there are taken away, and later ones have none, killed or not."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LOCKS)], capture_output=True, text=True, timeout=60
    )

    assert (done.stdout, done.stderr) == ("True False None [False, False] None\n", "")


@pytest.mark.slow
def test_workers_that_decode_blosc_leave_none(warm_python, tmp_path):
    """Decoding blosc makes a lock; the resource tracker warns of what is left at the end."""
    zarr = pytest.importorskip("zarr")
    numcodecs = pytest.importorskip("numcodecs")
    folder = str(tmp_path / "a.zarr")
    options = {"chunks": (4, 4, 4), "compressor": numcodecs.Blosc()}
    array = zarr.open_array(folder, mode="w", shape=(8, 8, 8), dtype="i2", zarr_format=2, **options)
    array[:] = np.arange(512, dtype="i2").reshape(8, 8, 8)
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT).format(folder=folder))

    done = warm_python.run(script)

    assert (done.stdout, done.stderr) == ("4\n", "")
