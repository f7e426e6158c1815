"""Adapters that overrule what a chain asks for: how voxels are sampled, whether pipes shuffle."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.call_site import caller
from ..core.errors import SampleError
from ..datapipes.iter import OpenVolume
from ..datapipes.sampling import refuse_no_policies
from ..graph import Pipe, RewriteResult, Rule, Site, describe, rebuild
from ..graph.rewrite import Change
from ..spatial import Policy
from .adapter import Adapter


class Override(Adapter):
    """Open volumes with policies that hold whatever the pipes of the chain ask for.

    ::

        open_volume()                      open_volume(), with the policies
        rotate(15, mode="cubic")     →     rotate(15, mode="cubic"), which changes them no more

    As MONAI's ``overrides``. Draws, shapes and affines stay the same; other volumes are sampled as
    the chain says.

    Parameters
    ----------
    policies
        ``Policy`` by key; all of it holds, its padding and fill too.

    Raises
    ------
    SampleError
        There is none among them; or, at the first sample, a key that it does not have.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.zeros((8, 8, 8))}]).open_volume().rotate(15, mode="cubic")
    >>> next(iter(Override({"image": Policy("nearest")})(pipe)))["image"].policy.mode
    'nearest'
    """

    def __init__(self, policies: Mapping[str, Policy]) -> None:
        origin = caller("Override(...)")
        if not policies:
            msg = "Override() is given no policies"
            raise SampleError(msg, do='Write Override({"image": vp.Policy(...)}).').at(origin)
        refuse_no_policies(policies, origin)
        self.policies = dict(policies)
        self._origin = origin

    def rules(self) -> Sequence[Rule]:
        return (Rule("sample by other policies", self._other_source, self._replace_source),)

    def _other_source(self, site: Site) -> OpenVolume | None:
        pipe, own = site.pipe, self.policies
        if not isinstance(pipe, OpenVolume):
            return None
        keeps = (key in pipe.overriding and pipe.policies[key] == own[key] for key in own)
        return None if all(keeps) else pipe

    def _replace_source(self, pipe: OpenVolume) -> OpenVolume:
        return pipe.with_overriding(self.policies, self._origin)


class Shuffle(Adapter):
    """Enable or disable every pipe that shuffles.

    Parameters
    ----------
    enable
        True: all shuffle; where there is none, one is appended with a warning. False: none does.
        None: as they are.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> chain = IterableWrapper(range(5)).shuffle()
    >>> list(Shuffle(False)(chain))
    [0, 1, 2, 3, 4]
    """

    def __init__(self, enable: bool | None = True) -> None:
        if enable not in (True, False, None):
            raise ValueError(f"enable is True, False or None, got {enable!r}")
        self.enable = enable

    def rewrite(self, pipe: Pipe) -> RewriteResult:
        if self.enable is None:
            return RewriteResult(pipe, pipe)
        changes = []

        def switch(old: Pipe, new: Any) -> Pipe:
            if hasattr(type(old), "set_shuffle") and hasattr(type(old), "set_seed"):
                new = copy.copy(new).set_shuffle(shuffle=self.enable)
                became = f"shuffles: {self.enable}"
                changes.append(Change("shuffle", describe(old), became=became))
            return new  # type: ignore[no-any-return]

        sink: Any = rebuild(pipe, switch)
        if self.enable and not changes:
            what = "Shuffle found no shuffle() in the graph and appends one: batches are shuffled"
            warnings.warn(f"{what}; put .shuffle() where it belongs", stacklevel=3)
            sink = sink.shuffle()
            changes.append(Change("shuffle", describe(pipe), became=describe(sink)))
        return RewriteResult(pipe, sink if changes else pipe, tuple(changes))

    def __repr__(self) -> str:
        return f"Shuffle({self.enable})"
