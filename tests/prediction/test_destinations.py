"""When and how destinations are opened, and what is refused before the model runs."""

import contextlib
import fcntl
import multiprocessing
import os
import stat

import fsspec
import nibabel as nib
import numpy as np
import pytest
import torch
from disks import longest_file

import voxpipe as vp
from voxpipe.core.errors import (
    DestinationBusy,
    DestinationExists,
    DestinationFull,
    PatchSizeError,
    SampleError,
    VolumeChanged,
    VolumeError,
)
from voxpipe.stitching import outputs
from voxpipe.stitching.stitcher import CellMemory
from voxpipe.volumes.conversion.volume_file import copy_turned

ONES = np.ones((8, 8, 8), np.float32)


def save(path, values=ONES):
    nib.save(nib.Nifti1Image(values, np.eye(4)), path)
    return str(path)


def two(batch):
    return torch.cat([batch, batch], 1)


def never(batch):
    raise AssertionError("the model ran")


def masked(scan, mask, **files):
    mask = vp.Volume(mask, kind="label")
    chain = vp.from_cases([{"image": scan, "case": "a", **files}]).open_volume()
    return chain.lazy_patch(4, sampling="grid", mask=mask)


@pytest.mark.parametrize("output", ["argmax", "softmax"])
@pytest.mark.parametrize("name", ["a.nii.gz", "a.nii.zarr", None])
def test_an_empty_mask(tmp_path, name, output):
    """No window is run: zeros, with the channels that are said; the same in each run."""
    scan, mask = save(tmp_path / "scan.nii"), np.zeros((8, 8, 8), np.uint8)
    place = None if name is None else str(tmp_path / name)
    for _ in range(3):
        region = vp.Volume(mask, kind="label")
        found = vp.predict(
            never, scan, place, patch=4, mask=region, output=output, classes=2, overwrite=True
        )
        assert found.shape == (1 if output == "argmax" else 2, 8, 8, 8)
        assert not found.numpy().any()
        of_chain = vp.predict(
            never, masked(scan, mask), place, output=output, classes=2, overwrite=True
        )
        assert list(of_chain) == ["a"]


def test_channels_of_a_volume_without_windows(tmp_path):
    """The destination tells, or another case; where nobody does, the error names the case."""
    scan, mask = save(tmp_path / "scan.nii"), np.zeros((8, 8, 8), np.uint8)
    array = np.full((3, 8, 8, 8), 7.0)
    vp.predict(never, scan, array, patch=4, mask=vp.Volume(mask, kind="label"), output="softmax")
    assert not array.any()
    with pytest.raises(SampleError, match=r"no window of scan touches the mask(.|\n)*classes="):
        vp.predict(never, scan, patch=4, mask=vp.Volume(mask, kind="label"), output="softmax")
    mask[0, 0, 0] = 1
    pairs = [("none", np.zeros_like(mask)), ("one", mask)]
    cases = [{"image": ONES, "mask": region, "case": name} for name, region in pairs]
    chain = vp.from_cases(cases).open_volume().lazy_patch(4, sampling="grid", mask="mask")
    found = vp.predict(two, chain, output="softmax", key="image")
    assert {name: volume.shape[0] for name, volume in found.items()} == {"none": 2, "one": 2}
    with pytest.raises(PatchSizeError, match="classes=3, and the model gives 2 channels"):
        vp.predict(two, scan, patch=4, classes=3)


@pytest.mark.parametrize("output", ["softmax", "sigmoid", "logits"])
def test_what_a_mask_left_out_is_zero(tmp_path, output):
    """Not half, which is what a share of nothing would be."""
    mask = np.zeros((8, 8, 8), np.uint8)
    mask[0, 0, 0] = 1
    found = vp.predict(
        two, ONES, patch=4, overlap=0, mask=vp.Volume(mask, kind="label"), output=output
    ).numpy()
    inside = np.zeros(found.shape, bool)
    inside[:, :4, :4, :4] = True
    assert (found[inside] > 0).all()
    assert (found[~inside] == 0).all()


def test_a_destination_is_opened_when_its_windows_come(tmp_path):
    """Looking ahead opens nothing: with the first window only one case has its place."""
    scans = [save(tmp_path / f"s{n}.nii") for n in range(4)]
    cases = [{"image": scan, "case": f"s{n}"} for n, scan in enumerate(scans)]
    out = tmp_path / "out"
    seen = []

    def model(batch):
        seen.append(len(list(out.iterdir())))
        return batch

    chain = vp.from_cases(cases).open_volume().lazy_patch(4, sampling="grid")
    vp.predict(model, chain, str(out / "{case}.nii"), output="logits")

    assert seen[0] <= 2
    assert len(list(out.iterdir())) == 4


@pytest.mark.parametrize("spacing", [1.0, 2.0])
def test_a_function_is_asked_once_for_each_case(spacing):
    """For its place: an array that it makes anew each time is made once, and holds the result."""
    made = {"a": [], "b": []}

    def place_of(case):
        made[case].append(np.zeros((1, 8, 8, 8), np.float32))
        return made[case][-1]

    cases = [{"image": ONES * n, "case": case} for n, case in enumerate("ab", 1)]
    chain = vp.from_cases(cases).open_volume().spacing(spacing).lazy_patch(4, sampling="grid")
    vp.predict(lambda batch: batch, chain, place_of, output="logits")
    batches = chain.batch_patches(8).map(lambda image: image, "image", "same")
    list(batches.stitch("same", place_of, output="logits"))

    for n, arrays in enumerate(made.values(), 1):
        assert len(arrays) == 2  # one for predict(), one for stitch()
        assert all((array == n).all() for array in arrays)


@pytest.mark.parametrize("spacing", [1.0, 1.5])
def test_volumes_side_by_side_share_the_memory(monkeypatch, tmp_path, spacing):
    """Sums of four volumes that are open at once take no more than is allowed for all."""
    made = []

    class Watched(CellMemory):
        def __init__(self, limit):
            super().__init__(limit)
            made.append(self)

    monkeypatch.setattr("voxpipe.stitching.stitching.CellMemory", Watched)
    cases = [{"image": ONES * n, "case": f"{n}"} for n in range(4)]
    chain = vp.from_cases(cases).open_volume().spacing(spacing)
    chain = chain.lazy_patch(4, sampling="grid", overlap=2).shuffle()
    place, limit = str(tmp_path / "{case}.nii.zarr"), 1000
    volumes = vp.predict(lambda batch: batch, chain, place, output="logits", memory_bytes=limit)

    for n in range(4):
        assert np.allclose(volumes[f"{n}"].numpy(), n)
    (memory,) = made
    shard = ONES.nbytes  # the one in use is allowed
    assert 0 < memory.most_bytes <= max(limit, shard)


def test_an_error_at_opening_is_told_at_once(tmp_path):
    """Before a window is run."""
    place = save(tmp_path / "out.nii")
    with pytest.raises(DestinationExists, match="there already"):
        vp.predict(never, save(tmp_path / "scan.nii"), place, patch=4)


def test_a_case_named_by_its_folder_gets_a_file_of_that_name(tmp_path, monkeypatch):
    """No hidden file: ``glob("scans/*/")`` gives names that end with a slash."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scans").mkdir()
    chain = vp.from_cases([{"case": "scans/p1/", "image": ONES}]).open_volume()
    chain = chain.lazy_patch(8, sampling="grid")

    vp.predict(lambda batch: batch, chain, "out/{case}.nii.gz", output="logits")

    assert [file.name for file in (tmp_path / "out" / "scans").iterdir()] == ["p1.nii.gz"]


@pytest.mark.parametrize("other", ["./a", "b/../a"])
def test_two_cases_of_one_place(tmp_path, other):
    """Spelled in two ways it is one place; nobody waits for itself."""
    places = {"one": str(tmp_path / "a.nii"), "two": str(tmp_path / f"{other}.nii")}
    scan = save(tmp_path / "scan.nii")
    cases = [{"image": scan, "case": name} for name in places]
    chain = vp.from_cases(cases).open_volume().lazy_patch(4, sampling="grid").shuffle()
    with pytest.raises(DestinationExists, match="two cases would be"):
        vp.predict(two, chain, places.get)


@pytest.mark.parametrize("name", ["out.nii", "out.nii.zarr"])
def test_a_place_that_this_process_writes_at(tmp_path, name):
    """A prediction inside of another, to the same place, is refused at once."""
    scan, place = save(tmp_path / "scan.nii"), str(tmp_path / name)

    def model(batch):
        with pytest.raises(DestinationBusy, match="this process is writing"):
            vp.predict(never, scan, place, patch=4)
        return batch

    vp.predict(model, scan, place, patch=8, output="logits")
    vp.predict(two, scan, place, patch=8, overwrite=True)  # it was let go


def predict_second(scan, place, connection):
    """Predict in a process of its own, and send its waits for the lock and its error."""
    lock = fcntl.flock

    def send_refusal(*arguments):
        try:
            lock(*arguments)
        except BlockingIOError:
            connection.send("waits")
            raise

    fcntl.flock = send_refusal
    try:
        vp.predict(lambda batch: batch * 5, scan, place, patch=8, output="logits")
    except Exception as error:
        connection.send(str(error))


@pytest.mark.parametrize("name", ["out.nii", pytest.param("out.nii.zarr", marks=pytest.mark.slow)])
def test_two_writers_without_overwrite(tmp_path, name):
    """The second waits for the lock, and then finds what the first one wrote: it stays."""
    scan, place = save(tmp_path / "scan.nii"), tmp_path / name
    server = multiprocessing.get_context("forkserver")
    here, there = server.Pipe()
    second = server.Process(target=predict_second, args=(scan, place, there))

    def model(batch):
        second.start()
        # The lock refuses it: nothing is at the place yet.
        assert here.recv() == "waits"
        return batch

    vp.predict(model, scan, place, patch=8, output="logits")
    message = "waits"
    while message == "waits":
        assert here.poll(120)
        message = here.recv()
    second.join()
    here.close()
    there.close()

    assert "there already" in message
    assert (vp.Volume(place).numpy() == 1).all()


def test_the_source_is_no_destination(tmp_path):
    """A scan is not replaced by its labels, also under another name, or as one of two files."""
    scan, other = save(tmp_path / "scan.nii"), save(tmp_path / "other.nii")
    before = (tmp_path / "scan.nii").read_bytes()
    os.link(scan, tmp_path / "link.nii")
    chain = vp.from_cases([{"image": [other, scan], "case": "a"}]).open_volume()
    for source, place in (
        (scan, scan),
        (scan, str(tmp_path / "." / "scan.nii")),
        (scan, str(tmp_path / "link.nii")),
        (chain.lazy_patch(4, sampling="grid"), scan),
    ):
        with pytest.raises(DestinationExists, match="cannot be written over itself"):
            vp.predict(never, source, place, overwrite=True)
    assert (tmp_path / "scan.nii").read_bytes() == before


@pytest.mark.parametrize("name", ["a.nii.gz", "a.nii"])
def test_a_file_behind_a_url_is_refused_before_the_model_runs(tmp_path, name):
    """And nothing is left of the attempt."""
    url = f"memory://{tmp_path.name}/{name}"
    vp.save(url, ONES)
    with pytest.raises(DestinationExists, match="there already"):
        vp.predict(never, save(tmp_path / "scan.nii"), url, patch=8)
    assert not fsspec.filesystem("memory").exists(f"/{tmp_path.name}/.{name}.part.lock")


WRITERS = {
    "predict": lambda scan, place: vp.predict(never, scan, place, patch=8, overwrite=True),
    "save": lambda scan, place: vp.save(place, ONES, overwrite=True),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_folder_is_no_file(tmp_path, write):
    """A folder is never replaced by a file, nor a file by a zarr group."""
    (tmp_path / "a.nii").mkdir()
    (tmp_path / "a.nii" / "kept").write_text("")
    save(tmp_path / "b.nii")
    (tmp_path / "b.nii").rename(tmp_path / "b.zarr")
    scan = save(tmp_path / "scan.nii")
    for name, message in (("a.nii", "is a folder"), ("b.zarr", "is no zarr group")):
        place = tmp_path / name
        with pytest.raises(DestinationExists, match=message):
            write(scan, place)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["a.nii", "b.zarr", "scan.nii"]


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "a.nii.zarr"])
def test_a_file_that_may_not_be_that_long(tmp_path, name):
    """It is told by name, with what to do; with room the same command succeeds."""
    scan, place = save(tmp_path / "scan.nii"), tmp_path / name
    with longest_file(100):
        with pytest.raises(DestinationFull, match="is longer than may be written"):
            vp.predict(two, scan, place, patch=4)
        with pytest.raises(DestinationFull, match="is longer than may be written"):
            vp.save(tmp_path / f"b{name}", ONES)
    assert not place.exists()
    assert vp.predict(two, scan, place, patch=4).shape == (1, 8, 8, 8)


def test_a_scan_that_is_written_meanwhile(tmp_path):
    """Windows of two versions are no result."""
    scan = save(tmp_path / "scan.nii")

    def model(batch):
        save(tmp_path / "new.nii", 2 * ONES)
        os.replace(tmp_path / "new.nii", scan)
        return batch

    with pytest.raises(VolumeChanged, match="written again"):
        vp.predict(model, scan, tmp_path / "out.nii", patch=8, output="logits")
    assert not (tmp_path / "out.nii").exists()


def test_an_opening_that_fails_lets_go(tmp_path, monkeypatch):
    """Locks and temporary folders of it are gone: the next attempt does not wait."""
    from voxpipe.stitching import stitched_volume

    def fails(*_, **__):
        raise RuntimeError("out of luck")

    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    scan = save(tmp_path / "scan.nii")
    places = [str(tmp_path / "a.nii"), f"memory://{tmp_path.name}/a.nii"]
    with monkeypatch.context() as patch:
        patch.setattr(stitched_volume, "Stitcher", fails)
        for place in places:
            with pytest.raises(RuntimeError, match="out of luck"):
                vp.predict(never, scan, place, patch=8)
    assert not list(temporary.iterdir())
    for place in places:
        assert vp.predict(two, scan, place, patch=8).shape == (1, 8, 8, 8)


class Interrupted(torch.nn.Module):
    """Ends in one of its windows, as many times as it is told to."""

    def __init__(self, last):
        super().__init__()
        self.count, self.last = 0, last

    def forward(self, batch):
        self.count += 1
        if self.count == self.last:
            raise RuntimeError("interrupted")
        return batch


def attempt(scan, place, last=0):
    """Return how many windows were run; some cells go to a file, and each layer is noted."""
    model = Interrupted(last)
    with contextlib.suppress(RuntimeError):
        vp.predict(model, scan, place, patch=4, memory_bytes=1000, output="logits", run="one")
    return model.count


def test_a_machine_that_does_not_say_when_it_was_started(tmp_path, monkeypatch):
    """Nobody knows there what has reached the disk before it went down: the run begins anew."""
    scan = save(tmp_path / "scan.nii")
    attempt(scan, tmp_path / "a.nii", 20)
    assert attempt(scan, tmp_path / "a.nii") < 27
    monkeypatch.setattr("voxpipe.stitching.stitched_volume.boot", lambda: "")
    attempt(scan, tmp_path / "b.nii", 20)
    assert attempt(scan, tmp_path / "b.nii") == 27


@pytest.mark.parametrize("name", ["voxels", "sums", ""])
def test_no_link_is_written_through(tmp_path, name):
    """What somebody put beside the destination leads nowhere, and a folder is nobody else's."""
    scan, victim = save(tmp_path / "scan.nii"), tmp_path / "victim"
    part = tmp_path / ".a.nii.part"
    if name:
        victim.write_bytes(b"precious")
        part.mkdir()
        (part / name).symlink_to(victim)
    else:
        victim.mkdir()
        part.symlink_to(victim)
    with pytest.raises(VolumeError, match=r"could not be predicted|is a link"):
        vp.predict(
            torch.nn.Identity(),
            scan,
            tmp_path / "a.nii",
            patch=4,
            memory_bytes=1000,
            output="logits",
            run="a",
        )
    if name:
        assert victim.read_bytes() == b"precious"
    else:
        assert not list(victim.iterdir())


def test_the_folder_beside_a_destination_is_private(tmp_path):
    """Its voxels are those of a patient; the file that comes of it has the usual mode."""
    scan = save(tmp_path / "scan.nii")
    modes = []

    def model(batch):
        modes.append(stat.S_IMODE((tmp_path / ".a.nii.part").stat().st_mode))
        return batch

    vp.predict(model, scan, tmp_path / "a.nii", patch=4, output="logits")
    assert set(modes) == {0o700}
    usual = (tmp_path / "scan.nii").stat().st_mode
    assert (tmp_path / "a.nii").stat().st_mode == usual


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_in_a_mapped_copy_stays_one(tmp_path, monkeypatch, kind):
    """The traceback holds a view of the map; the place is free for the next run."""
    calls = []

    def interrupted(voxels, target):
        calls.append(target)
        if len(calls) == 1:
            raise kind
        copy_turned(voxels, target)

    monkeypatch.setattr(outputs, "copy_natively", interrupted)
    scan = np.random.default_rng(0).normal(size=(8, 8, 8)).astype(np.float32)
    with pytest.raises(kind):
        vp.predict(torch.nn.Identity(), scan, tmp_path / "a.nii", patch=8, output="logits")

    result = vp.predict(torch.nn.Identity(), scan, tmp_path / "a.nii", patch=8, output="logits")
    assert (result.numpy()[0] == scan).all()
