"""The digest of what a virtual volume holds: of which content, by which ops, as what they drew.

What is kept of it has this name, so that what changes gets another.
"""

from __future__ import annotations

import builtins
import copyreg
import dis
import functools
import hashlib
import json
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import count
from pathlib import Path
from types import BuiltinMethodType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import Region
from ...core.errors import GraphError
from ...core.lru_cache import LRUCache
from ...storage.content import content_key, opened_key
from ...volumes import Volume
from ...volumes.conversion.convert import version_of

# Part of every name: higher when resampling gives other bits, so that nothing old is read.
_REVISION = 1
# Voxels in memory are looked at piece by piece: each is copied if it is not contiguous.
_PIECE_BYTES = 32 * 1024**2
_DIGESTS: LRUCache[str] = LRUCache()


def digest_of_made(volume: Any, *, at_open: bool = False) -> str:
    """Return a digest of what a virtual volume holds: made of what, how, and what was drawn."""
    # If ``at_open``, content is what was opened in this process, which asks for nothing twice; by
    # default what is there now. Reads headers.
    return _key_of(volume.patch, (volume.soft, volume.is_tiled), at_open)


def _key_of(patch: Any, flags: tuple[bool, ...], at_open: bool) -> str:
    content = functools.partial(_content_of, at_open=at_open)
    values = [
        (
            _text_of_step(step),
            json.dumps(params),
            # Volumes under two keys get other numbers of what draws its own, or has recorded ones.
            # All else makes the same of a file under whatever key, and is kept once.
            step.key if step.is_drawn or '"key"' in json.dumps(params) else "",
            "" if step.mask is None else content(step.mask),
        )
        for step, params in patch.acting
    ]
    statistics = repr(
        getattr(getattr(patch.volume, "stored_volume", patch.volume), "recorded_statistics", None)
    )
    how = (
        *(_REVISION, json.dumps(patch.plan.to_json()), repr(patch.policy), str(patch.dtype)),
        *(patch.kind, patch.filled_after, values, statistics if values else "", *flags),
    )
    within = patch.volume
    if patch.members:
        members = tuple(_key_of(member, (), at_open) for member in patch.members)
        return content_key("members", (members, how))
    is_made = getattr(within, "access", "") == "made"
    of = digest_of_made(within, at_open=at_open) if is_made else content(within)
    return content_key(of, how)


def refuse_drawn(patch: Any) -> None:
    """Raise ``GraphError`` with the pipe that draws something for a patch, if one does."""
    for step in _digest_draws(patch):
        raise GraphError(
            f"{step.describe()} draws for each item and epoch, and what is kept is the same in all",
            do="Put it after cache(), and leave it out of what is converted.",
        ).at(step.origin)


def _digest_draws(patch: Any) -> Iterator[Any]:
    volume = patch.volume
    for member in patch.members:
        yield from _digest_draws(member)
    if getattr(volume, "access", "") == "made" and not patch.members:
        yield from _digest_draws(volume.patch)
    pending = patch.pending
    plan = pending.first_plan
    for step in pending.steps:
        step_plan = pending.through_flushes(plan) if step.looks_at_stored else plan
        if step.is_drawn(step_plan):
            yield step
        plan = step.apply(plan, pending.draws[step.stream_name])
    yield from (step for step in patch.values if step.is_drawn)


def _content_of(volume: Volume, at_open: bool) -> str:
    """Return a digest of what a volume holds; voxels in memory are read for it, once."""
    if len(volume.parts) > 1:
        parts = tuple(_content_of(part, at_open) for part in volume.parts)
        return content_key("channels of", parts)
    if volume.located_source is not None:
        if at_open:
            return content_key(volume.token, (opened_key(volume), volume.axis_map_key))
        return version_of(volume)
    key = volume.content_key
    digest = key or _DIGESTS.get_or(volume.token, lambda: _digest(volume))
    return content_key(digest, (volume.axis_map_key, tuple(volume.affine.ravel().tolist())))


def _digest(volume: Volume) -> str:
    digest = hashlib.blake2b(repr((volume.shape, volume.disk_dtype)).encode(), digest_size=16)
    channels, length, *plane = volume.shape
    row = channels * int(np.prod(plane)) * volume.disk_dtype.itemsize
    step = max(1, _PIECE_BYTES // max(1, row))
    for first in range(0, length, step):
        stop = min(length, first + step)
        voxels = volume.read(Region((first, 0, 0), (stop, *plane)))
        digest.update(repr((voxels.slope, voxels.intercept)).encode())
        digest.update(np.ascontiguousarray(voxels.array).data)
    return digest.hexdigest()


def _text_of_step(step: Any) -> str:
    try:
        return _text_of(step.op)
    except GraphError as error:
        raise error.at(step.origin) from error


def _text_of(value: Any) -> str:
    """Return an op as text, the same in every process."""
    # Functions and classes of the user's count by their code and by what that names, objects by
    # what they are pickled as; what has neither fields nor a name is a GraphError.
    return _Texts().of(value)


# Their text is all that they are.
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), type(...), range})
# What a class has besides its code.
_OF_CLASSES = ("__slots__", "__match_args__")


class _Texts:
    """The texts of values that may name each other in circles."""

    def __init__(self) -> None:
        # Values are held with their number: an id may be given anew once one is gone.
        self._by_id: dict[int, tuple[int, Any]] = {}
        self._numbers = count()

    def of(self, value: Any) -> str:
        """Return the text of a value; the number of one that is being, or was, told already."""
        if type(value) in _PLAIN or isinstance(value, (np.generic, np.dtype)):
            return repr(value)
        if id(value) in self._by_id:
            return f"#{self._by_id[id(value)][0]}"
        self._by_id[id(value)] = next(self._numbers), value
        text = self._of_new(value)
        if not isinstance(value, (FunctionType, type)):
            # Whether two equal objects are one is a matter of chance: only circles are cut.
            del self._by_id[id(value)]
        return text

    def _of_new(self, value: Any) -> str:
        if isinstance(value, (tuple, list)):
            return f"({', '.join(map(self.of, value))})"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{self.of(k)}: {self.of(v)}' for k, v in value.items())}}}"
        if isinstance(value, (set, frozenset)):
            return f"{{{', '.join(sorted(map(self.of, value)))}}}"
        if isinstance(value, np.ndarray):
            return _text_of_array(value) if not value.dtype.hasobject else self.of(value.tolist())
        if isinstance(value, functools.partial):
            return f"partial{self.of((value.func, value.args, value.keywords))}"
        if isinstance(value, (ModuleType, type)):
            return (
                self._of_class(value) if isinstance(value, type) else _with_version(value.__name__)
            )
        if isinstance(value, FunctionType):
            return self._of_function(value)
        owner = getattr(value, "__self__", None)
        if isinstance(value, (MethodType, BuiltinMethodType)) and owner is not None:
            if isinstance(owner, ModuleType):
                return f"{value.__module__}.{value.__qualname__}"
            return f"{self.of(owner)}.{self.of(getattr(value, '__func__', value.__name__))}"
        if hasattr(value, "__wrapped__"):  # of functools.cache
            return f"{type(value).__name__}{self.of(value.__wrapped__)}"
        return self._of_object(value)

    def _of_object(self, value: Any) -> str:
        """Return the text of what has fields, or of what it is pickled as."""
        if is_dataclass(value):
            return self.of(type(value)) + self.of([getattr(value, f.name) for f in fields(value)])
        try:
            how = copyreg.dispatch_table.get(type(value))
            parts = value.__reduce_ex__(4) if how is None else how(value)
            if isinstance(parts, str):  # by its name, which is looked up
                return pickle.dumps(value, 4).decode("latin-1")
        except Exception as error:
            raise GraphError(
                f"{value!r} has neither fields nor a name, so that nobody can tell whether what "
                f"is kept was made by it: {error}",
                do="Give map_values a function at the top of a module, a partial or a dataclass.",
            ) from error
        return self.of([list(part) if isinstance(part, Iterator) else part for part in parts])

    def _of_class(self, kind: type) -> str:
        name = _with_version(kind.__module__, kind.__qualname__)
        if _is_installed(kind.__module__):
            return name
        inside = []
        for key, value in sorted(vars(kind).items()):
            code = [getattr(value, one, None) for one in ("__func__", "fget", "func")]
            function = next((one for one in (value, *code) if isinstance(one, FunctionType)), None)
            if function is not None or not key.startswith(("__", "_abc_")) or key in _OF_CLASSES:
                inside.append((key, value if function is None else function))
        return f"{name}{self.of([*kind.__bases__, *inside])}"

    def _of_function(self, function: FunctionType) -> str:
        module = function.__module__ or ""
        name = _with_version(module, function.__qualname__)
        if _is_installed(module) and "<locals>" not in name and "<lambda>" not in name:
            return name
        cells = [_content(cell) for cell in function.__closure__ or ()]
        texts = [self.of(_find_global(function, chain)) for chain in _globals_of(function.__code__)]
        parts = (function.__defaults__, function.__kwdefaults__, cells)
        return f"{name}{self._of_code(function.__code__)}{self.of(parts)}{texts}"

    def _of_code(self, code: CodeType) -> str:
        inner = (
            self._of_code(c) if isinstance(c, CodeType) else self.of(c) for c in code.co_consts
        )
        return repr((code.co_code, code.co_names, *inner))


def _text_of_array(array: NDArray[Any]) -> str:
    rows = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    content = hashlib.blake2b(rows.data, digest_size=16).hexdigest()
    return f"array{array.shape}{array.dtype}{content}"


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return None


@functools.lru_cache(maxsize=1024)
def _globals_of(code: CodeType) -> tuple[tuple[str, ...], ...]:
    """Return the global names that code looks up, with the attributes that it asks these for."""
    chains: dict[tuple[str, ...], None] = {}
    chain: tuple[str, ...] = ()
    for step in dis.get_instructions(code):
        if step.opname in ("CACHE", "EXTENDED_ARG", "PUSH_NULL"):
            continue
        if chain and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain = (*chain, step.argval)
            continue
        if chain:
            chains[chain] = None
        chain = (step.argval,) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") else ()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            chains.update(dict.fromkeys(_globals_of(constant)))
    return tuple(chains)


def _find_global(function: FunctionType, chain: Sequence[str]) -> Any:
    """Return what a global name stands for; of a module, its attribute."""
    first, *attributes = chain
    value = function.__globals__.get(first, getattr(builtins, first, f"no {first}"))
    for name in attributes:
        if not isinstance(value, ModuleType):
            break
        value = getattr(value, name, f"no {name}")
    return value


def _with_version(module: str, name: str = "") -> str:
    """Return the name of something in a module, with the version of an installed package."""
    top = module.partition(".")[0]
    if top == _OWN:
        return f"{top}.{name}"
    version = getattr(sys.modules.get(top), "__version__", "") if _is_installed(module) else ""
    return f"{module}.{name}{version and '@'}{version}"


_OWN = __name__.partition(".")[0]


@functools.cache
def _is_installed(module: str) -> bool:
    """Whether a module belongs to Python or a package: its version tells what its code is."""
    top = module.partition(".")[0]
    if top == _OWN or top in sys.stdlib_module_names:
        return True
    file = Path(getattr(sys.modules.get(top), "__file__", None) or "")
    return not {"site-packages", "dist-packages"}.isdisjoint(file.parts)
