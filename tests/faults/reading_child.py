"""A child process that reads files: what crashes it, hangs it or floods it fails one attempt."""

import multiprocessing
import os
import resource
import shutil
import signal
import warnings
from dataclasses import replace
from pathlib import Path

from voxpipe.core import Region, memory
from voxpipe.core.errors import EmptyVolume, LikelyMistake, VolumeReadError
from voxpipe.core.memory import usable_memory
from voxpipe.core.settings import CACHE_BYTES
from voxpipe.volumes import Volume, close_volumes

# Far above what the files hold, far below what hostile headers claim.
BUDGET = 1024**2
# What is promised beside the budget.
BESIDE = 256 * 1024**2
# Where a library asks for more, it gets none: the machine of the tests is not to be used up.
ADDRESSES = 3 * 1024**3
SECONDS = 30.0


class ReadingChild:
    """Reads volumes one after another in a child, which is started anew when it was lost."""

    def __init__(self):
        self._child = self._pipe = None

    def read(self, path, **options):
        """Read a volume; AssertionError for what no reader may do.

        Returns what was said: an error of voxpipe, or nothing.
        """
        if self._child is None:
            self._start()
        self._pipe.send((path, options))
        if not self._pipe.poll(SECONDS):
            self.close()
            raise AssertionError(f"{path} is read for more than {SECONDS:g} s")
        try:
            verdict, said, peak = self._pipe.recv()
        except EOFError:
            self._child.join()
            code = self._child.exitcode
            self.close()
            raise AssertionError(f"the reader of {path} died with {code}") from None
        if peak > BUDGET + BESIDE:
            self.close()  # the next one begins with what it needs itself
            raise AssertionError(f"{path} took {peak >> 20} MiB: {said}")
        assert verdict, said
        return said

    def close(self):
        """End the child."""
        if self._child is not None:
            self._pipe.close()
            self._child.kill()
            self._child.join()
            self._child.close()
        self._child = self._pipe = None

    def _start(self):
        close_volumes()
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._child = context.Process(target=_serve, args=(theirs, self._pipe), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads
            self._child.start()
        theirs.close()


def _serve(pipe, other):
    other.close()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ[CACHE_BYTES] = str(BUDGET)
    begun = _resident("VmRSS")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESSES, used + ADDRESSES))
    # What the tests take themselves is no room for volumes.
    memory._address_space = lambda: ADDRESSES
    usable_memory.cache_clear()
    while True:
        try:
            path, options = pipe.recv()
        except EOFError:
            return
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that of this attempt
        verdict, said = _judged(path, options)
        pipe.send((verdict, said, _resident("VmHWM") - begun))


def _resident(field):
    """Return bytes of memory that are in use, or were at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def _judged(path, options):
    """Return whether all is well, and what was said."""
    volume = Volume(path, **options)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LikelyMistake)  # of a unit that no standard knows
            warnings.simplefilter("ignore", EmptyVolume)  # of strips that no offset leads to
            values = _some(volume)
    except (VolumeReadError, EmptyVolume) as error:
        named = Path(path).name in str(error) or str(path) in str(error)
        return named, f"{type(error).__name__}: {error}"
    except BaseException as error:
        return False, f"foreign {type(error).__name__}: {error}"
    finally:
        close_volumes()
    return values.dtype == volume.dtype, ""


def _some(volume):
    """Return all values; of more than the budget, a corner."""
    size = volume.shape[0] * Region.of_shape(volume.spatial_shape).size
    if size * volume.disk_dtype.itemsize <= BUDGET:
        return volume.numpy()
    if volume.shape[0] > BUDGET:
        return volume[:4, 0, 0, 0].numpy()
    return volume.read(Region((0, 0, 0), tuple(min(4, n) for n in volume.spatial_shape))).values()


def copied(found, folder, place, random, count):
    """Copy a reference with ``count`` changes; return it at its new place, and what was changed."""
    shutil.copytree(folder, place)
    files = sorted(path for path in place.rglob("*") if path.is_file())
    told = []
    for _ in range(count):
        path = random.choice(files)
        content = changed(path.read_bytes(), random)
        path.write_bytes(content[0])
        told.append(f"{path.name}: {content[1]}")
    return replace(found, path=place / found.path.relative_to(folder)), told


NUMBERS = [0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]


def changed(content, random):
    """Return bytes with one change, and which."""
    data, size = bytearray(content), max(1, len(content))
    # Headers are at the beginning, for the most part.
    at = random.randrange(min(size, 512) if random.random() < 0.7 else size)
    length = random.choice([1, 2, 4, 8, 16])
    how = random.randrange(8)
    if how == 0:
        return bytes(data[:at]), f"cut at {at}"
    if how == 1:
        data[at : at + 1] = bytes([random.randrange(256)])
    elif how == 2:
        data[at : at + length] = random.randbytes(length)
    elif how == 3:
        width = random.choice([2, 4, 8])
        number = random.choice(NUMBERS) % 2 ** (8 * width)
        data[at : at + width] = number.to_bytes(width, random.choice(["little", "big"]))
    elif how == 4:
        data[at:at] = data[at : at + length * 16]
    elif how == 5:
        del data[at : at + length]
    elif how == 6:
        words = [b"-1", b"99999999999", b"nan", b"1e999", b"%s%d", b"[[[[", b"null", b"../x", b"\0"]
        data[at : at + length] = random.choice(words)
    else:
        data[at : at + length * 16] = random.choice([b"\0", b"\xff", b" "]) * length * 16
    return bytes(data), f"{how} at {at}, {length}"
