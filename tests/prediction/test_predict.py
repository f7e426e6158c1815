"""Sources, destinations, and the way back to the stored grid."""

import itertools
import re
import threading
from functools import partialmethod

import nibabel as nib
import numpy as np
import pytest
import SimpleITK
import torch
import zarr
from tqdm import tqdm
from window_models import network

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import (
    DestinationExists,
    GraphError,
    LeadsOutside,
    PatchSizeError,
    SampleError,
)

SHAPE = (20, 17, 13)
AFFINE = np.array([[0, -2.0, 0, 10], [1.5, 0, 0, -4], [0, 0, 3, 7], [0, 0, 0, 1]])


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """A NIfTI file with codes of its own, turned in the world."""
    path = tmp_path_factory.mktemp("scan") / "scan.nii.gz"
    array = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    image = nib.Nifti1Image(array, AFFINE)
    image.set_qform(AFFINE, 2)
    image.set_sform(AFFINE, 4)
    nib.save(image, path)
    return str(path)


@pytest.fixture(scope="module")
def logits(scan):
    return vp.predict(network(), scan, patch=8, output="logits").numpy()


def positive(batch):
    """Return two classes: whether a voxel is above 0."""
    return torch.cat([torch.zeros_like(batch), batch], 1)


@pytest.mark.parametrize("name", ["a.nii.gz", "a.nii", "a.nrrd", "a.mha", "a.nii.zarr"])
@pytest.mark.parametrize("output", ["argmax", "softmax"])
def test_every_destination_holds_the_same(scan, logits, tmp_path, name, output):
    """Voxels and affine of the file are those of the result in memory; nothing else is left."""
    tensor = torch.from_numpy(logits.copy())
    expected = {"argmax": tensor.argmax(0, keepdim=True), "softmax": tensor.softmax(0)}[output]

    result = vp.predict(network(), scan, tmp_path / name, patch=8, output=output)

    volume = vp.Volume(tmp_path / name)
    assert np.abs(volume.numpy() - expected.numpy()).max() < 1e-6
    assert np.abs(volume.affine - AFFINE).max() < 1e-5
    assert result.name == str(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_viewer_overlays_it(scan, tmp_path):
    """NIfTI keeps the codes of the scan; ITK sees both at the same place."""
    vp.predict(network(), scan, tmp_path / "a.nii.gz", patch=8)

    header = nib.load(tmp_path / "a.nii.gz").header
    assert (int(header["qform_code"]), int(header["sform_code"])) == (2, 4)
    assert header.get_data_dtype() == np.uint8
    one, other = (SimpleITK.ReadImage(str(path)) for path in (scan, tmp_path / "a.nii.gz"))
    for fact in ("GetSize", "GetOrigin", "GetSpacing", "GetDirection"):
        assert getattr(one, fact)() == pytest.approx(getattr(other, fact)())


def test_an_array_of_the_users(scan, logits):
    """What takes slices is a destination: an array, a tensor; another shape is refused."""
    array, tensor = np.zeros((1, *SHAPE), np.int16), torch.zeros((1, *SHAPE))
    vp.predict(network(), scan, array, patch=8)
    vp.predict(network(), scan, tensor, patch=8)

    assert (array[0] == logits.argmax(0)).all()
    assert (tensor.numpy() == array).all()
    with pytest.raises(PatchSizeError, match="destination has the shape"):
        vp.predict(network(), scan, np.zeros(SHAPE), patch=8)


def test_numbers_of_another_type(scan, logits):
    """Integers are rounded and clipped."""
    found = vp.predict(network(), scan, patch=8, output="logits", dtype="int8").numpy()

    assert (found == np.clip(np.rint(logits), -128, 127)).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_every_source_gives_the_same(scan, logits, workers):
    """A volume, a case, chains with and without windows, and a loader."""
    cases = vp.from_cases([{"image": scan, "case": "a"}]).open_volume()
    windows = cases.lazy_patch(8, sampling="grid", overlap=4)
    how = {"output": "logits", "num_workers": workers}
    service = vp.MultiProcessingReadingService(num_workers=workers) if workers else None
    loader = vp.DataLoader2(windows.shuffle().batch_patches(3), None, service, seed=0)

    found = [
        vp.predict(network(), vp.Volume(scan), patch=8, **how),
        vp.predict(network(), {"image": scan, "label": scan, "case": "a"}, patch=8, **how),
        vp.predict(network(), cases, patch=8, **how)["a"],
        vp.predict(network(), windows, batch_size=2, **how)["a"],
    ]
    with loader:
        found.append(vp.predict(network(), loader, output="logits")["a"])

    for volume in found:
        assert np.abs(volume.numpy() - logits).max() < 1e-5


def test_several_cases_side_by_side(scan, logits, tmp_path):
    """Windows of two volumes may come mixed; each volume is whole when its last one came."""
    cases = vp.from_cases([{"image": scan, "case": name} for name in "ab"]).open_volume()
    chain = cases.lazy_patch(8, sampling="grid", overlap=4).shuffle().batch_patches(3)

    found = vp.predict(network(), chain, str(tmp_path / "{case}.nii.gz"))

    assert sorted(found) == ["a", "b"]
    for volume in found.values():
        assert (volume.numpy()[0] == logits.argmax(0)).all()
    with pytest.raises(DestinationExists, match="two cases would be"):
        vp.predict(network(), chain, str(tmp_path / "both.nii.gz"))


def test_a_list_and_a_star_are_several_cases(scan, tmp_path):
    """Each file is a case by its name, with a file of its own; a case may be a mapping."""
    for name in "ab":
        (tmp_path / f"{name}.nii.gz").symlink_to(scan)
    (tmp_path / "out").mkdir()
    paths = sorted(tmp_path.glob("*.nii.gz"))
    place = str(tmp_path / "out" / "{case}.nii.gz")
    for source in (paths, str(tmp_path / "*.nii.gz"), [{"image": path} for path in paths]):
        found = vp.predict(positive, source, place, patch=16, overwrite=True)
        assert list(found) == ["a", "b"]
        assert {path.name for path in (tmp_path / "out").iterdir()} == {"a.nii.gz", "b.nii.gz"}
    one = vp.predict(positive, scan, patch=16).numpy()
    assert all((volume.numpy() == one).all() for volume in found.values())
    both = vp.predict(lambda batch: batch[:, :2], {"image": [scan, scan]}, patch=16)
    assert (both.numpy() == 0).all()  # a list in a case is channels
    with pytest.raises(DestinationExists, match="two cases would be"):
        vp.predict(positive, paths, tmp_path / "both.nii.gz", patch=16)


@pytest.mark.parametrize("name", ["a.nii.gz", "a.nii.zarr", None])
def test_whole_voxels_come_back_exactly(scan, tmp_path, name):
    """Behind a turn and a crop, classes are copied to where they came from; outside is 0."""
    chain = vp.from_cases([{"image": scan, "case": "a"}]).open_volume()
    chain = chain.orientation("RAS").center_crop((10, 12, 9))
    goal = None if name is None else tmp_path / name

    found = vp.predict(positive, chain, goal, patch=6)["a"].numpy()[0]

    truth = vp.Volume(scan).numpy()[0] > 0
    inside = np.zeros(SHAPE, bool)
    inside[4:16, 4:14, 2:11] = True
    assert (found[~inside] == 0).all()
    assert (found[inside] == truth[inside]).all()
    assert name is None or [path.name for path in tmp_path.iterdir()] == [name]


def test_interpolated_once_on_the_way_back(tmp_path):
    """Behind a spacing, shares of classes come back by the inverse of the plan, then the class."""
    grid = np.stack(np.meshgrid(*[np.arange(24.0)] * 3, indexing="ij"))
    field = np.sin(grid / 5).sum(0).astype(np.float32)
    chain = vp.from_cases([{"image": field, "case": "a"}]).open_volume().spacing(1.7)
    patch = next(iter(chain))["image"]
    shares = positive(torch.from_numpy(patch.realize())[None])[0].softmax(0)
    between = vp.Volume(shares, affine=patch.plan.affine)
    case = {"shares": between, "stored": vp.Volume(field, affine=np.eye(4))}
    back = vp.from_cases([case]).open_volume(policies={"shares": vp.Policy("linear", "constant")})
    expected = next(iter(back.resample_to("stored")))["shares"].realize().argmax(0)

    found = vp.predict(positive, chain, tmp_path / "a.nii.gz", patch=8)["a"].numpy()[0]

    assert (found == expected).mean() > 0.9999  # ties may fall either way
    clear = np.abs(field) > 0.2  # a step of the coarse grid away from where classes meet
    assert (found[clear] == (field > 0)[clear]).all()


def test_a_mask_leaves_windows_out(scan):
    """The model is asked for windows that touch the mask only; elsewhere the result is 0."""
    mask = np.zeros(SHAPE, np.uint8)
    mask[2, 3, 4] = 1
    asked = []

    def model(batch):
        asked.append(len(batch))
        return torch.ones_like(batch)

    region = vp.Volume(mask, affine=AFFINE, kind="label")
    found = vp.predict(model, scan, patch=8, overlap=0, mask=region, output="logits").numpy()

    assert asked == [1]
    assert found.sum() == 8**3
    assert found[0, :8, :8, :8].all()


@pytest.mark.parametrize("classes", [None, 3])
def test_a_mask_that_no_window_touches(scan, classes):
    """Class 0 everywhere, of a model that never ran."""
    region = vp.Volume(np.zeros(SHAPE, np.uint8), affine=AFFINE, kind="label")

    found = vp.predict(torch.nn.Identity(), scan, patch=8, mask=region, classes=classes).numpy()

    assert (found.shape, found.dtype, found.max()) == ((1, *SHAPE), np.uint8, 0)


def test_a_mask_with_holes(tmp_path):
    """What it leaves out is neither read nor run, also between windows that are; there is 0."""
    stored = zarr.create_array(
        tmp_path / "a.zarr", shape=(24, 24, 24), chunks=(8, 8, 8), dtype="float32"
    )
    stored[:] = np.random.default_rng(0).uniform(1, 2, (24, 24, 24))
    mask = np.zeros((24, 24, 24), np.uint8)
    held = [(0, 0, 0), (0, 2, 1), (1, 0, 2), (2, 2, 0), (2, 2, 2)]  # not the middle, nor a block
    for i, j, k in held:
        mask[8 * i + 3, 8 * j + 4, 8 * k + 5] = 1
    seen = []

    def model(batch):
        seen.append(float(batch[0, 0, 0, 0, 0]))
        return batch

    region = vp.Volume(mask, kind="label")
    before = IO_COUNTERS.snapshot()
    found = vp.predict(
        model, tmp_path / "a.zarr", patch=8, overlap=0, mask=region, output="logits"
    ).numpy()[0]

    decoded = (IO_COUNTERS.snapshot() - before).bytes_decoded
    expected = np.zeros((24, 24, 24), np.float32)
    for at in held:
        box = tuple(slice(8 * a, 8 * a + 8) for a in at)
        expected[box] = stored[box]
    assert sorted(seen) == sorted(float(stored[8 * i, 8 * j, 8 * k]) for i, j, k in held)
    assert decoded == len(held) * 8**3 * 4
    assert np.abs(found - expected).max() < 1e-6


def test_a_mask_with_holes_where_windows_overlap(scan):
    """Windows that hold something of it, and no others; the result is the mean of these alone."""
    mask = np.zeros(SHAPE, np.uint8)
    mask[0, 0, 0] = mask[19, 16, 12] = mask[9, 16, 0] = 1
    starts = [range(0, 13, 4), [0, 4, 8, 9], [0, 4, 5]]
    held = [
        at for at in itertools.product(*starts) if mask[tuple(slice(a, a + 8) for a in at)].any()
    ]
    ran, covered = [], np.zeros(SHAPE, bool)
    for at in held:
        covered[tuple(slice(a, a + 8) for a in at)] = True

    def model(batch):
        ran.append(len(batch))
        return torch.ones_like(batch)

    found = vp.predict(
        model, scan, patch=8, mask=vp.Volume(mask, affine=AFFINE, kind="label"), output="logits"
    ).numpy()[0]

    assert sum(ran) == len(held) < 4 * 4 * 3
    assert (found == covered).all()


def test_windows_are_stitched_while_the_model_runs(scan):
    """What the first window finishes is written while the model is busy with the second."""
    written, runs = threading.Event(), []

    class Destination(np.ndarray):
        def __setitem__(self, where, voxels):
            super().__setitem__(where, voxels)
            written.set()

    def model(batch):
        # A minute is for a machine that does not get to it; one after the other would never.
        runs.append(len(runs) != 1 or written.wait(60))
        return batch.double()  # what is stitched is a copy

    destination = np.zeros((1, *SHAPE), np.float32).view(Destination)

    vp.predict(model, scan, destination, patch=8, output="logits")

    assert all(runs)
    assert len(runs) == 4 * 4 * 3


def test_a_model_that_writes_to_the_same_memory(scan, logits):
    """What it gave is stitched before it is called again, and writes over it."""
    inner, memory = network(), torch.zeros(2, 3, 8, 8, 8)

    def model(batch):
        memory.fill_(torch.nan)
        return memory[: len(batch)].copy_(inner(batch))

    found = vp.predict(model, scan, patch=8, output="logits", batch_size=2).numpy()

    assert np.abs(found - logits).max() < 1e-5


def test_what_fails_behind_the_model_is_raised(scan):
    """An error of the destination ends the run, with the windows behind it not run."""

    class Full(np.ndarray):
        def __setitem__(self, where, voxels):
            raise OSError("no space left")

    runs = []

    def model(batch):
        runs.append(1)
        return batch

    destination = np.zeros((1, *SHAPE), np.float32).view(Full)
    with pytest.raises(OSError, match="no space left"):
        vp.predict(model, scan, destination, patch=8, overlap=0, output="logits")
    assert len(runs) <= 2


def test_a_model_stays_what_it_was(scan):
    """It is evaluated, and every part is as it was afterwards; head= chooses an output."""
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Conv3d(1, 2, 1)).train()
    model[1].eval()

    one, other = (vp.predict(model, scan, patch=8, output="logits").numpy() for _ in range(2))
    how = {"patch": 8, "output": "logits"}
    listed = vp.predict(lambda batch: [batch, model[1](batch)], scan, head=1, **how)
    with pytest.raises(SampleError, match="Choose one: head=0"):
        vp.predict(lambda batch: [batch, model[1](batch)], scan, **how)

    assert (one == other).all()
    assert (listed.numpy() == one).all()
    assert [part.training for part in (model, *model)] == [True, True, False]


def test_a_flat_image():
    """A plane has windows in its plane."""
    plane = np.random.default_rng(0).normal(size=(20, 30)).astype(np.float32)

    assert (vp.predict(positive, plane, patch=8).numpy()[0, ..., 0] == (plane > 0)).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"blend": "gauss"}, ValueError, "blend is one of"),
        ({"output": "labels"}, ValueError, "output is one of"),
        ({"overlap": 1}, PatchSizeError, "overlap is a share from 0 to below 1"),
        ({"destination": "a.txt"}, ValueError, "no format that is written"),
        ({"model": lambda batch: batch[0]}, SampleError, "the model gave a Tensor of shape"),
        ({"model": lambda batch: batch[..., 1:]}, PatchSizeError, "output for a window of 8x8x8"),
    ],
)
def test_mistakes_are_refused(scan, change, error, message):
    """Each error says what was given, and what is right."""
    arguments = {"model": positive, "source": scan, "patch": 8} | change
    with pytest.raises(error, match=message):
        vp.predict(**arguments)


@pytest.mark.parametrize("name", ["a.nii.gz", "a.nii.zarr"])
def test_a_run_that_failed_leaves_nothing(scan, tmp_path, name):
    """Where there is nothing to go on with, no hidden folder stays."""
    with pytest.raises(ZeroDivisionError):
        vp.predict(lambda batch: 1 / 0, scan, tmp_path / name, patch=8)
    chain = vp.from_cases([{"image": scan, "case": "a"}]).open_volume().spacing(2.0)
    with pytest.raises(ZeroDivisionError):
        vp.predict(lambda batch: 1 / 0, chain, tmp_path / name, patch=8)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.nii.gz", "a.nii.zarr"])
def test_into_a_bucket(scan, logits, tmp_path, name):
    """A URL holds what a local file would; shards are sent as they become whole."""
    result = vp.predict(network(), scan, f"memory://{tmp_path.name}/{name}", patch=8)

    assert (result.numpy()[0] == logits.argmax(0)).all()


def test_patches_that_are_no_windows(scan):
    """Uniform patches, and windows that are moved behind the grid, are refused."""
    chain = vp.from_cases([{"image": scan, "case": "a"}]).open_volume()
    with pytest.raises(GraphError, match="no windows of a grid"):
        vp.predict(positive, chain.lazy_patch(8))
    with pytest.raises(SampleError, match="behind lazy_patch"):
        vp.predict(positive, chain.lazy_patch(8, sampling="grid").rotate((10, 20)))


def test_what_is_there_is_not_replaced(scan, tmp_path):
    """Another result at the same place is refused; overwrite=True replaces it."""
    vp.predict(network(), scan, tmp_path / "a.nii.gz", patch=8)
    with pytest.raises(DestinationExists, match="is there already"):
        vp.predict(network(), scan, tmp_path / "a.nii.gz", patch=8, overlap=0)
    vp.predict(network(), scan, tmp_path / "a.nii.gz", patch=8, overlap=0, overwrite=True)


# Windows, seconds that passed and that are left, and a rate, as tqdm writes them.
BAR = r"(\d+)/(\d+) \[[\d:]+<([\d:]+|\?), +([\d.]+(?:window/s|s/window)|\?window/s)\]"


def test_the_bar_shows_rate_and_time_left(scan, capsys, monkeypatch):
    """Of all windows, those of each volume as it begins."""
    monkeypatch.setattr(tqdm, "__init__", partialmethod(tqdm.__init__, mininterval=0))
    vp.predict(positive, scan, patch=8, overlap=0, progress=True)

    shown = re.findall(BAR, capsys.readouterr().err)
    assert {count for _, count, _, _ in shown} == {"18"}
    done, _, left, rate = shown[-1]
    assert done == "18"
    assert "?" not in left + rate
    between = [entry for entry in shown if 0 < int(entry[0]) < 18]
    assert between
    assert all("?" not in left + rate for _, _, left, rate in between)


def test_the_bar_leaves_out_what_a_mask_does(scan, capsys):
    """Windows that are not run are no part of what is left."""
    mask = np.zeros(SHAPE, np.uint8)
    mask[2, 3, 4] = 1
    region = vp.Volume(mask, affine=AFFINE, kind="label")
    vp.predict(positive, scan, patch=8, overlap=0, mask=region, progress=True)

    assert [entry[:2] for entry in re.findall(BAR, capsys.readouterr().err)][-1] == ("1", "1")


@pytest.mark.parametrize("case", ["../other", "a/../../b", "/etc/passwd"])
def test_no_case_is_written_outside_of_its_folder(tmp_path, case):
    """Names of cases come from files of others."""
    scan = np.zeros((4, 4, 4), np.float32)
    chain = vp.from_cases([{"case": case, "image": scan}]).open_volume()

    with pytest.raises(LeadsOutside, match="would lie outside"):
        vp.predict(torch.nn.Identity(), chain, str(tmp_path / "out" / "{case}.nii"), patch=4)
    assert not any(file.suffix == ".nii" for file in tmp_path.rglob("*"))
