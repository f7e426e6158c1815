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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data.datapipes import iter as torchs

from ..graph import Pipe, is_read_twice, walk

_OWN: set[int] = set()


def own_generators() -> None:
    """Say that nobody else draws here: to keep and put back costs an item 100 us."""
    _OWN.add(os.getpid())


def seed_globals(seed: int) -> None:
    """Seed the global generators; the graphics card's are left alone."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # NumPy's global generator takes 32 bits
    torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """Seed the global generators inside the ``with`` block and put them back after it."""
    if os.getpid() in _OWN:
        seed_globals(seed)
        yield
        return
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed_globals(seed)
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])


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


def mapped(sink: Pipe) -> tuple[Pipe, list[Callable[[Any], Any]]]:
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
    given = source.iterable
    # As the pipe does: what is written to a list during an epoch counts from the next one on.
    return tuple(given) if type(given) is list else given


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
        given = pipe.iterable
        if type(given) is range:
            return None
        kept = type(given) is tuple or (type(given) is list and pipe.deepcopy)
        if kept and _CONSTANTS.issuperset(map(type, given)):
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
# What code may consist of: values, operators, calls, jumps. Not: imports, classes, global
# variables that are set, attributes that are set, contexts.
_OPCODES = (
    *("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_FAST", "STORE_FAST", "LOAD_GLOBAL", "LOAD_ATTR"),
    *("LOAD_METHOD", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_ASSERTION_ERROR", "MAKE_CELL"),
    *("COPY", "SWAP", "BINARY_", "UNARY_", "INPLACE_", "COMPARE_OP", "IS_OP", "CONTAINS_OP"),
    *("TO_BOOL", "BUILD_LIST", "BUILD_TUPLE", "BUILD_MAP", "BUILD_SET", "BUILD_STRING", "MAP_ADD"),
    *("BUILD_SLICE", "BUILD_CONST_KEY_MAP", "LIST_", "SET_ADD", "SET_UPDATE", "DICT_", "STORE_SUB"),
    *("STORE_SLICE", "DELETE_SUB", "DELETE_FAST", "GET_ITER", "FOR_ITER", "END_FOR", "POP_"),
    *("JUMP", "CALL", "PRECALL", "PUSH_", "KW_NAMES", "RETURN_", "RESUME", "NOP", "CACHE", "DUP_"),
    *("ROT_", "UNPACK_", "FORMAT_", "CONVERT_VALUE", "MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE"),
    *("EXTENDED_ARG", "RAISE_VARARGS", "RERAISE", "CHECK_EXC_MATCH", "SETUP_FINALLY", "YIELD_"),
    *("GEN_START", "NOT_TAKEN", "STOP_ITERATION"),
)
# What one of them has as its argument where it is harmless: Python 3.12 writes so the end of a
# generator, and unpacking; star imports too.
_INTRINSIC = "CALL_INTRINSIC"
_HARMLESS = ("STOPITERATION_ERROR", "LIST_TO_TUPLE", "UNARY_POSITIVE")


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
    if any(known is function for known, _, _ in proof.codes):
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
    module: ModuleType | None = None
    for step in dis.get_instructions(code):
        word, name = step.opname, step.argval
        if word in ("CACHE", "EXTENDED_ARG", "PUSH_NULL"):
            continue
        intrinsic = word.startswith(_INTRINSIC)
        if not word.startswith(_OPCODES) or (intrinsic and not step.argrepr.endswith(_HARMLESS)):
            raise _Unproved
        reads = word in ("LOAD_ATTR", "LOAD_METHOD")
        if module is not None:
            if not reads:
                raise _Unproved  # a module by itself may go anywhere
            _read_name(vars(module), name, proof)
            module = None
        elif reads:
            if name not in _OF_VALUES:
                raise _Unproved
        elif word == "LOAD_GLOBAL":
            value = _looked_up(function, name, proof)
            module = value if isinstance(value, ModuleType) and value in _MODULES else None
            if module is None:
                _read_value(value, proof)


def _looked_up(function: FunctionType, name: str, proof: Proof) -> Any:
    """Return what a global name stands for, and note where it was found, and where not."""
    own = function.__globals__
    value = own.get(name, _NOTHING)
    proof.names.append((own, name, value))
    if value is _NOTHING:
        value = vars(builtins).get(name, _NOTHING)
        proof.names.append((vars(builtins), name, value))
    if value is _NOTHING:
        raise _Unproved
    return value


def _read_name(space: dict[str, Any], name: str, proof: Proof) -> None:
    value = space.get(name, _NOTHING)
    if value is _NOTHING:
        raise _Unproved
    proof.names.append((space, name, value))
    _read_value(value, proof)
