"""``time="channels"``: all channels of time 0, then those of time 1, in any order of a file."""

import numpy as np
import pytest
import tifffile
import zarr
from zarr_arrays import add_array

import voxpipe as vp
from voxpipe.core.errors import OutOfVolume, SampleError

SIZES = {"t": 3, "c": 2, "z": 4, "y": 6, "x": 5}
# Each voxel is its own index in t, c, z, y, x.
VOXELS = np.arange(720, dtype=np.uint16).reshape(*SIZES.values())
FOLDED = VOXELS.reshape(6, 4, 6, 5).transpose(0, 3, 2, 1)
NAMES = ("A", "B") * 3
ORDERS = ["tczyx", "ctzyx", "tzcyx", "ztcyx", "cztyx", "zctyx"]


def stored(axes):
    return np.einsum(f"tczyx->{axes}", VOXELS).copy()


def ome_tiff(path, axes):
    facts = {"axes": axes.upper(), "Channel": {"Name": ["A", "B"]}}
    tifffile.imwrite(path, stored(axes), photometric="minisblack", metadata=facts)


def ome_zarr(path, axes):
    group = zarr.open_group(path, mode="w")
    add_array(group, "0", data=stored(axes), chunks=tuple(5 if a == "x" else 1 for a in axes))
    types = {"t": "time", "c": "channel"}
    entries = [{"name": a, "type": types.get(a, "space")} for a in axes]
    scale = {"type": "scale", "scale": [1.0] * 5}
    image = {"axes": entries, "datasets": [{"path": "0", "coordinateTransformations": [scale]}]}
    omero = {"channels": [{"label": "A"}, {"label": "B"}]}
    group.attrs["ome"] = {"version": "0.5", "multiscales": [image], "omero": omero}


def check(volume, names=NAMES):
    np.testing.assert_array_equal(volume.numpy(), FOLDED)
    assert volume.channel_names == names
    np.testing.assert_array_equal(volume[3:5, 1:3].numpy(), FOLDED[3:5, 1:3])
    assert volume.header.times[:2] == (3, 2)


@pytest.mark.parametrize("axes", ORDERS)
@pytest.mark.parametrize("suffix", [".ome.tif", ".ome.zarr"])
def test_time_is_slowest_in_each_order_of_a_file(tmp_path, axes, suffix):
    """Channels, their names, layers of napari and written files agree."""
    path = tmp_path / f"a{suffix}"
    (ome_tiff if suffix == ".ome.tif" else ome_zarr)(path, axes)
    volume = vp.Volume(path, time="channels")
    check(volume)
    layers = volume.to_napari()
    assert [layer[1]["name"] for layer in layers] == ["A", "B"]
    for channel, layer in enumerate(layers):
        np.testing.assert_array_equal(np.asarray(layer[0]), VOXELS[:, channel])
    own = vp.Volume(path, time="channels", channels=["B"])
    np.testing.assert_array_equal(own.numpy(), FOLDED[1::2])
    vp.convert(volume, tmp_path / "copy.ome.zarr")
    np.testing.assert_array_equal(zarr.open(tmp_path / "copy.ome.zarr")["0"][:], VOXELS)
    check(vp.Volume(tmp_path / "copy.ome.zarr", time="channels"))


@pytest.mark.filterwarnings("ignore:times-and-channels")
def test_layers_have_the_names_of_a_file_whose_time_is_fastest(tmp_path):
    """Without ``time=`` channels have the order of the file, and layers their own names."""
    ome_tiff(tmp_path / "a.ome.tif", "ctzyx")
    layers = vp.Volume(tmp_path / "a.ome.tif").to_napari()
    assert [layer[1]["name"] for layer in layers] == ["A", "B"]
    np.testing.assert_array_equal(np.asarray(layers[1][0]), VOXELS[:, 1])


def test_a_batch_of_both_orders_has_one_meaning(tmp_path):
    for axes in ("tczyx", "ctzyx"):
        ome_tiff(tmp_path / f"{axes}.ome.tif", axes)
    pipe = vp.from_ome(tmp_path, time="channels").open_volume().to_axes("zyx").batch_patches(2)
    images = next(iter(pipe))["image"].numpy()
    np.testing.assert_array_equal(images, np.stack([VOXELS.reshape(6, 4, 6, 5)] * 2))


def test_names_of_dimensions_and_axes_give_one_order(tmp_path):
    """Arrays of zarr with ``dimension_names``, or with ``axes=`` of the user."""
    path = tmp_path / "a.zarr"
    names = ["channel", "time", "z", "y", "x"]
    zarr.create_array(path, data=stored("ctzyx"), dimension_names=names)
    check(vp.Volume(path, time="channels"), ())
    plain = tmp_path / "plain.zarr"
    zarr.create_array(plain, data=stored("ctzyx"))
    check(vp.Volume(plain, axes="ctzyx", time="channels"), ())
    check(vp.Volume(zarr.open_array(path, mode="r"), time="channels"), ())


def test_colours_stay_together_in_each_time(tmp_path):
    voxels = np.arange(3 * 6 * 5 * 3, dtype=np.uint8).reshape(3, 6, 5, 3)
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, voxels, photometric="rgb", metadata={"axes": "TYXS"})
    folded = voxels.transpose(0, 3, 2, 1).reshape(9, 5, 6)[..., None]
    np.testing.assert_array_equal(vp.Volume(path, time="channels").numpy(), folded)


def test_movies_of_a_pattern_by_channel_have_time_slowest(tmp_path):
    """Each file holds all time points of one channel: ``{c}`` is slower than t."""
    for number, name in enumerate("AB"):
        facts = {"axes": "TZYX"}
        data = VOXELS[:, number]
        tifffile.imwrite(tmp_path / f"m_{name}.tif", data, imagej=True, metadata=facts)
    check(vp.Volume(tmp_path / "m_{c}.tif", time="channels"))
    one = vp.Volume(tmp_path / "m_{c}.tif", time=1)
    np.testing.assert_array_equal(one.numpy(), FOLDED[2:4])
    assert one.channel_names == ("A", "B")


def test_only_the_channels_of_a_read_are_decoded(tmp_path):
    """Chunks of other channels are not needed."""
    ome_zarr(tmp_path / "a.ome.zarr", "ctzyx")
    volume = vp.Volume(tmp_path / "a.ome.zarr", time="channels", channels=["B"])
    whole = vp.Volume(tmp_path / "a.ome.zarr", time="channels")
    region = vp.Region.of_shape(whole.spatial_shape)
    assert len(volume.needed_chunks(region).chunks) < len(whole.needed_chunks(region).chunks)


def test_a_written_axis_of_time_causes_no_warning(tmp_path):
    """A volume that was not opened before is converted with its times."""
    ome_tiff(tmp_path / "a.ome.tif", "ctzyx")
    vp.convert(vp.Volume(tmp_path / "a.ome.tif"), tmp_path / "b.ome.zarr")
    np.testing.assert_array_equal(zarr.open(tmp_path / "b.ome.zarr")["0"][:], VOXELS)


def test_a_name_of_two_channels_is_refused(tmp_path):
    """Their names get numbers; colours of one channel share its name."""
    path, facts = tmp_path / "a.ome.tif", {"axes": "CZYX", "Channel": {"Name": ["A", "A"]}}
    tifffile.imwrite(path, VOXELS[0], photometric="minisblack", metadata=facts)
    with pytest.raises(OutOfVolume, match=r"no channel 'A'; it has 'A \(0\)', 'A \(1\)'"):
        vp.Volume(path, channels=["A"]).numpy()
    for one in (1, "A (1)"):
        np.testing.assert_array_equal(vp.Volume(path, channels=[one]).numpy(), FOLDED[1:2])
    colours = np.zeros((6, 5, 3), np.uint8)
    facts = {"axes": "YXS", "Channel": {"Name": ["A"]}}
    tifffile.imwrite(tmp_path / "b.ome.tif", colours, photometric="rgb", metadata=facts)
    assert vp.Volume(tmp_path / "b.ome.tif", channels=["A"]).shape == (3, 5, 6, 1)


def test_axes_of_files_without_names(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, VOXELS, photometric="minisblack")
    samples = [*vp.from_ome(path, axes="tczyx").open_volume()]
    assert [sample.case for sample in samples] == ["a t0", "a t1", "a t2"]
    np.testing.assert_array_equal(samples[1]["image"].realize(), FOLDED[2:4])
    with pytest.raises(SampleError, match="names 4 axes"):
        vp.from_ome(path, axes="tzyx")


def test_missing_numbers_of_a_pattern_are_closed(tmp_path):
    for number in (0, 1, 3):
        tifffile.imwrite(tmp_path / f"a_z{number}.tif", VOXELS[0, 0, number])
    (sample,) = vp.from_ome(tmp_path / "a_z{z}.tif", allow_gaps=True).open_volume()
    np.testing.assert_array_equal(sample["image"].realize(), FOLDED[:1, ..., [0, 1, 3]])
