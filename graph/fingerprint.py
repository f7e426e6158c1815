"""A short hash of what a graph does, so that a saved state is not resumed on another one."""

from __future__ import annotations

import copyreg
import dataclasses
import dis
import enum
import functools
import hashlib
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..core.validate import LATER
from .node import Pipe, is_pipe, parents_of
from .walk import stream_names, walk

# Bytes up to which an array counts by its content.
_SMALL = 4096


# Objects in objects that are looked into; farther in they count by their class. A transform made
# of transforms is two, and what lies deeper tends to be a logger or a client, not a setting.
_DEEPEST = 2
# Entries up to which a list that belongs to an object is a setting; a longer one is data.
_MOST_ENTRIES = 10_000


def fingerprint(sink: Pipe, leaves_out: Callable[[Pipe], bool] = lambda pipe: False) -> str:
    """Return 16 hex digits over the classes, settings and edges of a graph.

    Settings of pipes for which ``leaves_out`` is true do not count.
    """
    # Functions count by name, objects by class and public attributes, and large arrays by shape and
    # type: a hash of their content would read data, and a changed function body is the user's to
    # judge. What an object names with an underscore does not count, a device or a rank for
    # instance.
    number: dict[int, int] = {}
    digest = hashlib.blake2b(digest_size=8)
    for position, pipe in enumerate(walk(sink)):
        number[id(pipe)] = position
        edges = [number[id(p)] for p in parents_of(pipe)]
        text = "" if leaves_out(pipe) else _text_of_pipe(pipe)
        digest.update(f"{text}{edges}\n".encode())
    return digest.hexdigest()


def has_lambda(sink: Pipe) -> bool:
    """Whether a setting is a lambda: it counts by its name, which is that of any other one."""
    return any("<lambda>" in _text_of_pipe(pipe) for pipe in walk(sink))


def fingerprint_of_pipe(pipe: Pipe) -> str:
    """Return 6 hex digits over the class and settings of one pipe."""
    return hashlib.blake2b(_text_of_pipe(pipe).encode(), digest_size=3).hexdigest()


def _text_of_pipe(pipe: Pipe) -> str:
    own = getattr(type(pipe), "settings", None)
    settings = own(pipe) if own is not None else _public(vars(pipe))
    off = " off" if is_switched_off(pipe) else ""
    # Of a pipe in a branch the stream counts too; elsewhere it follows from what is upstream.
    names = "".join(f" {name}" for name in stream_names(pipe) if "@" in name)
    return f"{type(pipe).__name__}{stable_text(settings)}{off}{names}"


def is_switched_off(pipe: Pipe) -> bool:
    """Whether ``pipe`` shuffles, and was told not to."""
    shuffles = hasattr(type(pipe), "set_shuffle")
    return shuffles and vars(pipe).get("_enabled", True) is False  # as torch's own notes it


def stable_text(value: Any, depth: int = 0) -> str:
    """Return a text that is equal for equal settings in any process."""
    if is_pipe(value):
        return "pipe"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, (str, int, float, complex, bool, type(None), bytes, range)):
        return repr(value)
    if isinstance(value, dict):
        inside = sorted((repr(k), stable_text(v, depth)) for k, v in value.items())
        return "{" + ", ".join(f"{k}: {v}" for k, v in inside) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(stable_text(v, depth) for v in value)) + "}"
    if isinstance(value, slice):
        return f"slice{stable_text((value.start, value.stop, value.step))}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(stable_text(v, depth) for v in value) + "]"
    return _text_of_object(value, depth)


def _text_of_object(value: Any, depth: int) -> str:
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
        return f"partial{stable_text(parts, depth)}"
    if isinstance(value, os.PathLike):
        return repr(os.fspath(value))
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        array = np.asarray(value)
        # A matrix is a setting and counts by its numbers; a volume is data and would be read.
        small = hashlib.blake2b(array.tobytes()).hexdigest() if array.nbytes <= _SMALL else ""
        return f"array{tuple(array.shape)}{array.dtype}{small}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            # States that were saved before there was such a field still fit.
            if field.metadata != LATER or getattr(value, field.name) != field.default
        }
        return f"{type(value).__name__}{stable_text(fields, depth)}"
    if hasattr(value, "__qualname__") and hasattr(value, "__module__"):
        name = f"{value.__module__}.{value.__qualname__}"
        owner = value.__self__ if isinstance(value, types.MethodType) else None
        return name if owner is None else f"{name} of {stable_text(owner, depth)}"
    own = _public(getattr(value, "__dict__", {})) if depth < _DEEPEST else {}
    short = {name: _length_of_data(v) or v for name, v in own.items()}
    return type(value).__name__ + (stable_text(short, depth + 1) if own else "")


def _length_of_data(value: Any) -> str:
    kinds = (list, tuple, dict, set, frozenset)
    is_data = isinstance(value, kinds) and len(value) > _MOST_ENTRIES
    return f"{type(value).__name__} of {len(value)}" if is_data else ""


def _public(settings: dict[str, Any]) -> dict[str, Any]:
    # Names with an underscore hold a foreign pipe's running state, not its settings; its origin
    # is the line on which it was written, which may move.
    return {k: v for k, v in settings.items() if not k.startswith("_") and k != "origin"}


# Values that count by their text.
_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, type(...), type(NotImplemented))
_WRAPPERS = (types.MethodType, types.CellType, property, staticmethod, classmethod)
_BUILT_IN = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
)
# Methods by which a class chooses its state for pickle, which may be a part of it.
_STATE = {"__reduce__", "__reduce_ex__", "__getstate__"}
_MADE_BY_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE: of a class statement, or of an extension
# Entries of a class that change no result.
_IRRELEVANT = {"__dict__", "__weakref__", "__doc__", "__annotations__", "__orig_bases__"}
_IRRELEVANT |= {"__firstlineno__", "__parameters__", "_abc_impl"}
# Names through which code reads facts that none of its objects holds, "ops" of torch among them.
_OUTSIDE = {"environ", "getenv", "argv", "open", "exec", "eval", "globals", "__import__", "ops"}
_OUTSIDE |= {"import_module", "listdir", "getcwd", "urandom", "time", "now"}
_OUTSIDE |= {"load", "loads", "read", "read_text", "read_bytes", "fromfile", "memmap", "loadtxt"}
_OUTSIDE |= {"genfromtxt", "imread", "read_csv", "rand", "randn", "random", "default_rng"}


def behaviour_digest(*values: Any) -> str:
    """Return a digest of the code, attributes, arrays and tensors that objects compute with.

    Equal digests mean equal results, in any process; different ones prove nothing. Installed
    packages count by version. Empty where a part is opaque: a handle, a C++ object, a class that
    chooses its own state, or code that reads files, arguments or the environment.
    """
    behaviour = _Behaviour()
    try:
        behaviour.add(values)
    except Exception:
        return ""
    return behaviour.digest.hexdigest()


class _Behaviour:
    """Digest objects, those that they refer to, and the code of their classes, each once."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self._number: dict[int, int] = {}
        self._alive: list[Any] = []  # a freed object would pass its id to another

    def add(self, value: Any) -> None:
        """Digest one object; TypeError for an opaque one."""
        kind = type(value)
        self._note(kind.__qualname__)
        if kind in _PLAIN:
            self._note(repr(value))
        elif kind is tuple:
            self._add_all(value)
        elif id(value) in self._number:
            self._note(f"as {self._number[id(value)]}")
        elif not is_pipe(value):  # the edges of a graph count elsewhere
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
            self._add_all(sorted(value))  # TypeError for objects, whose order no process keeps
        elif torch is not None and isinstance(value, torch.Tensor):
            self._add_tensor(value, torch)
        elif isinstance(value, (np.ndarray, np.generic)):
            self._add_array(value)
        elif isinstance(value, types.ModuleType):
            if not self._add_version(value.__name__):
                self.add({k: v for k, v in vars(value).items() if not k.startswith("__")})
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, _WRAPPERS):
            names = ("__func__", "__self__", "fget", "fset", "fdel", "cell_contents")
            self._add_all(getattr(value, name) for name in names if hasattr(value, name))
        elif isinstance(value, types.MemberDescriptorType):
            self._note(value.__name__)
        else:
            self._add_object(value)

    def _add_version(self, module: str | None, *, is_needed: bool = False) -> bool:
        """Digest a module's version; return whether it has one, so that its code need not count."""
        version = version_of_module(module or "")
        if is_needed and not version:
            raise TypeError(f"compiled code of {module}, whose version is unknown")
        self._note(f"{module} {version}")
        return bool(version)

    def _add_installed(self, value: Any) -> bool:
        """Digest the name of a class or function; return whether it is that of a package."""
        self._note(f"{value.__module__}.{value.__qualname__} {_version_of(value)}")
        return bool(_version_of(value))

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

    def _add_class(self, kind: type) -> None:
        if not self._add_installed(kind):
            self._add_all((type(kind), kind.__bases__))
            self.add({k: v for k, v in vars(kind).items() if k not in _IRRELEVANT})

    def _add_function(self, function: types.FunctionType) -> None:
        self._add_all((function.__defaults__, function.__kwdefaults__, function.__closure__))
        self.add(dict(vars(function)))
        if not self._add_installed(function):
            self._add_code(function.__code__, function.__globals__)

    def _add_code(self, code: types.CodeType, names: dict[str, Any]) -> None:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self._add_all((code.co_code, code.co_exceptiontable, code.co_names, counts))
        self._add_all((code.co_varnames, code.co_freevars, code.co_cellvars))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_code(constant, names)
            else:
                self.add(constant)
        for step in dis.get_instructions(code):
            name, loads = step.argval, step.opname.startswith(("LOAD_", "IMPORT_FROM"))
            if step.opname == "IMPORT_NAME":
                self.add(sys.modules[name])
            elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and name in names:
                self.add(names[name])
            elif loads and "CONST" not in step.opname and name in _OUTSIDE:
                raise TypeError(f"{code.co_name} reads {name}")

    def _add_object(self, value: Any) -> None:
        if value is os.environ:
            raise TypeError("the environment is read")
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
        how = copyreg.dispatch_table.get(type(value))  # of ufuncs, for instance
        state = value.__reduce_ex__(4) if how is None else how(value)
        if isinstance(state, str):  # a name in its module
            module = getattr(value, "__module__", None) or type(value).__module__
            self._add_version(module, is_needed=True)
            state = (state,)
        self._add_all([*part] if isinstance(part, Iterator) else part for part in state)


def _version_of(value: Any) -> str:
    """Return the version of the package whose class or function this is; empty for others."""
    member: Any = sys.modules.get(value.__module__ or "")
    for name in value.__qualname__.split("."):
        member = getattr(member, name, None)
    return version_of_module(value.__module__) if member is value else ""


@functools.cache
def version_of_module(name: str) -> str:
    """Return the version of the installed package of a module; empty for code of the user."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return sys.version
    package = sys.modules.get(top)
    folders = Path(getattr(package, "__file__", None) or "").parts
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(folders)
    is_ours = top == __name__.partition(".")[0]
    return str(getattr(package, "__version__", "")) if is_installed or is_ours else ""
