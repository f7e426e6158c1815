"""Pictures name the drawn channel as the file does."""

import numpy as np
import pytest
from ome_files import write_image

import voxpipe as vp

VOXELS = np.random.default_rng(0).integers(1, 900, (2, 4, 16, 16)).astype("u2")


@pytest.fixture
def chain(tmp_path):
    """Return a chain of patches of one image with the channels DAPI and GFP."""
    omero = {"omero": {"channels": [{"label": name} for name in ("DAPI", "GFP")]}}
    file = write_image(tmp_path / "a.ome.zarr", VOXELS, "czyx", 3, **omero)
    return vp.from_cases([{"image": str(file)}]).open_volume().lazy_patch(4)


def headings(figure):
    """Return all texts of a figure."""
    axes = [one for own in figure.axes for one in (own.title, own._left_title, own._right_title)]
    return "\n".join(one.get_text() for one in [*axes, *figure.texts])


def first(pipe):
    """Return the first item of a pipe."""
    return next(iter(pipe))


def doubled(sample):
    """Return the sample with its voxels twice, so that names no longer fit."""
    return sample.with_data(image=np.concatenate([sample["image"]] * 2))


def loaded(pipe, workers):
    """Return the first batch of a loader."""
    service = vp.MultiProcessingReadingService(num_workers=workers) if workers else None
    with vp.DataLoader2(pipe.batch_patches(1), reading_service=service) as loader:
        return first(loader)


FIGURES = {
    "volume": lambda chain: vp.show(first(chain)["image"].volume),
    "patch": lambda chain: vp.show(first(chain)["image"]),
    "sample": lambda chain: vp.show(first(chain)),
    "realized sample": lambda chain: vp.show(first(chain.realize())),
    "batch": lambda chain: vp.show(loaded(chain, 0)),
    "batch of a worker": lambda chain: vp.show(loaded(chain, 1)),
    "batch of realized": lambda chain: vp.show(loaded(chain.realize(), 0)),
    "batch of a flush": lambda chain: vp.show(loaded(chain.rotate((9, 0, 0)).flush(), 0)),
    "chain": lambda chain: vp.show(chain.batch_patches(1)),
    "label": lambda chain: vp.show(first(chain)["image"].volume, label=np.ones((16, 16, 4), "u1")),
    "preview": lambda chain: chain.preview(1),
}


@pytest.mark.parametrize("kind", FIGURES)
def test_titles_name_the_channel(chain, kind):
    """The first channel is drawn."""
    text = " ".join(headings(FIGURES[kind](chain)).split())  # lines break by the path

    assert "channel DAPI of 2" in text
    assert "channel 0" not in text


def test_titles_follow_the_order_of_channels(chain):
    """Ops on channels change the names of a batch, also before and after a flush."""
    swapped = chain.select_channels(["GFP", "DAPI"])
    for pipe in (swapped, swapped.rotate((9, 0, 0)).flush(), chain.flush().select_channels([1, 0])):
        assert "channel GFP of 2" in headings(vp.show(loaded(pipe, 0)))
        assert loaded(pipe, 0)["meta"][0]["sources"]["image"]["channel_names"] == ["GFP", "DAPI"]


def test_names_that_do_not_fit_are_left_out(chain):
    """A function has changed the number of channels."""
    assert "channel 0 of 4" in headings(vp.show(loaded(chain.realize().map(doubled), 0)))


def test_volumes_without_names_have_no_entry():
    """Nor does a mix of stacked channels without names."""
    pipe = vp.from_cases([{"image": VOXELS}]).open_volume().lazy_patch((4, 4, 4))
    batch = loaded(pipe, 0)

    assert "channel_names" not in batch["meta"][0]["sources"]["image"]
    assert "channel 0 of 2" in headings(vp.show(batch))


def test_a_first_channel_without_name_has_its_number(tmp_path):
    """Only the second channel has a name."""
    omero = {"omero": {"channels": [{"label": name} for name in ("", "GFP")]}}
    file = write_image(tmp_path / "a.ome.zarr", VOXELS, "czyx", 3, **omero)

    text = headings(vp.show({"image": vp.Volume(str(file))}))

    assert "channel 0 of 2" in text
