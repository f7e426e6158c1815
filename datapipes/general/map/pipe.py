"""The pipe that every map-style pipe of voxpipe is: a torch ``MapDataPipe`` that knows itself."""

from __future__ import annotations

from typing import Any, ClassVar

from torch.utils.data import MapDataPipe

from ....core import Origin
from ....core.origin import call_text, here
from ....graph import Traits, is_pipe
from ...datapipe import pipes_only, source_of


class MapPipe(MapDataPipe[Any]):
    """A map-style pipe that remembers where the user wrote it.

    What is named in ``running`` is filled while the pipe is used: a copy, or a pipe that was
    pickled, begins without it.
    """

    traits: ClassVar[Traits] = Traits()
    """What rewrites and the cut need to know."""
    chained: ClassVar[str] = ""
    """Name of the chained form."""
    running: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that :meth:`fresh` sets."""
    origin: Origin
    """Where the user wrote it."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Remember where the pipe was written, before its own ``__init__`` runs."""
        pipe = super().__new__(cls)
        shown = tuple(a for a in args if not is_pipe(a))
        pipe.origin = here(call_text(cls.chained or cls.__name__, shown, kwargs))
        return pipe

    @property
    def source_datapipe(self) -> Any:
        """The pipe that it reads from, under torchdata's name; the first of several."""
        return source_of(self)

    @source_datapipe.setter
    def source_datapipe(self, pipe: Any) -> None:
        vars(self)["parent"] = pipe

    def fresh(self) -> None:
        """Set what is named in ``running`` to what it is at the beginning."""

    def describe(self) -> str:
        """Return the pipe as the user wrote it."""
        return self.origin.call

    def __repr__(self) -> str:
        return self.describe() if "origin" in vars(self) else type(self).__name__

    __str__ = __repr__

    def __getstate__(self) -> Any:
        hook = MapDataPipe.getstate_hook
        if hook is not None:
            return hook(pipes_only(self))
        return {name: v for name, v in vars(self).items() if name not in self.running}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.fresh()
