"""Figures of volumes, patches, samples, batches and predictions, by matplotlib."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from textwrap import wrap
from typing import Any

import numpy as np

from ...core import Sample
from ...core.errors import GridMismatch, MissingDependency
from ...core.progress import in_notebook
from ...core.redact import escape_controls
from ...core.validate import validate_int
from ...graph import Pipe, is_pipe
from ...spatial import LazyPatch
from ...volumes import Volume
from .facts import is_batch
from .pixels import PALETTE, bar_length, frames_of, image_of, shared_window
from .planes import FIGURE_SIDE, Plane
from .scenes import Layer, Look, Scene, hint_of, scenes_of

_WIDTH = 2.6  # inches of a plane
_TEXT_WIDTH = 3.2  # inches of the column of draws
_MOST_LINES = 14  # of the draws of an item
_MOST_LENGTH = 52  # characters of a line
_MOST_NAME_LINES = 6
_LINE_SPACING = 1.25  # of the size of a font
NAME: Mapping[str, Any] = {"fontsize": 9, "fontweight": "bold"}
"""Font of the name of a row."""
TITLE: Mapping[str, Any] = {"fontsize": 12}
"""Font of the title of a figure."""


def matplotlib_figure() -> Any:
    """Return the class ``Figure``, with a picture for notebooks; MissingDependency without it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        msg = "a figure needs matplotlib, which is not installed."
        raise MissingDependency(msg, do="pip install voxpipe[viz]") from None

    class Picture(Figure):
        """A figure that notebooks show, with any backend."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", bbox_inches="tight")
            return buffer.getvalue()

    return Picture


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure; outside notebooks and files, one that ``plt.show()`` opens."""
    # Planes have fixed aspects: the layout "constrained" would cut a title of several lines.
    how: dict[str, Any] = {"figsize": (width, height), "layout": "compressed"}
    kind = matplotlib_figure()
    if "matplotlib.pyplot" in sys.modules and not in_notebook():
        return sys.modules["matplotlib.pyplot"].figure(FigureClass=kind, **how)
    return kind(**how)


def show(
    thing: Any,
    *,
    label: Any = None,
    center: Sequence[int] | None = None,
    count: int = 8,
    title: str = "",
) -> Any:
    """Return a figure of anything with voxels: planes, outlines, a scale bar, the case, its draws.

    Parameters
    ----------
    thing
        A volume, patch, sample, batch or chain. Or a path, a URL, a tensor or an array. Arrays
        have the axes I, J, K, after channels and items. A mapping shows labels on images.
    label
        A label on the same grid, such as a prediction. Its outlines are drawn.
    center
        Voxel index (I, J, K) of the planes, (I, J) of 2-D data. By default the middle, or most of
        the label.
    count
        Items of a chain or batch, at most.
    title
        Text above. By default the case, or the name of the volume.

    Returns
    -------
    Figure
        A notebook shows it. Save it by ``savefig(path)``. Where ``matplotlib.pyplot`` is imported,
        ``plt.show()`` opens it.

    Raises
    ------
    MissingDependency
        matplotlib is not installed.
    TypeError
        The thing has no voxels.
    GridMismatch
        The label does not cover the extent of the image.
    IndexError
        The index is outside the volume.

    Examples
    --------
    >>> import numpy as np, voxpipe as vp
    >>> figure = vp.show(vp.Volume(np.random.rand(8, 9, 10)))
    >>> len([axes for axes in figure.axes if axes.images])
    3
    """
    count = validate_int("count", count, least=1)
    if center is not None and len(center) == 2:
        center = (*center, 0)  # the only plane of 2-D data
    if label is not None and (isinstance(thing, Mapping) or is_pipe(thing)):
        raise TypeError("label= is for one image; write {'image': x, 'label': y} for others")
    if is_pipe(thing):
        return figure_of(_scenes_of_chain(thing, count, center), title)
    if isinstance(thing, (str, os.PathLike)):
        thing = Volume(os.fspath(thing))
    if label is not None:
        thing = {"image": thing, "label": _as_label(label)}
    if center is not None:
        _refuse_outside(center, thing)
    scenes = scenes_of(thing, Look(FIGURE_SIDE, center), title)[:count]
    if label is not None:
        _refuse_other_place(scenes[0])
    return figure_of(scenes, title)


def _refuse_other_place(scene: Scene) -> None:
    """Raise GridMismatch if no outline of the label can be drawn."""
    note = next((layer.note for layer in scene.layers if layer.key == "label"), "")
    if note:
        do = "If a file has no voxel size: vp.Volume(path, kind='label', affine=image.affine)."
        raise GridMismatch(f"the label has {note}", do=do)


def _as_label(label: Any) -> Any:
    if isinstance(label, (str, os.PathLike)):
        return Volume(os.fspath(label), kind="label")
    return label.of_kind("label") if isinstance(label, Volume) else label


def _refuse_outside(center: Sequence[int], thing: Any) -> None:
    """Raise IndexError unless a thing, or the first volume of a mapping, has the index."""
    is_mapping = isinstance(thing, (Mapping, Sample)) and not is_batch(thing)
    values = list(thing.items()) if is_mapping else [("", thing)]
    key, one = next((pair for pair in values if hasattr(pair[1], "shape")), values[0])
    patch = getattr(thing, "patches", {}).get(key, one)
    shape = getattr(one, "shape", ())[-3:]
    shape = patch.plan.shape if isinstance(patch, LazyPatch) else shape
    if len(center) != 3 or any(not 0 <= i < n for i, n in zip(center, shape, strict=False)):
        raise IndexError(f"center={tuple(center)} is outside a volume of {tuple(shape)} voxels")


def _scenes_of_chain(pipe: Pipe, count: int, center: Sequence[int] | None) -> list[Scene]:
    scenes: list[Scene] = []
    for item in islice(iter(pipe), count):
        scenes += scenes_of(item, Look(FIGURE_SIDE, center))
        if len(scenes) >= count:
            break
    return scenes[:count]


def figure_of(scenes: Sequence[Scene], title: str = "") -> Any:
    """Return a figure with a row for each image of each scene, and its draws."""
    rows = [(scene, layer) for scene in scenes for layer in scene.images]
    columns = max((len(layer.planes) for _, layer in rows), default=1) or 1
    has_draws = any(scene.draws for scene in scenes)
    heights = [_height(layer) for _, layer in rows] or [1.0]
    names = [" · ".join(filter(None, [scene.title, layer.heading])) for scene, layer in rows]
    width = columns * _WIDTH + has_draws * _TEXT_WIDTH
    above = [title] if title and len(rows) > 1 else []
    space = space_of_names(names, width_of_names(columns, _WIDTH)) + space_of_names(
        above, width, TITLE
    )
    figure = new_figure(width, sum(heights) * _WIDTH + 0.4 * len(rows) + 0.3 + space)
    widths = [_WIDTH] * columns + [_TEXT_WIDTH] * has_draws
    ratios: dict[str, Any] = {"width_ratios": widths, "height_ratios": heights}
    grid = figure.add_gridspec(len(heights), len(widths), **ratios)
    for number, (scene, layer) in enumerate(rows):
        axes = [figure.add_subplot(grid[number, column]) for column in range(columns)]
        draw_layer(axes, scene, layer)
        write_name(axes[0], names[number], width_of_names(columns, _WIDTH))
        if has_draws:
            is_first = layer is scene.images[0]
            write_draws(figure.add_subplot(grid[number, columns]), scene if is_first else None)
    for text in above:
        write_title(figure, text, width)
    return with_drawable_texts(figure)


def write_name(axes: Any, name: str, width: float, *, is_apart: bool = False) -> None:
    """Write a name of at most ``width`` inches above a row of planes, in the lines that it needs.

    With ``is_apart``, an empty line separates it from titles of planes.
    """
    lines = lines_of_name(name, width, NAME)
    axes.set_title("\n".join(lines) + "\n" * is_apart, loc="left", **NAME)


def width_of_names(columns: int, width: float) -> float:
    """Return the inches of the names of a row of planes, each ``width`` inches wide."""
    # The layout widens the first plane until it reaches the middle of its title.
    return min(columns, 1.7) * width


def write_title(figure: Any, title: str, width: float) -> None:
    """Write the title of a figure of ``width`` inches, in the lines that it needs."""
    figure.suptitle("\n".join(lines_of_name(title, width, TITLE)), **TITLE)


def space_of_names(names: Sequence[str], width: float, font: Mapping[str, Any] = NAME) -> float:
    """Return the inches of the lines that names have beyond their first."""
    lines = sum(max(0, len(lines_of_name(name, width, font)) - 1) for name in names)
    return float(lines * font["fontsize"] * _LINE_SPACING / 72)


def lines_of_name(name: str, width: float, font: Mapping[str, Any]) -> list[str]:
    """Return the lines of a name that is at most ``width`` inches wide in a font."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    properties = FontProperties(size=font["fontsize"], weight=font.get("fontweight", "normal"))
    lines = []
    for line in name.splitlines():
        plain = line if font is TITLE else drawable(line, properties)
        points, *_ = TextToPath().get_text_width_height_descent(plain, properties, ismath=False)
        most = int(len(plain) * 0.92 * 72 * width / max(points, 1.0))
        fits = len(plain) <= most or (font is TITLE and "$" in plain)  # mathematics
        lines += [plain] if fits else wrap(plain, max(most, 8), max_lines=_MOST_NAME_LINES)
    return lines


def with_drawable_texts(figure: Any) -> Any:
    """Return a figure with escapes in texts of its axes, for characters that their fonts lack.

    Each ``$`` of a name is drawn. Only the title of the figure, a text of the user, may have
    mathematics.
    """
    from matplotlib.text import Text

    for text in (text for axes in figure.axes for text in axes.findobj(Text)):
        text.set_parse_math(False)
        lines = text.get_text().split("\n")
        text.set_text("\n".join(drawable(line, text.get_fontproperties()) for line in lines))
    return figure


def drawable(text: str, properties: Any) -> str:
    """Return a text with escapes for characters that its fonts lack."""
    plain = escape_controls(text)
    if plain.isascii():
        return plain
    characters = _characters_of(properties)
    return "".join(one if ord(one) in characters else ascii(one)[1:-1] for one in plain)


def _characters_of(properties: Any) -> set[int]:
    """Return the characters of the fonts of a text: the first one, and those of other families."""
    from matplotlib.font_manager import findfont, get_font

    codes: set[int] = {ord("\n"), ord("\t")}
    for family in properties.get_family():
        own = properties.copy()
        own.set_family(family)
        codes |= get_font(findfont(own)).get_charmap().keys()
    return codes


def _height(layer: Layer) -> float:
    """Return the height of the tallest frame, relative to its width."""
    frames = frames_of(layer.planes) if layer.planes else []
    ratios = [height / width for height, width in frames]
    return float(np.clip(max(ratios, default=0.3), 0.3, 2.0))


def draw_layer(
    axes: Sequence[Any],
    scene: Scene,
    layer: Layer,
    window: tuple[float, float] | None = None,
) -> None:
    """Draw the planes of a layer, one on each of the axes, and outlines of the labels."""
    for one in axes:
        one.set_axis_off()
    if not layer.planes:
        axes[0].text(0, 0.5, hint_of(layer), fontsize=8, wrap=True)
        return
    window = window or shared_window(layer.planes)
    frames = frames_of(layer.planes)
    for number, (one, plane) in enumerate(zip(axes, layer.planes, strict=False)):
        has_bar = number == 0 or frames[number] != frames[0]
        draw_plane(one, plane, layer.kind, window, frames[number], has_bar=has_bar)
        for label in scene.labels if layer.kind != "label" else ():
            if number < len(label.planes):
                draw_outlines(one, label.planes[number])


def _extent(plane: Plane) -> tuple[float, float, float, float]:
    rows, columns = plane.voxels.shape[1:]
    return (0.0, columns * plane.pixel[1], rows * plane.pixel[0], 0.0)


def draw_plane(
    axes: Any,
    plane: Plane,
    kind: str,
    window: tuple[float, float],
    frame: tuple[float, float],
    *,
    has_bar: bool,
) -> None:
    """Draw one plane with its letters, its index and a scale bar in millimetres.

    ``frame`` is the height and width of the axes in millimetres, with the plane in the middle.
    """
    extent = _extent(plane)
    axes.imshow(image_of(plane.voxels, kind, window), extent=extent, interpolation="nearest")
    x, y = (extent[1] - frame[1]) / 2, (extent[2] - frame[0]) / 2
    axes.set(xlim=(x, x + frame[1]), ylim=(y + frame[0], y))
    west, east, south, north = plane.view.letters
    style: dict[str, Any] = {"color": "white", "fontsize": 8, "fontweight": "bold"}
    style["bbox"] = {"color": "#0006", "pad": 1, "lw": 0}
    for x, y, letter, ha, va in (
        *((0.01, 0.5, west, "left", "center"), (0.99, 0.5, east, "right", "center")),
        *((0.5, 0.01, south, "center", "bottom"), (0.5, 0.99, north, "center", "top")),
    ):
        if letter:
            axes.text(x * extent[1], (1 - y) * extent[2], letter, ha=ha, va=va, **style)
    below: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 7, "color": "#666"}
    below |= {"xytext": (0, -3), "textcoords": "offset points", "annotation_clip": False}
    axes.annotate(plane.caption, (0.5 * extent[1], extent[2]), **below)
    if has_bar:
        length = bar_length(extent[1])
        x, y = 0.03 * extent[1], 0.96 * extent[2]
        for colour, width in (("black", 4.0), ("white", 2.5)):  # visible on any background
            axes.plot([x, x + length], [y, y], color=colour, lw=width, solid_capstyle="butt")
        text, place = plane.length_text(length), (x, y - 0.03 * extent[2])
        box = {"color": "#0006", "pad": 1, "lw": 0}
        axes.text(*place, text, color="white", fontsize=7, va="bottom", bbox=box)


def draw_outlines(axes: Any, plane: Plane) -> None:
    """Draw the sides of pixels between different labels of a plane, of any number in one pass."""
    from matplotlib.collections import LineCollection

    # A margin of background closes outlines at the border.
    labels = np.pad(np.nan_to_num(plane.voxels[0]).astype(np.int64), 1)
    for axis in (0, 1):
        before, after = np.delete(labels, -1, axis), np.delete(labels, 0, axis)
        stop = np.argwhere(before != after)  # in pixels of the plane, without its margin
        start = stop - np.eye(2, dtype=int)[1 - axis]
        sides = np.stack([start, stop], axis=1)[..., ::-1] * plane.pixel[::-1]
        own = np.where(after == 0, before, after)[before != after]
        colours = PALETTE[(own - 1) % len(PALETTE)] / 255
        axes.add_collection(LineCollection(sides, colors=colours, linewidths=1.2), autolim=False)


def write_draws(axes: Any, scene: Scene | None) -> None:
    """Write the draws of a scene, a line for each pipe."""
    axes.set_axis_off()
    if scene is None:
        return
    texts = [f"{name}: {text}" for name, text in scene.draws]
    lines = [line for text in texts for line in wrap(text, _MOST_LENGTH, subsequent_indent="  ")]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"and {len(lines) - _MOST_LINES} more"]
    style: dict[str, Any] = {"va": "top", "fontsize": 7, "family": "monospace"}
    axes.text(0.02, 0.98, "\n".join(lines), transform=axes.transAxes, **style)
