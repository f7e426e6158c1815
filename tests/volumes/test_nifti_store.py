"""``.nii`` and ``.nii.gz``, local and by URL, fulfil the store contract."""

import bz2
import gzip
import lzma
import os
import sys

import fsspec
import nibabel
import numpy as np
import pytest
from nifti_files import AFFINE, DATA, channels_first, numbered, write_nifti
from numcodecs import Zstd

from voxpipe.core import IO_COUNTERS, Region
from voxpipe.core.errors import CorruptVolume, TruncatedVolume, VolumeError
from voxpipe.testing import StoreCase, StoreContract
from voxpipe.volumes import Volume, close_volumes
from voxpipe.volumes.formats import raw as raw_backends


class TestNifti(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7))
        return StoreCase(write_nifti(tmp_path / "a.nii", array), array[None], AFFINE)


class TestNiftiWithTime(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7, 3), np.uint16)
        path = write_nifti(tmp_path / "a.nii", array)
        return StoreCase(str(path), channels_first(array), AFFINE, {"kind": "label"})


class TestNiftiWithFiveAxes(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7, 2, 3), np.float32)
        path = write_nifti(tmp_path / "a.nii", array)
        return StoreCase(path, channels_first(array), AFFINE)


class TestScaledNifti(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7))
        path = write_nifti(tmp_path / "a.nii", array, scaling=(0.5, -3.0))
        return StoreCase(path, (array[None] * 0.5 - 3).astype(np.float32), AFFINE)


class TestBigEndianNifti2(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7), np.int32)
        path = write_nifti(tmp_path / "a.nii", array, version=2, order=">")
        return StoreCase(path, array[None], AFFINE)


class TestCompressedNifti(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7, 2))
        path = write_nifti(tmp_path / "a.nii.gz", array)
        return StoreCase(path, channels_first(array), AFFINE)


class TestRemoteNifti(StoreContract):
    spawnable = False  # fsspec's memory file system

    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7, 3))
        path = write_nifti(tmp_path / "a.nii", array, scaling=(2.0, 1.0))
        fsspec.filesystem("memory").pipe("/remote/a.nii", path.read_bytes())
        expected = (channels_first(array) * 2.0 + 1.0).astype(np.float32)
        return StoreCase("memory://remote/a.nii", expected, AFFINE)


class TestRemoteCompressedNifti(StoreContract):
    spawnable = False  # fsspec's memory file system

    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7))
        path = write_nifti(tmp_path / "a.nii.gz", array)
        fsspec.filesystem("memory").pipe("/remote/b.nii.gz", path.read_bytes())
        return StoreCase("memory://remote/b.nii.gz", array[None], AFFINE)


class TestNiftiByFileUrl(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7))
        path = write_nifti(tmp_path / "a.nii", array)
        return StoreCase(f"file://{path}", array[None], AFFINE)


class TestNibabelImageOfAFile(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7))
        path = write_nifti(tmp_path / "a.nii.gz", array)
        return StoreCase(nibabel.load(path), array[None], AFFINE)


class TestNibabelImageOfAnotherFormat(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7))
        nibabel.MGHImage(array.astype(np.int32), AFFINE).to_filename(tmp_path / "a.mgz")
        image = nibabel.load(tmp_path / "a.mgz")
        return StoreCase(image, array[None].astype(np.int32), AFFINE)


class TestNibabelImageInMemory(StoreContract):
    @pytest.fixture
    def case(self):
        array = numbered((15, 16, 17, 2))
        return StoreCase(nibabel.Nifti1Image(array, AFFINE), channels_first(array), AFFINE)


@pytest.mark.parametrize(
    "name",
    [
        "anatomical.nii",  # big-endian
        "functional.nii",  # scaled, with time
        "reoriented_anat_moved.nii",
        "resampled_anat_moved.nii",
        "example4d.nii.gz",
        "example_nifti2.nii.gz",
        "standard.nii.gz",
    ],
)
def test_files_of_nibabel_read_as_nibabel_reads_them(name):
    """Nibabel's own test files give the values, shapes and affines that nibabel gives."""
    reference = nibabel.load(DATA / name)
    volume = Volume(DATA / name)

    assert volume.affine.tolist() == reference.affine.tolist()
    np.testing.assert_allclose(volume.spacing, reference.header.get_zooms()[:3], rtol=1e-6)
    expected = channels_first(reference.get_fdata(dtype=np.float64))
    # float32 holds 24 bits.
    np.testing.assert_allclose(volume.numpy(), expected, rtol=2**-23)
    assert volume.disk_dtype == reference.header.get_data_dtype()


def test_a_region_of_a_nii_is_a_view_of_the_file(tmp_path):
    """Reading a region copies nothing and cannot be written through."""
    volume = Volume(write_nifti(tmp_path / "a.nii", numbered((5, 6, 7))))

    whole = volume.read(Region((0, 0, 0), (5, 6, 7))).array
    part = volume.read(Region((1, 2, 3), (2, 4, 6))).array

    assert np.shares_memory(whole, part)
    assert not part.flags.writeable


def test_remote_nii_fetches_only_the_runs_of_the_region(tmp_path, monkeypatch):
    """A region of a remote .nii costs its own bytes when the gaps are not worth a request."""
    monkeypatch.setattr(raw_backends, "REMOTE_ROWS_GAP", 0)
    path = write_nifti(tmp_path / "a.nii", numbered((8, 6, 7)))
    system = fsspec.filesystem("memory")
    system.pipe("/remote/runs.nii", path.read_bytes())
    volume = Volume("memory://remote/runs.nii")
    assert volume.access == "range"
    asked = []
    real = type(system).cat_file

    def spy(self, path, start=None, end=None, **kwargs):
        asked.append((start, end))
        return real(self, path, start=start, end=end, **kwargs)

    monkeypatch.setattr(type(system), "cat_file", spy)
    before = IO_COUNTERS.snapshot()

    volume.read(Region((2, 1, 3), (5, 3, 5)))
    rows = sorted(asked)
    asked.clear()
    volume.read(Region((0, 2, 1), (8, 4, 3)))

    # Rows of three voxels of two bytes, in two of six rows of two of seven planes.
    first = [352 + 2 * (2 + 8 * (j + 6 * k)) for k in (3, 4) for j in (1, 2)]
    assert rows == [(start, start + 6) for start in first]
    # Whole rows of neighbouring j join.
    planes = [352 + 2 * 8 * (2 + 6 * k) for k in (1, 2)]
    assert sorted(asked) == [(start, start + 32) for start in planes]
    spent = IO_COUNTERS - before
    assert (spent.reads, spent.bytes_read) == (2, 4 * 6 + 2 * 32)


def test_the_header_of_a_gz_is_read_without_decoding_the_rest(tmp_path):
    """Geometry comes from the first bytes: that most are missing goes unnoticed until read."""
    noise = np.random.default_rng(0).integers(0, 30000, (64, 64, 30)).astype(np.int16)
    whole = write_nifti(tmp_path / "a.nii.gz", noise).read_bytes()
    (tmp_path / "a.nii.gz").write_bytes(whole[: len(whole) // 2])

    volume = Volume(tmp_path / "a.nii.gz")

    assert volume.shape == (1, 64, 64, 30)
    with pytest.raises(TruncatedVolume, match=r"a\.nii\.gz.*of 246112 bytes"):
        volume.numpy()


def test_damage_in_a_gz_is_found(tmp_path):
    """A wrong check sum is an error that names the file, and leaves nothing in the cache."""
    path = write_nifti(tmp_path / "a.nii.gz", numbered((5, 6, 7)))
    raw = bytearray(path.read_bytes())
    raw[-8] ^= 0xFF  # of the CRC-32
    path.write_bytes(raw)
    volume = Volume(path)

    for _ in range(2):
        with pytest.raises(CorruptVolume, match=r"a\.nii\.gz cannot be decoded"):
            volume.numpy()


def test_a_gz_that_goes_on_too_long_is_refused(tmp_path):
    """Decoding stops where the header says that the voxels end."""
    raw = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7))).read_bytes()
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(raw + bytes(10)))

    with pytest.raises(CorruptVolume, match="more than the 772 bytes"):
        Volume(tmp_path / "a.nii.gz").numpy()


def test_a_gz_of_several_members_is_read_whole(tmp_path):
    """Bgzip and pigz write one gzip member after another; together they are the file."""
    raw = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7))).read_bytes()
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(raw[:500]) + gzip.compress(raw[500:]))

    assert Volume(tmp_path / "a.nii.gz").numpy()[0].tolist() == numbered((5, 6, 7)).tolist()


@pytest.mark.parametrize("has_isal", [True, False])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda raw: gzip.compress(raw) + b"garbage" * 9,
            "no gzip after 772 of 772.*b'garb'.*are c",
        ),
        (lambda raw: gzip.compress(raw) + b"garbage", "no gzip after 772 of 772.*b'garb'.*Remove"),
        (lambda raw: gzip.compress(raw[:500]) + b"xy", "no gzip after 500 of 772 decoded.*Copy"),
        (lambda raw: gzip.compress(raw)[:-3], "ends within the check sum after its 772 decoded"),
        (lambda raw: gzip.compress(raw, 0)[:-80], r"ends after (69\d|70\d) of 772 bytes"),
        (lambda raw: gzip.compress(gzip.compress(raw)), "is compressed with gzip twice"),
        (lambda raw: raw, "not compressed with gzip: .*Remove .gz from its name"),
        (lambda raw: b"", "holds 0 bytes"),
        (lambda raw: b"\n<html>log in</html>" * 99, "not compressed with gzip.*It is a web page"),
        (bz2.compress, "not compressed with gzip.*It is compressed with bzip2"),
        (lzma.compress, "not compressed with gzip.*It is compressed with xz"),
        (lambda raw: bytes(Zstd().encode(raw)), "not compressed with gzip.*compressed with zstd"),
    ],
)
def test_an_error_says_what_is_no_gzip(tmp_path, monkeypatch, change, told, has_isal):
    """Neither is a whole file with bytes after it called too short, nor another format damaged."""
    if not has_isal:
        monkeypatch.setitem(sys.modules, "isal", None)
    raw = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7))).read_bytes()
    (tmp_path / "a.nii.gz").write_bytes(change(raw))

    with pytest.raises(VolumeError, match=f"(?s)a.nii.gz.*{told}"):
        Volume(tmp_path / "a.nii.gz").numpy()


def test_without_isal_gzip_decodes(tmp_path, monkeypatch):
    """The optional accelerator makes no difference but time."""
    path = write_nifti(tmp_path / "a.nii.gz", numbered((5, 6, 7)))
    monkeypatch.setitem(sys.modules, "isal", None)

    assert Volume(path).numpy()[0].tolist() == numbered((5, 6, 7)).tolist()


def test_a_gz_is_decoded_once(tmp_path, monkeypatch):
    """The second handle, as another process would have, finds the decoded file."""
    path = write_nifti(tmp_path / "a.nii.gz", numbered((5, 6, 7)))
    volume = Volume(path)
    first = volume.numpy().copy()
    close_volumes()
    monkeypatch.setattr(raw_backends, "decompress", None)

    assert volume.numpy().tolist() == first.tolist()
    assert volume.access == "stream"


def test_a_gz_written_again_is_decoded_again(tmp_path):
    """A new version of the file is another entry of the cache."""
    path = write_nifti(tmp_path / "a.nii.gz", numbered((5, 6, 7)))
    old = Volume(path).numpy()
    write_nifti(path, numbered((5, 6, 7)) + 1)
    os.utime(path, ns=(0, 0))

    assert (Volume(path).numpy() == old + 1).all()


def test_a_gz_written_again_between_header_and_voxels_is_refused(tmp_path):
    """The voxels of one version are never given the geometry of another."""
    path = write_nifti(tmp_path / "a.nii.gz", numbered((5, 6, 7)))
    volume = Volume(path)
    assert volume.shape == (1, 5, 6, 7)
    write_nifti(path, numbered((5, 6, 8)))

    with pytest.raises(CorruptVolume, match="written again"):
        volume.numpy()
