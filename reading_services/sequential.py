"""One reading service after another: ranks first, then the workers of each rank."""

from __future__ import annotations

import copy
from typing import Any

from ..core.call_site import shorten
from ..graph import Pipe
from ..volumes.scheme import Budget
from .distributed import DistributedReadingService
from .in_process import InProcessReadingService
from .multiprocessing import MultiProcessingReadingService
from .place import Place
from .reading_service import Budgeting, Checkpointing, Epoch, ReadingService, Refusing, Restoring
from .torchdata_service import ReadingServiceInterface, TorchdataService
from .work import Work

_DO = (
    "Give SequentialReadingService(DistributedReadingService(), "
    "MultiProcessingReadingService(num_workers=...))."
)


class SequentialReadingService:
    """Divide batches among ranks, and run each rank's part in workers of its own.

    Parameters
    ----------
    services
        A :class:`DistributedReadingService`, then where its part runs:
        ``SequentialReadingService(DistributedReadingService(), MultiProcessingReadingService(4))``.
    """

    def __init__(self, *services: Any) -> None:
        self.services = tuple(services)
        self._check()
        ranks, inner = self.services[0], self.services[-1]
        if isinstance(inner, ReadingServiceInterface):
            inner = TorchdataService(inner)
        self._divides = isinstance(ranks, DistributedReadingService)
        self._run: Any = ranks.over(inner) if self._divides and ranks is not inner else inner

    def _check(self) -> None:
        runs = (InProcessReadingService, MultiProcessingReadingService, ReadingServiceInterface)
        kinds = [
            "rank" if isinstance(s, DistributedReadingService) else "run" for s in self.services
        ]
        strange = [
            s for s in self.services if not isinstance(s, (DistributedReadingService, *runs))
        ]
        if strange:
            raise TypeError(
                f"a sequence is made of reading services, got {shorten(strange[0])}; {_DO}"
            )
        if kinds not in (["rank"], ["run"], ["rank", "run"]):
            names = ", ".join(type(s).__name__ for s in self.services) or "nothing"
            msg = "a sequence is first what divides batches among ranks, then what runs them"
            raise ValueError(f"{msg}; got {names}. {_DO}")
        if self.services[-1].__dict__.get("order") == "as_ready" and "rank" in kinds:
            msg = 'order="as_ready" gives ranks parts of different batches at a time'
            raise ValueError(f'{msg}; give MultiProcessingReadingService(order="plan")')

    @property
    def _inner(self) -> Any:
        """The last of the services, which runs the graph."""
        return self._run.inner if self._divides else self._run

    @property
    def persistent_workers(self) -> bool | None:
        """Whether workers stay from epoch to epoch; None where that is left to what they read."""
        stay: bool | None = getattr(self._run, "persistent_workers", False)
        return stay

    @property
    def num_workers(self) -> int:
        """Workers of this rank."""
        return int(getattr(self._run, "num_workers", 0))

    def budgets(self, work: Work | None = None, *, remote: bool = False) -> tuple[Budget, ...]:
        """Return what reading ``work`` may spend, the first choice first.

        ``remote`` says that its volumes lie behind URLs.
        """
        run = self._run if isinstance(self._run, Budgeting) else InProcessReadingService()
        return run.budgets(work, remote=remote)

    def checkpoint(self) -> bytes | None:
        """Return the state of the last service; None if it has none."""
        return self._inner.checkpoint() if isinstance(self._inner, Checkpointing) else None

    def restore(self, state: bytes) -> None:
        """Let the next epoch begin from a state of the last service.

        Raises
        ------
        TypeError
            If it has none.
        """
        self.refuse_state()
        self._inner.restore(state)

    def refuse_state(self) -> None:
        """Raise ``TypeError`` if the last service has no state of its own."""
        if not isinstance(self._inner, Restoring):
            raise TypeError(f"the state holds one of a reading service, and {self!r} has none")
        if isinstance(self._inner, Refusing):
            self._inner.refuse_state()

    def distribute(self, graph: Pipe) -> Work:
        """Split the graph, and take this rank's part."""
        work: Work = self._run.distribute(graph)
        return work

    def divided(self, work: Work) -> Work:
        """Return what this rank does of ``work``, as far as ranks are known by now."""
        return self._run.divided(work) if self._divides else work

    def epoch(self, work: Work, seed: int, epoch: int, place: Place) -> Epoch:
        """Start one pass over this rank's part of the batches that ``place`` does not hold."""
        running: Epoch = self._run.epoch(work, seed, epoch, place)
        return running

    def shares(self, work: Work) -> int:
        """Return among how many processes a graph is divided that cannot be split; else 0."""
        return int(self._run.shares(work))

    def explain(self, work: Work) -> str:
        """Return which part this rank makes, and where what runs."""
        return str(self._run.explain(work))

    def alone(self) -> ReadingService:
        """Return a service that makes this rank's part and waits for no other."""
        service: ReadingService = self._run.alone() if self._divides else copy.copy(self._run)
        return service

    def stop(self) -> None:
        """Stop the workers first, then what ranks hold."""
        self._run.stop()

    def __getstate__(self) -> dict[str, Any]:
        # A copy belongs to another loader: its services are copies too. Of one in torchdata's form
        # ``_run`` makes the copy that runs; another would finalize what they share.
        services = (
            s if isinstance(s, ReadingServiceInterface) else copy.copy(s) for s in self.services
        )
        return {**self.__dict__, "services": tuple(services), "_run": copy.copy(self._run)}

    def __repr__(self) -> str:
        return f"SequentialReadingService({', '.join(map(repr, self.services))})"
