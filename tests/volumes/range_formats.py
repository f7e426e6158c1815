"""Four formats of somebody else's, whose backends only name and decode byte ranges.

Each is as short as a format can be: a detector's frames with headers, frames in shuffled blocks of
several files, numbers of 12 bits, and tiles that are sums of several ranges.
"""

import numpy as np

from voxpipe.volumes import ByteRange, Format, Header, RangeBackend


class Frames(RangeBackend):
    """Frames (y, x) of big-endian numbers, each after a header with its length in bytes, as MIB."""

    HEADER = 32

    def __init__(self, file):
        k, j, i = (int(n) for n in file.head(self.HEADER).split(b",")[1:4])
        header = Header.of((1, i, j, k), ">u2", chunks=(i, j, 1))
        super().__init__([file], header, file.name)
        self._pitch = self.HEADER + i * j * 2

    def read_ranges(self, tiles):
        """Return the bytes of each frame after its header."""
        starts = tiles[:, 3] * self._pitch + self.HEADER
        return [[ByteRange(0, start, start + self._pitch - self.HEADER)] for start in starts]

    def decode(self, data, out, place, tile):
        """Turn (y, x) into (x, y)."""
        frame = np.frombuffer(data, ">u2").reshape(out.shape[2], out.shape[1])
        out[0, :, :, 0] = frame.T


class Sectors(RangeBackend):
    """Frames in two halves, one per file, whose blocks come in any order: a table finds them."""

    def __init__(self, file):
        j, i, k = np.frombuffer(file.head(12), "<i4").tolist()
        header = Header.of((1, i, j, k), "<i2", chunks=(i // 2, j, 1))
        super().__init__([file, file.beside("half1.sec")], header, file.name)
        self._block = i // 2 * j * 2
        table = np.frombuffer(file.head(12 + 4 * k), "<i4")[3:]
        self._places = {int(frame): n for n, frame in enumerate(table)}
        self._first = (12 + 4 * k, 0)

    def read_ranges(self, tiles):
        """Return one block, or none for a frame that was lost."""
        return [
            [ByteRange(half, start := self._first[half] + self._places[k] * self._block,
                       start + self._block)]
            if k in self._places
            else []
            for _, half, _, k in tiles.tolist()
        ]  # fmt: skip

    def decode(self, data, out, place, tile):
        """Copy a block (x, y)."""
        out[0, :, :, 0] = np.frombuffer(data, "<i2").reshape(out.shape[1:3])


class Packed(RangeBackend):
    """Rows of 12-bit numbers without gaps: two in three bytes, so that rows begin inside bytes."""

    def __init__(self, file, shape=(5, 4, 3)):
        super().__init__([file], Header.of((1, *shape), "u2", chunks=(shape[0], 1, 1)), file.name)

    def read_ranges(self, tiles):
        """Return the bytes of a row; a field says whether it begins in the middle of a byte."""
        i, j, _ = self.shape[1:]
        first = (tiles[:, 3] * j + tiles[:, 2]) * i * 12
        return [
            [ByteRange(0, bit // 8, -(-(bit + i * 12) // 8), (bit % 8,))] for bit in first.tolist()
        ]

    def decode(self, data, out, place, tile):
        """Join the bits of each number."""
        (skip,) = place.fields
        bits = np.unpackbits(np.frombuffer(data, np.uint8))[skip : skip + 12 * out.shape[1]]
        out[0, :, 0, 0] = bits.reshape(-1, 12) @ (1 << np.arange(11, -1, -1))


class Exposures(RangeBackend):
    """Planes stored as exposures that add up, each with its own factor."""

    clears = True
    strided = True

    def __init__(self, file):
        super().__init__([file], Header.of((2, 4, 3, 2), "i4", chunks=(4, 3, 1)), file.name)

    def read_ranges(self, tiles):
        """Return two ranges of each plane with their factors."""
        size = 4 * 3
        return [
            [ByteRange(0, (2 * n + part) * size, (2 * n + part + 1) * size, (factor,))
             for part, factor in ((0, 1), (1, 100))]
            for n in (tiles[:, 0] * 2 + tiles[:, 3]).tolist()
        ]  # fmt: skip

    def decode(self, data, out, place, tile):
        """Add an exposure."""
        (factor,) = place.fields
        out[0, :, :, 0] += np.frombuffer(data, np.uint8).reshape(4, 3).astype("i4") * factor


FORMATS = {
    "frames": Format("frames", (".frames",), Frames),
    "sectors": Format("sectors", (".sectors",), Sectors),
    "packed": Format("packed", (".packed",), Packed),
    "exposures": Format("exposures", (".exposures",), Exposures),
}
WRITERS = {}


def _writer(function):
    WRITERS[function.__name__] = function
    return function


@_writer
def frames(folder):
    """Write five frames; return the file and its voxels (C, I, J, K)."""
    array = (np.arange(5 * 3 * 4).reshape(5, 3, 4) * 999).astype(">u2")
    head = b"MIB,5,3,4,".ljust(Frames.HEADER, b" ")
    path = folder / "a.frames"
    path.write_bytes(b"".join(head + frame.tobytes() for frame in array))
    return path, array.transpose(2, 1, 0)[None].astype("u2")


@_writer
def sectors(folder):
    """Write three frames of four; the third was lost."""
    array = np.arange(1, 6 * 2 * 4 + 1).reshape(6, 2, 4).astype("<i2")
    order = [3, 0, 1]
    table = np.array([2, 6, 4], "<i4").tobytes() + np.array([*order, -1], "<i4").tobytes()
    path = folder / "half0.sectors"
    path.write_bytes(table + b"".join(array[:3, :, k].tobytes() for k in order))
    (folder / "half1.sec").write_bytes(b"".join(array[3:, :, k].tobytes() for k in order))
    array[:, :, 2] = 0
    return path, array[None]


@_writer
def packed(folder):
    """Write 60 numbers of 12 bits."""
    array = (np.arange(60, dtype="u2") * 67 % 4096).reshape(3, 4, 5)
    text = "".join(f"{number:012b}" for number in array.ravel())
    path = folder / "a.packed"
    path.write_bytes(int(text, 2).to_bytes(len(text) // 8, "big"))
    return path, array.transpose(2, 1, 0)[None]


@_writer
def exposures(folder):
    """Write two exposures of four planes."""
    parts = (np.arange(2 * 2 * 2 * 12) % 251).astype("u1").reshape(2, 2, 2, 4, 3)  # c, k, part
    path = folder / "a.exposures"
    path.write_bytes(parts.tobytes())
    sums = parts[:, :, 0].astype("i4") + 100 * parts[:, :, 1].astype("i4")
    return path, sums.transpose(0, 2, 3, 1)
