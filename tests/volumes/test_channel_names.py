"""Channels by the names that a file gives them."""

import numpy as np
import pytest
import tifffile
import zarr
from zarr_arrays import add_array

import voxpipe as vp
from voxpipe.core.errors import OutOfVolume

RANDOM = np.random.default_rng(0)
DYES = ("DAPI", "GFP", "mCherry")
STACK = RANDOM.integers(0, 4000, (2, 3, 4, 6, 8), np.uint16)  # t, c, z, y, x
SAME = STACK.transpose(0, 1, 4, 3, 2)  # t, c, x, y, z

# All time points of a file are its channels.
pytestmark = pytest.mark.filterwarnings("ignore:times-and-channels")


def ome_zarr(folder, version):
    axes = [
        {"name": name, "type": {"t": "time", "c": "channel"}.get(name, "space")} for name in "tczyx"
    ]
    steps = [{"type": "scale", "scale": [1.0] * 5}]
    image = {"axes": axes, "datasets": [{"path": "0", "coordinateTransformations": steps}]}
    own = {"multiscales": [{**image, "version": "0.4"}]}
    own["omero"] = {"channels": [{"label": dye, "color": "FFFFFF"} for dye in DYES]}
    group = zarr.open_group(str(folder / "a.ome.zarr"), mode="w", zarr_format=version)
    group.attrs.update(own if version == 2 else {"ome": {**own, "version": "0.5"}})
    add_array(group, "0", data=STACK, chunks=(1, 1, 4, 6, 8))
    return folder / "a.ome.zarr"


def ome_zarr_2(folder):
    return ome_zarr(folder, 2)


def ome_zarr_3(folder):
    return ome_zarr(folder, 3)


def ome_tiff(folder):
    how = {"metadata": {"axes": "TCZYX", "Channel": {"Name": [*DYES]}}, "ome": True}
    tifffile.imwrite(folder / "a.ome.tif", STACK, photometric="minisblack", **how)
    return folder / "a.ome.tif"


def tiled_tiff(folder):
    how = {"metadata": {"axes": "TCZYX", "Channel": {"Name": [*DYES]}}, "ome": True}
    options = {"tile": (16, 16), "compression": "zlib"}
    tifffile.imwrite(folder / "b.ome.tif", STACK, photometric="minisblack", **options, **how)
    return folder / "b.ome.tif"


FILES = [ome_zarr_2, ome_zarr_3, ome_tiff, tiled_tiff]


@pytest.mark.parametrize("write", FILES)
def test_channels_are_opened_by_name(tmp_path, write):
    """Each name keeps its channel of every time, in the given order."""
    path = write(tmp_path)
    assert vp.Volume(path).channel_names == DYES * 2
    volume = vp.Volume(path, channels=["GFP", "DAPI"])
    assert volume.shape == (4, 8, 6, 4)
    assert volume.channel_names == ("GFP", "GFP", "DAPI", "DAPI")
    assert np.array_equal(volume.numpy(), np.concatenate([SAME[:, 1], SAME[:, 0]]))

    case = {"image": path, "label": np.ones((8, 6, 4), np.uint8)}
    opened = vp.from_cases([case]).open_volume(channels=["mCherry", 0])
    sample = next(iter(opened))
    assert np.array_equal(sample["image"].realize(), [*SAME[:, 2], *SAME[:, 0]])
    assert sample["label"].shape[0] == 1


def test_channels_by_key(tmp_path):
    """One file under two keys; an unknown key is refused."""
    path = ome_zarr(tmp_path, 3)
    channels = {"nuclei": "DAPI", "actin": "GFP"}
    case = {"nuclei": str(path), "actin": str(path)}
    sample = next(iter(vp.from_cases([case]).open_volume(channels=channels)))
    assert np.array_equal(sample["nuclei"].realize(), SAME[:, 0])
    assert np.array_equal(sample["actin"].realize(), SAME[:, 1])
    with pytest.raises(vp.errors.SampleError, match="channels= names 'dapi'"):
        next(iter(vp.from_cases([case]).open_volume(channels={"dapi": 0})))


@pytest.mark.parametrize("names", ["GFP", ("mCherry", "DAPI"), (0, "GFP")], ids=str)
def test_channels_are_selected_by_name(tmp_path, names):
    """At once, and after other pipes that see all channels."""
    opened = vp.from_cases([{"image": ome_zarr(tmp_path, 3)}]).open_volume()
    several = (names,) if isinstance(names, str) else names
    numbers = [
        n
        for name in several
        for first in [DYES.index(name) if name else 0]
        for n in (first, first + 3)
    ]
    expected = SAME.reshape(6, 8, 6, 4)[numbers]
    pipe = opened.select_channels(names)
    assert np.array_equal(next(iter(pipe))["image"].realize(), expected)
    assert np.array_equal(next(iter(opened.realize().select_channels(names)))["image"], expected)

    late = opened.contrast(1.5).flush().select_channels(names)
    first = tuple(n for n in numbers if n < len(DYES))
    early = opened.contrast(1.5).flush().select_channels(first)
    assert np.array_equal(*(next(iter(one))["image"].realize() for one in (late, early)))
    twice = opened.select_channels((1, 0)).contrast(1.5).select_channels("DAPI")
    other = opened.select_channels((1, 0)).contrast(1.5).select_channels(1)
    assert np.array_equal(*(next(iter(one))["image"].realize() for one in (twice, other)))


@pytest.mark.parametrize("axes", ["TCZYX", "CTZYX"])
def test_a_number_counts_the_channels_of_each_time(tmp_path, axes):
    """As its name does, in both orders of a file, of all times and of one."""
    array = STACK if axes[0] == "T" else STACK.swapaxes(0, 1)
    how = {"metadata": {"axes": axes, "Channel": {"Name": [*DYES]}}, "ome": True}
    tifffile.imwrite(path := tmp_path / "a.ome.tif", array, photometric="minisblack", **how)

    for time, expected in ((None, SAME[:, 1]), (1, SAME[1:, 1])):
        for channels in (["GFP"], [1], 1):
            volume = vp.Volume(path, channels=channels, time=time)
            assert np.array_equal(volume.numpy(), expected)
            assert volume.channel_names == ("GFP",) * len(expected)
    opened = vp.from_cases([{"image": path}]).open_volume()
    by_key = vp.from_cases([{"image": path}]).open_volume(channels={"image": [2, 1]})
    chains = (opened, opened.realize(), opened.contrast(1.0), opened.contrast(1.0).flush())
    for pipe in (*chains, opened.select_channels((2, 1)), by_key):
        pipe = pipe.select_channels(1)
        assert np.array_equal(np.asarray(next(iter(pipe.realize()))["image"]), SAME[:, 1])


def test_other_channels_are_not_read(tmp_path):
    """A chunk of each time, of six chunks."""
    opened = vp.from_cases([{"image": ome_zarr(tmp_path, 3)}]).open_volume()
    for pipe in (
        opened.select_channels("GFP"),
        vp.from_cases([{"image": tmp_path / "a.ome.zarr"}]).open_volume(channels="GFP"),
    ):
        patch = next(iter(pipe))["image"]
        (read,) = patch.reads()
        assert len(read.volume.needed_chunks(read.region).chunks) == 2


@pytest.mark.parametrize(
    ("channels", "told"),
    [
        ("Dapi", "no channel 'Dapi'; it has 'DAPI', 'GFP', 'mCherry'(?s:.*)mean 'DAPI'"),
        ("qqq", "no channel 'qqq'(?s:.*)numbers from 0 to 2, or one of the names"),
        (3, "no channel 3"),
    ],
)
def test_a_missing_channel_lists_the_names(tmp_path, channels, told):
    """By the argument, and by the pipe."""
    opened = vp.from_cases([{"image": ome_zarr(tmp_path, 3)}]).open_volume(channels=channels)
    with pytest.raises(OutOfVolume, match=told):
        next(iter(opened))["image"].shape  # noqa: B018  which reads the header
    pipe = vp.from_cases([{"image": tmp_path / "a.ome.zarr"}]).open_volume()
    if isinstance(channels, str):
        with pytest.raises(OutOfVolume, match=told):
            next(iter(pipe.select_channels(channels)))["image"].shape  # noqa: B018


def test_files_without_names_say_so():
    """Numbers are the way then."""
    with pytest.raises(OutOfVolume, match=r"have no names(?s:.*)numbers from 0 to 1\."):
        vp.Volume(np.zeros((2, 3, 4, 5)), channels="DAPI").shape  # noqa: B018
    assert vp.Volume(np.zeros((2, 3, 4, 5)), channels=1).shape == (1, 3, 4, 5)
    for wrong in (-1, 1.5, "", [], [None]):
        with pytest.raises(ValueError, match="the name of a channel"):
            vp.Volume(np.zeros((2, 3, 4, 5)), channels=wrong)


def test_names_are_in_lists_and_manifests(tmp_path):
    """A list has the names of its files; a manifest keeps them."""
    path = ome_zarr(tmp_path, 3)
    assert vp.Volume([path, path]).channel_names == DYES * 4
    manifest = tmp_path / "manifest.json"
    vp.index(vp.from_cases([{"image": str(path)}]), manifest)
    opened = vp.from_manifest(manifest).open_volume(channels="GFP")
    assert np.array_equal(next(iter(opened))["image"].realize(), SAME[:, 1])


def test_check_finds_channels_in_another_order(tmp_path):
    """One finding with the cure, by which all have one order."""
    for name, dyes in (("a", DYES), ("b", DYES), ("c", DYES[::-1])):
        how = {"metadata": {"axes": "CZYX", "Channel": {"Name": [*dyes]}}, "ome": True}
        tifffile.imwrite(tmp_path / f"{name}.ome.tif", STACK[0], photometric="minisblack", **how)
    cases = [{"image": str(path)} for path in sorted(tmp_path.iterdir())]
    cases = vp.from_cases(cases).open_volume(affine=np.eye(4))

    (bad,) = vp.check(cases, num_workers=1).bad

    assert bad.name.endswith("c.ome.tif")
    assert "has mCherry, GFP, DAPI, and " in bad.reason
    assert 'channels=["DAPI", "GFP", "mCherry"]' in bad.reason
    chosen = vp.from_cases(cases.parent.cases).open_volume(affine=np.eye(4), channels=DYES)
    assert {sample["image"].volume.channel_names for sample in chosen} == {DYES}
