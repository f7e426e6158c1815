"""Patches before and after their augmentation, by the same draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import islice
from typing import Any

import numpy as np

from ...core import Sample
from ...core.redact import escape_controls
from ...core.validate import validate_int
from ...datapipes.batch_patches import BatchPatches
from ...datapipes.epoch import copy_for_epoch, may_look_ahead
from ...graph import Pipe, parents_of, walk
from ...spatial import LazyPatch
from ...spatial.lazy.patch_report import sources_of
from ...spatial.lazy.patch_steps import replay_draws
from ...spatial.ops.op import places
from .figures import (
    TITLE,
    draw_layer,
    new_figure,
    space_of_names,
    width_of_names,
    with_drawable_texts,
    write_draws,
    write_name,
    write_title,
)
from .html import box, row, scene_html, table
from .pixels import window_of
from .planes import FIGURE_SIDE
from .scenes import Layer, Look, Scene, scenes_of

_WIDTH = 1.9  # inches of a plane
_TEXT_WIDTH = 3.2
_SIDE = 180  # pixels of a plane on a page


@dataclass(frozen=True)
class Pair:
    """A case before and after its augmentation; ``before`` is None if nothing is drawn."""

    before: Scene | None
    after: Scene

    def layers(self) -> Iterator[tuple[Layer | None, Layer]]:
        """Yield each image before and after, of which one window is shown."""
        befores = {} if self.before is None else {one.key: one for one in self.before.images}
        for after in self.after.images:
            yield befores.get(after.key), after


def preview(pipe: Pipe, count: int = 8, *, seed: int = 0, epoch: int = 0, title: str = "") -> Any:
    """Return a figure of the first patches of a chain, before and after augmentation.

    A row is one patch: the planes of its place without the drawn ops, those with them, and the
    draws. Both have the same draws. Pipes after ``batch_patches()`` are not shown.

    Parameters
    ----------
    pipe
        The last pipe of a chain.
    count
        Patches to show.
    seed, epoch
        Those of the run.
    title
        Text above the figure.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    MissingDependency
        matplotlib is not installed.
    TypeError
        The items of the chain have no voxels.
    """
    return figure_of_pairs(pairs_of(pipe, count, seed=seed, epoch=epoch), title)


def pairs_of(pipe: Pipe, count: int, *, seed: int = 0, epoch: int = 0) -> list[Pair]:
    """Return the first patches of a chain, before and after augmentation."""
    count = validate_int("count", count, least=1)
    seed, epoch = validate_int("seed", seed, least=0), validate_int("epoch", epoch, least=0)
    items = _before_batches(pipe)
    own = copy_for_epoch(items, seed, epoch) if may_look_ahead(items) else items
    return [pair_of(item) for item in islice(iter(own), count)]


def _before_batches(pipe: Pipe) -> Pipe:
    """Return the pipe of single items: the one before the first ``batch_patches()``."""
    gathers = next((one for one in walk(pipe) if isinstance(one, BatchPatches)), None)
    return pipe if gathers is None else parents_of(gathers)[0]


def pair_of(item: Any) -> Pair:
    """Return an item before and after augmentation."""
    look = Look(FIGURE_SIDE)
    plain = without_augmentation(item) if isinstance(item, Sample) else None
    if plain is None:
        return Pair(None, scenes_of(item, look)[0])
    before = scenes_of(plain, look)[0]
    first = next(one for one in plain.values() if isinstance(one, LazyPatch))
    # Planes through the same place, arranged alike: a flip is seen.
    at = {plane.view.axis: plane.index for one in before.layers[:1] for plane in one.planes}
    point = [at[axis] for axis in range(3)] if len(at) == 3 else None
    if point is not None:
        point = _index_in(item, first, point)
    return Pair(before, scenes_of(item, replace(look, at=point, like=first.affine))[0])


def _index_in(item: Sample, plain: LazyPatch, point: list[int]) -> list[int]:
    """Return where the place of a voxel is after augmentation, or the same index outside of it."""
    patch = next((one for one in item.values() if isinstance(one, LazyPatch)), plain)
    world = np.asarray(plain.affine) @ [*point, 1]
    index = [round(value) for value in (np.linalg.inv(patch.affine) @ world)[:3].tolist()]
    inside = all(0 <= i < n for i, n in zip(index, patch.shape[-3:], strict=True))
    return index if inside else point


def without_augmentation(sample: Sample) -> Sample | None:
    """Return a sample at the same place without its drawn ops; None if it has none.

    The records of placing ops stay. A record of None makes any other drawn op act on nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.random.rand(9, 9, 9)}]).open_volume()
    >>> sample = next(iter(pipe.lazy_patch(4).rotate((-30, 30)).noise(0.1)))
    >>> patch = without_augmentation(sample)["image"]
    >>> patch.draws["lazy_patch"] == sample["image"].draws["lazy_patch"], patch.draws["rotate"]
    (True, None)
    """
    lazy = {key: one for key, one in sample.patches.items() if isinstance(one, LazyPatch)}
    lazy |= {key: one for key, one in sample.items() if isinstance(one, LazyPatch)}
    draws: dict[str, Any] = {}
    for patch in lazy.values():
        draws.update(patch.draws)
    names = {name for patch in lazy.values() for name in _augmenting(patch)} & draws.keys()
    if not names:
        return None
    record = {name: None if name in names else params for name, params in draws.items()}
    return sample.replace(data={**sample, **replay_draws(lazy, record)}, patches={})


def _augmenting(patch: LazyPatch) -> Iterator[str]:
    """Yield the names of the drawn steps of a patch that place nothing."""
    for one in (part for leaf in patch.leaves for part in sources_of(leaf)):
        for step in one.pending.steps:
            if not places(step.op) and step.is_drawn():
                yield step.stream_name
        yield from (step.stream_name for step in one.values if step.is_drawn())
    yield from (step.stream_name for step in patch.values if step.is_drawn())


def figure_of_pairs(pairs: Sequence[Pair], title: str = "") -> Any:
    """Return a figure with a row for each image of each pair."""
    rows = [(pair, before, after) for pair in pairs for before, after in pair.layers()]
    columns = max((len(after.planes) for *_, after in rows), default=1) or 1
    sides = 2 if any(before is not None for _, before, _ in rows) else 1
    widths = [_WIDTH] * columns * sides + [_TEXT_WIDTH]
    names = [" · ".join(filter(None, [pair.after.title, after.heading])) for pair, _, after in rows]
    above = [title] if title else []
    name_width = width_of_names(columns * sides, _WIDTH)
    space = space_of_names(names, name_width)
    space += space_of_names(above, sum(widths), TITLE)
    figure = new_figure(sum(widths), max(1, len(rows)) * (_WIDTH + 0.35) + 0.5 + space)
    grid = figure.add_gridspec(max(1, len(rows)), len(widths), width_ratios=widths)
    for number, (pair, before, after) in enumerate(rows):
        axes = [figure.add_subplot(grid[number, column]) for column in range(len(widths))]
        window = window_of(
            [plane.voxels[0] for one in (before, after) if one for plane in one.planes]
        )
        both = [(pair.before, before), (pair.after, after)]
        for side, (scene, layer) in enumerate(both[-sides:]):
            own = axes[side * columns : (side + 1) * columns]
            for one in own:
                one.set_axis_off()
            if scene is not None and layer is not None:
                draw_layer(own, scene, layer, window)
            if number == 0 and sides == 2:
                own[-1].set_title(("before", "after")[side], loc="right", fontsize=9, color="#666")
        is_apart = number == 0 and sides == 2
        write_name(axes[0], names[number], name_width, is_apart=is_apart)
        write_draws(axes[-1], pair.after)
    for text in above:
        write_title(figure, text, sum(widths))
    return with_drawable_texts(figure)


def page_of_pairs(pairs: Sequence[Pair], title: str) -> str:
    """Return a page of HTML with a row for each pair; it needs no drawing library."""
    rows = [pair_html(pair) for pair in pairs]
    head = f'<!doctype html><meta charset="utf-8"><title>{escape(escape_controls(title))}</title>'
    return f'{head}<body style="background:#fff;color:#222">{box(*rows)}</body>\n'


def pair_html(pair: Pair) -> str:
    """Return the pictures of a case before and after augmentation, and its draws."""
    scenes = [("before", pair.before), ("after", pair.after)] if pair.before else [("", pair.after)]
    sides = [
        f"<div>{escape(name)}{scene_html(scene, _SIDE)}</div>"
        for name, scene in scenes
        if scene is not None
    ]
    draws = table([*pair.after.draws]) if pair.after.draws else ""
    return f"<h4>{escape(pair.after.title)}</h4>{row(*sides, draws)}"
