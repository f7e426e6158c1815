"""The global generators of random, NumPy and torch, for functions of the user's.

They are seeded for each item, and put back after it, unless it is proved that nothing draws: the
graph goes from plain values through functions that name nothing but operators and functions known
to draw nothing, and :class:`Proof` says as long as these are what they were.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import math
import operator
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data.datapipes import iter as torchs

from ..core import Stream
from ..datapipes.epoch import restore_generator, set_seed_of, state_of_generator
from ..graph import Pipe, is_read_twice, walk

_OWN: set[int] = set()


def own_generators() -> None:
    """Say that nobody else draws here: to keep and put back costs an item 100 us."""
    _OWN.add(os.getpid())


def seed_globals(seed: int, own: Sequence[Any] = ()) -> None:
    """Seed the global generators and ``own`` ones; the graphics card's are left alone."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # NumPy's global generator takes 32 bits
    torch.default_generator.manual_seed(seed)
    for number, generator in enumerate(own):
        # Two objects of one function must not draw the same numbers.
        set_seed_of(generator, Stream(seed, 0, (number,), "own generators").integer())


@contextlib.contextmanager
def seeded_globals(seed: int, own: Sequence[Any] = ()) -> Iterator[None]:
    """Seed the global generators and ``own`` ones inside the ``with`` block; restore them after."""
    if os.getpid() in _OWN:
        seed_globals(seed, own)
        yield
        return
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    states_of_own = [state_of_generator(generator) for generator in own]
    seed_globals(seed, own)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        for generator, state in zip(own, states_of_own, strict=True):
            restore_generator(generator, state)


@dataclass
class Proof:
    """That a graph draws nothing from global generators, and what that rests upon."""

    names: list[tuple[dict[str, Any], str, Any]] = field(default_factory=list)
    """Where a function looks a name up, and what it finds there."""
    codes: list[tuple[FunctionType, CodeType, Any]] = field(default_factory=list)
    """Functions, with their code and defaults."""
    cells: list[tuple[CellType, Any]] = field(default_factory=list)
    """What functions inside of others see of these."""

    def holds(self) -> bool:
        """Whether all names still stand for what they stood for when the functions were read."""
        for space, name, value in self.names:  # plain loops: it is asked for every item
            if space.get(name, _NOTHING) is not value:
                return False
        for function, code, more in self.codes:
            if function.__code__ is not code or function.__defaults__ is not more:
                return False
        return (
            all(cell.cell_contents is value for cell, value in self.cells) if self.cells else True
        )


def split_maps(sink: Pipe) -> tuple[Pipe, list[Callable[[Any], Any]]]:
    """Return what the last ``map()`` pipes of a graph read from, and their functions in turn."""
    functions: list[Callable[[Any], Any]] = []
    pipe: Any = sink
    while type(pipe) is torchs.Mapper and pipe.input_col is None and pipe.output_col is None:
        functions.insert(0, pipe.fn)
        pipe = pipe.datapipe
    return pipe, functions


def plain_items(source: Any) -> Any:
    """Return the proved plain items of a pipe, without torch's wrapper around its iterator."""
    if type(source) is not torchs.IterableWrapper:
        return source
    items = source.iterable
    # As the pipe does: what is written to a list during an epoch counts from the next one on.
    return tuple(items) if type(items) is list else items


class _Unproved(Exception):
    """Something is named of which nobody knows whether it draws."""


def proof_that_nothing_draws(sink: Pipe) -> Proof | None:
    """Return a proof that a pass through a graph draws nothing; None where there is none.

    Examples
    --------
    >>> import random
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> numbers = IterableWrapper(range(3))
    >>> proof_that_nothing_draws(numbers.map(abs)).holds()
    True
    >>> proof_that_nothing_draws(numbers.map(random.randrange)) is None
    True
    """
    proof = Proof()
    try:
        for pipe in walk(sink):
            _read_pipe(pipe, proof)
    except _Unproved:
        return None
    return None if is_read_twice(sink) else proof


_NOTHING = object()
# Values that nobody can change, and whose operators and methods are Python's.
_CONSTANTS = frozenset({int, float, complex, bool, str, bytes, type(None)})
# Pipes that hand on what they take. A shuffle has a generator of its own, which a loader seeds.
_HANDING_ON = frozenset(
    {
        *(torchs.Batcher, torchs.UnBatcher, torchs.Shuffler, torchs.ShardingFilter),
        *(torchs.Zipper, torchs.Multiplexer, torchs.Concater),
    }
)


def _read_pipe(pipe: Any, proof: Proof) -> None:
    kind, own = type(pipe), vars(pipe)
    if kind is torchs.IterableWrapper:
        items = pipe.iterable
        if type(items) is range:
            return None
        is_fixed = type(items) is tuple or (type(items) is list and pipe.deepcopy)
        if is_fixed and _CONSTANTS.issuperset(map(type, items)):
            return None
    elif kind in (torchs.Mapper, torchs.Filter):
        columns = [own.get("input_col"), own.get("output_col")]
        flat = [c for one in columns for c in (one if type(one) in (list, tuple) else [one])]
        if _CONSTANTS.issuperset(map(type, flat)):
            return _read_value(own["fn" if kind is torchs.Mapper else "filter_fn"], proof)
    elif kind in _HANDING_ON and own.get("wrapper_class") in (None, _CHUNK):
        return None
    raise _Unproved


_CHUNK = torch.utils.data.datapipes.datapipe.DataChunk
_SAFE_BUILTINS = frozenset(
    {
        *(abs, all, any, bin, chr, divmod, format, hash, hex, isinstance, len, max, min, next),
        *(oct, ord, pow, repr, round, sorted, sum, iter, bool, bytes, complex, dict, enumerate),
        *(filter, float, frozenset, int, list, map, range, reversed, set, slice, str, tuple, zip),
    }
)
_OPERATORS = frozenset(
    getattr(operator, name)
    for name in dir(operator)
    if not name.startswith("_") and name not in ("attrgetter", "methodcaller", "call")
)
_OF_NUMPY = (
    *("arange", "array", "asarray", "clip", "concatenate", "empty_like", "expand_dims", "flip"),
    *("full", "full_like", "linspace", "max", "mean", "min", "moveaxis", "ones", "ones_like"),
    *("pad", "reshape", "rot90", "squeeze", "stack", "std", "sum", "transpose", "where", "zeros"),
)
_OF_TORCH = (
    *("arange", "as_tensor", "cat", "clamp", "eye", "flip", "from_numpy", "full", "linspace"),
    *("mean", "ones", "stack", "sum", "tensor", "where", "zeros", "zeros_like", "ones_like"),
)
_SAFE = {
    id(value): value
    for value in (
        *_SAFE_BUILTINS,
        *_OPERATORS,
        *(value for name, value in vars(math).items() if not name.startswith("_")),
        *(getattr(np, name) for name in _OF_NUMPY),
        *(getattr(torch, name) for name in _OF_TORCH),
    )
}
_MODULES = frozenset({builtins, math, operator, np, torch})
# Methods of tensors that draw are many; of the other kinds of values there is none.
_OF_TENSORS = frozenset(
    {
        *("abs", "add", "all", "any", "argmax", "argmin", "bool", "byte", "clamp", "clone"),
        *("contiguous", "cpu", "detach", "dim", "div", "double", "dtype", "expand", "flatten"),
        *("flip", "float", "half", "int", "item", "long", "max", "mean", "min", "mul", "ndim"),
        *("numel", "numpy", "permute", "pow", "reshape", "round", "shape", "sign", "size", "sqrt"),
        *("squeeze", "std", "sub", "sum", "t", "T", "to", "tolist", "transpose", "type", "view"),
        *("unsqueeze", "device", "short", "square"),
    }
)
_OF_VALUES = _OF_TENSORS.union(
    name
    for kind in (*_CONSTANTS, list, tuple, dict, set, frozenset, range, np.ndarray, np.generic)
    for name in dir(kind)
    if not name.startswith("_") and name not in ("ctypes", "base")
)
# What code has no name for and does all the same: it imports, defines a class, or sets what others
# see. The rest (values, operators, calls, jumps) draws only through what it names.
_EFFECTS = (
    *("IMPORT_", "LOAD_BUILD_CLASS", "STORE_GLOBAL", "STORE_ATTR", "STORE_DEREF", "DELETE_GLOBAL"),
    *("DELETE_ATTR", "DELETE_DEREF", "BEFORE_", "SETUP_WITH", "SETUP_ASYNC"),
)


def _read_value(value: Any, proof: Proof) -> None:
    kind = type(value)
    if kind is FunctionType:
        _read_function(value, proof)
    elif kind is functools.partial:
        for one in (value.func, *value.args):
            _read_value(one, proof)
        for name in value.keywords:
            _read_name(value.keywords, name, proof)
    elif kind is tuple:
        for one in value:
            _read_value(one, proof)
    elif kind is operator.itemgetter or kind in _CONSTANTS or isinstance(value, torch.dtype):
        return
    elif isinstance(value, type) and issubclass(value, (np.generic, Exception)):
        if value.__module__ not in ("numpy", "builtins"):
            raise _Unproved
    elif kind is np.ufunc:
        # np.frompyfunc makes others, of any function.
        if getattr(np, value.__name__, None) is not value:
            raise _Unproved
    elif id(value) not in _SAFE:
        raise _Unproved


def _read_function(function: FunctionType, proof: Proof) -> None:
    code, more = function.__code__, function.__defaults__
    if any(other is function for other, _, _ in proof.codes):
        return
    if function.__kwdefaults__:
        raise _Unproved
    proof.codes.append((function, code, more))
    for value in more or ():
        _read_value(value, proof)
    free: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            free[name] = cell.cell_contents
        except ValueError:  # not yet filled
            raise _Unproved from None
        proof.cells.append((cell, free[name]))
        _read_value(free[name], proof)
    _read_code(code, function, proof)


def _read_code(code: CodeType, function: FunctionType, proof: Proof) -> None:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _read_code(constant, function, proof)
    if any(step.opname.startswith(_EFFECTS) for step in dis.get_instructions(code)):
        raise _Unproved
    spaces = [function.__globals__, vars(builtins)]
    values = [next((space[n] for space in spaces if n in space), _NOTHING) for n in code.co_names]
    modules = [vars(m) for m in values if isinstance(m, ModuleType) and m in _MODULES]
    for name, value in zip(code.co_names, values, strict=True):
        # Where it is found, and where not: a name that comes to be means something else.
        proof.names += [(space, name, space.get(name, _NOTHING)) for space in spaces]
        if value is _NOTHING:
            homes = [space for space in modules if name in space]
            if name in _OF_VALUES:  # of no module anything that draws
                proof.names += [(space, name, space[name]) for space in homes]
                continue
            if not homes:
                raise _Unproved
            for space in homes:
                _read_name(space, name, proof)
        elif not (isinstance(value, ModuleType) and value in _MODULES):
            _read_value(value, proof)


def _read_name(space: dict[str, Any], name: str, proof: Proof) -> None:
    value = space.get(name, _NOTHING)
    if value is _NOTHING:
        raise _Unproved
    proof.names.append((space, name, value))
    _read_value(value, proof)
