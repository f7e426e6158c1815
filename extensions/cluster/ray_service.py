"""The reading service whose workers run on the nodes of a Ray cluster."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import socket
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from ...batching.collate import usable_cores
from ...core.errors import BadSetting, MissingDependency, WorkerDied
from ...core.suggest import closest
from ...core.validate import as_number, count_text, validate_int
from ...graph import Pipe
from ...reading_services.multiprocessing import MultiProcessingReadingService
from ...reading_services.transport.slot_writer import HAS_SLOTS
from ...reading_services.work import PlannedWork, ReplicatedWork, Work
from ...reading_services.workers.payload import payload_of
from ...reading_services.workers.pool import PoolSettings, WorkerPool
from ...reading_services.workers.script import script_of_this_process

# Options of an actor that the pool leaves to the user.
_OPTIONS = [
    *("num_cpus", "num_gpus", "memory", "object_store_memory", "resources"),
    *("accelerator_type", "label_selector", "runtime_env"),
]
# The least that Ray takes: batches do not travel in its store.
_STORE_BYTES = 80 * 1024**2
_HOST_AND_PORT = re.compile(r"(?:ray://)?([^:/]+):(\d+)")
_SECONDS = 10.0  # for a connection to the cluster
# Ray's sockets have paths of 107 bytes at most, of which it needs some seventy.
_LONGEST = 20
# Ray turns 127.0.0.1 into the host's address, and leaves this one as it is.
_LOOPBACK = "127.0.0.2"
_TOKEN = "RAY_AUTH_TOKEN"
# Its loggers say that the cluster has a token, which is as it should be.
_LOGGER = logging.getLogger("ray._private.authentication")
# Ray remembers the first token of a process.
_OWN_TOKEN = secrets.token_hex(16)


class RayReadingService(MultiProcessingReadingService):
    """Realize batches on the nodes of a Ray cluster: batches and states are those of one process.

    Parameters
    ----------
    num_workers
        All workers. Each makes whole batches.
    local_workers
        Processes on the trainer's node, ``"auto"`` for as many as it has cores. The other workers
        are actors of Ray, on other nodes if there are any.
    address
        Address of the cluster, as in ``ray.init``. Without one: the cluster of this process, else
        that of ``RAY_ADDRESS``. If there is none, Ray starts on this machine until :meth:`stop`.
    resources
        Options of Ray for each actor. An example is ``{"num_cpus": 2}``.
    pool
        Name of actors that the ranks of one job share: each actor makes one batch of each rank in
        turn. All ranks give the same name and the same ``address``. None for actors of its own.
    shared_bytes
        Bytes of batches that each actor of ``pool`` keeps for other loaders, such as trials of a
        search. Chain, seed and epoch must be equal, and ``local_workers`` 0. 0 for none.
    prefetch_bytes
        Bytes of prefetched batches. The default is that of ``MultiProcessingReadingService``.
    max_restarts
        Workers per epoch that are replaced after a death. Others make their batches.
    late
        A batch that takes so many times the usual is made by a free worker, too. The first of both
        counts. 0 for never.
    others
        Further arguments of ``MultiProcessingReadingService``.

    Raises
    ------
    MissingDependency
        Ray is not installed.
    """

    def __init__(
        self,
        num_workers: int,
        local_workers: int | str = "auto",
        address: str | None = None,
        resources: Mapping[str, Any] | None = None,
        *,
        pool: str | None = None,
        shared_bytes: int = 0,
        prefetch_bytes: int | None = None,
        max_restarts: int = 3,
        late: float = 3.0,
        **others: Any,
    ) -> None:
        if find_spec("ray") is None:
            msg = "RayReadingService needs ray, which is not installed"
            raise MissingDependency(msg, do="pip install voxpipe[ray]")
        super().__init__(
            num_workers, prefetch_bytes=prefetch_bytes, max_restarts=max_restarts, **others
        )
        if local_workers == "auto":
            local_workers = min(self.num_workers, usable_cores())
        do = 'or "auto" for as many as this node has cores'
        local = validate_int("local_workers", local_workers, least=0, do=do)
        self.local_workers = min(local, self.num_workers)
        if self.local_workers < self.num_workers and not HAS_SLOTS:
            do = "Give local_workers=num_workers, or use MultiProcessingReadingService."
            raise BadSetting("actors of Ray need a trainer on Linux", do=do)
        if not late >= 0:
            raise ValueError(f"late is a number of times, or 0 for never, got {late}")
        self.address = address
        if pool is not None and not (isinstance(pool, str) and pool):
            raise ValueError(f"pool is the name of shared actors or None, got {pool!r}")
        self.pool = pool
        self.shared_bytes = validate_int("shared_bytes", shared_bytes, least=0)
        if shared_bytes and (pool is None or self.local_workers):
            raise ValueError("shared_bytes needs pool= and local_workers=0: actors keep batches")
        self.resources = dict(resources or {})
        for name in self.resources.keys() - set(_OPTIONS):
            words = closest(str(name), _OPTIONS, 0.5) or [", ".join(_OPTIONS)]
            raise ValueError(f"resources has no option {name!r} of an actor: give {words[0]}")
        as_number("resources['num_cpus']", self.resources.get("num_cpus", 1), least=0)
        self.late = late
        self._ray: Any = None

    def distribute(self, graph: Pipe) -> Work:
        """Split the graph; refuse objects that cannot travel to a worker."""
        work = super().distribute(graph)
        if isinstance(work, ReplicatedWork):  # no actor runs a whole graph
            count = min(self.num_workers, max(1, self.local_workers))
            return replace(work, workers=count, threads=self._threads(count))
        if self.num_workers > self.local_workers:
            payload_of(work, self.num_workers, script_of_this_process())
        return work

    def _workers_per_node(self, count: int) -> int:
        # Nodes are assumed to be alike.
        return min(count, max(self.local_workers, usable_cores()))

    def _threads(self, count: int) -> int:
        return super()._threads(max(1, min(count, self.local_workers)) if count else 0)

    def _pool_for(self, work: Work) -> WorkerPool:
        pool, needs_actors = self._pool, self.num_workers > self.local_workers
        if isinstance(work, PlannedWork) and pool is not None and needs_actors:
            from .ray_pool import RayPool

            if isinstance(pool, RayPool):
                pool.far_payload = self._far_payload(work)
            else:
                pool.is_broken = True
        return super()._pool_for(work)

    def _far_payload(self, work: Work) -> bytes:
        """Return the payload of actors; variables of this process stay here."""
        from .actor import portable

        script, environment = script_of_this_process(), portable(os.environ)
        return payload_of(work, self.num_workers, script, environment).data

    def _make_pool(self, settings: PoolSettings) -> WorkerPool:
        work = settings.work
        if isinstance(work, ReplicatedWork) or self.local_workers >= settings.workers:
            return super()._make_pool(settings)
        from .ray_pool import ActorOptions, RayPool

        self._begin_ray()
        threads = self.threads_per_worker or max(1, int(self.resources.get("num_cpus", 1)))
        payload = self._far_payload(work)
        local, resources = self.local_workers, self.resources
        pool = self.pool, self.shared_bytes
        options = ActorOptions(local, payload, threads, resources, *pool, self.late)
        return RayPool(settings, options)

    def _begin_ray(self) -> None:
        """Connect to the cluster, or start one, unless another service has done so."""
        import ray

        if not ray.is_initialized():
            _USERS.clear()
            address = self.address or os.environ.get("RAY_ADDRESS")
            is_local = address in (None, "local")
            if is_local and self.pool is not None and int(os.environ.get("WORLD_SIZE", 1)) > 1:
                msg = f"ranks can share pool={self.pool!r} only in a cluster that all of them reach"
                do = "Start it by `ray start --head`, and set RAY_ADDRESS for every rank."
                raise BadSetting(msg, do=do)
            _ENDS[:] = [_begin_local() if is_local else _connect(str(address))]
        elif not _USERS:
            return  # the user has connected this process, and ends that
        _USERS.add(id(self))
        self._ray = weakref.finalize(self, _leave_ray, id(self))

    def _end_epoch(self) -> None:
        if self.persistent_workers is not False:
            self._staying = True
        super()._end_epoch()

    def scale(self, num_workers: int) -> None:
        """Have so many workers from now on, also within an epoch; batches stay the same.

        The number holds for all loaders that have this service. It may not be lower than
        ``local_workers``. A pool of processes alone gets actors with the next epoch.
        """
        validate_int("num_workers", num_workers, least=max(1, self.local_workers))
        super().scale(num_workers)

    def _scale_pool(self, count: int) -> None:
        has_actors = self._pool is not None and self._pool.has_actors
        super()._scale_pool(count if has_actors else self.local_workers)

    def explain(self, work: Work) -> str:
        """Return the text of where each pipe runs, and of the workers on other nodes."""
        if isinstance(work, ReplicatedWork) or not work.workers:
            return super().explain(work)
        text, actors = work.explain(self.num_workers), self.num_workers - self.local_workers
        if not actors:
            return text
        local = count_text(self.local_workers, "process", "processes") + " of this node, and "
        local = local if self.local_workers else ""
        ranks = f", which ranks share as {self.pool!r}" if self.pool is not None else ""
        text = f"{text}\nworkers: {local}{count_text(actors, 'actor')} of Ray{ranks}"
        costs: Callable[[], str] = getattr(self._pool, "costs", str)
        return text + costs()

    def stop(self) -> None:
        """Stop the workers, and the cluster if this service has started it."""
        super().stop()
        if self._ray is not None:
            self._ray()
            self._ray = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_ray": None}


# Services that use the Ray that the first of them began, and the function that ends it.
_USERS: set[int] = set()
_ENDS: list[Callable[[], None]] = []


def _leave_ray(service: int) -> None:
    """End our Ray after the last service that uses it."""
    _USERS.discard(service)
    if not _USERS and _ENDS:
        _ENDS.pop()()


def _connect(address: str) -> Callable[[], None]:
    """Connect to a cluster, and return a function that ends the connection."""
    import ray

    try:
        if match := _HOST_AND_PORT.fullmatch(address):  # Ray itself tries for minutes
            socket.create_connection((match[1], int(match[2])), _SECONDS).close()
        ray.init(address, log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise WorkerDied(
            f"no Ray cluster answers at {address}: {error}",
            do="Start it by `ray start --head`, and give the address that this prints. Set "
            "RAY_AUTH_MODE=token here if it has a token.",
        ) from error
    process = os.getpid()
    return lambda: ray.shutdown() if os.getpid() == process else None


def _begin_local() -> Callable[[], None]:
    """Start Ray on this machine, and return a function that ends it and removes its files."""
    parent = tempfile.gettempdir()
    if len(parent) > _LONGEST and os.path.isdir("/tmp"):
        parent = "/tmp"
    folder = tempfile.mkdtemp(prefix="voxpipe-ray-", dir=parent)
    import ray

    # Ray writes a token into the home folder otherwise.
    is_ours = _TOKEN not in os.environ
    os.environ.setdefault(_TOKEN, _OWN_TOKEN)

    process = os.getpid()

    def end() -> None:
        if os.getpid() != process:  # a forked child
            return
        ray.shutdown()
        if is_ours:
            os.environ.pop(_TOKEN, None)
        shutil.rmtree(folder, ignore_errors=True)

    level = _LOGGER.level
    _LOGGER.setLevel(logging.ERROR)
    try:
        ray.init(
            address="local",
            namespace=f"voxpipe-{secrets.token_hex(4)}",
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=_STORE_BYTES,
            _temp_dir=folder,
            _node_ip_address=_LOOPBACK,
        )
    except BaseException:
        end()
        raise
    finally:
        _LOGGER.setLevel(level)
    return end
