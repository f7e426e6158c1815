"""Disks that are full or read-only, and entries that were damaged, for tests of caches."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


def _mounted(*arguments: str) -> bool:
    """Whether a mount succeeded; root alone may, and not in every container."""
    command = shutil.which("mount")
    if command is None or os.geteuid() != 0:
        return False
    return subprocess.run([command, *arguments], capture_output=True, timeout=30).returncode == 0


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True, timeout=30)


@contextmanager
def full_disk(folder: Path, size: int):
    """Mount a disk of ``size`` bytes in memory at a folder, which is made."""
    folder.mkdir(mode=0o700)
    if not _mounted("-t", "tmpfs", "-o", f"size={size},mode=700", "voxpipe-test", str(folder)):
        pytest.skip("no disk can be mounted here: that takes root")
    try:
        yield folder
    finally:
        _unmount(folder)


def grow(folder: Path, size: int) -> None:
    """Give a disk that :func:`full_disk` mounted another size, in bytes."""
    assert _mounted("-o", f"remount,size={size}", str(folder))


@contextmanager
def longest_file(size: int):
    """Let this process write no file of more bytes: EFBIG, as ``ulimit -f`` does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def read_only_mount(folder: Path):
    """Make a folder one of a read-only file system: EROFS, for root as well."""
    if not _mounted("--bind", str(folder), str(folder)):
        pytest.skip("no folder can be mounted here: that takes root")
    try:
        assert _mounted("-o", "remount,ro,bind", str(folder))
        yield folder
    finally:
        _unmount(folder)


@contextmanager
def without_permission(folder: Path):
    """Let this user read a folder, and not write to it: EACCES. Root becomes nobody meanwhile."""
    for place, _, files in os.walk(folder):
        os.chmod(place, 0o755 if os.geteuid() == 0 else 0o555)
        for file in files:
            os.chmod(os.path.join(place, file), 0o644 if os.geteuid() == 0 else 0o444)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(NOBODY)
        yield folder
    finally:
        os.seteuid(user)
        for place, _, _ in os.walk(folder):
            os.chmod(place, 0o700)


@contextmanager
def open_folder():
    """Make a folder that everybody may look into, those above it included."""
    folder = Path(tempfile.mkdtemp(prefix="voxpipe-disks-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def damage(path: Path, drawn: random.Random) -> str:
    """Cut a file, flip a bit of it, or let it grow; return what was done."""
    content = bytearray(path.read_bytes())
    how = drawn.choice(("cut", "flip", "zeros", "grow"))
    if how == "cut":
        content = content[: drawn.randrange(len(content))]
    elif how == "flip":
        content[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
    elif how == "zeros":  # as of a file whose length reached the disk before its blocks
        start = drawn.randrange(len(content))
        if not any(content[start:]):
            return damage(path, drawn)
        content[start:] = bytes(len(content) - start)
    else:
        content += drawn.randbytes(drawn.randint(1, 40))
    path.write_bytes(content)
    return how
