"""Listings belong to one pass: nothing is remembered longer, and a bucket is listed once."""

import glob
import itertools
import json
import sys

import fsspec
import nibabel as nib
import numpy as np
import pytest
import zarr
from s3_server import Fault
from sampled import sampled

import voxpipe as vp
from voxpipe.core.errors import StateMismatch, VolumeNotFound, VoxpipeError
from voxpipe.storage.remote import Globs
from voxpipe.volumes.catalog import find

WAYS = ("GET", "HEAD")


def write(folder, name="ct.nii"):
    """Write a small NIfTI file with nibabel."""
    folder.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(np.zeros((2, 2, 2), np.int16), np.eye(4)), folder / name)


def cases(url, server=None, **patterns):
    """Return the names of the cases that a new pipe lists."""
    options = server.storage_options if server else None
    pipe = vp.list_cases(url, storage_options=options, **(patterns or {"image": "ct.nii"}))
    return [sample.case for sample in pipe]


@pytest.mark.slow
def test_each_pass_over_a_bucket_sees_what_is_there_now(server, client):
    """New cases, those that convert wrote, and those that were deleted."""
    options, bucket = server.storage_options, server.bucket
    write(bucket / "out" / "a")
    assert cases("s3://bucket/out/*/", server) == ["a"]
    write(bucket / "out" / "b")
    assert cases("s3://bucket/out/*/", server) == ["a", "b"]
    source = str(bucket / "out" / "a" / "ct.nii")
    vp.convert(source, "s3://bucket/out/c/ct.nii.zarr", storage_options=options)
    found = cases("s3://bucket/out/*/", server, image="ct.nii*")
    (bucket / "out" / "a" / "ct.nii").unlink()

    assert found == ["a", "b", "c"]
    assert cases("s3://bucket/out/*/", server) == ["b"]
    assert vp.check("s3://bucket/out/", storage_options=options).volumes == 2


def lists(server):
    """Return how many requests for listings there were since the last call."""
    count = sum(request.key == "bucket" for request in server.requests)
    server.forget()
    return count


def names(loader):
    """Return the names of the cases of an epoch, of batches of one or of samples."""
    metas = [item["meta"][0] if "meta" in item else {"case": item.case} for item in loader]
    return sorted(meta["case"] for meta in metas)


def test_each_pass_of_one_pipe_lists_once(server, client):
    """New cases come, deleted ones go, and a pass that began keeps its own."""
    pipe = vp.list_cases(
        "s3://bucket/out/*/", image="ct.nii", storage_options=server.storage_options
    )
    for case in ("a", "b"):
        write(server.bucket / "out" / case)
    assert (len(list(pipe)), lists(server)) == (2, 1)
    write(server.bucket / "out" / "c")
    assert (len(list(pipe)), len(pipe), lists(server)) == (3, 3, 1)
    (server.bucket / "out" / "a" / "ct.nii").unlink()
    running = iter(pipe)
    first = next(running).case
    write(server.bucket / "out" / "d")

    assert [first, *(sample.case for sample in running)] == ["b", "c"]
    assert lists(server) == 1
    assert [sample.case for sample in pipe] == ["b", "c", "d"]


SERVICES = {
    "here": lambda: None,
    "threads": lambda: vp.ThreadReadingService(2),
    "workers": lambda: vp.MultiProcessingReadingService(2),
    "staying": lambda: vp.MultiProcessingReadingService(2, "fork", persistent_workers=True),
}


@pytest.mark.parametrize("is_split", [True, False], ids=["split", "replicated"])
@pytest.mark.parametrize(
    "service",
    [pytest.param(name, marks=pytest.mark.slow if "w" in name else ()) for name in SERVICES],
)
def test_each_epoch_of_a_loader_lists_once_for_all_workers(server, service, is_split):
    """One request in each, in the process of the loader; len() and states are of that list."""
    for case in "abc":
        write(server.bucket / "out" / case)
    pipe = vp.list_cases(
        "s3://bucket/out/*/", image="ct.nii", storage_options=server.storage_options
    )
    chain = pipe.shuffle().sharding_filter().open_volume().lazy_patch(2)
    chain = chain.batch_patches(1) if is_split else chain.realize().shuffle()
    with vp.DataLoader2(chain, None, SERVICES[service](), seed=1) as loader:
        assert (names(loader), lists(server)) == (["a", "b", "c"], 1)
        write(server.bucket / "out" / "d")
        (server.bucket / "out" / "a" / "ct.nii").unlink()
        assert (names(loader), lists(server)) == (["b", "c", "d"], 1)
        assert not is_split or len(loader) == 3
        state = loader.state_dict()
        assert (len(list(pipe)), lists(server)) == (3, 1)
        write(server.bucket / "out" / "e")
        with pytest.raises(StateMismatch, match=r"there were 3 cases, and are 4; .*case=e"):
            loader.load_state_dict(state)
        assert loader.state_dict() == state
        (server.bucket / "out" / "e" / "ct.nii").unlink()
        loader.load_state_dict(state)
        assert len(names(loader)) == 3


def test_an_epoch_goes_on_with_the_cases_that_it_began_with(tmp_path):
    """Also where a state is loaded in its midst; the next epoch lists anew."""
    for case in "abc":
        write(tmp_path / case)
    pipe = vp.list_cases(f"{tmp_path}/*/", image="ct.nii")
    chain = pipe.open_volume().lazy_patch(2).batch_patches(1)
    loader, other = vp.DataLoader2(chain, seed=1), vp.DataLoader2(chain, seed=1)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    other.load_state_dict(state)
    write(tmp_path / "d")

    assert len(list(pipe)) == 4
    assert loader.state_dict() == state
    assert len(loader) == 3
    assert names(batches) == names(other) == ["b", "c"]
    assert names(loader) == names(other) == ["a", "b", "c", "d"]
    with pytest.raises(StateMismatch, match="there were 3 cases, and are 4"):
        other.load_state_dict(state)


def bids(folder, names):
    """Write a BIDS dataset of subjects."""
    for name in names:
        write(folder / f"sub-{name}" / "anat", f"sub-{name}_T1w.nii")
    return vp.from_bids(folder)


def nnunet(folder, names):
    """Write a raw dataset of nnU-Net."""
    for name in names:
        write(folder / "imagesTr", f"{name}_0000.nii")
        write(folder / "labelsTr", f"{name}.nii")
    (folder / "dataset.json").write_text('{"file_ending": ".nii", "channel_names": {"0": "CT"}}')
    return vp.from_nnunet(folder)


def table(folder, names):
    """Write a table of cases."""
    for name in names:
        write(folder, f"{name}.nii")
    (folder / "cases.csv").write_text("\n".join(["image", *(f"{name}.nii" for name in names)]))
    return vp.from_table(folder / "cases.csv")


def decathlon(folder, names):
    """Write a list of Decathlon's."""
    for name in names:
        write(folder, f"{name}.nii")
    cases = [{"image": f"{name}.nii"} for name in names]
    (folder / "dataset.json").write_text(json.dumps({"training": cases}))
    return vp.from_decathlon(folder)


@pytest.mark.parametrize("layout", [bids, nnunet, table, decathlon])
def test_each_pass_over_a_layout_finds_its_cases_anew(tmp_path, layout):
    """Pipes and loaders; a list of cases that was given stays as it is."""
    pipe = layout(tmp_path, ["1", "2"])
    given = vp.from_cases([dict(sample) for sample in pipe])
    loader = vp.DataLoader2(pipe.open_volume().lazy_patch(2).batch_patches(1), seed=1)
    assert len(names(loader)) == 2
    layout(tmp_path, ["1", "2", "3"])

    assert len(list(pipe)) == len(pipe) == len(names(loader)) == 3
    assert "3 cases" in pipe.describe()
    assert len(list(given)) == 2


def test_each_pass_over_other_file_systems_sees_what_is_there_now():
    """In memory, and behind file systems that keep listings."""
    memory = fsspec.filesystem("memory")
    memory.pipe("/anew/a/ct.nii", b"")
    assert cases("memory://anew/*/") == ["a"]
    memory.pipe("/anew/b/ct.nii", b"")
    assert cases("memory://anew/*/") == ["a", "b"]
    memory.rm("/anew", recursive=True)

    with pytest.raises(VolumeNotFound):
        cases("memory://anew/*/")


def test_a_bucket_of_many_cases_is_listed_by_pages(server, client):
    """As many requests for 30 cases of two volumes as for one, also for check."""
    for number in range(30):
        for name in ("ct.nii", "seg.nii"):
            write(server.bucket / "train" / f"p{number}", name)
    for url in ("s3://bucket/train/*/", "s3://bucket/*/*/"):
        server.forget()
        assert len(cases(url, server, image="ct.nii", label="seg.nii")) == 30
        assert len(server.requests) == 1


@pytest.mark.slow
def test_what_lies_deep_below_is_not_listed_for_few_cases(server, monkeypatch):
    """Folders are listed one by one where objects are many and matches few."""
    monkeypatch.setattr("voxpipe.storage.remote._FEW_OBJECTS", 1000)
    for case in ("a", "b"):
        chunks = server.bucket / "train" / case / "ct.zarr" / "c"
        chunks.mkdir(parents=True)
        (chunks.parent / "zarr.json").write_text("{}")
        for number in range(2500):
            (chunks / str(number)).touch()

    assert cases("s3://bucket/train/*/", server, image="ct.zarr") == ["a", "b"]
    assert len(server.requests) <= 2 + 1 + 2  # pages; the folder; each case


def test_a_listing_that_fails_is_no_shorter_listing(server, client, monkeypatch):
    """A store that answers 500 is reported, and no case is left out."""
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "0.3")
    write(server.bucket / "train" / "a")
    server.fail(Fault("error"))

    with pytest.raises(vp.errors.StoreUnavailable):
        cases("s3://bucket/train/*/", server)


@pytest.mark.skipif(fsspec.__version__ < "2026", reason="s3fs takes such a folder for a pattern")
@pytest.mark.parametrize("folder", ["pro[2024]x", "a?b"])
def test_a_folder_that_exists_as_it_is_written_is_meant(tmp_path, server, folder):
    """On disks and in buckets, for cases, checks and manifests; a real class still works."""
    for root in (tmp_path / folder, server.bucket / folder):
        for case in ("p1", "p2"):
            write(root / case)
    options = server.storage_options
    for place, chosen in ((tmp_path, None), ("s3://bucket", server)):
        assert cases(f"{place}/{folder}/*/", chosen) == ["p1", "p2"]
        assert cases(f"{place}/{folder}/p[12]/", chosen) == ["p1", "p2"]
        assert len(cases(f"{place}/{folder}/p1/", chosen)) == 1
        escaped = f"{place}/{glob.escape(folder)}"
        assert cases(f"{escaped}/*/", chosen) == ["p1", "p2"]
        assert len(cases(None, chosen, image=f"{place}/{folder}/*/ct.nii")) == 2
        used = options if chosen else None
        for where in (f"{place}/{folder}", f"{place}/{folder}/*/"):
            assert vp.check(where, storage_options=used).volumes == 2
    pipe = vp.list_cases(f"{tmp_path}/{folder}/*/", image="ct.nii")
    vp.index(pipe, tmp_path / "manifest.json")

    assert len(json.loads((tmp_path / "manifest.json").read_text())["cases"]) == 2


def test_brackets_that_match_nothing_are_explained(tmp_path):
    """The error shows how a bracket is written."""
    with pytest.raises(VoxpipeError, match=r"glob\.escape"):
        cases(f"{tmp_path}/scans [2021]/*/")


@pytest.mark.parametrize("kind", ["error", "slow_down"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_an_object_that_fails_costs_one_deadline(server, client, method, kind, monkeypatch):
    """It is tried once from then on, while others are read; it is read again once it answers."""
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "0.3")
    monkeypatch.setattr("voxpipe.storage.retry.OUTAGE_PAUSE", 0.0)
    options = server.storage_options
    for name in ("bad", "good"):
        write(server.bucket, f"{name}.nii")

    def read(name):
        return vp.Volume(f"s3://bucket/{name}.nii", storage_options=options).data.numpy()

    read("good")
    server.fail(Fault(kind, key="bad", method=method))
    counts = []
    for _ in range(3):
        server.forget()
        with pytest.raises(vp.errors.StoreUnavailable):
            read("bad")
        counts.append(sum(method in str(one) for one in server.requests))
        assert not read("good").any()
    server.fail()

    assert counts[0] > 1
    assert counts[1:] == [1, 1]
    assert not read("bad").any()


@pytest.mark.parametrize(
    ("kind", "method"),
    [("deny", "GET"), *itertools.product(("missing", "error", "slow_down", "hang", "close"), WAYS)],
)
def test_an_epoch_on_a_dead_store_asks_for_few_objects(server, client, kind, method, monkeypatch):
    """Its planning and the first batches stop at the first volume, not at each patch and key."""
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "0.3")
    for case in "abcdef":
        write(server.bucket / "out" / case)
        write(server.bucket / "out" / case, "seg.nii")
    keys = {"image": "ct.nii", "label": "seg.nii"}
    pipe = vp.list_cases("s3://bucket/out/*/", storage_options=server.storage_options, **keys)
    chain = pipe.open_volume().lazy_patch(2, samples_per_volume=6).shuffle().batch_patches(9)
    server.fail(Fault(kind, key="nii", method=method))
    loader = vp.DataLoader2(chain, seed=1)
    with loader, pytest.raises(VoxpipeError):
        next(iter(loader))
    requests = [request.key for request in server.requests if "nii" in request.key]

    assert len(set(requests)) <= 5
    assert len(requests) <= 48


def test_a_listing_that_fails_is_tried_once_for_all_pipes(server, client, monkeypatch):
    """For the length of the loader, of each of its pipes, and for the epoch."""
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "0.3")
    write(server.bucket / "out" / "a")
    pipe = vp.list_cases(
        "s3://bucket/out/*/", image="ct.nii", storage_options=server.storage_options
    )
    chain = pipe.shuffle().open_volume().lazy_patch(2).shuffle().batch_patches(1)
    server.fail(Fault("hang"))
    with vp.DataLoader2(chain, seed=1) as loader:
        for _ in range(2):
            with pytest.raises(vp.errors.StoreUnavailable):
                list(loader)

    assert lists(server) <= 4


def test_patterns_of_folders_are_listed_by_pages(server, monkeypatch):
    """Many folders need no request each, whether a slash, stars or a file end the pattern."""
    monkeypatch.setattr("voxpipe.storage.remote._FEW_OBJECTS", 1000)
    for case in range(260):
        folder = server.bucket / "train" / f"p{case}" / "anat"
        folder.mkdir(parents=True)
        for number in range(4):
            (folder / f"{number}.nii").touch()
    counts = {}
    for pattern in ("*/*/", "*/anat/1.nii", "**/", "*/**", "*/**/1.nii"):
        _, _, names = Globs(server.storage_options).match(f"s3://bucket/train/{pattern}")
        counts[pattern] = len(names), lists(server)

    assert counts == {
        "*/*/": (260, 4),
        "*/anat/1.nii": (260, 4),
        "**/": (520, 2),
        "*/**": (1560, 2),
        "*/**/1.nii": (260, 2),
    }


def lines_of_find(call):
    """Return how many lines of the search for volumes a call runs."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename == find.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    "name",
    sampled(
        [
            *("p{}/ct.zarr/zarr.json", "p{}/ct.zarr/c/0", "p{}/anat/ct.nii", "all/{}.nii"),
            *("odd/{}x{}.nii", "site{}/images/a.nii", "imagesTr/{}_0000.nii"),
        ]
    ),
)
@pytest.mark.parametrize("pattern", ["", "/*", "/**/*.[nz]*"])
def test_a_search_takes_as_long_as_there_are_names(name, pattern):
    """Twice as many objects cost twice as many steps, of volumes, cases and folders."""
    memory = fsspec.filesystem("memory")
    counts = []
    for count in (60, 120):
        for number in range(count):
            memory.pipe(f"/found/{name.format(number, 'abcdefg'[number % 7] * number)}", b"")
            memory.pipe(f"/found/b{number}.zarr/zarr.json", b"")
        place = f"memory://found{pattern}"
        counts.append(lines_of_find(lambda place=place: find.find_volumes(place)))
    memory.rm("/found", recursive=True)

    assert counts[1] < 2.2 * counts[0]


def put_at(path, value, length):
    """Write a volume of one value by the library of its format."""
    voxels = np.full((length, 4, 4), value, np.float32)
    if path.suffix == ".npy":
        np.save(path, voxels)
    elif path.suffix == ".gz":
        nib.save(nib.Nifti1Image(voxels, np.eye(4)), path)
    else:
        zarr.create_array(path, data=voxels, chunks=(2, 2, 2), overwrite=True)


WAYS_TO_READ = {
    "volume": lambda url, options, _: vp.Volume(url, storage_options=options).numpy()[0],
    "chain": lambda url, options, _: next(
        iter(vp.from_cases([{"image": url}]).open_volume(storage_options=options).batch_patches(1))
    )["image"][0, 0].numpy(),
    "convert": lambda url, options, place: (
        vp.convert(url, place, storage_options=options),
        vp.Volume(place).numpy()[0],
    )[1],
}


@pytest.mark.parametrize("way", WAYS_TO_READ)
@pytest.mark.parametrize("name", ["a.npy", "a.nii.gz", "a.zarr"])
def test_a_new_volume_reads_what_a_bucket_holds_now(server, client, tmp_path, name, way):
    """Voxels and shape of a rewritten object, in the process that read the one before."""
    url, seen = f"s3://bucket/{name}", []
    for value, length in ((1, 4), (2, 4), (3, 6)):
        put_at(server.bucket / name, value, length)
        place = tmp_path / f"{value}.nii.zarr"
        voxels = WAYS_TO_READ[way](url, server.storage_options, place)
        seen.append((voxels.shape, set(voxels.ravel().tolist())))

    assert seen == [((4, 4, 4), {1.0}), ((4, 4, 4), {2.0}), ((6, 4, 4), {3.0})]
