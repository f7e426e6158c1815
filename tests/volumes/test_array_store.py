"""``.npy`` files, arrays and tensors."""

import contextlib
import gc
import os
import pickle
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from nifti_files import AFFINE, numbered

from voxpipe.core import Region
from voxpipe.core.errors import BadHeader, TruncatedVolume, UnknownFormat
from voxpipe.testing import StoreCase, StoreContract
from voxpipe.volumes import Volume, array_source, close_volumes


class TestNpy(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((2, 5, 6, 7))
        np.save(tmp_path / "a.npy", array)
        return StoreCase(tmp_path / "a.npy", array, AFFINE, {"affine": AFFINE})


class TestFortranNpy(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7), ">u2")
        np.save(tmp_path / "a.npy", np.asfortranarray(array))
        return StoreCase(tmp_path / "a.npy", array[None].astype("u2"), np.eye(4))


class TestSmallArray(StoreContract):
    @pytest.fixture
    def case(self):
        array = numbered((5, 6, 7))
        return StoreCase(array, array[None], AFFINE, {"affine": torch.from_numpy(AFFINE)})


class TestLargeArray(StoreContract):
    @pytest.fixture
    def case(self):
        array = numbered((3, 20, 21, 22), np.uint32)
        return StoreCase(array.transpose(0, 3, 2, 1), array.transpose(0, 3, 2, 1), np.eye(4))


class TestTensor(StoreContract):
    @pytest.fixture
    def case(self):
        array = numbered((20, 21, 22), np.float32)
        tensor = torch.from_numpy(array).requires_grad_()
        return StoreCase(tensor, array[None], np.eye(4))


class TestPartOfAVolume(StoreContract):
    @pytest.fixture
    def case(self):
        array = numbered((20, 21, 22), bool)
        part = Volume(array)[0, 10:, ::-1, ::2]
        expected = array[None, 10:, ::-1, ::2]
        affine = np.diag([1.0, -1.0, 2.0, 1.0])
        affine[:3, 3] = (10, 20, 0)
        # A part is a volume already; its array and place make it anew.
        return StoreCase(part.numpy(), expected, affine, {"affine": part.affine})


@pytest.mark.parametrize(
    ("array", "shape"),
    [((4, 5), (1, 4, 5, 1)), ((4, 5, 6), (1, 4, 5, 6)), ((3, 4, 5, 6), (3, 4, 5, 6))],
)
def test_axes(array, shape):
    """Two axes are a plane, three a volume, four have channels first."""
    assert Volume(np.zeros(array)).shape == shape
    assert Volume(np.zeros(array)).name == f"array {shape} float64"


@pytest.mark.parametrize("shape", [(), (3,), (1, 2, 3, 4, 5), (3, 0, 3)])
def test_other_arrays_are_refused_at_construction(shape):
    """An array that is no volume is refused where it is given."""
    with pytest.raises(BadHeader):
        Volume(np.zeros(shape))


@pytest.mark.parametrize("source", [42, None, [[1, 2], [3, 4]], {"image": 1}])
def test_other_things_are_refused_at_construction(source):
    """What is no source is refused where it is given, and the message says what is one."""
    with pytest.raises(UnknownFormat, match=f"from a {type(source).__name__}.*\n.*a path"):
        Volume(source)


def test_memory_is_shared_and_read_only():
    """An array is not copied, and nobody can write through the volume."""
    array = numbered((4, 5, 6))

    found = Volume(array).numpy()

    assert np.shares_memory(found, array)
    assert not found.flags.writeable
    assert array.flags.writeable


def test_bfloat16_becomes_float32():
    """NumPy has no bfloat16; the type that holds each of its values is taken."""
    tensor = torch.arange(8.0).reshape(2, 2, 2).to(torch.bfloat16)

    assert Volume(tensor).data.tolist() == [tensor.float().tolist()]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64, np.float16, np.complex64])
def test_types_that_torch_has_are_kept(dtype):
    """Unsigned integers stay unsigned: the largest value does not wrap."""
    array = np.full((2, 2, 2), 3, dtype)
    if array.dtype.kind == "u":
        array[0, 0, 0] = np.iinfo(dtype).max

    tensor = Volume(array).data

    assert tensor.numpy().dtype == dtype
    assert tensor.numpy().tolist() == [array.tolist()]


def test_the_tensor_can_be_written_to_without_changing_the_source():
    """``data`` is memory of its own."""
    array = numbered((2, 3, 4))
    volume = Volume(array)

    volume.data[...] = 0

    assert array.any()
    assert volume.read(Region.of_shape((2, 3, 4))).array.any()
    assert volume.unload().numpy().any()


def test_a_large_array_is_spilled_once_and_removed_with_its_volume(tmp_path, monkeypatch):
    """One temporary file serves every pickle, and goes with the original: where it has a name."""
    monkeypatch.setattr(array_source, "HAS_NAMELESS", False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    volume = Volume(numbered((20, 21, 22)))

    first, second = pickle.dumps(volume), pickle.dumps(volume)
    files = list(tmp_path.iterdir())
    assert first == second
    assert [file.suffix for file in files] == [".npy"]
    assert files[0].stat().st_mode & 0o077 == 0  # for nobody else to read
    del volume
    gc.collect()

    assert list(tmp_path.iterdir()) == []


def nameless_files():
    """Return size and taken bytes of the files without a name that this process holds."""
    files = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            status = os.stat(f"/proc/self/fd/{fd}")
            if stat.S_ISREG(status.st_mode) and not status.st_nlink:
                files[status.st_ino] = (status.st_size, status.st_blocks * 512)
    return files


@pytest.mark.skipif(not array_source.HAS_NAMELESS, reason="needs /proc")
def test_spilled_arrays_share_a_file_without_a_name(tmp_path, monkeypatch):
    """Each has its part; what is dropped takes no space, and the last takes the file along."""
    gc.collect()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = nameless_files()
    arrays = [numbered((20, 21, 22)) + n for n in range(3)]
    volumes = [Volume(array) for array in arrays]
    # As in another process: the original is not there.
    monkeypatch.setattr(array_source, "original", lambda token: None)
    copies = [pickle.loads(pickle.dumps(volume)) for volume in volumes]

    assert [c.numpy()[0].tolist() for c in copies] == [a.tolist() for a in arrays]
    assert list(tmp_path.iterdir()) == []
    ((size, taken),) = (v for k, v in nameless_files().items() if k not in before)
    assert size > 3 * arrays[0].nbytes - 1

    del volumes[0], copies
    close_volumes()
    gc.collect()
    ((_, left),) = (v for k, v in nameless_files().items() if k not in before)
    assert left < taken

    again = pickle.loads(pickle.dumps(volumes[1]))
    assert again.numpy()[0].tolist() == arrays[2].tolist()
    del volumes, again
    close_volumes()
    gc.collect()
    assert nameless_files().keys() == before.keys()


KILLED = """
import os, pickle, signal
import numpy as np
import voxpipe as vp
volume = vp.Volume(np.zeros((40, 40, 40)))
pickle.dumps(volume)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not array_source.HAS_NAMELESS, reason="needs /proc")
def test_a_killed_process_leaves_no_spilled_voxels(tmp_path):
    """Nobody cleans up after SIGKILL, so there is nothing to clean."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    done = subprocess.run([sys.executable, "-c", KILLED], env=environment, timeout=100, check=False)

    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not array_source.HAS_NAMELESS, reason="needs /proc")
def test_a_forked_child_leaves_the_voxels_of_its_parent(monkeypatch):
    """Collecting its copy of the owner frees nothing."""
    volume = Volume(numbered((20, 21, 22)))
    monkeypatch.setattr(array_source, "original", lambda token: None)
    copy = pickle.loads(pickle.dumps(volume))
    file = array_source._CURRENT[False]()

    file.owner += 1  # what a child finds: the file of another process
    file.free(0, 4096)

    assert copy.numpy()[0].tolist() == numbered((20, 21, 22)).tolist()


def test_a_copy_that_comes_back_is_the_original(tmp_path, monkeypatch):
    """Where the original still lives, its memory is used, not the file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    array = numbered((20, 21, 22))
    volume = Volume(array)

    there = pickle.loads(pickle.dumps(volume))

    assert np.shares_memory(there.numpy(), array)


def test_a_forked_child_does_not_remove_the_file_of_its_parent(tmp_path):
    """The finalizer that a child inherits leaves the parent's file alone."""
    file = tmp_path / "a.npy"
    file.write_bytes(b"")

    array_source._remove(str(file), os.getpid() + 1)
    assert file.exists()
    array_source._remove(str(file), os.getpid())
    assert not file.exists()


def test_objects_in_a_npy_are_never_unpickled(tmp_path):
    """A .npy of Python objects is refused without executing what is in it."""
    np.save(tmp_path / "a.npy", np.array([[{"a": 1}]], dtype=object), allow_pickle=True)

    with pytest.raises(UnknownFormat, match="object"):
        _ = Volume(tmp_path / "a.npy").shape


def test_broken_npy_files(tmp_path):
    """What is no .npy, is cut, or is empty is told apart."""
    np.save(tmp_path / "a.npy", numbered((4, 5, 6)))
    whole = (tmp_path / "a.npy").read_bytes()
    np.save(tmp_path / "empty.npy", np.zeros((0, 3)))
    (tmp_path / "cut.npy").write_bytes(whole[:-1])
    (tmp_path / "magic.npy").write_bytes(b"what is this?" * 20)
    (tmp_path / "header.npy").write_bytes(whole[:20])

    for name, error, message in (
        ("cut.npy", TruncatedVolume, f"{len(whole) - 1} bytes.*{len(whole)}"),
        ("magic.npy", BadHeader, r"no sound \.npy"),
        ("header.npy", BadHeader, r"no sound \.npy"),
        ("empty.npy", BadHeader, "no voxels"),
    ):
        with pytest.raises(error, match=message):
            _ = Volume(tmp_path / name).shape


def test_a_folder_called_nii(tmp_path):
    """A folder where a file should be is an error that names it."""
    Path(tmp_path / "a.nii").mkdir()

    with pytest.raises(BadHeader, match=r"a\.nii is a folder"):
        _ = Volume(tmp_path / "a.nii").shape
