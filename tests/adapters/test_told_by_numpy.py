"""Plans that the kernel does not do are told, by the names of their pipes, before they are run."""

from typing import Any

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.datapipes.cost import explain


def opened() -> Any:
    case = {"image": np.zeros((16, 16, 16), np.int16), "label": np.zeros((16, 16, 16), np.uint8)}
    return vp.from_cases([case]).open_volume()


def thrice() -> Any:
    return (
        opened().elastic(1, spacing=6).rotate(5).grid_distortion().elastic(1, spacing=6, name="b")
    )


def test_three_displacements_are_told_by_explain() -> None:
    """Names, lines, what the figure means and what to do; once for both volumes."""
    (told,) = [line for line in explain(thrice()).splitlines() if line.startswith("by NumPy")]

    assert told.startswith("by NumPy: image and label, 2 plan(s) looked at, in which elastic at ")
    assert ", grid_distortion at ." in told
    assert ", b at ." in told
    assert told.count("test_told_by_numpy.py:") == 3
    assert "70 times as long (2.8 s instead of 0.04 s for 96x96x96 on one core)" in told
    assert told.endswith("put flush() before the last one, for an interpolation more")


@pytest.mark.parametrize(
    "chain",
    [
        opened().elastic(1, spacing=6).rotate(5).grid_distortion(),
        opened().elastic(1, spacing=6).grid_distortion().flush().elastic(1, spacing=6, name="b"),
    ],
    ids=["two", "flushed"],
)
def test_what_the_kernel_does_is_not_told(chain: Any) -> None:
    """Two of them, and what was advised."""
    assert "by NumPy" not in explain(chain)


def test_a_hard_crop_before_a_displacement_is_told() -> None:
    """The crop is named too; below a flush as well."""
    chain = opened().rotate(5).center_crop(8, hard=True).elastic(1, spacing=6).flush().flip(0)
    (told,) = [line for line in explain(chain).splitlines() if line.startswith("by NumPy")]

    assert "in which center_crop at .center_crop(8, hard=True)" in told
    assert ", elastic at .elastic(1, spacing=6)" in told
