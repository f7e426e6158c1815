"""FreeSurfer's .mgh and .mgz, as nibabel reads them: by path, in folders, behind URLs."""

import gzip

import fsspec
import nibabel
import numpy as np
import pytest
from medical_files import write_mgh
from nifti_files import AFFINE, numbered

import voxpipe as vp
from voxpipe.core.errors import BadHeader, CorruptVolume, TruncatedVolume, UnknownFormat
from voxpipe.volumes import Volume, find_volumes

OBLIQUE = AFFINE @ np.array([[0.8, -0.6, 0, 3], [0.6, 0.8, 0, -2], [0, 0, 1, 7], [0, 0, 0, 1]])


def as_nibabel_has_it(path):
    """Return nibabel's image; its own loading of a file leaves that open."""
    raw = path.read_bytes()
    return nibabel.MGHImage.from_bytes(gzip.decompress(raw) if path.suffix == ".mgz" else raw)


@pytest.mark.parametrize("suffix", [".mgh", ".mgz"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float32, np.uint16])
def test_types_and_places_are_those_of_nibabel(tmp_path, suffix, dtype):
    """Each type that FreeSurfer stores, oblique, with frames; voxels in native byte order."""
    if dtype is np.uint16 and nibabel.__version__.startswith("5.0."):
        pytest.skip("nibabel knows uint16 in MGH from 5.1 on")
    path = write_mgh(tmp_path / f"a{suffix}", numbered((2, 5, 6, 7), dtype), OBLIQUE)
    image = as_nibabel_has_it(path)

    volume = Volume(path)

    np.testing.assert_array_equal(volume.affine, image.affine)
    assert volume.dtype == dtype
    assert volume.disk_dtype == image.get_data_dtype()
    np.testing.assert_array_equal(volume.numpy(), np.moveaxis(np.asarray(image.dataobj), -1, 0))


def test_a_file_that_does_not_say_where_it_lies(tmp_path):
    """Without goodRASFlag the volume is coronal, 1 mm: nibabel's and FreeSurfer's rule."""
    path = write_mgh(tmp_path / "a.mgh", numbered((5, 6, 7)))
    raw = bytearray(path.read_bytes())
    raw[28:30] = b"\0\0"
    path.write_bytes(raw)

    np.testing.assert_array_equal(Volume(path).affine, as_nibabel_has_it(path).affine)
    assert Volume(path).spacing == (1, 1, 1)


def test_folders_and_patterns_find_them(tmp_path):
    """A subject of FreeSurfer: ``find_volumes``, ``list_cases`` and ``check`` see its volumes."""
    for n in range(2):
        (tmp_path / f"sub-{n}").mkdir()
        write_mgh(tmp_path / f"sub-{n}" / "brain.mgz", numbered((5, 6, 7)))
        write_mgh(tmp_path / f"sub-{n}" / "aseg.mgh", numbered((5, 6, 7)))

    found = find_volumes(tmp_path)
    cases = vp.list_cases(f"{tmp_path}/*/", image="brain.mgz", label="aseg.mgh")
    samples = list(cases.open_volume().lazy_patch((2, 2, 2)))
    report = vp.check(cases)

    assert {case: sorted(keys) for case, keys in found.items()} == {
        "sub-0": ["aseg", "brain"],
        "sub-1": ["aseg", "brain"],
    }
    assert [sample["label"].volume.kind for sample in samples] == ["label", "label"]
    assert (report.volumes, report.bad) == (4, ())


def test_a_patch_of_a_url_is_a_few_ranges(tmp_path):
    """Of an uncompressed file behind a URL only the rows of the region are fetched."""
    path = write_mgh(tmp_path / "a.mgh", numbered((16, 16, 64)))
    system = fsspec.filesystem("memory")
    system.pipe("/mgh/a.mgh", path.read_bytes())

    volume = Volume("memory://mgh/a.mgh")

    assert volume.access == "range"
    np.testing.assert_array_equal(volume[..., 9].numpy(), Volume(path)[..., 9].numpy())


def damaged(path, change):
    raw = bytearray(path.read_bytes())
    change(raw)
    path.write_bytes(raw)
    return Volume(path)


def test_what_is_no_mgh_is_refused(tmp_path):
    """Version, dimensions, type and length are looked at before any memory is taken."""
    array = numbered((5, 6, 7))

    def fresh(suffix=".mgh"):
        return write_mgh(tmp_path / f"a{suffix}", array)

    with pytest.raises(BadHeader, match="version 513"):
        _ = damaged(fresh(), lambda raw: raw.__setitem__(slice(0, 4), b"\0\0\2\1")).shape
    with pytest.raises(BadHeader, match=r"dimensions \[5, 0, 7, 1\]"):
        _ = damaged(fresh(), lambda raw: raw.__setitem__(slice(8, 12), bytes(4))).shape
    with pytest.raises(UnknownFormat, match="MGH type 2"):
        _ = damaged(fresh(), lambda raw: raw.__setitem__(23, 2)).shape
    with pytest.raises(TruncatedVolume, match="an MGH header has 284"):
        _ = damaged(fresh(), lambda raw: raw.__delitem__(slice(100, None))).shape
    with pytest.raises(TruncatedVolume):
        damaged(fresh(), lambda raw: raw.__delitem__(slice(600, None))).numpy()
    fresh(".mgz").rename(tmp_path / "b.mgh")
    with pytest.raises(BadHeader, match=r"Name it \.mgz"):
        _ = Volume(tmp_path / "b.mgh").shape
    fresh().rename(tmp_path / "b.mgz")
    with pytest.raises(BadHeader, match=r"Name it \.mgh"):
        _ = Volume(tmp_path / "b.mgz").shape


def test_sums_behind_the_tags_are_checked(tmp_path):
    """The voxels are whole, but the stream's check sum says that they are not what was written."""
    path = write_mgh(tmp_path / "a.mgz", numbered((5, 6, 7)))
    with pytest.raises(CorruptVolume, match=r"cannot be decoded after"):
        damaged(path, lambda raw: raw.__setitem__(-5, raw[-5] ^ 1)).numpy()


def test_a_stream_that_never_ends_is_left(tmp_path):
    """Tags are short: what goes on for longer is not decoded to its end."""
    array = numbered((5, 6, 7))
    write_mgh(tmp_path / "a.mgh", array)
    raw = (tmp_path / "a.mgh").read_bytes() + bytes(40 * 2**20)
    (tmp_path / "a.mgz").write_bytes(gzip.compress(raw, 1))

    np.testing.assert_array_equal(Volume(tmp_path / "a.mgz").numpy()[0], array)
