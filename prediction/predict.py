"""Prediction of whole volumes: windows, model, and blended voxels, with a band in memory."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from ..core import Sample, errors
from ..core.call_site import CallSite, caller, is_looking_ahead, shorten
from ..core.errors import GraphError, PatchSizeError, SampleError, add_location
from ..core.sample import META
from ..core.suggest import closest, few_names
from ..core.validate import as_axes, entries_of, is_integer, is_number, validate_int
from ..dataloader2 import DataLoader2
from ..datapipes.case_names import CASE
from ..datapipes.iter import from_cases, list_cases
from ..datapipes.op_pipe import suggest_arguments
from ..datapipes.open_volume import LABELS
from ..datapipes.patch_sampler import PatchSampler
from ..graph import Pipe, Rule, is_pipe, sweep, traits_of, walk
from ..reading_services import MultiProcessingReadingService
from ..spatial.lazy.lazy_patch import patches_of
from ..stitching.outputs import Activation
from ..stitching.stitched_volume import MEMORY_BYTES, HowToStitch, Joins, chain_key, refuse_shared
from ..stitching.stitcher import Stitcher
from ..stitching.stitching import Stitching
from ..storage.location import is_url, public_name
from ..volumes import Volume
from .model_calls import Heap, Model, Ranks, evaluating, model_key, run_model

IMAGE = "image"
"""Key of a volume without a name."""
PATCH = 128
_MOST_CASES = 8  # in an error message
Mask = str | Volume | None


@suggest_arguments
def predict(
    model: Model,
    source: Any,
    destination: Any = None,
    *,
    patch: int | Sequence[int] | None = None,
    overlap: float | Sequence[float] | None = None,
    blend: str = "gaussian",
    sigma_scale: float | Sequence[float] | None = None,
    output: str | Mapping[Any, str] = "argmax",
    dtype: DTypeLike | Mapping[Any, DTypeLike] | None = None,
    key: str | None = None,
    mask: Mask = None,
    mirror: bool | Sequence[int] = False,
    batch_size: int | None = None,
    num_workers: int | None = None,
    run: str | None = None,
    head: int | str | None = None,
    classes: int | Mapping[Any, int] | None = None,
    memory_bytes: int = MEMORY_BYTES,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> Any:
    """Run a model over whole volumes, window by window, and write the blended result.

    Windows are read and batched like patches in training, and blended out of core. A part of the
    volume that no later window touches is written to the destination. So ``memory_bytes`` and a
    few windows bound the memory.

    Parameters
    ----------
    model
        A function of a batch (B, C, I, J, K) that returns (B, C, I, J, K) of the same size. A
        module runs on its own device, in its own type and in evaluation mode. If it returns
        several outputs, ``head`` chooses one. Deep supervision (each output coarser than the one
        before, with the same channels) needs no ``head``: The first output is used.
    source
        One of:

        - A path, URL, array or ``Volume``.
        - A case, ``{"image": path, ...}``. A list of files is the channels of one volume.
        - A list of these, or a path with ``*`` for the case.
        - A chain of volumes, optionally with ``lazy_patch(sampling="grid")`` at its end.
        - A chain of batches of such patches, or a loader of one, with its workers.

    destination
        One of:

        - A path or URL that ends in ``.zarr`` (sharded), ``.nii``, ``.nii.gz``, ``.nrrd`` or
          ``.mha``, or of a label group, ``img.zarr/labels/NAME``. ``{case}`` in it is the name of
          the case: ``"results/{case}.nii.gz"``.
        - An array (C, I, J, K) to write to; after ``to_axes("zyx")`` (C, Z, Y, X).
        - None for an array in memory.
        - A function of the case that returns one of these.
        - A mapping from several outputs of the model, by key or position, to one of these each:
          ``{"seg": "seg.nii.gz", "distance": None}``. An output may have more or fewer voxels than
          the window, by a whole factor; its result keeps that scale, and the affine follows.

    patch, overlap
        Size of a window in voxels, by default 128. The share of it that neighbours have in
        common, from 0 to below 1, by default 0.5, by MONAI's rule. Each is one number or three, for
        x, y, z or the order of ``to_axes``. A chain or loader that cuts windows has its own. If a
        volume is smaller, the window is centred and padded by the volume's policy.
    blend
        ``"gaussian"`` as in MONAI and nnU-Net. As in TorchIO: ``"hann"``, ``"mean"`` or
        ``"crop"`` (the middle of each window).
    sigma_scale
        Standard deviation of ``"gaussian"`` as a part of the window, by default 0.125: one number
        or three.
    output
        Function of the blended output: ``"argmax"``, ``"softmax"``, ``"sigmoid"`` or ``"logits"``
        (none).
    dtype
        Type of the result. Labels are uint8 by default (uint16 above 256, uint32 above 65536
        classes), other results float32. Integers are rounded and clipped. For several outputs,
        ``output``, ``dtype`` and ``classes`` are one value or a mapping by the same names.
    key
        The model's volume. By default ``"image"``, or the only volume that is not a label.
    mask
        A key of the case or a ``Volume``, as in ``lazy_patch(mask=)``. Windows without a mask
        voxel are skipped and stay 0.
    mirror
        Axes along which windows are mirrored. The result is the mean over all combinations, eight
        for three axes. True means all axes along which a window has more than one voxel.
    batch_size, num_workers
        Windows per batch, by default 1. Processes that make batches, by default none. A loader
        has its own.
    run
        A name for the code of ``model``, of readers and of the chain's functions. A run with this
        name, and the same weights and settings, is continued; its finished results are returned.
        Other runs, and runs without a name, start again, or raise ``DestinationExists``.
    head
        The wanted output of a model with several. Its position in a list or tuple, or its key in
        a mapping.
    classes
        Channels of the model's output. Needed only if ``mask`` leaves no window of a volume, and
        neither another volume nor the destination has the number.
    memory_bytes
        Memory for unfinished sums and shards, of all volumes together. Each file needs up to
        64 MiB more for rows that wait for their last voxels.
    overwrite
        Whether to replace an existing destination, a zarr group as in :func:`convert`.
    storage_options
        Options for fsspec, if source or destination are URLs.
    progress
        Whether to show a bar with rate and time left. By default only in a terminal.

    Returns
    -------
    The result as a ``Volume`` on the grid of the stored volume, (C, I, J, K). For a list, a path
    with ``*``, a chain or a loader: a mapping from case to such volumes. A case without a name is
    named after its first file, without the format's ending: ``scan`` for ``a/scan.nii.gz``.
    Several outputs: a mapping from name to such a volume, for each case. But an output of another
    scale stays on the grid of its windows, at that scale, also after ``spacing()``.

    Notes
    -----
    The result has the *stored* grid, also after ``spacing()`` or ``foreground_crop()``. One
    resample maps it back, for classes by their shares. Voxels without a window are 0. The same
    command continues a killed run, if source and destination are files, and ``run`` names the
    model. Under ``torch.distributed`` each rank runs its share of the windows, the first one
    stitches, and the others return nothing.

    Raises
    ------
    DestinationExists
        The destination holds another result; this is a ``FileExistsError``.
    GraphError
        An argument has no effect, because the chain or the loader has its own.
    PatchSizeError
        The window, the overlap or the size of the model's output is invalid.
    SampleError
        The source has no windows, or windows are missing. Or the model returns no such tensor, or
        NaN for a label.
    UnknownCase
        The mapping of results has no such case; this is a ``KeyError``.

    Warns
    -----
    NotFinite
        The model returned NaN or infinite numbers, once for each case.

    Examples
    --------
    >>> scan = Volume(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    >>> def two_classes(batch):
    ...     return torch.cat([torch.full_like(batch, 11.5), batch], 1)
    >>> predict(two_classes, scan, patch=2).numpy().sum()
    np.uint64(12)
    """
    origin = _origin_of(model, source)
    axes = _mirror_axes(mirror)
    options = dict(storage_options or {})
    ranks = Ranks.current()
    windowing: Any = {"patch": patch, "overlap": overlap, "mask": mask, "batch_size": batch_size}
    with ExitStack() as stack:
        stack.enter_context(_locate(origin, names_items=isinstance(source, DataLoader2)))
        by_output = _by_output(destination, head, output=output, dtype=dtype, classes=classes)
        joins = Joins(source, by_output, stack, options, overwrite, run, ranks.is_first)
        chain, is_several = _as_chain(source, by_output, key, mask, options)
        if isinstance(chain, DataLoader2):
            arguments = windowing | {"num_workers": num_workers}
            _refuse_given(arguments, "a loader", "the chain of the loader")
            ranks.refuse_alike(chain)
        else:
            chain = _set_origin(_windows_of(chain, **windowing), source, origin)
        stack.enter_context(evaluating(model))  # before the digest, which includes the mode
        run = _run_key(model, (axes, head), run, chain, key)
        bar = stack.enter_context(closing(_Bar(progress if ranks.is_first else False)))
        common: Any = {"overwrite": overwrite, "storage_options": options, "run": run}
        common |= {"blend": blend, "sigma_scale": sigma_scale, "memory_bytes": memory_bytes}
        hows = [HowToStitch(**common, **arguments) for arguments in by_output]
        stitchings = _open(stack, hows, key, bar, origin)
        if not isinstance(chain, DataLoader2):
            chain = _choosing(chain, partial(_select, stitchings, ranks), ranks.count)
            chain = stack.enter_context(_loader(chain, num_workers))
        needs = [stitching.needs for stitching in stitchings if ranks.is_first]
        heads = [head if s.head is None else s.head for s in stitchings]
        outputs = partial(_outputs, model, chain, key, axes, heads, needs)
        results = _stitch(outputs, ranks, stitchings, bar)
        if is_several or not ranks.is_first:
            return joins.join(results) if ranks.is_first else None
        if not results:
            raise SampleError(f"{shorten(source)} was left out, so there is no result")
        (result,) = results.values()
        return result


def _by_output(destination: Any, head: Any, **arguments: Any) -> list[dict[str, Any]]:
    """Return the arguments of each output of the model; one without a name for a destination."""
    names = [*destination] if isinstance(destination, Mapping) else []
    others = [k for k, v in arguments.items() if isinstance(v, Mapping) and {*v} != {*names}]
    if others and not names:
        msg = f"{others[0]}= is a mapping of outputs, which destination= does not name"
        do = "Name each output, as in destination={'seg': path}; or give one value."
        raise SampleError(msg, do=do)
    if names and (others or head is not None):
        msg = f"destination= names the outputs {few_names(map(repr, names))}, and "
        do = "Name the same ones in each argument; head= is for one destination."
        raise SampleError(f"{msg}{[*others, 'head'][0]}= names others", do=do)
    places = [place for place in (destination[name] for name in names) if place is not None]
    targets = [str(p) if isinstance(p, (str, os.PathLike)) else id(p) for p in places]
    if len({*targets}) < len(targets) and not all(map(callable, places)):
        do = "Give each output a destination of its own."
        raise errors.DestinationExists("two outputs of the model have one destination", do=do)
    arguments["destination"] = destination
    outputs = []
    for name in names or [None]:
        pairs = arguments.items()
        of_output = {k: v[name] if names and isinstance(v, Mapping) else v for k, v in pairs}
        activation = Activation(of_output.pop("output"), of_output.pop("dtype"))
        outputs.append({**of_output, "activation": activation, "head": name})
    return outputs


def _open(
    stack: ExitStack, hows: Sequence[HowToStitch], key: str | None, bar: _Bar, origin: CallSite
) -> list[Stitching]:
    """Return the stitching of each output, until the stack is closed."""
    primary = Stitching(hows[0], key, bar.watch, origin)  # all have the same windows
    others = [Stitching(how, key, None, origin, primary.memory) for how in hows[1:]]
    return [stack.enter_context(closing(stitching)) for stitching in (primary, *others)]


def _origin_of(model: Any, source: Any) -> CallSite:
    """Return the user's call; SampleError for swapped or missing arguments."""
    is_source = source is not None and (is_pipe(source) or not callable(source))
    if not (callable(model) and is_source):
        msg = f"predict takes a model, then a source, got {shorten(model)} and {shorten(source)}"
        do = "The model is a module or a function, the source a path, an array, a case or a chain."
        raise SampleError(msg, do=do)
    name = getattr(model, "__name__", type(model).__name__)
    place = shorten(source) if isinstance(source, (str, os.PathLike)) else "..."
    return caller(f"vp.predict({name}, {place})")


@contextmanager
def _locate(origin: CallSite, *, names_items: bool) -> Iterator[None]:
    """Add the user's call to errors of the ``with`` block."""
    try:
        yield
    except errors.VoxpipeError as error:
        if error.at(origin).origin == origin and not names_items:
            error.item = ""  # an item of our own loader, unknown to the user
        raise


def _set_origin(chain: Pipe, source: Any, origin: CallSite) -> Pipe:
    """Return the chain, with ``origin`` for pipes that the user did not write."""
    of_user = {id(pipe) for pipe in walk(source)} if is_pipe(source) else set()
    for pipe in walk(chain):
        if id(pipe) not in of_user:
            vars(pipe)["origin"] = origin
    return chain


class VolumesByCase(dict[str, Any]):
    """Volumes by case; the error for a missing case lists the others."""

    def __missing__(self, case: object) -> Any:
        near = closest(str(case), self, 0.5, _MOST_CASES)
        names = few_names(map(repr, dict.fromkeys([*near, *self])), _MOST_CASES) or "none"
        msg = f"there is no case {case!r}; there are {names}"
        raise errors.UnknownCase(msg, do=f"Did you mean {near[0]!r}?" if near else "")


def _stitch(
    outputs: Callable[[Callable[[], None]], Iterator[Any]],
    ranks: Ranks,
    stitchings: Sequence[Stitching],
    bar: _Bar,
) -> dict[str, Any]:
    """Stitch the model's outputs of all windows; return the volumes by case."""
    heap = Heap()
    with _Background(stitchings) as background:
        mine = outputs(background.wait)
        for metas, arrays in mine if ranks.count == 1 else ranks.gather(mine):
            background.add(metas, arrays)
            bar.update()
            heap.note(sum(array.nbytes for array in arrays))
        background.wait()
    background.collect([(stitching, stitching.finish()) for stitching in stitchings])
    bar.update()
    return background.results


def _mirror_axes(mirror: bool | Sequence[int]) -> tuple[int, ...]:
    if isinstance(mirror, (bool, np.bool_)):
        return (0, 1, 2) if mirror else ()
    is_none = not isinstance(mirror, int) and not len(mirror)
    return () if is_none else tuple(sorted(set(as_axes("mirror", mirror))))


def _run_key(model: Model, how: Sequence[Any], run: str | None, chain: Any, key: str | None) -> str:
    """Return a key that is equal for runs with equal results; empty without a name."""
    graph = chain.datapipe if isinstance(chain, DataLoader2) else chain
    weights = model_key(model) if run else None
    if weights is None:
        return ""
    return " ".join([f"{run} {weights}", f"{how} of {key}", chain_key(graph)])


class _Background(AbstractContextManager["_Background"]):
    """A thread that adds windows while the next ones are read and the model runs."""

    def __init__(self, stitchings: Sequence[Stitching]) -> None:
        self._stitchings, self.results = stitchings, VolumesByCase()
        self._thread = ThreadPoolExecutor(1, "voxpipe-stitch")
        self._batch: Future[None] | None = None

    def add(self, metas: Sequence[Mapping[str, Any]], arrays: Sequence[Any]) -> None:
        """Start to add the windows of a batch, after those of the last batch."""
        try:
            pairs = list(zip(self._stitchings, arrays, strict=True))
            windows = [
                (stitching, stitching.check(meta, array[row]))
                for row, meta in enumerate(metas)
                for stitching, array in pairs
            ]
        finally:  # an error of the last batch comes first
            self.wait()  # bounds memory: at most one batch waits
        work = [(stitching, stitching.add_checked(window)) for stitching, window in windows]
        self._batch = self._thread.submit(self.collect, work)

    def collect(self, work: Sequence[tuple[Stitching, Iterator[tuple[str, Volume]]]]) -> None:
        """Add the windows of generators, and the volumes that they finish to the results."""
        for stitching, volumes in work:
            for case, volume in volumes:
                if stitching.head is None:
                    self.results[case] = volume
                else:
                    self.results.setdefault(case, {})[stitching.head] = volume

    def wait(self) -> None:
        """Wait until all windows are added, and raise errors of adding them."""
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.result()

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown()


def _select(
    stitchings: Sequence[Stitching], ranks: Ranks, sample: Sample, numbers: list[int]
) -> Sequence[int]:
    """Return this rank's missing windows of a volume."""
    if is_looking_ahead():  # a plan writes nothing
        return numbers
    of_rank = [n for n in numbers if n % ranks.count == ranks.rank]
    patches = patches_of(sample)
    volumes = {k: getattr(p.volume, "stored_volume", p.volume) for k, p in patches.items()}
    meta = sample.provenance()
    if not ranks.is_first:
        pairs = [stitching.past(meta, volumes) for stitching in stitchings]
        windows = pairs[0][0]  # all outputs have the same
        return windows.sort(n for n in of_rank if not all(past[n] for _, past in pairs))
    answers = [stitching.open(meta, volumes) for stitching in stitchings]
    stitchers = [stitcher for stitcher in answers if stitcher is not None]
    for stitcher in stitchers:
        stitcher.leave_out(sorted({*range(len(stitcher.windows))} - {*numbers}))
    missing = [n for n in of_rank if not all(stitcher.past[n] for stitcher in stitchers)]
    return stitchers[0].windows.sort(missing) if missing else []


def _loader(chain: Pipe, num_workers: int | None) -> DataLoader2:
    num_workers = validate_int("num_workers", num_workers or 0, least=0)
    workers = MultiProcessingReadingService(num_workers=num_workers) if num_workers else None
    return DataLoader2(chain, None, workers)


class _Bar:
    """A progress bar over windows, whose number grows with each new volume."""

    def __init__(self, shows: bool | None) -> None:
        from tqdm import tqdm

        # None shows no bar unless the output is a terminal.
        disable = None if shows is None else not shows
        self._bar: Any = tqdm(total=0, desc="predict", unit="window", disable=disable)
        self._windows: list[tuple[NDArray[np.bool_], NDArray[np.bool_]]] = []

    def watch(self, stitcher: Stitcher) -> None:
        """Count the windows of one more volume; those of a killed run are done."""
        if self._bar.disable:
            return
        self._windows.append((stitcher.present, stitcher.past))
        self._bar.initial += int(stitcher.present.sum())  # excluded from the rate
        self.update()

    def update(self) -> None:
        """Show the number of stitched windows, out of those that are not skipped."""
        if self._bar.disable:
            return
        self._bar.total = sum(int((there | ~past).sum()) for there, past in self._windows)
        count = sum(int(there.sum()) for there, _ in self._windows)
        self._bar.update(count - self._bar.n)

    def close(self) -> None:
        """Finish the bar."""
        self._bar.close()


def _as_chain(
    source: Any, by_output: Any, key: str | None, mask: Mask, options: Mapping[str, Any]
) -> tuple[Any, bool]:
    """Return a chain of volumes, windows or batches, or a loader, and whether it has several."""
    if isinstance(source, DataLoader2) or is_pipe(source):
        return source, True
    is_list = isinstance(source, (list, tuple))
    for arguments in by_output if is_list and len(source) > 1 else ():
        refuse_shared(arguments["destination"])
    name, place = key or IMAGE, os.fspath(source) if isinstance(source, (str, os.PathLike)) else ""
    is_glob = "*" in public_name(place) and (is_url(place) or not os.path.exists(place))
    cases = [
        # An image of TorchIO is a mapping, too.
        dict(case) if isinstance(case, Mapping) and not hasattr(case, "affine") else {name: case}
        for case in (source if is_list else [source])
    ]
    others = {CASE, mask if isinstance(mask, str) else CASE, *LABELS}
    volumes = [k for k in (cases[0] if cases else {}) if k not in others]
    if key is None and IMAGE not in volumes and len(volumes) > 1:
        msg = f"the case has {', '.join(map(repr, volumes))}, but the model gets one volume"
        raise SampleError(msg, do=f"Name it: ⟦key={volumes[0]!r}⟧, or call it 'image'.")
    name = key or (IMAGE if IMAGE in volumes or not volumes else volumes[0])
    keys = [name, *([mask] if isinstance(mask, str) else [])]
    for case in cases:
        if any(k not in case for k in keys):
            have = ", ".join(repr(k) for k in case if k != CASE) or "nothing"
            msg = f"key= and mask= name {keys}, but the case has {have}"
            raise SampleError(msg, do="Pass a mask from a file as mask=vp.Volume(path).")
    # Drop other volumes, such as the label.
    pipe: Any = (
        list_cases(storage_options=options, **{name: place})
        if is_glob
        else from_cases([{k: case[k] for k in (*keys, CASE) if k in case} for case in cases])
    )
    pipe = pipe.open_volume(keys=keys, labels=keys[1:], storage_options=dict(options) or None)
    return pipe, is_list or is_glob


def _refuse_given(arguments: Mapping[str, Any], who: str, where: str) -> None:
    """Raise GraphError for an argument that the source sets itself."""
    for name, value in arguments.items():
        if value is not None:
            msg = f"{name}= cannot act on {who}, which has its own"
            raise GraphError(msg, do=f"Leave it out, and set it in {where}.")


def _windows_of(
    chain: Pipe, patch: Any, overlap: Any, mask: Mask | None, batch_size: int | None
) -> Pipe:
    """Return the chain with batches of windows: its own, or by the arguments."""
    cutting = [pipe for pipe in walk(chain) if getattr(pipe, "cuts_patches", False)]
    pipe: Any = chain
    if cutting:
        where = 'lazy_patch(size, sampling="grid", overlap=..., mask=...)'
        arguments = {"patch": patch, "overlap": overlap, "mask": mask}
        _refuse_given(arguments, "a chain that cuts windows", where)
    else:
        size, share = PATCH if patch is None else patch, 0.5 if overlap is None else overlap
        sizes = (size,) * 3 if is_integer(size) else entries_of(size)
        if len(sizes) not in (2, 3) or not all(is_integer(n) and n >= 1 for n in sizes):
            msg = f"patch is a whole number of voxels of at least 1, or three, got {size!r}"
            raise PatchSizeError(msg, do="Give the size of a window along each axis.")
        shares = (share,) * len(sizes) if is_number(share) else entries_of(share)
        if len(shares) != len(sizes) or not all(is_number(n) and 0 <= n < 1 for n in shares):
            msg = f"overlap is a share from 0 to below 1, or three, got {share!r}"
            raise PatchSizeError(msg, do="Give the part of a window that neighbours share.")
        # MONAI's rule: the step is rounded down.
        pairs = zip(sizes, shares, strict=True)
        voxels = tuple(n - max(1, int(n * (1 - part))) for n, part in pairs)
        pipe = pipe.lazy_patch(size, sampling="grid", overlap=voxels, mask=mask)
    if len(cutting) > 1 or (cutting and getattr(cutting[0], "sampling", "") != "grid"):
        msg = "the chain cuts patches that are no windows of a grid"
        raise GraphError(msg, do='Write lazy_patch(size, sampling="grid", overlap=...), once.')
    if any(traits_of(upstream).group for upstream in walk(pipe)):
        _refuse_given({"batch_size": batch_size}, "a chain that makes batches", "batch_patches()")
        return chain
    count = validate_int("batch_size", 1 if batch_size is None else batch_size, least=1)
    return pipe.batch_patches(count)  # type: ignore[no-any-return]


def _choosing(
    chain: Pipe, choose: Callable[[Sample, list[int]], Sequence[int]], count: int
) -> Pipe:
    """Return the chain with only the windows chosen for one of ``count`` ranks, in order."""

    def finds(site: Any) -> PatchSampler | None:
        pipe = site.pipe
        return pipe if isinstance(pipe, PatchSampler) and pipe.choose is None else None

    def build(pipe: PatchSampler) -> PatchSampler:
        other = copy.copy(pipe)
        # The number of ranks is an attribute of torch's sharding filter, too.
        vars(other).update(choose=choose, num_of_instances=count)
        return other

    return sweep(chain, (Rule("choose windows", finds, build),)).after


def _batch_image(batch: Any, key: str | None) -> torch.Tensor:
    """Return the model's input of a batch."""
    if not isinstance(batch, Mapping) or META not in batch:
        msg = f"a batch of windows has images and {META!r}, got {type(batch).__name__}"
        raise SampleError(msg, do="Gather windows with batch_patches(), and keep its meta.")
    tensors = {k: v for k, v in batch.items() if isinstance(v, torch.Tensor) and v.ndim in (4, 5)}
    most = max((v.ndim for v in tensors.values()), default=0)  # 4 for windows of 2-D data
    images = {k: v for k, v in tensors.items() if v.ndim == most}
    name = key or (IMAGE if IMAGE in images or len(images) != 1 else next(iter(images)))
    if name not in images:
        have = ", ".join(map(repr, images)) or "none"
        raise SampleError(f"a batch has no images {name!r}, but {have}", do="Name one by ⟦key=⟧.")
    return images[name]


def _outputs(
    model: Model,
    batches: Iterable[Any],
    key: str | None,
    mirror: Sequence[int],
    heads: Sequence[int | str | None],
    needs: Sequence[Callable[[Mapping[str, Any]], bool]],
    wait: Callable[[], None],
) -> Iterator[tuple[list[Any], list[NDArray[np.float32]]]]:
    """Yield provenance and outputs of the missing windows of each batch.

    If the model may overwrite its last output, it runs after that output was added.
    """
    is_kept = True
    for batch in batches:
        image = _batch_image(batch, key)
        # A list, because each stitching opens its destination.
        answers = [[need(meta) for need in needs] for meta in batch[META]]
        rows = [row for row, answer in enumerate(answers) if any(answer) or not needs]
        if not rows:
            continue
        image = image if len(rows) == len(image) else image[rows]
        lengths = image.shape[2:]
        axes = tuple(axis for axis in mirror if axis < len(lengths) and lengths[axis] > 1)
        if is_kept:
            wait()
        try:
            outputs, is_kept = run_model(model, image, axes, *heads)
        except Exception as error:
            cases = " or ".join(sorted({str(batch[META][row]["case"]) for row in rows}))
            raise add_location(error, case=cases)  # noqa: B904  the same error
        if len(lengths) == 2:
            outputs = [output[..., None] for output in outputs]
        yield [batch[META][row] for row in rows], outputs
