"""Labels without a voxel size beside images that have one, against tifffile and zarr-python."""

import nibabel
import numpy as np
import pytest
import tifffile
import zarr
from zarr_arrays import add_array

import voxpipe as vp
from voxpipe.core.errors import BadHeader, GridMismatch, SampleError


@pytest.fixture
def case(tmp_path):
    """An OME-TIFF of 0.65 um and its label, a plain TIFF of the same pixels."""
    label = np.zeros((50, 70), np.uint8)
    label[10:20, 30:50] = 7
    size = {f"PhysicalSize{axis}": 0.65 for axis in "XY"}
    units = {f"PhysicalSize{axis}Unit": "µm" for axis in "XY"}
    image = np.arange(4 * 50 * 70, dtype=np.uint16).reshape(4, 50, 70)
    tifffile.imwrite(tmp_path / "i.ome.tif", image, metadata={"axes": "CYX", **size, **units})
    tifffile.imwrite(tmp_path / "l.tif", label)
    return {"image": str(tmp_path / "i.ome.tif"), "label": str(tmp_path / "l.tif")}


def opened(case, **options):
    return vp.from_cases([case]).open_volume(**options)


def write_label(folder, label, unit, scale=1.0):
    """Write a label as OME-Zarr 0.4, by zarr-python."""
    group = zarr.open_group(folder, mode="w", zarr_format=2)
    add_array(group, "0", data=label)
    space = {"type": "space"} | ({"unit": unit} if unit else {})
    transform = {"type": "scale", "scale": [scale, scale]}
    datasets = [{"path": "0", "coordinateTransformations": [transform]} if scale else {"path": "0"}]
    axes = [{"name": name, **space} for name in "yx"]
    group.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": datasets}]


@pytest.mark.parametrize("form", ["image", "l.nrrd", "l.mha"])
def test_an_image_of_itk_without_a_size_is_refused(tmp_path, case, form):
    """Spacing 1 and origin 0 are its defaults; a stated size is a place."""
    sitk = pytest.importorskip("SimpleITK")
    label = sitk.GetImageFromArray(tifffile.imread(case["label"])[None])

    def read(spacing):
        label.SetSpacing(spacing)
        if form == "image":
            return label
        sitk.WriteImage(label, str(tmp_path / form))
        return str(tmp_path / form)

    case["label"] = read((1, 1, 1))
    cure = r"open_volume\(affine=\{'label': 'image'\}\)"
    with pytest.raises(GridMismatch, match=rf"is ITK's default, as if it had none(.|\n)*{cure}"):
        list(opened(case).resample_to("image"))

    case["label"] = read((6.5e-4, 6.5e-4, 1))
    assert len(list(opened(case).resample_to("image"))) == 1


@pytest.mark.parametrize("unit", ["", "none", "pixel", "micrometer"])
def test_resampling_refuses_a_label_without_a_size(tmp_path, case, unit):
    """It would be constant; the error has the cure, which the mismatch names, too.

    A unit without a scale is no size.
    """
    if unit:
        label = tifffile.imread(case["label"])
        scale = 0.5 if unit != "micrometer" else None
        write_label(tmp_path / "l.zarr", label, "" if unit == "none" else unit, scale)
        case["label"] = str(tmp_path / "l.zarr")
    why = "numbers of pixels" if unit else "is the identity"
    cure = r"open_volume\(affine=\{'label': 'image'\}\)"
    with pytest.raises(GridMismatch, match=rf"no place in common: .*{why}(.|\n)*{cure}"):
        list(opened(case).resample_to("image"))
    with pytest.raises(GridMismatch, match=rf"voxels apart(.|\n)*{cure}"):
        next(iter(opened(case)))["image"].plan  # noqa: B018  reads the grids


@pytest.mark.parametrize("shape", [(8, 8, 8), (8, 8, 6)])
@pytest.mark.parametrize("silent", [{"image"}, {"label"}, {"image", "label"}])
def test_the_mismatch_names_the_keys_without_a_size(tmp_path, silent, shape):
    """Those whose arrays have no affine; its cure works."""
    case = {}
    for key, voxels in (("image", np.zeros((8, 8, 8))), ("label", np.zeros(shape))):
        case[key] = str(tmp_path / f"{key}.{'npy' if key in silent else 'nii'}")
        if key in silent:
            np.save(case[key], voxels)
        else:
            nibabel.save(nibabel.Nifti1Image(voxels, np.diag([1, 1, 1.5, 1])), case[key])
    if len(silent) == 2 and shape == (8, 8, 8):
        assert next(iter(opened(case)))["label"].plan.shape == shape
        return
    with pytest.raises(GridMismatch) as caught:
        next(iter(opened(case)))["image"].plan  # noqa: B018  reads the grids

    matrices = ", ".join(f"{key!r}: matrix" for key in sorted(silent))
    assert f"open_volume(affine={{{matrices}}})" in caught.value.do
    matrix = np.diag([1, 1, 1.5, 1])
    how = {"affine": dict.fromkeys(silent, matrix)}
    if len(silent) == 1 and shape == (8, 8, 8):  # one file names its axes
        with pytest.raises(BadHeader, match="two orders fit"):
            next(iter(opened(case, **how)))["image"].plan  # noqa: B018  reads the grids
        how["axes"] = dict.fromkeys(silent, "xyz")
    pipe = opened(case, **how).resample_to("image")
    assert next(iter(pipe))["label"].shape == (1, 8, 8, 8)


def test_an_image_without_a_size_is_refused_by_its_key(case):
    """The cure names the volume that lacks the size, whichever comes first."""
    image, label = case.values()
    with pytest.raises(GridMismatch, match=r"affine=\{'image': 'label'\}"):
        list(opened({"image": label, "label": image}).resample_to("image"))


def test_a_label_takes_the_place_of_its_image(case):
    """Voxel by voxel; copies for other processes keep the place."""
    sample = next(iter(opened(case, affine={"label": "image"}).to_axes("yx")))

    assert sample["label"].volume.affine.tolist() == vp.Volume(case["image"]).affine.tolist()
    assert (sample["label"].realize()[0] == tifffile.imread(case["label"])).all()
    chain = opened(case, affine={"label": "image"}).resample_to("image").to_axes("yx")
    assert (next(iter(chain))["label"].realize()[0] == tifffile.imread(case["label"])).all()


def test_places_that_cannot_be_taken(tmp_path, case):
    """Another shape, an unknown key, a key for all volumes, and a place that is taken, too."""
    other = case | {"label": str(tmp_path / "small.tif")}
    tifffile.imwrite(other["label"], np.zeros((25, 35), np.uint8))
    with pytest.raises(GridMismatch, match=r"\(35, 25, 1\) and \(70, 50, 1\)"):
        list(opened(other, affine={"label": "image"}))
    with pytest.raises(SampleError, match="'imge'"):
        list(opened(case, affine={"label": "imge"}))
    with pytest.raises(ValueError, match="mapping by key"):
        opened(case, affine="image")
    with pytest.raises(ValueError, match="without a place of its own"):
        opened(case, affine={"label": "mask", "mask": "image"})
    with pytest.raises(GridMismatch, match=r"Say where the voxels of 'label' lie"):
        list(opened(other).resample_to("image"))


def test_volumes_in_pixels_are_resampled_to_each_other(tmp_path, case):
    """Levels without a unit are in one unit."""
    label = tifffile.imread(case["label"])
    write_label(tmp_path / "a.zarr", label, "")
    write_label(tmp_path / "b.zarr", label[::2, ::2], "", 2.0)
    levels = {"image": str(tmp_path / "a.zarr"), "label": str(tmp_path / "b.zarr")}
    sample = next(iter(opened(levels).resample_to("image")))
    assert sample["label"].shape == (1, 70, 50, 1)
