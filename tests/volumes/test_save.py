"""Arrays are saved where a viewer overlays them on a scan."""

import itertools
import math
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import nibabel as nib
import nrrd
import numpy as np
import pytest
import SimpleITK
import torch
from hypothesis import given
from hypothesis import strategies as st

import voxpipe as vp
from voxpipe.core import Region
from voxpipe.core.errors import BadHeader, DestinationBusy, DestinationExists, UnknownFormat
from voxpipe.volumes import Header
from voxpipe.volumes.conversion import volume_file
from voxpipe.volumes.conversion.destination import LocalDestination
from voxpipe.volumes.conversion.volume_file import VolumeFile

AFFINE = np.array([[0, -2.0, 0, 10], [1.5, 0, 0, -4], [0, 0, 3, 7], [0, 0, 0, 1]])
SUFFIXES = [".nii", ".nii.gz", ".nrrd", ".mha", ".nii.zarr"]
LPS = np.diag([-1.0, -1, 1, 1])


def affine_of(image):
    """Return the affine of an image of SimpleITK, in RAS."""
    turn = np.array(image.GetDirection()).reshape(3, 3) * image.GetSpacing()
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = turn, image.GetOrigin()
    return LPS @ matrix


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "bool", "float16", "int64"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_it_comes_back(tmp_path, suffix, channels, dtype):
    """Voxels, affine and type are those that were saved."""
    array = np.random.default_rng(0).integers(0, 2, (channels, 4, 5, 6)).astype(dtype)

    volume = vp.save(tmp_path / f"a{suffix}", array, affine=AFFINE)

    assert volume.shape == array.shape
    assert (volume.numpy() == array).all()
    assert np.abs(volume.affine - AFFINE).max() < 1e-5
    assert [path.name for path in tmp_path.iterdir()] == [f"a{suffix}"]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("planes", [1, 7, 8, 9, 19])
def test_it_is_turned_whatever_its_order_in_memory(tmp_path, planes, order):
    """Nibabel sees each voxel in its place; planes are copied eight at a time."""
    array = np.arange(planes * 30, dtype=np.int16).reshape(planes, 5, 6)
    stored = np.asarray(array, order=order)

    vp.save(tmp_path / "a.nii", stored, affine=AFFINE)

    assert (np.asarray(nib.load(tmp_path / "a.nii").dataobj) == array).all()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("suffix", [".nii.gz", ".nrrd", ".mha"])
def test_other_libraries_read_it(tmp_path, suffix, channels):
    """ITK sees the same numbers at the same places of the world."""
    array = np.arange(channels * 120, dtype=np.int16).reshape(channels, 4, 5, 6)
    path = str(tmp_path / f"a{suffix}")
    vp.save(path, torch.from_numpy(array), affine=AFFINE)

    image = SimpleITK.ReadImage(path)

    if suffix == ".nii.gz" and channels > 1:  # five axes: to ITK an image of 5-D
        assert (np.squeeze(nib.load(path).get_fdata()) == np.moveaxis(array, 0, -1)).all()
        return
    voxels = SimpleITK.GetArrayFromImage(image)
    voxels = voxels[..., None] if channels == 1 else voxels
    assert (np.transpose(voxels, (3, 2, 1, 0)) == array).all()
    assert np.abs(affine_of(image) - AFFINE).max() < 1e-5
    if suffix == ".nrrd":
        data, header = nrrd.read(path)
        assert data.size == array.size
        assert header["space"] == "left-posterior-superior"


def test_like_a_scan(tmp_path):
    """Affine, codes, units and intent are those of the file; with its type, its slope too."""
    image = nib.Nifti1Image(np.zeros((4, 5, 6), np.int16), AFFINE)
    image.set_qform(AFFINE, 3)
    image.set_sform(AFFINE, 2)
    image.header.set_xyzt_units("mm", "sec")
    nib.save(image, tmp_path / "scan.nii")
    with open(tmp_path / "scan.nii", "r+b") as file:
        file.seek(112)  # scl_slope and scl_inter
        file.write(np.array([0.5, 10], "<f4").tobytes())
    values = np.full((4, 5, 6), 12.25, np.float32)

    vp.save(tmp_path / "a.nii", values, like=tmp_path / "scan.nii")
    vp.save(tmp_path / "b.nii", values, like=vp.Volume(tmp_path / "scan.nii"), dtype="like")

    for name, dtype in (("a.nii", "float32"), ("b.nii", "int16")):
        saved = nib.load(tmp_path / name)
        header = saved.header
        assert (int(header["qform_code"]), int(header["sform_code"])) == (3, 2)
        assert header.get_xyzt_units() == ("mm", "sec")
        assert header.get_data_dtype() == dtype
        assert (saved.affine == image.affine).all()
    assert (saved.get_fdata() == 12.0).all()  # in steps of a half from 10: 4.5 is stored as 4


@pytest.mark.parametrize("suffix", [".nii", ".nii.zarr", ".nrrd", ".mha"])
def test_numbers_are_rounded_and_clipped(tmp_path, suffix):
    """In every format: nothing is cut off, and nothing wraps."""
    values = np.array([1.7, 300, -5, np.nan], np.float32).reshape(1, 1, 4)
    large = np.array([3e9, -3e9, 1e30, 0], np.float32).reshape(1, 1, 4)

    small = vp.save(tmp_path / f"a{suffix}", values, affine=AFFINE, dtype="uint8")
    wide = vp.save(tmp_path / f"b{suffix}", large, affine=AFFINE, dtype="int32")

    assert small.numpy().ravel().tolist() == [2, 255, 0, 0]
    assert wide.numpy().ravel().tolist() == [2**31 - 1, -(2**31), 2**31 - 1, 0]


@pytest.mark.parametrize("suffix", [".nii", ".nii.zarr"])
def test_the_slope_of_another_volume_is_kept(tmp_path, suffix):
    """Of ``dtype="like"`` the stored numbers are those of its slope and intercept."""
    image = nib.Nifti1Image(np.zeros((1, 1, 3), np.int16), np.eye(4))
    image.header.set_slope_inter(0.5, -1000)
    nib.save(image, tmp_path / "scan.nii")
    values = np.array([-999.5, 0.25, 70000], np.float32).reshape(1, 1, 3)

    saved = vp.save(tmp_path / f"a{suffix}", values, like=tmp_path / "scan.nii", dtype="like")
    volume = vp.save(tmp_path / "b.nii.zarr", saved, dtype="float32")

    assert (saved.header.disk_dtype, saved.header.slope) == (np.int16, 0.5)
    assert saved.numpy().ravel().tolist() == [-999.5, 0.0, 32767 * 0.5 - 1000]
    assert volume.numpy().ravel().tolist() == saved.numpy().ravel().tolist()


def test_a_volume_is_written_box_by_box(tmp_path):
    """A volume of a file, into another format and place."""
    array = np.random.default_rng(0).normal(size=(40, 50, 60)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)
    volume = vp.Volume(tmp_path / "a.npy")

    assert (vp.save(tmp_path / "b.nrrd", volume).numpy()[0] == array).all()
    assert np.abs(vp.save(tmp_path / "c.nii", volume, affine=AFFINE).affine - AFFINE).max() < 1e-6


@given(st.data())
def test_boxes_in_any_order_and_runs_that_end(data):
    """Rows that are filled in their order and others, written by processes that take turns."""
    draw = data.draw
    shape = (draw(st.sampled_from([1, 3])), *draw(st.tuples(*[st.integers(1, 7)] * 3)))
    cuts = [sorted({0, n, *draw(st.sets(st.integers(0, n), max_size=3))}) for n in shape[1:]]
    array = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    boxes = [
        Region(*zip(*box, strict=True))
        for box in itertools.product(*(itertools.pairwise(one) for one in cuts))
    ]
    if draw(st.booleans()):
        boxes.sort(key=lambda box: box.start[::-1])
    else:
        boxes = draw(st.permutations(boxes))
    ends = draw(st.sets(st.integers(0, len(boxes) - 1)))
    suffix = draw(st.sampled_from([".nii", ".nrrd", ".mha"]))
    header = Header.of(shape, array.dtype, np.eye(4))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(volume_file, "_LONG", draw(st.sampled_from([1, 16])))
        patch.setattr(volume_file, "_ROWS", draw(st.sampled_from([0, 100, 2**20])))
        place = (Path(folder, f"a{suffix}"), Path(folder), header)
        file = VolumeFile(*place)
        for number, box in enumerate(boxes):
            file.write(box, array[(slice(None), *box.slices)])
            if number in ends:
                file.flush()
                file = VolumeFile(*place)
        file.finish()

        assert (vp.Volume(place[0]).numpy() == array).all()


def test_rows_in_order_are_written_and_not_mapped(tmp_path, monkeypatch):
    """As `predict` brings them: of the last two rows and layers the boxes take turns."""
    monkeypatch.setattr(volume_file, "_LONG", 1)
    array = np.random.default_rng(0).integers(0, 9, (1, 4, 4, 4)).astype(np.uint8)
    file = VolumeFile(tmp_path / "a.nii", tmp_path, Header.of(array.shape, array.dtype, np.eye(4)))
    for i, j, k in itertools.product(range(4), range(4), range(4)):
        box = Region((i, j, k), (i + 1, j + 1, k + 1))
        file.write(box, array[(slice(None), *box.slices)])

    assert (file._voxels, file._rows) == (None, {})
    file.finish()
    assert (np.asarray(nib.load(tmp_path / "a.nii").dataobj) == array[0]).all()


def test_compressed_files_are_the_same_bytes(tmp_path):
    """A file holds no time and no name."""
    array = np.arange(120, dtype=np.uint8).reshape(4, 5, 6)
    vp.save(tmp_path / "a.nii.gz", array)
    vp.save(tmp_path / "b.nii.gz", array)

    assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()


def test_to_a_url(tmp_path):
    """Behind a URL a file is sent when it is whole."""
    volume = vp.save(f"memory://{tmp_path.name}/a.nii.gz", np.ones((2, 3, 4), np.uint8))

    assert volume.numpy().sum() == 24
    with pytest.raises(DestinationExists, match="there already"):
        vp.save(f"memory://{tmp_path.name}/a.nii.gz", np.ones((2, 3, 4), np.uint8))


@pytest.mark.parametrize("name", ["a.nii.gz", "a.nrrd", "a.mha", "a.zarr"])
@pytest.mark.parametrize("is_url", [False, True])
def test_labels_stay_labels(tmp_path, name, is_url):
    """The returned volume has the kind of the saved one, in every format and at a URL."""
    place = f"memory://{tmp_path.name}/{name}" if is_url else str(tmp_path / name)
    labels = vp.Volume(np.ones((2, 3, 4), np.uint8), kind="label")

    assert vp.save(place, labels).kind == "label"
    assert vp.save(place, labels, dtype="int16", overwrite=True).kind == "label"
    assert vp.save(place, np.ones((2, 3, 4), np.uint8), overwrite=True).kind == "intensity"


KILLED = """
import os, signal, sys
import numpy as np
import voxpipe as vp
from voxpipe.volumes.conversion.destination import LocalDestination
from voxpipe.volumes.conversion.volume_file import VolumeFile

VolumeFile.finish = lambda self: os.kill(os.getpid(), signal.SIGKILL)
vp.save(sys.argv[1], np.ones((2, 3, 4), np.uint8))
"""


def test_a_save_that_is_killed_leaves_one_folder(tmp_path):
    """The next one takes it, follows no link in it, and leaves nothing of another run there."""
    place, part, victim = tmp_path / "a.nii", tmp_path / ".a.nii.part", tmp_path / "victim"
    victim.write_bytes(b"precious")
    (part / "windows.nii.zarr").mkdir(parents=True)
    (part / "state.json").write_text("of a prediction that was killed")
    (part / "voxels").symlink_to(victim)
    for _ in range(2):
        process = subprocess.run([sys.executable, "-c", KILLED, str(place)], check=False)
        assert process.returncode == -9
        assert sorted(path.name for path in tmp_path.iterdir()) == [".a.nii.part", "victim"]
        assert sorted(path.name for path in part.iterdir()) == ["lock", "voxels"]
    assert vp.save(place, np.ones((2, 3, 4), np.uint8)).numpy().all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.nii", "victim"]
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, ValueError])
def test_a_save_that_fails_leaves_nothing(tmp_path, monkeypatch, error):
    """Whatever ended it; the place is free for the next one."""

    def fails(self):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(VolumeFile, "finish", fails)
        with pytest.raises(error):
            vp.save(tmp_path / "a.nii", np.zeros((2, 3, 4)))
    assert not list(tmp_path.iterdir())
    vp.save(tmp_path / "a.nii", np.zeros((2, 3, 4)))


def test_two_saves_at_one_place(tmp_path, monkeypatch):
    """The second is told: what it wrote would be mixed with the first."""
    finish, place = VolumeFile.finish, tmp_path / "a.nii"

    def save_in_between(self):
        with pytest.raises(DestinationBusy, match=r"this process is writing .*a\.nii already"):
            vp.save(place, np.zeros((2, 3, 4)), overwrite=True)
        finish(self)

    monkeypatch.setattr(VolumeFile, "finish", save_in_between)
    assert vp.save(place, np.ones((2, 3, 4))).numpy().all()


def test_mistakes_are_refused(tmp_path):
    """Another shape, another suffix, a place that is not free, a type that a format lacks."""
    scan = vp.Volume(np.zeros((4, 5, 6)))
    with pytest.raises(BadHeader, match=r"and the grid of .* given as like="):
        vp.save(tmp_path / "a.nii", np.zeros((4, 5, 7)), like=scan)
    with pytest.raises(UnknownFormat, match="no format that is written"):
        vp.save(tmp_path / "a.png", np.zeros((4, 5, 6)))
    vp.save(tmp_path / "a.nii", np.zeros((4, 5, 6)))
    with pytest.raises(DestinationExists, match="there already"):
        vp.save(tmp_path / "a.nii", np.zeros((4, 5, 6)))
    assert vp.save(tmp_path / "a.nii", np.ones((4, 5, 6)), overwrite=True).numpy().all()
    with pytest.raises(vp.VoxpipeError, match="which is missing"):
        vp.save(tmp_path / "b.nii", np.zeros((4, 5, 6)), dtype="like")
    assert [path.name for path in tmp_path.iterdir()] == ["a.nii"]


def test_the_end_of_a_writer_leaves_the_next_ones_lock(tmp_path):
    """A writer that is done removes neither the lock nor the files of one that began since."""
    first, second, third = (LocalDestination(tmp_path / "a.nii") for _ in range(3))
    with ExitStack() as stack:
        with first.lock(1):
            (first.folder / "voxels").write_bytes(b"of the first")
            first.drop()
            assert not first.folder.exists()
            stack.enter_context(second.lock(1))
            (second.folder / "voxels").write_bytes(b"of the second")
        assert (second.folder / "voxels").read_bytes() == b"of the second"
        with pytest.raises(DestinationBusy), third.lock(0):
            pass
        second.drop()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_taken_while_a_writer_drops(tmp_path, monkeypatch):
    """Its files are gone before its lock is, so that nothing of the next writer is removed."""
    first, second = (LocalDestination(tmp_path / "a.nii") for _ in range(2))
    unlink = Path.unlink

    def unlink_then_write(path, **options):
        unlink(path, **options)
        if path.name == "lock":
            monkeypatch.setattr(Path, "unlink", unlink)
            stack.enter_context(second.lock(1))
            (second.folder / "voxels").write_bytes(b"of the second")

    with ExitStack() as stack:
        with first.lock(1):
            (first.folder / "voxels").write_bytes(b"of the first")
            monkeypatch.setattr(Path, "unlink", unlink_then_write)
            first.drop()
        assert (second.folder / "voxels").read_bytes() == b"of the second"
        second.drop()
