"""The actor of a worker: it connects to the trainer, and then runs as a worker process does."""

from __future__ import annotations

import os
import pickle
import platform
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from ...core.errors import NotPicklable
from ...core.native_library import ABI, native_library
from ...core.settings import CACHE, CACHE_BYTES, MAPPED_BYTES, NATIVE
from ...reading_services.workers.script import (
    SERVER,
    ScriptUnpickler,
    UnguardedError,
    adopt_settings,
)
from ...reading_services.workers.worker import Line, WorkerSettings, run_worker
from .detour import detour
from .stream import StreamLine, connect, introduce, lift_limit

_utilities: Any = ray.util  # its functions have no types
_LEAVE_SECONDS = 2.0  # Then an actor ends itself.
_DETOUR = "Until then Ray's object store carries the batches, which takes that node more time."
# Settings that describe a node: its disks, its memory and its processor.
_OF_NODE = {CACHE, CACHE_BYTES, MAPPED_BYTES, NATIVE}


def portable(environment: Mapping[str, str]) -> dict[str, str]:
    """Return voxpipe's variables that hold on any node."""
    ours = (name for name in environment if name.startswith("VOXPIPE_"))
    return {name: environment[name] for name in ours if name not in _OF_NODE}


def facts_of_process(modules: Sequence[str] = ()) -> dict[str, Any]:
    """Return the facts that must be equal in the trainer and all workers.

    ``modules`` are those that the volumes need.
    """
    library, _ = native_library(())
    return {
        "voxpipe": metadata.version("voxpipe"),
        "python": platform.python_version().rpartition(".")[0],
        "kernel": f"version {ABI}" if library is not None else "missing",
        **{name: "installed" if _is_installed(name) else "missing" for name in modules},
    }


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ImportError:  # its package is missing
        return False


class Caller(NamedTuple):
    """A pool, as its actors reach it."""

    addresses: Mapping[str, Any]
    """Those of a :class:`~.stream.StreamServer`, by the name of a node; "" is for all others."""
    key: bytes
    modules: Sequence[str]  # that the volumes need
    shared_bytes: int = 0  # of batches that a shared actor keeps

    def connect(self, number: int) -> tuple[Connection, bool]:
        """Return a stream to it, and whether it is on this node."""
        node = ray.get_runtime_context().get_node_id()
        own = self.addresses.get(node)
        reachable = [address for address in (own, self.addresses[""]) if address is not None]
        host = _utilities.get_node_ip_address()
        facts = {"number": number, "pid": os.getpid(), "node": node, "host": host}
        facts |= facts_of_process(self.modules)
        try:
            return connect(reachable, self.key, facts)
        except OSError as error:
            if own is not None:
                raise
            facts |= {"is_near": False, "detour": f"{error}. {_DETOUR}"}
            return self._detour(facts, error), False

    def _detour(self, facts: dict[str, Any], error: OSError) -> Connection:
        """Return a stream that Ray carries; if there is none, raise ``error`` with that reason."""
        home = next(node for node in self.addresses if node)
        try:
            stream = detour(home, self.addresses[home])
            introduce(stream, self.key, facts)
        except (RayError, OSError, EOFError, AuthenticationError) as other:
            reason = str(other).strip().rpartition("\n")[2]  # the last line of a traceback
            raise OSError(f"{error}. Ray carries no bytes either: {reason}") from other
        return stream

    def join(self, number: int) -> tuple[Connection, bool, bytes, WorkerSettings]:
        """Return a stream, whether it is on this node, the payload, and the settings here."""
        channel, is_near = self.connect(number)
        payload, settings = pickle.loads(channel.recv_bytes())
        lift_limit(channel)
        environment = {**os.environ, **portable(settings.environment)}
        os.environ[SERVER] = environment[SERVER] = ""  # so a script without a guard raises an error
        return channel, is_near, payload, replace(settings, environment=environment)


class Actor:
    """A worker in a process of Ray."""

    def serve(self, caller: Caller, number: int) -> None:
        """Serve the jobs of the trainer until it closes the stream; this process ends then."""
        channel, is_near, payload, settings = caller.join(number)
        run_worker(channel, [], payload, settings, NearLine if is_near else FarLine)


class NodeUnpickler(ScriptUnpickler):
    """Loads objects of the trainer on a node with variables, folders and packages of its own."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the object ``name`` of ``module``; refuse a script that this node lacks."""
        path = self._script.get("init_main_from_path")
        if module == "__main__" and path is not None and not os.path.isfile(path):
            msg = f"{name} cannot travel to a worker: it is defined in the script, and node "
            do = "Move it to a module that all nodes have, put the script on a disk that they "
            do += "share, or give local_workers=num_workers."
            raise NotPicklable(f"{msg}{platform.node()} has no {path}", do=do)
        try:
            thing = super().find_class(module, name)
        except UnguardedError:
            msg = "workers import the script, which began the loop again"
            do = 'Put the code that iterates under if __name__ == "__main__":.'
            raise NotPicklable(msg, do=do) from None
        return _adopt_settings if thing is adopt_settings else thing


def _leave(code: int) -> None:
    """End this process, unless the trainer ends it meanwhile, which Ray expects."""
    threading.Event().wait(_LEAVE_SECONDS)
    os._exit(code)


class NearLine(Line):
    """The line to a trainer on this node."""

    unpickler = NodeUnpickler
    leave = staticmethod(_leave)


class FarLine(StreamLine):
    """The line to a trainer on another node."""

    unpickler = NodeUnpickler
    leave = staticmethod(_leave)


def _adopt_settings(
    environment: Mapping[str, str], folder: str, path: tuple[str, ...], dtype: str, errors: Any
) -> None:
    """Adopt the settings of the trainer that hold here."""
    more = [place for place in path if place not in sys.path and os.path.exists(place)]
    variables = {**os.environ, **portable(environment)}
    folder = folder if os.path.isdir(folder) else ""
    adopt_settings(variables, folder, (*sys.path, *more), dtype, errors)
