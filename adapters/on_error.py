"""The adapter that skips items that cannot be made, or lets the epoch fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..batching.job import ACTIONS, DATA_ERRORS, RAISE, ErrorPolicy
from ..core.errors import GraphError
from ..core.validate import validate_int
from ..graph import NoCut, Pipe, RewriteResult, origin_of
from ..graph.cut import split_of
from .adapter import Adapter, annotate, note_of

# A few broken files in a data set are usual; more of them are a missing disk or wrong credentials.
BUDGET = 10


class OnError(Adapter):
    """Leave out or replace items that cannot be read, and report them.

    =============  ========================================================================
    action         result for a batch with a bad item
    =============  ========================================================================
    ``"raise"``    the error is raised, as without this adapter
    ``"skip"``     the batch is made of the other items; one without any is left out
    ``"replace"``  the next good item of the same batch is in its place too
    =============  ========================================================================

    The result depends on the batch alone: batches are the same under any number of workers and
    after a resume. The list ``loader.failures`` has batch, case, files, pipe and error text of
    each failure, without credentials. The count is part of the state.

    A batch that fails is made once more item by item, and once of the good ones. ``len()`` counts
    batches as if nothing failed. Cases that cannot be planned (``lazy_patch(sampling="grid")``
    needs their headers) are left out under any action: no other case replaces them. Under
    ``DistributedReadingService`` a rank needs a good item in its part of a batch.

    Parameters
    ----------
    action
        One of the table.
    budget
        Items that may fail in one epoch, on all ranks together. One more raises
        ``TooManyFailures`` on all ranks. None for any number.
    errors
        Classes of handled errors: by default those of volumes, never those of programs.

    Raises
    ------
    GraphError
        When the loader is made: the graph cannot be split, so a batch cannot be made again.

    Examples
    --------
    >>> import numpy as np
    >>> import voxpipe as vp
    >>> cases = [{"image": np.zeros((4, 4, 4))}, {"image": "missing.nii"}]
    >>> pipe = vp.from_cases(cases).open_volume().lazy_patch(2).batch_patches(2)
    >>> with vp.DataLoader2(pipe, vp.OnError("skip")) as loader:
    ...     [tuple(batch["image"].shape) for batch in loader]
    ...     [(failure.batch, failure.error) for failure in loader.failures]
    [(1, 1, 2, 2, 2)]
    [(0, 'VolumeNotFound')]
    """

    def __init__(
        self,
        action: str = "skip",
        *,
        budget: int | None = BUDGET,
        errors: type[Exception] | Sequence[type[Exception]] = DATA_ERRORS,
    ) -> None:
        if action not in ACTIONS:
            raise ValueError(f"action is one of {ACTIONS}, got {action!r}")
        classes: tuple[Any, ...] = (errors,) if isinstance(errors, type) else tuple(errors)
        if not all(isinstance(one, type) and issubclass(one, Exception) for one in classes):
            raise TypeError(f"errors are classes of exceptions, got {errors!r}")
        if budget is not None:
            budget = validate_int("budget", budget, least=0, do="or None for any number")
        self.policy = ErrorPolicy(action, classes, budget)

    def rewrite(self, pipe: Pipe) -> RewriteResult:
        split = split_of(pipe)
        is_new = self.policy.action != RAISE and note_of(pipe, ErrorPolicy) != self.policy
        if is_new and isinstance(split, NoCut):
            msg = f"OnError cannot leave anything out of this graph: {split.reason}"
            do = "Catch errors in your own functions, or make the graph one that can be split."
            raise GraphError(msg, do=do).at(origin_of(pipe))
        return annotate(pipe, self.policy)

    def __repr__(self) -> str:
        return f"OnError({self.policy.action!r}, budget={self.policy.budget})"
