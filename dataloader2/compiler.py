"""Compile a chain for a loader: check, rewrite by adapters, distribute, negotiate the reads.

Each error is one sentence with the code to write.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from torch.utils.data import MapDataPipe

from ..adapters import Adapter, FuseSpatial, Lint, Profile
from ..core.call_site import shorten, warn
from ..core.errors import BudgetExceeded, GraphError, LintWarning
from ..core.settings import check_settings
from ..core.stream import MAX_EPOCH
from ..core.validate import validate_int
from ..datapipes.cost import AccessPattern, measure_access
from ..datapipes.item_numbers import with_whole_shuffles
from ..graph import Change, Pipe, clone, is_pipe, traits_of, verify, walk
from ..reading_services import ReadingService, ReadingServiceInterface
from ..reading_services.main_process_tail import MainProcessTail, detach_tail
from ..reading_services.memory_budget import budgets
from ..reading_services.torchdata_service import TorchdataService
from ..reading_services.work import Work
from ..storage.disk_cache import cache_budget
from ..storage.ranges import CoalescePolicy
from ..storage.remote_ranges import MOST_BYTES
from ..volumes.choose_scheme import AHEAD_PART, choose_schemes, wanted_ahead
from ..volumes.chunks.chunk_cache import DEFAULT_BYTES
from ..volumes.scheme import Budget, ReadScheme, SchemeRefusal
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


def substitutes_for(datapipe: Any) -> dict[str, str]:
    """Return the places of arguments that a loader does not have, for a chain."""
    opens = is_pipe(datapipe) and any(traits_of(pipe).opens for pipe in walk(datapipe))
    batch = "batch_patches" if opens else "batch"
    return {name: place.replace("{batch}", batch) for name, place in _ELSEWHERE.items()}


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
    order = changes_of_order(original, graph)
    graph = with_whole_shuffles(graph)
    body, tail = detach_tail(graph, service)
    work = service.distribute(body)
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


# The negotiation of a read scheme per key between a loader and its stores.


@dataclass(frozen=True)
class Negotiation:
    """The read schemes that a loader and its stores agree on, and keys without one."""

    schemes: Mapping[str, ReadScheme] = field(default_factory=dict)
    """By key; empty where nothing could be negotiated."""
    pattern: AccessPattern = field(default_factory=AccessPattern)
    """The access pattern of the chain, and the keys for which it is unknown."""
    small: Mapping[str, str] = field(default_factory=dict)
    """By key: advice for volumes so small that round trips are their main cost."""
    remote: bool = False
    """Whether volumes are at URLs, also those that are decoded onto the local disk."""

    def applied_to(self, work: Work) -> Work:
        """Return ``work`` with the cache, the read-ahead and the coalescing that were agreed on."""
        schemes, unknown = self.schemes.values(), self.pattern.unknown
        return replace(
            work,
            cache_bytes=DEFAULT_BYTES if unknown else sum(each.cache_bytes for each in schemes),
            ahead_bytes=None if unknown else sum(each.ahead_bytes for each in schemes),
            coalesce_policies={
                k: CoalescePolicy(s.gap, s.longest_run) for k, s in self.schemes.items()
            },
            remote=self.remote,
        )

    @property
    def advice(self) -> tuple[str, ...]:
        """Advice that spares reads, by key; once if keys agree."""
        texts = {scheme.advice: key for key, scheme in reversed(list(self.schemes.items()))}
        texts.update((text, key) for key, text in reversed(list(self.small.items())))
        return tuple(f"{key}: {text}." for text, key in texts.items() if text)

    def explain(self) -> str:
        """Return every scheme in words."""
        if self.pattern.unknown:
            return f"how voxels are read was not negotiated: {self.pattern.unknown}"
        lines = []
        for key, scheme in self.schemes.items():
            lines.append(f"{key}: {scheme.explain()}")
            if key in self.small:
                lines.append(f"  better: {self.small[key]}")
        left_out = self.pattern.left_out.items()
        return "\n".join([*lines, *(f"{key}: not negotiated: {why}" for key, why in left_out)])


def negotiate(
    graph: Pipe, service: ReadingService, work: Work, seed: int, epoch: int, batches: int
) -> Negotiation:
    """Let a chain, its stores and a service agree; reads the headers of a few volumes."""
    pattern = measure_access(graph, seed, epoch, batches)
    if pattern.unknown:
        return Negotiation(pattern=pattern)
    sources = [volume.located_source for volume in pattern.volumes.values()]
    urls = any(source is not None and not source.path for source in sources)
    stay = getattr(service, "persistent_workers", False)
    if urls if stay is None else stay:
        # Workers that stay keep their cache for the next epoch.
        again = {key: replace(d, is_scattered=True) for key, d in pattern.demands.items()}
        pattern = replace(pattern, demands=again)
    if hasattr(service, "budgets"):
        remote = any(layout.remote for layout in pattern.layouts.values())
        offers = service.budgets(work, remote=remote)
    else:
        offers = budgets(None, workers=0, batches_ahead=2, threads=1)
    return Negotiation(_schemes(pattern, offers), pattern, _small(pattern), urls)


def _small(pattern: AccessPattern) -> dict[str, str]:
    """Return advice for small remote volumes in chunks, which one request could read whole."""
    texts = {}
    for key, layout in pattern.layouts.items():
        size = math.prod(layout.shape) * layout.itemsize
        every = size * layout.volumes
        if layout.remote and layout.chunk and size <= MOST_BYTES and every <= cache_budget():
            texts[key] = (
                f"volumes of {size / 1e6:.3g} MB are read by URL, in chunks: .cache(FOLDER) after "
                "open_volume() keeps them on the local disk from the first epoch on, as .nii.gz "
                "are; storing such small volumes in chunks spares nothing"
            )
    return texts


def _schemes(pattern: AccessPattern, offers: tuple[Budget, ...]) -> dict[str, ReadScheme]:
    """Return the schemes under the first budget that suffices, as the stores can follow them."""
    most = offers[-1].memory_bytes
    for offer in offers:
        budget = _with_ahead(pattern, offer, most)
        try:
            schemes = choose_schemes(pattern.layouts, pattern.demands, budget)
            break
        except BudgetExceeded:
            if offer is offers[-1]:
                raise
    answers = {}
    for key, scheme in schemes.items():
        answer = pattern.volumes[key].adjust(scheme)
        if isinstance(answer, SchemeRefusal):
            answer = scheme.without_cache(answer.reason)
        elif answer.projected_bytes > scheme.projected_bytes:
            answer = scheme.without_cache(
                f"{pattern.volumes[key].name} asked for {answer.projected_bytes} bytes of memory "
                f"and was offered {scheme.projected_bytes}"
            )
        answers[key] = answer
    return answers


def _with_ahead(pattern: AccessPattern, offer: Budget, most: int) -> Budget:
    """Return a default offer, plus the bytes that are fetched for later patches."""
    # Without that a bucket would be slow; a user's own budget includes everything.
    if not offer.thrifty:
        return offer
    sharing = max(1, sum(layout.remote for layout in pattern.layouts.values()))
    alone = replace(offer, sharing=sharing)
    ahead = sum(
        wanted_ahead(pattern.layouts[k], pattern.demands[k], alone) for k in pattern.layouts
    )
    # By as much as lets this be the part of the room that is for it.
    wider = offer.memory_bytes + AHEAD_PART * offer.processes * ahead
    return replace(offer, memory_bytes=min(wider, most))
