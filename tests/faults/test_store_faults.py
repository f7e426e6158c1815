"""A bucket of which a fifth of the answers is wrong in one of many ways: the same batches.

Each epoch is run from a sound bucket and from the faulty one. The table at the end of the whole
run says how much longer the second took: in sum over all seeds, of each row, from the first request
to the last batch, because what workers take to start is not the store's.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import dataclass, field

import nibabel
import numpy as np
import pytest
import zarr
from s3_server import PASSING, FaultMix, S3Server
from zarr_arrays import wrapped_codecs

import voxpipe as vp
from voxpipe.volumes import close_volumes

SHARE = 0.2
SHAPE = (40, 36, 32)
CASES = 3
BUCKET = "bucket"
# zarr-python warns of codecs that not all others know.
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs:UserWarning")
FORMATS = ("a.nii", "a.nii.gz", "chunks.zarr", "shards.zarr", "filtered.zarr")


@dataclass
class Times:
    """Seconds of all epochs of one row."""

    sound: list[float] = field(default_factory=list)
    faulty: list[float] = field(default_factory=list)


class TimedMix(FaultMix):
    """Notes when the first request came."""

    begun = 0.0

    def draw(self, method):
        """Return what goes wrong with the next request."""
        self.begun = self.begun or time.perf_counter()
        return super().draw(method)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the same random voxels in each format."""
    root = tmp_path_factory.mktemp("s3")
    numbers = np.random.default_rng(0)
    for case in range(CASES):
        voxels = numbers.integers(-1000, 1000, SHAPE, np.int16)
        place = root / BUCKET / str(case)
        place.mkdir(parents=True)
        for name in FORMATS[:2]:
            nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), place / name)
        shards = {"shards": (32, 32, 32)}
        # Which is left to zarr-python.
        filtered = {**shards, "filters": [wrapped_codecs.Delta(dtype="i2")]}
        for name, how in zip(FORMATS[2:], ({}, shards, filtered), strict=True):
            stored = zarr.create_array(
                place / name, shape=SHAPE, dtype="i2", chunks=(16, 16, 16), **how
            )
            stored[...] = voxels
    return root


@pytest.fixture
def served(folder, started_clients, monkeypatch, tmp_path):
    """Serve it, with a cache of its own."""
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("VOXPIPE_REMOTE_HEDGE")
    with S3Server(folder, latency=0.03) as server:
        yield server
        close_volumes()


def epoch(server, name, workers, seed, samples=4):
    """Return the batches of one epoch, and when the last one came."""
    cases = [{"image": f"s3://{BUCKET}/{case}/{name}"} for case in range(CASES)]
    pipe = (
        vp.from_cases(cases)
        .open_volume(storage_options=server.storage_options)
        .lazy_patch((16, 12, 10), samples_per_volume=samples)
        .augment(rotate=(-15, 15))
        .batch_patches(2)
    )
    service = vp.MultiProcessingReadingService(num_workers=workers) if workers else None
    close_volumes()
    with vp.DataLoader2(pipe, [vp.Timeout(item=100)], service, seed=seed) as loader:
        batches = [batch["image"].clone() for batch in loader]
        return batches, time.perf_counter()


@pytest.mark.parametrize("client", ["obstore", "fsspec"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "workers", [0, pytest.param(2, marks=pytest.mark.slow)], ids=["here", "two-workers"]
)
def test_a_fifth_of_the_answers_is_wrong(
    attacks, served, monkeypatch, tmp_path, record_property, client, name, workers
):
    """The batches are those of a sound bucket, bit for bit."""
    monkeypatch.setenv("VOXPIPE_REMOTE", client)
    times = Times()
    samples = 40 if attacks.whole else 4  # a second costs little of an epoch of many

    def attempt(seed):
        order = random.Random(seed)
        drawn = order.randrange(2**31)
        for kind in ("sound", "faulty"):
            # Each decodes its .nii.gz itself.
            monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / f"{seed}-{kind}"))
            mix = TimedMix(SHARE if kind == "faulty" else 0.0, drawn)
            served.fail(mix)
            found, end = epoch(served, name, workers, drawn, samples)
            getattr(times, kind).append(end - mix.begun)
            if kind == "sound":
                right = found
        served.fail()
        assert len(found) == len(right) == CASES * samples // 2
        assert all(a.equal(b) for a, b in zip(found, right, strict=True))

    attacks.each(attempt, quick=client == "obstore", whole=10)
    if times.sound:
        factor = sum(times.faulty) / sum(times.sound)
        attacks.told(f"{factor:.2f} times as long")


@pytest.mark.parametrize("kind", PASSING)
def test_one_kind_of_fault_alone(attacks, served, monkeypatch, kind):
    """Of each kind a fifth, through both clients in turn; formats in turn as well."""

    def attempt(seed):
        order = random.Random(seed)
        name, client = order.choice(FORMATS), ("obstore", "fsspec")[seed % 2]
        monkeypatch.setenv("VOXPIPE_REMOTE", client)
        drawn = order.randrange(2**31)
        right, _ = epoch(served, name, 0, drawn)
        served.fail(FaultMix(SHARE, drawn, (kind,)))
        found, _ = epoch(served, name, 0, drawn)
        served.fail()
        assert all(a.equal(b) for a, b in zip(found, right, strict=True))

    attacks.each(attempt, quick=0, whole=20)


EXITING = """
import sys
from voxpipe.storage.ranges import ReadRange
from voxpipe.storage.remote import open_remote
options = {"key": sys.argv[2], "secret": "s", "endpoint_url": sys.argv[1]}
store = open_remote("s3://bucket/0", options)
found = store.get_ranges([ReadRange("a.nii", n, 4000 + n) for n in range(40)])
sys.stdout.write(str(sum(map(len, found))))
for _ in range(int(sys.argv[3])):
    store.begin(store.get_ranges_async([ReadRange("a.nii.gz")]))
"""


def test_a_process_may_end_right_after_an_answer(attacks, served, monkeypatch):
    """Or with requests under way: obstore's own coroutines abort 2 of 5 such processes."""
    monkeypatch.delenv("VOXPIPE_REMOTE", raising=False)
    options = served.storage_options

    def attempt(seed):
        under_way = random.Random(seed).choice([0, 1, 20])
        done = subprocess.run(
            [sys.executable, "-c", EXITING, served.url, options["key"], str(under_way)],
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert (done.returncode, done.stdout) == (0, "160000"), done.stderr

    attacks.each(attempt, quick=1, whole=100)
