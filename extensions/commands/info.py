"""Show how a volume is stored, and the cost of a patch.

Show format, shape, axes, spacing, orientation, type, chunks, levels, channels, codec and bytes of a
volume. Show its reader, the cost of a patch, and the scheme by which patches would be read, too.
For several volumes, print a line each. Headers are read, and no voxel.

example: voxpipe info scans/anna/ct.nii.gz
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

from ...core.errors import UsageError, VoxpipeError
from ...core.settings import bytes_text
from ...spatial.ops.axis_op import orientation_of
from ..pictures.planes import format_of, stores_spacing
from .cures import reword
from .options import positive
from .printing import one_line, print_facts, print_json, print_table, remark, warnings_as_remarks
from .stored_facts import codec_of, levels_of, part_of, reader_of, stored_bytes
from .targets import Target, add_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the target, and the size of the patch."""
    add_target(parser)
    about = "voxels per axis of the patch whose cost is shown (default: %(default)s)"
    parser.add_argument("--patch", type=positive(int), default=96, metavar="N", help=about)


def run(arguments: argparse.Namespace) -> int:
    """Print the facts of every volume of the target; return 1 if one cannot be opened."""
    from ...volumes import Volume

    with warnings_as_remarks(arguments):
        target = Target(arguments.target, arguments)
        if isinstance(target.thing, Volume):
            facts = facts_of(target.thing, arguments.patch)
            if arguments.json:
                print_json(facts)
            else:
                print_facts(_words_of(facts))
            return 0
        return _print_all(target, arguments)


def _print_all(target: Any, arguments: argparse.Namespace) -> int:
    rows, errors = [], []
    for case, key, volume in target.volumes():
        where = {"case": case, "key": key}
        try:
            rows.append(where | facts_of(volume, arguments.patch, with_scheme=False))
        except (VoxpipeError, OSError, ValueError) as error:
            own = reword(arguments, error) if isinstance(error, VoxpipeError) else error
            if isinstance(own, UsageError):
                raise own from None
            name = type(error).__name__
            errors.append(where | {"path": volume.name, "error": name, "reason": str(own)})
    if not arguments.json:
        for one in errors:
            name = one_line(f"{one['case']}/{one['key']}")
            remark(f"{name}: {one['error']}: {one['reason']}")
    if arguments.json:
        print_json({"volumes": rows, "bad": errors})
    elif rows:
        columns = ("case", "key", "format", "shape", "spacing", "orientation", "dtype", "chunks")
        print_table((*columns, "bytes"), [_row_of(facts, columns) for facts in rows])
    return 1 if errors else 0


def _row_of(facts: dict[str, Any], columns: tuple[str, ...]) -> list[str]:
    cells = facts | {"shape": _times(facts["shape"]), "chunks": _times(facts["chunks"])}
    cells["spacing"] = facts["lengths"] or _spacing_of(facts)
    return [*(str(cells[name]) for name in columns), _size(facts["stored_bytes"])]


def facts_of(volume: Any, patch: int, *, with_scheme: bool = True) -> dict[str, Any]:
    """Return the facts of a volume as JSON values; reads its header.

    Lengths are in millimetres, sizes in voxels along I, J and K, and the shape is (C, I, J, K).
    """
    header, form = volume.header, format_of(volume)
    itemsize = volume.disk_dtype.itemsize
    facts = {
        "path": volume.name,
        "format": form or "memory",
        "part": part_of(volume),
        "shape": list(volume.shape),
        "axes": "CIJK",
        "names_axes": volume.names_axes,
        "spacing_mm": list(volume.spacing),
        "stores_spacing": stores_spacing(volume),
        "unit": header.file_unit,
        "lengths": volume.lengths,
        "orientation": orientation_of(volume.affine),
        "affine": volume.affine,
        "dtype": str(volume.dtype),
        "disk_dtype": volume.disk_dtype.str,
        "slope": header.slope,
        "intercept": header.intercept,
        "channels": volume.shape[0],
        "times": header.times.number if header.times.number > 1 else None,
        "channel_names": list(volume.channel_names),
        "access": volume.access,
        "chunks": volume.chunks,
        "shards": getattr(volume.probe(), "shards", None),
        "levels": levels_of(volume, form),
        "codec": codec_of(volume, form),
        "voxel_bytes": math.prod(volume.shape) * itemsize,
        "stored_bytes": stored_bytes(volume, form),
        "reader": reader_of(volume, form),
    }
    return facts | _cost_of(volume, patch) if with_scheme else facts


def _cost_of(volume: Any, patch: int) -> dict[str, Any]:
    """Return the size of a patch, its mean cost, and the negotiated scheme."""
    from ...dataloader2 import DataLoader2
    from ...datapipes.iter import from_cases

    size = tuple(min(patch, length) for length in volume.spatial_shape)
    pipe: Any = from_cases([{"image": volume}]).open_volume()
    pipe = pipe.lazy_patch(size).batch_patches(1)
    with DataLoader2(pipe, seed=0) as loader:
        scheme = loader.schemes().get("image")
    voxels = math.prod(size) * volume.shape[0] * volume.disk_dtype.itemsize
    cost: dict[str, Any] = {"patch": list(size), "patch_bytes": voxels}
    if scheme is None:
        return cost | {"scheme": None}
    cost |= {"patch_chunks": scheme.chunks, "read_bytes": round(voxels * scheme.amplification)}
    return cost | {"scheme": scheme.explain(), "scheme_mode": scheme.running}


def _words_of(facts: dict[str, Any]) -> dict[str, str]:
    letters = facts["orientation"]
    axes = ", ".join(f"{axis} to {letter}" for axis, letter in zip("IJK", letters, strict=True))
    note = "" if facts["names_axes"] else " (the file does not name its axes)"
    has_scale = (facts["slope"], facts["intercept"]) != (1.0, 0.0)
    scale = f", read as {facts['dtype']} = stored * {facts['slope']:g} + {facts['intercept']:g}"
    levels, voxels = facts["levels"], bytes_text(facts["voxel_bytes"])
    channels = f" ({one_line(', '.join(facts['channel_names']))})" if facts["channel_names"] else ""
    words = {
        "path": one_line(facts["path"]),
        "format": ", ".join([facts["format"], *(f"{k} {v}" for k, v in facts["part"].items())]),
        "shape": f"{_times(facts['shape'])} (C, I, J, K)",
        "channels": f"{facts['channels']}{channels}",
        "axes": f"{axes}{note}",
        "orientation": letters,
        "spacing": _spacing_of(facts),
        "type": f"{_type_of(facts['disk_dtype'])}{scale if has_scale else ''}",
        "chunks": _times(facts["chunks"]) if facts["chunks"] else _access(facts["access"]),
        "shards": _times(facts["shards"]),
        "levels": str(levels),
        "codec": facts["codec"] or "unknown",
        "bytes": f"{_size(facts['stored_bytes'])} stored, {voxels} of voxels",
        "reader": facts["reader"],
    }
    if facts["times"]:
        words["time points"] = f"{facts['times']}, as channels"
    if not facts["shards"]:
        del words["shards"]
    read = f", decodes {bytes_text(facts['read_bytes'])}" if "read_bytes" in facts else ""
    if facts.get("patch_chunks"):
        read += f" in {facts['patch_chunks']:.3g} chunks"
    words[f"a patch of {_times(facts['patch'])}"] = f"{bytes_text(facts['patch_bytes'])}{read}"
    words["scheme"] = facts["scheme"] or "not negotiated"
    return words


def _type_of(text: str) -> str:
    order = {"<": " (little-endian)", ">": " (big-endian)"}.get(text[0], "")
    return f"{np.dtype(text).name}{order if np.dtype(text).itemsize > 1 else ''}"


def _access(access: str) -> str:
    words = {"view": "none: mapped into memory", "range": "none: byte ranges"}
    return words.get(access, "none: decoded as a whole")


def _spacing_of(facts: dict[str, Any]) -> str:
    plain = " x ".join(f"{length:.6g}" for length in facts["spacing_mm"])
    unit = facts["unit"]
    if not (unit or facts["stores_spacing"]) and {*facts["spacing_mm"]} == {1.0}:
        return "not given: a voxel counts as 1 mm"
    if not unit:
        return f"{plain} mm (no unit in the file)"
    return f"{plain} mm" if unit == "mm" else f"{facts['lengths']} ({plain} mm)"


def _times(sizes: Any) -> str:
    return "x".join(map(str, sizes)) if sizes else "none"


def _size(count: int | None) -> str:
    return "unknown" if count is None else bytes_text(count)
