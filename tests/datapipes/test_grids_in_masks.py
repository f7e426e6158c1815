"""``lazy_patch(sampling="grid", mask=...)``: the patches of a grid that touch a mask."""

import nibabel as nib
import numpy as np
import pytest
import tifffile

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import GridMismatch, PatchSizeError
from voxpipe.spatial import forget_masks

SHAPE = (30, 21, 17)


@pytest.fixture(autouse=True)
def forgotten(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    forget_masks()


@pytest.fixture
def label():
    found = np.zeros(SHAPE, np.uint8)
    found[7, 7, 7] = 3  # the last voxel of one patch of 8
    found[16:24, 8:16, 0:8] = 1  # one whole patch
    found[29, 20, 16] = 2  # the last voxel of all
    return found


def opened(label, **kwargs):
    return vp.from_cases([{"image": label * 10.0, "label": label}]).open_volume(**kwargs)


@pytest.mark.parametrize("cached", [False, True])
def test_its_length_is_known_once_the_mask_was_read(label, cached):
    """The error of the loader, and of each pipe, names the pipe whose ``prepare()`` reads it."""
    pipe = opened(label, labels=("label",)).spacing(2.0)
    patches = (pipe.cache() if cached else pipe).lazy_patch(4, sampling="grid", mask="label")
    pipe = patches.batch_patches(2)

    with vp.DataLoader2(pipe) as loader:
        for unknown in (patches, pipe, loader):
            with pytest.raises(TypeError, match=r"\.lazy_patch\(4,.*test_grids_in_masks.*prepare"):
                len(unknown)
        patches.prepare(lambda done, total: None)

        assert len(loader) == len(pipe) == len(list(loader)) > 1


@pytest.mark.parametrize("overlap", [0, 3])
@pytest.mark.parametrize(
    "before",
    [
        lambda pipe: pipe,
        lambda pipe: pipe.flip((0, 2)),
        lambda pipe: pipe.crop((5, 0, 3), (20, 21, 14)),
        lambda pipe: pipe.spacing((1.3, 0.8, 1)),
        lambda pipe: pipe.rotate((0, 0, 30)),
        lambda pipe: pipe.rotate((0, 0, 30)).flush().flip(0),
    ],
    ids=["stored", "flipped", "cropped", "spaced", "turned", "flushed"],
)
def test_the_patches_that_touch_it_stay(label, before, overlap):
    """Those and no others, in the order of the grid, with the ordinals they have in it."""
    pipe = before(opened(label))
    every = list(pipe.lazy_patch(8, sampling="grid", overlap=overlap))
    touching = [sample.identity for sample in every if sample["label"].realize().any()]

    found = list(pipe.lazy_patch(8, sampling="grid", overlap=overlap, mask="label"))

    assert [sample.identity for sample in found] == touching
    assert 0 < len(found) < len(every)
    places = {sample.identity: place_of(sample) for sample in every}
    assert all(place_of(sample) == places[sample.identity] for sample in found)


def place_of(sample):
    """Return where a patch lies, without how many the mask left out around it."""
    draw = sample["image"].draws["lazy_patch"]
    return draw["start"], draw["size"]


def test_a_share_is_exact():
    """Of the voxels of the patch; a mask of 2 of 8 slices is a quarter of it."""
    label = np.zeros((24, 8, 8), np.uint8)
    label[0:2], label[8:9], label[16:24] = 1, 1, 5

    for share, kept in ((0, [0, 1, 2]), (0.125, [0, 1, 2]), (0.25, [0, 2]), (0.26, [2]), (1, [2])):
        pipe = opened(label).lazy_patch(8, sampling="grid", mask="label", min_fraction=share)
        assert [sample.identity[1] for sample in pipe] == kept


def test_a_case_without_any_gives_no_patch(label):
    """The others are as they were."""
    cases = [{"label": np.zeros_like(label)}, {"label": label}]
    pipe = vp.from_cases(cases).open_volume().lazy_patch(8, sampling="grid", mask="label")

    assert {sample.case for sample in pipe} == {"1"}


def test_a_coarse_mask_for_all_cases(label):
    """A volume on a grid of its own, each voxel by the nearest one."""
    coarse = np.zeros((4, 3, 3), np.uint8)
    coarse[1, 1, 0] = 1
    affine = np.diag([8.0, 8, 8, 1])
    affine[:3, 3] = 3.5
    mask = vp.Volume(coarse, affine=affine)

    found = [s.identity for s in opened(label).lazy_patch(8, sampling="grid", mask=mask)]

    # The second along I, the second and the third, which is moved inward, along J.
    assert found == [(0, 9 + 3), (0, 9 + 6)]


@pytest.mark.parametrize("argument", ["mask", "weights"])
@pytest.mark.parametrize("silent", ["mask", "image"])
@pytest.mark.parametrize("kind", ["array", "npy", "tif"])
def test_voxels_without_a_place_beside_placed_ones(tmp_path, kind, silent, argument):
    """They are refused, the mask and the image, until the user says where the mask is."""
    voxels, scan = np.ones((8, 8, 8), np.uint8), tmp_path / "scan.nii"
    nib.save(nib.Nifti1Image(voxels, np.diag([2.0, 2, 2, 1])), scan)
    np.save(tmp_path / "v.npy", voxels)
    tifffile.imwrite(tmp_path / "v.tif", voxels)
    plain = voxels if kind == "array" else tmp_path / f"v.{kind}"
    image, mask = (scan, plain) if silent == "mask" else (plain, scan)

    def cut(**place):
        chain = vp.from_cases([{"image": image}]).open_volume()
        return len(list(chain.lazy_patch(4, **{argument: vp.Volume(mask, **place)})))

    with pytest.raises(
        GridMismatch, match=rf"{argument}=.* and 'image', .* have no place in common"
    ):
        cut()
    assert cut(affine=np.diag([2.0, 2, 2, 1])) == cut(affine=np.eye(4)) == 1


def test_a_mask_is_read_once_and_not_by_estimates(tmp_path, label):
    """Nor in another process: what is known is a number for each patch."""
    np.save(tmp_path / "l.npy", label)
    pipe = vp.from_cases([{"label": str(tmp_path / "l.npy")}]).open_volume()
    pipe = pipe.lazy_patch(8, sampling="grid", mask="label")
    before = IO_COUNTERS.snapshot()

    pipe.batch_patches(2).explain()
    assert (IO_COUNTERS.snapshot() - before).bytes_read == 0
    found = [[sample.identity for sample in pipe] for _ in range(2)]
    forget_masks()
    found.append([sample.identity for sample in pipe])
    assert pipe.prepare(lambda done, total: None) == 1

    assert (IO_COUNTERS.snapshot() - before).bytes_read == label.nbytes
    assert found[0] == found[1] == found[2]


def test_workers_give_the_same_batches(label):
    """Only the loader's process looks at the mask: it plans for all."""
    pipe = opened(label, labels=("label",))
    chain = pipe.lazy_patch(8, sampling="grid", mask="label").batch_patches(2)

    with vp.DataLoader2(chain, None, vp.MultiProcessingReadingService(2)) as loader:
        found = [meta["identity"] for batch in loader for meta in batch["meta"]]

    here = opened(label).lazy_patch(8, sampling="grid", mask="label")
    assert [tuple(identity) for identity in found] == [sample.identity for sample in here]


def test_what_is_no_mask_is_refused(label):
    """With the case and the line; so is a grid behind a displacement."""
    image = np.arange(20**3, dtype=np.int16).reshape(20, 20, 20) - 500
    with pytest.raises(PatchSizeError, match=r"looks like an image(.|\n)*case 0(.|\n)*lazy_patch"):
        list(opened(image).lazy_patch(8, sampling="grid", mask="image"))
    with pytest.raises(PatchSizeError, match=r"after a displacement(.|\n)*case 0(.|\n)*lazy_patch"):
        list(opened(label).elastic(2, spacing=8).lazy_patch(8, sampling="grid", mask="label"))
