"""Shared memory that is too little for one batch: told with the first, in numbers, at the line."""

import inspect
import sys
import warnings

import numpy as np
import pytest
from disks import longest_file
from links import STEP, Link

import voxpipe as vp
from voxpipe.core.errors import SlotsUsedUp

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd_create")


def test_the_first_batch_tells_what_is_needed():
    """Nothing is kept yet, so nothing of kept batches is said; the number suffices."""
    needed = 3 * STEP

    with pytest.warns(SlotsUsedUp) as said:
        Link(limit=needed - 1, ahead=2).deliver(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Link(limit=needed, ahead=2).deliver(0)

    (text,) = (str(warning.message) for warning in said)
    assert text.startswith(f"slot_bytes={needed - 1} is too little for these batches")
    assert f"slot_bytes={needed})" in text
    assert "in use" not in text


def test_a_loop_that_keeps_nothing_is_told_what_suffices_for_it():
    """Where earlier batches wait for their turn, more is needed; the number is in the words."""
    link = Link(limit=3 * STEP, ahead=2)

    with pytest.warns(SlotsUsedUp, match=rf"slot_bytes={5 * STEP}\)"):
        kept = [link.deliver(number) for number in range(2)]

    assert len(kept) == 2


def test_a_limit_of_the_system_is_named():
    """Shared memory is a file, so ``ulimit -f`` bounds a batch."""
    why = rf"File too large: a batch needs {STEP} bytes of shared memory \(ulimit -f"

    with longest_file(STEP - 1), pytest.raises(OSError, match=why):
        Link(limit=3 * STEP, ahead=2).deliver(0)


@pytest.mark.parametrize("slots_per_worker", [1, 3])
def test_a_loader_warns_once_at_the_line_that_iterates(slots_per_worker):
    """The file and the line are the user's; (worker_prefetch_cnt + 1) x batch x workers is told."""
    cases = [{"image": np.zeros((100, 100, 100), np.uint8)}] * 2
    pipe = vp.from_cases(cases).open_volume().lazy_patch(100, samples_per_volume=4)
    service = vp.MultiProcessingReadingService(2, slot_bytes=2 * slots_per_worker * STEP - 1)

    with vp.DataLoader2(pipe.batch_patches(2), None, service, seed=1) as loader:
        with pytest.warns(SlotsUsedUp) as said:
            batches = list(loader)
        line = inspect.currentframe().f_lineno - 1

    assert len(batches) == 4
    first = said[0]
    assert f"slot_bytes={3 * STEP * 2})" in str(first.message)
    assert (first.filename, first.lineno) == (__file__, line)
    assert len({str(warning.message) for warning in said}) == 1
