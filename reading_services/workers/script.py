"""The import of the user's script by new workers, and the fork server."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import io
import json
import os
import pickle
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from importlib import import_module
from importlib.abc import SourceLoader
from itertools import count
from multiprocessing import active_children, forkserver, process, reduction, spawn, util
from types import CodeType, FunctionType
from typing import Any, cast

import numpy as np

from ...core.call_site import warn
from ...core.errors import LikelyMistake, NotPicklable
from ...core.locks import ForkSafeLock, at_fork

# multiprocessing imports the running script into every worker, with all its imports such as torch.
# A worker that gets instructions receives the script's name instead. It imports the script when an
# object of the script arrives.

WORKER_NAME = "voxpipe-worker"
"""Prefix of the names of worker processes."""
UNGUARDED_EXIT = 114
"""Exit status of a worker whose script starts the loop again; no other exit uses it."""
ALWAYS = frozenset({signal.SIGINT, signal.SIGTERM})
"""Signals that only the consumer handles: workers end when it ends, and the pool uses SIGKILL."""
_OF_JOBS = ["HUP", "USR1", "USR2", "QUIT", "XCPU", "ALRM", "VTALRM", "PROF", "IO", "PWR"]
SIGNALS = ALWAYS.union(
    {getattr(signal, f"SIG{name}") for name in _OF_JOBS if hasattr(signal, f"SIG{name}")},
    range(getattr(signal, "SIGRTMIN", 0), getattr(signal, "SIGRTMAX", -1) + 1),
)
"""Signals of a terminal, a job step or a timer. None of them ends a worker, even a starting one."""
# Signals of faults in the process itself, and signals that no process can handle.
_OWN_SIGNALS = ("SIGKILL", "SIGSTOP", "SIGCHLD", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT")
_KEYS = ("init_main_from_name", "init_main_from_path")
_HASH_SEED = "PYTHONHASHSEED"
_LOCK = ForkSafeLock()
_NOTES = "start-"  # prefix of the files into which processes write their stack
_NUMBERS = count()
_LONGEST = 10.0**8  # seconds; the timer takes no infinite number
_MOST_LINES = 4
_PARTS_OF_IMPORTING = ("<frozen", "multiprocessing", "<string>", os.path.dirname(__file__))


def script_of_this_process() -> dict[str, str]:
    """Return the settings with which a worker imports the script; empty if there is no file.

    Ends a worker that calls this while it imports the script: its loop is not under a guard.
    """
    _end_if_unguarded()
    preparation: dict[str, Any] = spawn.get_preparation_data("")
    script = {key: preparation[key] for key in _KEYS if key in preparation}
    path = script.get("init_main_from_path")
    return script if path is None or os.path.isfile(path) else {}


class StartNote:
    """A file for the stack of a process that exceeds its start limit, and then ends."""

    def __init__(self, seconds: float) -> None:
        self.path = os.path.join(_own_folder(), f"{_NOTES}{os.getpid()}-{next(_NUMBERS)}")
        self.limit = min(seconds, _LONGEST)

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickling starts the timer, before the imports of the script and of our modules.
        return faulthandler.dump_traceback_later, (self.limit, False, _OpenFile(self.path), True)

    def take(self) -> str:
        """Return the stack, the innermost line last; empty if the process started in time."""
        try:
            with open(self.path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            os.unlink(self.path)
        except OSError:
            return ""
        # The main thread comes last. Lines of the import system are left out.
        lines = text.rpartition("Thread 0x")[2].splitlines()
        own = [line.strip() for line in lines if "  File " in line]
        own = [line for line in own if not any(part in line for part in _PARTS_OF_IMPORTING)]
        return "\n  ".join(reversed(own[:_MOST_LINES]))


def _own_folder() -> str:
    """Return the folder for sockets of this process."""
    folder: str = util.get_temp_dir()
    # Another process may remove it while our fork server is dead; the next server listens there.
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    return folder


def remove_notes(folder: str, consumer: int) -> None:
    """Remove the notes of workers whose consumer was killed during their start."""
    for name in os.listdir(folder):
        if name.startswith(f"{_NOTES}{consumer}-"):
            os.unlink(os.path.join(folder, name))


class _OpenFile:
    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        # A descriptor stays open until the process ends: a file object would warn when it ends.
        return os.open, (self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)


@contextlib.contextmanager
def preparing(*, hides_script: bool = False, note: StartNote | None = None) -> Iterator[None]:
    """Start a timer in new workers, or hide the script from them, inside the ``with`` block.

    With a note, all of them order the strings of a set alike.
    """
    with _LOCK:
        original, seed = spawn.get_preparation_data, os.environ.get(_HASH_SEED)

        def prepare(name: str) -> dict[str, Any]:
            preparation: dict[str, Any] = original(name)
            if not name.startswith(WORKER_NAME):
                return preparation
            absent = _KEYS if hides_script else ()
            preparation = {k: v for k, v in preparation.items() if k not in absent}
            return preparation if note is None else {"note": note, **preparation}

        spawn.get_preparation_data = prepare
        is_random = note is not None and not (seed or "").isdecimal()
        try:
            os.environ.update({_HASH_SEED: "0"} if is_random else {})
            yield
        finally:
            spawn.get_preparation_data = original
            if is_random:
                os.environ.pop(_HASH_SEED, None)
                os.environ.update({} if seed is None else {_HASH_SEED: seed})


def signals_of_parent() -> frozenset[int]:
    """Return the signals that only the consumer handles: ``ALWAYS``, and those with its handlers.

    Handlers in C are left out: a script may register ``faulthandler`` in each worker, too.
    """
    own = {getattr(signal, name, 0) for name in _OWN_SIGNALS}
    return ALWAYS | {s for s in signal.valid_signals() if callable(signal.getsignal(s))} - own


def ignore_signals(signals: Collection[int] = ALWAYS) -> None:
    """Ignore ``signals`` and those of ``SIGNALS`` that this process does not catch; unblock all.

    Programs that a worker starts inherit its mask.
    """
    every = SIGNALS.difference(_caught_signals()).union(signals)
    for number in every:
        # Programs inherit SIG_IGN, but no handler in Python: these signals still end them.
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else lambda *_: None)
    if sys.platform != "win32":
        signal.set_wakeup_fd(-1)  # a fork inherits that of the parent
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS | every)


def _caught_signals() -> list[int]:
    """Return the signals with a handler here, in Python or in C; none outside Linux."""
    # getsignal() does not see handlers in C, such as those of faulthandler.register().
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="utf-8") as file:
        mask = next((int(line[7:], 16) for line in file if line.startswith("SigCgt:")), 0)
        return [number for number in SIGNALS if mask >> (number - 1) & 1]
    return []


def survive_refusals() -> None:
    """Keep the fork server alive after a request without descriptors (too many open files)."""
    receive: Any = reduction.recvfds

    def receive_or_refuse(sock: socket.socket, size: int) -> list[int]:
        try:
            return list(receive(sock, size))
        except EOFError as error:  # the server survives an OSError
            raise OSError(errno.ECONNABORTED, str(error)) from error

    reduction.recvfds = receive_or_refuse


def begin_with_signals_blocked() -> None:
    """Block signals in the fork server; each child unblocks them when it has its name.

    So no signal of a job ends a worker before the worker ignores it.
    """
    # The consumer blocked the signals that it handles before it started this process.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    prepare: Any = spawn.prepare

    def prepare_process(data: Mapping[str, Any]) -> None:
        if data.get("name", "").startswith(WORKER_NAME):
            ignore_signals()
        else:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS | before)
        prepare(data)

    spawn.prepare = prepare_process


class ScriptUnpickler(pickle.Unpickler):
    """An unpickler that imports the script for the first object of it."""

    def __init__(self, data: bytes, script: Mapping[str, str]) -> None:
        super().__init__(io.BytesIO(data))
        self._script = dict(script)

    def find_class(self, module: str, name: str) -> Any:
        """Return the object ``name`` of ``module``."""
        if module == "__main__" and self._script:
            _import(self._script)
        try:
            return super().find_class(module, name)
        except AttributeError as error:
            msg = f"a worker cannot find {name!r} in {module}: {error}"
            do = "Define it at the top level of the module, where importing is enough."
            raise NotPicklable(msg, do=do) from error


# State of the consumer that a forked child would have. A part that differs from that of the last
# epoch is adopted. So values that a worker_init_fn or the script sets in a worker stay there.
_LAST: dict[Any, Any] = {}


class Adopts:
    """Calls a function with values in the process that unpickles it."""

    def __init__(self, function: Callable[..., None], *values: Any) -> None:
        self._call = function, values

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


def adopt(
    settings: Mapping[str, str], environment: MutableMapping[str, str], before: Mapping[str, str]
) -> None:
    """Change the variables of an environment whose settings differ from those of ``before``."""
    for name in before.keys() & environment.keys() - settings.keys():
        del environment[name]
    environment.update({k: v for k, v in settings.items() if before.get(k) != v})
    _LAST[adopt] = settings


def settings_of_process(environment: Mapping[str, str] | None = None) -> Adopts:
    """Return the environment, the folder, the import path, and defaults of torch and NumPy."""
    folder = ""
    with contextlib.suppress(FileNotFoundError):
        folder = os.getcwd()
    if environment is None:
        environment = {name: value for name, value in os.environ.items() if name != SERVER}
    dtype = str(getattr(sys.modules.get("torch"), "get_default_dtype", str)())
    return Adopts(adopt_settings, environment, folder, (*sys.path,), dtype, np.geterr())


def adopt_settings(
    environment: Mapping[str, str], folder: str, path: tuple[str, ...], dtype: str, errors: Any
) -> None:
    """Adopt the environment, the folder, the import path, and defaults of torch and NumPy."""
    adopt(environment, os.environ, _LAST.get(adopt, environment))
    torch: Any = sys.modules.get("torch")
    if torch is not None and dtype:
        torch.set_default_dtype(getattr(torch, dtype.removeprefix("torch.")))
    np.seterr(**errors)
    if folder and _LAST.get(os.chdir) != folder:
        os.chdir(folder)
    if _LAST.get(sys) != path:
        sys.path[:] = path
    _LAST.update({os.chdir: folder, sys: path})


def adopt_values(values: Mapping[tuple[str, ...], bytes]) -> None:
    """Set plain values of modules, classes, functions and objects in them, each by its path."""
    for path, data in values.items():
        if _LAST.get(path) == data:
            continue
        _LAST[path] = data
        module, *owners, name = path
        try:
            space: Any = _space_of(import_module(module))  # a function may import it when called
        except ImportError:  # made by the script, under its guard for instance
            continue
        if not owners:
            if not _change(space.get(name), value := pickle.loads(data)):
                space[name] = vars(sys.modules[module])[name] = value
            continue
        thing = space.get(owners[0])
        for owner in owners[1:]:
            thing = getattr(thing, owner, None)
        if isinstance(thing, type):
            with contextlib.suppress(AttributeError, TypeError):  # a compiled class
                setattr(thing, name, pickle.loads(data))
        elif not hasattr(thing, "__dict__"):
            text = f"workers have no {'.'.join(owners)} of {module}, which was set after its import"
            hint = "Set it where the module is imported, or hold it in an attribute of the function"
            warn(f"{text}. {hint}.", LikelyMistake)
        elif not _change(vars(thing).get(name), value := pickle.loads(data)):
            vars(thing)[name] = value  # also of a frozen dataclass


def _space_of(module: Any) -> dict[str, Any]:
    """Return the globals of a module's functions: multiprocessing copies those of a script."""
    members = [*vars(module).values()]
    members += [m for kind in members if isinstance(kind, type) for m in vars(kind).values()]
    spaces = (part.__globals__ for part in members if isinstance(part, FunctionType))
    mine = (space for space in spaces if space.get("__name__") == module.__name__)
    return next(mine, vars(module))


def _change(now: Any, value: Any) -> bool:
    """Give an object the content of another one of its class, as others may hold it."""
    if type(now) is not type(value) or not isinstance(value, (list, dict, set)):
        return False
    now.clear()
    (now.extend if isinstance(now, list) else now.update)(value)
    return True


def _end_if_unguarded() -> None:
    """End a worker that runs the user's loop while it imports the script."""
    this = process.current_process()
    if not getattr(this, "_inheriting", False):
        return
    if SERVER in os.environ:
        raise UnguardedError  # each worker raises it again and reports it
    if this.name.startswith(WORKER_NAME):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(UNGUARDED_EXIT)


def _import(script: Mapping[str, str]) -> None:
    this: Any = process.current_process()
    this._inheriting = True  # multiprocessing then refuses to start processes
    try:
        spawn.prepare(dict(script))
    finally:
        del this._inheriting


# All workers of a run have one version of the code, even if files are edited meanwhile: the fork
# server imports the script and the modules of functions once. Python's own server imports only a
# script with a path, since 3.13.8, and ends if the script raises.

SERVER = "_VOXPIPE_FORK_SERVER"
_STARTING = ForkSafeLock()
_code_of_server: set[str] = set()  # modules that the fork server of this process has imported
_versions: dict[str, tuple[Any, ...]] = {}  # versions of modules as workers first imported them


class UnguardedError(BaseException):
    """The script starts its loop when it is imported."""


def start_server(modules: Collection[str], note: StartNote) -> None:
    """Start a fork server that imports the script and ``modules``, unless one has them.

    A server without them is replaced if none of its children is alive and no file was edited.
    """
    server: Any = forkserver._forkserver
    with _STARTING:
        names = _code_of_server.union(modules, ["__main__"])
        # Another server would import the new version of an edited file.
        intact = all(_version(name) == _versions.get(name, ()) for name in _code_of_server)
        if intact and server._forkserver_pid and names > _code_of_server and not active_children():
            with contextlib.suppress(FileNotFoundError):  # the server removes its folder at its end
                server._stop()
            _own_folder()
        is_new = server._forkserver_pid is None
        if is_new:
            _code_of_server.clear()
        preparation = spawn.get_preparation_data("")
        own = _KEYS if script_of_this_process() else ()
        keys = ("sys_path", "sys_argv", "orig_dir", "dir", *own)
        script = {key: preparation[key] for key in keys if preparation.get(key) is not None}
        order = [script, sorted(names - {"__main__"}), *vars(note).values()]
        os.environ[SERVER] = json.dumps(order)
        try:
            forkserver.ensure_running()
        finally:
            os.environ.pop(SERVER, None)
        if is_new:  # else the user started the server, or it has the code already
            _code_of_server.update(names)


def _version(name: str) -> tuple[Any, ...]:
    """Return the file of a module, its time and its size; nothing if it has no file."""
    with contextlib.suppress(OSError, TypeError):
        file = getattr(sys.modules.get(name), "__file__", None)
        status = os.stat(file)  # type: ignore[arg-type]  # a TypeError without a file
        return file, status.st_mtime_ns, status.st_size
    return ()


def _is_edited(module: Any) -> bool:
    """Whether functions of a module differ from those in its file."""
    loader = getattr(module, "__loader__", None)
    if not isinstance(loader, SourceLoader):  # pytest, for one, compiles other code
        return False
    try:
        code = loader.source_to_code(loader.get_data(module.__file__), module.__file__)
    except (OSError, SyntaxError, ValueError):
        return True  # workers will fail, and name the cause
    codes = [code]
    for each in codes:  # grows meanwhile
        codes += [part for part in each.co_consts if isinstance(part, CodeType)]
    in_file, members = set(codes), [*vars(module).values()]
    members += [m for kind in members if isinstance(kind, type) for m in vars(kind).values()]
    # Other attributes are not read: objects of lazy imports may raise anything.
    members += [m.__func__ for m in members if isinstance(m, (classmethod, staticmethod))]
    own = {part.__code__ for part in members if type(part) is FunctionType}
    return any(one.co_filename == code.co_filename and one not in in_file for one in own)


def import_code() -> None:
    """Import the script and the modules of the consumer in the fork server, within a time limit."""
    order = os.environ.get(SERVER)
    if order is None:
        return
    script, modules, path, seconds = json.loads(order)
    with open(path, "w", encoding="utf-8") as file:
        faulthandler.dump_traceback_later(seconds, file=file, exit=True)
        try:
            with contextlib.suppress(BaseException):  # workers try again and report the error
                _import(script)
                for name in modules:
                    import_module(name)
        finally:
            faulthandler.cancel_dump_traceback_later()
            del os.environ[SERVER]
    os.unlink(path)


def warn_of_changes(modules: Collection[str], method: str) -> None:
    """Warn if new workers import another version of the code than earlier ones."""
    for name in ("__main__", *modules):
        now = _version(name)
        if not now or (method == "forkserver" and name in _code_of_server):
            continue
        is_first = name not in _versions
        if is_first and _is_edited(sys.modules[name]):
            warn(
                f"{now[0]} was edited since this process imported it: workers import the new "
                "version, and this process runs the old one. Start the program again, or call "
                "importlib.reload() and construct the chain anew.",
                LikelyMistake,
            )
        if _versions.setdefault(name, now) != now:
            _versions[name] = now
            warn(
                f"{now[0]} changed while the loader runs: workers that start now import the new "
                "version. Leave it as it is while you train, or use "
                'multiprocessing_context="forkserver" or persistent_workers=True.',
                LikelyMistake,
            )


# The imports of the fork server, with which workers start in 0.1 s.
#
# Each process has its own fork server. A forked child has copies of ``multiprocessing``'s records
# of processes. It would wait for children of its parent, and end them at its exit.

FREEZE = "voxpipe.reading_services.workers.preload"
"""The module to import last: it freezes the objects of the others."""
# multiprocessing's own list: the script, which only workers with pipes need.
_DEFAULT = ["__main__"]
FOLDERS = "pymp-"  # prefix of the folders for sockets of multiprocessing
# The list as it was set from here last, and the user's part of it.
_last: tuple[list[str], list[str]] = ([], [])
# Key of the folder for sockets in the configuration of a process.
_FOLDER = "tempdir"
# The folder of the parent of a forked process, which the parent removes at its end.
_folder_of_parent: str | None = None


def preload(context: Any, modules: Sequence[str]) -> None:
    """Make a fork server that is not running yet import ``modules``, after the user's own.

    multiprocessing has no function to read its list, so the private attribute is read.
    """
    global _last
    settings = _settings()
    if settings.get(_FOLDER) is None:  # no server was started by this process yet
        remove_folders_of_the_dead(tempfile.gettempdir())
    if _folder_of_parent is not None and settings.get(_FOLDER) == _folder_of_parent:
        del settings[_FOLDER]
    now = list(getattr(forkserver._forkserver, "_preload_modules", _DEFAULT))
    mine, users = _last
    if now != mine:
        users = [] if now == _DEFAULT else now
    imports = [*dict.fromkeys([*users, *modules]), FREEZE]
    context.set_forkserver_preload(imports)
    _last = (imports, users)


def remove_folders_of_the_dead(place: str) -> None:
    """Remove the user's folders of fork servers that were killed."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(FOLDERS):
                with contextlib.suppress(OSError):
                    _remove_if_dead(entry.path)


_OLD_SECONDS = 3600.0


def _remove_if_dead(folder: str) -> None:
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    files = [os.path.join(folder, name) for name in os.listdir(folder)]
    sockets = [path for path in files if not os.path.basename(path).startswith(_NOTES)]
    # A process may be about to use an empty folder, unless the folder is old.
    is_old = not sockets and status.st_mtime < time.time() - _OLD_SECONDS
    if is_old or (sockets and all(map(_is_dead_socket, sockets))):
        for path in files:
            os.unlink(path)
        os.rmdir(folder)


def _is_dead_socket(address: str) -> bool:
    """Whether a path is a socket that no process has open; a listener does not notice the test."""
    if not stat.S_ISSOCK(os.lstat(address).st_mode):
        return False
    # The system refuses a datagram socket before a listening server could accept it.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        return other.connect_ex(address) == errno.ECONNREFUSED


def _settings() -> dict[str, Any]:
    """Return the configuration that multiprocessing passes to children; forked ones copy it."""
    return cast("dict[str, Any]", vars(process.current_process()).get("_config", {}))


def _forget_parent() -> None:
    """Make a child of ``os.fork()`` start its own server, and leave its parent's workers alone."""
    global _folder_of_parent
    _folder_of_parent = _settings().get(_FOLDER)
    server: Any = forkserver._forkserver
    modules, alive = list(server._preload_modules), server._forkserver_alive_fd
    _code_of_server.clear()
    server.__init__()  # also its lock, which a thread of the parent may hold
    server._preload_modules = modules
    if alive is not None:
        with contextlib.suppress(OSError):  # an open descriptor keeps the server alive
            os.close(alive)
    children: set[Any] = vars(process).get("_children", set())
    for child in [child for child in children if child.name.startswith(WORKER_NAME)]:
        children.discard(child)


at_fork(after=_forget_parent)
