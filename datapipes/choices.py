"""Choice pipes: of several ops some are applied, drawn per item; the plan stays pending."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any

from ..batching import ApplyValue
from ..core.errors import PolicyConflict, VoxpipeError
from ..core.validate import as_keys
from ..graph import Pipe
from ..intensity import ValueStep
from ..spatial import Step
from ..spatial.ops.choices import Choices, OneOf, RandomApply, RandomOrder, SomeOf
from .datapipe import PerItem, stream_name
from .form import bound, tell_mistakes
from .forms import chained
from .sampling import SAMPLING_ARGUMENTS, Sampling, refuse_conflict
from .spatial import Adding, refuse_useless_fill, stepped
from .tensors import applied


class ChoicePipe(PerItem):
    """A pipe that applies some of several ops.

    ``keys`` names the volumes that value ops change, by default all that are not labels; spatial
    ops always act on all, and members made by ``On`` on the keys that they name. ``mode``,
    ``padding``, ``fill`` and ``dtype`` are as in spatial pipes.
    """

    sampling: Sampling = Sampling()

    def __new__(cls, *args: Any, **kwargs: Any) -> ChoicePipe:
        """Refuse unknown and missing arguments in the words of other libraries too."""
        if args:  # none where it is unpickled
            of_parent, *own = [*inspect.signature(cls.__init__).parameters.values()][1:-1]
            more = [
                inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY, default=None)
                for one in SAMPLING_ARGUMENTS
            ]
            bound(cls.chained, inspect.Signature([of_parent, *own, *more]), args[1:], kwargs)
        pipe = super().__new__(cls, *args, **kwargs)
        assert isinstance(pipe, cls)
        return pipe

    def __init__(
        self,
        parent: Pipe,
        choices: Choices,
        name: str,
        keys: Collection[str] | None,
        sampling: dict[str, Any],
    ) -> None:
        super().__init__(parent)
        try:
            self.sampling = Sampling.of(**sampling).at(self.origin)
            refuse_conflict(self.sampling, self.origin, parent)
            if choices.spatial is not None:
                refuse_useless_fill(self.sampling, self.origin, parent, [choices.spatial])
        except VoxpipeError as error:
            raise error.at(self.origin)  # noqa: B904
        tell_mistakes(choices, self.origin)
        stream = stream_name(parent, name, type(self).chained)
        self.stream_names = (stream,)
        spatial, values = choices.spatial, choices.values
        if spatial is None and self.sampling.changes:
            _, field, _ = self.sampling.changes[0]
            msg = f"{field}= says how voxels are sampled, and none of {choices.choice.rule}() is"
            do = "Leave it out, or give it to a spatial pipe."
            raise PolicyConflict(f"{msg} a spatial op", do=do).at(self.origin)
        how: dict[str, Any] = {"shared": bool(name)}
        self.adding = None
        if spatial is not None:
            self.adding = Adding([Step(spatial, stream, self.origin, **how)])
        self.change = None
        if values is not None:
            named = None if keys is None else as_keys(f"{type(self).chained}(keys=)", keys)
            if named is not None and not values.for_asked:
                msg = f"keys={keys!r} is for members without On(), and there is no value op without"
                raise PolicyConflict(msg, do="Leave keys= out.").at(self.origin)
            step = ValueStep(values, f"{stream} values", self.origin, draws_from=stream, **how)
            self.change = ApplyValue(step, named, self.origin)

    def instructions(self) -> tuple[ApplyValue, ...] | None:
        """Return what applies a choice among value ops; None where spatial ones are among them."""
        return None if self.adding is not None or self.change is None else (self.change,)

    def apply(self, item: Any) -> Any:
        """Return the sample with what was chosen added to its patches."""
        if self.adding is not None:
            item = stepped(self, item, self.adding, self.sampling)
        return item if self.change is None else applied((self.change,), item)


@chained("one_of")
class OneOfPipe(ChoicePipe):
    """Apply one of several ops, or chains of ops, chosen by weight.

    Parameters
    ----------
    ops
        A sequence of ops, of sequences of ops, and of choices (``OneOf``, ``SomeOf``,
        ``RandomOrder``, ``RandomApply``); or a mapping from op to weight.
    weights
        Relative weights; equal ones by default.
    p
        Probability that any is applied.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> from voxpipe.spatial import Elastic, Rotate
    >>> pipe = from_cases([{"image": np.zeros((8, 8, 8))}]).open_volume()
    >>> sample = next(iter(pipe.one_of([Rotate((-15, 15)), Elastic(1, spacing=4)])))
    >>> sorted(sample["image"].draws["one_of"])
    ['chosen', 'drawn']
    """

    def __init__(
        self,
        parent: Pipe,
        ops: Any,
        *,
        weights: Sequence[float] | None = None,
        p: float = 1.0,
        keys: Collection[str] | None = None,
        name: str = "",
        **sampling: Any,
    ) -> None:
        super().__init__(parent, OneOf(ops, weights, p), name, keys, sampling)


@chained("some_of")
class SomeOfPipe(ChoicePipe):
    """Apply ``count`` different ones of several ops, in the order given.

    Parameters
    ----------
    ops, weights, p
        As in ``one_of``.
    count
        How many: a number, or (least, most).
    """

    def __init__(
        self,
        parent: Pipe,
        ops: Any,
        count: Any,
        *,
        weights: Sequence[float] | None = None,
        p: float = 1.0,
        keys: Collection[str] | None = None,
        name: str = "",
        **sampling: Any,
    ) -> None:
        super().__init__(parent, SomeOf(ops, count, weights, p), name, keys, sampling)


@chained("random_order")
class RandomOrderPipe(ChoicePipe):
    """Apply all of several ops, in an order that is drawn per item."""

    def __init__(
        self,
        parent: Pipe,
        ops: Any,
        *,
        p: float = 1.0,
        keys: Collection[str] | None = None,
        name: str = "",
        **sampling: Any,
    ) -> None:
        super().__init__(parent, RandomOrder(ops, p), name, keys, sampling)


@chained("random_apply")
class RandomApplyPipe(ChoicePipe):
    """Apply all of several ops in turn, or none of them, with probability ``p``."""

    def __init__(
        self,
        parent: Pipe,
        ops: Any,
        *,
        p: float = 0.5,
        keys: Collection[str] | None = None,
        name: str = "",
        **sampling: Any,
    ) -> None:
        super().__init__(parent, RandomApply(ops, p), name, keys, sampling)
