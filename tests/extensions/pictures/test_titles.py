"""Titles of figures fit into them, and leave planes their size."""

import itertools

import nibabel
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import voxpipe as vp

NAME = "sub-0123_ses-baseline_acq-highres_run-01_desc-preproc_space-MNI152NLin2009cAsym_T1w_"


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """Return an opened chain of two cases with long names."""
    folder = tmp_path_factory.mktemp("scans")
    scan = np.random.default_rng(0).normal(0, 1, (32, 30, 20)).astype("f4")
    for case in (f"{NAME}{2 * NAME}", f"{NAME}of_Amsterdam"):
        (folder / case).mkdir()
        image = nibabel.Nifti1Image(scan, np.diag([1, 1, 1.5, 1]))
        nibabel.save(image, folder / case / "ct.nii")
        nibabel.save(
            nibabel.Nifti1Image((scan > 1).astype("u1"), image.affine), folder / case / "l.nii"
        )
    cases = vp.list_cases(f"{folder}/*/", image="ct.nii", label="l.nii")
    return cases.open_volume().lazy_patch(16)


def texts_of(figure):
    """Return the drawn titles, and the boxes of the planes in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    titles = [axes.title for axes in figure.axes] + [axes._left_title for axes in figure.axes]
    titles += [axes._right_title for axes in figure.axes]
    titles += [figure._suptitle] if figure._suptitle else []
    boxes = [text.get_window_extent(renderer) for text in titles if text.get_text().strip()]
    return boxes, [axes.get_window_extent(renderer) for axes in figure.axes if axes.images]


FIGURES = {
    "volume": lambda chain: vp.show(next(iter(chain))["image"].volume),
    "patch": lambda chain: vp.show(next(iter(chain))["image"]),
    "sample with a title": lambda chain: vp.show(next(iter(chain)), title=f"{NAME}\n{NAME}"),
    "batch": lambda chain: vp.show(next(iter(chain.batch_patches(2))), title=NAME),
    "chain": lambda chain: vp.show(chain.augment(rotate=(-20, 20), flip=0.5)),
    "prediction": lambda chain: vp.show(
        next(iter(chain))["image"].volume, label=np.ones((32, 30, 20), np.uint8)
    ),
    "plane": lambda chain: vp.show(np.eye(20), title=NAME),
    "preview": lambda chain: chain.augment(flip=0.5).preview(2, title=2 * NAME),
}


@pytest.mark.parametrize("kind", FIGURES)
def test_long_titles_are_whole_and_leave_planes_their_size(chain, kind):
    """No title leaves the figure, meets another or covers a plane; planes are of one width."""
    figure = FIGURES[kind](chain)
    titles, planes = texts_of(figure)
    width, height = figure.bbox.size

    assert titles
    for box in titles:
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height
    for one, other in itertools.combinations(titles, 2):
        assert not one.overlaps(other)
    for box, plane in itertools.product(titles, planes):
        assert not box.overlaps(plane)
    assert min(plane.width for plane in planes) > 0.75 * max(plane.width for plane in planes)
    gaps = [b.x0 - a.x1 for a, b in itertools.pairwise(planes) if b.x0 > a.x1]
    assert max(gaps, default=0) < 0.5 * planes[0].width


@pytest.mark.parametrize("name", ["W" * 200, "\u4e2d" * 80, "i" * 90, r"$\mu$" + " a" * 90, "x\ny"])
def test_lines_fit_whatever_their_characters(name):
    """Wide characters, escapes of those that the font lacks, and lines of the user."""
    titles, _ = texts_of(figure := vp.show(np.zeros((8, 8, 8)), title=name))

    assert max(box.x1 for box in titles) <= figure.bbox.width
    assert max(box.y1 for box in titles) <= figure.bbox.height
