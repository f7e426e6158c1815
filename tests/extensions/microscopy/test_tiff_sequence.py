"""Folders of planes and patterns of TIFF files, against tifffile's own sequences."""

import os
import pickle

import numpy as np
import pytest
import tifffile

import voxpipe as vp
from voxpipe.core import Region
from voxpipe.core.errors import (
    LikelyMistake,
    SampleError,
    UnknownFormat,
    VolumeChanged,
    VolumeNotFound,
)
from voxpipe.extensions.microscopy.tiff_sequence import files_of_pattern, is_pattern
from voxpipe.testing import StoreCase, StoreContract

PLANES = np.random.default_rng(0).integers(0, 60000, (12, 40, 50)).astype("<u2")
AFFINE = np.diag([2.0, 2.0, 5.0, 1.0])
PATTERN = "img_t{t}_c{c}_z{z}.tif"
FORMS = [{}, {"compression": "zlib"}, {"compression": "zlib", "tile": (16, 16)}]
SEQUENCE = np.random.default_rng(1).integers(0, 60000, (2, 3, 4, 20, 30)).astype("<u2")
CHANNELS = ("DAPI", "GFP", "RFP")


def stack(folder, planes=PLANES, name="z{}.tif", **how):
    """Write a file for each plane; return the folder."""
    folder.mkdir(exist_ok=True)
    for z, plane in enumerate(planes):
        tifffile.imwrite(folder / name.format(z), plane, **how)
    return folder


def experiment(folder):
    """Write a file for each time point, channel and plane; return the pattern's path."""
    folder.mkdir(exist_ok=True)
    for t, c, z in np.ndindex(SEQUENCE.shape[:3]):
        name = f"img_t{t:02d}_c{CHANNELS[c]}_z{z + 1}.tif"
        tifffile.imwrite(folder / name, SEQUENCE[t, c, z], compression="zlib")
    return f"{folder}/{PATTERN}"


class TestFolderOfPlanes(StoreContract):
    """One TIFF per plane, bare, in strips and in tiles."""

    @pytest.fixture(params=FORMS[::2], ids=str)
    def case(self, tmp_path, request):
        place = stack(tmp_path / "stack", **request.param)
        return StoreCase(place, PLANES.transpose(2, 1, 0)[None], AFFINE, {"affine": AFFINE})


@pytest.mark.parametrize("how", FORMS, ids=str)
def test_a_folder_is_what_tifffile_reads(tmp_path, how):
    """Plane 2 comes before plane 10, and copies in other processes read the same."""
    place = stack(tmp_path / "stack", **how)
    names = sorted(os.listdir(place), key=lambda name: int(name[1:-4]))
    expected = tifffile.TiffSequence([place / name for name in names]).asarray()

    volume = pickle.loads(pickle.dumps(vp.Volume(f"{place}/")))

    np.testing.assert_array_equal(volume.numpy()[0].T, expected)


def test_a_region_reads_its_planes_and_tiles_alone(tmp_path):
    """Two tiles of two planes are read, and no other file."""
    place = stack(tmp_path / "stack", compression="zlib", tile=(16, 16))
    volume = vp.Volume(place)
    volume.probe()
    for z in (0, 1, 4, 5, 6, 7, 8, 9, 10, 11):
        whole = (place / f"z{z}.tif").read_bytes()
        (place / f"z{z}.tif").write_bytes(whole[:-2000] + b"\xff" * 2000)
    region = Region((0, 0, 2), (20, 16, 4))

    with pytest.raises(VolumeChanged):
        volume.refuse_change()
    assert volume.needed_chunks(region).voxels == 2 * 2 * 256
    np.testing.assert_array_equal(volume.probe().read(region).array[0].T, PLANES[2:4, :16, :20])


def test_bare_planes_are_read_by_rows(tmp_path):
    """No whole plane is read for a row of it."""
    volume = vp.Volume(stack(tmp_path / "stack"))
    region = Region((0, 3, 5), (50, 4, 6))
    part = volume.read(region)

    np.testing.assert_array_equal(part.array[0, :, 0, 0], PLANES[5, 3])
    assert volume.chunks is None
    assert volume.probe().touched_bytes(region) == 100


def test_a_pattern_names_times_channels_and_planes(tmp_path):
    """Files are in the order of tifffile's pattern; one time point is chosen by its place."""
    place = experiment(tmp_path / "exp")
    files = sorted(str(path) for path in (tmp_path / "exp").iterdir())
    expected = tifffile.TiffSequence(
        files,
        pattern=r"_t(?P<T>\d+)_c(?P<C>[A-Z]+)_z(?P<Z>\d+)",
        categories={"C": {name: number for number, name in enumerate(CHANNELS)}},
    ).asarray()

    whole = vp.Volume(place, time="all").numpy().transpose(0, 3, 2, 1)
    second = vp.Volume(tmp_path / "exp", pattern=PATTERN, time=1)

    np.testing.assert_array_equal(whole, expected.reshape(6, 4, 20, 30))
    np.testing.assert_array_equal(second.numpy().transpose(0, 3, 2, 1), SEQUENCE[1])
    found = files_of_pattern(place, {})
    assert found.axes == ("t", "c", "z")
    assert found.values == ((0, 1), CHANNELS, (1, 2, 3, 4))


def test_times_and_channels_are_not_mixed_silently(tmp_path):
    """Without time= a warning names the order; another time point is refused."""
    place = experiment(tmp_path / "exp")

    with pytest.warns(LikelyMistake, match="times-and-channels: the 2 time points and 3 channels"):
        assert vp.Volume(place).shape == (6, 30, 20, 4)
    with pytest.raises(SampleError, match="no time point 2, but 0 to 1"):
        vp.Volume(place, time=2).probe()


def test_folders_may_have_placeholders(tmp_path):
    """A folder for each time point is a part of the pattern."""
    for t in (9, 10):
        stack(tmp_path / f"t{t}", PLANES[:3] + t)

    volume = vp.Volume(f"{tmp_path}/t{{t}}/z{{z}}.tif", time="channels")

    assert volume.shape == (2, 50, 40, 3)
    np.testing.assert_array_equal(volume.numpy()[1].T, PLANES[:3] + 10)


def test_stacks_of_planes_may_be_times(tmp_path):
    """A file may hold all planes of a time point."""
    for t in range(2):
        tifffile.imwrite(tmp_path / f"t{t}.tif", PLANES[t : t + 3], photometric="minisblack")

    volume = vp.Volume(f"{tmp_path}/t{{t}}.tif", time="channels")

    np.testing.assert_array_equal(volume.numpy()[1].T, PLANES[1:4])


def test_axes_name_those_of_files_and_then_those_in_each(tmp_path):
    """They may repeat those of the folder, and name axes that a file leaves open."""
    folder = stack(tmp_path / "stack", PLANES[:3])
    for c in range(2):
        tifffile.imwrite(tmp_path / f"c{c}.tif", PLANES[3 * c :][:3], photometric="minisblack")
    movie = f"{tmp_path}/c{{c}}.tif"

    assert vp.Volume(folder, axes="zyx").shape == (1, 50, 40, 3)
    np.testing.assert_array_equal(vp.Volume(folder, axes="zxy").numpy()[0, ..., 1], PLANES[1])
    voxels = vp.Volume(movie, axes="ctyx", time=2).numpy()
    np.testing.assert_array_equal(voxels[1, ..., 0].T, PLANES[5])
    for axes, words in (("tyx", "lie along z"), ("yx", "names 2 axes"), ("cyx", "lie along z")):
        with pytest.raises(SampleError, match=words):
            vp.Volume(folder, axes=axes).probe()
    with pytest.raises(SampleError, match="lie along c"):
        vp.Volume(movie, axes="tzyx").probe()


def test_files_of_channels_may_hold_the_times(tmp_path):
    """Each time is a case of from_ome(), by axes= or by the names in the files."""
    for folder, how in (("open", {}), ("named", {"imagej": True, "metadata": {"axes": "TYX"}})):
        (tmp_path / folder).mkdir()
        for c in range(2):
            name = tmp_path / folder / f"c{c}.tif"
            tifffile.imwrite(name, PLANES[3 * c :][:3], photometric="minisblack", **how)
        place = f"{tmp_path}/{folder}/c{{c}}.tif"
        axes = None if how else "ctyx"

        samples = [*vp.from_ome(place, axes=axes).open_volume()]

        assert [sample.case for sample in samples] == ["image t0", "image t1", "image t2"]
        for time, sample in enumerate(samples):
            voxels = sample["image"].realize()[..., 0].transpose(0, 2, 1)
            np.testing.assert_array_equal(voxels, PLANES[[time, 3 + time]])


def remote(folder):
    """Copy a folder to the memory of this process; return its URL."""
    import fsspec

    system = fsspec.filesystem("memory")
    for path in folder.iterdir():
        system.pipe_file(f"/{folder.name}/{path.name}", path.read_bytes())
    return f"memory://{folder.name}"


def test_a_pattern_may_be_a_url(tmp_path):
    """Bare and compressed planes of a bucket are read as those on a disk."""
    for number, how in enumerate(FORMS[:2]):
        url = remote(stack(tmp_path / f"planes{number}", PLANES[:3], **how))

        volume = vp.Volume(f"{url}/z{{z}}.tif")

        np.testing.assert_array_equal(volume.numpy()[0].T, PLANES[:3])


def test_gaps_are_reported(tmp_path):
    """The numbers that are missing are named; allow_gaps closes them."""
    place = stack(tmp_path / "stack")
    (place / "z5.tif").unlink()
    (place / "z7.tif").unlink()

    with pytest.raises(VolumeNotFound, match=r"10 numbers of z from 0 to 11; missing: 5, 7"):
        vp.Volume(place).probe()
    volume = vp.Volume(place, allow_gaps=True)
    np.testing.assert_array_equal(volume.numpy()[0, ..., 5].T, PLANES[6])


def test_arguments_count_from_0_and_texts_add_the_number_of_the_file(tmp_path):
    """T1 is time=0; C2 is channels=[1], or ["2"] by name."""
    for t, c, z in np.ndindex(3, 2, 2):
        value = np.full((8, 8), 100 * t + 10 * c + z + 111, "u2")
        tifffile.imwrite(tmp_path / f"T{t + 1}_C{c + 1}_Z{z + 1}.tif", value)
    place = tmp_path / "T{t}_C{c}_Z{z}.tif"
    for channels in ([1], ["2"]):
        volume = vp.Volume(place, time=1, channels=channels)
        assert volume.numpy()[0, 0, 0].tolist() == [221, 222]
        assert volume.channel_names == ("2",)
    with pytest.raises(SampleError, match=r"but 0 to 2 \(file number 3\)"):
        vp.Volume(place, time=3).probe()

    (tmp_path / "T2_C1_Z2.tif").unlink()

    gap = r"t=1 \(file number 2\) c=0 \(file number 1\) z=2"
    with pytest.raises(VolumeNotFound, match=f"{gap}: 11 of 12") as error:
        vp.Volume(place, time=1).probe()
    assert "complete time point: 0 (file number 1), 2 (file number 3)." in error.value.do
    with pytest.warns(LikelyMistake, match=rf"{gap}\. Time points left out: 1 \(file number 2\)"):
        assert [case["case"] for case in vp.from_ome(place).cases][-1].endswith("t2")


def test_a_missing_plane_spoils_its_time_alone(tmp_path):
    """Other time points are as tifffile reads them; all times together are refused."""
    place = experiment(tmp_path / "exp")
    (tmp_path / "exp" / "img_t01_cGFP_z2.tif").unlink()
    files = sorted(str(path) for path in (tmp_path / "exp").glob("img_t00*"))
    expected = tifffile.TiffSequence(files).asarray().reshape(3, 4, 20, 30)

    first = vp.Volume(place, time=0).numpy().transpose(0, 3, 2, 1)

    np.testing.assert_array_equal(first, expected)
    for time in (None, 1, "all"):
        with pytest.raises(VolumeNotFound, match="no file for t=1 c=GFP z=2: 23 of 24") as error:
            vp.Volume(place, time=time).probe()
        assert "complete time point: 0" in error.value.do
    (tmp_path / "exp" / "img_t00_cRFP_z4.tif").unlink()
    with pytest.raises(VolumeNotFound, match="no file for t=0 c=RFP z=4, t=1 c=GFP z=2"):
        vp.Volume(place, time=0).probe()


def test_a_missing_time_keeps_the_numbers_of_others(tmp_path):
    """Time 2 is that of the file, unless gaps are closed; channels without t need every file."""
    place = tmp_path / "t{t}_z{z}.tif"
    for t in (0, 2, 3):
        stack(tmp_path, PLANES[:2] + t, f"t{t}_z{{}}.tif")

    np.testing.assert_array_equal(vp.Volume(place, time=2).numpy()[0].T, PLANES[:2] + 2)
    with pytest.raises(VolumeNotFound, match="t=1 z=0, t=1 z=1: 6 of 8"):
        vp.Volume(place, time=1).probe()
    closed = vp.Volume(place, time=1, allow_gaps=True)
    np.testing.assert_array_equal(closed.numpy()[0].T, PLANES[:2] + 2)
    for c, z in [(0, 0), (0, 1), (1, 0)]:
        tifffile.imwrite(tmp_path / f"c{c}_z{z}.tif", PLANES[0])
    with pytest.raises(VolumeNotFound, match="c=1 z=1: 3 of 4"):
        vp.Volume(tmp_path / "c{c}_z{z}.tif").probe()


@pytest.mark.parametrize(
    ("name", "plane", "message"),
    [
        ("z05.tif", PLANES[0], "z5.tif and z05.tif have the same numbers"),
        ("z12.tif", PLANES[0, :30], r"z12.tif differs from .*z0.tif in shape: \(30, 50\), not"),
        ("z12.tif", PLANES[0].astype("u1"), r"z12.tif differs from .* in dtype: uint8, not uint16"),
        ("mask.tif", PLANES[0], "names differ in more than numbers"),
    ],
)
def test_planes_that_differ_are_refused_by_name(tmp_path, name, plane, message):
    """Duplicates, other shapes, other types and other names."""
    place = stack(tmp_path / "stack")
    tifffile.imwrite(place / name, plane)

    with pytest.raises(UnknownFormat, match=message) as error:
        vp.Volume(place).probe()
    assert error.value.do


def test_several_numbers_need_a_pattern(tmp_path):
    """The error suggests the pattern by the words in front of the numbers."""
    for t, z in np.ndindex(2, 2):
        tifffile.imwrite(tmp_path / f"img_t{t}_z{z}.tif", PLANES[0])

    with pytest.raises(UnknownFormat, match="differ in 2 numbers") as error:
        vp.Volume(tmp_path).probe()
    assert "pattern='img_t{t}_z{z}.tif'" in error.value.do


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("img_s{}_z{}.tif", "pattern='img_s0_z{z}.tif'"),
        ("z{}_pos{}.tif", "pattern='z{z}_pos0.tif'"),
        ("img_s{}_c{}.tif", "pattern='img_s{z}_c{c}.tif'"),
        ("img_{}_{}.tif", "pattern='img_{c}_{z}.tif'"),
        ("p{}_f{}.tif", "open p0_f0.tif by its path"),
    ],
)
def test_numbers_of_positions_stay_in_the_pattern(tmp_path, name, cure):
    """Each position is a volume of its own; a suggested pattern opens one."""
    for first, second in np.ndindex(2, 2):
        tifffile.imwrite(tmp_path / name.format(first, second), PLANES[0])

    with pytest.raises(UnknownFormat, match="differ in 2 numbers") as error:
        vp.Volume(tmp_path).probe()
    assert cure in error.value.do
    if "pattern" in cure:
        assert vp.Volume(tmp_path, pattern=cure.split("'")[1]).probe()


def test_words_in_names_need_a_pattern_with_channels(tmp_path):
    """The suggested pattern reads the folder."""
    place = tmp_path / "exp"
    experiment(place)
    for name in os.listdir(place):
        (place / name).rename(place / name.replace("_c", "_"))

    with pytest.raises(UnknownFormat, match="differ in more than numbers") as error:
        vp.Volume(place).probe()
    assert "pattern='img_t{t}_{c}_z{z}.tif'" in error.value.do
    volume = vp.Volume(place, pattern="img_t{t}_{c}_z{z}.tif", time=1)
    np.testing.assert_array_equal(volume.numpy().transpose(0, 3, 2, 1), SEQUENCE[1])


@pytest.mark.parametrize(
    ("fields", "cure"), [("p{p}_z{z}", "number in place of {p}"), ("T{T}_z{z}", "{t} for {T}")]
)
def test_unknown_fields_of_a_pattern_are_named(tmp_path, fields, cure):
    """Of a path, of pattern= and of from_ome()."""
    stack(tmp_path, PLANES[:2])
    place = f"{tmp_path}/{fields}.tif"
    for use in (
        lambda: vp.Volume(place).probe(),
        lambda: vp.Volume(tmp_path, pattern=f"{fields}.tif").probe(),
        lambda: vp.from_ome(place),
    ):
        with pytest.raises(SampleError, match=r"the known fields are \{t\}, \{c\}, \{z\}") as error:
            use()
        assert cure in error.value.do


def test_a_pattern_in_folders_of_cases_is_an_option(tmp_path):
    """The error of list_cases() shows the way, which reads the planes."""
    for case in "ab":
        (tmp_path / case).mkdir()
        stack(tmp_path / case / "planes", PLANES[:3])

    with pytest.raises(VolumeNotFound) as error:
        list(vp.list_cases(f"{tmp_path}/*/", image="planes/z{z}.tif"))
    assert "image='planes', and open_volume(pattern='z{z}.tif')" in error.value.do
    pipe = vp.list_cases(f"{tmp_path}/*/", image="planes").open_volume(pattern="z{z}.tif")
    assert [(s.case, s["image"].shape) for s in pipe] == [
        ("a", (1, 50, 40, 3)),
        ("b", (1, 50, 40, 3)),
    ]


def test_a_folder_of_stacks_is_no_stack_of_planes(tmp_path):
    """Files of several planes are cases, which the error says."""
    for number in range(2):
        tifffile.imwrite(tmp_path / f"a{number}.tif", PLANES[:5], photometric="minisblack")

    with pytest.raises(UnknownFormat, match="several planes along z"):
        vp.Volume(tmp_path).probe()


def test_cases_of_a_folder_stay_cases(tmp_path):
    """A search for cases does not take a folder of TIFFs for one volume."""
    stack(tmp_path / "scans", PLANES[:3])

    assert len(vp.volumes.catalog.find.find_volumes(tmp_path / "scans")) == 3


def test_a_changed_plane_is_noticed(tmp_path):
    """A plane that is written again during an epoch ends it."""
    place = stack(tmp_path / "stack", compression="zlib")
    volume = vp.Volume(place)
    volume.probe()
    tifffile.imwrite(place / "z3.tif", PLANES[0])

    with pytest.raises(VolumeChanged):
        volume.refuse_change()


@pytest.mark.parametrize("pattern", ["a_{q}.tif", "a.tif", "a_{z}_{z}.tif", 3])
def test_wrong_patterns_are_refused(tmp_path, pattern):
    """Unknown, missing and repeated placeholders."""
    stack(tmp_path / "stack")

    with pytest.raises((SampleError, VolumeNotFound)):
        vp.Volume(tmp_path / "stack", pattern=pattern).probe()


def test_patterns_in_names_of_other_formats_are_none():
    """Only TIFF files with t, c and z are a sequence."""
    assert is_pattern("a/t{t:03d}_z{z}.TIF")
    assert not is_pattern("results/{case}.tif")
    assert not is_pattern("z{z}.nii")


def test_chains_read_patches_of_a_sequence(tmp_path):
    """A case is a pattern; workers open the files again."""
    place = experiment(tmp_path / "exp")
    pipe = vp.from_cases([{"case": "a", "image": place}]).open_volume(time=1)
    sample = next(iter(pipe.lazy_patch(4, sampling="grid").realize()))

    assert sample["image"].shape == (3, 4, 4, 4)
    expected = SEQUENCE[1, :, :4, :4, :4].transpose(0, 3, 2, 1)
    np.testing.assert_array_equal(np.asarray(sample["image"]), expected)


def test_a_pattern_is_converted_checked_and_indexed(tmp_path, monkeypatch):
    """The version of a pattern is that of its files; a second conversion writes nothing."""
    monkeypatch.chdir(stack(tmp_path / "stack", PLANES[:3]))
    volume = vp.Volume("z{z}.tif")
    assert vp.convert(volume, "../a.zarr").new_shards == 1
    assert vp.convert("z{z}.tif", "../a.zarr").new_shards == 0
    np.testing.assert_array_equal(vp.Volume("../a.zarr").numpy(), volume.numpy())
    assert "1 checked, 0 bad" in str(vp.check("z{z}.tif"))
    vp.index("z{z}.tif", "../m.json")
    sample = next(iter(vp.from_manifest("../m.json").open_volume()))
    assert sample["image"].shape == volume.shape
    kept = vp.predict(lambda x: x, volume, "../p.zarr", patch=8, output="logits", run="a")
    assert kept.shape == volume.shape
    tifffile.imwrite("z3.tif", PLANES[3])
    assert vp.convert("z{z}.tif", "../a.zarr", overwrite=True).new_shards == 1
    assert vp.Volume("../a.zarr").shape[3] == 4


def test_names_in_a_pattern_are_names_of_channels(tmp_path):
    """For each time point."""
    for name in CHANNELS:
        stack(tmp_path, PLANES[:2] + len(name), f"t0_{name}_z{{}}.tif")
        stack(tmp_path, PLANES[:2], f"t1_{name}_z{{}}.tif")
    volume = vp.Volume(tmp_path / "t{t}_{c}_z{z}.tif", time=0, channels=["GFP"])
    assert volume.channel_names == ("GFP",)
    np.testing.assert_array_equal(volume.numpy()[0].T, PLANES[:2] + 3)
    both = vp.Volume(tmp_path / "t{t}_{c}_z{z}.tif", time="all", channels=["DAPI"])
    assert both.channel_names == ("DAPI", "DAPI")
    pipe = vp.from_ome(tmp_path / "t{t}_{c}_z{z}.tif").open_volume(channels=["RFP"])
    assert next(iter(pipe))["image"].shape[0] == 1
