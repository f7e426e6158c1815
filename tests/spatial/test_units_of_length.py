"""Lengths in other units than millimetres, and those that are far beyond a volume."""

import warnings

import h5py
import nibabel
import nrrd
import numpy as np
import pytest
import scipy.constants
import SimpleITK
import tifffile
import zarr
from zarr_arrays import add_array

import voxpipe as vp
from voxpipe.core import Grid
from voxpipe.core.call_site import WarnOnce
from voxpipe.core.errors import LikelyMistake
from voxpipe.spatial import Affine, Elastic, Translate
from voxpipe.spatial.ops import grid_op
from voxpipe.spatial.placing.sampling_mask import forget_masks

SHAPE = (9, 8, 7)
MOVE = np.eye(4)
MOVE[0, 3] = 2
OPS = {
    "translate": (lambda pipe, **how: pipe.translate((2.0, -1.0, 0.0), **how)),
    "augment": (lambda pipe, **how: pipe.augment(translate=(2.0, -1.0, 0.0), **how)),
    "affine": (lambda pipe, **how: pipe.affine(MOVE, **how)),
    "elastic": (lambda pipe, **how: pipe.elastic(1.5, spacing=4, **how)),
    "spacing": (lambda pipe, **how: pipe.spacing((2.0, 0.5, None), **how)),
    "blur": (lambda pipe, **how: pipe.blur(1.25, **how)),
    "sharpen": (lambda pipe, **how: pipe.sharpen(1.25, **how)),
}
UNITS = {"um": 1e-3, "nm": 1e-6, "angstrom": 1e-7, "cm": 10.0, "m": 1e3, "inch": 25.4}


def batch_of(name, spacing, **how):
    array = np.random.default_rng(0).random(SHAPE, np.float32)
    label = (array > 0.5).astype(np.uint8)
    affine = np.diag([spacing, spacing, spacing, 1.0])
    pipe = vp.from_cases([{"image": array, "label": label}]).open_volume(affine=affine)
    loader = vp.DataLoader2(OPS[name](pipe, **how).batch_patches(1))
    loader.seed(5)
    batch = next(iter(loader))
    return batch["image"].numpy(), batch["label"].numpy()


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("unit", UNITS)
def test_a_length_in_the_unit_of_the_volume_is_one_in_millimetres(name, unit):
    """On voxels of one unit; in voxels, too, where an op counts these."""
    image, label = batch_of(name, 1.0)
    assert label.any()

    found, its_label = batch_of(name, UNITS[unit], unit=unit)

    np.testing.assert_allclose(found, image, atol=1e-5)
    assert np.array_equal(its_label, label)
    if name != "spacing":
        np.testing.assert_allclose(batch_of(name, UNITS[unit], unit="voxel")[0], image, atol=1e-5)


@pytest.mark.parametrize("name", OPS)
def test_a_length_beyond_the_volume_warns(name, monkeypatch):
    """Millimetres on voxels of a micrometre move everything out of the volume."""
    monkeypatch.setattr("voxpipe.core.grid._BEYOND", WarnOnce())  # once in a process
    with pytest.warns(LikelyMistake, match=f"length-beyond-volume: {name} .*unit="):
        batch_of(name, 1e-3)


def test_a_data_set_of_another_size_warns_anew(monkeypatch):
    """Voxels of a micrometre first, then of a nanometre: each data set is named once."""
    monkeypatch.setattr("voxpipe.core.grid._BEYOND", WarnOnce())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for size in (1e-3, 1e-3, 1e-6):
            batch_of("translate", size)
    sizes = [str(one.message).split("volume, ")[1].split(" mm")[0] for one in seen]

    assert len(sizes) == len({*sizes}) == 2


def test_a_volume_outside_the_others_is_told():
    """Resampled to their grid it is background; one that touches them is not told."""
    image = vp.Volume(np.ones(SHAPE, np.float32), affine=np.eye(4))
    for shift, count in ((8.0, 0), (1000.0, 1)):
        affine = np.eye(4)
        affine[0, 3] = shift
        label = vp.Volume(np.ones(SHAPE, np.uint8), affine=affine, kind="label")
        pipe = vp.from_cases([{"image": image, "label": label}]).open_volume()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            batch = next(iter(pipe.resample_to("image").batch_patches(1)))
        assert bool(batch["label"].any()) is (count == 0)
        assert len([one for one in seen if "volume-outside" in str(one.message)]) == count


@pytest.mark.parametrize("wish", [{"sampling": "grid"}, {"fallback": "anywhere"}])
@pytest.mark.parametrize("known", [False, True])
def test_a_mask_outside_the_image_is_told(wish, known, tmp_path, monkeypatch):
    """Also where its table is known from an earlier run."""
    affine = np.eye(4)
    affine[0, 3] = 1000.0
    nibabel.save(nibabel.Nifti1Image(np.ones(SHAPE, np.uint8), affine), tmp_path / "label.nii")
    image = vp.Volume(np.ones(SHAPE, np.float32), affine=np.eye(4))
    cases = [{"image": image, "label": str(tmp_path / "label.nii")}]
    chain = vp.from_cases(cases).open_volume().resample_to("image")
    for _ in range(1 + known):
        monkeypatch.setattr(grid_op, "_OUTSIDE", WarnOnce())
        forget_masks()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            list(chain.lazy_patch(4, mask="label", **wish).batch_patches(1))
    assert len([one for one in seen if "volume-outside" in str(one.message)]) == 1


def test_other_units_are_refused():
    """By every op in the same words; voxels are no millimetres of the world."""
    for op in (lambda unit: Translate(1, unit=unit), lambda unit: Elastic(1, unit=unit)):
        for word in ("furlong", "", 3):
            with pytest.raises(ValueError, match="unit is a unit of length, one of 'mm'"):
                op(word)
    with pytest.raises(ValueError, match="space='voxel' counts voxels"):
        Affine(MOVE, space="voxel", unit="um")
    assert Translate(1, unit="voxel").describe() == Translate(1, space="voxel").describe()


@pytest.mark.parametrize(("size", "text"), [(0.5, "0.5 0.5 0.5 mm"), (4e-3, "4 4 4 um")])
def test_grids_are_printed_in_the_unit_of_their_voxels(size, text):
    """Micrometres, where millimetres would be thousandths."""
    assert text in repr(Grid((4, 4, 4), np.diag([size, size, size, 1.0])))


def test_an_unknown_unit_of_a_file_is_told(tmp_path):
    """It counts pixels, with one warning; ImageJ's sizes in pixels cause one, too."""
    array = np.zeros((4, 5, 6), np.uint8)
    header = {"space": "left-posterior-superior", "space directions": np.eye(3)}
    for word, count in (("furlong", 1), ("um", 0)):
        nrrd.write(str(tmp_path / "a.nrrd"), array, {**header, "space units": [word] * 3})
        _check_told(tmp_path / "a.nrrd", word, count)
    for word, count in (("furlong", 1), ("pixel", 1), ("micron", 0)):
        more = {"axes": "ZYX", "unit": word, "spacing": 2.0}
        tifffile.imwrite(tmp_path / "a.tif", array, imagej=True, metadata=more)
        _check_told(tmp_path / "a.tif", word, count)


WORDS = {
    1.0: "mm MM millimetres Millimeter milli-metres",
    1e-3: "um µm μm µM micron microns micrometre micrometres Micro-Metre MICROMETERS",
    1e-6: "nm nanometers nanometre",
    1e-7: "angstrom angstroms Ångström Å",
    1e3: "m meter metres",
    25.4: "inch inches in",
}


@pytest.mark.parametrize("kind", ["nrrd", "metaimage", "imagej", "ome-tiff", "ome-zarr"])
@pytest.mark.parametrize("size", WORDS)
def test_units_are_read_in_any_spelling(kind, size, tmp_path):
    """Plural, British, mixed case, hyphens and both micro signs, alike in every format."""
    words = WORDS[size].split()
    is_ascii = kind in ("imagej", "nrrd")  # their libraries write nothing else
    for n, word in enumerate(filter(str.isascii, words) if is_ascii else words):
        path = file_in_unit(kind, word, tmp_path / str(n))
        assert vp.Volume(path).spacing == pytest.approx((0.5 * size, 0.5 * size, 2 * size)), word


@pytest.mark.parametrize("sign", ["µ".encode("latin-1"), "µ".encode(), "μ".encode()])
@pytest.mark.parametrize("kind", ["nrrd", "metaimage", "imagej", "ome-tiff"])
def test_the_micro_sign_is_read_in_any_encoding(kind, sign, tmp_path):
    """Also in the latin-1 of older programs, where it is the byte 0xb5."""
    path = file_in_unit(kind, "QQm", tmp_path / "a")
    path.write_bytes(path.read_bytes().replace(b"QQm", (sign + b"m").ljust(3)))

    assert vp.Volume(path).spacing == pytest.approx((0.0005, 0.0005, 0.002))


UNITS_OF_OME_ZARR = (
    "angstrom attometer centimeter decimeter exameter femtometer foot gigameter hectometer inch "
    "kilometer megameter meter micrometer mile millimeter nanometer parsec petameter picometer "
    "terameter yard yoctometer yottameter zeptometer zettameter"
)


@pytest.mark.parametrize("word", UNITS_OF_OME_ZARR.split())
def test_ome_zarr_reads_the_units_of_its_specification(word, tmp_path):
    """All lengths of the specification, in millimetres by the constants of SciPy."""
    meters = {"angstrom": 1e-10, "foot": 0.3048, "inch": 0.0254, "mile": 1609.344, "yard": 0.9144}
    prefix = word.removesuffix("meter")
    known = {**meters, "parsec": scipy.constants.parsec, "meter": 1.0}
    size = known[word] if word in known else getattr(scipy.constants, prefix)
    volume = vp.Volume(file_in_unit("ome-zarr", word, tmp_path))

    assert volume.spacing == pytest.approx((500 * size, 500 * size, 2000 * size), rel=1e-12)


def file_in_unit(kind, word, place):
    """Write a volume of 0.5 x 0.5 x 2 in a unit of length, by the library of its format."""
    place.mkdir(exist_ok=True)
    array = np.ones((3, 4, 5), np.uint8)  # z, y, x
    if kind == "ome-tiff":
        sizes = {"PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5, "PhysicalSizeZ": 2}
        metadata = {"axes": "ZYX", **sizes, **{f"{name}Unit": word for name in sizes}}
        tifffile.imwrite(path := place / "a.ome.tif", array, metadata=metadata)
    elif kind == "imagej":
        metadata = {"axes": "ZYX", "unit": word, "spacing": 2.0}
        path = place / "a.tif"
        tifffile.imwrite(path, array, imagej=True, resolution=(2, 2), metadata=metadata)
    elif kind == "ome-zarr":
        group = zarr.open_group(path := place / "a.ome.zarr", mode="w", zarr_format=2)
        add_array(group, "0", data=array)
        scale = {"type": "scale", "scale": [2.0, 0.5, 0.5]}
        axes = [{"name": name, "type": "space", "unit": word} for name in "zyx"]
        datasets = [{"path": "0", "coordinateTransformations": [scale]}]
        group.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": datasets}]
    elif kind == "nrrd":
        steps = {"space dimension": 3, "space directions": np.diag([0.5, 0.5, 2])}
        nrrd.write(str(path := place / "a.nrrd"), array.T, {**steps, "space units": [word] * 3})
    else:
        image = SimpleITK.GetImageFromArray(array)
        image.SetSpacing((0.5, 0.5, 2))
        SimpleITK.WriteImage(image, path := place / "a.mha")
        path.write_bytes(f"DistanceUnits = {word}\n".encode() + path.read_bytes())
    return path


def _check_told(path, word, count):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert vp.Volume(str(path)).shape[1:] in ((4, 5, 6), (6, 5, 4))
    told = [str(one.message) for one in seen]
    assert len([text for text in told if word in text and "unknown-unit" in text]) == count


def a_file(kind, place):
    """Write a volume of 0.5 x 0.5 x 2 micrometres with the library of its format."""
    array = np.ones((3, 4, 5), np.uint8)  # z, y, x
    if kind == "nifti":
        image = nibabel.Nifti1Image(array.T, np.diag([0.5, 0.5, 2, 1]))
        image.header.set_xyzt_units("micron")
        nibabel.save(image, path := place / "a.nii.gz")
    elif kind in ("ome-tiff", "imagej", "ome-zarr", "nrrd"):
        path = file_in_unit(kind, "micrometer", place)
    else:
        path = place / "a.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("data", data=array.T)
            file["data"].attrs["element_size_um"] = (0.5, 0.5, 2)
    return path


@pytest.mark.parametrize("kind", ["nifti", "ome-tiff", "imagej", "ome-zarr", "nrrd", "hdf5"])
def test_printouts_show_the_unit_of_the_file(kind, tmp_path):
    """Of a volume, a chain, a check and a manifest; an affine that is given is in millimetres."""
    path = a_file(kind, tmp_path)
    volume = vp.Volume(path)
    assert " um" not in repr(volume)

    assert volume.spacing == pytest.approx((0.0005, 0.0005, 0.002))
    assert repr(volume).endswith(", (1, 5, 4, 3) uint8, 0.5 x 0.5 x 2 um)")
    chain = vp.from_cases([{"image": path}]).open_volume().lazy_patch(2)
    assert "stored voxels of 0.5 x 0.5 x 2 um" in chain.explain()
    cases = [{"image": path}, {"image": np.zeros((3, 3, 3), np.uint8)}]
    lines = str(vp.check(cases, num_workers=1)).splitlines()
    first, second = f"0.5 x 0.5 x 2 um ({path})", "1 x 1 x 1 (no unit of length)"
    expected = f"image: {first}, {second} (array (1, 3, 3, 3) uint8)"
    assert lines == [expected, "2 checked, 0 bad"]
    assert str(vp.check(cases[:1], num_workers=1)).startswith("image: 0.5 x 0.5 x 2 um\n")
    vp.index([{"image": path}], tmp_path / "m.json")
    (sample,) = vp.from_manifest(tmp_path / "m.json").open_volume()
    assert sample["image"].shape == (1, 5, 4, 3)
    assert repr(sample["image"].volume).endswith(" 2 um)")
    other = vp.Volume(path, affine=np.eye(4))
    assert other.spacing == (1, 1, 1)
    assert " um" not in repr(other)


def test_units_that_differ_by_axis_are_shown_in_millimetres(tmp_path):
    """As the affine has them."""
    sizes = {"PhysicalSizeX": 500, "PhysicalSizeY": 500, "PhysicalSizeZ": 2}
    words = {"PhysicalSizeXUnit": "nm", "PhysicalSizeYUnit": "nm", "PhysicalSizeZUnit": "mm"}
    array = np.zeros((3, 4, 5), np.uint8)
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, array, metadata={"axes": "ZYX", **sizes, **words})
    volume = vp.Volume(path)

    assert volume.spacing == pytest.approx((0.0005, 0.0005, 2))
    assert repr(volume).endswith(" uint8, 0.0005 x 0.0005 x 2 mm)")
