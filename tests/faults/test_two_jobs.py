"""Two jobs that begin at once on one cold cache: each entry is made once, and both see the same."""

import hashlib
import multiprocessing
import os
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.storage.disk_cache import is_sound, read_entry
from voxpipe.storage.volume_cache import VolumeCache
from voxpipe.volumes import Volume, close_volumes
from voxpipe.volumes.catalog import whole_pass
from voxpipe.volumes.conversion import convert as converted_cache

CASES = 3
WAIT = 120.0


def scans(folder):
    for number in range(CASES):
        voxels = np.random.default_rng(number).integers(-99, 99, (24, 25, 26)).astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), folder / f"{number}.nii.gz")


def counted(true, log):
    """Return a function that notes each call in a file, by one write."""

    def call(*args, **kwargs):
        with open(log, "ab", buffering=0) as file:
            file.write(b"1\n")
        return true(*args, **kwargs)

    return call


def kept_folder():
    """Return the folder of the copies that ``cache()`` keeps."""
    return os.path.join(os.environ["VOXPIPE_CACHE"], "kept")


def read_all(folder):
    """Return a digest of all that the caches answer of all cases."""
    digest = hashlib.sha256()
    for number in range(CASES):
        volume = Volume(folder / f"{number}.nii.gz")
        digest.update(volume.numpy().tobytes())
        pipe = vp.from_cases([{"image": str(volume.name)}]).open_volume()
        kept = next(iter(pipe.cache(kept_folder(), chunk=8)))
        digest.update(kept["image"].realize().tobytes())
        digest.update(repr(whole_pass.volume_statistics(volume)).encode())
        digest.update(repr(whole_pass.volume_histogram(volume).mean).encode())
    return digest.hexdigest()


def batches_of(folder):
    """Return a digest of the batches of an epoch."""
    cases = [{"image": str(folder / f"{number}.nii.gz")} for number in range(CASES)]
    pipe = (
        vp.from_cases(cases).open_volume().cache(kept_folder(), chunk=8).normalize().lazy_patch(8)
    )
    loader = vp.DataLoader2(pipe.augment(rotate=20).batch_patches(1))
    loader.seed(3)
    digest = hashlib.sha256()
    for batch in loader:
        digest.update(batch["image"].numpy().tobytes())
    loader.shutdown()
    return digest.hexdigest()


def job(connection, folder, of):
    """Answer each cache that is named with what was seen of it."""
    while (cache := connection.recv()) is not None:
        os.environ["VOXPIPE_CACHE"] = str(cache)
        log = f"{cache}.log"
        true = VolumeCache._make_file, converted_cache.write_planned
        VolumeCache._make_file = counted(true[0], log)
        converted_cache.write_planned = counted(true[1], log)
        computed = whole_pass._compute, whole_pass._histogram
        whole_pass._compute, whole_pass._histogram = (counted(one, log) for one in computed)
        try:
            connection.send(of(folder))
        finally:
            VolumeCache._make_file, converted_cache.write_planned = true
            whole_pass._compute, whole_pass._histogram = computed
            close_volumes()
            whole_pass.STATISTICS.memory.clear(), whole_pass.HISTOGRAMS.memory.clear()


def broken(cache):
    """Return the entries of a cache that are not sound, and what is left of making them."""
    left = list(cache.rglob("*.part*"))
    for path in [*cache.glob("*.nii"), *cache.glob("kept/*.zarr")]:
        left += [] if is_sound(path, path.parent / "sums" / path.stem) else [path]
    kept = [*cache.glob("statistics/*"), *cache.glob("histograms/*")]
    return left + [path for path in kept if read_entry(path) is None]


def try_jobs(attacks, folder, of, made, whole):
    """Let two processes loose on one cache after another."""
    scans(folder)
    context = multiprocessing.get_context("forkserver")
    pipes = [context.Pipe() for _ in range(2)]
    jobs = [context.Process(target=job, args=(there, folder, of)) for _, there in pipes]
    for process in jobs:
        process.start()

    def attempt(seed):
        cache = folder / f"cache{seed}"
        for here, _ in pipes:
            here.send(cache)
        answers = []
        for here, _ in pipes:
            assert here.poll(WAIT), "a job hangs"
            answers.append(here.recv())
        assert answers == [expected] * 2
        assert len(Path(f"{cache}.log").read_bytes()) == 2 * made
        assert broken(cache) == []
        shutil.rmtree(cache)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VOXPIPE_CACHE", str(folder / "expected"))
            expected = of(folder)
            close_volumes()
        attacks.each(attempt, quick=1, whole=whole)
    finally:
        for (here, there), process in zip(pipes, jobs, strict=True):
            here.send(None)
            process.join(WAIT)
            process.close()
            here.close(), there.close()


def test_two_jobs_make_each_entry_once(attacks, tmp_path):
    """Decoded, converted, statistics and histograms of three cases: twelve in all."""
    try_jobs(attacks, tmp_path, read_all, made=4 * CASES, whole=50)


@pytest.mark.slow
def test_two_jobs_give_the_same_batches(attacks, tmp_path):
    """Of loaders: what each makes alone."""
    try_jobs(attacks, tmp_path, batches_of, made=3 * CASES, whole=50)
