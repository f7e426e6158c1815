"""Targets of commands: a path, URL, pattern, manifest or table, or ``module:NAME``."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import stat
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from traceback import extract_tb
from typing import Any

from ...core.errors import (
    AccessDenied,
    LikelyLabel,
    SampleError,
    UsageError,
    VoxpipeError,
)
from ...core.lru_cache import cached_property
from ...core.suggest import closest
from ...storage.location import is_url, local_path, public_name
from ..microscopy.tiff_sequence import SUFFIXES, is_pattern
from .cures import Origin, findings_in_options, is_name_of_object
from .options import add_store_options, store_options
from .options import place as place_of_text
from .printing import remark

_PLACES = (
    "a volume, a folder or URL, a glob (in quotes), a manifest (.json, .parquet), or a table of "
    "cases (.csv, .tsv, .json, .jsonl)"
)
LISTS = (".json", ".jsonl", ".csv", ".tsv", ".parquet")
"""Suffixes of manifests and tables of cases."""
_OBJECTS = "module:NAME or file.py:NAME of a pipe, a loader, a volume, or a function of one"
_STANDARD = os.path.dirname(os.__file__)  # the standard library, such as argparse
_OBJECT_CURE = (
    "Name a pipe, a DataLoader2, a volume, a list of cases, or a function without arguments that "
    "returns one."
)


def add_target(parser: argparse.ArgumentParser, *, help: str = f"{_PLACES}; or {_OBJECTS}") -> None:
    """Add the argument ``target``, its patterns, and the options of formats and stores."""
    add_patterns(parser, "target", help)
    add_store_options(parser)


def add_patterns(command: argparse.ArgumentParser, name: str, place: str) -> None:
    """Add the argument of a data set, its patterns, and the keys that they concern."""
    about = f"{place}; with patterns, a glob of case folders, or the first pattern"
    command.add_argument(name, metavar=name.upper(), type=place_of_text, help=about)
    about = (
        "the volumes of a case, as in list_cases(): image=ct.nii.gz label=seg.nii.gz below "
        'a glob of folders, or "image=imagesTr/*_0000.nii.gz" "label=labelsTr/*.nii.gz" alone '
        "(default: every volume that is found)"
    )
    # Without a default, argparse would report this optional argument as required.
    command.add_argument("patterns", metavar="KEY=PATTERN", nargs="*", default=[], help=about)
    about = "keys that a case may lack, as in list_cases(); each is one of the patterns"
    command.add_argument("--optional", nargs="+", default=[], metavar="KEY", help=about)
    about = "keys that hold labels (default: those of open_volume())"
    command.add_argument("--labels", nargs="+", metavar="KEY", help=about)
    command.set_defaults(take_rest=take_rest)


# Options with several values, among which argparse may put a pattern.
_SEVERAL_VALUES = ("labels", "optional")


def take_rest(options: argparse.Namespace, rest: Sequence[str]) -> list[str]:
    """Move each ``KEY=PATTERN`` of the command line to ``patterns``; return the other texts."""
    for option in _SEVERAL_VALUES:
        values = getattr(options, option, None) or []
        options.patterns += [value for value in values if _is_pattern(value)]
        if values:
            setattr(options, option, [value for value in values if not _is_pattern(value)])
    unknown = [text for text in rest if text.startswith("-")]
    if unknown:  # a pattern after an unknown option may be its value
        return list(rest)
    options.patterns += [text for text in rest if _is_pattern(text)]
    return [text for text in rest if not _is_pattern(text)]


def _is_pattern(text: str) -> bool:
    return "=" in text and text.partition("=")[0].isidentifier()


@contextmanager
def wrong_use(*kinds: type[VoxpipeError]) -> Iterator[None]:
    """Raise errors of some kinds as ``UsageError``."""
    try:
        yield
    except kinds as error:
        raise UsageError(error.message, do=error.do) from error


def refuse_denied(text: str) -> None:
    """Raise ``AccessDenied`` for a local path that this user may not reach, or may not list."""
    if is_url(text):
        return
    try:
        path = local_path(text)
        if stat.S_ISDIR(os.stat(path).st_mode):
            os.listdir(path)
    except PermissionError as error:
        msg = f"{text} cannot be read: {error.strerror}."
        raise AccessDenied(msg, do="Check who may read it and the folders above it.") from error
    except (OSError, ValueError):  # later errors name the closest path
        return


def attribute_of(text: str, cure: str = _OBJECT_CURE) -> Any:
    """Return the object of ``module:NAME`` or ``file.py:NAME``, as it is.

    Raises
    ------
    UsageError
        There is no such module or name.
    SampleError
        The module cannot be imported, or ends the program.
    """
    module, _, name = text.rpartition(":")
    file = Path(module)
    is_file = file.suffix == ".py"
    if is_file and not file.exists():
        raise UsageError(f"{module} does not exist.", do="Write module:NAME or file.py:NAME.")
    sys.path.insert(0, str(file.resolve().parent if is_file else Path.cwd()))
    module_name = file.stem if is_file else module
    try:
        with _no_exit(module):
            owner = importlib.import_module(module_name)
    except (ImportError, AttributeError, SyntaxError) as error:
        lacks = error.name if isinstance(error, ModuleNotFoundError) else None
        if lacks and f"{module_name}.".startswith(f"{lacks}."):
            raise UsageError(f"there is no module {lacks}, as in {text}.", do=cure) from error
        msg = f"{module} cannot be imported: {error}{_place_of(error)}."
        raise SampleError(msg, do="Correct this module, or install what it imports.") from error
    if not hasattr(owner, name):
        near = closest(name, vars(owner), 0.5)
        do = f"Did you mean {module}:{near[0]}?" if near else cure
        raise UsageError(f"{module} has no {name}.", do=do)
    return getattr(owner, name)


@contextmanager
def _no_exit(name: str) -> Iterator[None]:
    """Raise ``SampleError`` where code of the user ends the process."""
    try:
        yield
    except SystemExit as error:
        code = "" if error.code is None else repr(error.code)
        msg = f"{name} ends the program by sys.exit({code}){_place_of(error)}."
        do = 'Move that call below if __name__ == "__main__":, or raise another error.'
        raise SampleError(msg, do=do) from error


def _place_of(error: BaseException) -> str:
    """Return the user's file and line of an error; empty for a syntax error, which names them."""
    frames = [each for each in extract_tb(error.__traceback__) if os.path.isfile(each.filename)]
    if isinstance(error, SyntaxError) or not frames:
        return ""
    own = [each for each in frames if not each.filename.startswith((_STANDARD, __file__))]
    last = (own or frames)[-1]
    return f" (at {last.filename}:{last.lineno})"


def call_of(text: str, function: Any, cure: str = _OBJECT_CURE) -> Any:
    """Return the result of a function or class of ``module:NAME``, called without arguments.

    Raises
    ------
    UsageError
        It needs arguments.
    SampleError
        It ends the program.
    """
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        place = ""
        with suppress(OSError, TypeError):  # of a compiled module
            line = inspect.getsourcelines(function)[1]
            place = f" at {inspect.getsourcefile(function)}:{line}"
        msg = f"{text} cannot be called without arguments: {error}{place}."
        raise UsageError(msg, do=cure) from error
    with _no_exit(text):
        return function()


def object_of(text: str, cure: str = _OBJECT_CURE) -> Any:
    """Return the pipe, loader, volume or list of cases that ``module:NAME`` names.

    The result is None if the text is a place. A function is called without arguments.

    Raises
    ------
    UsageError
        There is no such module or name, the function needs arguments, or the type is another one.
    SampleError
        The module cannot be imported, or its code ends the program.
    """
    from ...dataloader2 import DataLoader2
    from ...datapipes.case_lists import pipe_of
    from ...graph import is_pipe
    from ...volumes import Volume

    if not is_name_of_object(text):
        return None
    thing = attribute_of(text, cure)
    if inspect.isroutine(thing):
        thing = call_of(text, thing, cure)
    if is_pipe(thing) or isinstance(thing, (Volume, DataLoader2)):
        return thing
    if isinstance(thing, (str, os.PathLike)):
        return pipe_of(thing, None)
    cases = [] if isinstance(thing, (Mapping, type)) else thing
    cases = list(cases) if isinstance(cases, Iterable) else []
    if cases and all(isinstance(case, Mapping) for case in cases):
        return cases
    raise UsageError(f"{text} is of type {type(thing).__name__}.", do=cure)


def _holds_planes_alone(folder: str) -> bool:
    """Return whether a folder holds several TIFF files, and neither folders nor other volumes."""
    from ...volumes import is_volume

    if not os.path.isdir(folder):
        return False
    with os.scandir(folder) as entries:
        every = [entry for entry in entries if not entry.name.startswith(".")]
    planes = [entry for entry in every if entry.name.lower().endswith(SUFFIXES)]
    others = [entry for entry in every if not entry.name.lower().endswith(SUFFIXES)]
    return len(planes) > 1 and not any(each.is_dir() or is_volume(each.path) for each in others)


class Target:
    """The data that a text of the command line names, with the options of its command.

    The text is a path, URL, glob, manifest or table, ``module:NAME``, or a pattern of volumes with
    those in ``arguments.patterns``. Errors for ``module:NAME`` are those of :func:`object_of`.
    ``arguments.origin`` becomes who opens the volumes: errors and warnings name options by it.
    """

    def __init__(self, text: str, arguments: argparse.Namespace, cure: str = _OBJECT_CURE) -> None:
        from ...dataloader2 import DataLoader2
        from ...graph import is_pipe
        from ...volumes import Volume

        self.text, self.arguments = text, arguments
        self.user_object = object_of(text, cure)
        """The object of ``module:NAME``; None for a place."""
        self.is_chain = is_pipe(self.user_object) or isinstance(self.user_object, DataLoader2)
        """Whether the user wrote a chain or loader, which opens its volumes by itself."""
        is_opened = self.is_chain or isinstance(self.user_object, Volume)
        origin = Origin.USER_CHAIN if self.is_chain else Origin.USER_VOLUME
        arguments.origin = origin if is_opened else Origin.COMMAND
        self._refuse_options(is_opened=is_opened)

    def _refuse_options(self, *, is_opened: bool) -> None:
        """Raise ``UsageError`` for an option that does not concern an object of Python."""
        options = self.arguments
        if self.user_object is None:
            return
        values = {"--optional": options.optional, "KEY=PATTERN": options.patterns}
        if is_opened and (not self.is_chain or self.opener is not None):
            values |= {"--reader": options.reader, "--labels": self.is_chain and options.labels}
        for option in (option for option, value in values.items() if value):
            msg = f"{option} does not go with {self.text}, which says itself how it is read."
            raise UsageError(msg, do="Leave it out, or change the code.")

    @property
    def store(self) -> dict[str, Any]:
        """The options of the store."""
        return store_options(self.arguments, self.text, *self.arguments.patterns)

    @property
    def labels(self) -> dict[str, Any]:
        """The argument ``labels`` of the command, if it is given."""
        return {} if self.arguments.labels is None else {"labels": self.arguments.labels}

    @cached_property
    def place(self) -> Any:
        """Return a place as it is, or the pipe of the cases that patterns find."""
        from ...datapipes.iter import list_cases

        data, patterns = self.text, self.arguments.patterns
        optional = self.arguments.optional
        is_pattern = _is_pattern(data) and not os.path.exists(data)
        if not (patterns or is_pattern):
            if optional:
                event = f"--optional needs patterns: {optional[0]} is the key of none."
                raise UsageError(event, do=f"Write image=ct.nii.gz {optional[0]}=PATTERN.")
            refuse_denied(data)
            return data
        texts = [data, *patterns] if is_pattern else patterns
        by_key: dict[str, Any] = dict(text.partition("=")[::2] for text in texts)
        for key, pattern in by_key.items():
            if not (key and pattern):
                msg = f"{key or pattern!r} is no KEY=PATTERN."
                do = 'Write image=ct.nii.gz; a glob of folders needs quotes: "scans/*/".'
                raise UsageError(msg, do=do)
        for key in set(optional) - by_key.keys():
            near = closest(key, by_key, 0.5)
            do = f"did you mean --optional {near[0]}?" if near else "Name one of them."
            raise UsageError(f"--optional {key} is none of the keys: {', '.join(by_key)}", do=do)
        folder = None if is_pattern else data
        try:
            return list_cases(folder, optional=optional, storage_options=self.store, **by_key)
        except ValueError as error:
            raise SampleError(str(error), do='Write image="imagesTr/*_0000.nii.gz".') from error

    @cached_property
    def planes(self) -> Any:
        """Return the one volume of a pattern with ``{z}``, or of a folder of planes; else None.

        A folder with missing planes is a volume, too, which raises its error when it is opened.
        """
        from ...volumes import Volume

        text, reader = self.text, dict(self.arguments.reader)
        if not isinstance(self.place, str):
            return None
        volume = Volume(text, storage_options=self.store, **reader)
        if is_pattern(text) and is_url(text):
            return volume
        if is_pattern(text) and not os.path.exists(local_path(text)):
            before = os.path.dirname(local_path(text).partition("{")[0])
            folder = before or os.curdir  # with a stamp of its own, which a pattern has not
            pattern = os.path.relpath(local_path(text), folder)
            return Volume(folder, **{"pattern": pattern, **reader})
        if is_url(text) or not _holds_planes_alone(local_path(text)):
            return None
        try:
            _ = Volume(text, **{**reader, "allow_gaps": True}).header
        except (VoxpipeError, OSError, ValueError):  # a folder of cases
            return None
        return volume

    @property
    def is_list(self) -> bool:
        """Whether a place is a manifest or a table of cases."""
        return self.text.lower().endswith(LISTS)

    @property
    def is_manifest(self) -> bool:
        """Whether a place is a manifest, and no other list of cases."""
        from ...datapipes.cases import FromManifest

        return self.is_list and isinstance(self.thing, FromManifest)

    @cached_property
    def volume(self) -> Any:
        """Return the volume of a place that is one; None for anything else."""
        from ...volumes import Volume, is_volume

        if self.user_object is not None or self.is_list or not isinstance(self.place, str):
            return None
        path = local_path(self.text)
        is_file = not is_url(self.text) and os.path.lexists(path) and not os.path.isdir(path)
        if self.planes is None and (is_file or is_volume(self.text)):
            return Volume(self.text, storage_options=self.store, **dict(self.arguments.reader))
        return self.planes

    @cached_property
    def thing(self) -> Any:
        """Return the data; read no header.

        A ``Volume`` for one file. A pipe of cases, not opened yet, for a folder, glob, manifest,
        table or patterns. For ``module:NAME`` the object itself.
        """
        from ...datapipes.case_lists import pipe_of

        text, store = self.text, self.store
        if self.user_object is not None:
            return self.user_object
        if text.lower().endswith(".py"):
            msg = f"{text} is a file of Python, and no volume"
            raise SampleError(msg, do=f"Name an object in it: {text}:pipe.")
        if self.volume is not None:
            return self.volume
        return pipe_of(self.place, store)

    @cached_property
    def pipe(self) -> Any:
        """Return the pipe of a chain or loader, or of the cases."""
        from ...datapipes.case_lists import pipe_of
        from ...volumes import Volume

        pipe = getattr(self.thing, "datapipe", self.thing)
        return pipe_of([{"image": pipe}] if isinstance(pipe, Volume) else pipe, self.store)

    @property
    def opener(self) -> Any:
        """The pipe of a chain that opens its volumes; None if it has none."""
        from ...graph import traits_of, walk

        return next((each for each in walk(self.pipe) if traits_of(each).opens), None)

    @property
    def chain(self) -> Any:
        """The pipe, after which volumes are open."""
        return self.pipe if self.opener is not None else self.with_volumes(self.pipe)

    def with_volumes(self, pipe: Any) -> Any:
        """Return a pipe of the cases with their volumes open."""
        from ...volumes import Volume

        is_volume = isinstance(self.thing, Volume)  # its options are those of the command already
        options = (
            {} if is_volume else {"storage_options": self.store, **dict(self.arguments.reader)}
        )
        return pipe.open_volume(**self.labels, **options)

    @contextmanager
    def loader(self) -> Iterator[Any]:
        """Yield the loader, with seed 0 unless it is of the user; shut it down after."""
        from ...dataloader2 import DataLoader2

        loader = self.thing
        if not isinstance(loader, DataLoader2):
            loader = DataLoader2(self.pipe if self.is_chain else self.chain, seed=0)
        with loader:
            yield loader

    def volumes(self) -> Iterator[tuple[str, str, Any]]:
        """Yield case, key and ``Volume`` of everything; reads no header.

        A chain or loader is read up to its ``open_volume()``. The case of one volume is empty.
        """
        from ...volumes import Volume

        if isinstance(self.thing, Volume):
            yield "", "", self.thing
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LikelyLabel)
            for sample in self.opener or self.chain:
                for key, value in sample.items():
                    volume = value if isinstance(value, Volume) else getattr(value, "volume", None)
                    if isinstance(volume, Volume):
                        yield sample.case, key, volume

    def report(self, run: Any, *places: str | None, **own: Any) -> Any:
        """Return the report of ``check()`` or ``index()``, in words of the command."""
        options, reader = self.arguments, dict(self.arguments.reader)
        store = store_options(options, self.text, *options.patterns, *filter(None, places))
        if self.user_object is not None:
            cases = self.opener or self.pipe
        elif self.planes is not None:
            cases, reader = [{"case": _name_of_planes(self.text), "image": self.planes}], {}
        else:
            cases = self.place
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LikelyLabel)  # printed as remarks instead
            report = run(cases, *places, storage_options=store, **own, **self.labels, **reader)
        return replace(report, findings=tuple(findings_in_options(options, report.findings)))


def open_target(text: str, arguments: argparse.Namespace) -> Any:
    """Return ``Target(text, arguments).thing``, the data that a target names."""
    return Target(text, arguments).thing


def _name_of_planes(text: str) -> str:
    place = public_name(text).rstrip("/")
    return os.path.basename(os.path.dirname(place) if is_pattern(place) else place) or "planes"


def remark_likely_labels(report: Any) -> None:
    """Print a line for each key that looks like a label, in words of the command."""
    for key in report.likely_labels:
        all_of_them = " ".join((*report.labels, *report.likely_labels))
        others = " ".join(report.labels) or "label"
        remark(
            f"{key}: LikelyLabel: it looks like a label, and counts as an image. If it holds "
            f"classes, give --labels {all_of_them}; if not, --labels {others}."
        )
