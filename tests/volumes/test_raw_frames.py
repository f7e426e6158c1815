"""Files that are only bytes: frames with bytes around them, in one or several files."""

import os

import fsspec
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core import IO_COUNTERS, Region
from voxpipe.core.errors import (
    BadHeader,
    LeadsOutside,
    SampleError,
    StaleEntry,
    TruncatedVolume,
    UnknownFormat,
    VolumeChanged,
)
from voxpipe.testing import StoreCase, StoreContract

FRAMES = np.arange(6 * 3 * 4, dtype="<u2").reshape(6, 3, 4)
AFFINE = np.diag([2.0, 2.0, 5.0, 1.0])


def written(folder, frames=FRAMES, counts=(6,), head=b"", tail=b"", offset=b""):
    """Write files of so many frames each, and return their paths."""
    paths, first = [], 0
    for number, count in enumerate(counts):
        path = folder / f"part{number}.raw"
        parts = (head + frame.tobytes() + tail for frame in frames[first : first + count])
        path.write_bytes(offset + b"".join(parts))
        paths.append(path)
        first += count
    return paths


class TestRawFrames(StoreContract):
    """One file or several, with and without bytes around the frames, by each way of reading."""

    @pytest.fixture(params=["mmap", "pread", "direct"])
    def io(self, request):
        return request.param

    @pytest.fixture(params=[(), (2, 3, 1)], ids=["one file", "three files"])
    def counts(self, request):
        return request.param

    @pytest.fixture(params=[b"", b"odd"], ids=["bare", "headers"])
    def case(self, request, tmp_path, counts, io):
        head = request.param
        paths = written(tmp_path, FRAMES, counts or (6,), head, head * 2, b"F" * 7)
        options = {"reader": "raw", "dtype": "<u2", "shape": FRAMES.shape, "offset": 7, "io": io}
        options |= {"frame_header_bytes": len(head), "frame_footer_bytes": 2 * len(head)}
        if counts:
            options["files"] = [path.name for path in paths[1:]]
        expected = FRAMES.transpose(2, 1, 0)[None]
        return StoreCase(paths[0], expected, AFFINE, options | {"affine": AFFINE}, np.dtype("<u2"))


@pytest.mark.parametrize("counts", [(6,), (1, 5), (1,) * 6])
@pytest.mark.parametrize("axes", ["zyx", "tyx", "yxz", "zxy"])
def test_every_region(tmp_path, counts, axes):
    """Each region is that of the whole array, whatever files and axes it crosses."""
    paths = written(tmp_path, FRAMES, counts, b"HEAD", b"T")
    volume = vp.raw_volume(
        paths, dtype="<u2", shape=(6, 3, 4), axes=axes, frame_header_bytes=4, frame_footer_bytes=1
    )
    turn = {"zyx": (2, 1, 0), "tyx": (0, 2, 1), "yxz": (1, 0, 2), "zxy": (1, 2, 0)}[axes]
    expected = FRAMES.transpose(turn)
    expected = expected[..., None] if axes == "tyx" else expected[None]
    assert volume.shape == expected.shape
    assert (volume.numpy() == expected).all()
    for start in np.ndindex(*expected.shape):
        part = tuple(slice(n, n + 2) for n in start)
        assert (volume[part].numpy() == expected[part]).all()


def test_more_axes_than_frames(tmp_path):
    """Channels and planes before the frames, cut anywhere by the ends of files."""
    array = np.arange(2 * 3 * 3 * 4, dtype=">i4").reshape(2, 3, 3, 4)
    paths = written(tmp_path, array.reshape(6, 3, 4), (2, 2, 2), b"H")
    volume = vp.raw_volume(paths, dtype=">i4", shape=array.shape, axes="czyx", frame_header_bytes=1)

    expected = array.transpose(0, 3, 2, 1)
    assert (volume.numpy() == expected).all()
    assert (volume[1:, :, 1:, 1:].numpy() == expected[1:, :, 1:, 1:]).all()


def test_a_region_reads_its_rows_alone(tmp_path, monkeypatch):
    """Of a remote file only the rows of the region are requested, not the bytes around frames."""
    frames = np.arange(3 * 400 * 1000, dtype="<u2").reshape(3, 400, 1000)
    (path,) = written(tmp_path, frames, (3,), b"H" * 1000)
    url = f"memory://raw-{tmp_path.name}.raw"
    fsspec.filesystem("memory").pipe_file(url.removeprefix("memory:/"), path.read_bytes())
    asked, system = [], type(fsspec.filesystem("memory"))
    real = system.cat_file

    def spy(self, path, start=None, end=None, **options):
        asked.append((start, end))
        return real(self, path, start=start, end=end, **options)

    monkeypatch.setattr(system, "cat_file", spy)
    volume = vp.raw_volume(url, dtype="<u2", shape=frames.shape, frame_header_bytes=1000)

    part = volume[:, :, 7:9, 1:]

    assert (part.numpy()[0] == frames[1:, 7:9].transpose(2, 1, 0)).all()
    pitch = 1000 + 400 * 2000
    rows = [(n * pitch + 1000 + 7 * 2000, n * pitch + 1000 + 9 * 2000) for n in (1, 2)]
    assert sorted(asked) in (rows, [(rows[0][0], rows[1][1])])


def test_bytes_are_counted(tmp_path):
    """The tally holds the voxels of a region, over two files."""
    paths = written(tmp_path, FRAMES, (3, 3), b"HDR")
    volume = vp.raw_volume(paths, dtype="<u2", shape=FRAMES.shape, frame_header_bytes=3)
    before = IO_COUNTERS.snapshot()

    volume.read(Region((1, 0, 2), (3, 3, 4)))

    counted = IO_COUNTERS.snapshot() - before
    assert (counted.reads, counted.bytes_read) == (1, 2 * 3 * 2 * 2)


@pytest.mark.parametrize("reader", ["raw", vp.raw_volume])
def test_in_a_chain_with_another_format(tmp_path, reader):
    """Options by key; the batches of two workers are those of none."""
    (path,) = written(tmp_path, FRAMES, (6,), b"H")
    np.save(tmp_path / "label.npy", FRAMES.transpose(2, 1, 0).astype("u1"))
    raw = {"reader": reader, "dtype": "<u2", "shape": FRAMES.shape, "frame_header_bytes": 1}
    pipe = (
        vp.from_cases([{"image": path, "label": tmp_path / "label.npy"}])
        .open_volume(**{name: {"image": value} for name, value in raw.items()})
        .lazy_patch((4, 3, 2), samples_per_volume=3)
        .batch_patches(1)
    )
    batches = list(vp.DataLoader2(pipe, seed=1))
    service = vp.MultiProcessingReadingService(num_workers=2)
    with vp.DataLoader2(pipe, None, service, seed=1) as loader:
        others = list(loader)

    for batch, other in zip(batches, others, strict=True):
        assert (batch["image"].int() == batch["label"]).all()
        assert (batch["image"] == other["image"]).all()


def test_frames_by_a_map(tmp_path):
    """Frames that are late, and those of a mask alone."""
    paths = written(tmp_path, FRAMES, (3, 3), b"H")
    volume = vp.raw_volume(paths, dtype="<u2", shape=FRAMES.shape, frame_header_bytes=1)
    late = volume.with_axis_map(vp.AxisMap.shift("K", 2, "fill", fill=9))
    some = volume.with_axis_map(vp.AxisMap.from_table("K", np.array([1, 0, 0, 1, 1, 0], bool)))

    assert late.numpy()[0, 0, 0].tolist() == [24, 36, 48, 60, 9, 9]
    assert some.numpy()[0, 0, 0].tolist() == [0, 36, 48]


def test_a_manifest_holds_the_options(tmp_path):
    """One file is described with its fields, and read by them."""
    (path,) = written(tmp_path, FRAMES, (6,), b"H")
    options = {"reader": "raw", "dtype": "<u2", "shape": FRAMES.shape, "frame_header_bytes": 1}
    place = tmp_path / "manifest.json"
    report = vp.check([{"image": path}], **options)
    vp.index([{"image": path}], place, **options)

    (case,) = vp.from_manifest(place).open_volume()

    assert report.ok
    assert (case["image"].volume.numpy()[0] == FRAMES.transpose(2, 1, 0)).all()


def test_files_of_several_folders(tmp_path):
    """The caller names them; a manifest may only name files below the first one's folder."""
    (tmp_path / "b").mkdir()
    (first,) = written(tmp_path / "b", FRAMES[:2], (2,))
    (second,) = written(tmp_path, FRAMES[2:], (4,))
    volume = vp.raw_volume([first, second], dtype="<u2", shape=FRAMES.shape)
    options = {"reader": "raw", "dtype": "<u2", "shape": FRAMES.shape}

    assert volume.shape == (1, 4, 3, 6)
    with pytest.raises(LeadsOutside):
        _ = vp.Volume(first, files=["../part0.raw"], **options).shape


def test_a_file_that_was_written_again(tmp_path):
    """Every file is watched, not only the first."""
    paths = written(tmp_path, FRAMES, (3, 3))
    volume = vp.raw_volume(paths, dtype="<u2", shape=FRAMES.shape)
    assert volume.probe().is_current
    paths[1].write_bytes(paths[1].read_bytes() + b"12")

    assert not volume.probe().is_current
    with pytest.raises((VolumeChanged, BadHeader)):
        volume[:, :, :, 4:].numpy()


GOOD = {"dtype": "<u2", "shape": (6, 3, 4)}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"shape": (7, 3, 4)}, TruncatedVolume, "6 frames of 24 bytes.*says 7"),
        ({"shape": (5, 3, 4)}, BadHeader, "6 frames of 24 bytes.*says 5"),
        ({"shape": (6, 3, 5)}, BadHeader, "144 bytes: 4 frames of 30.*24 more"),
        ({"offset": 150}, BadHeader, "0 frames"),
        ({"offset": -1}, SampleError, "offset= .* is -1"),
        ({"frame_header_bytes": 1.5}, SampleError, "frame_header_bytes= .* is 1.5"),
        ({"shape": (6, 3, 0)}, SampleError, "shape= "),
        ({"shape": 72}, SampleError, "shape= "),
        ({"dtype": "u22"}, SampleError, "dtype= "),
        ({"dtype": "O"}, UnknownFormat, "object"),
        ({"axes": "zyxc"}, SampleError, "names 4 axes"),
        ({"axes": "zyc", "frame_header_bytes": 2}, SampleError, "two of x, y and z"),
        ({"header_bytes": 2}, SampleError, "header_bytes"),
    ],
)
def test_wrong_options(tmp_path, options, error, text):
    """Each is refused with its name, before a voxel is read."""
    (path,) = written(tmp_path)
    with pytest.raises(error, match=text):
        _ = vp.Volume(path, reader="raw", **GOOD | options).shape


def test_the_way_to_raw_files(tmp_path):
    """A file without a known suffix, and a reader that no format has, say how to go on."""
    (path,) = written(tmp_path)
    with pytest.raises(UnknownFormat, match=r"voxpipe\.raw_volume"):
        _ = vp.Volume(path).shape
    with pytest.raises(SampleError, match="Did you mean 'raw'"):
        _ = vp.Volume(path, reader="row", **GOOD).shape
    with pytest.raises(SampleError, match="shape="):
        _ = vp.Volume(path, reader="raw", dtype="<u2").shape
    with pytest.raises(SampleError, match="no file"):
        vp.raw_volume([], **GOOD)


@pytest.mark.parametrize("tail", [b"", b"FOOT"])
@pytest.mark.parametrize("skip", ["0", "4", "-1"])
def test_lists_in_headers(tmp_path, tail, skip):
    """NRRD and MetaImage that list raw files, as SimpleITK reads them, in place."""
    sitk = pytest.importorskip("SimpleITK")
    head = b"HEAD" if skip != "0" else b""
    if skip == "-1":
        tail = b""
    for number, frame in enumerate(FRAMES):
        (tmp_path / f"s{number}.raw").write_bytes(head + frame.tobytes() + tail)
    (tmp_path / "v.nhdr").write_text(
        "NRRD0004\ntype: uint16\ndimension: 3\nsizes: 4 3 6\nendian: little\nencoding: raw\n"
        f"byte skip: {skip}\ndata file: s%d.raw 0 5 1 2\n"
    )
    (tmp_path / "v.mhd").write_text(
        "ObjectType = Image\nNDims = 3\nDimSize = 4 3 6\nElementType = MET_USHORT\n"
        f"HeaderSize = {skip}\nElementDataFile = s%d.raw 0 5 1\n"
    )
    for name in ("v.nhdr", "v.mhd"):
        volume = vp.Volume(tmp_path / name)
        assert volume.access == "range"
        expected = sitk.GetArrayFromImage(sitk.ReadImage(tmp_path / name)).T
        assert (volume.numpy()[0] == expected).all()
        assert (volume[:, 1:3, 2:, 3:5].numpy()[0] == FRAMES.T[1:3, 2:, 3:5]).all()


@pytest.mark.parametrize("kind", ["raw", "nhdr"])
def test_a_manifest_watches_every_file(tmp_path, kind):
    """A file of voxels that was written after the manifest is found, not only the first file."""
    written(tmp_path, FRAMES, (3, 3))
    source, options = tmp_path / "part0.raw", {"files": ["part1.raw"], "reader": "raw"}
    options |= {"dtype": "<u2", "shape": FRAMES.shape}
    if kind == "nhdr":
        source, options = tmp_path / "v.nhdr", {}
        source.write_text(
            "NRRD0004\ntype: uint16\ndimension: 3\nsizes: 4 3 6\nendian: little\nencoding: raw\n"
            "data file: part%d.raw 0 1 1 3\n"
        )
    vp.index([{"image": source}], tmp_path / "m.json", **options)
    assert (
        next(iter(vp.from_manifest(tmp_path / "m.json").open_volume()))["image"]
        .volume.numpy()
        .any()
    )
    vp.volumes.close_volumes()
    (tmp_path / "part1.raw").write_bytes(bytes(72))
    os.utime(tmp_path / "part1.raw", ns=(1, 1))

    with pytest.raises(StaleEntry, match="another of its files"):
        next(iter(vp.from_manifest(tmp_path / "m.json").open_volume()))["image"].volume.numpy()
