"""Damaged files give the right voxels or an error that names them; no crash, hang or flood.

Every reference file of this folder's ``*_files.py`` is cut at many places and gets many
random bytes in its header. A child process reads them, with little memory and little time:
where a library crashes on them, that is a failed test.
"""

import multiprocessing
import os
import resource
import time
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from array_files import has
from medical_files import warm
from reference_files import REFERENCES, collect, contents

from voxpipe.core import Region
from voxpipe.core.errors import VolumeReadError
from voxpipe.core.settings import CACHE_BYTES
from voxpipe.volumes import Volume, backend, close_volumes

# All of what is promised, and a sample of it for every day.
FULL, SAMPLE = (50, 200), (3, 6)
# Far above what the files hold, far below what damaged headers claim.
BUDGET = 256 * 1024
# What a child may take beyond what it begins with: far below what damaged headers claim.
MEMORY = 1024**3
# A child reads a few hundred files of a few kilobytes; ten times what that takes beside others.
SECONDS = 100.0

collect()
pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork"
)


@dataclass(frozen=True)
class Damage:
    """One damaged copy of a reference."""

    what: str
    files: dict
    is_cut: bool


@pytest.fixture(scope="module", autouse=True)
def writer_is_warm():
    """Nothing that GDCM keeps open counts as left behind."""
    warm()


def each_reference(function):
    """Run a test for every reference: a sample, and slowly everything."""
    amounts = [
        pytest.param(*FULL, id="full", marks=pytest.mark.slow),
        pytest.param(*SAMPLE, id="sample"),
    ]
    function = pytest.mark.parametrize(("cuts", "flips"), amounts)(function)
    return pytest.mark.parametrize("name", list(REFERENCES))(function)


# Of codes and units that no standard defines.
@pytest.mark.filterwarnings("ignore::voxpipe.core.errors.LikelyMistake")
@each_reference
def test_damage_is_refused_by_name_or_harmless(name, cuts, flips, tmp_path):
    """Cut anywhere, or with any byte of its header changed."""
    folder = tmp_path / "sound"
    folder.mkdir()
    found = REFERENCES[name](folder)
    damages = [*cut(contents(folder), cuts), *flipped(found, folder, flips)]

    answers = in_a_child(found, folder, damages, tmp_path / "damaged")

    wrong = [f"{d.what}: {answer}" for d, answer in zip(damages, answers, strict=True) if answer]
    assert wrong == []


def cut(files, cuts):
    """Yield copies of which one file ends early, in equal steps from nothing to all but a byte."""
    for name, content in files.items():
        for length in np.unique(np.linspace(0, len(content) - 1, cuts).astype(int)):
            if content:
                yield Damage(f"{name} cut at {length}", {**files, name: content[:length]}, True)


def flipped(found, folder, flips):
    """Yield copies whose header has one wrong byte."""
    files = contents(folder)
    name, length = found.header
    name = name or found.path.relative_to(folder).as_posix()
    length = length or header_length(files[name])
    generator = np.random.default_rng(zlib.crc32(str(found.path.name).encode()))
    for _ in range(flips):
        at, change = int(generator.integers(length)), int(generator.integers(1, 256))
        damaged = bytearray(files[name])
        damaged[at] ^= change
        what = f"{name}[{at}] is {damaged[at]}, not {damaged[at] ^ change}"
        yield Damage(what, {**files, name: bytes(damaged)}, False)


def header_length(content):
    """Return how much of a file is header: up to the first empty line or the voxels' name."""
    if content.startswith(b"NRRD"):
        end = content.find(b"\n\n")
        return end + 2 if end > 0 else len(content)
    if content.startswith(b"{"):
        return len(content)  # JSON
    at = content.find(b"ElementDataFile")
    if at > 0:
        return content.index(b"\n", at) + 1
    return min(352, len(content))


def in_a_child(found, folder, damages, place):
    """Return what is wrong with each answer, empty where nothing is."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(
        target=answer_all, args=(theirs, found, folder, damages, place), daemon=True
    )
    close_volumes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads
        child.start()
    theirs.close()
    answers = []
    deadline = time.monotonic() + SECONDS
    try:
        while len(answers) < len(damages):
            now = damages[len(answers)].what
            assert ours.poll(deadline - time.monotonic()), f"it hangs: {now}"
            try:
                answers.append(ours.recv())
            except EOFError:
                child.join()
                pytest.fail(f"the reader died with {child.exitcode}: {now}")
    finally:
        ours.close()
        child.kill()
        child.join()
        child.close()
    return answers


def answer_all(connection, found, folder, damages, place):
    """Read every damaged copy, in little memory; answer what is wrong with what came."""
    os.environ[CACHE_BYTES] = str(BUDGET)
    used = (
        int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
        * resource.getpagesize()
    )
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    sound = facts(Volume(found.path, **found.options))
    for number, damage in enumerate(damages):
        try:
            connection.send(judged(found, folder, damage, place / str(number), sound))
        except BaseException as error:
            connection.send(f"{type(error).__name__}: {error}")


def facts(volume):
    """Return what decides how stored bytes become values."""
    header = volume.header
    return header.shape, header.disk_dtype, header.slope, header.intercept


def judged(found, folder, damage, place, sound):
    """Return what is wrong with what a damaged copy gives; empty if nothing is.

    Each has a folder of its own: nothing that is remembered of one may help another.
    """
    for name, content in damage.files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    inside = found.path.relative_to(folder)
    volume = Volume(place / inside, **found.options)
    try:
        told = facts(volume)
        values = whole_or_part(volume)
    except VolumeReadError as error:
        return "" if str(inside) in str(error) else f"no name in {error}"
    finally:
        close_volumes()
        for name in damage.files:
            os.unlink(place / name)
    if damage.is_cut or (told == sound and not found.tables):
        return "" if np.array_equal(values, found.array, equal_nan=True) else "other voxels"
    return "" if values.dtype == volume.dtype else f"{values.dtype}, not {volume.dtype}"


def whole_or_part(volume):
    """Return all values; of more than the budget, what is sure to be in it."""
    count = volume.shape[0] * Region.of_shape(volume.spatial_shape).size
    if count * volume.disk_dtype.itemsize <= BUDGET:
        return volume.numpy()
    if volume.shape[0] > BUDGET:
        return volume[:4, 0, 0, 0].numpy()
    return volume.read(Region((0, 0, 0), tuple(min(4, n) for n in volume.spatial_shape))).values()


@pytest.mark.parametrize("crash", [True, False], ids=["dies", "floods"])
def test_a_crash_is_seen(tmp_path, monkeypatch, crash):
    """The child's death fails the test, with what it was reading; so does more memory."""
    (tmp_path / "sound").mkdir()
    found = REFERENCES["npy, booleans"](tmp_path / "sound")
    damage = Damage("this one", contents(tmp_path / "sound"), True)
    read = Volume.numpy

    def dreadful(volume):
        if "damaged" in volume.name:
            os._exit(3) if crash else np.ones(2 * MEMORY, np.uint8)
        return read(volume)

    monkeypatch.setattr(Volume, "numpy", dreadful)
    args = (found, tmp_path / "sound", [damage], tmp_path / "damaged")
    if crash:
        with pytest.raises(pytest.fail.Exception, match="died with 3: this one"):
            in_a_child(*args)
    else:
        assert "MemoryError" in in_a_child(*args)[0]


def claims(folder):
    """Yield files by other libraries whose headers speak of 10^15 voxels that are not stored."""
    shape = (100_000,) * 3
    if has("h5py"):
        import h5py

        with h5py.File(folder / "a.h5", "w") as file:
            file.create_dataset("raw", shape, "u1", chunks=(64, 64, 64))
        yield folder / "a.h5"
    if has("zarr"):
        import zarr

        array = zarr.create_array(folder / "a.zarr", shape=shape, dtype="u1", chunks=(64, 64, 64))
        array[-1, -1, -1] = 1
        yield folder / "a.zarr"
    if has("blosc2"):
        import blosc2

        how = {"chunks": (1000,) * 3, "blocks": (100, 100, 100), "dtype": np.uint8}
        blosc2.zeros((10_000,) * 3, urlpath=str(folder / "a.b2nd"), **how)
        yield folder / "a.b2nd"


@pytest.mark.filterwarnings("ignore::voxpipe.core.errors.EmptyVolume")
def test_more_voxels_than_memory_are_refused(tmp_path, monkeypatch):
    """A sparse file may say so and be right: a region is read, all of it is not."""
    monkeypatch.setattr(backend, "usable_memory", lambda: 2**30)
    for path in claims(tmp_path):
        volume = Volume(path)

        assert (
            volume.read(Region((9, 9, 9), (12, 12, 12))).values().tolist()
            == np.zeros((1, 3, 3, 3)).tolist()
        )
        for ask in (volume.numpy, volume.load, lambda volume=volume: volume[..., ::2]):
            with pytest.raises(VolumeReadError, match=rf"{path.name}.* takes \d+ bytes"):
                ask()
            with pytest.raises(MemoryError):
                ask()
