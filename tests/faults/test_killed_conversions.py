"""Conversions that are killed at moments that are drawn, again and again, and then finished."""

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from voxpipe.volumes import Volume, convert

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
KILLS = 4
SHAPE = (16, 16, 16)


def convert_under_fire(seed):
    """Kill some conversions, and finish them: the files are those of one that was not killed."""
    rng = random.Random(seed)
    place = Path(tempfile.gettempdir()).parent
    for folder in ("once", "killed"):
        (place / folder).mkdir()
    source = place / "a.npy"
    np.save(source, np.random.default_rng(seed).integers(0, 99, SHAPE, np.int16))
    begun = time.monotonic()
    assert _status(source, place / "once", 0.0) == 0
    whole = time.monotonic() - begun
    for _ in range(KILLS):
        # Zero would be none.
        _status(source, place / "killed", max(1e-6, rng.random() * whole))
    assert _status(source, place / "killed", 0.0) == 0
    once, killed = (_files_below(place / folder) for folder in ("once", "killed"))
    assert sorted(once) == sorted(killed)
    assert once == killed
    assert (Volume(place / "killed" / "a.zarr").numpy()[0] == np.load(source)).all()


def _files_below(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _status(source, folder, seconds):
    """Return how a conversion ended, which is killed after some seconds; 0 for never."""
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        convert(source, folder / "a.zarr", chunk=4, shard=8)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.slow
def test_a_killed_conversion_leaves_what_a_whole_one_does(attacks, isolated):
    """Nothing more, nothing less, the same bytes."""
    attacks.each(lambda seed: isolated("convert_under_fire", seed).refuse(), quick=2, whole=200)
