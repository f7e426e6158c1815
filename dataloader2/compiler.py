"""Compile a chain for a loader: check the arguments, rewrite it by adapters, distribute it.

Each error is one sentence with the code to write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch.utils.data import MapDataPipe

from ..adapters import Adapter, FuseSpatial, Lint, Profile
from ..core.call_site import shorten, warn
from ..core.errors import GraphError, LintWarning
from ..core.settings import check_settings
from ..core.stream import MAX_EPOCH
from ..core.validate import validate_int
from ..graph import Change, Pipe, clone, is_pipe, traits_of, verify, walk
from ..reading_services import ReadingService, ReadingServiceInterface
from ..reading_services.main_process_tail import MainProcessTail, detach_tail
from ..reading_services.torchdata_service import TorchdataService
from ..reading_services.work import Work
from .state import changes_of_order

AdapterLike: TypeAlias = "Callable[[Pipe], Pipe]"  # rewrites a graph

_SERVICE = "reading_service=MultiProcessingReadingService(num_workers={value})"
# Arguments of torch's DataLoader that people give out of habit, and where they belong here.
_ELSEWHERE = {
    "num_workers": _SERVICE,
    "worker_prefetch_cnt": "MultiProcessingReadingService(worker_prefetch_cnt=...)",
    "prefetch_factor": "MultiProcessingReadingService(worker_prefetch_cnt=...)",
    "persistent_workers": "MultiProcessingReadingService(persistent_workers=...)",
    "multiprocessing_context": "MultiProcessingReadingService(multiprocessing_context=...)",
    "slot_bytes": "MultiProcessingReadingService(slot_bytes=...)",
    "memory_bytes": "MultiProcessingReadingService(memory_bytes=...)",
    "batch_size": ".{batch}({value}) at the end of the chain",
    "drop_last": ".{batch}(..., drop_last={value}) at the end of the chain",
    "collate_fn": ".{batch}(...).collate(...) at the end of the chain",
    "shuffle": ".shuffle() in the chain",
    "sampler": ".shuffle() in the chain; seed=... decides its order",
    "batch_sampler": ".shuffle() and .{batch}(...) in the chain",
    "generator": "seed=...",
    "worker_init_fn": "MultiProcessingReadingService(worker_init_fn=...)",
    "timeout": "the adapter Timeout(item=...)",
    "pin_memory": "nothing: slots are page-locked once CUDA is in use",
    "adapters": "datapipe_adapter_fn=[...]",
}
_METHODS = ("distribute", "epoch", "shares", "explain", "stop")


def refuse_unknown(others: Mapping[str, Any], datapipe: Any = None) -> None:
    """Raise ``TypeError`` for arguments that a loader does not have, saying where they belong."""
    opens = is_pipe(datapipe) and any(traits_of(pipe).opens for pipe in walk(datapipe))
    batch = "batch_patches" if opens else "batch"
    for name, value in others.items():
        place = _ELSEWHERE.get(name, "").format(value=shorten(value), batch=batch)
        has = "datapipe, datapipe_adapter_fn, reading_service, seed and fuse"
        msg = f"DataLoader2 has no {name}; " + (f"give {place}" if place else f"it takes {has}")
        raise TypeError(msg)


def check_service(service: Any) -> Any:
    """Return a reading service; ``TypeError`` if it is none."""
    if isinstance(service, type):
        msg = f"a reading service is an object: write {service.__name__}() instead of the class"
        raise TypeError(msg)
    if isinstance(service, ReadingServiceInterface) and not hasattr(service, "distribute"):
        return TorchdataService(service)
    if service is None or all(callable(getattr(service, name, None)) for name in _METHODS):
        return service
    is_count = isinstance(service, int) and not isinstance(service, bool)
    suggestion = _SERVICE.format(value=service if is_count else "...")
    msg = f"reading_service is a reading service or None, got {shorten(service)}; give {suggestion}"
    raise TypeError(msg)


def check_epoch(epoch: Any) -> int:
    """Return the number of an epoch; ``TypeError`` or ``ValueError`` if it is none."""
    number = validate_int("epoch", epoch, least=0)
    # An error for a number below the least does not name the most, which no count reaches.
    return number if number < MAX_EPOCH else validate_int("epoch", number, least=0, below=MAX_EPOCH)


def iterable(datapipe: Any) -> Pipe:
    """Return a chain; a map-style one in the order of its indices, as torchdata does."""
    if isinstance(datapipe, MapDataPipe):
        pipe: Pipe = datapipe.to_iter_datapipe()
        return pipe
    if not is_pipe(datapipe):
        msg = f"DataLoader2 takes the last pipe of a chain first, got {shorten(datapipe)}"
        raise GraphError(msg, do=_advice(datapipe))
    return datapipe  # type: ignore[no-any-return]


def _advice(thing: Any) -> str:
    if isinstance(thing, type):
        return f"Give a pipe, and not its class: {thing.__name__}(...)."
    if callable(getattr(thing, "distribute", None)) or hasattr(thing, "initialize"):
        return "That is a reading service: give it as reading_service=, after the chain."
    if isinstance(thing, Iterable) or hasattr(thing, "__getitem__"):
        return "Wrap it: IterableWrapper(...) of voxpipe.datapipes.iter."
    return "Begin a chain with list_cases(), from_cases() or IterableWrapper()."


def adapter_list(adapters: AdapterLike | Iterable[AdapterLike] | None) -> list[AdapterLike]:
    """Return one adapter or several as a list; ``TypeError`` if they are none."""
    if adapters is None:
        return []
    thing: Any = adapters
    see = "See voxpipe.adapters for those that there are."
    if isinstance(thing, str):
        raise TypeError(f"an adapter is an object, got its name {thing!r}. {see}")
    if not callable(thing) and not isinstance(thing, Iterable):
        msg = f"adapters come second, one or a list; got {type(thing).__name__}"
        raise TypeError(f"{msg}. A reading service is the third argument: reading_service=.")
    every = [thing] if callable(thing) and not isinstance(thing, type) else list(thing)
    for adapter in every:
        if isinstance(adapter, type):
            msg = f"an adapter is an object: write {adapter.__name__}() instead of the class"
            raise TypeError(msg)
        if not callable(adapter):
            msg = f"an adapter is called with the graph and returns one, got {shorten(adapter)}"
            raise TypeError(f"{msg}. {see}")
    return every


@dataclass(frozen=True)
class CompiledChain:
    """A chain that is ready to run."""

    adapters: tuple[AdapterLike, ...]
    whole: Pipe
    graph: Pipe  # run by the service
    tail: MainProcessTail  # run in this process, after the graph
    changes: tuple[Change, ...]
    work: Work  # the distribution of the graph
    order: str  # changes of the order of items by adapters; empty if none


def compile_chain(
    original: Pipe, adapters: Sequence[AdapterLike], service: ReadingService, fuse: bool
) -> CompiledChain:
    """Rewrite a copy of a verified chain, check it after each adapter, and distribute it."""
    check_settings()
    graph = clone(original)
    changes: list[Change] = []
    for adapter in _with_fusion(adapters) if fuse else adapters:
        if isinstance(adapter, Adapter) and type(adapter).__call__ is Adapter.__call__:
            result = adapter.rewrite(graph)
            changes += result.changes
            graph = _verify(adapter, result.after)
        else:  # a function, or a subclass in torchdata's form
            graph = _verify(adapter, adapter(graph))
    body, tail = detach_tail(graph, service)
    work, order = service.distribute(body), changes_of_order(original, graph)
    for lint in (each for each in adapters if isinstance(each, Lint)):
        if mistake := lint.mistake_of_workers(body, getattr(work, "workers", 0)):
            warn(str(mistake), LintWarning)
    return CompiledChain(tuple(adapters), graph, body, tail, tuple(changes), work, order)


def _with_fusion(adapters: Sequence[AdapterLike]) -> list[AdapterLike]:
    """Insert the fusion before adapters that read its result, unless it is there already."""
    late = (i for i, each in enumerate(adapters) if isinstance(each, (Lint, Profile)))
    place = next(late, len(adapters))
    before, after = adapters[:place], adapters[place:]
    fusion = [] if any(isinstance(each, FuseSpatial) for each in before) else [FuseSpatial()]
    return [*before, *fusion, *after]


def _verify(adapter: AdapterLike, graph: Any) -> Pipe:
    if not is_pipe(graph):
        raise GraphError(
            f"the adapter {shorten(adapter)} returned {shorten(graph)}, and not a datapipe",
            do="An adapter returns the graph that is to run, the one that it was given if it has "
            "nothing to do.",
        )
    return verify(graph)
