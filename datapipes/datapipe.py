"""The pipe that every pipe of voxpipe is: a torch ``IterDataPipe`` that knows itself."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from torch.utils.data import IterDataPipe, MapDataPipe

from ..batching.job import Failure, Instruction, apply_transforms, describe_failure
from ..core import CallSite, Sample, Viewable, errors
from ..core.call_site import CREDENTIALS, call_text, caller
from ..core.context import ContextKey, holding
from ..core.errors import VoxpipeError, add_location, hide_last_axis
from ..core.redact import public_value
from ..core.sample import case_of
from ..core.views import Report, call_extension
from ..graph import Pipe, Traits, chain_code, describe, explain_graph, is_pipe, parents_of, walk
from ..graph.node import swap_parents
from ..graph.walk import branch_mark, stream_names
from ..spatial import LazyPatch
from ..spatial.lazy.lazy_patch import patches_of
from .forms import ChainedForm, UnknownForm, entry_of, names_to_show
from .forms import chained_form as chained_form

# A pipe's length needs those of its parents, and merging branches share parents: with plain ``len``
# the time doubles with every diamond. So lengths are remembered.
_KNOWN_LENGTHS: ContextKey[dict[int, Any] | None] = ContextKey(None)
MAY_OPEN = ContextKey(True)
"""Whether headers may be read to know a length: not for one that is only good to know."""


class _LengthProxy(IterDataPipe[Any]):
    """Stands for a parent of a torch pipe, which asks it for its length and for nothing else."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self.pipe = (lambda: pipe,)  # no edge of the graph

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def __len__(self) -> int:
        return length(self.pipe[0]())

    def get_length_by_instance(self, instance: int) -> int:
        """Return the length of a branch, which torch's branches ask their trunk for."""
        trunk: Any = self.pipe[0]()
        return int(type(trunk).get_length_by_instance(_settings(trunk), instance))


def length(pipe: Any) -> int:
    """Return ``len(pipe)``, in time that is linear in the pipes of its graph."""
    answers = _KNOWN_LENGTHS.get()
    if answers is not None:
        return _memoized_length(pipe, answers)
    answers = {}
    with holding(_KNOWN_LENGTHS, answers):
        # Parents first: a chain of hundreds would be too deep to ask from its end.
        for each in walk(pipe) if is_pipe(pipe) else ():
            with contextlib.suppress(Exception):  # the length may not be needed
                _memoized_length(each, answers)
        return _memoized_length(pipe, answers)


def _memoized_length(pipe: Any, answers: dict[int, Any]) -> int:
    if id(pipe) not in answers:
        try:
            # Asked so that it asks its parents through here; one of torch's does not by itself.
            if is_pipe(pipe) and type(pipe).__module__.startswith("torch.utils.data."):
                with contextlib.suppress(AttributeError):  # it has none, or wants more of a parent
                    answers[id(pipe)] = type(pipe).__len__(_settings(pipe))
            if id(pipe) not in answers:
                answers[id(pipe)] = len(pipe)
        except Exception as error:  # each later pipe would try a dead store again
            answers[id(pipe)] = error
    answer = answers[id(pipe)]
    if isinstance(answer, Exception):
        raise answer
    return int(answer)


def _settings(pipe: Pipe) -> Any:
    """Return the attributes of torch's pipe, with other parents."""
    # No copy of the pipe: when one of a shuffle goes, it empties the buffer that both have.
    settings: Any = SimpleNamespace(**vars(pipe))
    swap_parents(settings, {id(parent): _LengthProxy(parent) for parent in parents_of(pipe)})
    return settings


NO_POSITION = -1  # in place of the position in a batch


@dataclass(frozen=True)
class ErrorLog:
    """Errors for which an item is left out, and those that came."""

    errors: tuple[type[Exception], ...]
    failures: list[Failure] = field(default_factory=list)


ERROR_LOG: ContextKey[ErrorLog | None] = ContextKey(None)
"""Notes of the items that are left out because they cannot be planned (``OnError``)."""


def note_error(pipe: DataPipe, item: Any, error: Exception) -> None:
    """Note that ``pipe`` leaves ``item`` out, which failed; raise ``error`` where it may not."""
    error = add_location(error, pipe.origin, case_of(item))
    log = ERROR_LOG.get()
    if log is None or not isinstance(error, log.errors):
        raise error
    log.failures.append(describe_failure(error, NO_POSITION, NO_POSITION, item))


@contextlib.contextmanager
def locate_errors(pipe: Any, item: Any = None, *, is_flat: bool = False) -> Iterator[None]:
    """Add the pipe and the case to errors inside the block; hide the last axis of 2-D data."""
    try:
        yield
    except Exception as error:
        if is_flat and isinstance(error, VoxpipeError):
            hide_last_axis(error)
        raise add_location(error, pipe.origin, case_of(item))  # noqa: B904  the very same error


if TYPE_CHECKING:
    # torch looks chained forms up when they are called; type checkers and editors read this.
    from .chained_forms import ChainedForms as _Pipe
else:
    _Pipe = IterDataPipe

T = TypeVar("T")
# torch's text for an iterator that a newer one has replaced.
_TAKEN_OVER = "another iterator has been created from the same IterDataPipe"


def refuse_too_many(name: str, constructor: Any, args: Sequence[Any]) -> None:
    """Raise TypeError for more positional arguments than a pipe has."""
    # Python's own error names the class, and counts the parent, too.
    code = getattr(constructor, "__code__", None)
    if code is None or code.co_flags & inspect.CO_VARARGS or 1 + len(args) <= code.co_argcount:
        return
    if not (values := [a for a in args if not is_pipe(a)]):
        return
    names = code.co_varnames[1 + len(args) - len(values) : code.co_argcount]
    takes = ", ".join(names) or "none"
    others = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
    hint = f"; write others by keyword: {', '.join(f'{one}=' for one in others)}" if others else ""
    raise TypeError(f"{name}() takes {takes} by place, and was given {len(values)} values{hint}")


class PipeBase(Viewable):
    """Base of both kinds of pipes: its place in the user's code, and its arguments."""

    form_name: ClassVar[str] = ""  # name of the chained form
    origin: CallSite  # where the user wrote it
    _arguments: tuple[tuple[Any, ...], dict[str, Any]]
    _hides_arguments: bool = False  # whether credentials are left out of ``_arguments``

    def __init_subclass__(cls, *, form: str = "", to: type | None = None, **options: Any) -> None:
        """Register the class as the chained form ``form``, if that is free."""
        super().__init_subclass__(**options)
        if form:
            chained_form(form, to, if_free=True)(cls)

    def __init__(self, parent: Any = None) -> None:
        super().__init__()
        if parent is not None:
            self.parent = parent

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember where the pipe was written, before its own ``__init__`` runs."""
        refuse_too_many(cls.form_name or cls.__name__, cls.__init__, args)
        pipe = super().__new__(cls)
        values = tuple(a for a in args if not is_pipe(a))
        pipe.origin = caller(call_text(cls.form_name or cls.__name__, values, kwargs))
        if "takes_data" in vars(cls):
            return pipe
        # A state can be resumed with other credentials.
        own = {k: v for k, v in kwargs.items() if not (is_pipe(v) or k in CREDENTIALS)}
        losses: list[str] = []
        public = public_value({k: v for k, v in own.items() if k != "key"}, losses=losses)
        # As an argument it names a volume, and is no option of a store.
        public = {k: public[k] if k in public else public_value(own[k], losses=losses) for k in own}
        pipe._arguments = (public_value(values, losses=losses), public)
        if losses:
            pipe._hides_arguments = True
        return pipe

    def public_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return the arguments by place and by name without credentials; None if unknown."""
        return vars(self).get("_arguments")

    @property
    def source_datapipe(self) -> Any:
        """The pipe that it reads from, under torchdata's name; the first of several."""
        for parent in parents_of(cast(Any, self)):
            return parent
        raise AttributeError(f"{self!r} reads from no pipe, so it has no source_datapipe")

    @source_datapipe.setter
    def source_datapipe(self, pipe: Pipe) -> None:
        vars(self)["parent" if "parent" in vars(self) else "source_datapipe"] = pipe

    def describe(self) -> str:
        """Return the pipe as the user wrote it."""
        return self.origin.call

    def __repr__(self) -> str:
        return self.describe() if "origin" in vars(self) else type(self).__name__

    def __str__(self) -> str:
        """Return the chain up to here as code, a line for each pipe."""
        return chain_code(cast(Any, self)) if "origin" in vars(self) else repr(self)

    def __getstate__(self) -> Any:
        """Return the state for pickle; only the parents for torch's walk, which pickles."""
        # It looks into tuples, lists and mappings too: a lambda could not be pickled, and data
        # would be copied.
        hook = type(cast(Any, self)).getstate_hook
        if hook is None:
            return vars(self)
        return hook({str(n): parent for n, parent in enumerate(parents_of(cast(Any, self)))})


class Running(PipeBase):
    """A pipe with a buffer, thread or generator per pass, which is not copied or pickled."""

    running: ClassVar[tuple[str, ...]] = ()  # attributes of one pass; :meth:`fresh` sets them

    def fresh(self) -> None:
        """Set the attributes in ``running`` to their values before the first pass."""

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        return {name: v for name, v in state.items() if name not in self.running}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.fresh()


class DataPipe(PipeBase, _Pipe):
    """An iterable pipe. Chaining returns a new pipe; nothing that the user holds changes.

    A subclass takes its parent first, declares its ``traits`` and implements
    ``__iter__``. Pipes that act on each item alone subclass :class:`PerItem`.
    """

    traits: ClassVar[Any] = Traits()
    """Read by rewrites and by the cut; a property if they depend on settings."""
    stream_names: tuple[str, ...] = ()
    """Names under which it draws random numbers; chosen at construction, never by position."""
    imports: tuple[str, ...] = ()
    """Modules that the volumes it speaks of will need: a fork server loads them for all workers."""
    explainer: ClassVar[Callable[[Pipe], str]] = staticmethod(explain_graph)
    """Called by :meth:`explain`; ``cost.py``, which plans patches, sets its ``explain`` here."""
    _is_child_datapipe = False  # torch asks for this at every item

    def __init_subclass__(cls, **options: Any) -> None:
        """Let its iterators say in our words that another one took over."""
        super().__init_subclass__(**options)
        own = vars(cls).get("__iter__")
        if inspect.isgeneratorfunction(own):
            cls.__iter__ = _explain_takeover(own)  # type: ignore[method-assign]

    if not TYPE_CHECKING:  # a checker would believe that a pipe has every attribute

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                return super().__getattr__(name)
            if name in IterDataPipe.functions:
                return ChainedForm(self, name)
            raise UnknownForm(repr(self), name)

    def __dir__(self) -> list[str]:
        """List the chained forms, and the methods that users call."""
        return names_to_show(type(self))

    def explain(self) -> str:
        """Return the chain up to here as text, with the cost of one patch."""
        return Report(DataPipe.explainer(self))

    def preview(self, count: int = 8, **options: Any) -> Any:
        """Return a figure of the first patches, before and after augmentation with the same draws.

        ``options`` are ``seed`` and ``epoch`` of a run, and a ``title``. Needs matplotlib.
        """
        return call_extension("preview", self, count, **options)

    def instructions(self) -> tuple[Instruction, ...] | None:
        """Return the pipe's work on items as values that need no torch; None if it cannot.

        Workers whose every pipe can are sent these and never import torch.
        """
        return None

    def by_number(self, items: Any) -> Any:
        """Return the items of the coming pass by their numbers; None where that is unknown.

        ``items`` are those of the parent, ``NumberedItems`` of ``voxpipe.datapipes.item_numbers``;
        None for a source. Reads and draws nothing before an item is asked for.
        """
        return None

    def settings(self) -> Any:
        """Return the settings that distinguish this pipe in its class, as plain values."""
        return self._arguments

    @property
    def inner_pipes(self) -> tuple[Pipe, ...]:
        """The pipes that run inside this one, in their order: code of the chain calls them, too."""
        return ()

    @property
    def is_drawn(self) -> bool:
        """Whether its work on a sample is drawn, and so differs in each epoch."""
        if not self.stream_names:
            return False
        step = getattr(getattr(self, "change", None) or self, "step", None)
        steps = [*getattr(self, "steps", ()), *([] if step is None else [step])]
        return any(one.is_drawn() for one in steps) or not steps


def _explain_takeover(own: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
    """Return an ``__iter__`` whose error names the two pipes that read one, unlike torch's."""

    @functools.wraps(own)
    def iterate(self: Any) -> Iterator[Any]:
        try:
            yield from own(self)
        except RuntimeError as error:
            if isinstance(error, errors.VoxpipeError) or _TAKEN_OVER not in str(error):
                raise
            raise _takeover_error(self) from error

    return iterate


def _takeover_error(pipe: Pipe) -> errors.IteratorInvalidated:
    """Return the error of a pipe, or one that it reads from, that is gone through twice at once."""
    # No pipe knows its readers, so search all objects; a failed pass may take the time.
    kinds = (IterDataPipe, MapDataPipe)
    every = [thing for thing in gc.get_objects() if issubclass(type(thing), kinds)]
    for read in reversed(list(walk(pipe))):
        reading = [one for one in every if any(p is read for p in parents_of(one))]
        reading = [one for one in reading if "main_datapipe" not in vars(one)]
        both = sorted({_line_of(one) for one in reading})
        if len(reading) > 1:
            why = f"{_line_of(read)[1]} gives each item to one, and is gone through at once by "
            why += " and ".join(text for _, text in both)
            do = f"Branch it, one, other = pipe.fork({len(reading)}), and go on from these."
            break
    else:
        why = f"{_line_of(pipe)[1]} was iterated anew meanwhile"
        do = "Finish one iteration before the next, or branch it: one, other = pipe.fork(2)."
    return errors.IteratorInvalidated(f"This iterator has been invalidated: {why}", do=do)


def _line_of(pipe: Pipe) -> tuple[int, str]:
    """Return the line of a pipe, 0 if unknown, and its place or name."""
    origin = vars(pipe).get("origin")
    if isinstance(origin, CallSite):
        return origin.line, f"[{origin}]"
    return 0, f"[.{describe(pipe)}]"


class SameLength(DataPipe):
    """A pipe of one parent that yields as many items."""

    def __len__(self) -> int:
        return length_of(self, self.parent)


class MainProcess(DataPipe):
    """A pipe that a loader runs in its own process, after its workers: it is not replicable."""

    traits: ClassVar[Any] = Traits(main_process=True)

    def is_replicable(self) -> bool:
        """Return False, as torchdata's pipes do of which workers may run no copy."""
        return False


IterDataPipe.functions.setdefault("preview", entry_of(DataPipe.preview))  # for pipes of torch


class PerItem(SameLength):
    """A pipe that makes one item of each item and remembers nothing in between."""

    traits: ClassVar[Any] = Traits(per_item=True)

    def apply(self, item: Any) -> Any:
        """Return the item that ``item`` becomes; by default by the ``instructions``."""
        steps: Any = self.instructions()
        if steps is None:
            raise NotImplementedError
        return apply_transforms(steps, item)

    def __iter__(self) -> Iterator[Any]:
        for item in self.parent:
            try:
                result = self.apply(item)
            except Exception as error:
                note_error(self, item, error)
            else:
                yield result


def stream_name(parent: Pipe, name: Any, kind: str) -> str:
    """Return the name of the stream of a pipe that reads from ``parent``."""
    # That which the user gave, or its kind: ``rotate@1`` in the second branch of a fork,
    # ``rotate#2`` where one upstream already draws under it.
    name = name or ""
    if not isinstance(name, str):
        msg = f"name= is the name of the stream that a pipe draws from, a word, got {name!r}"
        raise ValueError(msg)
    mark = "" if name else branch_mark(parent)
    base = name or (f"{kind}@{mark}" if mark else kind)
    upstream = {upstream for pipe in walk(parent) for upstream in stream_names(pipe)}
    variants = (f"{base}#{number}" for number in count(2))
    return next(free for free in chain((base,), variants) if free not in upstream)


def first_random_pipe(sink: Pipe) -> Pipe | None:
    """Return the first pipe up to ``sink`` that draws something for samples; None if none does."""
    # One with fixed parameters, such as ``spacing(1.0)``, draws nothing, and neither does one that
    # regroups keys, or cuts a grid of patches. An unknown pipe is assumed to draw.
    return next((pipe for pipe in walk(sink) if draws(pipe)), None)


def draws(pipe: Any) -> bool:
    """Whether a pipe's work on a sample is drawn, and so differs in each epoch."""
    return bool(pipe.is_drawn if isinstance(pipe, DataPipe) else stream_names(pipe))


def first_patch_pipe(sink: Pipe) -> Pipe | None:
    """Return the first pipe up to ``sink`` that cuts patches; None where volumes are whole."""
    return next((pipe for pipe in walk(sink) if getattr(pipe, "cuts_patches", False)), None)


NO_LENGTH = "no len():"  # so begins why there is none; pipes after it repeat that


def length_of(pipe: Any, parent: Any) -> int:
    """Return ``len(parent)``, or say that ``pipe`` has no length."""
    try:
        return length(parent)
    except (TypeError, NotImplementedError) as error:
        if str(error).startswith(NO_LENGTH):  # which says why
            raise
        every = list(walk(parent)) if is_pipe(parent) else [parent]
        unknown = {id(each) for each in every if not _has_length(each)}
        causes = [p for p in every if unknown.isdisjoint(map(id, parents_of(p)))]
        first = describe(next((p for p in causes if id(p) in unknown), parent))
        msg = f"{type(pipe).__name__} has no len(): the length of {first} before it is not known, "
        raise TypeError(f"{msg}so this instance doesn't have valid length") from None


def _has_length(pipe: Any) -> bool:
    try:
        return length(pipe) >= 0
    except (TypeError, NotImplementedError):
        return False


def wrong_item(pipe: DataPipe, item: Any, kind: str, do: str) -> errors.SampleError:
    """Return the error for an item that ``pipe`` cannot use."""
    msg = f"{kind} expected, got {type(item).__name__}"
    return errors.SampleError(msg, do=do).at(pipe.origin)


def lazy_patches(pipe: DataPipe, item: Any, keys: Iterable[str] = ()) -> dict[str, LazyPatch]:
    """Return the lazy patches of a sample by key."""
    if not isinstance(item, Sample):
        raise wrong_item(pipe, item, "a sample", f"Put {pipe.form_name}() after open_volume().")
    lazy: dict[str, LazyPatch] = patches_of(item)
    for key in keys:
        if key not in lazy:
            have = ", ".join(map(repr, lazy)) or "no lazy volume"
            msg = f"{pipe.form_name}() names {key!r}, but the sample has {have}"
            do = "Name lazy volumes: those of open_volume(), before realize()."
            do = do if key in item else errors.missing_key_hint(key, do)
            raise errors.SampleError(msg, do=do).at(pipe.origin, item.case)
    return lazy


def with_progress(
    things: Sequence[T], name: str, unit: str, progress: Callable[[int, int], None] | None
) -> Iterator[T]:
    """Yield things one by one, and call ``progress(done, total)``, or show a bar, after each."""
    from tqdm import tqdm

    # None: no bar where the output is no terminal.
    bar = tqdm(things, name, unit=unit, disable=None if progress is None else True)
    for number, thing in enumerate(bar, 1):
        yield thing
        if progress is not None:
            progress(number, len(things))
