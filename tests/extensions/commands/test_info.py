"""Facts of ``voxpipe info``: chunks of a patch against zarr-python, and words of spacings."""

import json
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import fsspec
import nibabel
import numpy as np
import pytest
import SimpleITK
import tifffile
import zarr

import voxpipe as vp
from voxpipe.__main__ import main
from voxpipe.volumes import close_volumes


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    close_volumes()


@pytest.mark.parametrize(("channels", "of_chunk"), [(2, 1), (3, 1), (4, 2), (2, 2), (1, 1)])
def test_a_patch_decodes_each_chunk_of_its_channels_once(channels, of_chunk, capsys):
    """Whether the channels share their chunks or not, the whole volume needs its own bytes."""
    shape, chunks = (channels, 8, 8, 8), (of_chunk, 4, 4, 4)
    array = zarr.create_array("a.zarr", shape=shape, chunks=chunks, dtype="u2")
    array[:] = np.arange(array.size).reshape(shape)

    assert main(["info", "a.zarr", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["patch_chunks"] == array.nchunks
    assert facts["patch_bytes"] == facts["read_bytes"] == array.nbytes
    assert ", 1 times the voxels needed" in facts["scheme"]


def test_a_part_of_the_chunks_is_more_than_the_patch(capsys):
    """A patch of 6 voxels in chunks of 4 touches two of them along each axis."""
    array = zarr.create_array("a.zarr", shape=(2, 8, 8, 8), chunks=(1, 4, 4, 4), dtype="u1")
    array[:] = 1

    assert main(["info", "a.zarr", "--patch", "6", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["patch_chunks"], facts["patch_bytes"]) == (array.nchunks, 2 * 6**3)
    assert facts["read_bytes"] == array.nbytes


ARRAY = np.zeros((4, 5, 6), "i2")


def _save_nifti(path, *spacing):
    image = nibabel.Nifti1Image(ARRAY, np.diag([*spacing, 1.0]))
    image.header.set_xyzt_units("unknown")
    image.set_sform(image.affine, 1)
    nibabel.save(image, path)


WRITERS = {
    "a.nii": lambda path: _save_nifti(path, 1, 1, 1),
    "b.nii.gz": lambda path: _save_nifti(path, 1, 1, 3),
    "a.nrrd": lambda path: SimpleITK.WriteImage(SimpleITK.GetImageFromArray(ARRAY), path),
    "a.mha": lambda path: SimpleITK.WriteImage(SimpleITK.GetImageFromArray(ARRAY), path),
    "a.npy": lambda path: np.save(path, ARRAY),
    "a.tif": lambda path: tifffile.imwrite(path, ARRAY, photometric="minisblack"),
    "a.zarr": lambda path: zarr.create_array(path, shape=ARRAY.shape, dtype="i2"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_format_with_spacings_gives_its_own(name, capsys):
    """Only formats that hold none say that it is not given; so does the text of a volume."""
    WRITERS[name](name)
    is_given = name not in ("a.npy", "a.tif", "a.zarr")
    size = "1 x 1 x 3" if name == "b.nii.gz" else "1 x 1 x 1"
    text = f"{size} mm (no unit in the file)" if is_given else "not given: a voxel counts as 1 mm"

    assert main(["info", name]) == 0
    assert f"spacing {text}" in " ".join(capsys.readouterr().out.split())
    assert ("not given" not in str(vp.Volume(name))) == is_given


def test_a_given_affine_is_a_spacing(capsys):
    """Also the identity."""
    np.save("a.npy", ARRAY)
    matrix = json.dumps(np.eye(4).tolist())
    assert main(["info", "a.npy", "--reader", f"affine={matrix}"]) == 0
    assert "not given" not in capsys.readouterr().out


PLANES = np.random.default_rng(0).integers(0, 999, (2, 6, 40, 48)).astype("u2")


def facts_of(capsys, *line):
    """Return the facts that ``info`` prints as JSON."""
    assert main(["info", *map(str, line), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def movies(tmp_path, started_clients):
    """Write movies of two times in two levels, one with labels, and serve them."""
    for name in ("a.ome.zarr", "a.ome.tif"):
        vp.save(name, PLANES, axes="tzyx", levels=2)
    labels = (PLANES > 500).astype("u1")
    vp.save("a.ome.zarr/labels/nuclei", labels, axes="tzyx", like="a.ome.zarr", levels=2)
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path), "/info-of-movies", recursive=True)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield ["memory://info-of-movies", f"http://127.0.0.1:{server.server_port}"]
        server.shutdown()
        thread.join()
    memory.rm("/info-of-movies", recursive=True)


PARTS = [
    ([], "", {}),
    (["--reader", "time=0"], ", time 0", {"time": 0}),
    (["--reader", "label=nuclei"], ", label nuclei", {"label": "nuclei"}),
    (
        ["--reader", "label=nuclei", "--reader", "time=1"],
        ", label nuclei, time 1",
        {"label": "nuclei", "time": 1},
    ),
    (["--reader", "time=0", "--reader", "level=1"], ", time 0", {"time": 0}),
]


@pytest.mark.filterwarnings("ignore:times-and-channels")
@pytest.mark.parametrize(
    ("name", "options", "words", "part"),
    # A TIFF has no label groups.
    [("a.ome.zarr", *one) for one in PARTS]
    + [("a.ome.tif", *one) for one in PARTS if "label" not in one[2]],
)
def test_a_part_of_an_image_has_the_format_of_its_file(name, options, words, part, movies, capsys):
    """With its levels and codec; at a URL as on a disk."""
    local = facts_of(capsys, name, *options)
    main(["info", name, *options])
    text = capsys.readouterr().out

    form = name.rpartition(".")[2].replace("tif", "tiff")
    assert (local["format"], local["part"]) == (form, part)
    assert f"{form}{words}\n" in text
    assert local["codec"]
    assert local["levels"] == 2 - ("level=1" in options)
    for root in movies[: 2 if name.endswith("zarr") else 1]:
        there = facts_of(capsys, f"{root}/{name}", *options)
        for fact in ("format", "part", "levels", "codec", "shape", "chunks", "dtype", "spacing_mm"):
            assert there[fact] == local[fact]
        bytes_there = None if name.endswith("zarr") else local["stored_bytes"]
        assert there["stored_bytes"] == bytes_there
