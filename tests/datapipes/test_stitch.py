"""A chain of windows ends in volumes."""

import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.core.errors import SampleError


@pytest.fixture
def arrays():
    random = np.random.default_rng(0)
    return [random.normal(size=shape).astype(np.float32) for shape in ((9, 8, 7), (6, 10, 5))]


@pytest.fixture
def windows(arrays):
    cases = [{"image": array, "case": name} for array, name in zip(arrays, "ab", strict=True)]
    return vp.from_cases(cases).open_volume().lazy_patch(4, sampling="grid", overlap=2)


@pytest.mark.parametrize("blend", ["gaussian", "hann", "mean", "crop"])
def test_volumes_come_with_their_last_batch(arrays, windows, blend):
    """One mapping of each batch, empty but for two; voxels are what the function made."""
    chain = windows.batch_patches(3).map(lambda image: image * 2, "image", "twice")
    pipe = chain.stitch("twice", blend=blend, output="logits")

    found = list(pipe)

    assert len(found) == len(pipe) == len(chain)
    assert [len(one) for one in found if one] == [1, 1]
    volumes = {case: volume for one in found for case, volume in one.items()}
    for name, array in zip("ab", arrays, strict=True):
        assert np.abs(volumes[name].numpy()[0] - 2 * array).max() < 1e-5


def test_behind_workers(arrays, windows, tmp_path):
    """The loader runs it in its own process, in whatever order windows come."""
    chain = windows.shuffle().batch_patches(3)
    chain = chain.stitch("image", str(tmp_path / "{case}.nii"), output="logits")
    service = vp.MultiProcessingReadingService(num_workers=2)
    with vp.DataLoader2(chain, None, service, seed=0) as loader:
        volumes = {case: volume for one in loader for case, volume in one.items()}

    for name, array in zip("ab", arrays, strict=True):
        assert np.abs(volumes[name].numpy()[0] - array).max() < 1e-5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.nii", "b.nii"]


def test_windows_without_a_mask_do_not_hold_it_up(arrays):
    """What a mask leaves out is known: the volume is whole without it."""
    mask = np.zeros((9, 8, 7), np.uint8)
    mask[0, 0, 0] = mask[8, 0, 6] = 1
    cases = vp.from_cases([{"image": arrays[0], "mask": mask, "case": "a"}]).open_volume()
    chain = cases.lazy_patch(4, sampling="grid", mask="mask").batch_patches(1)

    found = list(chain.stitch("image", output="logits"))

    assert [list(one) for one in found] == [[], ["a"]]
    voxels = found[-1]["a"].numpy()[0]
    assert np.abs(voxels[:4, :4, :4] - arrays[0][:4, :4, :4]).max() < 1e-6
    assert (voxels[4] == 0).all()


def test_missing_windows_are_told(windows):
    """A volume that is not whole at the end is an error, not half a file."""
    chain = windows.filter(lambda sample: sample.identity[-1] != 3).batch_patches(2)
    with pytest.raises(SampleError, match="1 windows of a did not come"):
        list(chain.stitch("image", output="logits"))


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        (lambda windows: windows.batch_patches(2).stitch("prediction"), "takes batches with"),
        (lambda windows: windows.realize().stitch("image"), "takes batches with"),
        (lambda windows: windows.batch_patches(2).stitch("image", like="ct"), "and not 'ct'"),
    ],
    ids=["key", "samples", "volume"],
)
def test_what_is_no_batch_of_windows(windows, chain, message):
    """The error says what came, and what to write."""
    with pytest.raises(SampleError, match=message):
        list(chain(windows))


def test_other_patches_are_no_windows(arrays):
    """Uniform patches tell no place among others."""
    chain = vp.from_cases([{"image": arrays[0]}]).open_volume().lazy_patch(4).batch_patches(1)
    with pytest.raises(SampleError, match="no window of a grid"):
        list(chain.stitch("image"))


def test_a_tensor_that_needs_gradients(windows):
    """It is detached; what a model gives in training is no obstacle."""
    weight = torch.ones(1, requires_grad=True)
    chain = windows.batch_patches(3).map(lambda image: image * weight, "image", "p")

    assert sum(map(len, chain.stitch("p", output="logits"))) == 2


def test_explain_says_what_it_does(windows, tmp_path):
    """Windows, what is open at once, and where it goes; in the chain and in a loader."""
    pipe = windows.batch_patches(3).stitch("image", str(tmp_path / "{case}.nii"), output="logits")
    line = (
        "stitch: 36 windows of 4x4x4 voxels, 2x2x2 of them shared, cover 9x8x7 of a; at most "
        "0.000896 MB of sums are open for each channel of the model, beyond 537 MB in a file; "
        f"logits of gaussian means goes to {tmp_path}/a.nii"
    )

    assert line in pipe.explain().splitlines()
    with vp.DataLoader2(pipe) as loader:
        assert line in loader.explain().splitlines()
    assert "goes to where named says" in windows.batch_patches(3).stitch("image", named).explain()
    assert not list(tmp_path.iterdir())


def named(case):
    raise AssertionError("asked for a look")


def test_a_zipped_chain_explains_itself(arrays):
    """Its items are pairs until a function takes one of them, which says nothing of windows."""
    one, other = (
        vp.from_cases([{"image": arrays[0], "case": "a"}])
        .open_volume()
        .lazy_patch(4, sampling="grid")
        for _ in range(2)
    )
    chain = one.zip(other).map(lambda pair: pair[0]).batch_patches(2)

    assert "stitch" in chain.stitch("image", output="logits").explain()
