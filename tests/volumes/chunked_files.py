"""One array in every chunked format, written by the libraries of these formats."""

from pathlib import Path

import numpy as np

FORMATS = ("zarr", "shards", "b2nd", "h5", "tif")


def write_chunked(path, array, form, edge):
    """Write (I, J, K) in chunks of ``edge`` cubed and return its path.

    Blocks of the ``.b2nd`` are of this size, four of them in a chunk; tiles of the TIFF too.
    """
    path = f"{path}.{'zarr' if form in ('zarr', 'shards') else form}"
    chunks = (edge,) * 3
    if form == "zarr":
        import zarr

        zarr.create_array(path, data=array, chunks=chunks)
    elif form == "shards":
        import zarr

        zarr.create_array(path, data=array, chunks=chunks, shards=(2 * edge,) * 3)
    elif form == "b2nd":
        import blosc2

        blosc2.asarray(
            array, urlpath=path, mode="w", chunks=(edge, 2 * edge, 2 * edge), blocks=chunks
        )
    elif form == "h5":
        import h5py

        with h5py.File(path, "w") as file:
            file.create_dataset("a", data=array, chunks=chunks, compression="gzip", shuffle=True)
    else:
        import tifffile

        # Axes of a TIFF have the names z, y, x: stored the other way round. Tiles in the plane
        # are multiples of 16, says the format.
        tile = (edge, *(-(-edge // 16) * 16,) * 2)
        tifffile.imwrite(path, array.T.copy(), tile=tile, volumetric=True, compression="zlib")
    return path


def spoil_all_but(path, form, kept):
    """Overwrite the stored bytes of all chunks but some, given by their place in the file's grid.

    Where they lie is asked of the library of the format, or read as its specification says.
    """
    for index, file, start, stop in list(_places(path, form)):
        if index not in kept:
            with open(file, "r+b") as opened:
                opened.seek(start)
                opened.write(b"\xff" * (stop - start))


def _places(path, form):
    """Yield (index, file, start, stop) of each stored chunk."""
    yield from {
        "zarr": _of_zarr,
        "shards": _of_shards,
        "b2nd": _of_b2nd,
        "h5": _of_h5,
        "tif": _of_tif,
    }[form](path)


def _of_zarr(path):
    for file in Path(path, "c").rglob("*"):
        if file.is_file():
            index = tuple(map(int, file.relative_to(Path(path, "c")).parts))
            yield index, file, 0, file.stat().st_size


def _of_shards(path):
    per_shard = (2, 2, 2)
    for shard, file, _, size in _of_zarr(path):
        # The index: offset and length of each, then a check sum (sharding codec 1.0).
        raw = file.read_bytes()[size - 4 - 16 * 8 : size - 4]
        table = np.frombuffer(raw, "<u8").reshape(*per_shard, 2)
        for inner in np.ndindex(per_shard):
            start, length = table[inner].tolist()
            if length < size:
                index = tuple(2 * a + b for a, b in zip(shard, inner, strict=True))
                yield index, file, start, start + length


def _of_b2nd(path):
    import blosc2

    raw = Path(path).read_bytes()
    array = blosc2.open(path, mode="r")
    grid = tuple(-(-n // c) for n, c in zip(array.shape, array.chunks, strict=True))
    inside = tuple(c // b for c, b in zip(array.chunks, array.blocks, strict=True))
    for number, chunk in enumerate(np.ndindex(grid)):
        stored = array.schunk.get_chunk(number)
        at = raw.index(stored)
        # After a header of 32 bytes, where each block begins; written in any order.
        starts = np.frombuffer(stored[32:], "<i4", int(np.prod(inside))).tolist()
        ends = [min([s for s in starts if s > start], default=len(stored)) for start in starts]
        for block, start, end in zip(np.ndindex(inside), starts, ends, strict=True):
            index = tuple(c * n + b for c, n, b in zip(chunk, inside, block, strict=True))
            yield index, path, at + start, at + end


def _of_h5(path):
    import h5py

    with h5py.File(path) as file:
        dataset = file["a"]
        for number in range(dataset.id.get_num_chunks()):
            found = dataset.id.get_chunk_info(number)
            index = tuple(a // c for a, c in zip(found.chunk_offset, dataset.chunks, strict=True))
            yield index, path, found.byte_offset, found.byte_offset + found.size


def _of_tif(path):
    import tifffile

    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        grid = tuple(-(-n // t) for n, t in zip(page.shape, page.tile, strict=True))
        places = zip(np.ndindex(grid), page.dataoffsets, page.databytecounts, strict=True)
        for index, start, length in places:
            yield index, path, start, start + length
