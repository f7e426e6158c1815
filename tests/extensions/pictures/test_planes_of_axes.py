"""Pictures of 2-D data, and of patches with another order of axes."""

import io
import itertools
import re

import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.views import view
from voxpipe.extensions.pictures.planes import planes_of_array, views_of
from voxpipe.extensions.pictures.preview import page_of_pairs, pairs_of
from voxpipe.extensions.pictures.scenes import Look, scenes_of
from voxpipe.spatial.ops.axis_op import orientation_of

LOOK = Look(64)


def flat(names=True, *, label=False):
    """Return a chain of images (Y, X), or of (I, J) without names; its label is the upper left."""
    image = np.random.default_rng(0).random((20, 30)).astype("f4")
    case = {"image": image}
    if label:
        case["label"] = np.zeros(image.shape, "u1")
        case["label"][2:5, 3:12] = 1
    return vp.from_cases([case]).open_volume(**({"axes": "yx"} if names else {})), image


def pictures(thing):
    """Return the number of drawn planes of a figure, which is also written."""
    figure = vp.show(thing)
    figure.savefig(io.BytesIO(), format="png")
    return sum(bool(axes.images) for axes in figure.axes)


@pytest.mark.parametrize("has_label", [False, True])
@pytest.mark.parametrize("names", [False, True])
def test_everything_of_2d_patches_has_one_picture(names, has_label):
    """The chain, an item, its patch, its realized voxels, a batch, and their tables."""
    chain, _ = flat(names, label=has_label)
    chain = chain.lazy_patch((16, 20))
    sample = next(iter(chain))
    realized = next(iter(chain.realize()))
    batch = next(iter(chain.batch_patches(1)))

    for thing in (chain, sample, sample["image"], realized, batch):
        assert pictures(thing) == 1
    for thing in (sample, sample["image"], realized, batch):
        assert view(thing, "html").count("data:image/png") == 1
    assert "no picture" not in sample._repr_html_()


def test_previews_of_2d_patches_have_both_sides():
    """Also with a label."""
    chain, _ = flat(label=True)
    pairs = pairs_of(chain.lazy_patch((16, 20)).noise(0.5), 1)
    figure = chain.lazy_patch((16, 20)).noise(0.5).preview(1)

    assert sum(bool(axes.images) for axes in figure.axes) == 2
    assert page_of_pairs(pairs, "").count("data:image/png") == 2


@pytest.mark.parametrize("order", [None, "yx", "xy"])
def test_x_of_2d_patches_is_across(order):
    """The picture is the image as it is stored, in any order of the tensors."""
    chain, image = flat()
    chain = chain if order is None else chain.to_axes(order)
    chain = chain.lazy_patch((30, 20) if order == "xy" else (20, 30))
    for thing in (next(iter(chain)), next(iter(chain.batch_patches(1)))):
        [scene] = scenes_of(thing, LOOK)
        [plane] = scene.layers[0].planes
        assert np.array_equal(plane.voxels[0], image)


def test_the_center_of_2d_data_has_two_numbers():
    """Also of a patch; three are checked as well."""
    chain, _ = flat()
    sample = next(iter(chain.lazy_patch((16, 20))))

    assert vp.show(sample, center=(15, 19)).axes
    assert vp.show(sample["image"], center=(15, 19, 0)).axes
    with pytest.raises(IndexError):
        vp.show(sample["image"], center=(15, 20))


ORDERS = ["".join(order) for order in itertools.permutations("xyz")]


@pytest.mark.parametrize("affine", [None, np.diag([-1.5, -1.5, 3.0, 1.0])])
@pytest.mark.parametrize("order", ORDERS)
def test_an_order_of_axes_changes_no_picture(order, affine):
    """Planes of a patch, of its batch and of napari are those without ``to_axes()``."""
    array = np.random.default_rng(0).random((4, 5, 6)).astype("f4")
    own = {} if affine is None else {"affine": affine}
    stored = vp.Volume(array.transpose(), axes="zyx", **own)
    chain = vp.from_cases([{"image": stored}]).open_volume()
    plain = next(iter(chain.lazy_patch((4, 5, 6))))
    size = [dict(zip("xyz", (4, 5, 6), strict=True))[letter] for letter in order]
    turned = chain.to_axes(order).lazy_patch(size)
    sample = next(iter(turned))
    expected = scenes_of(plain, LOOK)[0].layers[0].planes

    assert sample["image"].shape[1:] == tuple(size)
    for thing in (sample, next(iter(turned.realize())), next(iter(turned.batch_patches(1)))):
        planes = scenes_of(thing, LOOK)[0].layers[0].planes
        assert len(planes) == 3
        for one, other in zip(planes, expected, strict=True):
            assert np.array_equal(one.voxels, other.voxels)
            assert (one.pixel, one.is_placed) == (other.pixel, other.is_placed)
            assert (one.view.letters, one.view.name) == (other.view.letters, other.view.name)
    [(data, arguments, _)] = sample["image"].to_napari()
    [(same, others, _)] = plain["image"].to_napari()
    assert np.array_equal(np.asarray(data), np.asarray(same))
    assert arguments["scale"] == others["scale"]
    assert np.allclose(arguments["affine"], others["affine"])


def test_captions_name_the_axes_of_an_order():
    """An index is that of the patch."""
    planes = planes_of_array(np.zeros((1, 4, 5, 6)), np.eye(4), directions=False, axes="zyx")

    assert [plane.caption for plane in planes] == ["x = 3", "y = 2", "z = 2"]
    assert planes[2].voxels.shape == (1, 5, 6)


def test_layers_of_napari_of_2d_patches_have_one_plane():
    """(1, Y, X)."""
    chain, image = flat()
    [(data, arguments, _)] = next(iter(chain.lazy_patch((20, 30))))["image"].to_napari()

    assert data.shape == (1, 20, 30)
    assert np.array_equal(np.asarray(data)[0], image)
    assert arguments["axis_labels"] == ("z", "y", "x")


def test_the_table_of_a_2d_patch_names_two_axes():
    """Its shape has no third axis."""
    chain, _ = flat()

    assert "1 x 16 x 20  (C, Y, X)" in str(next(iter(chain.lazy_patch((16, 20))))["image"])


@pytest.mark.parametrize("kind", ["volume", "patch", "zyx", "plane", "channel of a plane"])
def test_an_array_is_in_the_place_of_the_image(kind):
    """A label without a place has its outlines where the image has its voxels."""
    array = np.zeros((7, 8, 9), "f4")
    array[1:3, 4:6, 2:7] = 1
    volume = vp.Volume(array, axes="xyz", affine=np.diag([-1.5, -1.5, 3.0, 1.0]))
    image, label = volume, array.astype("u1")
    if kind in ("patch", "zyx"):
        chain = vp.from_cases([{"image": volume}]).open_volume()
        chain = chain.to_axes("zyx").lazy_patch((9, 8, 7)) if kind == "zyx" else chain.lazy_patch(7)
        image = next(iter(chain))["image"]
        label = image.realize()[0].astype("u1")
    elif "plane" in kind:
        chain, values = flat()
        image = next(iter(chain.lazy_patch((20, 30))))["image"]
        label = (values > 0.5).astype("u1")
        label = label[None] if "channel" in kind else label
    [scene] = scenes_of({"image": image, "label": label}, LOOK)
    drawn, outlines = scene.layers

    assert len(drawn.planes) == len(outlines.planes)
    for one, other in zip(drawn.planes, outlines.planes, strict=True):
        assert np.array_equal(one.voxels > 0.5, other.voxels == 1)
        assert (one.pixel, one.index) == (other.pixel, other.index)
    assert any(plane.voxels.any() for plane in outlines.planes)


def test_planes_of_a_volume_share_one_scale():
    """In figures and tables; a plane that would be too small has a scale and a bar of its own."""
    volume = vp.Volume(np.random.rand(10, 40, 20), affine=np.diag([1.0, 1, 2, 1]))
    figure = vp.show(volume)
    spans = {(axes.get_xlim()[1] - axes.get_xlim()[0]) for axes in figure.axes}
    assert spans == {40.0}
    assert sum(len(axes.lines) > 0 for axes in figure.axes) == 1
    widths = [int(text) for text in re.findall(r'alt="[^"]*" width="(\d+)"', volume._repr_html_())]
    np.testing.assert_allclose(np.divide(widths, widths[0]), [1, 0.25, 0.25], atol=0.02)

    figure = vp.show(vp.Volume(np.random.rand(5, 100, 5)))
    spans = [axes.get_xlim()[1] - axes.get_xlim()[0] for axes in figure.axes]
    assert spans == [100.0, 5.0, 100.0]
    assert [len(axes.lines) > 0 for axes in figure.axes] == [True, True, False]


def test_directions_of_sheared_axes_are_those_of_nibabel():
    """In the letters of planes, and in the orientation of tables."""
    random = np.random.default_rng(3)
    for _ in range(60):
        affine = np.eye(4)
        affine[:3, :3] = random.normal(size=(3, 3))
        codes = nibabel.aff2axcodes(affine)

        assert orientation_of(affine) == "".join(codes)
        for one in views_of(affine):
            left, right, bottom, top = one.letters
            assert codes[one.across] == (left if one.flips[1] else right)
            assert codes[one.down] == (top if one.flips[0] else bottom)
