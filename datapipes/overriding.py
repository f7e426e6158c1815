"""Policies that hold whatever the pipes of a chain ask for, given where the chain is used."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial

from ..core import Origin
from ..core.errors import SampleError
from ..graph import Pipe, Rule, Site, sweep, walk
from ..spatial import Policy
from .open_volume import OpenVolume
from .sampling import Sampling, asked_in, overriding_keys, refuse_conflict, refuse_no_policies


def override_rule(policies: Mapping[str, Policy], origin: Origin | None = None) -> Rule:
    """Return the rule that has volumes opened with these policies, which pipes cannot change."""
    return Rule(
        "sample by other policies", partial(_opens, policies), partial(_opened, policies, origin)
    )


def _opens(policies: Mapping[str, Policy], site: Site) -> Pipe | None:
    """Find a pipe that opens volumes by other policies."""
    pipe = site.pipe
    if not isinstance(pipe, OpenVolume):
        return None
    has = all(key in pipe.overriding and pipe.policies[key] == one for key, one in policies.items())
    return None if has else pipe


def _opened(policies: Mapping[str, Policy], origin: Origin | None, pipe: OpenVolume) -> OpenVolume:
    other = copy.copy(pipe)
    other.policies = {**pipe.policies, **policies}
    other.overriding = tuple(sorted({*pipe.overriding, *policies}))
    # A key that no sample has is told at the first one.
    other._named = {**pipe._named, "policies": tuple(other.policies)}
    if origin is not None:
        other._policies_from = {**pipe._policies_from, **dict.fromkeys(policies, origin)}
    return other


def sampled_by(
    policies: Mapping[str, Policy], override: bool, parent: Pipe, origin: Origin
) -> Pipe:
    """Return a chain whose volumes are opened with these policies; the chain itself stays.

    Raises
    ------
    PolicyConflict
        A pipe asked for something else, and ``override`` is False.
    """
    refuse_no_policies(policies, origin)
    keys = overriding_keys(policies, override, origin)
    if not policies:
        return parent
    if not any(isinstance(pipe, OpenVolume) for pipe in walk(parent)):
        msg = "policies= is for volumes, and no pipe before it opens any"
        raise SampleError(msg, do="Put open_volume() before it.").at(origin)
    if not keys:
        refuse_conflict(Sampling(tuple(asked_in(policies)), origin), origin, parent)
    return sweep(parent, (override_rule(policies, origin),)).after
