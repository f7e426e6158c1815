"""A result, or half of one, counts for the run that made it: the same model, chain and voxels."""

import os

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


class WindowCount(torch.overrides.TorchFunctionMode):
    """Counts the windows that ReLU gets inside the ``with`` block."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.relu:
            self.count += len(args[0])
        return function(*args, **(kwargs or {}))


@pytest.fixture
def scan(tmp_path):
    path = str(tmp_path / "scan.nii")
    nib.save(nib.Nifti1Image(ONES, np.eye(4)), path)
    return path


def cases(**files):
    return vp.from_cases([{**files, "case": "a"}]).open_volume()


def windows(chain, **options):
    return chain.lazy_patch(4, sampling="grid", **options)


def run(chain, place, name="a", **options):
    """Return the mean of the result, and how many windows were run for it."""
    with WindowCount() as windows:
        volume = vp.predict(torch.nn.ReLU(), chain, place, output="logits", run=name, **options)
    volume = volume["a"] if isinstance(volume, dict) else volume
    return float(volume.numpy().mean()), windows.count


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
    vp.predict(torch.nn.ReLU(), cases(image=paths), str(tmp_path / "out.nii"), patch=8)

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

    with pytest.raises(DestinationExists, match="run= names the model"):
        run(scan, place, name=None, patch=8)


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


def with_buffer(value, *, persistent=False):
    model = torch.nn.ReLU()
    model.register_buffer("scale", torch.as_tensor(value), persistent=persistent)
    return model


NAMED = {
    "class": (torch.nn.ReLU, torch.nn.Sigmoid),
    "buffer": (lambda: with_buffer(1.0), lambda: with_buffer(2.0)),
    "stored buffer": (
        lambda: with_buffer(1.0, persistent=True),
        lambda: with_buffer(2.0, persistent=True),
    ),
    "sparse": (
        lambda: with_buffer(torch.eye(2).to_sparse().coalesce()),
        lambda: with_buffer(2 * torch.eye(2).to_sparse().coalesce()),
    ),
    "child": (torch.nn.Sequential, lambda: torch.nn.Sequential(torch.nn.ReLU())),
}


@pytest.mark.parametrize(("one", "other"), NAMED.values(), ids=NAMED)
def test_a_name_with_another_structure(scan, tmp_path, one, other):
    """Beside the name count the classes of all modules, and all tensors of these."""
    how = {"patch": 8, "output": "logits", "run": "a"}
    place = str(tmp_path / "out.nii")
    vp.predict(one(), scan, place, **how)
    vp.predict(one(), scan, place, **how)
    with pytest.raises(DestinationExists, match="there already"):
        vp.predict(other(), scan, place, **how)


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
        result = vp.predict(torch.nn.ReLU(), scan, place, output=output, run="a", **options)
        return float(result.numpy().mean())

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
        vp.predict(torch.nn.ReLU(), made, **{name: VALUES[name]})


def test_numbers_of_batches_and_workers(scan):
    """Less than one window, or fewer than no process."""
    with pytest.raises(ValueError, match="batch_size is a whole number of at least 1"):
        vp.predict(torch.nn.ReLU(), scan, batch_size=-3)
    with pytest.raises(ValueError, match="num_workers is a whole number of at least 0"):
        vp.predict(torch.nn.ReLU(), scan, patch=8, num_workers=-5)
