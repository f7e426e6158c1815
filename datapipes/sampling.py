"""The sampling that a pipe asks for: interpolation, padding and fill, for all volumes or by key."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from ..core import CallSite, Sample
from ..core.call_site import shorten
from ..core.errors import PolicyConflict, SampleError, missing_key_hint
from ..core.suggest import closest
from ..core.validate import as_flag
from ..graph import Pipe, parents_of, walk
from ..spatial import LazyPatch, Policy
from ..spatial.lazy.stack import StackedPatch
from ..spatial.ops.op import is_hard

SAMPLING_ARGUMENTS = ("mode", "padding", "fill", "dtype", "antialias")
"""Arguments that every spatial pipe has besides its own."""
EVERY_INTENSITY = ""  # all volumes that are not labels; their sampling is only changed by key


@dataclasses.dataclass(frozen=True)
class Sampling:
    """One pipe's changes of policies; empty if there are none."""

    changes: tuple[tuple[str, str, Any], ...] = ()  # (key, field of Policy, value)
    origin: CallSite | None = dataclasses.field(default=None, compare=False)
    """Where the user wrote it."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any], origin: CallSite) -> Sampling:
        """Return the changes by ``SAMPLING_ARGUMENTS``; each is a value or a mapping by key."""
        changes: list[tuple[str, str, Any]] = []
        for field in SAMPLING_ARGUMENTS:
            value = arguments.get(field)
            if isinstance(value, (tuple, list)):
                by_key = f"{field}={{'image': ..., 'label': ...}}"
                msg = f"{field} is one value, or one by key: write {by_key}; got {value!r}"
                raise ValueError(msg)
            if isinstance(value, Mapping):
                changes += [(key, field, v) for key, v in value.items()]
            elif value is not None:
                changes.append((EVERY_INTENSITY, field, value))
        # Unknown names are refused here, where they were written.
        for place in dict.fromkeys(key for key, _, _ in changes):
            Policy(**{field: value for key, field, value in changes if key == place})
        return cls(tuple(changes), origin)

    def refuse_unknown(self, keys: Collection[str], case: str) -> None:
        """Raise if a key is not among those of the volumes of a sample."""
        for key, field, _ in self.changes:
            if key != EVERY_INTENSITY and key not in keys:
                raise unknown_key(field, key, keys).at(self.origin, case)

    def _of(self, key: str, patch: LazyPatch) -> dict[str, Any]:
        return {
            field: value
            for where, field, value in self.changes
            if where == key or (where == EVERY_INTENSITY and patch.kind != "label")
        }

    def padding(self, key: str, patch: LazyPatch) -> str:
        """Return how ``patch`` is padded after this pipe."""
        if patch.is_fixed:
            return patch.policy.padding
        mode: str = self._of(key, patch).get("padding", patch.policy.padding)
        return mode

    def of_sample(self, sample: Sample) -> Sample:
        """Return a sample whose lazy patches are sampled as they are after this pipe."""
        lazy = {key: patch for key, patch in sample.items() if isinstance(patch, LazyPatch)}
        self.refuse_unknown(lazy, sample.case)
        patches = {key: self.apply(key, patch) for key, patch in lazy.items()}
        return sample.with_data(**patches)

    def apply(self, key: str, patch: LazyPatch) -> LazyPatch:
        """Return ``patch`` as it is sampled after this pipe."""
        if isinstance(patch, StackedPatch):
            return patch.with_members([self.apply(key, member) for member in patch.members])
        if patch.is_fixed:
            return patch
        mine = self._of(key, patch)
        if not mine:
            return patch
        before, policy = patch.policy, self._policy(key, patch, mine)
        new_patch = patch.with_pending(patch.pending, policy)
        was_constant = before.padding == "constant"
        same = was_constant and before.fill == policy.fill and patch.filled_after >= 0
        if same or not ("fill" in mine or (policy.padding == "constant" and not was_constant)):
            return new_patch
        # The fill of a pipe is a value at its place, after the value ops before it.
        return dataclasses.replace(new_patch, filled_after=len(patch.values))

    def _policy(self, key: str, patch: LazyPatch, mine: Mapping[str, Any]) -> Policy:
        try:
            policy = dataclasses.replace(patch.policy, **mine)
        except ValueError as error:
            msg = f"{key!r} is a {patch.kind} of mode={patch.policy.mode!r}: {error}"
            do = "Leave antialias out for it, or give it mode='linear'."
            raise PolicyConflict(msg, do=do).at(self.origin) from None
        hard = any(is_hard(step.op) for step in patch.pending.steps)
        if "fill" in mine and policy.padding != "constant" and not hard:
            msg = f"fill={policy.fill:g} is for padding='constant', but {key!r} has "
            msg += f"padding={policy.padding!r}, which does not use it"
            do = "Write padding='constant' beside it."
            raise PolicyConflict(msg, do=do).at(self.origin)
        if "fill" in mine and patch.kind == "label" and not policy.fill.is_integer():
            msg = f"fill={policy.fill:g} is no label, and {key!r} holds labels"
            raise PolicyConflict(msg, do="Give a whole number.").at(self.origin)
        return policy


def unknown_key(argument: str, key: str, keys: Collection[str]) -> SampleError:
    """Return the error of an argument that names a volume which a sample does not have."""
    have = ", ".join(map(repr, keys))
    msg = f"{argument}= speaks of {key!r}, but the volumes of this sample are {have}"
    return SampleError(msg, do=nearest_key(argument, key, keys))


def nearest_key(argument: str, key: str, keys: Collection[str]) -> str:
    """Return the cure for a missing key."""
    near = closest(key, keys, 0.5)
    if near:
        return f"Did you mean {near[0]!r}?"
    return missing_key_hint(key, f"Name one of them in {argument}=.")


def refuse_conflict(sampling: Sampling, origin: CallSite, parent: Pipe) -> None:
    """Raise if a pipe of the same plan has set another policy for the same volumes."""
    # A plan is resampled once, so it has one policy; the last one would silently replace the first.
    # A flush begins a new plan.
    if not sampling.changes:
        return
    openers = [pipe for pipe in walk(parent) if isinstance(vars(pipe).get("policies"), Mapping)]
    labels = frozenset(label for pipe in openers for label in vars(pipe).get("label_keys") or ())
    for pipe, flushed_keys, regroups in _of_one_plan(parent):
        for given_key, other_field, other in sampling_changes(pipe):
            keys = [given_key]  # under the names that pipes after it have given
            for after in reversed(regroups):
                keys = [new for one in keys for new in (after.new_keys(one) if one else (one,))]
            for (key, field, value), other_key in product(sampling.changes, keys):
                # Two keys, each of which may stand for all intensities, may mean one volume.
                name = key or other_key
                both = EVERY_INTENSITY in (key, other_key) and name not in labels
                same = field == other_field and (key == other_key or both)
                if same and name not in flushed_keys and value != other:
                    msg = f"{field}={value!r} here, but {field}={other!r} at {pipe.origin}"
                    do = "One plan is sampled once: give the same value, or give it once; or put "
                    do += "flush() between them, which interpolates twice."
                    raise PolicyConflict(msg, do=do).at(origin)


def sampling_changes(pipe: Pipe) -> Sequence[tuple[str, str, Any]]:
    """Return a pipe's changes of policies; those of ``policies=`` that differ from defaults."""
    earlier = getattr(pipe, "sampling", None) if hasattr(type(pipe), "sampling") else None
    if isinstance(earlier, Sampling):
        return earlier.changes
    policies = vars(pipe).get("policies")
    if not isinstance(policies, Mapping):
        return ()
    usual, overriding = Policy(), vars(pipe).get("overriding", ())
    return [
        (key, field, getattr(policy, field))
        for key, policy in policies.items()
        for field in SAMPLING_ARGUMENTS
        if key not in overriding and getattr(policy, field) != getattr(usual, field)
    ]


def refuse_no_policies(policies: Mapping[str, object], origin: CallSite) -> None:
    """Raise if ``policies=`` holds another value than a ``Policy``."""
    for key, policy in policies.items():
        if not isinstance(policy, Policy):
            msg = f"policies= holds {shorten(policy)} for {key!r}, which is no Policy"
            do = f"Write policies={{{key!r}: vp.Policy(mode=..., padding=...)}}."
            raise SampleError(msg, do=do).at(origin)


def overriding_keys(
    policies: Mapping[str, Policy], override: bool, origin: CallSite
) -> tuple[str, ...]:
    """Return the keys whose policies override those of pipes."""
    if as_flag("override", override) and not policies:
        msg = "override=True makes policies= hold, and none are given"
        raise SampleError(msg, do='Write policies={"image": vp.Policy(...)} beside it.').at(origin)
    return tuple(sorted(policies)) if override else ()


def _of_one_plan(sink: Pipe) -> Iterator[tuple[Pipe, frozenset[str], tuple[Any, ...]]]:
    """Yield the pipes upstream until a flush of all volumes, with the keys flushed since."""
    # And with those that gave volumes other keys since, the last one first.
    stack: list[tuple[Pipe, frozenset[str], tuple[Any, ...]]] = [(sink, frozenset(), ())]
    visits: set[tuple[int, frozenset[str], tuple[int, ...]]] = set()
    while stack:
        pipe, flushed_keys, regroups = stack.pop()
        visit = (id(pipe), flushed_keys, tuple(map(id, regroups)))
        if visit in visits:
            continue
        visits.add(visit)
        flushes = getattr(type(pipe), "flushes", False)
        keys = vars(pipe).get("keys") if flushes else ()
        if keys is None:
            continue
        yield pipe, flushed_keys, regroups
        if hasattr(type(pipe), "new_keys"):
            regroups = (*regroups, pipe)
        stack += [(p, flushed_keys | frozenset(keys), regroups) for p in parents_of(pipe)]
