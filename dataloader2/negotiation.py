"""The negotiation of a read scheme per key between a loader and its stores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..core.errors import BudgetExceeded
from ..datapipes.cost import AccessPattern, measure_access
from ..graph import Pipe
from ..reading_services import ReadingService
from ..reading_services.memory_budget import budgets
from ..reading_services.work import Work
from ..storage.disk_cache import cache_budget
from ..storage.ranges import CoalescePolicy
from ..storage.remote_ranges import MOST_BYTES
from ..volumes.choose_scheme import AHEAD_PART, choose_schemes, wanted_ahead
from ..volumes.chunks.chunk_cache import DEFAULT_BYTES
from ..volumes.scheme import Budget, ReadScheme, SchemeRefusal


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
