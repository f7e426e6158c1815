"""What happens to samples one by one, once their voxels are there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from ..core import META, CallSite, Sample
from ..core.errors import SampleError, VoxpipeError, add_location, missing_key_hint
from ..intensity import ValueStep
from ..spatial import LazyPatch, stored_labels
from ..spatial.lazy.halo import changed_by_last
from ..spatial.volume_like import stored_of
from ..storage.ranges import reads_of
from .collate import LikelyLabels, Realized
from .threads import in_threads


@dataclass(frozen=True)
class RealizePatches:
    """Read and resample every lazy patch of each sample; the rest passes through."""

    origin: CallSite
    """Where the user wrote the pipe."""
    likely: LikelyLabels | None = field(default=None, compare=False, repr=False)
    """Looks for labels among the images; None where the user has said which are labels."""

    def __call__(self, items: Sequence[Any]) -> list[Sample]:
        """Return the samples with voxels in them."""
        return [self._realized(item) for item in items]

    def _realized(self, item: Any) -> Sample:
        if not isinstance(item, Sample):
            msg = f"a sample expected, got {type(item).__name__}"
            do = "Put realize() after open_volume(); from .map() return sample.with_data(...)."
            raise SampleError(msg, do=do).at(self.origin)
        lazy = {key: thing for key, thing in item.items() if isinstance(thing, LazyPatch)}
        try:
            arrays = in_threads(self._made, lazy.items())
            for key in lazy:
                if self.likely is not None:
                    self.likely.tell(key)
        except Exception as error:
            raise add_location(error, self.origin, item.case)  # noqa: B904
        made = dict(zip(lazy, map(Realized, arrays), strict=True))
        return item.replace(data={**dict(item), **made}, patches={**item.patches, **lazy})

    def _made(self, entry: tuple[str, LazyPatch]) -> NDArray[Any]:
        key, patch = entry
        likely = nullcontext() if self.likely is None else self.likely.watch(key, patch)
        with reads_of(key), likely:
            try:
                return patch.realize()
            except VoxpipeError as error:
                raise error.at(key=key)  # noqa: B904  the very same error


@dataclass(frozen=True)
class ApplyValue:
    """Apply a value op to each sample: put off on lazy patches, at once on realized ones."""

    step: ValueStep
    keys: Collection[str] | None
    """Volumes it applies to; by default all of the kind that the op is for."""
    origin: CallSite
    """Where the user wrote the pipe."""

    def __call__(self, items: Sequence[Any]) -> list[Sample]:
        """Return the samples with the op applied, or with that still to be done."""
        return [self._applied(item) for item in items]

    def _applied(self, item: Any) -> Sample:
        name = self.step.op.name
        if not isinstance(item, Sample):
            msg = f"a sample expected, got {type(item).__name__}"
            do = f"Put {name}() after open_volume()."
            if isinstance(item, Mapping) and META in item:
                do = f"Put {name}() before batch_patches(): it changes one sample."
            raise SampleError(msg, do=do).at(self.origin)
        self._refuse_unopened(item)
        asked = self.keys if self.keys is not None else _of_kind(item, self.step.op.kind)
        if not getattr(self.step.op, "for_asked", True):
            asked = ()
        own = self.step.op.named_keys
        for key in (*asked, *own):
            if key not in item:
                msg = f"{name}() is to change {key!r}, but the sample has {', '.join(item)}"
                do = f"Name one of these in {'On()' if key in own else 'keys='}."
                do = missing_key_hint(key, do)
                raise SampleError(msg, do=do).at(self.origin, item.case)
        try:
            changed = {
                key: self._changed(item, key, asked=key in asked)
                for key in dict.fromkeys((*asked, *own))
            }
        except Exception as error:
            raise add_location(error, self.origin, item.case)  # noqa: B904
        data = {key: new for key, (new, _) in changed.items()}
        patches = {key: patch for key, (_, patch) in changed.items() if patch is not None}
        return item.replace(data={**dict(item), **data}, patches={**item.patches, **patches})

    def _refuse_unopened(self, sample: Sample) -> None:
        """Say so where there is nothing yet whose values could change."""
        if sample.patches or any(isinstance(thing, LazyPatch) for thing in sample.values()):
            return
        name = self.step.op.name
        told = ", ".join(f"{key!r} ({type(thing).__name__})" for key, thing in sample.items())
        msg = f"{name}() changes opened volumes, and the sample has {told or 'nothing'}"
        do = "Put open_volume() before it."
        raise SampleError(msg, do=do).at(self.origin, sample.case)

    def _changed(self, sample: Sample, key: str, *, asked: bool) -> tuple[Any, LazyPatch | None]:
        """Return the volume with the op applied; and, if it is realized, what it is made of."""
        op = self.step.op.of_key(key, asked=asked)
        step = replace(self.step, op=op, key=key, mask=self._mask(sample, op.mask_key))
        thing = sample[key]
        if isinstance(thing, LazyPatch):
            return thing.with_value(step), None
        made_from = sample.patches.get(key)
        if not isinstance(made_from, LazyPatch) or not isinstance(thing, Realized):
            name = self.step.op.name
            msg = f"{name}() does not know where {key!r} of case {sample.case} comes from"
            do = "It changes lazy patches and what realize() made of them."
            raise SampleError(msg, do=do).at(self.origin)
        after = made_from.with_value(step)
        return Realized(changed_by_last(after, thing.array)), after

    def _mask(self, sample: Sample, key: str | None) -> Any:
        """Return the stored volume that the op wants statistics inside of, if it wants one."""
        if key is None:
            return None
        patch: Any = sample.get(key)
        if not isinstance(patch, LazyPatch):
            patch = sample.patches.get(key)
        if not isinstance(patch, LazyPatch):
            msg = f"{self.step.op.name}() takes statistics inside {key!r}, but the sample has "
            msg += ", ".join(sample)
            do = "Name one of these in inside=."
            do = do if key in sample else missing_key_hint(key, do)
            raise SampleError(msg, do=do).at(self.origin, sample.case)
        stored_labels(patch, (), f"{self.step.op.name}(inside={key!r})", key)
        return stored_of(patch.volume)


def _of_kind(sample: Sample, kind: str) -> list[str]:
    lazy = {k: v for k, v in sample.items() if isinstance(v, LazyPatch)}
    realized = {k: v for k, v in sample.patches.items() if isinstance(v, LazyPatch)}
    return [k for k, v in {**realized, **lazy}.items() if (v.kind == "label") == (kind == "label")]
