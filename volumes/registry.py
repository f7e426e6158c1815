"""The registry of backends: an ordered list of matchers, open to users and packages.

Names and rules are TorchIO's, so that its backends work here.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import BadHeader, SampleError, UnknownFormat, reader_error
from ..core.suggest import closest
from ..first_use import extensions, leave_out, load
from ..storage.location import is_url, public_name
from .backend import Backend, ViewBackend, as_array, placed_array
from .header import IDENTITY, affine_entries, array_header, channels_first, given_affine
from .session import close_volumes


class _LazyTensor:
    """A field that stores an array and returns it as a torch tensor.

    Only factories that read the affine pay for importing torch.
    """

    def __get__(self, request: Any, owner: type) -> Any:
        if request is None:
            return None  # default of the dataclass field
        value = request.__dict__["affine"]
        if isinstance(value, np.ndarray):
            import torch

            return torch.from_numpy(np.array(value, dtype=np.float64))
        return value

    def __set__(self, request: Any, value: Any) -> None:
        request.__dict__["affine"] = value


@dataclass(frozen=True)
class BackendRequest:
    """Location and options of a source, for factories and matchers."""

    path: Path | None = None  # local path, None for URLs and objects
    remote_zarr_uri: str | None = field(default=None, repr=False)  # may hold credentials
    """URL of a zarr array or group."""
    zarr_store: Any = None  # a zarr Store, Array or Group object
    affine: Any = _LazyTensor()  # 4x4 float64 torch tensor that overrides the stored one, or None
    reader_kwargs: Mapping[str, Any] = field(default_factory=dict)  # more keywords of ``Volume``
    reader: Any = None  # the reader given to ``Volume``
    uri: str | None = field(default=None, repr=False)  # URL of anything that is no local path
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # for fsspec
    source: Any = field(default=None, repr=False)  # the user's argument
    io: str = "auto"  # how bare voxels of local files are read: one of ``IO_MODES``
    follow: str = "same_folder"
    """Where files that a header names may be: in its ``"same_folder"``, or ``"anywhere"``."""


Matcher = Callable[[BackendRequest], bool]
Factory = Callable[[BackendRequest], Any]


class _Matcher(NamedTuple):
    name: str
    matcher: Matcher
    factory: Factory


# Registrations of users, before and after all formats.
BEFORE: list[_Matcher] = []
AFTER: list[_Matcher] = []
_FORMATS: list[Any] = []  # of the engine
_WITHOUT: set[str] = set()  # names of removed or replaced formats


def add_formats(formats: Iterable[Any]) -> None:
    """Add the formats of the engine, those of lower rank first."""
    _FORMATS.extend(sorted(formats, key=lambda item: item.rank))


def all_formats() -> list[Any]:
    """Return the formats of the engine and of installed packages, each group by rank.

    An entry point ``voxpipe.formats`` names a `Format`, or a tuple of them. A package that cannot
    be imported, or a point of another type, gives a warning and is skipped.
    """
    others: list[Any] = []
    for point in extensions("formats").values():
        value = load(point) or ()
        items = value if isinstance(value, tuple) else (value,)
        if not all(hasattr(item, "recognises") for item in items):
            leave_out(point, "names no Format")
            continue
        others += items
    return [*_FORMATS, *sorted(others, key=lambda item: item.rank)]


def _entries(formats: Iterable[Any]) -> list[_Matcher]:
    """Return the backends of users and of these formats, in the order of matching."""
    entries = (_Matcher(f.name, f.recognises, f.backend) for f in formats if f.name not in _WITHOUT)
    return [*BEFORE, *entries, *AFTER]


def register_backend(
    name: str, matcher: Matcher, factory: Factory, *, prepend: bool = True
) -> None:
    """Register a backend: ``factory`` opens the sources that ``matcher`` recognises.

    Parameters
    ----------
    name
        A registration of the same name is replaced.
    matcher
        Whether a request is for this backend.
    factory
        Returns the backend: ``shape`` (C, I, J, K), ``affine``, ``dtype``,
        ``backend[slices]`` (a 4-D tensor) and ``to_tensor()``.
    prepend
        Whether this matcher comes before all others, or after them.

    Notes
    -----
    Registrations belong to the process. Make them at import, so that workers have them too.
    """
    unregister_backend(name)  # also drops handles that other backends have opened
    entry = _Matcher(name, matcher, factory)
    BEFORE.insert(0, entry) if prepend else AFTER.append(entry)


def unregister_backend(name: str) -> None:
    """Remove a backend; do nothing if there is none of this name."""
    _WITHOUT.add(name)
    for entries in (BEFORE, AFTER):
        entries[:] = [entry for entry in entries if entry.name != name]
    close_volumes()


def resolve_backend(request: BackendRequest) -> Any | None:
    """Return the backend that opens ``request``, or None if no matcher recognises it.

    A user's reader comes first, then the first matcher that returns true. Errors of a factory are
    raised; no other factory is tried.
    """
    reader = request.reader
    if isinstance(reader, str):
        factory, reader = _factory_of(reader, request), None
    elif reader is not None:
        factory = getattr(reader, "create_backend", partial(_call_reader, reader))
    elif (entry := matching_entry(request)) is None:
        return None
    else:
        factory = entry.factory
    try:
        backend = factory(request)
    except Exception as error:
        reader = reader or _own_code(factory)
        raise reader_error(error, reader, "opening", _name_of(request))  # noqa: B904  it has its cause
    # The stored array: the field would import torch.
    return backend if vars(request)["affine"] is None else with_affine(backend, request)


def _factory_of(name: str, request: BackendRequest) -> Factory:
    """Return the factory of a backend by its name."""
    factories = {entry.name: entry.factory for entry in _entries(all_formats())}
    if name not in factories:
        near = closest(name, factories, 0.6)
        do = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(sorted(factories))}."
        raise SampleError(f"{_name_of(request)} has reader={name!r}, which names no backend", do=do)
    return factories[name]


def _name_of(request: BackendRequest) -> str:
    return public_name(str(request.path or request.uri or request.source))


def _own_code(function: Any) -> Any:
    """Return a function, or that of the package whose ``Format`` it belongs to."""
    code = getattr(getattr(function, "__self__", None), "open", function)
    return getattr(code, "func", code)  # of a partial


def _recognises(entry: _Matcher, request: BackendRequest) -> bool:
    try:
        return bool(entry.matcher(request))
    except Exception as error:
        reader = _own_code(entry.matcher)
        raise reader_error(error, reader, "recognising", _name_of(request))  # noqa: B904  it has its cause


def matching_entry(request: BackendRequest) -> _Matcher | None:
    """Return the first entry that matches; import packages only if no other entry does."""
    own = (entry for entry in tuple(BEFORE) if _recognises(entry, request))
    # The suffix of a file decides first; formats that look into folders come later.
    order = _FORMATS
    if request.path is not None and os.path.isfile(request.path):
        order = [f for f in order if f.matches is None] + [f for f in order if f.matches]
    formats = (f for f in order if f.name not in _WITHOUT and f.recognises(request))
    if (early := next(own, None)) is not None:
        return early
    first, options = next(formats, None), {*request.reader_kwargs}
    if first is not None and options <= {*first.options}:
        return _Matcher(first.name, first.recognises, first.backend)
    others = all_formats()[len(_FORMATS) :]
    if first is not None:
        # A package may read parts of a format, by options that only its own format has.
        others = [*(f for f in others if options <= {*f.options}), first]
    entries = _entries(others)[len(BEFORE) :]
    return next((entry for entry in entries if _recognises(entry, request)), None)


def with_affine(backend: Any, request: BackendRequest) -> Any:
    """Return a backend of ours with the user's affine, if any."""
    affine = vars(request)["affine"]
    if affine is not None and isinstance(backend, Backend):
        entries = given_affine(as_array(affine), backend.name)
        backend.header = replace(backend.header, affine=entries)
    return backend


def is_recognised(request: BackendRequest) -> bool:
    """Return whether a registered backend recognises ``request``; opens nothing."""
    return matching_entry(request) is not None


def registered_names() -> tuple[str, ...]:
    """Return the names of all backends, in the order of matching."""
    return tuple(entry.name for entry in _entries(all_formats()))


def custom_backends() -> tuple[tuple[str, Matcher, Factory], ...]:
    """Return the registrations of users in the order of matching, for workers that are no forks."""
    return tuple((entry.name, entry.matcher, entry.factory) for entry in (*BEFORE, *AFTER))


def _call_reader(reader: Any, request: BackendRequest) -> Any:
    """Return the backend of the voxels that a reader returned, or of the volume that it names."""
    options = dict(request.reader_kwargs)
    # Axes of a reader that does not have this argument are those of the array that it returns.
    axes = None if _accepts(reader, "axes") else options.pop("axes", None)
    answer = reader(request.path or request.uri or request.source, **options)
    source = getattr(answer, "located_source", None)
    if source is None:
        return ReaderBackend(answer, reader, request, axes)
    own = {"io": request.io, "storage_options": request.storage_options}
    return replace(source, options=replace(source.options, **own)).open()


def _accepts(function: Any, argument: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a builtin
        return True
    kinds = {one.kind for one in parameters.values()}
    return argument in parameters or inspect.Parameter.VAR_KEYWORD in kinds


class ReaderBackend(ViewBackend):
    """Voxels that a reader returned, in memory as long as the handle."""

    def __init__(
        self, answer: Any, reader: Any, request: BackendRequest, axes: str | None = None
    ) -> None:
        name = _name_of(request)
        is_pair = isinstance(answer, tuple) and len(answer) == 2
        values, affine = answer if is_pair else (answer, None)
        is_image = any(hasattr(values, member) for member in ("dataobj", "GetDirection"))
        if is_image and type(values).__module__.startswith(_IMAGES):
            values = importlib.import_module(".volume", __package__).Volume(values)
        if axes is not None:
            values = importlib.import_module(".volume", __package__).Volume(values, axes=axes)
        has_affine = affine is not None or request.__dict__["affine"] is not None
        values, own = placed_array(values, has_affine=has_affine)
        try:
            array = np.empty(0) if isinstance(values, tuple) else as_array(values)
        except UnknownFormat:
            raise
        except ValueError:  # of a list of arrays of several shapes
            array = np.empty(0)
        is_placed = affine is None or np.shape(affine) == (4, 4)
        if not (2 <= array.ndim <= 4 and array.dtype.kind != "O" and is_placed):
            parts = answer if isinstance(answer, tuple) else (answer,)
            kinds = [f"{type(part).__name__} {getattr(part, 'shape', '')}" for part in parts]
            msg = f"the reader {getattr(reader, '__name__', reader)!r} of {name} returned "
            do = (
                "Return (voxels, affine) or voxels: (I, J), (I, J, K) or (C, I, J, K), a 4x4 in mm."
            )
            raise BadHeader(f"{msg}{', '.join(kinds)}.", do=do)
        array = channels_first(array, name)
        entries = (own or IDENTITY) if affine is None else affine_entries(as_array(affine), name)
        is_named = is_image or own is not None or axes is not None
        super().__init__(array, array_header(array, entries, name, names_axes=is_named), name)
        self.resident_bytes = array.nbytes


_IMAGES = ("nibabel.", "SimpleITK.", "itk.")


# Formats that voxpipe lacks: suffixes, name, and the package or the command that reads them.
_IMARIS = "'DataSet/ResolutionLevel 0/TimePoint 0/Channel 0' by h5py, cut to ImageSizeZ, Y and X"
_PICTURES = "single pictures"
_BIOFORMATS = "bioformats2raw FILE OUT.zarr"
_ROWS = (
    (".gipl .vtk", "ITK", "SimpleITK", ""),
    (".png .jpg .jpeg .bmp .gif .webp .exr", _PICTURES, "SimpleITK", ""),
    (".npz", "NumPy's archive", "numpy", ""),
    (".raw .bin .dat", "bare voxels", "", 'voxpipe.raw_volume("FILE", dtype=..., shape=...)'),
    (".par", "Philips PAR", "nibabel", ""),
    (".brik .head", "AFNI", "nibabel", "3dAFNItoNIFTI FILE"),
    (".mif .mih", "MRtrix", "", "mrconvert FILE OUT.nii"),
    (".nc .nc4 .cdf", "netCDF", "xarray", ""),
    (".ims", "HDF5 of Imaris", "h5py", ""),
    (".n5", "N5", "", ""),
    (".mrc .map .rec .ccp4", "MRC", "mrcfile", ""),
    (".lsm", "Zeiss LSM", "tifffile", _BIOFORMATS),
    (".xlif", "Leica LIF", "readlif", _BIOFORMATS),
    (".oib .oif", "Olympus FluoView", "oiffile", _BIOFORMATS),
    (".vsi .dv .r3d .stk .sdt", "a microscope", "", _BIOFORMATS),
    (".svs .ndpi .scn .mrxs .bif", "a slide scanner", "openslide", _BIOFORMATS),
    (".mat", "MATLAB", "scipy", ""),
    (".pt .pth .pkl", "Python objects", "torch", ""),
    (".fits", "FITS", "astropy", ""),
    (".vti .vtp .stl .ply .obj .am", "VTK, a surface or Amira", "pyvista", ""),
    (".mp4 .avi .mov", "video", "imageio", ""),
    (".csv .tsv .json .jsonl", "cases", "", "vp.from_table() or vp.from_manifest()"),
    (".zip .tar .tgz .7z .rar", "archived files", "", "unzip, tar or 7z, or zip://PATH::FILE"),
    (".bz2", "bzip2 compression", "", "bunzip2 FILE"),
    (".xz .lzma", "xz compression", "", "unxz FILE"),
    (".zst", "Zstandard compression", "", "unzstd FILE"),
    (".lz4", "LZ4 compression", "", "unlz4 FILE"),
    (".gz", "gzip compression", "", "gunzip FILE"),
)  # fmt: skip
_OTHERS = {suffix: row for suffixes, *row in _ROWS for suffix in suffixes.split()}


def is_picture(name: str, pattern: str = "") -> bool:
    """Return whether a path is a picture, such as a preview, and ``pattern`` names no picture.

    Examples
    --------
    >>> is_picture("a/preview.PNG"), is_picture("a/1.png", "a/*.png"), is_picture("a/ct.nii")
    (True, False, False)
    """
    one, other = (_OTHERS.get(os.path.splitext(text)[1].lower(), [""]) for text in (name, pattern))
    return one[0] == _PICTURES != other[0]


def unknown_format(name: str, backends: Sequence[str]) -> UnknownFormat:
    """Return the error for a file or URL, without credentials, that no backend opens.

    Examples
    --------
    >>> print(unknown_format("scan.xyz", ["nifti"]).message)  # doctest: +ELLIPSIS
    no backend opens scan.xyz; installed: ..., .nii, .nii.gz, ... (backends: nifti)...
    >>> print(unknown_format("scan.nii.xz", []))  # doctest: +ELLIPSIS
    no backend opens scan.nii.xz, a file of xz compression.
      Use unxz scan.nii.xz, or pass reader=, ...
    """
    suffix = os.path.splitext(name)[1].lower()
    if suffix in _OTHERS:
        msg = f"no backend opens {name}, a file of {_OTHERS[suffix][0]}."
        return UnknownFormat(msg, do=_advice(name, suffix))
    formats = all_formats()
    missing = {item.needs for item in formats if item.needs and not _is_installed(item.needs)}
    here = [suffix for item in formats if item.needs not in missing for suffix in item.suffixes]
    msg = f"no backend opens {name}; installed: {', '.join(here)} (backends: {', '.join(backends)})"
    if missing:
        msg += f"; install {', '.join(sorted(missing))} for more"
    return UnknownFormat(msg, do=_advice(name, suffix))


def _advice(name: str, suffix: str) -> str:
    reader = "pass reader=, a function of the path that returns (voxels, affine)"
    convert = "convert the file to .nii or zarr."
    remote, (_, package, tool) = is_url(name), _OTHERS.get(suffix, ("", "", ""))
    if remote and suffix in (".dcm", ".ima"):
        return "Copy the files to a local disk: DICOM is read from there."
    if suffix == ".ims":
        return f"{reader.capitalize()}: {_IMARIS}."
    if suffix == ".n5":
        return f"Convert it to zarr, or {reader}."
    reader += " (cell sizes of MRC are in angstrom)" if package == "mrcfile" else ""
    if tool:
        use = f"Use {tool.replace('FILE', os.path.basename(name))}"
        return f"{use}, or {reader}{f', by {package}' if package else ''}."
    if not package:
        return f"Register a backend with register_backend(), {reader}, or {convert}"
    if package == "SimpleITK" and not _is_installed(package):
        return f"Install SimpleITK (pip install SimpleITK), which reads {suffix}, or {convert}"
    if remote:
        return f"Copy it to a local disk, where {package} can read it, and {reader}, or {convert}"
    if _is_installed(package):
        return f"{package} reads {suffix} and is installed: {reader}, or {convert}"
    return f"Install {package} (pip install {package}) and {reader}, or {convert}"


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
