"""Keys for content: for files, for bytes in memory, and for the code that computes with them."""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# 128 bits: two of a billion files collide with a probability below 1e-20.
_DIGEST_BYTES = 16


def content_key(location: str, version: tuple[object, ...]) -> str:
    """Return a short key for a location in one version of its content."""
    text = repr((location, *version))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def documents_token(url: str, storage_options: Mapping[str, Any]) -> str:
    """Return the key of the metadata of a remote zarr in the cache of a process."""
    return content_key(url, (sorted(map(str, storage_options.items())),))


def listing_key(location: str, files: Iterable[tuple[str, int, str]]) -> str:
    """Return a key of the (name, bytes, version) entries; empty if a version is unknown."""
    entries = tuple(sorted(files))
    has_versions = entries and all(version for _, _, version in entries)
    return content_key(location, entries) if has_versions else ""


def folder_key(folder: str) -> str:
    """Return a short key of the names, sizes and write times of the files in a local folder."""
    return listing_key(folder, files_below(folder))


def files_below(folder: str, below: str = "") -> Iterator[tuple[str, int, str]]:
    """Yield name, bytes and write time of the files in a folder and its subfolders."""
    # One pass, because a zarr folder may hold a hundred thousand chunks.
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{below}{entry.name}"
            if entry.is_dir():
                yield from files_below(entry.path, f"{name}/")
            else:
                status = entry.stat()
                yield name, status.st_size, str(status.st_mtime_ns)


def array_key(array: NDArray[Any]) -> str:
    """Return a key of the type, shape, memory order and bytes of an array."""
    # ``np.save`` keeps Fortran order too, and writes all other arrays in C order.
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for piece in _contiguous(array):
        digest.update(piece.data)
    version = (array.dtype.str, array.shape, _is_fortran(array), digest.hexdigest())
    return content_key("array", version)


# Integers of 8 bytes in a row, and bytes of a block, which fits the cache of a processor.
_ROW = 4096
_BLOCK_BYTES = 1024**2


def quick_key(array: NDArray[Any]) -> str:
    """Return a key that almost surely differs after a write to an array; no name for content.

    The bytes are read as rows of 4096 integers of 64 bits. The key digests the sum of each row and
    the exclusive or of each column in a block: swapped values change one of them. One core reads
    4.2 GB/s (:func:`array_key`: 0.65), and 1.3 GB/s of arrays in neither C nor Fortran order.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for piece in _contiguous(array):
        whole = len(piece) - len(piece) % (8 * _ROW)
        for first in range(0, whole, _BLOCK_BYTES):
            block = piece[first : min(whole, first + _BLOCK_BYTES)].view(np.uint64)
            rows = block.reshape(-1, _ROW)
            digest.update(rows.sum(1, dtype=np.uint64).data)
            digest.update(np.bitwise_xor.reduce(rows, 0).data)
        digest.update(piece[whole:].data)
    return digest.hexdigest()


def _is_fortran(array: NDArray[Any]) -> bool:
    return array.flags.f_contiguous and not array.flags.c_contiguous


def _contiguous(array: NDArray[Any]) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of an array in pieces."""
    rows = array.T if _is_fortran(array) else array
    if rows.flags.c_contiguous:
        yield rows.reshape(-1).view(np.uint8)
        return
    # Copy row by row; a single channel is no row, because the copy would be the whole array.
    for row in rows[0] if len(rows) == 1 and rows.ndim > 1 else rows:
        yield np.ascontiguousarray(row).reshape(-1).view(np.uint8)


def version_key(volume: Any) -> tuple[Any, ...]:
    """Return a key for results of a volume that are kept in memory; read no voxel."""
    backend = volume.probe()
    # The header of a user's backend has no stamp, so its content key is the only version.
    is_own = type(backend).__module__.partition(".")[0] != __name__.partition(".")[0]
    # A manifest already compared the listing; another one would be a request per epoch.
    in_manifest = backend.remote and _named_by_token(volume._source)
    listing = backend.content_key if (backend.lists or is_own) and not in_manifest else ""
    # A header from a user's reader has no stamp, but its file has a version.
    stamp = volume.header.stamp or (() if backend.remote else backend.version)
    return (volume.token, stamp, listing)


def opened_key(volume: Any) -> tuple[Any, ...]:
    """Return a key for the content of a volume, equal as long as its files do not change.

    A volume of a manifest has a stored key and is not opened. An axis map does not change the key;
    a list of files has the key of each file.
    """
    source = _below_maps(volume._source)
    parts = getattr(source, "parts", None)
    if parts is not None:
        return (volume.token, *map(opened_key, parts))
    return (volume.token,) if _named_by_token(source) else version_key(volume)


def _below_maps(source: Any) -> Any:
    """Return the innermost source below axis maps and masks."""
    while (inner := getattr(source, "source", None)) is not None:
        source = inner
    return source


def _named_by_token(source: Any) -> bool:
    """Whether the token of a source identifies its content; a header known before does not."""
    return bool(getattr(_below_maps(source), "names_content", False))


def content_key_now(volume: Any) -> str:
    """Return the content key of a volume, read again because its files may have changed."""
    volume.probe().forget_content_key()
    return str(volume.content_key)


PLAIN = (type(None), bool, int, float, complex, str, bytes, range, type(...), type(NotImplemented))
"""Classes whose values are digested as ``repr``."""
# Attributes through which Python's own objects refer to others.
_LINKS: dict[Any, tuple[str, ...]] = {
    functools.partial: ("func", "args", "keywords"),
    functools._lru_cache_wrapper: ("__wrapped__",),
    types.FunctionType: ("__defaults__", "__kwdefaults__", "__closure__"),
    types.MethodType: ("__self__", "__func__"),
    types.BuiltinMethodType: ("__self__",),
    types.CellType: ("cell_contents",),
    property: ("fget", "fset", "fdel"),
    (staticmethod, classmethod): ("__func__",),
}
_WRAPPERS: tuple[type, ...] = (types.MethodType, types.CellType, property, staticmethod)
_WRAPPERS += (classmethod, functools._lru_cache_wrapper)
_BUILT_IN = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
)
# Methods with which a class chooses its pickled state, which may leave attributes out.
_STATE = {"__reduce__", "__reduce_ex__", "__getstate__"}
_MADE_BY_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE: from a class statement, or from an extension
# Entries of a class that do not change results.
_IRRELEVANT = {"__dict__", "__weakref__", "__doc__", "__annotations__", "__orig_bases__"}
_IRRELEVANT |= {"__firstlineno__", "__parameters__", "_abc_impl"}
# Names through which code reads facts from outside its objects; "ops" is from torch.
_OUTSIDE = {"environ", "getenv", "argv", "open", "exec", "eval", "globals", "__import__", "ops"}
_OUTSIDE |= {"import_module", "listdir", "getcwd", "urandom", "time", "now"}
_OUTSIDE |= {"load", "loads", "read", "read_text", "read_bytes", "fromfile", "memmap", "loadtxt"}
_OUTSIDE |= {"genfromtxt", "imread", "read_csv", "rand", "randn", "random", "default_rng", "File"}


def behaviour_digest(*values: Any) -> str:
    """Return a digest of the code, attributes, arrays and tensors that objects compute with.

    Equal digests mean equal results, in any process; different ones prove nothing. Installed
    packages count by version. The digest is empty if a part is opaque. Opaque are handles, C++
    objects, classes that choose their own state, and code that reads files, arguments or the
    environment.
    """
    behaviour = _Behaviour()
    try:
        behaviour.add(values)
    except Exception:
        return ""
    return behaviour.digest.hexdigest()


class _Behaviour:
    """Digest of objects, the objects that they refer to, and the code of their classes."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self._number: dict[int, int] = {}
        self._alive: list[Any] = []  # another object could reuse the id of a freed one
        data: Any = sys.modules.get("torch.utils.data")  # without it there are no pipes
        self._pipes = () if data is None else (data.IterDataPipe, data.MapDataPipe)

    def add(self, value: Any) -> None:
        """Digest one object; raise ``TypeError`` for an opaque one."""
        kind = type(value)
        self._note(kind.__qualname__)
        if kind in PLAIN:
            self._note(repr(value))
        elif kind is tuple:
            self._add_all(value)
        elif id(value) in self._number:
            self._note(f"as {self._number[id(value)]}")
        elif not isinstance(value, self._pipes):  # the caller digests the edges of a graph
            self._number[id(value)] = len(self._number)
            self._alive.append(value)
            self._add_new(value)

    def _note(self, text: str) -> None:
        self.digest.update(f"{len(text)} {text};".encode("utf-8", "surrogatepass"))

    def _add_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value)
        self._note("end")

    def _add_new(self, value: Any) -> None:
        torch: Any = sys.modules.get("torch")
        if type(value) is list:
            self._add_all(value)
        elif type(value) in (dict, types.MappingProxyType):
            self._add_all(entry for pair in value.items() for entry in pair)
        elif isinstance(value, (set, frozenset)):
            self._add_all(sorted(value))  # TypeError for objects: their order differs by process
        elif torch is not None and isinstance(value, torch.Tensor):
            self._add_tensor(value, torch)
        elif isinstance(value, (np.ndarray, np.generic)):
            self._add_array(value)
        elif isinstance(value, types.ModuleType):
            if not self._add_version(value.__name__):
                self.add({k: v for k, v in vars(value).items() if not k.startswith("__")})
        elif isinstance(value, type):
            if not self._add_installed(value):
                self._add_all((type(value), value.__bases__))
                self.add({k: v for k, v in vars(value).items() if k not in _IRRELEVANT})
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, _WRAPPERS):
            self._add_all(links_of(value) or ())
        elif isinstance(value, types.MemberDescriptorType):
            self._note(value.__name__)
        else:
            self._add_object(value)

    def _add_version(self, module: str | None, *, is_needed: bool = False) -> bool:
        """Digest the version of a module; return whether it has one, which replaces its code."""
        version = version_of_module(module or "")
        if is_needed and not version:
            raise TypeError(f"compiled code of {module}, whose version is unknown")
        self._note(f"{module} {version}")
        return bool(version)

    def _add_installed(self, value: Any) -> bool:
        """Digest the name of a class or function; return whether a package defines it."""
        version = _version_of(value)
        self._note(f"{value.__module__}.{value.__qualname__} {version}")
        if version and value.__name__ in _OUTSIDE:
            raise TypeError(f"{value.__qualname__} depends on more than its arguments")
        return bool(version)

    def _add_tensor(self, value: Any, torch: Any) -> None:
        self._add_version(type(value).__module__, is_needed=True)
        if value.is_quantized or value.layout != torch.strided:
            raise TypeError("a tensor of more than plain numbers")
        self._add_all((str(value.dtype), tuple(value.shape), vars(value)))
        flat = value.detach().cpu().contiguous().reshape(-1)
        self.digest.update(flat.view(torch.uint8).numpy() if flat.numel() else b"")

    def _add_array(self, value: Any) -> None:
        if value.dtype.hasobject or type(value).__module__ != "numpy":
            raise TypeError("an array of objects, or of a class of its own")
        self._add_all((str(value.dtype.descr), value.shape))
        self.digest.update(np.ascontiguousarray(value).tobytes())

    def _add_function(self, function: types.FunctionType) -> None:
        self._add_all(links_of(function) or ())
        self.add(dict(vars(function)))
        if self._add_installed(function):
            return
        self._add_code(function.__code__)
        space = function.__globals__
        for kind, name in names_in(function.__code__):
            if kind == MODULE:  # this process may not have imported it yet
                self.add(import_module(name, space.get("__package__")))
            elif kind == GLOBAL and name in space:
                self.add(space[name])
            elif name in _OUTSIDE:
                raise TypeError(f"{function.__qualname__} reads {name}")

    def _add_code(self, code: types.CodeType) -> None:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self._add_all((code.co_code, code.co_exceptiontable, code.co_names, counts))
        self._add_all((code.co_varnames, code.co_freevars, code.co_cellvars))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_code(constant)
            else:
                self.add(constant)

    def _add_object(self, value: Any) -> None:
        if value is os.environ or getattr(value, "__name__", "") in _OUTSIDE:
            raise TypeError("it reads facts from outside its objects")
        own = [kind for kind in type(value).__mro__ if kind.__flags__ & _MADE_BY_PYTHON]
        if not all(map(_version_of, (kind for kind in own if not _STATE.isdisjoint(vars(kind))))):
            raise TypeError(f"{type(value).__qualname__} chooses its own state")
        if isinstance(value, _BUILT_IN):
            owner = getattr(value, "__self__", None) or getattr(value, "__objclass__", None)
            module = getattr(value, "__module__", None) or getattr(owner, "__module__", None)
            self._add_version(module or type(owner).__module__, is_needed=True)
            self._add_all((value.__qualname__, owner))
            return
        self.add(type(value))
        if type(value) is functools.partial:  # its state has None for attributes before vars()
            self._add_all((value.func, value.args, value.keywords, vars(value)))
            return
        reduce = copyreg.dispatch_table.get(type(value))  # of ufuncs, for instance
        state = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(state, str):  # a name in its module
            module = getattr(value, "__module__", None) or type(value).__module__
            self._add_version(module, is_needed=True)
            state = (state,)
        self._add_all([*part] if isinstance(part, Iterator) else part for part in state)


def _version_of(value: Any) -> str:
    """Return the version of the package that defines a class or function; empty for others."""
    member: Any = sys.modules.get(value.__module__ or "")
    for name in value.__qualname__.split("."):
        member = getattr(member, name, None)
    return version_of_module(value.__module__) if member is value else ""


@functools.cache
def version_of_module(name: str) -> str:
    """Return the version of the installed package of a module; empty for user code."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return sys.version
    package = sys.modules.get(top)
    folders = Path(getattr(package, "__file__", None) or "").parts
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(folders)
    is_ours = top == __name__.partition(".")[0]
    return str(getattr(package, "__version__", "")) if is_installed or is_ours else ""


GLOBAL, MODULE, ATTRIBUTE = "global", "module", "attribute"
"""Kinds of names in code."""
_READS = {
    **dict.fromkeys(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"), GLOBAL),
    "IMPORT_NAME": MODULE,
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"), ATTRIBUTE),
}


@functools.lru_cache(maxsize=1024)
def names_in(code: types.CodeType) -> tuple[tuple[str, str], ...]:
    """Return (kind, name) of each name that code and its inner code read.

    A relative import has leading dots. Local variables have no entry.
    """
    steps = list(dis.get_instructions(code))
    names = []
    for number, step in enumerate(steps):
        kind = _READS.get(step.opname)
        if kind is not None:
            level = int(steps[number - 2].argval) if kind == MODULE else 0
            names.append((kind, "." * level + step.argval))
    for inner in code.co_consts:
        names += names_in(inner) if isinstance(inner, types.CodeType) else ()
    return tuple(dict.fromkeys(names))


def links_of(value: Any) -> list[Any] | None:
    """Return the objects that a function, method, cell or wrapper refers to; None for others."""
    links = next((names for kind, names in _LINKS.items() if isinstance(value, kind)), None)
    if links is None:
        return None
    try:
        return [getattr(value, name) for name in links]
    except ValueError:  # a cell that is not yet filled
        return []
