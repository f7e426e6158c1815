"""What no memory can hold is refused before any is taken, with a loader and without one."""

from typing import Any

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import BudgetExceeded

CASE = {"case": "anna", "image": np.zeros((24, 24, 24), np.float32)}


def huge() -> Any:
    """Some 1e22 voxels of one small volume; as a plan they cost nothing."""
    return vp.from_cases([CASE]).open_volume().spacing(1e-6)


WAYS = {
    "a patch": lambda: next(iter(huge()))["image"].realize(),
    "as an array": lambda: np.asarray(next(iter(huge()))["image"]),
    "realize()": lambda: list(huge().realize()),
    "batch_patches()": lambda: list(huge().batch_patches(1)),
    "a loader": lambda: list(vp.DataLoader2(huge().batch_patches(1))),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_patch_beyond_all_memory_is_refused(way: str) -> None:
    """In bytes, of which there is a number that NumPy cannot count."""
    with pytest.raises(BudgetExceeded, match=r"^reading would take \d{20,} bytes of memory and"):
        WAYS[way]()


def test_the_pipe_and_the_case_are_told() -> None:
    """Where there is a pipe that wants the voxels."""
    with pytest.raises(BudgetExceeded) as caught:
        WAYS["realize()"]()

    told = str(caught.value)
    assert "spacing 1e-06" in told
    assert "in case anna" in told
    assert "at .realize()" in told
