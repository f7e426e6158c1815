"""What codecs make of chunks: stored size, and how quickly voxpipe decodes them.

    python benchmarks/codecs.py
    python benchmarks/codecs.py --image ct=ct.nii.gz --image mr=t1.nii.gz

By default the scan of phantom.py, whose noise is a CT's, its label, and cells under a microscope,
which are made here, too. Each array is cut into
chunks, of which a hundred are encoded and then decoded in one call as a read does it, in one
thread, straight into a region. GB/s are of decoded bytes, best of several rounds. Zeros count as
they come: about half of a CT is air.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import machine
import numpy as np
import phantom
from numcodecs import Blosc, Zstd, blosc
from numpy.typing import NDArray

from voxpipe.volumes import Volume
from voxpipe.volumes.chunks.native_chunks import (
    DATA,
    DECODE,
    PARTS,
    SIZE,
    STATUS,
    SUCCESS,
    TASK,
    address_of_bytes,
    native_decoder,
    place_chunks,
)

SHAPE = (320, 320, 256)
CHUNKS, ROUNDS = 100, 7
EDGES = (32, 64)
QUICK_SHAPE, QUICK_EDGES = (32, 32, 32), (8, 16)
SHUFFLES = {"none": Blosc.NOSHUFFLE, "bytes": Blosc.SHUFFLE, "bits": Blosc.BITSHUFFLE}
CODECS: dict[str, Any] = {
    **{f"blosc lz4-5, {s}": Blosc("lz4", 5, how) for s, how in SHUFFLES.items()},
    **{f"blosc lz4-1, {s}": Blosc("lz4", 1, how) for s, how in SHUFFLES.items()},
    "blosc lz4hc-5, bytes": Blosc("lz4hc", 5, Blosc.SHUFFLE),
    "blosc lz4hc-5, bits": Blosc("lz4hc", 5, Blosc.BITSHUFFLE),
    "blosc zstd-1, bytes": Blosc("zstd", 1, Blosc.SHUFFLE),
    "blosc zstd-3, bits": Blosc("zstd", 3, Blosc.BITSHUFFLE),
    "blosclz-5, bytes": Blosc("blosclz", 5, Blosc.SHUFFLE),
    "zstd-0": Zstd(0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--image", action="append", default=[], help="NAME=VOLUME, more to measure")
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it runs")
    chosen = parser.parse_args()
    shape, edges = (QUICK_SHAPE, QUICK_EDGES) if chosen.quick else (SHAPE, EDGES)
    blosc.use_threads = False  # as in a worker
    print("## Codecs of chunks\n")
    print(machine.describe())
    scan, label = phantom.scan(shape, np.random.default_rng(0), shape, (0, 0, 0))
    arrays: dict[str, NDArray[Any]] = {
        "CT phantom, int16": scan,
        "its label, uint8": label,
        "light microscopy, made, uint16": microscopy(scan.shape),
    }
    for text in chosen.image:
        name, _, path = text.partition("=")
        array = np.ascontiguousarray(Volume(path).numpy()[0])
        arrays[f"{name}, {array.dtype}"] = array
    for name, array in arrays.items():
        heads = " | ".join(f"{edge}³: ratio, GB/s, written MB/s" for edge in edges)
        print(f"\n| {name} | {heads} |\n|---" + "|---" * len(edges) + "|")
        for codec in CODECS:
            cells = [measure(array, edge, CODECS[codec]) for edge in edges]
            row = " | ".join(f"{r:.2f}, {speed:.1f}, {write:.0f}" for r, speed, write in cells)
            print(f"| {codec} | {row} |")


def microscopy(shape: tuple[int, ...]) -> NDArray[np.uint16]:
    """Return cells that glow on a dim ground: an offset, counted photons, noise of reading."""
    generator = np.random.default_rng(0)
    axes = [np.linspace(0, 2 * np.pi * waves, n) for n, waves in zip(shape, (9, 7, 8), strict=True)]
    i, j, k = np.meshgrid(*axes, indexing="ij", sparse=True)
    cells = np.clip(np.sin(i) * np.sin(j) * np.sin(k) - 0.3, 0, None)
    photons = generator.poisson(3 + 400 * cells).astype(np.float32)
    photons += generator.normal(100, 2, shape)
    image: NDArray[np.uint16] = np.rint(photons).clip(0, None).astype(np.uint16)
    return image


def measure(array: NDArray[Any], edge: int, codec: Any) -> tuple[float, float, float]:
    """Return how many times smaller chunks are stored, and GB/s decoded and MB/s encoded."""
    counts = [n // edge for n in array.shape]
    generator = np.random.default_rng(0)
    places = [[int(generator.integers(n)) * edge for n in counts] for _ in range(CHUNKS)]
    pieces = [
        np.ascontiguousarray(array[tuple(slice(a, a + edge) for a in place)]) for place in places
    ]
    start = time.thread_time()
    encoded = [bytes(codec.encode(piece)) for piece in pieces]
    taken = time.thread_time() - start
    # Beside each other, as many as a patch touches along an axis.
    out = np.empty((5 * edge, edge, edge), array.dtype)
    parts = np.array([[[n % 5 * edge, 0, edge], [0, 0, edge], [0, 0, edge]] for n in range(CHUNKS)])
    decoder = native_decoder("zstd" if codec.codec_id == "zstd" else "blosc")
    assert decoder is not None, "numcodecs' functions are not to be found"
    rows = np.zeros((CHUNKS, PARTS + parts[0].size), np.int64)
    rows[:, DATA] = [address_of_bytes(one) for one in encoded]
    rows[:, SIZE] = [len(one) for one in encoded]
    rows[:, TASK], rows[:, PARTS:] = DECODE, parts.reshape(CHUNKS, -1)
    row, best = np.zeros(edge, array.dtype), float("inf")
    for _ in range(ROUNDS):
        start = time.thread_time()
        place_chunks(out, (edge,) * 3, rows, row, decoder)
        best = min(best, time.thread_time() - start)
        assert (rows[:, STATUS] == SUCCESS).all()
    size = sum(piece.nbytes for piece in pieces)
    return size / sum(map(len, encoded)), size / best / 1e9, size / taken / 1e6


if __name__ == "__main__":
    main()
