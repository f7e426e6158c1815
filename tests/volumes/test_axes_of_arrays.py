"""Arrays that do not name their axes: ``axes=``, and cases in which one names them and one not."""

import json

import h5py
import numpy as np
import pytest
import tifffile
import zarr
from zarr_arrays import add_array

import voxpipe as vp
from voxpipe.core.errors import BadHeader, GridMismatch, LikelyMistake, SampleError

ARRAY = np.arange(2 * 3 * 4, dtype=np.uint16).reshape(2, 3, 4)


def npy(folder, array):
    np.save(folder / "a.npy", array)
    return folder / "a.npy"


def fortran(folder, array):
    np.save(folder / "f.npy", np.asfortranarray(array))
    return folder / "f.npy"


def plain_zarr(folder, array, **how):
    zarr.create_array(store=str(folder / "a.zarr"), data=array, **how)
    return folder / "a.zarr"


def zarr_object(folder, array):
    return zarr.open_array(str(plain_zarr(folder, array)), mode="r")


def hdf5(folder, array):
    with h5py.File(folder / "a.h5", "w") as file:
        file["raw"] = array
    return folder / "a.h5"


def chunked_hdf5(folder, array):
    with h5py.File(folder / "c.h5", "w") as file:
        file.create_dataset("raw", data=array, chunks=(1,) * array.ndim)
    return folder / "c.h5"


def blosc2_file(folder, array):
    blosc2 = pytest.importorskip("blosc2")
    blosc2.asarray(array, urlpath=str(folder / "a.b2nd"))
    return folder / "a.b2nd"


def in_memory(folder, array):
    return array


STORED = [npy, fortran, plain_zarr, zarr_object, hdf5, chunked_hdf5, blosc2_file, in_memory]


@pytest.mark.parametrize("write", STORED)
@pytest.mark.parametrize(
    ("axes", "order"), [("zyx", (2, 1, 0)), ("yxz", (1, 0, 2)), ("xyz", (0, 1, 2))]
)
def test_named_axes_become_x_y_z(tmp_path, write, axes, order):
    """The same voxels as numpy's transpose gives."""
    volume = vp.Volume(write(tmp_path, ARRAY), axes=axes)

    assert np.array_equal(volume.numpy()[0], ARRAY.transpose(order))
    assert np.array_equal(volume[0, 1:3, 1, ::-1].numpy()[0], volume.numpy()[0, 1:3, 1:2, ::-1])


@pytest.mark.parametrize("write", [npy, plain_zarr, in_memory])
def test_channels_and_time_are_folded(tmp_path, write):
    """In stored order, wherever they stand."""
    five = np.arange(2 * 3 * 4 * 5 * 6).reshape(2, 3, 4, 5, 6)

    assert np.array_equal(
        vp.Volume(write(tmp_path, five), axes="tczyx").numpy(),
        five.reshape(6, 4, 5, 6).transpose(0, 3, 2, 1),
    )
    assert np.array_equal(vp.Volume(five[0], axes="zyxc").numpy(), five[0].transpose(3, 2, 1, 0))
    assert np.array_equal(vp.Volume(five[0, 0, 0], axes="yx").numpy()[0, ..., 0], five[0, 0, 0].T)


def test_zarr_names_its_dimensions(tmp_path):
    """Version 3 does; other words than those of axes are warned of."""
    path = plain_zarr(tmp_path, ARRAY, dimension_names=["z", "y", "x"])
    assert np.array_equal(vp.Volume(path).numpy()[0], ARRAY.T)
    (tmp_path / "other").mkdir()
    path = plain_zarr(tmp_path / "other", ARRAY, dimension_names=["row", "y", "x"])
    with pytest.warns(LikelyMistake, match="names its axes row, y, x"):
        assert np.array_equal(vp.Volume(path).numpy()[0], ARRAY)


def test_the_spacing_of_hdf5_follows_its_axes(tmp_path):
    """The order of ilastik is the stored one."""
    path = chunked_hdf5(tmp_path, ARRAY)
    with h5py.File(path, "r+") as file:
        file["raw"].attrs["element_size_um"] = [4.0, 2.0, 1.0]

    assert vp.Volume(path, axes="zyx").spacing == pytest.approx((0.001, 0.002, 0.004))
    assert vp.Volume(path).spacing == pytest.approx((0.004, 0.002, 0.001))


@pytest.mark.parametrize("axes", ["zy", "zyy", "zyq", "zyxc", "", 3])
def test_other_words_are_refused(tmp_path, axes):
    """Each axis has one letter, of five."""
    with pytest.raises(SampleError, match="axes="):
        _ = vp.Volume(npy(tmp_path, ARRAY), axes=axes).shape
    with pytest.raises(SampleError, match="axes="):
        _ = vp.Volume(ARRAY, axes=axes).shape


def case(folder, array, label):
    tifffile.imwrite(folder / "image.tif", array, photometric="minisblack")
    return vp.from_cases([{"ct": str(folder / "image.tif"), "tumour": label}])


def both(pipe):
    batch = next(iter(pipe.batch_patches(1)))
    return batch["ct"].numpy(), batch["tumour"].numpy()


def test_a_transposed_label_is_told_with_the_fix(tmp_path):
    """And is not to be resampled, as neither file states a place; the fix works."""
    pipe = case(tmp_path, ARRAY, npy(tmp_path, ARRAY))

    with pytest.raises(GridMismatch, match="transposed") as caught:
        both(pipe.open_volume(labels=("tumour",)))
    assert "open_volume(axes={'tumour': 'zyx'})" in str(caught.value)
    assert "resample_to" not in str(caught.value)
    image, label = both(pipe.open_volume(labels=("tumour",), axes={"tumour": "zyx"}))
    assert np.array_equal(image, label)


def test_shapes_that_fit_in_one_order_are_not_told(tmp_path):
    """A label that is stored as x, y, z beside a TIFF that is turned to these."""
    image, label = both(case(tmp_path, ARRAY, ARRAY.T).open_volume(labels=("tumour",)))
    assert np.array_equal(image, label)


@pytest.mark.parametrize("shape", [(3, 3, 3), (3, 2, 3), (4, 4)])
def test_cubes_are_told_once(tmp_path, shape):
    """Nothing shows which order it is, nor does affine=; axes= does."""
    array = np.arange(np.prod(shape), dtype=np.uint16).reshape(shape)
    pipe, key = case(tmp_path, array, array), f"tumour{len(shape)}{shape[1]}"
    pipe = pipe.map(lambda item: {**item, key: item["tumour"]})
    named = {name: "zyx"[-len(shape) :] for name in ("tumour", key)}

    image, label = both(pipe.open_volume(labels=("tumour", key), axes=named))
    assert np.array_equal(image, label)
    with pytest.raises(BadHeader, match=rf"two orders fit(.|\n)*'{'zyx'[-len(shape) :]}'"):
        both(pipe.open_volume(labels=("tumour", key), affine=np.eye(4)))
    image, label = both(pipe.open_volume(labels=("tumour", key), axes=named, affine=np.eye(4)))
    assert np.array_equal(image, label)
    opened = pipe.open_volume(keys=("ct", key), labels=(key,))
    with pytest.warns(LikelyMistake, match=f"axes-not-named.*'ct'.*'{key}'.*axes=") as seen:
        next(iter(opened.batch_patches(1)))
    assert len(seen) == 1
    next(iter(opened.batch_patches(1)))
    np.save(tmp_path / "label.npy", array)  # another data set in the same folder
    pipe = pipe.map(lambda item: {**item, key: str(tmp_path / "label.npy")})
    with pytest.warns(LikelyMistake, match=r"axes-not-named.*label\.npy"):
        next(iter(pipe.open_volume(keys=("ct", key), labels=(key,)).batch_patches(1)))


@pytest.mark.parametrize("way", ["list", "resample_to", "manifest", "check"])
def test_unnamed_axes_are_reported_wherever_volumes_meet(tmp_path, way):
    """In one list, before one is resampled to the other, from a manifest, and in a check."""
    cube = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    tifffile.imwrite(tmp_path / f"{way}.tif", cube, photometric="minisblack")
    np.save(tmp_path / f"{way}.npy", cube)
    named, plain = str(tmp_path / f"{way}.tif"), str(tmp_path / f"{way}.npy")
    pipe = vp.from_cases([{"image": named, f"other_{way}": plain}])
    if way == "manifest":
        vp.index(pipe, tmp_path / "all.json")
        pipe = vp.from_manifest(tmp_path / "all.json")
    pipe = pipe.open_volume()
    pipe = pipe.resample_to("image") if way == "resample_to" else pipe
    read = {"list": lambda: vp.Volume([named, plain]).shape}
    read["check"] = lambda: vp.check([{"image": named, f"other_{way}": plain}], num_workers=1)
    with pytest.warns(LikelyMistake, match=rf"axes-not-named.*{way}\.npy"):
        read.get(way, lambda: next(iter(pipe.batch_patches(1))))()


def ome_tiff(folder, axes):
    tifffile.imwrite(folder / "a.ome.tif", ARRAY, photometric="minisblack", metadata={"axes": axes})
    return folder / "a.ome.tif"


def imagej(folder, axes):
    tifffile.imwrite(folder / "i.tif", ARRAY, imagej=True, metadata={"axes": axes})
    return folder / "i.tif"


def shaped_tiff(folder, axes):
    tifffile.imwrite(folder / "s.tif", ARRAY, photometric="minisblack", metadata={"axes": axes})
    return folder / "s.tif"


def zarr3(folder, axes):
    return plain_zarr(folder, ARRAY, dimension_names=axes.lower())


def xarray_zarr(folder, axes):
    path = plain_zarr(folder, ARRAY, zarr_format=2)
    zarr.open_array(str(path), mode="r+").attrs["_ARRAY_DIMENSIONS"] = list(axes.lower())
    return path


def hdf5_labels(folder, axes):
    path = hdf5(folder, ARRAY)
    with h5py.File(path, "r+") as file:
        for dim, name in zip(file["raw"].dims, axes.lower(), strict=True):
            dim.label = name
    return path


def ilastik(folder, axes):
    path = hdf5(folder, ARRAY)
    with h5py.File(path, "r+") as file:
        tags = {"axes": [{"key": axis.lower()} for axis in axes]}
        file["raw"].attrs["axistags"] = json.dumps(tags)
    return path


def ome_zarr(folder, axes):
    group = zarr.open_group(str(folder / "o.zarr"), mode="w", zarr_format=2)
    add_array(group, "0", data=ARRAY)
    kinds = {"t": "time", "c": "channel"}
    names = [{"name": axis, "type": kinds.get(axis, "space")} for axis in axes.lower()]
    image = {"version": "0.4", "axes": names, "datasets": [{"path": "0"}]}
    image["datasets"][0]["coordinateTransformations"] = [{"type": "scale", "scale": [1, 1, 1]}]
    group.attrs["multiscales"] = [image]
    return folder / "o.zarr"


NAMED = [ome_tiff, imagej, shaped_tiff, zarr3, xarray_zarr, hdf5_labels, ilastik, ome_zarr]


@pytest.mark.filterwarnings("ignore:unknown-unit")
@pytest.mark.parametrize("write", NAMED)
@pytest.mark.parametrize("names", ["ZYX", "CYX"])
def test_letters_that_contradict_the_file_are_refused(tmp_path, write, names):
    """By one rule for all formats, with the names and the way out; equal letters are accepted."""
    path = write(tmp_path, names)
    own = names.lower()
    expected = vp.Volume(path).numpy()

    assert np.array_equal(vp.Volume(path, axes=own).numpy(), expected)
    for axes in (own[::-1], own[0] + own[:0:-1], "t" + own[1:]):
        with pytest.raises(SampleError, match=rf"axes='{axes}'.*{', '.join(own)}") as caught:
            _ = vp.Volume(path, axes=axes).shape
        assert "both axes= and affine=" in str(caught.value)
        place = path / "0" if write is ome_zarr else path  # which the error names
        assert str(place) in str(caught.value)
        volume = vp.Volume(place, axes=axes, affine=np.eye(4))
        assert np.array_equal(volume.numpy(), vp.Volume(ARRAY, axes=axes).numpy())


def test_letters_complete_the_names_of_a_file(tmp_path):
    """Axes without a name may get any letter; those with a name keep it."""
    path = plain_zarr(tmp_path, ARRAY, dimension_names=["z", None, None])

    assert np.array_equal(vp.Volume(path, axes="zyx").numpy()[0], ARRAY.T)
    with pytest.raises(SampleError, match="names its axes z, None, None"):
        _ = vp.Volume(path, axes="xyz").shape
    tifffile.imwrite(tmp_path / "p.tif", ARRAY, photometric="minisblack")  # pages without names
    assert vp.Volume(tmp_path / "p.tif", axes="tyx").header.times.number == 2
