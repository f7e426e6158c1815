"""Make a batch of a run again, from a state or from its meta.

Make the batch of a number again, without those before it. The record is a JSON file of
loader.state_dict(), or of batch["meta"], or of an entry of it. A state holds no chain, so --pipe
names the one that it was taken of. Without --pipe, the patches of a meta are read again by their
plans, and changes of values are left out.

example: voxpipe replay state.json --pipe train.py:pipe --batch 3
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import BadHeader, BadState, SampleError, StateMismatch, UsageError
from ...storage.location import local_path
from .options import add_store_options, output_file, positive, store_options
from .printing import (
    one_line,
    print_json,
    print_table,
    print_text,
    remark,
    warnings_as_remarks,
    write_whole,
)
from .targets import Target

_PIPE_CURE = "Write module:NAME or file.py:NAME of a pipe, a DataLoader2, or a function of one."
_RECORD_CURE = "Save loader.state_dict() or batch['meta'] as JSON."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the record, the chain, and the number of the batch."""
    about = "a JSON file of a state of the loader, or of the meta of a batch"
    parser.add_argument("record", metavar="STATE_OR_META", help=about)
    about = "the chain or loader of the run: module:NAME or file.py:NAME"
    parser.add_argument("--pipe", metavar="NAME", help=about)
    none_too = positive(int, or_zero=True)
    about = "number of the batch in its epoch (default: the next one of a state)"
    parser.add_argument("--batch", type=none_too, metavar="N", help=about)
    about = "the epoch (default: that of the record)"
    parser.add_argument("--epoch", type=none_too, metavar="N", help=about)
    about = "draw the batch by matplotlib: .png, .svg or .pdf (default without FILE: replay.png)"
    kind = output_file(".png", ".svg", ".pdf")
    parser.add_argument(
        "--preview", nargs="?", const="replay.png", type=kind, metavar="FILE", help=about
    )
    about = "keys that hold labels, where there is no --pipe (default: those of open_volume())"
    parser.add_argument("--labels", nargs="+", metavar="KEY", help=about)
    parser.set_defaults(patterns=(), optional=())
    add_store_options(parser, "pipe")


def run(arguments: argparse.Namespace) -> int:
    """Print the contents of the batch; return 1 if its draws are not those of the record."""
    document = _record_of(arguments)
    metas = document if isinstance(document, list) else [document]
    is_meta = all(isinstance(one, Mapping) and "sources" in one for one in metas) and bool(metas)
    if not is_meta and not (isinstance(document, Mapping) and "next_batch" in document):
        msg = f"{arguments.record} is no state and no meta of a batch"
        raise BadState(msg, do=_RECORD_CURE)
    with warnings_as_remarks(arguments):
        if arguments.pipe is not None:
            batch = _batch_of_chain(arguments, document, metas if is_meta else None)
        elif is_meta:
            if arguments.batch is not None or arguments.epoch is not None:
                msg = "--batch and --epoch need the chain of the run"
                raise UsageError(msg, do="Give --pipe module:NAME, or leave them out.")
            batch = _batch_of_plans(metas, arguments)
        else:
            msg = "a state holds no chain"
            raise UsageError(msg, do="Give the chain that it was taken of: --pipe module:NAME.")
    is_same = not is_meta or arguments.pipe is None or _has_draws(batch, metas)
    place = (
        None
        if arguments.preview is None
        else str(_draw(batch, Path(local_path(arguments.preview))))
    )
    _print(batch, place, is_same, as_json=arguments.json)
    return 0 if is_same else 1


def _record_of(arguments: argparse.Namespace) -> Any:
    from ...datapipes.case_lists import read_json

    try:
        return read_json(arguments.record, store_options(arguments, arguments.record))
    except OSError as error:
        msg = f"{arguments.record} cannot be read: {error.strerror or error}"
        raise SampleError(msg, do=_RECORD_CURE) from error
    except (SampleError, BadHeader) as error:
        is_folder = os.path.isdir(local_path(arguments.record))
        error.do = "Give the JSON file of a state." if is_folder else error.do or _RECORD_CURE
        raise


def _print(batch: Mapping[str, Any], place: str | None, is_same: bool, *, as_json: bool) -> None:
    rows = [_row_of(key, value) for key, value in batch.items() if hasattr(value, "shape")]
    metas = batch.get("meta", ())
    if as_json:
        print_json({"arrays": rows, "meta": metas, "same_draws": is_same, "preview": place})
    else:
        print_table(tuple(rows[0]) if rows else ("",), [tuple(row.values()) for row in rows])
        for number, meta in enumerate(metas):
            print_text(f"{number}: case {one_line(meta['case'])}, identity {meta['identity']}")
        if place is not None:
            print_text(place)
    if not is_same:
        remark("the draws of this batch are not those of the record: check --batch and --pipe")


def _row_of(key: str, value: Any) -> dict[str, Any]:
    array = np.asarray(value)
    facts: dict[str, Any] = {"key": key, "shape": list(array.shape), "dtype": str(array.dtype)}
    numbers = (array.min(), array.mean(), array.max()) if array.size else (0, 0, 0)
    names = ("minimum", "mean", "maximum")
    return facts | {name: float(n) for name, n in zip(names, numbers, strict=True)}


def _batch_of_chain(arguments: argparse.Namespace, document: Any, metas: Any) -> Any:
    from ...dataloader2 import DataLoader2

    target = Target(arguments.pipe, arguments, _PIPE_CURE)
    thing = target.user_object
    if not target.is_chain:
        raise UsageError(f"{arguments.pipe} names no chain and no loader", do=_PIPE_CURE)
    with thing if isinstance(thing, DataLoader2) else DataLoader2(thing) as loader:
        if metas is None:
            loader.load_state_dict(document)
            epoch, number = document["epoch"], document["next_batch"]
        else:
            if arguments.batch is None:
                raise UsageError("a meta does not hold the number of its batch", do="Give --batch.")
            loader.seed(metas[0]["seed"])
            epoch, number = metas[0]["epoch"], arguments.batch
        epoch = epoch if arguments.epoch is None else arguments.epoch
        number = number if arguments.batch is None else arguments.batch
        try:
            return loader.batch(number, epoch=epoch)
        except IndexError as error:
            raise StateMismatch(str(error), do="Give a smaller --batch.") from error


def _has_draws(batch: Any, metas: Any) -> bool:
    """Return whether every entry of the record is one of the batch."""
    draws = {_text_of(meta): _plain(meta["draws"]) for meta in batch["meta"]}
    return all(draws.get(_text_of(meta)) == _plain(meta["draws"]) for meta in metas)


def _text_of(meta: Mapping[str, Any]) -> str:
    return f"{meta['case']}/{list(meta['identity'])}"


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=lambda thing: np.asarray(thing).tolist()))


def _batch_of_plans(metas: Any, arguments: argparse.Namespace) -> Any:
    """Return the patches of a meta, read again by their plans: (B, C, I, J, K) where they stack."""
    from ...datapipes.open_volume import LABELS
    from ...spatial import LABEL, SpatialPlan, apply_plan
    from ...volumes import Volume

    batch: dict[str, Any] = {"meta": metas}
    for key in metas[0]["sources"]:
        patches = []
        for meta in metas:
            source = meta["sources"][key]
            if "file" not in source or "plan" not in source:
                msg = f"the meta of {key!r} has no file and plan"
                raise SampleError(msg, do="Give --pipe module:NAME, which makes the whole batch.")
            store = store_options(arguments, source["file"])
            options = {**source.get("options", {}), **dict(arguments.reader)}
            if source.get("level"):
                options["level"] = source["level"]
            volume = Volume(source["file"], storage_options=store, **options)
            _refuse_other_shape(volume, source)
            plan = SpatialPlan.from_json(source["plan"])
            policy = [LABEL] if key in (arguments.labels or LABELS) else []
            patches.append(np.asarray(apply_plan(plan, volume.numpy(), *policy)))
        shapes = {patch.shape for patch in patches}
        batch |= (
            {key: np.stack(patches)}
            if len(shapes) == 1
            else {f"{key} {number}": patch for number, patch in enumerate(patches)}
        )
    return batch


def _refuse_other_shape(volume: Any, source: Mapping[str, Any]) -> None:
    """Raise ``SampleError`` unless a volume has the shape of the one in a record."""
    in_record, shape = tuple(source["stored_shape"]), tuple(volume.shape)
    if source.get("level"):  # that of the record is of the finest level
        in_record, shape = in_record[:1], shape[:1]
    if in_record != shape:
        msg = f"{volume.name} opens with the shape {shape}, and the record is of {in_record}"
        do = "Give the options of open_volume() by --reader time=2, for instance,"
        raise SampleError(msg, do=f"{do} or the whole chain by --pipe module:NAME.")


def _draw(batch: Mapping[str, Any], place: Path) -> Path:
    """Draw the batch as ``vp.show()`` does; return the file."""
    from ..pictures.figures import show

    write_whole(place, show(batch))
    return place
