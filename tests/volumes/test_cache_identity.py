"""Cached copies belong to one version of one part of one file: what differs has another name."""

import gzip
import json
import os

import nibabel
import numpy as np
import pytest
from nifti_files import write_nifti
from zarr_arrays import add_array

import voxpipe as vp
from voxpipe.core.errors import BadHeader
from voxpipe.core.lru_cache import LRUCache
from voxpipe.storage.content import array_key
from voxpipe.storage.disk_cache import read_entry
from voxpipe.storage.volume_cache import VolumeCache
from voxpipe.volumes import Volume, close_volumes, volume_statistics
from voxpipe.volumes.catalog import catalog as stamps
from voxpipe.volumes.catalog import whole_pass

zarr = pytest.importorskip("zarr")
SHAPE = (9, 10, 11)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, and nothing remembered."""
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(whole_pass.STATISTICS, "memory", LRUCache())
    yield tmp_path / "cache"
    close_volumes()


def voxels(seed):
    """Voxels that do not compress: files of two seeds differ in content and not in size."""
    return np.random.default_rng(seed).integers(-999, 999, SHAPE).astype(np.int16)


def gz(path, seed):
    write_nifti(path.with_suffix(""), voxels(seed))
    path.write_bytes(gzip.compress(path.with_suffix("").read_bytes(), 0, mtime=0))
    return path


def again(path, write, *args):
    """Write a file anew: of the same size, at another time."""
    size, time = path.stat().st_size, path.stat().st_mtime_ns
    write(path, *args)
    os.utime(path, ns=(time + 10**9, time + 10**9))
    assert path.stat().st_size == size


def entries(folder, pattern):
    return sorted(folder.rglob(pattern))


def test_a_changed_gzip_is_decoded_anew(tmp_path, cache):
    """Though its size is the same; the old copy is left to whoever has it mapped."""
    path = gz(tmp_path / "a.nii.gz", 0)
    np.testing.assert_array_equal(Volume(path).numpy()[0], voxels(0))
    again(path, gz, 1)

    np.testing.assert_array_equal(Volume(path).numpy()[0], voxels(1))
    assert len(entries(cache, "*.nii")) == 2


@pytest.mark.parametrize(
    ("name", "header", "number"),
    [
        ("a.nhdr", "{nrrd}encoding: ascii\ndata file: d.txt\n", "{} "),
        ("a.nhdr", "{nrrd}encoding: hex\nendian: little\ndata file: d.txt\n", "0{}00"),
        ("a.mhd", "{meta}BinaryData = False\nElementDataFile = d.txt\n", "{} "),
    ],
)
def test_text_voxels_in_a_file_that_is_written_again(tmp_path, name, header, number):
    """SimpleITK reads the new voxels, and so does a new volume."""
    itk = pytest.importorskip("SimpleITK")
    nrrd = "NRRD0004\ntype: short\ndimension: 3\nsizes: 2 2 2\n"
    meta = "ObjectType = Image\nNDims = 3\nDimSize = 2 2 2\nElementType = MET_SHORT\n"
    path, data = tmp_path / name, tmp_path / "d.txt"
    path.write_text(header.format(nrrd=nrrd, meta=meta))

    def write(place, first):
        place.write_text("".join(number.format(first + n) for n in range(8)) + "\n")

    write(data, 0)
    before = Volume(path).numpy()[0]
    again(data, write, 1)
    expected = itk.GetArrayFromImage(itk.ReadImage(path)).T

    assert expected.tolist() == (before + 1).tolist()
    assert Volume(path).numpy()[0].tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["a.img", "a.hdr"])
def test_the_mat_of_an_analyze_image_is_one_of_its_files(tmp_path, name):
    """Nibabel's affine counts after the ``.mat`` is rewritten, removed or added."""
    pytest.importorskip("scipy")
    path, mat = tmp_path / name, tmp_path / "a.mat"

    def write(origin):
        affine = np.diag([2.0, 3, 4, 1])
        affine[:3, 3] = origin
        nibabel.save(nibabel.Spm99AnalyzeImage(np.zeros((2, 3, 4), "i2"), affine), path)
        return mat.read_bytes()

    moved = write((50, 60, 70))
    changes = [lambda: mat.write_bytes(write((0, 0, 0)))]
    changes += [lambda: mat.write_bytes(moved), mat.unlink, lambda: mat.write_bytes(moved)]
    for change in changes:
        change()
        assert np.array_equal(Volume(path).affine, nibabel.load(path).affine)


@pytest.mark.parametrize("suffix", [".mat", ".mat.gz"])
def test_the_mat_of_a_compressed_analyze_image_is_refused(tmp_path, suffix):
    """Nibabel takes one from ``.mat.gz`` and none from ``.mat``: no reader knows both."""
    pytest.importorskip("scipy")
    image = nibabel.Spm99AnalyzeImage(np.ones((2, 3, 4), "i2"), np.diag([2.0, 3, 4, 1]))
    nibabel.save(image, path := tmp_path / "a.img.gz")
    mat = tmp_path / "a.mat.gz"
    content = mat.read_bytes()
    mat.unlink()
    plain = nibabel.load(path).affine
    assert np.array_equal(Volume(path).affine, plain)
    (tmp_path / f"a{suffix}").write_bytes(content)

    assert np.array_equal(nibabel.load(path).affine, plain) is (suffix == ".mat")
    with pytest.raises(BadHeader, match=r"a\.img.* is compressed.*\n*.*affine="):
        _ = Volume(path).affine
    assert Volume(path, affine=np.eye(4)).numpy().all()


def test_two_files_of_one_content_and_time_are_two_entries(tmp_path, cache):
    """The path counts; and a second look at the first decodes nothing."""
    for name in ("a", "b"):
        path = gz(tmp_path / f"{name}.nii.gz", 0)
        os.utime(path, ns=(5, 5))
        Volume(path).numpy()
    close_volumes()
    Volume(tmp_path / "a.nii.gz").numpy()

    assert len(entries(cache, "*.nii")) == 2


def test_how_a_file_is_read_makes_no_second_copy(tmp_path, cache):
    """The same bytes are mapped or read."""
    path = gz(tmp_path / "a.nii.gz", 0)
    for io in ("auto", "pread", "mmap"):
        np.testing.assert_array_equal(Volume(path, io=io).numpy()[0], voxels(0))

    assert len(entries(cache, "*.nii")) == 1


def pyramid(path):
    """An OME-Zarr of two levels."""
    group = zarr.create_group(path)
    for level, seed in enumerate((0, 1)):
        add_array(group, str(level), data=voxels(seed), chunks=(8, 8, 8))
    axes = [{"name": n, "type": "space", "unit": "millimeter"} for n in "zyx"]
    scale = [{"type": "scale", "scale": [1.0, 1.0, 1.0]}]
    datasets = [{"path": str(n), "coordinateTransformations": scale} for n in range(2)]
    document = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}
    group.attrs["ome"] = document
    return path


def kept(volume, folder, **settings):
    """Return the voxels of a volume that ``cache()`` keeps in a folder."""
    pipe = vp.from_cases([{"image": volume}]).open_volume().cache(folder, **{"chunk": 8} | settings)
    return next(iter(pipe))["image"].realize()[0]


@pytest.mark.filterwarnings("ignore:level-without-place")
def test_each_level_is_copied_for_itself(tmp_path, cache):
    """And each array of a group."""
    path = pyramid(tmp_path / "a.zarr")
    finest, coarser = (kept(Volume(path, level=n), cache) for n in range(2))

    np.testing.assert_array_equal(finest.T, voxels(0))
    np.testing.assert_array_equal(coarser.T, voxels(1))
    np.testing.assert_array_equal(kept(Volume(path / "1"), cache), voxels(1))
    assert len(entries(cache, "*.zarr")) == 3


@pytest.mark.parametrize(
    "other", [{"chunk": 4}, {"codec": "zstd"}], ids=["other chunks", "other codec"]
)
def test_other_copies_have_other_names(tmp_path, cache, other):
    """What is stored differs, though its values do not."""
    path = write_nifti(tmp_path / "a.nii", voxels(0))
    for settings in ({}, other, {}):
        np.testing.assert_array_equal(kept(Volume(path), cache, **settings), voxels(0))

    assert len(entries(cache, "*.zarr")) == 2


@pytest.mark.parametrize("most", [1000, 0], ids=["few objects", "very many"])
def test_a_changed_chunk_of_a_zarr_makes_a_new_copy(tmp_path, cache, monkeypatch, most):
    """The metadata are the same, but one of its objects is not; of very many, stamps say less."""
    monkeypatch.setattr(stamps, "MOST_NAMES", most)
    path = tmp_path / "a.zarr"
    zarr.create_array(path, data=voxels(0), chunks=(16, 16, 16), compressors=None)
    np.testing.assert_array_equal(kept(Volume(path), cache), voxels(0))
    close_volumes()

    def write(chunk):
        padded = np.zeros((16, 16, 16), "<i2")
        padded[tuple(slice(n) for n in SHAPE)] = voxels(1)
        chunk.write_bytes(padded.tobytes())

    again(path / "c" / "0" / "0" / "0", write)
    np.testing.assert_array_equal(kept(Volume(path), cache), voxels(1))
    assert len(entries(cache, "*.zarr")) == 2


def test_statistics_belong_to_one_data_set_of_a_file(tmp_path, cache):
    """Two data sets of one HDF5 file, two levels of one archive: each has its own."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["low"], file["high"] = voxels(0), voxels(0) + 5000
    volumes = [Volume(tmp_path / "a.h5", dataset=name) for name in ("low", "high", "low")]
    means = [volume_statistics(volume).mean for volume in volumes]

    assert means[1] == pytest.approx(means[0] + 5000)
    assert means[2] == means[0]
    saved = [json.loads(read_entry(path)) for path in entries(cache / "statistics", "*.json")]
    assert sorted(entry["mean"] for entry in saved) == sorted(means[:2])
    assert len({volume.content_key for volume in volumes}) == 2


def test_statistics_of_a_changed_file_are_new(tmp_path):
    """Of the same size, written at another time."""
    path = write_nifti(tmp_path / "a.nii", voxels(0))
    first = volume_statistics(Volume(path)).mean
    again(path, write_nifti, voxels(1))

    assert first == pytest.approx(voxels(0).mean())
    assert volume_statistics(Volume(path)).mean == pytest.approx(voxels(1).mean())


def test_an_open_volume_notices_the_change(tmp_path):
    """One made after the change sees the new voxels, with the old one still in use."""
    path = write_nifti(tmp_path / "a.nii", voxels(0))
    before = Volume(path, io="pread")
    np.testing.assert_array_equal(before.numpy()[0], voxels(0))
    path.unlink()
    write_nifti(path, voxels(1))
    os.utime(path, ns=(10**18, 10**18))

    np.testing.assert_array_equal(Volume(path, io="pread").numpy()[0], voxels(1))


def test_entries_are_named_by_the_caller_alone(tmp_path):
    """What is under a key is taken as it is: the key has to say everything."""
    cache = VolumeCache(tmp_path / "own", 100)
    cache.open("k", 3, lambda file: file.write(b"one"), "a").close()
    with cache.open("k", 3, lambda file: file.write(b"two"), "a") as found:
        assert found.read() == b"one"


@pytest.mark.parametrize("dtype", ["<f4", ">i2"])
def test_voxels_in_memory_are_called_alike_in_the_file_of_another_process(tmp_path, dtype):
    """However they lie there: by rows, by columns, by planes, or each other one of more."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 99, (2, 8, 6, 4)).astype(dtype)
    arrays = [
        numbers,
        numbers[0][None],
        np.asfortranarray(numbers[0])[None],
        np.asfortranarray(numbers),
        numbers.transpose(0, 3, 2, 1),
        numbers[:1, ::2, :, ::-1],
    ]
    for n, array in enumerate(arrays):
        np.save(tmp_path / f"{n}.npy", array)
        assert array_key(np.load(tmp_path / f"{n}.npy", mmap_mode="r")) == array_key(array)
