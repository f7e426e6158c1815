"""Images that nibabel has opened: what is in memory wins over the file, lazily."""

import gc
import gzip
import io
import pickle
from pathlib import Path

import nibabel
import numpy as np
import pytest
from nibabel.arrayproxy import ArrayProxy
from nifti_files import AFFINE, channels_first, numbered, write_nifti

import voxpipe as vp
from voxpipe.core import IO_COUNTERS, Region
from voxpipe.core.errors import UnknownFormat
from voxpipe.testing import BackendContract, StoreCase
from voxpipe.volumes import Volume, close_volumes, volume_statistics

FIVE = np.diag([5.0, 5, 5, 1])
DATA = Path(nibabel.__file__).parent / "tests" / "data"


class Blocks:
    """Like an array of dask's: a shape, a type, chunks; what is asked for is made then."""

    def __init__(self, shape, depth):
        self.shape, self.dtype, self.chunks = shape, np.dtype(np.int32), ((5,), (6,), (3, 3, 1))
        self.depth = depth
        self.asked = []

    @property
    def ndim(self):
        return len(self.shape)

    def __getitem__(self, index):
        self.asked.append(index)
        return Later(self, index)

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("nobody may want all of it")


class Later:
    """What an index of it is, until somebody wants the numbers."""

    def __init__(self, blocks, index):
        self.blocks, self.index = blocks, index

    def __array__(self, dtype=None, copy=None):
        return numbered(self.blocks.shape, np.int32)[self.index] * self.blocks.depth


def same(volume, image):
    """Whether a volume is what nibabel has of an image, in float64."""
    np.testing.assert_array_equal(volume.affine, image.affine)
    values = channels_first(np.asanyarray(image.dataobj))
    np.testing.assert_array_equal(volume.numpy(), values.astype(volume.dtype))


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".img", ".img.gz"])
def test_the_affine_in_memory_wins(tmp_path, suffix):
    """Set on the image, given with its dataobj, or to a new image: never the file's."""
    kind = nibabel.Nifti1Pair if ".img" in suffix else nibabel.Nifti1Image
    path = tmp_path / f"a{suffix}"
    kind(numbered((5, 6, 7)), AFFINE).to_filename(path)
    moved, new = nibabel.load(path), nibabel.load(path)
    moved.set_sform(FIVE, 1)
    new = nibabel.Nifti1Image(new.dataobj, FIVE)

    for image in (moved, new):
        volume = Volume(image)
        assert volume.affine[0, 0] == 5
        assert volume[:, 1].affine[:3, 3].tolist() == [5, 0, 0]
        same(volume, image)
        same(pickle.loads(pickle.dumps(volume)), image)
    assert Volume(path).affine.tolist() == AFFINE.tolist()
    assert Volume(moved, affine=np.eye(4)).spacing == (1, 1, 1)


def test_the_affine_in_memory_reaches_batches(tmp_path):
    """Workers get the geometry of the image, and so do spatial ops that count in millimetres."""
    path = write_nifti(tmp_path / "a.nii", numbered((8, 8, 8)), np.diag([2.0, 2, 2, 1]))
    image = nibabel.Nifti1Image(nibabel.load(path).dataobj, np.eye(4))
    pipe = vp.from_cases([{"image": image}]).open_volume().spacing(2.0)

    patch = next(iter(pipe))["image"]

    assert patch.shape == (1, 4, 4, 4)


def test_units_in_memory_win(tmp_path):
    """The header of the image says what its affine counts in."""
    image = nibabel.load(write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)), FIVE))
    image.header.set_xyzt_units("micron")

    np.testing.assert_allclose(Volume(image).spacing, [0.005] * 3)


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize(
    "spec",
    [
        ((5, 6, 7), "<i2", 352, 3.0, -1.0),
        ((5, 6, 7), ">i2", 352),
        ((5, 6, 7), "<u2", 352),
        ((5, 6, 3), "<i2", 352 + 2 * 5 * 6 * 2),
        ((5, 3, 7, 2), "<i2", 352),
    ],
    ids=["scaling", "byte order", "type", "offset", "shape"],
)
def test_the_voxels_are_those_of_the_dataobj(tmp_path, suffix, spec):
    """Scaling, type, offset and shape are the image's, and the file's where that was not asked."""
    path = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)), scaling=(2.0, 1.0))
    if suffix == ".nii.gz":
        (tmp_path / "a.nii.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / "a.nii.gz"
    image = nibabel.Nifti1Image(ArrayProxy(str(path), spec), FIVE)

    volume = Volume(image)

    same(volume, image)
    assert volume.disk_dtype == np.dtype(spec[1])
    assert Volume(path).numpy()[0, 0, 0, 1] == 2 * 1 + 1  # beside it, from the same cache


def test_it_stays_lazy_and_is_one_with_the_file(tmp_path):
    """Nothing is read before it is asked for; statistics are shared where nothing differs."""
    path = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)))
    image = nibabel.load(path)
    other = nibabel.Nifti1Image(ArrayProxy(str(path), ((5, 6, 7), "<i2", 352, 2.0, 0.0)), AFFINE)
    before = IO_COUNTERS.snapshot()

    volume, scaled = Volume(image), Volume(other)
    assert (IO_COUNTERS - before).headers == 0
    volume.read(Region((0, 0, 0), (1, 2, 3)))

    assert volume.access == "view"
    assert (IO_COUNTERS - before).bytes_read == 2 * 6
    assert volume.content_key == Volume(path).content_key != scaled.content_key
    assert volume_statistics(volume).maximum == 209
    assert volume_statistics(scaled).maximum == 418
    assert not image.in_memory


def test_a_file_that_is_open_or_in_memory(tmp_path):
    """An image of bytes, and one in C order, read what is asked for; both travel."""
    raw = io.BytesIO(write_nifti(tmp_path / "a.nii", numbered((5, 6, 7, 2, 3))).read_bytes())
    holder = nibabel.FileHolder(fileobj=raw)
    image = nibabel.Nifti1Image.from_file_map({"image": holder, "header": holder})
    ordered = ArrayProxy(str(tmp_path / "a.nii"), ((5, 6, 7), "<i2", 352), order="C")

    for one in (image, nibabel.Nifti1Image(ordered, FIVE)):
        volume = Volume(one)
        same(volume, one)
        same(pickle.loads(pickle.dumps(volume)), one)
        np.testing.assert_array_equal(volume[-1, 1:3, 2].numpy(), volume.numpy()[-1:, 1:3, 2:3])
        assert volume.access == "range"


@pytest.mark.parametrize(
    "name", ["example4d+orig.HEAD", "scaled+tlrc.HEAD", "tiny.mnc", "small.mnc"]
)
def test_proxies_of_other_formats_stay_lazy(name):
    """AFNI scales each volume by itself, MINC each slice: nibabel's own proxies read them."""
    image = nibabel.load(DATA / name)

    volume = Volume(image)

    same(volume, image)
    same(pickle.loads(pickle.dumps(volume)), image)
    assert not image.in_memory


MINC = ["tiny.mnc", "minc1_1_scale.mnc", "minc1-no-att.mnc", "small.mnc", "minc2_1_scale.mnc"]


@pytest.mark.parametrize("name", MINC)
def test_minc_by_path_is_what_nibabel_reads(name):
    """Versions 1 and 2: the axes, the affine and the scaling of each slice."""
    image = nibabel.load(DATA / name)

    volume = Volume(DATA / name)

    np.testing.assert_array_equal(volume.affine, image.affine)
    np.testing.assert_array_equal(volume.numpy()[0], np.asarray(image.dataobj))
    np.testing.assert_array_equal(volume[:, 2, 3:5].numpy()[0], image.dataobj[2:3, 3:5])


@pytest.mark.parametrize("name", ["minc1_4d.mnc", "minc2_4d.mnc", "minc2-4d-d.mnc"])
def test_minc_with_time_is_refused(name):
    """Its time comes before space, and nibabel's affine is that of space."""
    image = nibabel.load(DATA / name)

    for source in (image, DATA / name):
        with pytest.raises(UnknownFormat, match="4 axes"):
            _ = Volume(source).shape
    del image
    gc.collect()  # nibabel keeps MINC-2 open


class TestDask(BackendContract):
    spawnable = False  # the class is of this module

    @pytest.fixture
    def case(self):
        image = nibabel.Nifti1Image(Blocks((5, 6, 7), 2), FIVE)
        array = 2 * numbered((5, 6, 7), np.int32)
        return StoreCase(image, array[None], FIVE, disk_dtype=np.dtype(np.int32))


def test_an_array_like_dataobj_is_asked_for_regions():
    """Like dask's: a region asks for that region, the chunks are told, and it travels small."""
    blocks = Blocks((5, 6, 7, 2), 1)
    volume = Volume(nibabel.Nifti1Image(blocks, FIVE))
    assert blocks.asked == []

    assert volume.chunks == (5, 6, 3)
    blocks.asked.clear()
    read = volume.read(Region((1, 2, 3), (2, 4, 6))).values()

    assert blocks.asked == [np.s_[1:2, 2:4, 3:6, 0:2]]
    expected = np.moveaxis(numbered((5, 6, 7, 2), np.int32)[1:2, 2:4, 3:6], -1, 0)
    np.testing.assert_array_equal(read, expected)
    packed = pickle.dumps(volume)
    del volume
    close_volumes()
    assert len(packed) < 16 * 1024
    assert pickle.loads(packed).numpy().sum() == numbered((5, 6, 7, 2), np.int32).sum()


def test_colours_of_an_array_like(tmp_path):
    """RGB of an open file become channels, as those of a path do."""
    rgb = np.zeros((5, 6, 7), [("R", "u1"), ("G", "u1"), ("B", "u1")])
    for n, name in enumerate("RGB"):
        rgb[name] = (numbered((5, 6, 7)) + n) % 251
    nibabel.save(nibabel.Nifti1Image(rgb, FIVE), tmp_path / "a.nii")
    holder = nibabel.FileHolder(fileobj=io.BytesIO((tmp_path / "a.nii").read_bytes()))
    image = nibabel.Nifti1Image.from_file_map({"image": holder, "header": holder})

    expected = Volume(tmp_path / "a.nii").numpy()
    for source in (image, nibabel.load(tmp_path / "a.nii")):
        np.testing.assert_array_equal(Volume(source).numpy(), expected)
    assert expected.shape == (3, 5, 6, 7)
