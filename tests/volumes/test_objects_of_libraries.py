"""Images and arrays of other libraries keep their place in the world, or are refused by name."""

import subprocess
import sys
from importlib.util import find_spec

import nibabel
import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.core.errors import SampleError, UnknownFormat, VolumeError
from voxpipe.volumes import Volume

AFFINE = np.array([[0.8, 0, 0.1, 3], [0, 0.9, 0, -2], [0, 0, 2.5, 1], [0, 0, 0, 1]])
VOXELS = np.arange(120, dtype=np.float32).reshape(1, 4, 5, 6)


def metatensor(voxels=VOXELS, affine=AFFINE, **meta):
    data = pytest.importorskip("monai.data")
    return data.MetaTensor(torch.from_numpy(voxels), affine=torch.from_numpy(affine), meta=meta)


def torchio_image():
    return pytest.importorskip("torchio").ScalarImage(tensor=VOXELS, affine=AFFINE)


class Placed(np.ndarray):
    """An array with attributes, as many libraries have."""


def placed_array():
    array = VOXELS.copy().view(Placed)
    array.affine = AFFINE
    return array


def simpleitk_image():
    sitk = pytest.importorskip("SimpleITK")
    image = sitk.GetImageFromArray(VOXELS[0].T)
    lengths = np.linalg.norm(AFFINE[:3, :3], axis=0)
    turned = np.diag([-1, -1, 1]) @ AFFINE[:3]  # SimpleITK's world is LPS
    image.SetSpacing(lengths.tolist())
    image.SetDirection((turned[:, :3] / lengths).ravel().tolist())
    image.SetOrigin(turned[:, 3].tolist())
    return image


@pytest.mark.parametrize("make", [metatensor, torchio_image, placed_array, simpleitk_image])
def test_the_affine_of_an_object_reaches_all_that_takes_it(tmp_path, make):
    """Volume, a chain, a stack, save, convert and predict."""
    scan, whole = make(), VOXELS[0].tolist()

    for volume in (Volume(scan), Volume([scan, scan]), vp.save(tmp_path / "a.nii", scan)):
        assert volume.affine == pytest.approx(AFFINE, abs=1e-6)
        assert volume.numpy()[0].tolist() == whole
    vp.convert(scan, tmp_path / "a.nii.zarr")
    assert Volume(tmp_path / "a.nii.zarr").affine == pytest.approx(AFFINE)
    vp.predict(lambda x: x, scan, tmp_path / "b.nii", patch=16, output="logits")
    assert nibabel.load(tmp_path / "b.nii").affine == pytest.approx(AFFINE, abs=1e-6)
    shapes = []
    for source in (scan, tmp_path / "a.nii"):
        pipe = vp.from_cases([{"image": source}]).open_volume(labels=()).spacing(1.0)
        shapes.append(next(iter(pipe.batch_patches(1)))["image"].shape)
    assert shapes[0] == shapes[1] != (1, 1, 4, 5, 6)
    assert Volume(scan, affine=np.diag([1, 2, 3, 1])).spacing == (1, 2, 3)


def test_a_metatensor_of_lps_is_turned():
    """As ITK's readers of MONAI give it where they are told to."""
    turned = Volume(metatensor(space="LPS")).affine
    assert turned == pytest.approx(np.diag([-1.0, -1, 1, 1]) @ AFFINE)


@pytest.mark.parametrize(
    ("stored", "shape"), [((4, 5, 6), (1, 4, 5, 6)), ((5, 6), (4, 5, 6, 1)), (None, None)]
)
def test_three_axes_of_a_metatensor_are_what_its_file_had(stored, shape):
    """MONAI's come channel first, but for those that LoadImage returns as they are stored."""
    scan = metatensor(VOXELS[0], **({} if stored is None else {"spatial_shape": stored}))

    if shape is not None:
        assert Volume(scan).shape == shape
        return
    with pytest.raises(UnknownFormat, match="a channel axis or none"):
        Volume(scan)
    assert Volume(scan[None]).shape == (1, 4, 5, 6)


def pending():
    transforms = pytest.importorskip("monai.transforms")
    return transforms.Spacing(pixdim=1.0, lazy=True)(metatensor())


def batch():
    return pytest.importorskip("monai.data").list_data_collate([metatensor()] * 2)


def with_spacing():
    array = VOXELS.view(Placed)
    array.spacing = (1, 2, 3)
    return array


def with_meta():
    array = VOXELS.view(Placed)
    array.meta = {"sampling": (1, 2, 3)}
    return array


REFUSED = {
    "pending operations": pending,
    "is a batch": batch,
    "space 'LAS'": lambda: metatensor(space="LAS"),
    "channels last": lambda: metatensor(VOXELS, spatial_shape=(1, 4, 5)),
    "not read: spacing": with_spacing,
    "not read: sampling": with_meta,
    "without a value": lambda: np.ma.masked_less(VOXELS, 3),
    "xarray.DataArray": lambda: pytest.importorskip("xarray").DataArray(VOXELS),
    "dask.Array": lambda: pytest.importorskip("dask.array").zeros((4, 5, 6)),
    "torchio.Subject": lambda: pytest.importorskip("torchio").Subject(image=torchio_image()),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_what_says_more_than_is_read_is_refused(what):
    """A mask, a batch, operations to come, a geometry of another form."""
    with pytest.raises(UnknownFormat, match=what):
        Volume(REFUSED[what]())


def test_a_mask_is_refused_wherever_an_array_comes_from(tmp_path):
    """Also in an image, and from a reader; one that masks nothing is none."""
    masked = np.ma.masked_less(VOXELS[0], 3)
    with pytest.raises(UnknownFormat, match="masked array"):
        Volume(nibabel.Nifti1Image(masked, AFFINE))
    with pytest.raises(UnknownFormat, match="masked array"):
        _ = Volume(tmp_path / "a.xyz", reader=lambda path: masked).shape
    assert Volume(np.ma.array(VOXELS)).numpy().tolist() == VOXELS.tolist()


def test_a_reader_may_return_an_object_with_an_affine(tmp_path):
    """Its affine counts, unless the reader or the user gives another."""
    scan = metatensor()

    assert Volume(tmp_path / "a.xyz", reader=lambda path: scan).affine == pytest.approx(AFFINE)
    both = Volume(tmp_path / "b.xyz", reader=lambda path: (scan, np.diag([2.0, 2, 2, 1])))
    assert both.spacing == (2, 2, 2)


OF_ITK = """
import itk, numpy as np, SimpleITK as sitk
from voxpipe.volumes import Volume

def pair(array, turn, is_vector=False):
    image = itk.image_from_array(array, is_vector=is_vector)
    other = sitk.GetImageFromArray(array, isVector=is_vector)
    count = image.GetImageDimension()
    for one in (image, other):
        one.SetSpacing([0.5, 1.5, 2.5][:count])
        one.SetOrigin([1.0, 2.0, 3.0][:count])
    image.SetDirection(itk.matrix_from_array(np.array(turn, float)))
    other.SetDirection(np.array(turn, float).ravel().tolist())
    return image, other

voxels, turn = np.arange(120, dtype="f4").reshape(4, 5, 6), [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
whole = pair(voxels, turn)
region = itk.ImageRegion[3]()
region.SetIndex([1, 1, 2])
region.SetSize([5, 4, 2])
part = itk.region_of_interest_image_filter(whole[0], region_of_interest=region)
pairs = {
    "whole": whole,
    "vector": pair(np.stack([voxels, voxels + 1], -1), turn, True),
    "plane": pair(voxels[0], [[0, 1], [1, 0]]),
    "part": (part, whole[1][1:6, 1:5, 2:4]),
}
for name, (image, other) in pairs.items():
    mine, expected = Volume(image), Volume(other)
    assert np.allclose(mine.affine, expected.affine), name
    assert np.array_equal(mine.numpy(), expected.numpy()), name
    print(name)
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("itk") is None, reason="needs itk")
def test_images_of_itk_lie_where_simpleitk_says():
    """Both turn from LPS to RAS. In a process of its own: itk loads libraries that others have."""
    command = [sys.executable, "-c", OF_ITK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["whole", "vector", "plane", "part"], done.stderr


def test_a_label_map_of_torchio_is_a_label_under_any_key():
    """Nearest and in its type, alone and as channels, unless its Volume says otherwise."""
    torchio = pytest.importorskip("torchio")
    ball = ((np.indices((8, 8, 8)) - 3.5) ** 2).sum(0) < 9
    label = torchio.LabelMap(tensor=ball[None].astype(np.float32) * 3)
    case = {"t1": torchio.ScalarImage(tensor=torch.rand(1, 8, 8, 8)), "organs": label}
    pipe = vp.from_cases([{**case, "parts": [label, label]}]).open_volume().rotate(20)
    batch = next(iter(pipe.batch_patches(1)))

    for key in ("organs", "parts"):
        assert batch[key].unique().tolist() == [0, 3]
    assert len(batch["t1"].unique()) > 100
    assert [Volume(label).kind, Volume(label, kind="intensity").kind] == ["label", "intensity"]


def test_axes_of_an_object_that_has_them_are_refused():
    """Of nibabel, and of tensors with an affine; one that is given is of the axes that are."""
    image = nibabel.Nifti1Image(VOXELS[0], AFFINE)
    for make in (lambda **how: Volume(image, **how), lambda **how: Volume(metatensor(), **how)):
        with pytest.raises(SampleError, match="Leave axes= out"):
            make(axes="czyx")
    assert Volume(metatensor(), axes="czyx", affine=np.eye(4)).shape == (1, 6, 5, 4)


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda tensor: tensor.to_sparse(), r"tensor\.to_dense\(\)"),
        (lambda tensor: tensor.to_mkldnn(), r"tensor\.to_dense\(\)"),
        (lambda tensor: torch.nested.nested_tensor([tensor], layout=torch.jagged), "unbind"),
        (lambda tensor: tensor.to("meta"), "the tensor that holds the voxels"),
    ],
    ids=["sparse", "mkldnn", "nested", "meta"],
)
def test_the_advice_for_a_tensor_fits_it(make, advice):
    """The error names the call that gives a plain tensor."""
    with pytest.raises(UnknownFormat, match=advice):
        Volume(make(torch.ones(3, 4, 5)))


def test_views_that_torch_has_not_worked_out_are_read():
    """A conjugate, and the negative imaginary part of one."""
    tensor = torch.complex(torch.ones(3, 4, 5), torch.full((3, 4, 5), 2.0)).conj()

    assert np.unique(Volume(tensor).numpy()).tolist() == [1 - 2j]
    assert np.unique(Volume(tensor.imag).numpy()).tolist() == [-2]


def test_a_list_of_labels_and_others():
    """Its kind is not guessed: it is a label where all are, and refused where some are."""
    voxels = np.ones((4, 4, 4), np.uint8)
    label, other = vp.Volume(voxels, kind="label"), vp.Volume(voxels)
    assert vp.Volume([label, label]).kind == "label"
    for pair in ([label, other], [voxels, label]):
        with pytest.raises(VolumeError, match="a list mixes a label"):
            vp.Volume(pair)
        with pytest.raises(VolumeError, match="a list mixes a label"):
            list(vp.from_cases([{"image": pair}]).open_volume())
        assert vp.Volume(pair, kind="intensity").kind == "intensity"
    tio = pytest.importorskip("torchio")
    tensor = torch.ones(1, 4, 4, 4)
    with pytest.raises(VolumeError, match="LabelMap, with another volume, ScalarImage"):
        vp.Volume([tio.LabelMap(tensor=tensor), tio.ScalarImage(tensor=tensor)])
