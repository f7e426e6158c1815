"""A result, or half of one, counts for the run that made it: the same model, chain and voxels."""

import os
import types
from functools import partial

import fsspec
import nibabel as nib
import numpy as np
import pytest
import SimpleITK
import torch

import voxpipe as vp
from voxpipe.core.errors import DestinationExists, GraphError, SampleError
from voxpipe.stitching import outputs
from voxpipe.volumes.session import close_volumes

ONES = np.ones((8, 8, 8), np.float32)


class Counting(torch.nn.Module):
    """Gives windows as they are, and knows how many there were."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, batch):
        self.count += len(batch)
        return batch


@pytest.fixture
def scan(tmp_path):
    path = str(tmp_path / "scan.nii")
    nib.save(nib.Nifti1Image(ONES, np.eye(4)), path)
    return path


def cases(**files):
    return vp.from_cases([{**files, "case": "a"}]).open_volume()


def windows(chain, **options):
    return chain.lazy_patch(4, sampling="grid", **options)


def run(chain, place, **options):
    """Return the mean of the result, and how many windows were run for it."""
    model = Counting()
    volume = vp.predict(model, chain, place, output="logits", **options)
    volume = volume["a"] if isinstance(volume, dict) else volume
    return float(volume.numpy().mean()), model.count


def test_another_chain_is_another_run(scan, tmp_path):
    """With a value op more the result is refused, or made anew; with the same chain it is there."""
    place = str(tmp_path / "out.nii")
    assert run(windows(cases(image=scan)), place) == (1, 8)
    assert run(windows(cases(image=scan)), place) == (1, 0)
    other = windows(cases(image=scan)).brightness(add=1000.0)
    with pytest.raises(DestinationExists, match="there already"):
        run(other, place)

    assert run(other, place, overwrite=True) == (1001, 8)
    assert run(other, place, batch_size=3, num_workers=1) == (1001, 0)


def test_overwrite_makes_it_anew(scan, tmp_path):
    """Also where the same run is finished."""
    assert run(scan, tmp_path / "out.nii", patch=4, overlap=0) == (1, 8)
    assert run(scan, tmp_path / "out.nii", patch=4, overlap=0, overwrite=True) == (1, 8)


def test_a_mask_that_was_changed(scan, tmp_path):
    """The mask is part of the run, as a key of the case and as a volume: its version counts."""
    mask = np.zeros((8, 8, 8), np.uint8)
    mask[0, 0, 0] = 1
    nib.save(nib.Nifti1Image(mask, np.eye(4)), tmp_path / "mask.nii")
    path = str(tmp_path / "mask.nii")
    of_case = windows(cases(image=scan, mask=path), mask="mask")
    of_all = windows(cases(image=scan), mask=vp.Volume(path, kind="label"))
    assert run(of_case, str(tmp_path / "b.nii"), key="image") == (1 / 8, 1)
    assert run(of_all, str(tmp_path / "c.nii")) == (1 / 8, 1)
    assert run(of_all, str(tmp_path / "c.nii")) == (1 / 8, 0)
    with pytest.raises(DestinationExists, match="there already"):
        run(windows(cases(image=scan)), str(tmp_path / "c.nii"))

    mask[7, 7, 7] = 1
    nib.save(nib.Nifti1Image(mask, np.eye(4)), path)
    for chain, name in ((of_case, "b.nii"), (of_all, "c.nii")):
        with pytest.raises(DestinationExists, match="there already"):
            run(chain, str(tmp_path / name), key="image")


@pytest.mark.parametrize("way", ["volume", "loader"])
def test_another_data_set_of_a_file(tmp_path, way):
    """What a volume is opened with tells it from another of the same file."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"], file["b"] = ONES, 2 * ONES
    place = str(tmp_path / "out.nii")

    def source(name):
        volume = vp.Volume(str(tmp_path / "x.h5"), dataset=name)
        if way == "volume":
            return volume
        chain = vp.from_cases([{"image": volume, "case": "a"}]).open_volume()
        return vp.DataLoader2(windows(chain).batch_patches(8))

    own = {"patch": 4, "overlap": 0} if way == "volume" else {}
    assert run(source("a"), place, **own) == (1, 8)
    with pytest.raises(DestinationExists, match="there already"):
        run(source("b"), place, **own)
    assert run(source("a"), place, **own) == (1, 0)


def test_another_volume_of_the_case(tmp_path):
    """*key* says which volume the model gets."""
    for name, values in (("one", ONES), ("two", 2 * ONES)):
        nib.save(nib.Nifti1Image(values, np.eye(4)), tmp_path / f"{name}.nii")
    chain = windows(cases(one=str(tmp_path / "one.nii"), two=str(tmp_path / "two.nii")))
    assert run(chain, str(tmp_path / "a.nii"), key="one") == (1, 8)
    with pytest.raises(DestinationExists, match="there already"):
        run(chain, str(tmp_path / "a.nii"), key="two")


def test_a_scan_behind_a_url_has_a_version(tmp_path):
    """An object that was written again is another scan."""
    url = f"memory://{tmp_path.name}/u.nii"
    for value, windows_run in ((1, 8), (1, 0), (9, 8)):
        if windows_run:
            image = nib.Nifti1Image(np.full((8, 8, 8), value, np.float32), np.eye(4))
            with fsspec.open(url, "wb") as file:
                file.write(image.to_bytes())
        elif value == 1:
            assert run(url, tmp_path / "u.nii", patch=4, overlap=0) == (1, 0)
            continue
        options = {"patch": 4, "overlap": 0, "overwrite": value == 9}
        assert run(url, tmp_path / "u.nii", **options) == (value, windows_run)


def test_a_second_file_of_an_image(tmp_path):
    """The channels of an image lie in files of their own: a change of any one counts."""
    paths = [str(tmp_path / f"t{number}.nii") for number in (1, 2)]
    for path in paths:
        nib.save(nib.Nifti1Image(ONES, np.eye(4)), path)
    place = str(tmp_path / "out.nii")
    assert run(windows(cases(image=paths)), place) == (1, 8)
    assert run(windows(cases(image=paths)), place) == (1, 0)
    nib.save(nib.Nifti1Image(5 * ONES, np.eye(4)), paths[1])

    with pytest.raises(DestinationExists, match="there already"):
        run(windows(cases(image=paths)), place)
    assert run(windows(cases(image=paths)), place, overwrite=True) == (3, 8)


def test_header_codes_of_the_first_file(tmp_path):
    """The result of an image of several files has the codes of the first of them."""
    paths = [str(tmp_path / f"t{number}.nii") for number in (1, 2)]
    for path in paths:
        image = nib.Nifti1Image(ONES, np.eye(4))
        image.set_sform(np.eye(4), 4)
        nib.save(image, path)
    vp.predict(Counting(), cases(image=paths), str(tmp_path / "out.nii"), patch=8)

    assert int(nib.load(tmp_path / "out.nii").header["sform_code"]) == 4


def test_functions_are_known_by_the_word_of_the_run(scan, tmp_path):
    """Two lambdas have one name: nothing of the one is taken for the other's."""
    place = str(tmp_path / "out.nii")
    how = {"patch": 8, "output": "logits"}
    vp.predict(lambda batch: batch, scan, place, **how)
    with pytest.raises(DestinationExists, match="there already"):
        vp.predict(lambda batch: 2 * batch, scan, place, **how)
    vp.predict(lambda batch: 2 * batch, scan, place, run="twice", overwrite=True, **how)
    again = vp.predict(lambda batch: 3 * batch, scan, place, run="twice", **how)
    assert (again.numpy() == 2).all()  # as the word says

    of_lambda = windows(cases(image=scan).map(lambda sample: sample))
    run(of_lambda, str(tmp_path / "map.nii"))
    with pytest.raises(DestinationExists, match="there already"):
        run(of_lambda, str(tmp_path / "map.nii"))


def test_another_chain_of_stitch(scan, tmp_path):
    """A word says that the model is the same, not that the chain is."""
    place = str(tmp_path / "out.nii")

    def stitched(chain, run="one"):
        pipe = windows(chain).batch_patches(8).stitch("image", place, output="logits", run=run)
        volumes = [volume for one in pipe for volume in one.values()]
        return float(volumes[0].numpy().mean())

    assert stitched(cases(image=scan)) == stitched(cases(image=scan)) == 1
    with pytest.raises(DestinationExists, match="there already"):
        stitched(cases(image=scan).brightness(add=1.0))


class Wrapping(torch.nn.Module):
    """Calls a function on windows."""

    def __init__(self, function, *more):
        super().__init__()
        self.function, self.more = function, more

    def forward(self, batch):
        for function in (self.function, *self.more):
            batch = function(batch)
        return batch


def with_buffer(value):
    model = torch.nn.Identity()
    model.register_buffer("scale", torch.tensor([value]), persistent=False)
    return model


def times(factor):
    return lambda batch: batch * factor


def with_hook(factor):
    model = torch.nn.Identity()
    model._forward_hooks[0] = lambda module, inputs, output: output * factor
    return model


def scaled(batch, factor):
    return batch * factor


def of_class(body):
    """Return a module of a class of this name, whose code is given."""
    names = {"torch": torch, "FACTOR": 2}
    exec(body, names)
    return names["Model"]()


CODE = "class Model(torch.nn.Module):\n    def forward(self, batch):\n        return batch"


PAIRS = {
    "activation": (torch.nn.ReLU, torch.nn.Sigmoid),
    "structure": (lambda: torch.nn.Sequential(torch.nn.ReLU()), torch.nn.Sequential),
    "kernel": (lambda: torch.nn.AvgPool3d(3, 1, 1), lambda: torch.nn.AvgPool3d(5, 1, 2)),
    "dropout": (lambda: torch.nn.Dropout(0.1), lambda: torch.nn.Dropout(0.2)),
    "buffer": (lambda: with_buffer(1.0), lambda: with_buffer(2.0)),
    "hook": (lambda: with_hook(1), lambda: with_hook(2)),
    "closure": (lambda: Wrapping(times(1)), lambda: Wrapping(times(2))),
    "partial": (
        lambda: Wrapping(partial(scaled, factor=1)),
        lambda: Wrapping(partial(scaled, factor=2)),
    ),
    "built-in": (lambda: Wrapping(torch.relu), lambda: Wrapping(torch.sigmoid)),
    "list": (lambda: Wrapping(torch.abs), lambda: Wrapping(torch.abs, torch.nn.Tanh())),
    "code": (lambda: of_class(f"{CODE} * 2"), lambda: of_class(f"{CODE} * 3")),
    "global": (
        lambda: of_class(f"{CODE} * FACTOR"),
        lambda: of_class(f"FACTOR = 3\n{CODE} * FACTOR"),
    ),
    "method": (
        lambda: Wrapping(torch.nn.ReLU().forward),
        lambda: Wrapping(torch.nn.Tanh().forward),
    ),
}


@pytest.mark.parametrize(("one", "other"), PAIRS.values(), ids=PAIRS)
def test_another_model_of_equal_weights(scan, tmp_path, one, other):
    """A result is found again by structure, code, attributes and buffers, not by weights alone."""
    how = {"patch": 8, "output": "logits"}
    place = str(tmp_path / "out.nii")
    first = vp.predict(one(), scan, place, **how).numpy().copy()
    before = (tmp_path / "out.nii").stat().st_ino
    again = vp.predict(one(), scan, place, **how)  # proven to be the same, it is not made anew

    assert (again.numpy() == first).all()
    assert (tmp_path / "out.nii").stat().st_ino == before
    with pytest.raises(DestinationExists, match="there already"):
        vp.predict(other(), scan, place, **how)
    vp.predict(one(), scan, place, run="a", overwrite=True, **how)
    vp.predict(one(), scan, place, run="a", **how)


@pytest.mark.parametrize(
    "body",
    [
        f"import os\n{CODE} * float(os.environ.get('FACTOR', 2))",
        f"{CODE} * eval('2')",
        f"from os import environ as e\n{CODE} * float(e.get('FACTOR', 2))",
        f"import os\n{CODE} * len(os.listdir('/'))",
        f"import pathlib\n{CODE} * len(pathlib.Path('/proc/self/comm').read_text())",
        f"import torch\n{CODE} * torch.rand(())",
        f"from os import getenv as g\n{CODE} * float(g('FACTOR', 2))",
        f"from os import listdir as l\n{CODE} * len(l('/'))",
        f"from numpy import load\n{CODE} if batch is not None else load('a.npy')",
        f"import h5py\n{CODE} if batch is not None else h5py.File('a.h5')['a'][0]",
        f"{CODE}\n    def __getstate__(self):\n        return {{}}",
    ],
)
def test_a_model_with_opaque_parts(scan, tmp_path, body):
    """Code that reads other facts than its objects, or hides its state, proves nothing."""
    place = str(tmp_path / "out.nii")
    vp.predict(of_class(body), scan, place, patch=8, output="logits")
    with pytest.raises(DestinationExists, match="there already"):
        vp.predict(of_class(body), scan, place, patch=8, output="logits")
    how = {"run": "b", "output": "logits", "patch": 8}
    vp.predict(of_class(body), scan, place, overwrite=True, **how)
    assert vp.predict(of_class(body), scan, place, **how).shape == (1, 8, 8, 8)


def doubled(sample):
    return sample


def test_a_function_of_the_chain_that_changed(scan, tmp_path, monkeypatch):
    """A function of the same name with other code is another chain."""
    place = str(tmp_path / "out.nii")
    assert run(windows(cases(image=scan)).map(doubled), place) == (1, 8)
    assert run(windows(cases(image=scan)).map(doubled), place) == (1, 0)
    other = types.FunctionType((lambda sample: dict(sample)).__code__, globals(), "doubled")
    other.__qualname__ = "doubled"
    monkeypatch.setitem(globals(), "doubled", other)
    with pytest.raises(DestinationExists, match="there already"):
        run(windows(cases(image=scan)).map(doubled), place)


@pytest.mark.parametrize("way", ["in place", "another file"])
def test_a_scan_of_the_same_size_and_time(scan, tmp_path, way):
    """Neither size nor time of writing tells that it was written again: the file system does."""
    place = str(tmp_path / "out.nii")
    assert run(scan, place, patch=4, overlap=0) == (1, 8)
    status = os.stat(scan)
    new = scan if way == "in place" else str(tmp_path / "new.nii")
    nib.save(nib.Nifti1Image(5 * ONES, np.eye(4)), new)
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(new, scan)
    with pytest.raises(DestinationExists, match="there already"):
        run(scan, place, patch=4, overlap=0)
    close_volumes()
    assert run(scan, place, patch=4, overlap=0, overwrite=True) == (5, 8)


def test_voxels_in_a_file_that_a_header_names(tmp_path):
    """The header stays as it is, and the file of the voxels is another."""
    place = str(tmp_path / "out.nii")
    image = SimpleITK.GetImageFromArray(ONES)
    SimpleITK.WriteImage(image, str(tmp_path / "s.mhd"))
    how = {"patch": 4, "overlap": 0}
    assert run(str(tmp_path / "s.mhd"), place, **how) == (1, 8)
    assert run(str(tmp_path / "s.mhd"), place, **how) == (1, 0)
    (tmp_path / "s.raw").write_bytes((3 * ONES).tobytes())
    with pytest.raises(DestinationExists, match="there already"):
        run(str(tmp_path / "s.mhd"), place, **how)


@pytest.mark.parametrize("name", ["out.nii", "out.nii.gz", "out.nii.zarr"])
@pytest.mark.parametrize("is_same", [True, False])
def test_another_process_that_was_faster(scan, tmp_path, monkeypatch, name, is_same):
    """After waiting for its lock the result of the same run is found, that of another refused."""
    place, how = str(tmp_path / name), {"patch": 4, "overlap": 0}
    real, waited = outputs.hold, []

    def hold(target, where):
        if not waited:
            waited.append(where)
            run(scan, place, output="logits" if is_same else "sigmoid", **how)
        return real(target, where)

    def run(scan, place, output="logits", **options):
        return float(vp.predict(Counting(), scan, place, output=output, **options).numpy().mean())

    monkeypatch.setattr(outputs, "hold", hold)
    if is_same:
        assert run(scan, place, **how) == 1
    else:
        with pytest.raises(DestinationExists, match="there already"):
            run(scan, place, **how)
    assert waited
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def has_few(batch):
    return batch["meta"][0]["identity"][-1] != 3


def test_windows_that_did_not_come(scan, tmp_path):
    """A filter that drops windows leaves no finished file with zeros in it."""
    chain = windows(cases(image=scan)).batch_patches(1).filter(has_few)
    with pytest.raises(SampleError, match="1 windows of a did not come"):
        run(chain, str(tmp_path / "out.nii"))
    assert not (tmp_path / "out.nii").exists()


VALUES = {"patch": 999, "overlap": 77, "mask": "nonsense", "batch_size": 3, "num_workers": 1}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (source, name)
        for source, count in zip(("windows", "batches", "loader"), (3, 4, 5), strict=True)
        for name in list(VALUES)[:count]
    ],
)
def test_arguments_that_cannot_act(scan, source, name):
    """What the chain or the loader says already is refused, with where it belongs."""
    chain = windows(cases(image=scan))
    made = chain if source == "windows" else chain.batch_patches(2)
    made = vp.DataLoader2(made) if source == "loader" else made
    with pytest.raises(GraphError, match=f"{name}= cannot act on a "):
        vp.predict(Counting(), made, **{name: VALUES[name]})


def test_numbers_of_batches_and_workers(scan):
    """Less than one window, or fewer than no process."""
    with pytest.raises(ValueError, match="batch_size is a whole number of at least 1"):
        vp.predict(Counting(), scan, batch_size=-3)
    with pytest.raises(ValueError, match="num_workers is a whole number of at least 0"):
        vp.predict(Counting(), scan, patch=8, num_workers=-5)
