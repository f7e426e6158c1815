"""Pipes that are made of an op: its arguments, and how volumes are sampled for it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import product
from types import new_class
from typing import Any, ClassVar, TypeVar, cast

from ..core import CallSite, Sample
from ..core.call_site import shorten, warn
from ..core.context import ContextKey, holding
from ..core.errors import LikelyMistake, PolicyConflict, SampleError, UnknownName, missing_key_hint
from ..core.suggest import FOREIGN_ARGUMENTS, NO_COUNTERPART, closest
from ..core.validate import as_choice, as_flag
from ..graph import Pipe, parents_of, walk
from ..intensity.filters import INVERSE, Anisotropy, LowResolution
from ..spatial import LazyPatch, Policy
from ..spatial.lazy.stack import StackedPatch
from ..spatial.ops.op import is_hard
from .datapipe import PerItem, chained_form, locate_errors, stream_name

F = TypeVar("F", bound=Callable[..., Any])
# Arguments of any op that are given by keyword alone.
KEYWORD_ONLY = frozenset(
    {
        *("p", "space", "hard", "keep_size", "extent", "longest", "exactly_one", "sides"),
        *("end", "center", "slices", "scale", "select_fn"),
        *("fallback", "unknown", "overhang", "divisible"),
        *("statistics_over", "keep_statistics", "invert", "weights"),
    }
)

# Forms whose factor enlarges voxels, and the names of its inverse in other libraries.
_COARSER = (LowResolution.name, Anisotropy.name)
_SCALES = ("scale", "scales", "scale_range", "zoom", "zoom_range")
# So near that nothing else can be meant; spatial_size is not antialias.
_MISSPELT = 0.6
# The same if an argument may be meant for another function: "labls".
_NEARLY = 0.75

SAMPLING_ARGUMENTS = ("mode", "padding", "fill", "dtype", "antialias")
"""Arguments that every spatial pipe has besides its own."""
EVERY_INTENSITY = ""  # all volumes that are not labels; their sampling is only changed by key
_LAZY: ContextKey[bool | None] = ContextKey(None)
_ON_CONFLICT = ContextKey("error")


def lazy(value: bool | None = None, *, on_conflict: str | None = None) -> holding[bool | None]:
    """Decide in a ``with`` block how spatial pipes share interpolations.

    Parameters
    ----------
    value
        For pipes without ``lazy=`` of their own. True: a pipe shares one interpolation with its
        lazy neighbours. False: a ``flush()`` separates it from them. None: the loader's adapter
        decides, ``FuseSpatial(lazy=False)``. Without it, pipes are lazy.
    on_conflict
        For pipes without ``on_conflict=`` of their own, by default as around the block. With
        ``"flush"``, a pipe with another policy than an earlier one gets a ``flush()`` before it,
        and warns. With ``"error"`` it raises ``PolicyConflict``.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.zeros((8, 8, 8))}]).open_volume().spacing(2.0)
    >>> with lazy(False):
    ...     pipe = pipe.rotate90(1)
    >>> str(pipe.rotate(15).zoom(1.1)).count(".flush()")
    2
    """
    value = None if value is None else as_flag("lazy", value)
    decides = _ON_CONFLICT.get() if on_conflict is None else _as_conflict(on_conflict)
    return holding(_LAZY, value, {_ON_CONFLICT: decides})


def _as_conflict(value: Any) -> str:
    return as_choice("on_conflict", value, ("error", "flush"))


def decide_laziness(arguments: Mapping[str, Any]) -> tuple[bool | None, str]:
    """Return ``lazy=`` and ``on_conflict=`` of a pipe, its own or those of the block around it."""
    own, conflict = arguments.get("lazy"), arguments.get("on_conflict")
    is_lazy = _LAZY.get() if own is None else as_flag("lazy", own)
    return is_lazy, _ON_CONFLICT.get() if conflict is None else _as_conflict(conflict)


class OpPipe(PerItem):
    """A pipe that takes the arguments of an op, and makes it.

    A subclass names the op, whose arguments and docstring it has, and the form that it is chained
    by: ``class RotatePipe(SpatialPipe, form="rotate", op=Rotate): ...``. Without a form it is not
    registered.
    """

    op_class: ClassVar[Any] = None  # the op, a frozen dataclass, or a function that returns it
    keywords: ClassVar[Mapping[str, Any]] = {"name": ""}  # besides those of the op
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(
        cls, *, form: str = "", op: Any = None, keywords_only: bool = False, **options: Any
    ) -> None:
        super().__init_subclass__(**options)
        if op is None:
            return
        cls.op_class = op
        cls.form_name = form or op.name
        cls.__signature__ = _signature(op, cls.keywords, keywords_only)
        if cls.__doc__ is None:  # without the examples, which are those of the op
            cls.__doc__ = (op.__doc__ or "").partition("    Examples\n")[0].rstrip()
        if form:
            chained_form(form)(cls)

    def __init__(self, parent: Pipe, *args: Any, **kwargs: Any) -> None:
        super().__init__(parent)
        arguments = bind_arguments(self.form_name, self.__signature__, args, kwargs)
        arguments = self.complete(arguments)
        own = {name: value for name, value in arguments.items() if name not in self.keywords}
        with locate_errors(self):
            op = type(self).op_class(**own)
        self.stream_names = (stream_name(parent, arguments.get("name", ""), self.form_name),)
        self.hold(op, arguments, is_shared=bool(arguments.get("name")))
        # Pipes warn and ops do not, because ops are also made again without a line of the user.
        for mistake in getattr(op, "likely_mistakes", ()):
            warn(mistake, LikelyMistake, self.origin)

    def complete(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments for the op; a subclass may change them, and its parent."""
        return arguments

    def hold(self, op: Any, arguments: Mapping[str, Any], *, is_shared: bool) -> None:
        """Hold the op and all its arguments; ``is_shared`` if the user has named its stream."""
        raise NotImplementedError


def add_forms(module: dict[str, Any], ops: Iterable[Any], base: type) -> None:
    """Make the pipe of each op that a module has not written out: ``RotatePipe``, of ``Rotate``."""
    home = {"__module__": module["__name__"]}
    for op in ops:
        if (name := f"{op.__name__}Pipe") not in module:
            options = {"form": op.name, "op": op}
            module[name] = new_class(name, (base,), options, lambda body: body.update(home))


def _signature(op: Any, more: Mapping[str, Any], keywords_only: bool) -> inspect.Signature:
    """Return the signature of a pipe: parent, the arguments of ``op``, then ``more`` keywords."""
    kinds = inspect.Parameter
    plain = [kinds("parent", kinds.POSITIONAL_OR_KEYWORD)]
    keywords: list[inspect.Parameter] = []
    for one in inspect.signature(op).parameters.values():
        if keywords_only or one.name in KEYWORD_ONLY:
            keywords.append(one.replace(kind=kinds.KEYWORD_ONLY))
        else:
            plain.append(one)
    keywords += [kinds(name, kinds.KEYWORD_ONLY, default=value) for name, value in more.items()]
    return inspect.Signature([*plain, *keywords])


def bind_arguments(
    name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the given arguments by name, without the parent and without defaults."""
    names = [parameter for parameter in signature.parameters if parameter != "parent"]
    they_are = f"; it has {', '.join(names)}"
    for argument in kwargs:
        if argument not in names:
            inverse = name in _COARSER and argument in _SCALES
            hint = INVERSE if inverse else _instead(argument, names) or they_are
            raise TypeError(f"{name}() has no argument {argument!r}{hint}")
    try:
        arguments = dict(signature.bind(None, *args, **kwargs).arguments)
    except TypeError as error:
        by_name = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
        # Users often give weights and p by position.
        if len(by_name) < len(names):
            by_name = [one for one in ("weights", "p") if one in by_name] or by_name
        usage = " and ".join(f"{one}=" for one in by_name[:2])
        hint = f"; write {usage} by keyword" if by_name and "too many" in str(error) else ""
        raise TypeError(f"{name}(): {error}{hint}") from None
    del arguments["parent"]
    return arguments


def _instead(argument: str, names: Collection[str], cutoff: float = _MISSPELT) -> str:
    """Return the replacement of an unknown argument; empty if there is none."""
    near = [one for one in FOREIGN_ARGUMENTS.get(argument, ()) if one in names]
    if not near and argument in NO_COUNTERPART:
        return NO_COUNTERPART[argument]
    if not near and argument not in FOREIGN_ARGUMENTS:
        near = closest(argument, names, cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


def suggest_arguments(function: F) -> F:
    """Let a function refuse an argument that it lacks as pipes do: with the one that is meant."""
    names = [*inspect.signature(function).parameters]

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        refuse_unknown_arguments(function.__name__, kwargs, names)
        return function(*args, **kwargs)

    return cast(F, call)


def refuse_unknown_arguments(
    name: str, arguments: Iterable[str], names: Collection[str], *, only_misspelt: bool = False
) -> None:
    """Raise TypeError where an argument is none of a pipe's, and say which one is meant."""
    for one in arguments:
        hint = "" if one in names else _instead(one, names, _NEARLY)
        if one not in names and (hint or not only_misspelt):
            they_are = f"; it has {', '.join(names)}"
            raise TypeError(f"{name}() has no argument {one!r}{hint or they_are}")


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
            if (where == key or (where == EVERY_INTENSITY and patch.kind != "label"))
            and field not in patch.fixed_fields
        }

    def padding(self, key: str, patch: LazyPatch) -> str:
        """Return how ``patch`` is padded after this pipe."""
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
        mine = self._of(key, patch)
        if not mine:
            return patch
        before, policy = patch.policy, self._policy(key, patch, mine)
        new_patch = patch.with_pending(patch.pending, policy=policy)
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
    msg = f"⟦{argument}=⟧ names {key!r}, but the volumes of this sample are {have}"
    return UnknownName(msg, do=nearest_key(argument, key, keys), argument=argument)


def nearest_key(argument: str, key: str, keys: Collection[str]) -> str:
    """Return the cure for a missing key."""
    near = closest(key, keys, 0.5)
    if near:
        return f"Did you mean {near[0]!r}?"
    return missing_key_hint(key, f"Name one of them in ⟦{argument}=⟧.")


def conflicts(sampling: Sampling, parent: Pipe) -> Iterator[tuple[str, str]]:
    """Yield the key, or an empty one for all, and the text of each conflict with the same plan."""
    # A plan is resampled once, so it has one policy; the last one would silently replace the first.
    # A flush begins a new plan.
    if not sampling.changes:
        return
    openers = [pipe for pipe in walk(parent) if isinstance(vars(pipe).get("policies"), Mapping)]
    labels = frozenset(label for pipe in openers for label in vars(pipe).get("labels") or ())
    for pipe, flushed_keys, regroups in of_one_plan(parent):
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
                    yield name, f"{field}={value!r} here, but {field}={other!r} at {pipe.origin}"


def refuse_conflict(text: str, origin: CallSite) -> None:
    """Raise the error of two policies in one plan."""
    do = "One plan is sampled once: give the same value, or give it once; or put flush() between "
    do += 'them, or write on_conflict="flush" here: both interpolate twice.'
    raise PolicyConflict(text, do=do).at(origin)


def sampling_changes(pipe: Pipe) -> Sequence[tuple[str, str, Any]]:
    """Return a pipe's changes of policies; those of ``policies=`` that differ from defaults."""
    earlier = getattr(pipe, "sampling", None) if hasattr(type(pipe), "sampling") else None
    if isinstance(earlier, Sampling):
        return earlier.changes
    policies = vars(pipe).get("policies")
    if not isinstance(policies, Mapping):
        return ()
    usual, overriding = Policy(), vars(pipe).get("overriding", {})
    return [
        (key, field, value)
        for key, policy in policies.items()
        for field, value in (vars(policy) if isinstance(policy, Policy) else policy).items()
        if field not in overriding.get(key, ())
        and (isinstance(policy, Mapping) or value != getattr(usual, field))
    ]


def check_policies(policies: Mapping[str, Any] | None, origin: CallSite) -> dict[str, Any]:
    """Return ``policies=``, each entry a ``Policy`` or a mapping of some of its fields."""
    entries: dict[str, Any] = {}
    for key, policy in (policies or {}).items():
        entries[key] = policy
        if isinstance(policy, Mapping):
            refuse_unknown_arguments("Policy", policy, SAMPLING_ARGUMENTS)
            whole = Policy(**policy)
            entries[key] = {field: getattr(whole, field) for field in policy}
        elif not isinstance(policy, Policy):
            msg = f"policies= holds {shorten(policy)} for {key!r}, which is no Policy"
            do = f"Write policies={{{key!r}: vp.Policy(mode=..., padding=...)}}, or single fields, "
            raise SampleError(msg, do=f'{do}{{{key!r}: {{"mode": ...}}}}.').at(origin)
    return entries


def overriding_fields(
    policies: Mapping[str, Any], override: bool, labels: Collection[str], origin: CallSite
) -> dict[str, tuple[str, ...]]:
    """Return by key the fields of policies that override those of pipes."""
    if as_flag("override", override) and not policies:
        msg = "override=True makes policies= hold, and none are given"
        raise SampleError(msg, do='Write policies={"image": vp.Policy(...)} beside it.').at(origin)
    if not override:  # or else it is the fill of later pipes
        _warn_of_fills(policies, labels, origin)
    fields: dict[str, tuple[str, ...]] = {}
    for key in sorted(policies) if override else ():
        one = policies[key]
        fields[key] = SAMPLING_ARGUMENTS if isinstance(one, Policy) else tuple(one)
        # Nearest does not smooth, and only constant padding has a fill: pipes cannot set these.
        if isinstance(one, Mapping) and one.get("mode") == "nearest":
            fields[key] += ("antialias",)
        if isinstance(one, Mapping) and one.get("padding", "constant") != "constant":
            fields[key] += ("fill",)
    return fields


def _warn_of_fills(policies: Mapping[str, Any], labels: Collection[str], origin: CallSite) -> None:
    """Warn of a field for the fill of an image whose padding uses none."""
    for key, fields in policies.items():
        is_single = isinstance(fields, Mapping) and "fill" in fields and key not in labels
        if is_single and fields.get("padding", "border") != "constant":
            text = (
                f"policies= sets fill={fields['fill']:g} for {key!r}, which is used only where a "
                f"later pipe pads with padding='constant' or crops hard\n  at {origin}\n"
                f'  Add "padding": "constant" for {key!r} if the fill is meant for all pipes.'
            )
            warn(text, LikelyMistake, origin)


def of_one_plan(sink: Pipe) -> Iterator[tuple[Pipe, frozenset[str], tuple[Any, ...]]]:
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
