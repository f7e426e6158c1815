"""Datasets of HDF5 files, written by h5py."""

import json
import os
import random
import subprocess
import sys
import warnings

import fsspec
import numpy as np
import pytest
from nifti_files import numbered

from voxpipe import check
from voxpipe.core import Region
from voxpipe.core.errors import (
    BadHeader,
    CorruptVolume,
    EmptyVolume,
    LikelyMistake,
    MissingDependency,
    TruncatedVolume,
    UnknownFormat,
    VolumeError,
    VolumeNotFound,
    VolumeReadError,
)
from voxpipe.testing import StoreCase, StoreContract
from voxpipe.volumes import Volume, close_volumes

h5py = pytest.importorskip("h5py")
pytestmark = pytest.mark.filterwarnings("ignore:times-and-channels")
FILTERS = {
    "gzip": {"compression": "gzip", "shuffle": True},
    "gzip, checked": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "checked": {"fletcher32": True},
    "none": {},
}


def write(path, array, name="raw", spacing=None, **how):
    """Add a dataset to a file."""
    with h5py.File(path, "a") as file:
        made = file.create_dataset(name, data=array, **how)
        if spacing is not None:
            made.attrs["element_size_um"] = spacing
    return path


class TestChunks(StoreContract):
    @pytest.fixture(params=list(FILTERS))
    def case(self, tmp_path, request):
        array = numbered((2, 5, 6, 7), ">i2")
        path = write(tmp_path / "a.h5", array, chunks=(1, 2, 4, 4), **FILTERS[request.param])
        assert (Volume(path).chunks, Volume(path).disk_dtype) == ((2, 4, 4), array.dtype)
        return StoreCase(path, array.astype("i2"), np.eye(4))


class TestMapped(StoreContract):
    """A dataset in one piece is a view of the mapped file."""

    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7), ">f4")
        path = write(tmp_path / "a.hdf5", array, spacing=(2000, 500, 250))
        assert Volume(path).access == "view"
        return StoreCase(path, array[None].astype("f4"), np.diag([2, 0.5, 0.25, 1]))


class TestChosenDataset(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        path = write(tmp_path / "a.h5", numbered((5, 6, 7)), "volumes/raw", chunks=(2, 2, 2))
        array = numbered((5, 6, 7), np.uint8) + 1
        write(path, array, "volumes/label", (1000, 1000, 3000), chunks=(5, 3, 2))
        return StoreCase(path, array[None], np.diag([1, 1, 3.0, 1]), {"dataset": "volumes/label"})


def test_one_dataset_needs_no_name(tmp_path):
    """The only array of two to four axes is the volume; of several, the user has to choose."""
    path = write(tmp_path / "a.h5", numbered((5, 6, 7)), "deep/inside")
    write(path, np.arange(3), "names")

    assert Volume(path).shape == (1, 5, 6, 7)
    write(path, numbered((5, 6)), "mask")
    with pytest.raises(UnknownFormat, match=r"2 datasets .*deep/inside, mask, names"):
        _ = Volume(path).shape
    assert Volume(path, dataset="mask").shape == (1, 5, 6, 1)
    for wrong, message in (("raw", "no dataset 'raw'"), ("deep", "is a group"), (3, "dataset 3")):
        with pytest.raises(BadHeader, match=message):
            _ = Volume(path, dataset=wrong).shape
    with pytest.raises(TypeError, match="datset"):
        _ = Volume(path, datset="raw").shape


def test_booleans_and_half_floats(tmp_path):
    """HDF5 stores them as types of its own; disk_dtype and dtype tell the truth."""
    flags, halves = numbered((4, 5, 6)) % 2 == 0, numbered((4, 5, 6), np.float16)
    path = write(tmp_path / "a.h5", flags, "flags")
    write(path, halves, "halves")

    volume = Volume(path, dataset="flags")
    assert (volume.disk_dtype, volume.dtype) == (np.dtype(bool), np.dtype(bool))
    assert volume.numpy()[0].tolist() == flags.tolist()
    assert Volume(path, dataset="halves").dtype == np.float16
    assert Volume(path, dataset="halves").numpy()[0].tolist() == halves.tolist()


def test_chunks_that_are_not_stored_hold_the_fill_value(tmp_path):
    """As h5py reads them."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("raw", (4, 4, 4), "i2", chunks=(2, 2, 2), fillvalue=7)[:2] = 1
        file.create_dataset("none", (4, 4, 4), "i2", fillvalue=5)

    raw = Volume(tmp_path / "a.h5", dataset="raw")
    assert raw.numpy()[0, :, 0, 0].tolist() == [1, 1, 7, 7]
    with pytest.warns(EmptyVolume, match="not one chunk.*fill value 5"):
        assert np.unique(Volume(tmp_path / "a.h5", dataset="none").numpy()).tolist() == [5]


@pytest.mark.parametrize("chunks", [(2, 2, 2), None])
@pytest.mark.parametrize("remote", [False, True])
def test_a_dataset_that_was_never_written_is_warned_of_once(tmp_path, chunks, remote):
    """HDF5 reads fill there, as zarr does; ``check`` counts it as bad."""
    with h5py.File(tmp_path / "image.h5", "w") as file:
        file.create_dataset("raw", (4, 4, 4), "i2", chunks=chunks)
    path = tmp_path / "image.h5"
    if remote:
        fsspec.filesystem("memory").put(str(path), f"/never/{tmp_path.name}.h5")
        path = f"memory://never/{tmp_path.name}.h5"
    volume, region = Volume(path), Region((0, 0, 0), (2, 2, 2))

    with pytest.warns(EmptyVolume, match="not one chunk") as record:
        assert [volume.read(region).array.any() for _ in range(3)] == [False] * 3
    assert len(record) == 1
    assert not volume.probe().stores_chunks()
    if not remote:
        (bad,) = check(tmp_path).bad
        assert bad.error == "EmptyVolume"


def test_a_dataset_of_written_zeros_is_not_empty(tmp_path):
    """Nor is one that is put together of others."""
    zeros = np.zeros((4, 4, 4), "i2")
    path = write(write(tmp_path / "a.h5", zeros, "whole"), zeros, "chunks", chunks=(2, 2, 2))
    parts = h5py.VirtualLayout((4, 4, 4), "i2")
    parts[...] = h5py.VirtualSource(".", "whole", (4, 4, 4))
    with h5py.File(path, "a") as file:
        file.create_virtual_dataset("parts", parts)

    for name in ("whole", "chunks", "parts"):
        assert not Volume(path, dataset=name).numpy().any()


@pytest.mark.parametrize(
    ("link", "place"),
    [
        (h5py.ExternalLink("b.h5", "/g/raw"), r"b\.h5:/g/raw"),
        (h5py.SoftLink("/gone"), ":/gone"),
    ],
)
def test_a_file_of_links_names_their_targets(tmp_path, link, place):
    """A link to another file is followed only by name, which the advice gives."""
    write(tmp_path / "b.h5", numbered((2, 3, 4)), "g/raw")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["far"] = link

    with pytest.raises(UnknownFormat, match=rf"(?s)far \(a link to {place}\).*dataset="):
        Volume(tmp_path / "a.h5").probe()
    if place != ":/gone":
        assert Volume(tmp_path / "a.h5", dataset="far").spatial_shape == (2, 3, 4)


def test_datasets_without_an_array_are_named(tmp_path):
    """An empty dataset has no shape, a single number no axes."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["void"], file["number"] = h5py.Empty("f4"), 3.0

    with pytest.raises(UnknownFormat, match=r"number \(no array\), void \(no array\)"):
        Volume(tmp_path / "a.h5").probe()
    with pytest.raises(BadHeader, match=r"/void of .*a\.h5 is empty: it has no shape"):
        Volume(tmp_path / "a.h5", dataset="void").probe()
    with pytest.raises(BadHeader, match=r"has 0 axes"):
        Volume(tmp_path / "a.h5", dataset="number").probe()


def test_advice_offers_volumes_before_tables(tmp_path):
    """Tables of BigDataViewer are no volumes at all."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, shape in (("a", (2, 3)), ("s00/resolutions", (1, 3)), ("z", (2, 3, 4))):
            file[name] = np.ones(shape)
        file["b"] = np.full((2, 2, 2), b"text")

    with pytest.raises(UnknownFormat, match=r"(?s)all: a, b, z\..*dataset='z'"):
        Volume(tmp_path / "a.h5").probe()
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file["a"], file["b"]
    assert Volume(tmp_path / "a.h5").spatial_shape == (2, 3, 4)


@pytest.mark.parametrize("spacing", [(1, 2), (1, 2, float("nan")), (1, 0, 1), "wide"])
def test_a_senseless_spacing_is_refused(tmp_path, spacing):
    """Three positive lengths, or none at all."""
    path = write(tmp_path / "a.h5", numbered((4, 5, 6)), spacing=spacing)

    with pytest.raises(BadHeader, match=r"a\.h5"):
        _ = Volume(path).shape


def test_damage_is_named(tmp_path):
    """Cut short or changed: an error that names the file, or voxels; never a crash."""
    path = tmp_path / "a.h5"
    write(path, numbered((5, 6, 7)), chunks=(3, 4, 4), compression="gzip", fletcher32=True)
    whole = path.read_bytes()
    generator = random.Random(0)
    damaged = [whole[: n * len(whole) // 50] for n in range(50)]
    for _ in range(200):
        changed = bytearray(whole)
        changed[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
        damaged.append(bytes(changed))
    refused = []
    for number, data in enumerate(damaged):
        # A name of its own: HDF5 knows a file that it has open by its place on the disk.
        file = tmp_path / f"{number}.h5"
        file.write_bytes(data)
        close_volumes()
        try:
            volume = Volume(file)
            assert volume[:, 0, 0, 0].shape[1:] == (1, 1, 1)
        except VolumeError as error:
            refused.append((file.name, str(error)))

    assert len(refused) >= 50
    assert [text for name, text in refused if name not in text] == []


def test_a_root_group_of_no_type_is_named(tmp_path):
    """HDF5 opens such a file; h5py has no hash for it."""
    path = tmp_path / "a.h5"
    write(path, numbered((2, 3, 4)))
    whole = bytearray(path.read_bytes())
    whole[112] = 0  # the type of its first message; 17 is a symbol table
    path.write_bytes(whole)
    with pytest.raises(BadHeader, match=r"a\.h5 is no sound HDF5 file"):
        Volume(path).numpy()


def test_a_damaged_chunk_is_named(tmp_path):
    """An error while decoding says which region of which file it was."""
    path = write(tmp_path / "a.h5", numbered((4, 4, 4)), chunks=(2, 4, 4), fletcher32=True)
    with h5py.File(path) as file:
        offset = file["raw"].id.get_chunk_info(1).byte_offset
    data = bytearray(path.read_bytes())
    data[offset : offset + 4] = b"what"
    path.write_bytes(data)
    volume = Volume(path)

    assert volume[:, :2].shape == (1, 2, 4, 4)
    with pytest.raises(CorruptVolume, match=r"\[2:4, 0:4, 0:4\] of .*a\.h5"):
        _ = volume[:, 2:]


def test_what_is_no_hdf5(tmp_path, monkeypatch):
    """A missing file, another file, a cut one, text, and a missing library are told apart."""
    (tmp_path / "other.h5").write_bytes(b"what is this?")
    write(tmp_path / "text.h5", np.array([[b"a"]], dtype="S1"))
    write(tmp_path / "cut.h5", numbered((40, 50, 60)))
    whole = (tmp_path / "cut.h5").read_bytes()
    (tmp_path / "cut.h5").write_bytes(whole[:-100])

    for name, error, message in (
        ("none.h5", VolumeNotFound, "none"),
        ("other.h5", BadHeader, r"other\.h5 is no sound HDF5"),
        ("text.h5", UnknownFormat, r"text\.h5 holds"),
        ("cut.h5", (BadHeader, TruncatedVolume), r"cut\.h5"),
    ):
        with pytest.raises(error, match=message):
            _ = Volume(tmp_path / name).shape
    with pytest.raises(VolumeNotFound, match=r"memory://remote/none\.h5"):
        _ = Volume("memory://remote/none.h5").shape
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingDependency, match=r"text\.h5 needs h5py"):
        _ = Volume(tmp_path / "text.h5").shape


def write_virtual(path, source, dataset="d"):
    """Write a virtual dataset that shows another one, or one slice each of many."""
    if "%" in source:
        every = h5py.h5s.UNLIMITED
        with h5py.File(path, "w", libver="latest") as file:
            how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            space = h5py.h5s.create_simple((4, 4, 4), (every, 4, 4))
            space.select_hyperslab((0, 0, 0), (every, 1, 1), (1, 1, 1), (1, 4, 4))
            slices = h5py.h5s.create_simple((1, 4, 4))
            how.set_virtual(space, source.encode(), dataset.encode(), slices)
            whole = h5py.h5s.create_simple((4, 4, 4), (every, 4, 4))
            h5py.h5d.create(file.id, b"d", h5py.h5t.NATIVE_INT16, whole, dcpl=how)
        return
    with h5py.File(path, "w", libver="latest") as file:
        layout = h5py.VirtualLayout((4, 4, 4), "i2")
        layout[:] = h5py.VirtualSource(source, dataset, (4, 4, 4))
        file.create_virtual_dataset("d", layout)


@pytest.mark.parametrize(
    "sources",
    [{"a": "."}, {"a": "a.h5"}, {"a": "b.h5", "b": "a.h5"}, {"a1": "a%b.h5"}, {"a": "./a.h5"}],
    ids=["itself", "its file", "two files", "a pattern", "a path"],
)
def test_a_virtual_dataset_that_leads_to_itself_is_refused(tmp_path, sources):
    """HDF5 would follow it until the process ends."""
    for name, source in sources.items():
        write_virtual(tmp_path / f"{name}.h5", source)

    with pytest.raises(BadHeader, match="leads back to itself"):
        Volume(tmp_path / f"{min(sources)}.h5").numpy()


def test_a_virtual_dataset_of_others_is_read(tmp_path):
    """Of one that is virtual itself, and of numbers."""
    with h5py.File(tmp_path / "n.h5", "w") as file:
        file["d"] = numbered((4, 4, 4), np.int16)
    write_virtual(tmp_path / "m.h5", "n.h5")
    write_virtual(tmp_path / "v.h5", "m.h5")

    assert Volume(tmp_path / "v.h5").numpy()[0].tolist() == numbered((4, 4, 4)).tolist()


def write_parts(folder, sources, dataset="raw"):
    """Write a virtual dataset of slices of numbered voxels: of files, or of its own file."""
    voxels = numbered((len(sources), 5, 6), np.uint16) + 1
    layout = h5py.VirtualLayout(voxels.shape, voxels.dtype)
    for n, source in enumerate(sources):
        layout[n] = h5py.VirtualSource(source, f"{dataset}{n}", (5, 6))
        with h5py.File(folder / ("all.h5" if source == "." else source), "a") as file:
            file[f"{dataset}{n}"] = voxels[n]
    with h5py.File(folder / "all.h5", "a") as file:
        file.create_virtual_dataset("img", layout)
    return voxels


@pytest.mark.parametrize("lost", ["first", "middle", "last", "renamed", "here", "nested"])
def test_a_missing_source_of_a_virtual_dataset_is_named(tmp_path, lost):
    """HDF5 reads the fill value there."""
    files = ["."] * 3 if lost == "here" else ["part0.h5", "part1.h5", "part2.h5"]
    voxels, name = write_parts(tmp_path, files), "all.h5"
    if lost == "nested":
        write_virtual(tmp_path / "outer.h5", "all.h5", "img")
        name = "outer.h5"
    else:
        assert Volume(tmp_path / name, dataset="img").numpy()[0].tolist() == voxels.tolist()
    close_volumes()
    missing = f"part{0 if lost == 'first' else 2 if lost == 'last' else 1}.h5"
    if lost in ("renamed", "here"):
        missing = "all.h5" if lost == "here" else missing
        with h5py.File(tmp_path / missing, "a") as file:
            file.move("raw1", "gone")
    else:
        (tmp_path / missing).rename(tmp_path / "moved.h5")

    volume = Volume(tmp_path / name, dataset="d" if lost == "nested" else "img")
    with pytest.raises(VolumeNotFound, match=rf"raw\d' of .*{missing}, which"):
        volume.numpy()


@pytest.mark.parametrize(("there", "missing"), [((0, 1, 2), ""), ((0, 1, 3), "2"), ((1, 2), "0")])
def test_sources_that_are_counted_have_no_gap(tmp_path, there, missing):
    """HDF5 ends a dataset of numbered files at the first that is missing."""
    for n in there:
        write(tmp_path / f"a{n}.h5", numbered((1, 4, 4), np.int16) + n)
    write_virtual(tmp_path / "v.h5", "a%b.h5", "raw")

    if not missing:
        with h5py.File(tmp_path / "v.h5") as file:
            assert Volume(tmp_path / "v.h5").numpy()[0].tolist() == file["d"][...].tolist()
        return
    with pytest.raises(VolumeNotFound, match=rf"a{missing}\.h5, which is missing"):
        Volume(tmp_path / "v.h5").numpy()


@pytest.mark.parametrize("left", [0, 100])
def test_numbers_in_a_short_or_missing_file_are_refused(tmp_path, left):
    """HDF5 reads zeros behind the end of an external file."""
    voxels = numbered((4, 5, 6), np.int16)
    (tmp_path / "raw.bin").write_bytes(voxels.tobytes())
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("d", voxels.shape, "i2", external=[("raw.bin", 0, voxels.nbytes)])
    assert Volume(tmp_path / "a.h5").numpy()[0].tolist() == voxels.tolist()
    close_volumes()
    (tmp_path / "raw.bin").write_bytes(voxels.tobytes()[:left])
    if not left:
        (tmp_path / "raw.bin").unlink()

    with pytest.raises((TruncatedVolume, VolumeNotFound), match=r"raw\.bin"):
        Volume(tmp_path / "a.h5").numpy()


def test_a_link_to_a_missing_file_names_it(tmp_path):
    """h5py says that there is no dataset of this name."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["d"] = h5py.ExternalLink("b.h5", "/raw")

    with pytest.raises(VolumeNotFound, match=r"/raw' of .*b\.h5, which is missing"):
        Volume(tmp_path / "a.h5", dataset="d").numpy()


def tags(axes):
    """Return what vigra and ilastik write about axes."""
    return json.dumps({"axes": [{"key": key} for key in axes]})


@pytest.mark.parametrize("axes", ["zyx", "zyxc", "czyx", "tzyxc", "tczyx", "yx", "yxc", "xyz"])
def test_axistags_name_the_axes(tmp_path, axes):
    """They become (C, x, y, z) wherever they are stored; time and channels are folded."""
    lengths = {"t": 2, "c": 3, "z": 4, "y": 5, "x": 6}
    array = numbered(tuple(lengths[key] for key in axes))
    path = write(tmp_path / "a.h5", array, "exported_data", spacing=(4000, 5000, 6000))
    with h5py.File(path, "a") as file:
        file["exported_data"].attrs["axistags"] = tags(axes)

    whole = array.transpose([axes.index(key) for key in "tcxyz" if key in axes])
    shape = [lengths[key] if key in axes else 1 for key in "xyz"]
    steps = [6.0, 5.0, 4.0] if axes != "xyz" else [4.0, 5.0, 6.0]
    assert Volume(path).numpy().tolist() == whole.reshape(-1, *shape).tolist()
    assert Volume(path).spacing == pytest.approx(steps)


def test_axes_that_nothing_names_are_refused_with_a_way_out(tmp_path):
    """Five of them are no (C, I, J, K); tags of another number, or twice the same, are none."""
    path = write(tmp_path / "a.h5", numbered((1, 2, 3, 4, 5)))

    for how in ({}, {"dataset": "raw"}):
        with pytest.raises((UnknownFormat, BadHeader), match=r'axes="t.*zyx"') as error:
            _ = Volume(path, **how).shape
        assert "OME" not in str(error.value)
        assert "Give dataset=" not in str(error.value)
    for wrong, message in (("zyx", "name 3"), ("tzzyx", "one name"), (5, "make no sense")):
        with h5py.File(path, "a") as file:
            file["raw"].attrs["axistags"] = wrong if wrong == 5 else tags(wrong)
        with pytest.raises(BadHeader, match=message):
            _ = Volume(path).shape


@pytest.mark.parametrize("kind", ["chunks", "gzip", "one piece", "virtual"])
def test_bigdataviewer_stores_unsigned_numbers_as_signed(tmp_path, kind):
    """A coarser level covers the place of the finest, by its factors (x, y, z)."""
    voxels = np.linspace(0, 65535, 4 * 6 * 7).astype("u2").reshape(4, 6, 7)
    how = {"chunks": (4, 4, 4)} if kind in ("chunks", "gzip") else {}
    how |= {"compression": "gzip"} if kind == "gzip" else {}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["s00/resolutions"] = np.array([[1.0, 1, 1], [4, 2, 1]])
        file["s00/subdivisions"] = np.array([[4, 4, 4]] * 2, "i4")
        for level in range(2):
            place = f"t00003/s00/{level}/cells"
            if kind == "virtual":
                file[f"numbers{level}"] = voxels.view("i2")
                layout = h5py.VirtualLayout(voxels.shape, "i2")
                layout[...] = h5py.VirtualSource(".", f"numbers{level}", voxels.shape)
                file.create_virtual_dataset(place, layout)
            else:
                file.create_dataset(place, data=voxels.view("i2"), **how)
        file["t00003/s00/plain"] = voxels.view("i2")

    finest = Volume(tmp_path / "a.h5", dataset="t00003/s00/0/cells")
    coarse = Volume(tmp_path / "a.h5", dataset="t00003/s00/1/cells")
    assert (finest.dtype, finest.spacing) == (np.uint16, (1.0, 1.0, 1.0))
    assert finest.numpy()[0].tolist() == coarse.numpy()[0].tolist() == voxels.tolist()
    assert coarse.affine[:3].tolist() == [[1, 0, 0, 0], [0, 2, 0, 0.5], [0, 0, 4, 1.5]]
    assert Volume(tmp_path / "a.h5", dataset="t00003/s00/plain").dtype == np.int16


@pytest.mark.parametrize("key", ["scale_factor", "add_offset", "_Unsigned"])
def test_conventions_of_netcdf_are_refused(tmp_path, key):
    """They say that values are others than the stored numbers."""
    path = write(tmp_path / "a.h5", numbered((2, 3, 4)))
    with h5py.File(path, "a") as file:
        file["raw"].attrs[key] = "true" if key == "_Unsigned" else 2.0

    with pytest.raises(UnknownFormat, match=rf"{key} = .*, which changes its values"):
        _ = Volume(path).shape
    neutral = {"scale_factor": np.float32([1]), "add_offset": 0, "_Unsigned": b"false"}
    with h5py.File(path, "a") as file:
        file["raw"].attrs[key] = neutral[key]
    assert Volume(path).spatial_shape == (2, 3, 4)


@pytest.mark.parametrize("spacing", [(0, 1, 1), (-1, 1, 1), (float("nan"), 1, 1), (1, 2), "a"])
def test_a_given_affine_replaces_a_senseless_spacing(tmp_path, spacing):
    """The advice of the error for such a file works."""
    path = write(tmp_path / "a.h5", numbered((4, 5, 6)), spacing=spacing)
    affine = np.diag([1.0, 2, 3, 1])

    assert Volume(path, affine=affine).spacing == (1.0, 2.0, 3.0)
    with pytest.raises(BadHeader, match="Pass affine="):
        _ = Volume(path).shape


@pytest.mark.parametrize("swmr", [True, False])
def test_a_file_in_use_is_named_as_such(tmp_path, swmr):
    """Its error has the way out; once it is closed it is read."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("x", (4, 5, 6), "u2", maxshape=(None, 5, 6), chunks=(1, 5, 6))[...] = 3
    code = f"import h5py, sys; f = h5py.File({os.fspath(path)!r}, 'a', libver='latest')\n"
    code += "f.swmr_mode = True\n" if swmr else ""
    code += "print(1, flush=True); sys.stdin.read(); f.close()"
    how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **how) as writer:
        writer.stdout.readline()
        with pytest.raises(VolumeReadError, match=r"a\.h5 is being written by another process"):
            _ = Volume(path).shape
        writer.communicate(timeout=60)

    assert Volume(path).numpy().sum() == 360


def test_a_closed_volume_frees_its_file_for_a_writer(tmp_path):
    """All datasets of the file that this process has open are closed; the next read opens them."""
    path = write(tmp_path / "a.h5", numbered((4, 5, 6)), "x", chunks=(2, 5, 6))
    write(path, numbered((4, 5, 6)), "y", chunks=(2, 5, 6))
    code = f"import h5py; h5py.File({os.fspath(path)!r}, 'a').close()"

    def may_write():
        return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0

    with Volume(path, dataset="x") as volume, Volume(path, dataset="y") as other:
        expected = volume.numpy()
        assert other.numpy().shape == (1, 4, 5, 6)
        assert not may_write()
        volume.close()
        assert may_write()
        close_volumes()
    assert Volume(path, dataset="x").numpy().tolist() == expected.tolist()


def test_a_closed_volume_is_opened_by_its_next_read(tmp_path):
    """The same object reads on, of a mapped file, of chunks, and through others."""
    path = write(tmp_path / "a.h5", numbered((4, 5, 6)), "x", chunks=(2, 5, 6))
    mapped = write(tmp_path / "b.h5", numbered((4, 5, 6)), "x")
    for volume in (Volume(path), Volume(mapped), Volume([path, mapped]), Volume(numbered((2, 3)))):
        expected = volume.numpy().tolist()
        volume.close()
        volume.close()
        assert volume.numpy().tolist() == expected


@pytest.mark.parametrize("chunks", [None, (2, 2, 2)])
@pytest.mark.parametrize(
    ("base", "precision", "offset", "value"),
    [("STD_U16LE", 12, 4, 1000), ("STD_I16BE", 12, 0, -5), ("STD_I32LE", 20, 3, -70_000)],
)
def test_numbers_of_fewer_bits_are_those_of_h5py(tmp_path, chunks, base, precision, offset, value):
    """Integers may use a part of their bits; the stored bytes are other numbers."""
    kind = getattr(h5py.h5t, base).copy()
    kind.set_precision(precision)
    kind.set_offset(offset)
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunks:
        plan.set_chunk(chunks)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        space = h5py.h5s.create_simple((4, 4, 4))
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"d", kind, space, plan))
        dataset[...] = value
        dataset[0, 1, 2] = 7
        reference = dataset[...]
    assert reference.max() == max(value, 7)

    np.testing.assert_array_equal(Volume(tmp_path / "a.h5", axes="zyx").numpy()[0].T, reference)


@pytest.mark.parametrize("components", [0, 3])
@pytest.mark.parametrize("shape", [(4, 3, 2), (3, 2)])
@pytest.mark.parametrize("options", [{}, {"dataset": "ITKImage/0/VoxelData"}])
def test_an_image_of_itk(tmp_path, shape, components, options):
    """Axes and place are those that SimpleITK wrote and reads."""
    SimpleITK = pytest.importorskip("SimpleITK")  # noqa: N806
    axes = len(shape)
    array = numbered((*shape, components) if components else shape, np.int16)
    image = SimpleITK.GetImageFromArray(array, isVector=bool(components))
    image.SetSpacing((1.5, 2, 3)[:axes])
    image.SetOrigin((10, 20, 30)[:axes])
    image.SetDirection(np.eye(axes)[[*range(1, axes), 0]].ravel().tolist())
    SimpleITK.WriteImage(image, tmp_path / "a.h5")

    volume = Volume(tmp_path / "a.h5", **options)

    planes = array.reshape(*shape, -1).reshape(-1, *shape[-2:], max(1, components))
    assert np.array_equal(volume.numpy(), planes.T)
    corner = [n - 1 for n in image.GetSize()]
    world = np.zeros(3)
    world[:axes] = image.TransformIndexToPhysicalPoint(corner)
    found = volume.affine @ [*corner, *[0] * (3 - axes), 1]
    assert np.allclose(found[:3], world * [-1, -1, 1])


def test_an_image_of_itk_with_other_facts(tmp_path):
    """Axes and geometries that do not fit are refused; ``affine`` replaces the geometry."""
    path = write(tmp_path / "a.h5", numbered((4, 3, 2)), "ITKImage/0/VoxelData")
    write(path, np.array([2, 3, 4]), "ITKImage/0/Dimension")
    for name, values in (
        ("Origin", np.zeros(3)),
        ("Spacing", np.ones(2)),
        ("Directions", np.eye(3)),
    ):
        write(path, values, f"ITKImage/0/{name}")

    with pytest.raises(BadHeader, match=r"Spacing, Directions of /ITKImage/0 .* do not fit 3 axes"):
        _ = Volume(path).shape
    assert Volume(path, affine=np.eye(4)).shape == (1, 2, 3, 4)
    with pytest.raises(BadHeader, match=r"axes='xyz' .* differs from .* 'zyx'"):
        _ = Volume(path, axes="xyz", affine=np.eye(4)).shape


@pytest.mark.parametrize("how", ["labels", "scales"])
def test_axes_have_labels_or_scales(tmp_path, how):
    """HDF5's labels of axes order them, and the names of their scales, as netCDF writes them."""
    array = np.arange(24, dtype="i2").reshape(2, 3, 4)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("d", data=array)
        for dim, name in zip(dataset.dims, ("z", "y", "x"), strict=True):
            if how == "labels":
                dim.label = name
                continue
            scale = file.create_dataset(name, data=np.arange(1))
            scale.make_scale(name)
            dim.attach_scale(scale)

    volume = Volume(tmp_path / "a.h5", dataset="d")

    assert volume.numpy()[0].tolist() == array.T.tolist()


@pytest.mark.parametrize("names", ["zyx", "zxy", ""])
def test_labels_that_differ_from_the_axistags(tmp_path, names):
    """Two names of one axis are refused; ``axes=`` decides."""
    array, path = np.arange(24, dtype="i2").reshape(2, 3, 4), tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("d", data=array)
        dataset.attrs["axistags"] = json.dumps({"axes": [{"key": key} for key in "zyx"]})
        for dim, name in zip(dataset.dims, names, strict=False):
            dim.label = name

    if names == "zxy":
        with pytest.raises(BadHeader, match=r"name its axes z, y, x, and its array z, x, y"):
            _ = Volume(path).shape
    with h5py.File(path) as file:
        assert np.array_equal(Volume(path, axes="zyx").numpy()[0].T, file["d"])


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ({"z": 3.0, "y": 0.5, "x": 0.5}, "z, y, x"),
        ({"z": 4.0, "y": 1.0, "x": 1.0}, "z"),
        ({"z": 0.0, "y": 0.0, "x": 0.0, "c": 5.0}, ""),  # vigra's default: unknown
        ({"z": 1.0, "y": 1, "x": 1}, ""),
        ({}, ""),
    ],
)
@pytest.mark.parametrize("has_size", [False, True])
def test_a_resolution_in_the_axistags(tmp_path, sizes, names, has_size):
    """It has no unit and is not read, which is warned of; `element_size_um` counts before it."""
    axes = [{"key": key, "resolution": sizes.get(key, 0.0), "typeFlags": 2} for key in "zyxc"]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("raw", data=numbered((3, 4, 5, 2)))
        dataset.attrs["axistags"] = json.dumps({"axes": axes})
        if has_size:
            dataset.attrs["element_size_um"] = [3000, 1000, 1000]

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        spacing = Volume(tmp_path / "a.h5").spacing
        _ = Volume(tmp_path / "a.h5", affine=np.eye(4)).shape
    assert spacing == pytest.approx((1, 1, 3) if has_size else (1, 1, 1))
    texts = [str(note.message) for note in notes]
    is_warned = bool(names) and not has_size
    assert [f"resolutions along {names}, which" in text for text in texts] == [True] * is_warned


@pytest.mark.parametrize(
    ("attributes", "spacing", "is_warned"),
    [
        ({"resolution": [40.0, 4.0, 4.0]}, (1, 1, 1), True),  # of CREMI, in nanometres
        ({"spacing": [3, 1, 1]}, (1, 1, 1), True),
        ({"resolution": [40.0, 4.0, 4.0], "element_size_um": [3000, 1000, 1000]}, (3, 1, 1), False),
        ({"resolution": [1, 1, 1]}, (1, 1, 1), False),
    ],
)
def test_places_in_attributes(tmp_path, attributes, spacing, is_warned):
    """Sizes that other programs write are warned of, until ``affine=`` is given."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("raw", data=numbered((3, 4, 5))).attrs.update(attributes)

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        assert Volume(tmp_path / "a.h5").spacing == pytest.approx(spacing)
        assert Volume(tmp_path / "a.h5", affine=np.diag([4, 4, 40, 1])).spacing == (4, 4, 40)

    texts = [str(note.message) for note in notes]
    assert [f"attributes {next(iter(attributes))}, which" in t for t in texts] == [True] * is_warned


@pytest.mark.parametrize(
    "form", ["numbers", "no variable", "other length", "time", "element_size_um"]
)
@pytest.mark.parametrize("chunks", [None, (1, 3, 4)])
def test_coordinates_in_scales(tmp_path, form, chunks):
    """Scales with numbers are warned of, as they are not read; ``affine=`` places the voxels."""
    array, path = np.arange(24, dtype="i2").reshape(2, 3, 4), tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("d", data=array, chunks=chunks)
        axes = "tyx" if form == "time" else "zyx"
        for n, name in enumerate(axes[:1] if form == "time" else axes):
            length = 1 if form == "other length" else array.shape[n]
            scale = file.create_dataset(name, data=4.0 * np.arange(length))
            no_variable = "This is a netCDF dimension but not a netCDF variable.         4"
            scale.make_scale(no_variable if form == "no variable" else name)
            dataset.dims[n].attach_scale(scale)
        for dim, name in zip(dataset.dims, axes, strict=True):
            dim.label = name
        if form == "element_size_um":
            dataset.attrs[form] = [4.0, 3, 2]

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        _ = Volume(path, dataset="d").spacing

    words = [str(note.message) for note in notes if "coordinates:" in str(note.message)]
    assert len(words) == (form == "numbers")
    assert all("along x, y, z" in text and "affine=" in text for text in words)
    volume = Volume(path, dataset="d", affine=np.diag([2.0, 3, 4, 1]))
    assert volume.spacing == (2, 3, 4)
    with h5py.File(path) as file:
        stored = file["d"][...]
    assert sorted(volume.numpy().ravel()) == sorted(stored.ravel())


@pytest.mark.parametrize(("value", "is_warned"), [(np.int16(-1), True), (np.float32("nan"), False)])
def test_numbers_that_mean_missing(tmp_path, value, is_warned):
    """NetCDF's fill value is a voxel like any other, with a warning; NaN is NaN."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("d", data=np.full((2, 3, 4), value)).attrs["_FillValue"] = [value]

    if is_warned:
        with pytest.warns(LikelyMistake, match=r"missing-values: .* _FillValue = .*-1"):
            assert (Volume(path).numpy() == -1).all()
    assert np.isnan(Volume(path).numpy()).all() or is_warned
