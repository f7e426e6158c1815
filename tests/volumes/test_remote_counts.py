"""What reading from a bucket costs: which requests, how many, how many bytes."""

import json
import pickle

import nibabel
import numpy as np
import pytest
from s3_server import Fault

import voxpipe as vp
from voxpipe.core import Region
from voxpipe.storage import volume_cache
from voxpipe.storage.file_reader import LocalRanges
from voxpipe.storage.read_ahead import AHEAD
from voxpipe.storage.remote import open_remote
from voxpipe.volumes import Volume, close_volumes
from voxpipe.volumes.chunks.chunk_cache import CHUNKS

zarr = pytest.importorskip("zarr")
SHAPE = (24, 20, 16)
SECRETS = {"key": "AKIAVERYSECRET", "secret": "secret-secret-secret", "token": "token-token"}


def asked(server):
    """Return method and key of every request, in order of their names."""
    return sorted((line.method, line.key.partition("/")[2]) for line in server.requests)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (3, [("GET", "a.zarr/zarr.json")]),
        # zarr.json is asked for first: nothing else tells the formats apart.
        # .zattrs has the names of axes and a scale of netCDF.
        (2, [("GET", f"a.zarr/{name}") for name in (".zarray", ".zattrs", "zarr.json")]),
    ],
)
def test_what_opening_an_array_asks_for(server, client, version, expected):
    """The metadata and nothing else: no HEAD, no listing, no other format."""
    stored = zarr.create_array(
        server.bucket / "a.zarr", shape=SHAPE, chunks=(8, 8, 8), dtype="i2", zarr_format=version
    )
    stored[...] = 1
    volume = Volume("s3://bucket/a.zarr", storage_options=server.storage_options)

    assert volume.shape == (1, *SHAPE)
    assert asked(server) == expected


def test_what_opening_a_pyramid_asks_for(server, client):
    """The group's document, that of the level, and the NIfTI header that may lie beside it."""
    group = zarr.create_group(server.bucket / "a.ome.zarr")
    level = group.create_array("0", shape=SHAPE, chunks=(8, 8, 8), dtype="i2")
    level[...] = 1
    axes = [{"name": name, "type": "space"} for name in "zyx"]
    scale = [{"type": "scale", "scale": [1.0, 1.0, 1.0]}]
    scales = [{"path": "0", "coordinateTransformations": scale}]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": scales}]}
    volume = Volume("s3://bucket/a.ome.zarr", storage_options=server.storage_options)

    assert volume.shape == (1, *SHAPE[::-1])
    # Only asking tells whether an OME-Zarr is a NIfTI-Zarr: its metadata need not say so.
    folders = ("0/", "nifti/", "")
    assert asked(server) == [("GET", f"a.ome.zarr/{folder}zarr.json") for folder in folders]


def test_a_chunk_is_one_get(server, client):
    """Chunks that are objects are asked for once each; so often is made sure of the first fill."""
    stored = zarr.create_array(
        server.bucket / "a.zarr", shape=SHAPE, chunks=(8, 20, 16), dtype="i2", fill_value=7
    )
    stored[:8] = 1
    volume = Volume("s3://bucket/a.zarr", storage_options=server.storage_options)
    volume.shape  # noqa: B018
    server.forget()

    found = volume.read(Region((6, 0, 0), (24, 4, 4)))

    assert set(np.unique(found.array)) == {1, 7}
    chunks = [("GET", f"a.zarr/c/{n}/0/0") for n in (0, 1, 1, 1, 2, 2, 2)]
    assert asked(server) == [*chunks, ("GET", "a.zarr/zarr.json")]


@pytest.fixture
def many_planes(server):
    """A .nii of 256 cubed, of 16 bits, mostly without content."""
    image = nibabel.Nifti1Image(np.zeros((256, 256, 256), np.int16), np.eye(4))
    image.dataobj[100:116, 100:116, 100:116] = 5
    nibabel.save(image, server.bucket / "a.nii")
    return Volume("s3://bucket/a.nii", storage_options=server.storage_options)


def test_a_small_patch_of_a_large_nifti(server, client, many_planes):
    """A patch of 16 cubed reads at most 150 kB of 33 MB, a request for each plane."""
    many_planes.shape  # noqa: B018
    server.forget()

    found = many_planes.read(Region((100,) * 3, (116,) * 3))

    assert (found.array == 5).all()
    assert sum(line.sent for line in server.requests) <= 150_000
    assert len(server.requests) == 16


@pytest.mark.parametrize("suffix", [".nii", ".npy", ".tif"])
def test_bare_voxels_are_fetched_ahead(server, client, ramp, suffix):
    """A read after its prefetch sends nothing, whatever the format; its ticket keeps nothing."""
    if suffix == ".nii":
        nibabel.save(nibabel.Nifti1Image(ramp, np.eye(4)), server.bucket / "a.nii")
    elif suffix == ".npy":
        np.save(server.bucket / "a.npy", ramp)
    else:
        tifffile = pytest.importorskip("tifffile")
        tifffile.imwrite(server.bucket / "a.tif", ramp, rowsperstrip=5)
    volume = Volume(f"s3://bucket/a{suffix}", storage_options=server.storage_options)
    region = Region((2, 3, 4), (9, 8, 7))
    expected = volume.numpy()[0][region.slices]
    server.forget()

    ticket = volume.prefetch(region)
    found = volume.read(region)

    np.testing.assert_array_equal(found.array[0], expected)
    sent = [line.range for line in server.requests]
    assert len(sent) == len(set(sent)) > 0
    volume.read(region)
    assert len(server.requests) == len(sent)
    ticket.close()
    assert (len(AHEAD), AHEAD.held_bytes) == (0, 0)


def test_what_is_here_stays_until_the_read(server, client):
    """A chunk that was not fetched ahead because it is decoded is not let go of before."""
    stored = zarr.create_array(
        server.bucket / "a.zarr", shape=SHAPE, chunks=(4, 20, 16), dtype="i2", compressors=None
    )
    stored[...] = 3
    volume = Volume("s3://bucket/a.zarr", storage_options=server.storage_options)
    loan = CHUNKS.lend(2 * 4 * 20 * 16 * 2)
    volume.read(Region((0, 0, 0), (4, 1, 1)))
    ticket = volume.prefetch(Region((0, 0, 0), (4, 1, 1)))
    for start in range(4, 24, 4):
        volume.read(Region((start, 0, 0), (start + 4, 1, 1)))
    server.forget()

    found = volume.read(Region((0, 0, 0), (4, 1, 1)))

    ticket.close()
    volume.read(Region((8, 0, 0), (16, 1, 1)))
    gone = volume.read(Region((0, 0, 0), (4, 1, 1)))
    loan.close()
    assert (found.array == 3).all()
    assert (gone.array == 3).all()
    # Nothing for the chunk that was kept; two others, then that one again.
    assert len(server.requests) == 3


@pytest.mark.parametrize("place", ["here", "there"])
def test_patches_of_one_packed_file_decode_it_once(
    server, client, ramp, tmp_path, monkeypatch, place
):
    """Twenty patches of a .nii.gz, from the disk or by URL: decoded once, fetched once."""
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    folder = server.bucket if place == "there" else tmp_path
    nibabel.save(nibabel.Nifti1Image(ramp, np.eye(4)), folder / "a.nii.gz")
    url = "s3://bucket/a.nii.gz" if place == "there" else str(folder / "a.nii.gz")
    options = server.storage_options if place == "there" else None
    written = []
    true = volume_cache.VolumeCache._make_file

    def counted(self, *args, **kwargs):
        written.append(args)
        return true(self, *args, **kwargs)

    monkeypatch.setattr(volume_cache.VolumeCache, "_make_file", counted)
    pipe = (
        vp.from_cases([{"image": url}])
        .open_volume(storage_options=options)
        .lazy_patch(8, samples_per_volume=20)
        .batch_patches(1)
    )

    with vp.DataLoader2(pipe, seed=0) as loader:
        assert sum(len(batch["meta"]) for batch in loader) == 20

    assert len(written) == 1
    size = (folder / "a.nii.gz").stat().st_size
    # Once for the header, once for all.
    assert sum(line.sent for line in server.requests) <= 2 * size * (place == "there")


def test_local_chunks_are_announced_to_the_kernel(tmp_path, monkeypatch):
    """Before a region of a local zarr is read, each of its chunks is asked for, once."""
    stored = zarr.create_array(tmp_path / "a.zarr", shape=SHAPE, chunks=(8, 20, 16), dtype="i2")
    stored[...] = 1
    volume = Volume(tmp_path / "a.zarr")
    told = []
    will_need = lambda self, ranges, is_here: told.extend(ranges.ranges())  # noqa: E731
    monkeypatch.setattr(LocalRanges, "will_need", will_need)

    assert volume.prefetch(Region((6, 0, 0), (24, 4, 4))) is None

    assert [wanted.object for wanted in told] == ["c/0/0/0", "c/1/0/0", "c/2/0/0"]


def test_a_store_that_is_down_is_given_up_in_time(server, client, monkeypatch):
    """A permanent 503 ends within the deadline; each pause is at least half of its longest."""
    open_remote("s3://bucket", server.storage_options).get("a.zarr/zarr.json")
    server.forget()
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "1")
    server.fail(Fault("slow_down"))
    volume = Volume("s3://bucket/a.zarr", storage_options=server.storage_options)

    with pytest.raises(vp.errors.StoreUnavailable, match=r"in [01]\.\d s"):
        volume.shape  # noqa: B018

    # At least 0.05, 0.1, 0.2, 0.4 s between two: no layer below tries again.
    assert 2 <= len(server.requests) <= 5


def test_a_state_resumes_with_other_credentials(server, client, ramp):
    """Keys that expire do not make another chain: they are no part of the state."""
    nibabel.save(nibabel.Nifti1Image(ramp, np.eye(4)), server.bucket / "a.nii")

    def loader(key):
        options = {**server.storage_options, "key": key}
        cases = vp.from_cases([{"image": "s3://bucket/a.nii"}])
        patches = cases.open_volume(storage_options=options).lazy_patch(8, samples_per_volume=3)
        return vp.DataLoader2(patches.batch_patches(1), seed=0)

    with loader("one-key") as first:
        batches = iter(first)
        next(batches)
        state = first.state_dict()
        rest = [batch["image"].clone() for batch in batches]
    with loader("another") as second:
        second.load_state_dict(state)
        again = [batch["image"].clone() for batch in second]

    assert len(rest) == 2
    assert all(a.equal(b) for a, b in zip(rest, again, strict=True))


def test_secrets_stay_out_of_state_and_texts(server, client, ramp, caplog, capfd):
    """State, explanations, diagnosis, reprs, logs and errors of an epoch show no credentials."""
    caplog.set_level("DEBUG", "voxpipe")
    nibabel.save(nibabel.Nifti1Image(ramp, np.eye(4)), server.bucket / "a.nii")
    options = {**server.storage_options, **SECRETS}
    pipe = (
        vp.from_cases([{"image": "s3://bucket/a.nii"}])
        .open_volume(storage_options=options)
        .lazy_patch(8, samples_per_volume=3)
        .batch_patches(1)
    )
    with vp.DataLoader2(pipe, seed=0) as loader:
        batches = iter(loader)
        batch = next(batches)
        state = loader.state_dict()
        told = [repr(loader), repr(pipe), str(loader.explain()), repr(batch["meta"])]
        told += [json.dumps(state), pickle.dumps(state).decode("latin-1")]
        close_volumes()
        server.fail(Fault("deny"))
        with pytest.raises(vp.errors.AccessDenied) as caught:
            list(batches)
    error = caught.value
    told += [str(error), repr(error), str(vars(error)), pickle.dumps(error).decode("latin-1")]
    told += [caplog.text, *capfd.readouterr()]

    for secret in SECRETS.values():
        assert [text for text in told if secret in text] == []
