"""Files of one list whose named channels are in contradicting orders."""

import warnings

import numpy as np
import pytest
import tifffile
import torch
from ome_files import write_image

import voxpipe as vp
from voxpipe.core.errors import LikelyMistake, PatchSizeError, SampleError

VOXELS = np.random.default_rng(0).integers(1, 900, (2, 4, 16, 16)).astype("u2")
CURE = r'open_volume\(channels=\["DAPI", "GFP"\]\)'


def write(place, names, voxels=VOXELS):
    """Write an OME-Zarr or OME-TIFF (c, z, y, x) with named channels."""
    if place.suffix == ".tif":
        metadata = {"axes": "CZYX", **({"Channel": {"Name": [*names]}} if names else {})}
        tifffile.imwrite(place, voxels, metadata=metadata, photometric="minisblack")
        return str(place)
    omero = {"omero": {"channels": [{"label": name} for name in names]}} if names else {}
    return write_image(place, voxels, "czyx", 3, **omero)


@pytest.fixture(params=["ome.zarr", "ome.tif"])
def files(request, tmp_path):
    """Return two files with the same channels, which the second stores in the other order."""
    names = ("DAPI", "GFP")
    first = write(tmp_path / f"a.{request.param}", names)
    return [first, write(tmp_path / f"b.{request.param}", names[::-1], VOXELS[::-1])]


def opened(files, **how):
    """Return the chain of the files as images, opened."""
    return vp.from_cases([{"image": file} for file in files]).open_volume(**how)


def twice(sample):
    """Return the sample with its image under a second key."""
    return sample.with_data(same=sample["image"])


def batches(pipe, size=2, workers=0):
    """Return the batches of one pass over a loader."""
    service = vp.MultiProcessingReadingService(num_workers=workers) if workers else None
    with vp.DataLoader2(pipe.batch_patches(size), reading_service=service, seed=0) as loader:
        return [*loader]


CHAINS = {
    "whole": lambda pipe: pipe,
    "patch": lambda pipe: pipe.lazy_patch(4),
    "rotated": lambda pipe: pipe.to_axes("zyx").lazy_patch(4).rotate((15, 0, 0)),
    "values": lambda pipe: pipe.lazy_patch(4).normalize(0, 2),
    "flush": lambda pipe: pipe.zoom(0.5).flush().lazy_patch(2),
    "realized": lambda pipe: pipe.realize(),
    "stack": lambda pipe: pipe.map(twice).stack(("image", "same"), "image"),
    "stack of two": lambda pipe: (
        pipe.map(twice).normalize(0, 2, keys="image").stack(("image", "same"), "image")
    ),
    "number": lambda pipe: pipe.lazy_patch(4).select_channels(0),
    "number later": lambda pipe: pipe.normalize(0, 2).select_channels([1]),
}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("chain", CHAINS)
def test_contradicting_orders_are_refused(files, chain, size):
    """In one batch and across the batches of a pass, with both files and the cure."""
    with pytest.raises(SampleError, match=CURE) as error:
        batches(CHAINS[chain](opened(files)), size)

    text = str(error.value)
    assert all(file.rpartition("/")[2] in text for file in files)
    assert "GFP, DAPI" in text
    assert "DAPI, GFP" in text
    assert "batch_patches" in text


@pytest.mark.parametrize("how", [{"channels": [0]}, {"channels": [1, 0]}])
def test_numbers_do_not_hide_the_order(files, how):
    """``open_volume(channels=)`` by number takes DAPI of one file and GFP of the other."""
    with pytest.raises(SampleError, match="channel-order"):
        batches(opened(files, **how))


@pytest.mark.parametrize("chosen", [["DAPI", "GFP"], ["GFP", "DAPI"], ["GFP"]])
@pytest.mark.parametrize("way", ["open", "select", "select later", "own"])
def test_names_choose_one_order(files, chosen, way):
    """Values are those of the stored planes of these names."""
    number = {"DAPI": 0, "GFP": 1}
    if way == "own":
        pipe = opened([vp.Volume(file, channels=chosen) for file in files])
    elif way == "open":
        pipe = opened(files, channels=chosen)
    else:
        pipe = opened(files)
        pipe = pipe.normalize(0, 1) if way == "select later" else pipe
        pipe = pipe.select_channels(chosen)

    (batch,) = batches(pipe.to_axes("zyx"))

    expected = VOXELS[[number[name] for name in chosen]]
    np.testing.assert_array_equal(batch["image"].numpy(), np.stack([expected] * 2))


def test_numbers_of_each_file_choose_one_order(files):
    """The names of the chosen channels are equal."""
    first, second = (
        vp.Volume(file, channels=own) for file, own in zip(files, ([0], [1]), strict=True)
    )

    (batch,) = batches(opened([first, second]).to_axes("zyx"))

    np.testing.assert_array_equal(batch["image"].numpy(), np.stack([VOXELS[:1]] * 2))


def test_workers_refuse_the_order(files):
    """The error comes from the worker with the same words."""
    with pytest.raises(SampleError, match=CURE):
        batches(opened(files).lazy_patch(4), workers=1)


def same(sample):
    """Return the sample as it is."""
    return sample


def test_realized_voxels_cause_a_warning(files):
    """A function may have put the channels in order, so the pass goes on."""
    with pytest.warns(LikelyMistake, match=CURE) as found:
        both = batches(opened([*files, *files]).realize().map(same))

    assert len(both) == 2
    assert len([one for one in found if "channel-order" in str(one.message)]) == 1


def test_prediction_refuses_the_order(files, tmp_path):
    """A network would take one channel for the other."""
    model = torch.nn.Conv3d(2, 2, 1)
    with pytest.raises(SampleError, match=CURE):
        vp.predict(model, opened(files), f"{tmp_path}/out/{{case}}.nii", patch=4, progress=False)


@pytest.mark.parametrize(
    "names",
    [
        [(), ()],
        [("DAPI", "GFP"), ()],
        [(), ("GFP", "DAPI")],
        [("DAPI", "GFP"), ("DAPI", "GFP")],
        [("DAPI", "GFP"), ("Hoechst", "GFP")],
        [("DAPI", "GFP"), ("Hoechst", "EGFP")],
        [("DAPI", "GFP"), ("dapi", "gfp")],
    ],
)
def test_other_names_at_the_same_places_are_silent(tmp_path, names):
    """Sites call their stains by different names."""
    files = [write(tmp_path / f"{n}.ome.zarr", own) for n, own in enumerate(names)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (batch,) = batches(opened(files))

    assert batch["image"].shape == (2, 2, 16, 16, 4)


@pytest.mark.parametrize("names", [("GFP", "mCherry"), ("gfp", "dapi"), ("Cy5", "DAPI")])
def test_a_name_at_another_place_causes_one_warning(tmp_path, names):
    """Once in a pass, however many files."""
    kinds = [("DAPI", "GFP"), names] * 2
    files = [write(tmp_path / f"{n}.ome.zarr", own) for n, own in enumerate(kinds)]
    with pytest.warns(LikelyMistake, match="not always the same channel") as found:
        batches(opened(files))

    assert len(found) == 1


def test_the_command_and_the_pass_use_the_same_words(files):
    """``check()`` reports the second file."""
    report = vp.check([{"image": file} for file in files], num_workers=1)
    (finding,) = report.bad
    with pytest.raises(SampleError) as error:
        batches(opened(files))

    assert error.value.message in finding.message or finding.message in error.value.message
    assert finding.do == error.value.do


def test_other_numbers_of_channels_name_the_cure(tmp_path):
    """A shared channel can be chosen by its name."""
    files = [write(tmp_path / "a.ome.zarr", ("DAPI", "GFP"))]
    files.append(write(tmp_path / "b.ome.zarr", ("DAPI",), VOXELS[:1]))
    with pytest.raises(PatchSizeError, match=r"open_volume\(channels=\[\.\.\.\]\)"):
        batches(opened(files))


# The first batch that arrives decides between the orders.
EITHER_CURE = r'open_volume\(channels=\["(DAPI", "GFP|GFP", "DAPI)"\]\)'
SERVICES = {
    "workers": lambda: vp.MultiProcessingReadingService(num_workers=2),
    "threads": lambda: vp.ThreadReadingService(2),
    "in process": lambda: None,
}


def one_each(files):
    """Return a chain whose batches are of one file each, so that workers get different files."""
    return opened(files).lazy_patch(4, samples_per_volume=8).batch_patches(8)


@pytest.mark.parametrize("kind", SERVICES)
@pytest.mark.parametrize("repeats", [1, 6])
def test_two_workers_refuse_the_order(files, kind, repeats):
    """Each worker may read files of one order only; the error names two files and a case."""
    loader = vp.DataLoader2(one_each(files * repeats), reading_service=SERVICES[kind](), seed=0)
    with loader, pytest.raises(SampleError, match=EITHER_CURE) as error:
        list(loader)

    text = str(error.value)
    assert all(file.rpartition("/")[2] in text for file in files)
    assert "batch_patches" in text
    assert error.value.case


def stays(batch):
    """Return True; a function behind workers runs in whole replicas."""
    return True


def test_replicas_refuse_the_order(files):
    """Also in the second epoch, when the first ended before a worker read the other file."""
    pipe = opened(files * 2).sharding_filter().lazy_patch(4).batch_patches(1).filter(stays)
    with vp.DataLoader2(pipe, reading_service=SERVICES["workers"](), seed=0) as loader:
        for _ in range(2):
            with pytest.raises(SampleError, match=EITHER_CURE):
                list(loader)


@pytest.mark.parametrize("names", [("GFP", "mCherry"), ("Cy5", "DAPI")])
def test_two_workers_warn_of_places(tmp_path, names):
    """Files of two workers share a name at another place."""
    first = write(tmp_path / "a.ome.zarr", ("DAPI", "GFP"))
    second = write(tmp_path / "b.ome.zarr", names)
    loader = vp.DataLoader2(
        one_each([first, second]), reading_service=SERVICES["workers"](), seed=0
    )
    with loader, pytest.warns(LikelyMistake, match="not always the same channel"):
        assert len([*loader]) == 2


@pytest.mark.parametrize("names", [("DAPI", "GFP"), ("dapi", "gfp"), ("Hoechst", "GFP"), ()])
def test_two_workers_accept_the_same_order(tmp_path, names):
    """Two epochs without an error or warning."""
    first = write(tmp_path / "a.ome.zarr", ("DAPI", "GFP"))
    second = write(tmp_path / "b.ome.zarr", names)
    loader = vp.DataLoader2(
        one_each([first, second]), reading_service=SERVICES["workers"](), seed=0
    )
    with loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len([*loader, *loader]) == 4
