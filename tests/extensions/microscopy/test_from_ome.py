"""Images, wells, fields, time points and label groups as cases, against zarr and tifffile."""

import pickle
import shutil
import warnings

import fsspec
import h5py
import numpy as np
import pytest
import tifffile
import zarr
from ome_files import set_ome, write_image, write_plate

import voxpipe as vp
from voxpipe.core import Region
from voxpipe.core.errors import LikelyMistake, SampleError, VolumeNotFound

VOXELS = np.random.default_rng(0).integers(0, 900, (3, 2, 4, 20, 30)).astype("u2")
NUCLEI = (VOXELS[:, 0] > 500).astype("u1")
CELLS = NUCLEI[0] * 2
LABELS = {"nuclei": (NUCLEI, "tzyx"), "cells": (CELLS, "zyx")}


@pytest.fixture(params=[2, 3], ids=["0.4", "0.5"])
def version(request):
    """Return the version of zarr."""
    return request.param


def stored(volume):
    """Return the voxels in stored order, (C, Z, Y, X)."""
    return volume.numpy().transpose(0, 3, 2, 1)


def test_a_label_group_is_an_option_or_a_path(tmp_path, version):
    """The name, the path of the group, and one time point of it."""
    place = write_image(tmp_path / "a.zarr", VOXELS, "tczyx", version, LABELS)

    named = vp.Volume(place, label="nuclei", time=2, kind="label")

    np.testing.assert_array_equal(stored(named)[0], zarr.open(f"{place}/labels/nuclei/0")[2])
    np.testing.assert_array_equal(stored(vp.Volume(f"{place}/labels/cells"))[0], CELLS)
    np.testing.assert_array_equal(stored(vp.Volume(place, label="cells"))[0], CELLS)
    assert pickle.loads(pickle.dumps(named)).shape == (1, 30, 20, 4)


def test_another_label_group_is_refused_with_the_list(tmp_path, version):
    """The error lists the groups, and suggests the nearest."""
    place = write_image(tmp_path / "a.zarr", VOXELS, "tczyx", version, LABELS)

    with pytest.raises(VolumeNotFound, match="no label group 'nucleus'") as error:
        vp.Volume(place, label="nucleus").probe()
    assert error.value.do == "Did you mean 'nuclei'? It has nuclei, cells."
    with pytest.raises(VolumeNotFound, match="no label group") as error:
        vp.Volume(f"{place}/labels/cells", label="x").probe()
    assert error.value.do == "It has no label groups."


def test_a_time_point_is_read_alone(tmp_path, version):
    """Chunks of other times are neither planned nor read."""
    place = write_image(tmp_path / "a.zarr", VOXELS, "tczyx", version)
    volume = vp.Volume(place, time=1)
    region = Region((0, 0, 1), (5, 6, 3))

    assert volume.shape == (2, 30, 20, 4)
    np.testing.assert_array_equal(stored(volume), VOXELS[1])
    assert volume.needed_chunks(region).voxels == 2 * 2 * 256
    assert volume.spacing == pytest.approx((0.0005,) * 3)
    assert volume.content_key != vp.Volume(place, time=2).content_key
    with pytest.raises(SampleError, match="no time point 3, but 0 to 2"):
        vp.Volume(place, time=3).probe()


def test_time_points_of_tiffs_in_any_order_of_axes(tmp_path):
    """Channels may vary more slowly than times."""
    for axes, voxels in ("TCZYX", VOXELS), ("CTZYX", VOXELS.swapaxes(0, 1)):
        place = tmp_path / f"{axes}.ome.tif"
        tifffile.imwrite(place, voxels, metadata={"axes": axes}, compression="zlib")

        np.testing.assert_array_equal(stored(vp.Volume(place, time=2)), VOXELS[2])
        np.testing.assert_array_equal(vp.Volume(place, time=2)[1].numpy()[0].T, VOXELS[2, 1])


def test_an_image_gives_its_time_points(tmp_path, version):
    """Names have the time; the label has the same one."""
    place = write_image(tmp_path / "a.ome.zarr", VOXELS, "tczyx", version, LABELS)

    samples = list(vp.from_ome(place, label="nuclei").open_volume())

    assert [sample.case for sample in samples] == ["a t0", "a t1", "a t2"]
    for time, sample in enumerate(samples):
        np.testing.assert_array_equal(stored(sample["image"].volume), VOXELS[time])
        np.testing.assert_array_equal(stored(sample["label"].volume)[0], NUCLEI[time])
        assert sample["ome"] == {"image": "a", "time": time, "labels": ["nuclei", "cells"]}


def test_a_plate_gives_wells_and_fields(tmp_path, version):
    """In the order of the plate, named by well, field and time."""
    place = write_plate(
        tmp_path / "p.zarr", version, ["A/1", "B/12"], 2, VOXELS[:2], "tczyx", LABELS
    )

    with pytest.warns(LikelyMistake, match="'cells' .* is the label of all 2"):
        samples = list(vp.from_ome(place, label=["nuclei", "cells"]))

    names = [f"{well}/{field} t{t}" for well in ("A/1", "B/12") for field in (0, 1) for t in (0, 1)]
    assert [sample.case for sample in samples] == names
    np.testing.assert_array_equal(stored(samples[-1]["image"]), VOXELS[1] + 11)
    ome = samples[-1]["ome"]
    assert (ome["well"], ome["field"]) == ("B/12", 1)
    assert {"image", "nuclei", "cells"} < {*samples[0]}
    chosen = vp.from_ome(place).filter(lambda sample: sample["ome"]["well"] == "A/1")
    assert len(list(chosen)) == 4


def test_a_folder_of_images_and_plates(tmp_path, version):
    """Every image below is a case; other files are left out."""
    write_image(tmp_path / "a.ome.zarr", VOXELS[0], "czyx", version)
    write_plate(tmp_path / "p.zarr", version, ["A/1"], 2, VOXELS[0], "czyx")
    series = zarr.open_group(tmp_path / "raw.zarr", mode="w", zarr_format=version)
    set_ome(series, {"bioformats2raw.layout": 3})
    for number in range(2):
        write_image(tmp_path / f"raw.zarr/{number}", VOXELS[0], "czyx", version)
    tifffile.imwrite(tmp_path / "b.ome.tif", VOXELS[:2, :, :2], metadata={"axes": "TCZYX"})
    tifffile.imwrite(tmp_path / "other.tif", VOXELS[0, 0, 0])
    (tmp_path / "notes.txt").write_text("no image")

    names = [sample.case for sample in vp.from_ome(tmp_path)]

    fields = ["p/A/1/0", "p/A/1/1", "raw/0", "raw/1"]
    assert names == ["a", "b t0", "b t1", *fields]


def test_series_of_a_tiff_are_positions(tmp_path):
    """Two images of one OME-TIFF, each with two times."""
    place = tmp_path / "a.ome.tif"
    with tifffile.TiffWriter(place, ome=True) as writer:
        for number in range(2):
            writer.write(VOXELS[:2] + number, metadata={"axes": "TCZYX"}, photometric="minisblack")

    samples = list(vp.from_ome(place))

    assert [s.case for s in samples] == ["a/0 t0", "a/0 t1", "a/1 t0", "a/1 t1"]
    np.testing.assert_array_equal(stored(samples[3]["image"]), VOXELS[1] + 1)


def test_a_pattern_gives_times(tmp_path):
    """The channels and planes of one time are one case."""
    for t, c, z in np.ndindex(VOXELS.shape[:3]):
        tifffile.imwrite(tmp_path / f"img_t{t}_c{c}_z{z}.tif", VOXELS[t, c, z])

    samples = list(vp.from_ome(f"{tmp_path}/img_t{{t}}_c{{c}}_z{{z}}.tif"))

    assert [sample.case for sample in samples] == ["img t0", "img t1", "img t2"]
    np.testing.assert_array_equal(stored(samples[1]["image"]), VOXELS[1])


def test_incomplete_times_of_a_pattern_are_left_out(tmp_path):
    """One warning names the files; a chosen time or all times as channels are refused."""
    place = f"{tmp_path}/img_t{{t}}_z{{z}}.tif"
    for t, z in np.ndindex(3, 4):
        tifffile.imwrite(tmp_path / f"img_t{t}_z{z}.tif", VOXELS[t, 0, z])
    (tmp_path / "img_t1_z2.tif").unlink()

    with pytest.warns(LikelyMistake, match="no file for t=1 z=2. Time points left out: 1") as seen:
        samples = list(vp.from_ome(place))

    assert len(seen) == 1
    assert [sample.case for sample in samples] == ["img t0", "img t2"]
    np.testing.assert_array_equal(stored(samples[1]["image"])[0], VOXELS[2, 0])
    for time in (1, "channels"):
        with pytest.raises(VolumeNotFound, match="t=1 z=2: 11 of 12"):
            vp.from_ome(place, time=time)


@pytest.mark.parametrize("root", ["folder", "memory://plates-below"])
def test_missing_wells_of_plates_in_a_folder_are_named(tmp_path, version, root):
    """One warning for each plate, as if it was opened alone; other images stay."""
    for name in ("p.zarr", "q.zarr"):
        write_plate(tmp_path / "x" / name, version, ["A/1", "B/1"], 2, VOXELS[0], "czyx")
        shutil.rmtree(tmp_path / "x" / name / "B/1")
    write_image(tmp_path / "x" / "own.ome.zarr", VOXELS[0], "czyx", version)
    place = str(tmp_path / "x")
    if root != "folder":
        place = f"{root}-{version}"
        fsspec.filesystem("memory").put(str(tmp_path / "x"), place[8:], recursive=True)

    with pytest.warns(LikelyMistake) as seen:
        samples = list(vp.from_ome(place))

    texts = [str(one.message).partition(". ")[0] for one in seen]
    assert [text.partition("/p.")[2] or text.partition("/q.")[2] for text in texts] == [
        "zarr lists 1 wells or images that are not there: B/1"
    ] * 2
    assert [s.case for s in samples] == ["own", "p/A/1/0", "p/A/1/1", "q/A/1/0", "q/A/1/1"]


def test_missing_wells_and_fields_of_a_plate_are_named(tmp_path, version):
    """They are no cases, and one warning names them."""
    place = write_plate(tmp_path / "p.zarr", version, ["A/1", "A/2", "B/1"], 2, VOXELS[0], "czyx")
    shutil.rmtree(f"{place}/A/2")
    shutil.rmtree(f"{place}/B/1/1")

    with pytest.warns(LikelyMistake, match="missing-images: .* lists 2 .*: A/2, B/1/1") as seen:
        names = [sample.case for sample in vp.from_ome(place)]

    assert names == ["A/1/0", "A/1/1", "B/1/0"]
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("time", "names", "shape"),
    [("channels", ["a"], (6, 30, 20, 4)), (1, ["a t1"], (2, 30, 20, 4))],
)
def test_times_may_be_channels_or_one(tmp_path, time, names, shape):
    """The user chooses what becomes of time points."""
    place = write_image(tmp_path / "a.zarr", VOXELS, "tczyx", 3)

    samples = list(vp.from_ome(place, time=time))

    assert [sample.case for sample in samples] == names
    assert samples[0]["image"].shape == shape


def test_images_without_a_label_are_refused_or_optional(tmp_path, version):
    """The error names the image and its groups."""
    write_image(tmp_path / "a.zarr", VOXELS[0], "czyx", version, {"cells": (CELLS, "zyx")})
    write_image(tmp_path / "b.zarr", VOXELS[0], "czyx", version)

    with pytest.raises(VolumeNotFound, match="image b has no label group 'cells'"):
        vp.from_ome(tmp_path, label="cells")
    with pytest.raises(VolumeNotFound, match="image a has no label group 'nuclei'") as error:
        vp.from_ome(tmp_path, label="nuclei")
    assert "It has cells." in error.value.do
    samples = list(vp.from_ome(tmp_path, label={"seg": "cells"}, optional="seg"))
    assert ["seg" in sample for sample in samples] == [True, False]


@pytest.mark.parametrize("options", [{"time": "x"}, {"time": True}, {"label": [3]}, {"label": ""}])
def test_wrong_arguments_are_refused(tmp_path, options):
    """Before or at the first look."""
    place = write_image(tmp_path / "a.zarr", VOXELS[0], "czyx", 3)

    with pytest.raises((SampleError, VolumeNotFound)):
        vp.from_ome(place, **options)
    with pytest.raises(VolumeNotFound, match="no image of OME-Zarr or OME-TIFF"):
        vp.from_ome(tmp_path / "nowhere")


def test_a_plate_may_be_a_url(tmp_path):
    """Metadata and voxels of a bucket are those of the disk."""
    import fsspec

    place = write_plate(tmp_path / "p.zarr", 3, ["A/1"], 1, VOXELS[:2], "tczyx", LABELS)
    fsspec.filesystem("memory").put(place, "/from-ome/p.zarr", recursive=True)

    samples = list(vp.from_ome("memory://from-ome/p.zarr", label="nuclei"))

    assert [sample.case for sample in samples] == ["A/1/0 t0", "A/1/0 t1"]
    np.testing.assert_array_equal(stored(samples[1]["image"]), VOXELS[1])
    np.testing.assert_array_equal(stored(samples[1]["label"])[0], NUCLEI[1])


def test_an_open_file_warns_once_for_each_chain(tmp_path):
    """A conversion, which keeps the axis of times, neither warns nor silences a later chain."""
    place, copy = str(tmp_path / "a.h5"), str(tmp_path / "b.ome.zarr")
    with h5py.File(place, "w") as file:
        for number, letter in enumerate("tczyx"):
            data = file.get("d") or file.create_dataset("d", data=VOXELS)
            data.dims[number].label = letter

    vp.convert(place, copy)
    for path in (place, copy):
        for _ in range(2):
            pipe = vp.from_cases([{"image": path}] * 2).open_volume()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("default")
                shapes = [sample["image"].shape for _ in range(2) for sample in pipe]
            assert len(caught) == 1
            assert shapes[0][0] == len(VOXELS) * VOXELS.shape[1]
        np.testing.assert_array_equal(stored(vp.Volume(path, time=1)), VOXELS[1])


@pytest.mark.parametrize("kind", ["zarr", "tif", "hyperstack"])
def test_a_path_of_several_times_warns(tmp_path, kind):
    """Until the user chooses one, or all of them as channels; tifffile wrote the planes."""
    place = tmp_path / ("a.ome.zarr" if kind == "zarr" else "a.ome.tif")
    if kind == "zarr":
        write_image(place, VOXELS, "tczyx", 3)
    else:
        place = tmp_path / "a.tif" if kind == "hyperstack" else place
        order = VOXELS.transpose(0, 2, 1, 3, 4) if kind == "hyperstack" else VOXELS
        axes = {"metadata": {"axes": "TZCYX" if kind == "hyperstack" else "TCZYX"}}
        tifffile.imwrite(place, order, imagej=kind == "hyperstack", **axes)
    times, channels = VOXELS.shape[:2]
    text = f"times-and-channels: the {times} time points and {channels} channels of "

    with pytest.warns(LikelyMistake, match=text):
        assert vp.Volume(place).shape[0] == times * channels
    with pytest.warns(LikelyMistake, match=text):
        next(iter(vp.from_cases([{"image": str(place)}]).open_volume()))["image"].shape  # noqa: B018
    for word in ("channels", "all"):
        assert vp.Volume(place, time=word).shape[0] == times * channels
    assert vp.Volume(place, time=0).shape[0] == channels
    (sample,) = vp.from_ome(place, time="channels").open_volume()
    assert sample["image"].shape[0] == times * channels


@pytest.mark.parametrize("end", [".tif", ".tiff", ".btf", ".ome.tif", ".ome.btf"])
def test_one_file_has_its_name_without_the_ending(tmp_path, end):
    tifffile.imwrite(tmp_path / f"a{end}", np.zeros((4, 5), "u1"), metadata={"axes": "YX"})

    (sample,) = vp.from_ome(tmp_path / f"a{end}")
    assert sample.case == "a"


def test_an_ome_tiff_of_several_files_is_one_case(tmp_path):
    """Each file names all, and the first by name is the case; one alone finds the others."""
    array = np.arange(2 * 4 * 8 * 9, dtype=np.uint16).reshape(2, 4, 8, 9)
    places = "".join(
        f'<TiffData FirstC="{c}" FirstZ="{z}" FirstT="0" IFD="{z}" PlaneCount="1">'
        f'<UUID FileName="m_C{c}.ome.tif">urn:uuid:{c}</UUID></TiffData>'
        for c, z in np.ndindex(2, 4)
    )
    sizes = 'SizeX="9" SizeY="8" SizeZ="4" SizeC="2" SizeT="1" DimensionOrder="XYZCT"'
    sizes += ' PhysicalSizeX="1" PhysicalSizeY="1" PhysicalSizeZ="1"'
    for c, planes in enumerate(array):
        text = (
            f'<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="urn:uuid:{c}">'
            f'<Image ID="Image:0"><Pixels ID="Pixels:0" Type="uint16" {sizes}>{places}'
            "</Pixels></Image></OME>"
        )
        path = tmp_path / f"m_C{c}.ome.tif"
        how = {"description": text.encode(), "metadata": None, "photometric": "minisblack"}
        tifffile.imwrite(path, planes, **how)

    (case,) = vp.from_ome(tmp_path).open_volume()
    (second,) = vp.from_ome(tmp_path / "m_C1.ome.tif")

    assert (case.case, second.case) == ("m_C0", "m_C1")
    np.testing.assert_array_equal(case["image"].realize().transpose(0, 3, 2, 1), array)


def test_a_label_takes_the_place_of_its_image(tmp_path):
    """`from_ome` makes the Volumes, so `affine=` of the chain is for them."""
    labels = {"cells": (CELLS, "zyx")}
    write_image(tmp_path / "a.zarr", VOXELS[0, 0], "zyx", 3, labels)
    matrix = np.diag([2.0, 2, 5, 1])
    found = vp.from_ome(tmp_path, label="cells")

    (like,) = found.open_volume(affine={"label": "image"})
    (both,) = found.open_volume(affine=matrix)

    assert like["label"].spacing == like["image"].spacing
    assert both["image"].spacing == both["label"].spacing == (2, 2, 5)


def test_axes_that_contradict_a_file_are_refused(tmp_path):
    """OME-Zarr names its axes; the same names are accepted."""
    place = write_image(tmp_path / "a.zarr", VOXELS, "tczyx", 3)

    with pytest.raises(SampleError, match=r"axes='tcxyz'.*image a, which has 'tczyx'"):
        list(vp.from_ome(place, axes="tcxyz"))
    assert len(list(vp.from_ome(place, axes="tczyx"))) == len(VOXELS)
    for same in ("all", "channels"):
        (sample,) = vp.from_ome(place, time=same)
        assert sample["image"].shape[0] == VOXELS.shape[0] * VOXELS.shape[1]
