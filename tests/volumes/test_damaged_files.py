"""Damaged files give the right voxels or an error that names them; no crash, hang or flood.

Every reference file of this folder's ``*_files.py`` is cut at many places and gets many
random bytes in its header.
"""

import os
import zlib

import numpy as np
import pytest
from reference_files import REFERENCES, collect

from voxpipe.core.errors import VolumeError
from voxpipe.volumes import Volume, close_volumes
from voxpipe.volumes.cache_directory import BUDGET_VARIABLE

CUTS, FLIPS = 50, 200
# Far above what the files hold, far below what damaged headers claim.
BUDGET = 256 * 1024

collect()


@pytest.fixture(autouse=True)
def small_budget(monkeypatch):
    """Let decoding stop early; forget the many volumes of a test before the next."""
    monkeypatch.setenv(BUDGET_VARIABLE, str(BUDGET))
    yield
    close_volumes()


@pytest.fixture
def original(request, tmp_path):
    """Return the sound reference, and its files as bytes."""
    folder = tmp_path / "sound"
    folder.mkdir()
    found = REFERENCES[request.param](folder)
    return found, {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def facts(volume):
    """Return what decides how stored bytes become values."""
    header = volume.header
    return header.shape, header.disk_dtype, header.slope, header.intercept


def read_damaged(found, files, folder):
    """Return facts and values of the reference with other files; None if it is refused.

    Each has a folder of its own: nothing that is remembered of one may help another.
    """
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    volume, message = Volume(folder / found.path.name), ""
    try:
        told = facts(volume)
        values = volume.numpy()
    except VolumeError as error:
        message = str(error)
    finally:
        for name in files:
            os.unlink(folder / name)
    if message:
        assert found.path.name in message
        return None
    assert (values.shape, values.dtype) == (volume.shape, volume.dtype)
    assert values.nbytes <= max(BUDGET, sum(map(len, files.values())))
    return told, values


def each_reference(function):
    """Run a test for every reference."""
    params = [pytest.param(name, id=name) for name in REFERENCES]
    return pytest.mark.parametrize("original", params, indirect=True)(function)


@each_reference
def test_cut_files(original, tmp_path):
    """A file that ends early is refused, unless what is missing is not needed."""
    found, files = original
    refused = 0
    for name, content in files.items():
        for n, length in enumerate(np.linspace(0, len(content) - 1, CUTS).astype(int)):
            damaged = {**files, name: content[:length]}
            answer = read_damaged(found, damaged, tmp_path / f"{name}-{n}")
            refused += answer is None
            if answer is not None:
                np.testing.assert_array_equal(answer[1], found.array)

    assert refused > CUTS // 2, "most cuts do harm"


@each_reference
def test_flipped_bytes(original, tmp_path):
    """A header with a wrong byte is refused, or read as what it says now."""
    found, files = original
    name, length = found.header
    name = name or found.path.name
    length = length or header_length(files[name])
    sound = facts(Volume(found.path))
    generator = np.random.default_rng(zlib.crc32(found.path.name.encode()))
    for n in range(FLIPS):
        damaged = bytearray(files[name])
        damaged[generator.integers(length)] ^= int(generator.integers(1, 256))
        answer = read_damaged(found, {**files, name: bytes(damaged)}, tmp_path / str(n))
        if answer is not None and answer[0] == sound:
            np.testing.assert_array_equal(answer[1], found.array)


def header_length(content):
    """Return how much of a file is header: up to the first empty line or the voxels' name."""
    if content.startswith(b"NRRD"):
        end = content.find(b"\n\n")
        return end + 2 if end > 0 else len(content)
    at = content.find(b"ElementDataFile")
    if at > 0:
        return content.index(b"\n", at) + 1
    return min(352, len(content))
