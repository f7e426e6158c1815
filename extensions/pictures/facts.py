"""Facts about volumes, patches, samples and batches, as rows of a name and a text."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ...core import META, Sample
from ...core.errors import is_of_user
from ...core.sample import to_jsonable
from ...core.settings import bytes_text
from ...core.suggest import few_names
from ...datapipes import DataPipe
from ...datapipes.cost import explain_cost
from ...graph import Pipe, chain_code
from ...spatial import LazyPatch
from ...spatial.lazy.patch_facts import channel_names
from ...spatial.lazy.patch_report import asks_voxels, describe_patch, sources_of
from ...spatial.ops.axis_op import orientation_of
from ...volumes import Volume
from ...volumes.catalog.whole_pass import coarser_levels, has_statistics
from .planes import (
    LOCAL_BYTES,
    axis_names,
    has_directions,
    is_remote,
    unit_of,
)

Rows = list[tuple[str, str]]
"""Names and texts of facts."""
# Draws of 2-D data: lists of axes, amounts about the third axis, and amounts of a pair of axes.
_AXES, _ANGLES, _SHEARS = ("axes", "flip"), ("degrees", "rotate"), ("shear",)
_MOST_NAMES = 8  # of channels
_MOST_TEXT = 160  # characters of the draws of one pipe
_HOW = {
    "view": "mapped or in memory",
    "range": "read by byte ranges",
    "stream": "decoded from its beginning",
}
_NO_COST = "the chain reads URLs: pipe.explain() lists them, and shows the cost of a patch"


def sizes_text(shape: Any) -> str:
    """Return sizes as ``"64 x 64 x 32"``."""
    return " x ".join(map(str, shape))


def channels_text(names: Sequence[str]) -> str:
    """Return names of channels in their order; some of many."""
    return few_names([name or f"[{n}]" for n, name in enumerate(names)], _MOST_NAMES)


def facts_of_volume(volume: Volume) -> Rows:
    """Return the facts of a header; the error of a volume that cannot be opened."""
    rows = [("volume", volume.name), ("kind", volume.kind)]
    try:
        header = volume.header
        rows += _facts_of_header(volume)
        if volume.located_source is not None:
            rows += _facts_of_place(volume)
    except Exception as error:  # a table must not end a notebook's cell
        return [*rows, ("error", f"{type(error).__name__}: {error}")]
    statistics = volume.recorded_statistics
    if statistics is not None:
        text = f"mean {statistics.mean:.4g}, std {statistics.std:.4g}, "
        rows.append(("values", f"{text}from {statistics.minimum:g} to {statistics.maximum:g}"))
    if (header.slope, header.intercept) != (1.0, 0.0):
        rows.append(("scaling", f"stored * {header.slope:g} + {header.intercept:g}"))
    return rows


def _facts_of_header(volume: Volume) -> Iterator[tuple[str, str]]:
    header, affine = volume.header, volume.affine
    yield "shape", f"{sizes_text(header.shape)}  (C, I, J, K)"
    disk = "" if header.disk_dtype == volume.dtype else f", stored as {header.disk_dtype.str}"
    yield "type", f"{volume.dtype}{disk}"
    if header.channel_names:
        yield "channels", channels_text(header.channel_names)
    in_unit = f"  ({volume.lengths})" if volume.lengths and header.file_unit != "mm" else ""
    in_mm = f"{' x '.join(f'{s:.4g}' for s in volume.spacing)} mm{in_unit}"
    unit = unit_of(volume)
    texts = {"mm": in_mm, "voxels": "not given: a voxel counts as 1 mm"}
    yield "spacing", texts.get(unit, volume.lengths)
    if has_directions(affine) and unit == "mm":
        origin = ", ".join(f"{v:.4g}" for v in affine[:3, 3])
        yield "axes", f"{orientation_of(affine)}, first voxel at {origin} mm"
    size = math.prod(header.shape) * header.disk_dtype.itemsize
    yield "voxels", f"{bytes_text(size)} without compression"


_PARTS = ("label", "time", "level", "series", "scene", "dataset")  # options that choose one


def _facts_of_place(volume: Volume) -> Iterator[tuple[str, str]]:
    header, source = volume.header, volume.located_source
    options = source.options.reader_kwargs if source is not None else {}
    if part := [f"{name}={options[name]}" for name in _PARTS if name in options]:
        yield "part", ", ".join(part)
    cut = "" if header.chunks is None else f" in chunks of {sizes_text(header.chunks)}"
    where = "remote" if is_remote(volume) else "local"
    yield "stored", f"{where}, {_HOW[header.access]}{cut}"
    factors = [abs(matrix[:3, :3]).max(axis=0).tolist() for matrix in coarser_levels(volume)]
    if factors:  # a shape is known once its level is opened
        texts = ", ".join(" x ".join(f"{f:.3g}" for f in each) for each in factors)
        yield "levels", f"{len(factors)} coarser, by {texts}"


def facts_of_patch(patch: LazyPatch) -> Rows:
    """Return the facts of a patch; its place only if no whole volume has to be read for it."""
    rows = [("patch of", getattr(patch.volume, "name", "")), ("kind", patch.kind)]
    try:
        why = pass_needed(patch)
        if why:
            return [*rows, ("steps", describe_patch(patch)), ("not resolved", why)]
        count = len(patch.shape) - 1
        axes = ", ".join(["C", *axis_names(patch.plan.axes)[:count].upper()])
        rows.append(("shape", f"{sizes_text(patch.shape)}  ({axes})"))
        rows.append(("type", str(patch.dtype)))
        if names := channel_names(patch):
            rows.append(("channels", channels_text(names)))
        unit = unit_of(patch.volume) if isinstance(patch.volume, Volume) else "mm"
        rows.append(("spacing", f"{' x '.join(f'{s:.4g}' for s in patch.spacing[:count])} {unit}"))
        rows.append(("steps", describe_patch(patch)))
        rows.append(("reads", patch.explain()))
        pairs = draws_of(patch.draws, streams_in_plane(patch))
        rows += [(f"drew {name}", text) for name, text in pairs]
    except Exception as error:  # a table must not end a notebook's cell
        rows.append(("error", f"{type(error).__name__}: {error}"))
    return rows


def pass_needed(patch: LazyPatch) -> str:
    """Return why a large or remote volume must be read as a whole for a patch; empty if not."""
    volumes = [one for one in _volumes_of(patch) if isinstance(one, Volume)]
    sizes = [math.prod(one.shape) * one.disk_dtype.itemsize for one in volumes]
    pairs = zip(volumes, sizes, strict=True)
    large = [one for one, size in pairs if is_remote(one) or size > LOCAL_BYTES]
    if not large:
        return ""
    if asks_voxels(patch):
        return f"its place depends on all voxels of {large[0].name}"
    steps = [step for one in patch.leaves for step in one.values]
    if any(step.op.takes_statistics for step in steps) and not all(map(has_statistics, large)):
        return f"its values depend on statistics of {large[0].name}"
    return ""


def _volumes_of(patch: LazyPatch) -> Iterator[Any]:
    for leaf in patch.leaves:
        yield getattr(leaf.volume, "stored_volume", leaf.volume)
        yield from leaf.pending.references.values()


def draws_of(draws: Mapping[str, Any], in_plane: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return the name and a short text of each pipe's draws.

    ``in_plane`` are the names of pipes of 2-D data. Their draws have one angle, and two numbers of
    other amounts.

    Examples
    --------
    >>> draws_of({"rotate": {"degrees": [1.23456, 0.0, 0.0]}, "flip": None})
    [('rotate', 'degrees=(1.23, 0, 0)'), ('flip', 'not applied')]
    >>> draws_of({"rotate": {"degrees": [0.0, 0.0, 15.0]}}, in_plane=["rotate"])
    [('rotate', 'degrees=15')]
    """
    pairs = ((name, to_jsonable(params)) for name, params in draws.items())
    return [(name, _short(_of_plane(p, name) if name in in_plane else p)) for name, p in pairs]


def streams_in_plane(patch: LazyPatch) -> set[str]:
    """Return the names of our spatial pipes of a patch that act on 2-D data."""
    names: set[str] = set()
    for source in sources_of(patch):
        plan, draws = source.pending.first_plan, source.pending.draws
        for step in source.pending.steps:
            plan = step.apply(plan, draws[step.stream_name])
            if plan.is_flat and not is_of_user(type(step.op)):  # whose draws are not known
                names.add(step.stream_name)
    return names


def streams_of_batch(batch: Mapping[str, Any], draws: Mapping[str, Any]) -> list[str]:
    """Return the names of the pipes of a 2-D batch, from the first that cuts patches."""
    ndims = {getattr(value, "ndim", 0) for key, value in batch.items() if key != META}
    names = list(draws)
    sizes = ((n, p.get("size")) for n, p in enumerate(draws.values()) if isinstance(p, Mapping))
    cuts = [n for n, size in sizes if isinstance(size, (list, tuple)) and len(size) == 3]
    return names[cuts[0] :] if cuts and 4 in ndims and 5 not in ndims else []


def _of_plane(value: Any, name: str) -> Any:
    """Return a value that a pipe of 2-D data drew, without numbers for the third axis."""
    if isinstance(value, Mapping):
        shears = name.startswith(_SHEARS)
        return {key: _of_plane(one, "shear" if shears else key) for key, one in value.items()}
    if not isinstance(value, list) or any(isinstance(one, (list, Mapping)) for one in value):
        return [_of_plane(one, name) for one in value] if isinstance(value, list) else value
    if name in _AXES:
        return [axis for axis in value if axis != 2]
    if len(value) != 3:
        return value
    return value[2] if name in _ANGLES else value[0] if name in _SHEARS else value[:2]


def _short(params: Any) -> str:
    if params is None:
        return "not applied"
    if isinstance(params, Mapping):
        text = ", ".join(f"{key}={_number_text(value)}" for key, value in params.items())
    else:
        text = _number_text(params)
    text = text or "applied"
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"


def _number_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (float, list, tuple, Mapping)):
        return str(value)
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Mapping):
        return f"{{{_short(value)}}}"
    return f"({', '.join(map(_number_text, value))})"


def facts_of_sample(sample: Sample) -> Rows:
    """Return a line for each entry of a sample, and its draws."""
    identity = ", ".join(map(str, sample.identity))
    rows = [
        ("case", sample.case),
        ("item", f"{identity}; seed {sample.seed}, epoch {sample.epoch}"),
    ]
    for key, value in sample.items():
        rows.append((key, line_of(value)))
    patches = {**sample.patches, **{k: v for k, v in sample.items() if isinstance(v, LazyPatch)}}
    draws, in_plane = dict[str, Any](), set[str]()
    for patch in patches.values():
        if not isinstance(patch, LazyPatch) or not pass_needed(patch):
            draws.update(patch.draws)
            in_plane |= streams_in_plane(patch) if isinstance(patch, LazyPatch) else set()
    return [*rows, *((f"drew {name}", text) for name, text in draws_of(draws, in_plane))]


def line_of(value: Any) -> str:
    """Return a short text about an entry of a sample or batch."""
    if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, LazyPatch):
        kind = type(value).__name__
        name = f"{kind} {value.name}" if isinstance(value, Volume) else kind
        return f"{name} {sizes_text(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    text = repr(value)
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"


def is_batch(thing: Any) -> bool:
    """Whether a mapping is a batch of ``batch_patches()``, with the provenance of its items."""
    meta = thing.get(META) if isinstance(thing, Mapping) else None
    return isinstance(meta, list) and all(isinstance(m, Mapping) and "case" in m for m in meta)


def facts_of_batch(batch: Mapping[str, Any]) -> Rows:
    """Return a line for each entry of a batch, and one for each of its items."""
    rows = [(key, line_of(value)) for key, value in batch.items() if key != META]
    for number, meta in enumerate(batch[META]):
        own = meta.get("draws", {})
        pairs = draws_of(own, streams_of_batch(batch, own))
        draws = "; ".join(f"{name}: {text}" for name, text in pairs)
        rows.append((f"item {number}", f"{meta['case']}{f'   {draws}' if draws else ''}"))
    return rows


def cost_text(pipe: Pipe) -> str:
    """Return the cost of a patch of a chain; a hint where that lists a bucket."""
    if "://" in chain_code(pipe):
        return _NO_COST
    try:
        return explain_cost(pipe, 0, 0)
    except Exception as error:  # a table must not end a notebook's cell
        return f"no cost: {type(error).__name__}: {error}"


def text_of(rows: Rows) -> str:
    """Return rows as lines in two columns."""
    width = max((len(name) for name, _ in rows), default=0)
    texts = (text.replace("\n", f"\n{' ' * (width + 2)}") for _, text in rows)
    pairs = zip((name for name, _ in rows), texts, strict=True)
    return "\n".join(f"{name:<{width}}  {text}".rstrip() for name, text in pairs)


def volume_text(volume: Volume) -> str:
    """Return the facts of a volume as lines."""
    return text_of(facts_of_volume(volume))


def patch_text(patch: LazyPatch) -> str:
    """Return the facts of a patch as lines."""
    return text_of(facts_of_patch(patch))


def sample_text(sample: Sample) -> str:
    """Return the facts of a sample as lines."""
    return text_of(facts_of_sample(sample))


def chain_text(pipe: DataPipe) -> str:
    """Return the code of a chain, then its cost."""
    return "\n\n".join(filter(None, [str(pipe), cost_text(pipe)]))
