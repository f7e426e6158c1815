"""Layers of napari, the figures of loaders, and lines of progress."""

import io
import threading
import time

import numpy as np
import pytest
import zarr
from zarr_arrays import add_array

import voxpipe as vp
from voxpipe.core import IO_COUNTERS, progress
from voxpipe.extensions.pictures import watch as watching

AFFINE = np.diag([-1.5, -1.5, 3.0, 1.0])


def loader(count=4):
    """Return a loader of small batches."""
    image = vp.Volume(np.zeros((8, 8, 8), "f4"))
    pipe = vp.from_cases([{"image": image}] * count).open_volume().lazy_patch(4).batch_patches(1)
    return vp.DataLoader2(pipe, seed=0)


def test_layers_of_napari_are_lazy_and_in_place(tmp_path):
    """(K, J, I), with scale, units and an affine in LPS+; nothing is read before an index."""
    array = np.arange(4 * 5 * 6).reshape(4, 5, 6).astype("i2")
    np.save(tmp_path / "a.npy", array)
    volume = vp.Volume(tmp_path / "a.npy", affine=AFFINE)
    before = IO_COUNTERS.snapshot().reads
    [(data, arguments, kind)] = volume.to_napari(name="mine")

    assert IO_COUNTERS.snapshot().reads == before
    assert (data.shape, data.ndim, data.dtype, kind) == ((6, 5, 4), 3, np.int16, "image")
    assert arguments["scale"] == (3.0, 1.5, 1.5)
    assert arguments["units"] == ("mm",) * 3
    assert arguments["name"] == "mine"
    world = arguments["affine"] @ np.diag([*arguments["scale"], 1])
    assert np.allclose(world @ (1, 1, 1, 1), (3, 1.5, 1.5, 1))


@pytest.mark.parametrize(
    "index",
    [
        *(2, -1, ..., (2, ...), (slice(None), 1), (slice(4, None, -2), 0, slice(1, 3))),
        *((slice(3, 3),), (slice(None, None, 2), [0, 3]), (..., 1), (np.int64(1), 2, 3)),
    ],
)
def test_lazy_arrays_are_indexed_as_arrays(index):
    """The result is that of NumPy on the transposed voxels."""
    array = np.random.default_rng(0).random((4, 5, 6))
    [(data, _, _)] = vp.Volume(array).to_napari()

    assert np.array_equal(data[index], array.transpose(2, 1, 0)[index])
    assert np.array_equal(np.asarray(data), array.transpose(2, 1, 0))


def test_lazy_arrays_refuse_an_index_outside():
    """As NumPy does."""
    [(data, _, _)] = vp.Volume(np.zeros((4, 5, 6))).to_napari()

    with pytest.raises(IndexError):
        data[6]
    with pytest.raises(IndexError):
        data[0, 0, 0, 0]


def test_labels_channels_and_patches_have_layers():
    """Labels are of whole numbers; each channel has a layer."""
    label = vp.Volume(np.ones((4, 5, 6), "f4"), kind="label")
    [(data, _, kind)] = label.to_napari()
    names = [arguments["name"] for _, arguments, _ in vp.Volume(np.zeros((2, 4, 5, 6))).to_napari()]
    pipe = vp.from_cases([{"image": np.zeros((8, 8, 8))}]).open_volume().lazy_patch(4)
    [(patch, _, _)] = next(iter(pipe))["image"].to_napari()

    assert (kind, data.dtype, data[0].dtype) == ("labels", np.int32, np.int32)
    assert [name[-3:] for name in names] == ["[0]", "[1]"]
    assert patch[0].shape == (4, 4)


def movie(path):
    """Write an OME-Zarr of 3 times, 2 named channels and a label group; return its voxels."""
    voxels = np.random.default_rng(0).integers(0, 99, (3, 2, 4, 5, 6)).astype("u2")
    for place, array, axes in (
        (path, voxels, "tczyx"),
        (path / "labels/cells", voxels[0, 0], "zyx"),
    ):
        group = zarr.open_group(place, mode="w")
        add_array(group, "0", data=array)
        kinds = {"t": ("time", "second"), "c": ("channel", None)}
        named = [(axis, *kinds.get(axis, ("space", "micrometer"))) for axis in axes]
        scale = [{"t": 5.0, "c": 1.0, "z": 2.0}.get(axis, 0.5) for axis in axes]
        step = {"path": "0", "coordinateTransformations": [{"type": "scale", "scale": scale}]}
        rows = [{"name": n, "type": kind, **({"unit": u} if u else {})} for n, kind, u in named]
        channels = {"channels": [{"label": "DAPI"}, {"label": "GFP"}]} if "c" in axes else {}
        image = {"axes": rows, "datasets": [step]}
        group.attrs["ome"] = {"version": "0.5", "multiscales": [image], "omero": channels}
    zarr.open_group(path / "labels", mode="a").attrs["ome"] = {"labels": ["cells"]}
    return voxels


@pytest.mark.filterwarnings("ignore:times-and-channels")
def test_times_are_a_leading_axis_and_channels_have_their_names(tmp_path):
    """As zarr-python reads them; chosen channels and patches of a movie too."""
    voxels = movie(tmp_path / "m.ome.zarr")
    volume = vp.Volume(tmp_path / "m.ome.zarr", time="channels")
    layers = {arguments["name"]: (data, arguments) for data, arguments, _ in volume.to_napari()}

    assert [*layers] == ["DAPI", "GFP"]
    data, arguments = layers["GFP"]
    assert np.array_equal(np.asarray(data), voxels[:, 1])
    assert np.array_equal(data[1:, 2, ..., [0, 3]], voxels[:, 1][1:, 2, ..., [0, 3]])
    assert np.array_equal(data[2, 1], voxels[2, 1, 1])
    assert arguments["scale"] == (5.0, 2.0, 0.5, 0.5)
    assert arguments["units"] == ("second", *("um",) * 3)
    assert arguments["affine"].shape == (5, 5)
    [(green, _, _)] = vp.Volume(tmp_path / "m.ome.zarr", channels=["GFP"]).to_napari()
    assert np.array_equal(np.asarray(green), voxels[:, 1])
    some = volume[:3].to_napari()
    assert [data.ndim for data, _, _ in some] == [3, 3, 3]
    [(data, _, _), *_] = vp.Volume(tmp_path / "m.ome.zarr", time=1).to_napari()
    assert np.array_equal(np.asarray(data), voxels[1, 0])


def test_labels_and_patches_of_images_have_their_names_and_units(tmp_path):
    """A label group has its own name; a patch has the unit of its file."""
    movie(tmp_path / "m.ome.zarr")
    [(_, arguments, kind)] = vp.Volume(tmp_path / "m.ome.zarr", label="cells").to_napari()
    pipe = vp.from_ome(tmp_path / "m.ome.zarr", label="cells", time=0).open_volume().lazy_patch(4)
    sample = next(iter(pipe))
    image, label = sample["image"].to_napari(), sample["label"].to_napari()

    assert (arguments["name"], kind) == ("cells", "labels")
    assert [one["name"] for _, one, _ in image + label] == ["DAPI", "GFP", "cells"]
    assert all(one["units"] == ("um",) * 3 for _, one, _ in image + label)
    assert image[0][1]["scale"] == label[0][1]["scale"] == (2.0, 0.5, 0.5)


def test_napari_takes_the_layers(tmp_path):
    """The pyramid's contract of the real package, without a window."""
    layers = pytest.importorskip("napari.layers")
    for layer in vp.Volume(np.random.rand(4, 5, 6), affine=AFFINE).to_napari():
        assert layers.Layer.create(*layer).ndim == 3
    movie(tmp_path / "m.ome.zarr")
    for layer in vp.Volume(tmp_path / "m.ome.zarr").to_napari():
        assert layers.Layer.create(*layer).ndim == 4


def test_view_refuses_other_things():
    """Before a viewer is imported."""
    with pytest.raises(TypeError, match="view"):
        vp.view(3)


def test_metrics_are_numbers():
    """Every logger takes them."""
    with loader() as own:
        list(own)
        figures = own.metrics()

    assert figures["loader/batches"] == 4
    assert figures["loader/memory_bytes"] > 1e6
    assert 0 <= figures["loader/waiting_share"] <= 1
    assert all(isinstance(value, (int, float)) for value in figures.values())


def test_watch_iterates_and_shows_tables(monkeypatch):
    """Rate, waiting, limit, failures and memory, in a terminal."""
    file = io.StringIO()
    monkeypatch.setattr(watching, "_screen", lambda: watching._Terminal(file))
    with loader() as own:
        table = vp.watch(own, every=0.01)
        count = sum(time.sleep(0.02) is None for _ in table)

    assert count == len(table) == 4
    text = file.getvalue()
    for name in ("progress", "rate", "waiting", "limit", "failures", "memory"):
        assert f"\n{name} " in f"\n{text}"
    assert "your step" in text
    assert "epoch 0, all batches" in text
    assert "\x1b[6F" in text
    assert "progress" in str(table)
    assert "<table" in table._repr_html_()


def test_watch_writes_lines_into_logs(monkeypatch, capsys):
    """One at the end of a short run, also around a loop of a framework."""
    before = {*threading.enumerate()}
    with loader() as own, vp.watch(own):
        list(own)

    assert capsys.readouterr().err.startswith("voxpipe: batch")
    assert not [one for one in {*threading.enumerate()} - before if "watch" in one.name]


def test_watch_refuses_other_loaders():
    """The error names the loader."""
    with pytest.raises(TypeError, match="DataLoader2"):
        vp.watch([1])
    with pytest.raises(ValueError, match="every"):
        vp.watch(loader(), every=0)


def test_long_work_draws_one_line(monkeypatch):
    """With the count, the time left and the present work; inner work draws nothing."""
    file = io.StringIO()
    file.isatty = lambda: True
    monkeypatch.setattr(progress.sys, "stderr", file)
    monkeypatch.setattr(progress, "DELAY", 0.02)
    monkeypatch.setattr(progress, "EVERY", 0.02)
    with progress.progress_line("index", "volumes") as show:
        show(2, 8, "b.nii")
        with progress.progress_line("inner"):
            time.sleep(0.1)

    assert "index: 2 of 8 volumes, " in file.getvalue()
    assert "b.nii" in file.getvalue()
    assert "inner" not in file.getvalue()
    assert file.getvalue().endswith("\r")


def test_short_work_and_work_without_a_terminal_are_silent(monkeypatch, capsys):
    """A function of the user replaces the line."""
    calls = []
    with progress.progress_line("index", show=lambda *count: calls.append(count)) as show:
        show(1, 2, "text")
    with progress.progress_line("index"):
        pass

    assert calls == [(1, 2)]
    assert capsys.readouterr().err == ""


def test_a_pass_over_a_volume_is_named():
    """The line of the first batch says which volumes are read as a whole."""
    from voxpipe.core.context import RunningPass

    running = RunningPass()
    with running.over(["a.nii"]):
        assert running.in_words() == "reading all voxels of a.nii"
    assert running.in_words() == ""
