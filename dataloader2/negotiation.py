"""Which read schemes a loader and its stores have agreed on, one per key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..core.errors import BudgetExceeded
from ..datapipes.access_pattern import AccessPattern, measure_access
from ..graph import Pipe
from ..reading_services import ReadingService
from ..reading_services.memory_budget import budgets
from ..reading_services.reading_service import Budgeting
from ..reading_services.work import Work
from ..storage.disk_cache import cache_budget
from ..storage.ranges import CoalescePolicy
from ..storage.remote_ranges import MOST_BYTES
from ..volumes.chunks.chunk_cache import DEFAULT_BYTES
from ..volumes.negotiate import AHEAD_PART, negotiate_all, wanted_ahead
from ..volumes.scheme import Budget, ReadScheme, Refused


@dataclass(frozen=True)
class Negotiation:
    """The read schemes that a loader and its stores agree on, and what has none."""

    schemes: Mapping[str, ReadScheme] = field(default_factory=dict)
    """By key; empty where nothing could be negotiated."""
    sampled_anew: Mapping[str, str] = field(default_factory=dict)
    """By key: after what its voxels are sampled anew."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """By key: why it has no scheme."""
    unknown: str = ""
    """Why not."""
    small: Mapping[str, str] = field(default_factory=dict)
    """By key: what suits volumes so small that round trips are what they cost."""
    remote: bool = False
    """Whether volumes lie behind URLs, also those that are decoded onto the local disk."""

    @property
    def cache_bytes(self) -> int:
        """Decoded chunks that each process may keep, in bytes."""
        if self.unknown:
            return DEFAULT_BYTES
        return sum(scheme.cache_bytes for scheme in self.schemes.values())

    @property
    def ahead_bytes(self) -> int | None:
        """What each process may fetch for later patches and keep, in bytes; None: as usual."""
        return None if self.unknown else sum(scheme.ahead_bytes for scheme in self.schemes.values())

    @property
    def joinings(self) -> dict[str, CoalescePolicy]:
        """Which ranges become one request, by key."""
        return {key: CoalescePolicy(s.gap, s.longest_run) for key, s in self.schemes.items()}

    def applied_to(self, work: Work) -> Work:
        """Return ``work`` with the cache, the read-ahead and the coalescing that were agreed on."""
        return replace(
            work,
            cache_bytes=self.cache_bytes,
            ahead_bytes=self.ahead_bytes,
            joinings=self.joinings,
            remote=self.remote,
        )

    @property
    def advice(self) -> tuple[str, ...]:
        """What would spare reads, by key; once where keys agree."""
        texts = {scheme.advice: key for key, scheme in reversed(list(self.schemes.items()))}
        texts.update((text, key) for key, text in reversed(list(self.small.items())))
        return tuple(f"{key}: {text}." for text, key in texts.items() if text)

    def explain(self) -> str:
        """Return every scheme in words."""
        if self.unknown:
            return f"how voxels are read was not negotiated: {self.unknown}"
        lines = []
        for key, scheme in self.schemes.items():
            lines.append(f"{key}: {scheme.explain()}")
            if by := self.sampled_anew.get(key):
                lines.append(f"  not fused: read for what is sampled anew after {by}")
            if key in self.small:
                lines.append(f"  better: {self.small[key]}")
        lines += [f"{key}: not negotiated: {why}" for key, why in self.left_out.items()]
        return "\n".join(lines)


def negotiate(
    graph: Pipe, service: ReadingService, work: Work, seed: int, epoch: int, batches: int
) -> Negotiation:
    """Let a chain, its stores and a service agree; reads the headers of a few volumes.

    Parameters
    ----------
    graph, service, work
        What runs where.
    seed, epoch, batches
        The run, and how many batches of it were delivered.

    Raises
    ------
    BudgetExceeded
        What is needed in any case exceeds the memory that the service may take.
    """
    asked = measure_access(graph, seed, epoch, batches)
    if asked.unknown:
        return Negotiation(unknown=asked.unknown)
    urls = any(v.located is not None and not v.located.path for v in asked.volumes.values())
    stay = getattr(service, "persistent_workers", False)
    if urls if stay is None else stay:
        # What they keep in one epoch they have in the next.
        again = {key: replace(d, scattered=True) for key, d in asked.demands.items()}
        asked = replace(asked, demands=again)
    if isinstance(service, Budgeting):
        remote = any(layout.remote for layout in asked.layouts.values())
        offers = service.budgets(work, remote=remote)
    else:
        offers = budgets(None, workers=0, batches_ahead=2, threads=1)
    schemes = agree(asked, offers)
    return Negotiation(
        schemes, asked.sampled_anew, asked.left_out, small=_small(asked), remote=urls
    )


def _small(asked: AccessPattern) -> dict[str, str]:
    """Return what is better for volumes in chunks behind URLs, of which one request brings all."""
    found = {}
    for key, layout in asked.layouts.items():
        size = math.prod(layout.shape) * layout.itemsize
        every = size * layout.volumes
        if layout.remote and layout.chunk and size <= MOST_BYTES and every <= cache_budget():
            found[key] = (
                f"volumes of {size / 1e6:.3g} MB lie behind URLs, in chunks: .recache() after "
                "open_volume() keeps them on the local disk from the first epoch on, as .nii.gz "
                "are; storing such small volumes in chunks spares nothing"
            )
    return found


def agree(asked: AccessPattern, offers: tuple[Budget, ...]) -> dict[str, ReadScheme]:
    """Return the schemes under the first budget that suffices, as the stores can follow them."""
    *but_last, last = (_with_ahead(asked, offer, offers[-1].memory_bytes) for offer in offers)
    for offer in but_last:
        try:
            return _adjusted(asked, negotiate_all(asked.layouts, asked.demands, offer))
        except BudgetExceeded:
            continue
    return _adjusted(asked, negotiate_all(asked.layouts, asked.demands, last))


def _with_ahead(asked: AccessPattern, offer: Budget, most: int) -> Budget:
    """Return a default offer with what is fetched for later patches beside it.

    It is little, for what is kept; a bucket would be slow if that had to be shared. What a user
    grants is for everything.
    """
    if not offer.thrifty:
        return offer
    sharing = max(1, sum(layout.remote for layout in asked.layouts.values()))
    alone = replace(offer, sharing=sharing)
    ahead = sum(wanted_ahead(asked.layouts[k], asked.demands[k], alone) for k in asked.layouts)
    # By as much as lets this be the part of the room that is for it.
    wider = offer.memory_bytes + AHEAD_PART * offer.processes * ahead
    return replace(offer, memory_bytes=min(wider, most))


def _adjusted(asked: AccessPattern, schemes: Mapping[str, ReadScheme]) -> dict[str, ReadScheme]:
    followed = {}
    for key, scheme in schemes.items():
        answer = asked.volumes[key].adjust(scheme)
        if isinstance(answer, Refused):
            answer = scheme.without_cache(answer.reason)
        elif answer.projected > scheme.projected:
            answer = scheme.without_cache(
                f"{asked.volumes[key].name} asked for {answer.projected} bytes of memory and was "
                f"offered {scheme.projected}"
            )
        followed[key] = answer
    return followed
