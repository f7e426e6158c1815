"""Figures, previews and tables show the right voxels, at a bounded cost."""

import base64
import io
import re
import zlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from torch.utils.data import IterDataPipe

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import GridMismatch
from voxpipe.core.views import view
from voxpipe.datapipes.spatial import SpatialPipe
from voxpipe.diagnosing.cost_model import CostModel, LoaderFacts, Measurement
from voxpipe.diagnosing.diagnosis import judge
from voxpipe.extensions.commands import preview as command
from voxpipe.extensions.pictures import pixels, planes
from voxpipe.extensions.pictures.facts import patch_text
from voxpipe.extensions.pictures.preview import pairs_of, without_augmentation
from voxpipe.extensions.pictures.reports import diagnosis_html

AFFINE = np.diag([-1.5, -1.5, 3.0, 1.0])


def case():
    """Return an image with a bright box, and its label."""
    image = np.random.default_rng(0).normal(0, 1, (20, 24, 12)).astype("f4")
    label = np.zeros(image.shape, np.uint8)
    label[4:10, 8:20, 3:9] = 1
    return image + 9 * label, label


def chain(count=1):
    """Return an opened chain of cases."""
    image, label = case()
    volumes = {
        "image": vp.Volume(image, affine=AFFINE),
        "label": vp.Volume(label, kind="label", affine=AFFINE),
    }
    return vp.from_cases([{"case": f"c{n}", **volumes} for n in range(count)]).open_volume()


def test_png_is_read_by_another_library():
    """Pillow reads the same pixels."""
    values = np.random.default_rng(0).integers(0, 255, (5, 7, 3)).astype(np.uint8)

    assert np.array_equal(np.asarray(Image.open(io.BytesIO(pixels.png(values)))), values)


def test_planes_are_in_the_orientation_of_a_body():
    """Of LPS voxels: right and superior are at the ends of rows and at the top."""
    array = np.zeros((1, 4, 5, 6))
    array[0, 0, :, 5] = 1  # the most right voxels, of the most superior slice
    _, coronal, _ = planes.planes_of_array(array, AFFINE, directions=True)

    assert coronal.voxels.shape == (1, 6, 4)
    assert coronal.voxels[0, 0, -1] == 1
    assert coronal.voxels.sum() == 1
    assert coronal.view.letters == ("L", "R", "I", "S")
    assert coronal.pixel == (3.0, 1.5)
    assert coronal.caption == "coronal, j = 2"


def test_a_flip_is_seen_when_voxels_are_arranged_like_others():
    """The letters are those of the flipped voxels."""
    flipped = np.diag([-1.0, 1, 1, 1]) @ AFFINE
    _, coronal, _ = planes.planes_of_array(
        np.zeros((1, 4, 5, 6)), flipped, directions=True, like=AFFINE
    )

    assert coronal.view.letters == ("R", "L", "I", "S")


def test_a_volume_has_the_same_facts_as_text_and_html():
    """Each text of the lines is in the table, and there are three pictures."""
    volume = vp.Volume(case()[0], affine=AFFINE)
    html = volume._repr_html_()

    lines = str(volume).splitlines()
    assert "spacing  1.5 x 1.5 x 3 mm" in lines
    assert "axes     LPS, first voxel at 0, 0, 0 mm" in lines
    assert all(line.partition("  ")[2].strip() in html for line in lines)
    assert html.count("data:image/png") == 3


def test_a_missing_volume_has_a_table_with_its_error():
    """A notebook's cell does not end with a traceback."""
    volume = vp.Volume("missing.nii")

    assert "VolumeNotFound" in volume._repr_html_()
    assert "VolumeNotFound" in str(volume)


def test_a_table_reads_a_coarse_level(tmp_path):
    """The finest level of a pyramid is not read."""
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    paths = []
    for level, size in enumerate((512, 256, 128)):
        shape = (size // 16, size, size)
        group.create_array(str(level), shape=shape, chunks=(8, 64, 64), dtype="u1")[:] = 7
        scale = [2.0**level] * 3
        paths.append(
            {
                "path": str(level),
                "coordinateTransformations": [{"type": "scale", "scale": scale}],
            }
        )
    axes = [{"name": name, "type": "space", "unit": "millimeter"} for name in "zyx"]
    group.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": paths}]
    volume = vp.Volume(tmp_path / "a.zarr")
    volume.header  # noqa: B018  read before counting
    before = IO_COUNTERS.snapshot().bytes_decoded
    html = volume._repr_html_()

    assert "of level 1" in html
    assert 0 < IO_COUNTERS.snapshot().bytes_decoded - before <= 3 * 16 * 256 * 256


def test_a_table_refuses_many_bytes(monkeypatch, tmp_path):
    """The table shows the facts, and a line about the planes."""
    np.save(tmp_path / "a.npy", np.zeros((8, 8, 8)))
    monkeypatch.setattr(planes, "LOCAL_BYTES", 10)
    html = vp.Volume(tmp_path / "a.npy")._repr_html_()

    assert "data:image" not in html
    assert "the planes need" in html
    assert "vp.show(x)" in html


def test_a_table_never_reads_a_whole_remote_volume(monkeypatch, tmp_path):
    """At most half of it, however small it is."""
    np.save(tmp_path / "a.npy", np.zeros((8, 8, 8)))
    volume = vp.Volume(tmp_path / "a.npy")
    monkeypatch.setattr(planes, "is_remote", lambda volume: True)

    assert planes._limit_of(volume) == 8**3 * 8 // 2
    with pytest.raises(planes.TooManyBytes):
        planes.read_planes(volume, side=256, has_limit=True)


def test_before_and_after_have_the_same_draws():
    """Without rotation, flip and noise, a patch is a plain crop of the volume."""
    pipe = chain().lazy_patch(8).rotate((-30, 30)).flip(p=0.5).noise(0.5).normalize(mean=1, std=2)
    sample = next(iter(pipe))
    plain = without_augmentation(sample)["image"]
    start = sample["image"].draws["lazy_patch"]["start"]
    region = tuple(slice(s, s + 8) for s in start)

    assert plain.draws["lazy_patch"] == sample["image"].draws["lazy_patch"]
    assert np.allclose(plain.realize()[0], (case()[0][region] - 1) / 2, atol=1e-5)


def test_before_and_after_go_through_flushes_and_realized_patches():
    """A realized sample is compared with the voxels of its place."""
    pipe = chain().lazy_patch(8).rotate((-30, 30)).flush().zoom((0.5, 2.0)).realize()
    (pair,) = pairs_of(pipe, 1)

    assert pair.before is not None
    assert not np.allclose(
        pair.before.images[0].planes[0].voxels, pair.after.images[0].planes[0].voxels
    )


def test_planes_before_and_after_go_through_the_same_place():
    """A flip turns the voxels of each plane, and shows no other ones."""
    pairs = pairs_of(chain(4).lazy_patch(8).flip(p=0.5), 4)
    before = [plane for pair in pairs for plane in pair.before.layers[0].planes]
    after = [plane for pair in pairs for plane in pair.after.layers[0].planes]

    assert [plane.index for plane in after] != [plane.index for plane in before]
    assert all(
        np.array_equal(np.sort(new.voxels, axis=None), np.sort(old.voxels, axis=None))
        for old, new in zip(before, after, strict=True)
    )


def test_a_preview_draws_pairs_of_a_chain_that_ends_with_batches():
    """Three planes before and after, and a text, of each patch; also after a pipe of torch."""
    pytest.importorskip("matplotlib")
    pipe = chain(2).lazy_patch(8).flip(p=0.5).batch_patches(2).map(len)
    figure = pipe.preview(2)

    assert sum(bool(axes.images) for axes in figure.axes) == 12
    assert "flip" in "".join(text.get_text() for axes in figure.axes for text in axes.texts)


def test_a_preview_has_the_seed_of_a_run():
    """The same seed shows the same patches, another one others."""
    pipe = chain(4).shuffle().lazy_patch(8)
    draws = [[pair.after.draws for pair in pairs_of(pipe, 4, seed=seed)] for seed in (0, 0, 1)]

    assert draws[0] == draws[1] != draws[2]


def test_show_draws_whatever_has_voxels():
    """Samples, batches, tensors, volumes with a prediction, and chains."""
    pytest.importorskip("matplotlib")
    pipe = chain().lazy_patch(8)
    batch = next(iter(pipe.batch_patches(1)))
    shown = [chain(), pipe, next(iter(pipe)), batch, batch["image"], case()[0], case()[0][:, :, 0]]
    counts = [sum(bool(axes.images) for axes in vp.show(one).axes) for one in shown]
    figure = vp.show(vp.Volume(case()[0], affine=AFFINE), label=case()[1], title="mine")

    assert counts == [3, 3, 3, 3, 3, 3, 1]
    assert figure.axes[0].collections  # outlines
    assert figure._repr_png_()[1:4] == b"PNG"


def test_show_refuses_other_things():
    """The error names what can be shown."""
    pytest.importorskip("matplotlib")
    with pytest.raises(TypeError, match="volumes, patches, samples"):
        vp.show(b"text")
    with pytest.raises(IndexError, match="outside"):
        vp.show(case()[0], center=(99, 0, 0))


def test_a_batch_has_a_table_and_another_mapping_has_none():
    """Notebooks ask for plain mappings too."""
    batch = next(iter(chain(2).lazy_patch(8).flip(p=1.0).batch_patches(2)))
    html = view(batch, "html")

    assert html.count("data:image/png") == 6
    assert "c0" in html
    assert "c1" in html
    assert "axes=(0, 1, 2)" in html
    assert view({"a": 1}, "html") is None
    assert view([1], "html") is None


def test_chains_samples_and_patches_have_tables():
    """A chain has its code and its cost; a sample has outlines."""
    pipe = chain().lazy_patch(8)
    sample = next(iter(pipe))

    assert ".lazy_patch(8)" in pipe._repr_html_()
    assert "per patch" in pipe._repr_html_()
    assert ".lazy_patch(8)" in view(pipe.map(len), "html")
    assert sample._repr_html_().count("data:image/png") == 3
    assert sample["image"]._repr_html_().count("data:image/png") == 3
    assert "drew lazy_patch" in str(sample["image"])
    assert "case" in str(sample)


def test_explanations_and_checks_have_tables(tmp_path):
    """A text stays a text."""
    pipe = chain().lazy_patch(8).batch_patches(1)
    with vp.DataLoader2(pipe, seed=0) as loader:
        report, figures = loader.explain(), loader.stats()

    assert isinstance(report, str)
    assert repr(report) == str(report)
    assert "as written" in report._repr_html_()
    assert "delivered" in figures._repr_html_()
    checked = vp.check([{"image": str(tmp_path / "missing.nii")}], num_workers=1)
    assert "1 bad" in checked._repr_html_()
    assert "VolumeNotFound" in checked._repr_html_()


def test_names_in_tables_are_escaped():
    """A case cannot add markup to a page."""
    image, _ = case()
    sample = next(iter(vp.from_cases([{"case": "<b>", "image": image}]).open_volume()))

    assert "<b>" not in sample._repr_html_()
    assert "&lt;b&gt;" in sample._repr_html_()


@pytest.mark.parametrize("name", ["a.png", "a.html"])
def test_the_command_writes_a_picture(tmp_path, name, capsys):
    """Of a volume, with or without matplotlib."""
    from voxpipe.__main__ import main

    np.save(tmp_path / "v.npy", case()[0])
    output = tmp_path / name

    assert main(["preview", str(tmp_path / "v.npy"), "-o", str(output)]) == 0
    assert capsys.readouterr().out.strip() == str(output)
    content = output.read_bytes()
    assert content.startswith(b"\x89PNG") or content.count(b"data:image/png") == 3


def test_the_command_refuses_other_files(tmp_path, capsys):
    """Before anything is read."""
    from voxpipe.__main__ import main

    with pytest.raises(SystemExit, match="2"):
        main(["preview", str(tmp_path / "v.npy"), "-o", "a.xyz"])
    assert "a.xyz ends with none of .png" in capsys.readouterr().err
    assert command.__doc__.startswith("Draw")


def test_the_window_leaves_out_nan():
    """Pixels without a value have a colour of their own."""
    plane = np.array([[0.0, np.nan], [1.0, np.inf]])
    image = pixels.grey(plane, pixels.window_of([plane]))

    assert image[0, 1].tolist() == [96, 0, 0]
    assert re.match("data:image/png;base64,", pixels.data_url(image))
    assert zlib.crc32(pixels.png(image)) == zlib.crc32(pixels.png(image.copy()))


def test_instances_have_colours_of_their_own():
    """256 distinct ones, all visible on black, as Pillow's luminance says."""
    assert len(np.unique(pixels.PALETTE, axis=0)) == 256
    picture = Image.fromarray(pixels.classes(np.arange(1, 257)[None]))
    assert np.asarray(picture.convert("L")).min() > 75
    first = pixels.PALETTE[:40].astype(int)
    apart = np.linalg.norm(first[:, None] - first, axis=-1)
    assert apart[~np.eye(40, dtype=bool)].min() > 50


def test_outlines_do_not_fill_thin_planes():
    """A label of one slice of 10 mm shows the voxels inside of its outline."""
    image = vp.Volume(np.full((40, 40, 4), 100.0), affine=np.diag([1.0, 1, 10, 1]))
    voxels = np.zeros((40, 40, 4), "u1")
    voxels[10:30, 10:30, 2] = 1
    label = vp.Volume(voxels, affine=image.affine, kind="label")
    text = vp.Sample({"image": image, "label": label})._repr_html_()
    first = re.search(r"base64,([^\"]+)", text)[1]
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(first)))).astype(int)
    coloured = np.ptp(shown, axis=-1) > 0

    rows, columns = (np.flatnonzero(coloured.any(axis=axis)) for axis in (1, 0))
    height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
    assert height > 30
    assert coloured.sum() == 2 * (height + width) - 4


def test_channels_have_their_names_in_texts_and_titles(tmp_path):
    """The file's names; a number without them; none of colours."""
    channels = {"Channel": {"Name": ["DAPI", "GFP"]}}
    voxels = np.random.default_rng(0).integers(0, 99, (2, 4, 8, 9)).astype("u2")
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, voxels, metadata={"axes": "CZYX", **channels})
    volume = vp.Volume(path)
    patch = next(iter(vp.from_cases([{"image": path}]).open_volume().lazy_patch(4)))["image"]

    for thing in (volume, patch):
        assert re.search(r"channels +DAPI, GFP\n", str(thing))
        assert "channel DAPI of 2" in thing._repr_html_()
        title = " ".join(vp.show(thing).axes[0].get_title("left").split())
        assert "channel DAPI of 2" in title
    chosen = vp.Volume(path, channels=["GFP"])
    title = vp.show(chosen).axes[0].get_title("left").replace("\n", "")
    assert title.replace(" ", "") == f"{path}·GFP"
    plain = vp.show(vp.Volume(np.zeros((2, 4, 4, 4)))).axes[0].get_title("left")
    assert plain.endswith("channel 0 of 2")
    assert not vp.show(np.zeros((3, 4, 4, 4), "u1")).axes[0].get_title("left")


def test_voxels_without_a_spacing_are_no_millimetres():
    """Neither of a volume nor of its patch, unless an affine is given."""
    array = np.zeros((4, 5, 6), np.float32)
    for volume, text, unit in (
        (vp.Volume(array), "not given: a voxel counts as 1 mm", "voxels"),
        (vp.Volume(torch.from_numpy(array)), "not given: a voxel counts as 1 mm", "voxels"),
        (vp.Volume(array, affine=np.eye(4)), "1 x 1 x 1 mm", "mm"),
        (vp.Volume(array, affine=np.diag([2, 1, 1, 1])), "2 x 1 x 1 mm", "mm"),
    ):
        (sample,) = vp.from_cases([{"image": volume}]).open_volume().lazy_patch(4)
        assert text in str(volume)
        assert text in volume._repr_html_()
        assert f" {unit}\n" in str(sample["image"])


@dataclass(frozen=True)
class Corner:
    """An op of another package, which draws a corner of the volume."""

    size: int = 6
    name: ClassVar[str] = "corner"
    lattice: ClassVar[bool] = True
    places: ClassVar[bool] = True

    def draw(self, generator, plan):
        return {
            "start": [int(generator.integers(0, 2)) * max(0, n - self.size) for n in plan.shape]
        }

    def then(self, plan, params):
        return plan.crop(params["start"], [min(self.size, n) for n in plan.shape])

    def describe(self):
        return "corner"


@dataclass(frozen=True)
class CropShuffle(Corner):
    """An augmentation with the word for placing in its name."""

    name: ClassVar[str] = "crop_shuffle"
    places: ClassVar[bool] = False


@pytest.fixture(scope="module", autouse=True)
def forms_of_others():
    """Register the ops as forms, for the tests of this file only."""

    class CornerPipe(SpatialPipe, form="corner", op=Corner): ...

    class CropShufflePipe(SpatialPipe, form="crop_shuffle", op=CropShuffle): ...

    yield
    del IterDataPipe.functions["corner"], IterDataPipe.functions["crop_shuffle"]


@pytest.mark.parametrize(("form", "is_place"), [("corner", True), ("crop_shuffle", False)])
def test_ops_of_others_say_whether_they_place(form, is_place):
    """Draws of a place stay before augmentation; the name of an op is no evidence."""
    sample = next(iter(getattr(chain(), form)().flip(p=0.5)))
    plain = without_augmentation(sample)["image"]

    assert plain.draws["flip"] is None
    assert plain.draws[form] == (sample["image"].draws[form] if is_place else None)


def test_draws_of_ops_of_others_are_shown_as_they_are():
    """In 2-D, too: only our own ops have a hidden third number."""
    image = np.random.default_rng(0).random((8, 9)).astype("f4")
    patch = next(iter(vp.from_cases([{"image": image}]).open_volume().corner()))["image"]

    assert len(patch.draws["corner"]["start"]) == 3
    assert f"start={tuple(patch.draws['corner']['start'])}" in patch_text(patch)


def test_the_bars_of_a_diagnosis_mark_its_limit():
    """The same row as the text: a part, or the sum of parts that run one after another."""
    costs = CostModel(4.0, 1e-3, fetch=0.1, rest=0.02, transport=1e-3)
    diagnosis = judge(Measurement(costs, LoaderFacts(workers=1, cores=1)), 8.0)
    page = diagnosis_html(diagnosis)

    assert diagnosis.headline in page
    assert page.count("limit</td>") == 1
    assert "sum of fetch + resample" in page


def test_all_of_many_labels_have_outlines():
    """Instances of a microscope: the sides between each of 36 labels and others, touching too."""
    pytest.importorskip("matplotlib")
    label = np.zeros((24, 24, 1), "u4")
    for number, (i, j) in enumerate(np.ndindex(6, 6)):
        label[4 * i : 4 * i + 2, 4 * j : 4 * j + 2] = 70_000 + number
    label[0:2, 2:4] = 90_000  # touches two
    figure = vp.show(vp.Volume(np.zeros((24, 24, 1), "u1"), affine=np.eye(4)), label=label)
    sides = [side for one in figure.axes[0].collections for side in one.get_segments()]

    assert len(sides) == 36 * 8 + 8 - 4
    assert all(np.abs(np.diff(side, axis=0)).sum() == pytest.approx(1) for side in sides)
    places = {tuple(np.ravel(side).round(3).tolist()) for side in sides}
    assert len(places) == len(sides)


ELSEWHERE = {
    "no size": np.eye(4),
    "mirrored": np.diag([-0.5, 0.5, 0.5, 1]),
    "larger": np.diag([4, 4, 4, 1.0]),
    "other shape": None,
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_label_elsewhere_is_refused_or_noted(name):
    """Outlines would lie outside the picture, as if the label was empty."""
    pytest.importorskip("matplotlib")
    image = vp.Volume(np.zeros((8, 9, 10), "f4"), affine=np.diag([0.5, 0.5, 0.5, 1]))
    label = np.ones((8, 9, 10), "u1")
    if name != "other shape":
        label = vp.Volume(label, affine=ELSEWHERE[name], kind="label")
        figure = vp.show({"image": image, "seg": label})
        texts = [one.get_text() for axes in figure.axes for one in axes.texts]
        assert any("no outlines" in one for one in texts)
    else:
        label = label[1:]
    with pytest.raises(GridMismatch, match="no outlines"):
        vp.show(image, label=label)


def test_a_label_in_other_axes_is_refused():
    """Planes of a microscope are in the order of the file: outlines would be mirrored."""
    pytest.importorskip("matplotlib")
    image = vp.Volume(np.zeros((8, 8, 8), "f4"), affine=np.diag([1e-3, 1e-3, 1e-3, 1]))
    mirrored = np.diag([-1e-3, 1e-3, 1e-3, 1])
    mirrored[0, 3] = 7e-3
    transposed = image.affine[[1, 0, 2, 3]]
    for affine in (mirrored, transposed):
        label = vp.Volume(np.ones((8, 8, 8), "u1"), affine=affine, kind="label")
        with pytest.raises(GridMismatch, match="other axes"):
            vp.show(image, label=label)


@pytest.mark.parametrize("shape", [(8, 9), (8, 9, 10)])
def test_arrays_have_outlines_of_an_array_of_their_shape(shape):
    """Neither has a place."""
    pytest.importorskip("matplotlib")
    figure = vp.show(np.random.default_rng(0).random(shape), label=np.ones(shape, "u1"))

    assert sum(len(one.get_segments()) for one in figure.axes[0].collections)
    with pytest.raises(GridMismatch, match="another shape"):
        vp.show(np.zeros(shape, "f4"), label=np.ones((5, *shape[1:]), "u1"))


def test_a_label_is_for_one_image():
    """Others have labels of their own."""
    pytest.importorskip("matplotlib")
    pipe = vp.from_cases([{"image": np.zeros((4, 4, 4))}]).open_volume()
    for thing in (pipe, next(iter(pipe)), {"image": np.zeros((4, 4, 4))}):
        with pytest.raises(TypeError, match="label= is for one image"):
            vp.show(thing, label=np.ones((4, 4, 4), "u1"))


def test_a_coarser_label_has_outlines_at_the_same_place():
    """Its index is that of the image in its own voxels."""
    pytest.importorskip("matplotlib")
    image = vp.Volume(np.zeros((8, 8, 8), "f4"), affine=np.diag([0.5, 0.5, 0.5, 1]))
    voxels = np.zeros((4, 4, 4), "u1")
    voxels[:, :, 3] = 1
    affine = np.diag([1, 1, 1, 1.0])
    affine[:3, 3] = 0.25
    label = vp.Volume(voxels, affine=affine, kind="label")

    def outlines(at):
        *_, axial = [axes for axes in vp.show(image, label=label, center=at).axes if axes.images]
        return sum(len(one.get_segments()) for one in axial.collections) > 0

    assert [outlines((4, 4, at)) for at in (0, 5, 6, 7)] == [0, 0, 1, 1]
