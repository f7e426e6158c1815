"""Run a model over whole volumes and write the results.

Run a model over windows of each volume, and write the blended result on its stored grid. The model
is a TorchScript file (.pt, .ts), a program of torch.export (.pt2), or module:NAME. This is a module
of torch, a function of a batch (B, C, I, J, K), or a function without arguments that returns one.
Files that torch.save() wrote are refused, because they can run any code.

example: voxpipe predict model.pt scans/anna/ct.nii.gz -o anna-seg.nii.gz
"""

from __future__ import annotations

import argparse
import inspect
import logging
import os
import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...core.errors import SampleError, UnknownFormat, UsageError, VolumeNotFound
from ...first_use import extensions
from ...storage.location import is_url
from .cures import is_name_of_object
from .options import place as place_of_text
from .options import positive, refuse_http, store_options
from .printing import print_json, print_table, warnings_as_remarks
from .targets import (
    Target,
    add_target,
    attribute_of,
    call_of,
    refuse_denied,
    wrong_use,
)

_RESULTS = ("argmax", "softmax", "sigmoid", "logits")
_PICKLE = b"\x80"  # the first byte of its protocols
_WINDOW = "voxpipe_window"  # attribute of an exported program: its one size of windows
_OTHER_FILES = {".onnx": "ONNX", ".safetensors": "weights, without their net"}
_MODEL_CURE = (
    "Write the net by torch.jit.save() or, as .pt2, by torch.export.save(). Or give module:NAME of "
    "a function that builds the net and loads its weights."
)
_OBJECT_CURE = (
    "Name a module of torch, a function of one batch, or a class or function without arguments "
    "that makes one."
)
_BATCH_AXES = 5  # (B, C, I, J, K)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, the volumes, and the options of ``vp.predict()``."""
    from ...volumes.conversion.volume_file import SUFFIXES

    about = "a TorchScript file, a program of torch.export (.pt2), or module:NAME of a model"
    parser.add_argument("model", metavar="MODEL", type=place_of_text, help=about)
    add_target(parser)
    suffixes = ", ".join((".zarr", *SUFFIXES, *extensions("writers")))
    about = (
        f"path or URL that ends in one of {suffixes}; {{case}} is the "
        "name of the case (default: prediction.nii.gz, or {case}-prediction.nii.gz for several). "
        "Times of a chain of from_ome() need none, and {image} is the path of the image"
    )
    parser.add_argument("-o", "--destination", metavar="FILE", help=about)
    about = "voxels of a window: one number, or x, y and z (default: 128, or the size of a .pt2)"
    whole, share = positive(int), _share
    parser.add_argument("--patch", type=whole, nargs="+", metavar="N", help=about)
    about = "share of a window that its neighbour covers, too (default: 0.5)"
    parser.add_argument("--overlap", type=share, metavar="X", help=about)
    blends = ("gaussian", "hann", "mean", "crop")
    parser.add_argument("--blend", choices=blends, default="gaussian", help="weights of overlaps")
    about = "function of the blended output (default: %(default)s)"
    parser.add_argument("--result", dest="output", choices=_RESULTS, default="argmax", help=about)
    parser.add_argument(
        "--key", metavar="KEY", help="key of the volume (default: image, or the only image)"
    )
    about = "mirror windows along all axes and average: eight times the work"
    parser.add_argument("--mirror", action="store_true", help=about)
    about = "windows of a batch (default: 1)"
    parser.add_argument("--batch", dest="batch_size", type=whole, metavar="N", help=about)
    none_too = positive(int, or_zero=True)
    about = "worker processes that read windows (default: 0)"
    parser.add_argument("--workers", dest="num_workers", type=none_too, metavar="N", help=about)
    about = "device of the model, such as cuda:0 (default: cuda if there is one, else cpu)"
    parser.add_argument("--device", help=about)
    about = "name of this model: the same command continues a killed run of this name"
    parser.add_argument("--run", dest="run_name", metavar="NAME", help=about)
    parser.set_defaults(go_on=_way_to_go_on)
    parser.add_argument("--overwrite", action="store_true", help="replace existing results")


def _way_to_go_on(arguments: argparse.Namespace) -> str:
    if arguments.run_name is not None:
        return "; give it again to go on"
    return "; with --run NAME it goes on, and --overwrite replaces the results of this run"


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to below 1")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Write the results, and print their places."""
    from ...prediction.predict import predict
    from ...volumes import Volume

    if arguments.patch and len(arguments.patch) not in (1, 3):
        raise UsageError(f"--patch takes one number or three, got {len(arguments.patch)}")
    with warnings_as_remarks(arguments):
        refuse_http("predict", arguments.destination or "")
        _refuse_unwritable(arguments.destination or "")
        target = Target(arguments.target, arguments)
        source = target.thing
        model = _model_of(arguments.model, _device_of(arguments.device))
        is_one = isinstance(source, Volume)
        if is_one and arguments.key not in (None, "image"):
            msg = f"one volume has the key image, and --key is {arguments.key}"
            raise UsageError(msg, do="Leave --key out, or give a folder or patterns.")
        usual = "prediction.nii.gz" if is_one else "{case}-prediction.nii.gz"
        place = arguments.destination or usual
        # Times of one image have one destination, which predict() checks.
        is_joint = _is_joint(source)
        if not (is_one or is_joint or "{case}" in place):
            msg = f"{place} would be written for each case"
            raise UsageError(msg, do="Write {case} into it: 'results/{case}.nii.gz'.")
        if "{image}" in place and not is_joint:
            msg = f"{place} has {{image}}, and only a chain of vp.from_ome() has images"
            raise UsageError(msg, do="Write {case} for the name of the case.")
        if not is_one and target.user_object is None:
            source = target.chain
        # A program of torch.export may take windows of one size only.
        patch = arguments.patch or getattr(model, _WINDOW, None)
        _refuse_other_windows(model, arguments.patch)
        size = patch[0] if patch and len(patch) == 1 else None
        results = predict(
            model,
            source,
            place,
            patch=size or patch,
            overlap=arguments.overlap,
            blend=arguments.blend,
            output=arguments.output,
            key=arguments.key,
            mirror=arguments.mirror,
            batch_size=arguments.batch_size,
            num_workers=arguments.num_workers,
            run=arguments.run_name,
            overwrite=arguments.overwrite,
            storage_options=store_options(arguments, arguments.target, place),
        )
    by_case = {_case_of(source): results} if is_one else dict(results.items())
    rows = [_row_of(case, volume) for case, volume in by_case.items()]
    if arguments.json:
        print_json({"results": rows})
    else:
        print_table(("case", "path", "shape", "dtype"), [tuple(row.values()) for row in rows])
    return 0


def _row_of(case: str, volume: Any) -> dict[str, Any]:
    """Return the facts of a result; its path is absolute, also of an earlier run."""
    path = volume.name if is_url(volume.name) else os.path.abspath(volume.name)
    return {"case": case, "path": path, "shape": list(volume.shape), "dtype": str(volume.dtype)}


def _is_joint(source: Any) -> bool:
    """Whether a chain or loader joins results of several cases, such as times of one image."""
    from ...graph import is_pipe, walk

    graph = getattr(source, "datapipe", source)
    return is_pipe(graph) and any(hasattr(type(pipe), "join_results") for pipe in walk(graph))


def _refuse_unwritable(place: str) -> None:
    """Raise ``UsageError`` for a destination of no format, or with another field than the case."""
    from ...volumes.conversion.volume_file import refuse_unwritable

    fields = set(re.findall(r"\{([^{}]*)\}", place)) - {"case", "image"}
    if fields:
        msg = f"{place} has {{{min(fields)}}}, and only {{case}} has a value"
        raise UsageError(msg, do="Write {case} for the name of the case.")
    if place:
        with wrong_use(UnknownFormat):
            refuse_unwritable(place)


def _case_of(source: Any) -> str:
    """Return the name of the case that ``vp.predict()`` makes of one volume."""
    from ...datapipes.iter import from_cases

    return next(str(name) for name, _ in from_cases([{"image": source}]).each_case())


def _refuse_other_windows(model: Any, patch: Sequence[int] | None) -> None:
    """Raise ``UsageError`` if a program of one window size shall take another."""
    window = getattr(model, _WINDOW, None)
    if patch and window and tuple(patch) * (1 if len(patch) > 1 else 3) != tuple(window):
        sizes = " ".join(map(str, window))
        msg = f"the program takes windows of {sizes}, and --patch is {' '.join(map(str, patch))}"
        raise UsageError(msg, do=f"Leave --patch out, or give --patch {sizes}.")


def _device_of(text: str | None) -> Any:
    import torch

    try:
        if text is None:
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.empty(0, device=text)
        return torch.device(text)
    except (RuntimeError, AssertionError) as error:
        first = str(error).partition("\n")[0]
        raise UsageError(f"--device {text} cannot be used: {first}") from error


def _model_of(text: str, device: Any) -> Any:
    """Return a model on a device: a module of torch, or a function of a batch."""
    import torch

    if is_name_of_object(text):
        thing = attribute_of(text, _OBJECT_CURE)
        if inspect.isclass(thing) or (inspect.isroutine(thing) and not _takes_a_batch(thing)):
            thing = call_of(text, thing, _OBJECT_CURE)
        if not callable(thing):
            raise UsageError(f"{text} is of type {type(thing).__name__}.", do=_OBJECT_CURE)
        return thing.to(device) if isinstance(thing, torch.nn.Module) else thing
    refuse_denied(text)
    if not os.path.isfile(text):
        what = f"the model {text} is a folder" if os.path.isdir(text) else f"there is no {text}"
        do = "Give a file of TorchScript or torch.export, or module:NAME."
        raise VolumeNotFound(f"{what}.", do=do)
    _refuse_other_files(text)
    try:
        if text.lower().endswith(".pt2"):
            with _without_log_lines():  # with tracebacks, for a bad file
                return _exported_model(torch.export.load(text), device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript as a whole
            load: Any = torch.jit.load
            return load(text, map_location=device).eval()
    except Exception as error:  # torch raises any class for a bad file
        reason = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
        event = f"{text} is no model of TorchScript or torch.export: {reason}"
        raise SampleError(event, do=_MODEL_CURE) from error


@contextmanager
def _without_log_lines() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


def _refuse_other_files(path: str) -> None:
    """Raise ``SampleError`` for a pickle, and for files of other known kinds."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".py":
        msg = f"{path} is a file of Python, and no model"
        raise SampleError(msg, do=f"Name an object in it: {path}:net.")
    with open(path, "rb") as file:
        is_pickle = file.read(1) == _PICKLE
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = {os.path.basename(name) for name in archive.namelist()}
        is_pickle = "data.pkl" in names and "constants.pkl" not in names
    if is_pickle:
        msg = f"{path} is a pickle, as torch.save() writes it, and loading one can run any code"
        raise SampleError(msg, do=_MODEL_CURE)
    if suffix in _OTHER_FILES:
        raise SampleError(f"{path} is a file of {_OTHER_FILES[suffix]}", do=_MODEL_CURE)


def _exported_model(program: Any, device: Any) -> Any:
    """Return a function of a batch: an exported module refuses ``eval()``."""
    import torch
    from torch.export.passes import move_to_device_pass

    module = move_to_device_pass(program, device).module()
    weights = (one for one in module.parameters() if one.is_floating_point())
    dtype = next((one.dtype for one in weights), torch.float32)

    def model(batch: Any) -> Any:
        return module(batch.to(device, dtype))

    inputs = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
    shape = tuple(getattr(inputs[-1], "shape", ())) if inputs else ()
    is_fixed = len(shape) == _BATCH_AXES and all(isinstance(size, int) for size in shape)
    setattr(model, _WINDOW, shape[2:] if is_fixed else None)
    return model


def _takes_a_batch(function: Any) -> bool:
    try:
        inspect.signature(function).bind(object())
    except TypeError:
        return False
    return True
