"""HTML of volumes, patches, samples, batches and chains, for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from ...core import Sample
from ...core.redact import escape_controls
from ...datapipes import DataPipe
from ...graph import Pipe, chain_code, walk
from ...spatial import LazyPatch
from ...volumes import Volume
from . import facts
from .facts import Rows
from .pixels import (
    bar_length,
    colour_of,
    data_url,
    enlarge,
    frames_of,
    image_of,
    shared_window,
    with_outlines,
)
from .planes import REPR_SIDE, Plane
from .scenes import Layer, Look, Scene, hint_of, scenes_of

_BOX = "font:12px/1.45 system-ui,sans-serif;color:inherit;text-align:left;max-width:100%"
_ROW = "display:flex;flex-wrap:wrap;gap:10px;align-items:flex-start;margin:4px 0"
_NAME = (
    "text-align:left;vertical-align:top;font-weight:600;padding:1px 12px 1px 0;white-space:nowrap"
)
_TEXT = (
    "text-align:left;vertical-align:top;padding:1px 0;white-space:pre-wrap;overflow-wrap:anywhere"
)
_MARK = (
    "position:absolute;white-space:nowrap;color:#fff;font:600 11px system-ui;"
    "text-shadow:0 0 3px #000,0 0 1px #000"
)
_CODE = (
    "font:12px/1.45 ui-monospace,monospace;margin:0;padding:6px 8px;white-space:pre-wrap;"
    "border:1px solid #8885;border-radius:4px;background:#8881;color:inherit"
)
_SIDE = 180  # pixels of a plane of one volume
_SMALL = 110  # pixels of a plane of an item of a batch
_MOST_CLASSES = 12  # in a legend
_LOOK = Look(REPR_SIDE, is_bounded=True)


def box(*parts: str) -> str:
    """Return the HTML of one object."""
    content = escape_controls("".join(parts))  # names of files may be no text
    return f'<div class="voxpipe" style="{_BOX}">{content}</div>'


def row(*parts: str) -> str:
    """Return parts side by side, as far as there is room."""
    return f'<div style="{_ROW}">{"".join(parts)}</div>'


def remark(text: str) -> str:
    """Return a line that is less important than facts."""
    return f'<div style="opacity:.75">{escape(text)}</div>'


def code(text: str) -> str:
    """Return a text with its spaces and lines."""
    return f'<pre style="{_CODE}">{escape(text)}</pre>'


def table(rows: Rows) -> str:
    """Return facts as a table of two columns."""
    lines = (
        f'<tr style="background:none"><th style="{_NAME}">{escape(name)}</th>'
        f'<td style="{_TEXT}">{escape(text)}</td></tr>'
        for name, text in rows
    )
    style = "border-collapse:collapse;border:0;margin:0;font:inherit;color:inherit"
    return f'<table style="{style}">{"".join(lines)}</table>'


def picture(plane: Plane, pixels: Any, side: int, labels: Sequence[Plane], *, has_bar: bool) -> str:
    """Return a plane with outlines of labels, letters at its sides, a scale bar and its index."""
    large = enlarge(pixels, plane.pixel, side)
    for label in labels:  # Outlines of one pixel of the screen do not fill thin planes.
        large = with_outlines(large, label.voxels[0])
    height, width = large.shape[:2]
    scale = side / max(pixels.shape[0] * plane.pixel[0], pixels.shape[1] * plane.pixel[1])
    west, east, south, north = map(escape, plane.view.letters)
    marks = [
        f'<span style="{_MARK};left:3px;top:{height / 2 - 8:.0f}px">{west}</span>',
        f'<span style="{_MARK};right:3px;top:{height / 2 - 8:.0f}px">{east}</span>',
        f'<span style="{_MARK};left:{width / 2 - 4:.0f}px;bottom:2px">{south}</span>',
        f'<span style="{_MARK};left:{width / 2 - 4:.0f}px;top:1px">{north}</span>',
    ]
    if has_bar:
        length = bar_length(width / scale)
        style = f"left:6px;bottom:5px;width:{length * scale:.0f}px;border-bottom:2px solid #fff"
        marks.append(f'<span style="{_MARK};{style}">{plane.length_text(length)}</span>')
    name = plane.caption
    image = (
        f'<img src="{data_url(large)}" alt="{escape(name)}" width="{width}" height="{height}" '
        'style="display:block;margin:0;image-rendering:pixelated">'
    )
    style = f"position:relative;line-height:1.2;width:{width}px"
    frame = f'<div style="{style}">{image}{"".join(marks)}</div>'
    return f'<div>{frame}<div style="opacity:.75;font-size:11px">{escape(name)}</div></div>'


def layer_html(layer: Layer, labels: Sequence[Layer], side: int) -> str:
    """Return the planes of a volume with the outlines of labels, or why there are none."""
    if not layer.planes:
        return remark(hint_of(layer))
    window = shared_window(layer.planes)
    pictures, frames = [], frames_of(layer.planes)
    for number, (plane, frame) in enumerate(zip(layer.planes, frames, strict=True)):
        pixels = image_of(plane.voxels, layer.kind, window)
        others = labels if layer.kind != "label" else ()
        outlines = [one.planes[number] for one in others if number < len(one.planes)]
        rows, columns = plane.voxels.shape[1:]
        share = max(rows * plane.pixel[0], columns * plane.pixel[1]) / max(frame)
        has_bar = number == 0 or frame != frames[0]
        width = max(1, round(side * share))
        pictures.append(picture(plane, pixels, width, outlines, has_bar=has_bar))
    return row(*pictures)


def legend(labels: Sequence[Layer]) -> str:
    """Return the colours of the classes in the planes."""
    planes = [plane.voxels[0] for one in labels for plane in one.planes]
    numbers = (np.unique(np.nan_to_num(plane).astype(np.int64)).tolist() for plane in planes)
    classes = sorted(set().union(*numbers) - {0})
    names = "".join(
        f'<span style="margin-right:8px"><span style="display:inline-block;width:9px;height:9px;'
        f'background:rgb{colour_of(number)}"></span> {number}</span>'
        for number in classes[:_MOST_CLASSES]
    )
    more = f"and {len(classes) - _MOST_CLASSES} more" if len(classes) > _MOST_CLASSES else ""
    return f"<div>classes: {names}{more}</div>" if classes else ""


def scene_html(scene: Scene, side: int) -> str:
    """Return the pictures of a case, a row for each image."""
    rows = []
    for layer in scene.images:
        name = (
            f'<div style="font-weight:600">{escape(layer.heading)}</div>' if layer.heading else ""
        )
        rows.append(f"<div>{name}{layer_html(layer, scene.labels, side)}</div>")
    return "".join([*rows, legend(scene.labels)])


def _pictures(thing: Any, side: int = _SIDE) -> str:
    try:
        return "".join(scene_html(scene, side) for scene in scenes_of(thing, _LOOK))
    except Exception as error:  # a table must not end a notebook's cell
        return remark(f"no picture: {type(error).__name__}: {error}")


def volume_html(volume: Volume) -> str:
    """Return the facts of a volume, and three planes; reads a bounded number of bytes."""
    rows = facts.facts_of_volume(volume)
    has_error = rows[-1][0] == "error"
    return box(row(table(rows), "" if has_error else f"<div>{_pictures(volume)}</div>"))


def patch_html(patch: LazyPatch) -> str:
    """Return the facts of a patch, and three planes; reads a bounded number of bytes."""
    rows = facts.facts_of_patch(patch)
    has_error = rows[-1][0] == "error"
    text = f'<div style="max-width:560px">{table(rows)}</div>'
    return box(row(text, "" if has_error else f"<div>{_pictures(patch)}</div>"))


def sample_html(sample: Sample) -> str:
    """Return the facts of a sample and the planes of its volumes."""
    return box(table(facts.facts_of_sample(sample)), _pictures(sample))


def mapping_html(thing: Mapping[str, Any]) -> str:
    """Return the entries and items of a batch; nothing for any other mapping."""
    if not facts.is_batch(thing):
        return ""
    rows = facts.facts_of_batch(thing)
    entries = [pair for pair in rows if not pair[0].startswith("item ")]
    items = []
    for scene in scenes_of(thing, _LOOK):
        title = f'<div style="font-weight:600">{escape(scene.title)}</div>'
        draws = table([*scene.draws]) if scene.draws else ""
        pictures = f"<div>{title}{scene_html(scene, _SMALL)}</div>"
        style = f"{_ROW};border-top:1px solid #8884;padding-top:4px"
        items.append(f'<div style="{style}">{pictures}<div>{draws}</div></div>')
    return box(table(entries), *items, _rest(thing, len(items)))


def _rest(batch: Mapping[str, Any], size: int) -> str:
    count = len(batch["meta"])
    return f"<div>and {count - size} more items</div>" if count > size else ""


def chain_html(pipe: DataPipe) -> str:
    """Return a chain as code, and the cost of one patch."""
    cost = f'<div style="{_TEXT};margin-top:4px">{escape(facts.cost_text(pipe))}</div>'
    return box(code(chain_code(pipe)), cost)


def torch_chain_html(pipe: Pipe) -> str:
    """Return a chain that ends with a pipe of torch, if it has a pipe of voxpipe; else nothing."""
    return chain_html(pipe) if any(isinstance(one, DataPipe) for one in walk(pipe)) else ""  # type: ignore[arg-type]
