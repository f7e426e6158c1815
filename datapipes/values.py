"""Value pipes add a value op to the patches of a sample, choice pipes some of several ops."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from ..batching.collate import ApplyValue
from ..batching.job import apply_transforms
from ..core.errors import PolicyConflict
from ..core.validate import as_keys
from ..intensity import OPS, SelectChannels, ValueStep
from ..spatial import LazyPatch, Step
from ..spatial.lazy.lazy_patch import patches_of
from ..spatial.ops.choices import Choices, OneOf, RandomApply, RandomOrder, SomeOf
from .op_pipe import OpPipe, Sampling, add_forms
from .spatial import PipeSteps, SpatialPipe, add_steps, apply_sampling_arguments


class ChangesValues(OpPipe):
    """A pipe that changes the values of each sample, at once or when a patch is realized."""

    change: ApplyValue | None
    treats_alike = True  # but for channels and masks, which the steps show
    # Patches with the same steps get the same ones again. By patch of the last sample: value steps,
    # spatial steps, kind, length of the identity, and the new value steps. Replaced whole: another
    # thread reads it.
    _last: Mapping[str, tuple[Any, Any, str, int, Any]] = MappingProxyType({})

    def instructions(self) -> tuple[ApplyValue, ...] | None:
        return None if self.change is None else (self.change,)

    def apply(self, item: Any) -> Any:
        """Return the item with the op applied, or with that still to be done."""
        last, lazy, things = self._last, patches_of(item), {}
        if not lazy or item.patches or len(lazy) != len(last):
            return self._anew(item, lazy)
        for key, one in lazy.items():
            values, steps, kind, depth, after = last.get(key, (None,) * 5)
            pending = one.pending
            is_like = values is one.values and steps is pending.steps and type(one) is LazyPatch
            if not is_like or kind != one.volume.kind or depth != len(pending.identity):
                return self._anew(item, lazy)
            if after is not values:
                things[key] = one.with_pending(pending, values=after)
        return item.with_identity(things, item.identity)

    def _anew(self, item: Any, lazy: Mapping[str, LazyPatch]) -> Any:
        assert self.change is not None
        result = apply_transforms((self.change,), item)
        if isinstance(self.change.step.op, SelectChannels):  # each file has its own channels
            return result
        self._last = {
            key: (one.values, one.pending.steps, one.kind, len(one.pending.identity), after.values)
            for key, one, after in ((key, one, result[key]) for key, one in lazy.items())
            # A stack has steps in its members, and one that asks a mask asks that of its sample.
            if type(one) is LazyPatch and all(step.mask is None for step in after.values[-1:])
        }
        return result


class ValuePipe(ChangesValues):
    """A pipe that applies one value op to the volumes of each sample.

    ``keys`` names the volumes, by default all that are not labels, or all labels for an op on
    labels. A form of your own: ``class InvertPipe(ValuePipe, form="invert", op=Invert): ...``.
    """

    keywords: ClassVar[Mapping[str, Any]] = {"keys": None, "name": ""}

    def hold(self, op: Any, arguments: Mapping[str, Any], *, is_shared: bool) -> None:
        keys = arguments.get("keys")
        self.keys = None if keys is None else as_keys(f"{self.form_name}(keys=)", keys)
        self.step = ValueStep(op, self.stream_names[0], self.origin, common=is_shared)
        self.change = ApplyValue(self.step, self.keys, self.origin)


class ChoicePipe(ChangesValues):
    """A pipe that applies some of several ops.

    Value ops change the volumes of ``keys``, by default all that are not labels. Spatial ops
    always act on all, and members made by ``On`` on the keys that they name. The arguments
    ``mode``, ``padding``, ``fill``, ``dtype`` and ``lazy`` are as in spatial pipes.
    """

    keywords: ClassVar[Mapping[str, Any]] = {"keys": None, **SpatialPipe.keywords}
    sampling: Sampling = Sampling()
    treats_alike = True

    def hold(self, op: Choices, arguments: Mapping[str, Any], *, is_shared: bool) -> None:
        spatial, values, keys = op.spatial, op.values, arguments.get("keys")
        ops, stream = [] if spatial is None else [spatial], self.stream_names[0]
        own = {one: arguments.get(one) for one in SpatialPipe.keywords if one != "name"}
        fields = [one for one, value in own.items() if value is not None]
        if spatial is not None:
            apply_sampling_arguments(self, arguments)
        elif fields:
            msg = f"{fields[0]}= says how voxels are sampled, and none of {op.choice.rule}() is"
            do = "Leave it out, or give it to a spatial pipe."
            raise PolicyConflict(f"{msg} a spatial op", do=do).at(self.origin)
        self.steps = PipeSteps(Step(one, stream, self.origin, common=is_shared) for one in ops)
        self.change = None
        if values is not None:
            names = None if keys is None else as_keys(f"{type(self).form_name}(keys=)", keys)
            if names is not None and not values.for_given_keys:
                msg = f"keys={keys!r} is for members without On(), and there is no value op without"
                raise PolicyConflict(msg, do="Leave keys= out.").at(self.origin)
            of_its_own = f"{stream} values"
            step = ValueStep(values, of_its_own, self.origin, draws_from=stream, common=is_shared)
            self.change = ApplyValue(step, names, self.origin)

    def instructions(self) -> tuple[ApplyValue, ...] | None:
        """Return the change by a choice among value ops; None if spatial ops are among them."""
        return None if self.steps else super().instructions()

    def apply(self, item: Any) -> Any:
        if self.steps:
            item = add_steps(self, self.steps, item, None, self.sampling)
        return item if self.change is None else super().apply(item)


# Their docstrings are those of the functions that make the choices.
class OneOfPipe(ChoicePipe, form="one_of", op=OneOf): ...


class SomeOfPipe(ChoicePipe, form="some_of", op=SomeOf): ...


class RandomOrderPipe(ChoicePipe, form="random_order", op=RandomOrder): ...


class RandomApplyPipe(ChoicePipe, form="random_apply", op=RandomApply): ...


if not TYPE_CHECKING:  # the forms: ``iter`` takes them all
    add_forms(globals(), OPS, ValuePipe)
    __all__ = [name for name in globals() if name.endswith("Pipe") and name != "OpPipe"]
