"""The pictures show what they should: right planes, outlines where labels end, no overlap."""

import re
import sys

import nibabel
import numpy as np
import pytest
from demo_data import Case
from demo_plots import Viewable, middle_plane, save_loss, save_preview
from demo_source import preview
from matplotlib.figure import Figure
from matplotlib.image import imread

from voxpipe.core.errors import MissingDependency

CLASSES = {1: "grey matter", 2: "white matter"}


@pytest.fixture
def figures(monkeypatch):
    """Collect the figures that are saved."""
    saved = []
    save = Figure.savefig

    def savefig(self, *args, **kwargs):
        saved.append(self)
        return save(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return saved


def patch(title):
    """Return a ramp with a block of each class."""
    label = np.zeros((8, 10, 12), np.uint8)
    label[2:5, 2:6, 2:7] = 1
    label[4:7, 5:9, 6:10] = 2
    return Viewable(title, np.arange(960.0).reshape(8, 10, 12), label)


@pytest.mark.parametrize(("axis", "expected"), [(0, (12, 10)), (1, (12, 8)), (2, (10, 8))])
def test_planes_have_the_first_axis_to_the_right(axis, expected):
    """Rows of the picture are the later axis, so that K points up."""
    assert expected == middle_plane(np.zeros((8, 10, 12)), axis).shape


def test_preview_has_a_column_per_patch(tmp_path, figures):
    """Three planes each, titled once, in one range of greys."""
    save_preview(tmp_path / "p.png", [patch("before"), patch("after")], CLASSES)
    (figure,) = figures
    images = [axes.images[0] for axes in figure.axes]

    assert [a.get_title() for a in figure.axes] == ["before", "after", "", "", "", ""]
    assert len({image.get_clim() for image in images}) == 1
    assert [image.get_array().shape for image in images[::2]] == [(12, 10), (12, 8), (10, 8)]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(CLASSES.values())


def test_the_preview_tells_case_and_draws(tmp_path):
    """The title of each column says whose patch it is, and what was done to it."""
    for name in ("image", "label"):
        nibabel.save(
            nibabel.Nifti1Image(np.zeros((50, 50, 50), np.uint8), np.eye(4)),
            tmp_path / f"{name}.nii",
        )
    case = Case("head-7", tmp_path / "image.nii", tmp_path / "label.nii", held_out=False)

    stored, augmented = preview([case])

    assert stored.title.startswith("head-7, as stored\nfrom voxel ")
    assert re.fullmatch(
        r"head-7, augmented\nrotate -?\d+\.\d, -?\d+\.\d, -?\d+\.\d°\nzoom .*, (no flip|flip .*)",
        augmented.title,
    )


def test_preview_outlines_every_class_that_is_seen(tmp_path, figures):
    """A class that fills a plane or is not on it has no outline, and no warning is raised."""
    full = Viewable("full", np.zeros((4, 4, 4)), np.full((4, 4, 4), 2))
    save_preview(tmp_path / "p.png", [patch("both"), full], CLASSES)
    outlines = [len(axes.collections) for axes in figures[0].axes]

    assert outlines == [2, 0, 2, 0, 2, 0]


def test_nothing_overlaps(tmp_path, figures):
    """Titles, pictures and the legend each have their own place."""
    save_preview(tmp_path / "p.png", [patch("before"), patch("after augmentation")], CLASSES)
    (figure,) = figures
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    boxes.append(figure.legends[0].get_window_extent())

    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(figure.bbox.fully_contains(*corner) for b in boxes for corner in b.corners())


@pytest.mark.parametrize("count", [0, 1, 9, 40])
def test_loss_is_drawn_for_any_number_of_batches(count, tmp_path, figures):
    """The mean is drawn as soon as there are enough batches for one."""
    losses = list(np.linspace(2, 1, count))
    save_loss(tmp_path / "loss.png", losses)
    lines = figures[0].axes[0].lines

    assert len(lines) == (2 if count >= 10 else 1)
    assert list(lines[0].get_ydata()) == losses
    assert imread(tmp_path / "loss.png").std() > 0


def test_the_mean_lags_behind_nothing(tmp_path, figures):
    """The mean over batches 1 to 10 is drawn at batch 10."""
    save_loss(tmp_path / "loss.png", list(range(20)))
    mean = figures[0].axes[0].lines[1]

    assert mean.get_xdata()[0] == 10
    assert mean.get_ydata()[0] == pytest.approx(4.5)


def test_pyplot_is_not_needed(tmp_path, monkeypatch):
    """A global figure would leak, and a backend would be chosen for the user."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it fails
    save_loss(tmp_path / "loss.png", [2.0, 1.0])

    assert (tmp_path / "loss.png").exists()


def test_missing_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    """The error is one that callers of optional imports expect."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependency, match=r'pip install "voxpipe\[demo\]"'):
        save_loss(tmp_path / "loss.png", [2.0, 1.0])
