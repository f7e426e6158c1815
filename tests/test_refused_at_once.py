"""What cannot be meant is refused where it is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from s3_server import Fault, S3Server

import voxpipe as vp
from voxpipe.core.errors import BadHeader, PatchSizeError
from voxpipe.volumes.catalog.catalog import serve


def test_a_grid_takes_no_number_of_samples() -> None:
    """A grid covers the volume once, so the number would be ignored."""
    pipe = vp.from_cases([{"image": np.zeros((8, 8, 8))}]).open_volume()

    with pytest.raises(PatchSizeError, match="samples_per_volume belongs to"):
        pipe.lazy_patch(4, sampling="grid", samples_per_volume=2)


@pytest.mark.parametrize("affine", [np.zeros((4, 4)), np.diag([1.0, 0, 1, 1])])
def test_an_affine_without_inverse_is_refused(affine: np.ndarray) -> None:
    """Two voxels in one place have no pull-back."""
    with pytest.raises(BadHeader, match="has no inverse"):
        vp.Volume(np.zeros((2, 2, 2)), affine=affine)


def test_a_small_voxel_has_an_inverse() -> None:
    """Nanometres along one axis and millimetres along another are a microscope's."""
    affine = np.diag([1e-6, 1.0, 5.0, 1.0])

    assert vp.Volume(np.zeros((2, 2, 2)), affine=affine).affine.tolist() == affine.tolist()


def test_the_kind_of_a_fault_is_no_fault(tmp_path: Path) -> None:
    """It would end every later request in a traceback instead of an answer."""
    with S3Server(tmp_path) as server:
        with pytest.raises(TypeError, match=r"fail\(Fault\('deny'\)\), got 'deny'"):
            server.fail("deny")  # type: ignore[arg-type]
        server.fail(Fault("deny"))


class _Left:
    """A connection whose other end is closed after some messages."""

    def __init__(self, sends: int) -> None:
        self.sends = sends

    def send(self, _: object) -> None:
        if self.sends == 0:
            raise BrokenPipeError
        self.sends -= 1

    def recv(self) -> tuple[vp.Volume, str, str]:
        return vp.Volume(np.zeros((2, 2, 2))), "case", "image"


@pytest.mark.parametrize("sends", [0, 1, 2])
def test_a_checking_process_ends_quietly_once_nobody_listens(sends: int) -> None:
    """A small set is examined before the last process has started."""
    left = _Left(sends)

    serve(left, voxels=False)

    assert left.sends == 0
