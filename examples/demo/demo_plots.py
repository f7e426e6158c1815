"""The demo's pictures: the loss, a patch before and after augmentation, a prediction.

Figures are made without pyplot: no window, no global state, no choice of a backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from voxpipe.core.errors import MissingDependency

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's orange and sky blue: told apart on grey, and by the colour-blind.
OUTLINES = ("#e69f00", "#56b4e9", "#009e73", "#cc79a7")
# Greys beyond these percentiles are noise and highlights, and would flatten the rest.
WINDOW = (1.0, 99.0)
# Between 0.5, the border itself, and 1, the centres of the voxels inside: each outline keeps to
# its own class, so that neighbours' do not hide each other.
INSIDE = 0.9
DOTS_PER_INCH = 120


@dataclass(frozen=True)
class Viewable:
    """One patch to be drawn."""

    title: str
    """Printed above its column; a line each for the case and for what was done."""
    image: NDArray[Any]
    """Greys, (I, J, K)."""
    label: NDArray[Any]
    """Classes, (I, J, K)."""


def save_loss(path: Path, losses: Sequence[float], smooth: int = 10) -> None:
    """Draw the loss of every batch and the mean over ``smooth`` batches."""
    figure = _figure(7.0, 4.2)
    axes = figure.subplots()
    steps = np.arange(1, len(losses) + 1)
    axes.plot(steps, losses, color="#b0b0b0", linewidth=1, label="each batch")
    if len(losses) >= smooth:
        mean = np.convolve(losses, np.full(smooth, 1 / smooth), mode="valid")
        axes.plot(steps[smooth - 1 :], mean, color="#0072b2", label=f"mean of {smooth} batches")
    axes.set(title="Training loss", xlabel="batch", ylabel="cross entropy + 1 - soft Dice")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=DOTS_PER_INCH)


def save_preview(path: Path, patches: Sequence[Viewable], classes: Mapping[int, str]) -> None:
    """Draw the middle planes of each patch, a column per patch and a row per axis.

    Parameters
    ----------
    path
        Where the PNG goes.
    patches
        Drawn from left to right, with one range of greys, so that they can be compared.
    classes
        Label value to name; the outline of each is drawn.
    """
    from matplotlib.lines import Line2D

    figure = _figure(1.2 + 3.0 * len(patches), 9.8)
    grid = figure.subplots(3, len(patches), squeeze=False)
    greys = np.concatenate([np.ravel(patch.image) for patch in patches])
    window = tuple(float(v) for v in np.percentile(greys, WINDOW))
    colours = dict(zip(classes, OUTLINES, strict=False))
    for column, patch in enumerate(patches):
        for axis in range(3):
            _draw_plane(grid[axis, column], patch, axis, window, colours)
        grid[0, column].set_title(patch.title, fontsize=11, pad=8)
    for axis, name in enumerate("IJK"):
        grid[axis, 0].set_ylabel(f"middle plane of {name}", fontsize=10)
    lines = [Line2D([], [], color=colours[v], label=name) for v, name in classes.items()]
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), frameon=False)
    figure.savefig(path, dpi=DOTS_PER_INCH)


def augmentation_in_words(drawn: Mapping[str, Any]) -> str:
    """Return what ``augment`` drew, as ``batch["meta"]`` tells it, in a line for each.

    Examples
    --------
    >>> drawn = {"rotate": [5.44, -12.38, 0.2], "zoom": [0.95, 0.95, 0.95], "flip": [0, 2]}
    >>> print(augmentation_in_words(drawn))
    rotate 5.4, -12.4, 0.2°
    zoom 0.95, flip I, K
    """
    turned = ", ".join(f"{angle:.1f}" for angle in drawn.get("rotate") or (0.0,))
    zoom = ", ".join(dict.fromkeys(f"{factor:.2f}" for factor in drawn.get("zoom") or (1.0,)))
    mirrored = ", ".join("IJK"[axis] for axis in drawn.get("flip") or ())
    return f"rotate {turned}°\nzoom {zoom}, {f'flip {mirrored}' if mirrored else 'no flip'}"


def middle_plane(voxels: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return the plane half-way along ``axis``, as rows (up) and columns (right) of a picture.

    Examples
    --------
    >>> middle_plane(np.arange(8).reshape(2, 2, 2), axis=2)
    array([[1, 5],
           [3, 7]])
    """
    plane: NDArray[Any] = np.take(voxels, voxels.shape[axis] // 2, axis=axis)
    return plane.T


def _draw_plane(
    axes: Axes,
    patch: Viewable,
    axis: int,
    window: tuple[float, ...],
    colours: Mapping[int, str],
) -> None:
    lowest, highest = window
    image, label = middle_plane(patch.image, axis), middle_plane(patch.label, axis)
    axes.imshow(image, cmap="gray", origin="lower", vmin=lowest, vmax=highest)
    for value, colour in colours.items():
        inside = label == value
        # A class that fills the plane or is not on it has no outline, and contour would warn.
        if inside.any() and not inside.all():
            axes.contour(inside.astype(float), levels=[INSIDE], colors=[colour], linewidths=1.1)
    axes.set_xticks([])
    axes.set_yticks([])


def _figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches that keeps its parts apart."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency(
            "the demo draws with matplotlib, which is not installed",
            do='Install it: pip install "voxpipe[demo]".',
        ) from error
    return Figure(figsize=(width, height), layout="constrained")
