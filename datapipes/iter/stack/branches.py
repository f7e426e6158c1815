"""Several pipes that share one parent and its single pass: the branches of a trunk.

As torch's ``fork`` and ``demux`` do it: all branches belong to one generation. An iterator of a
branch that has one already begins the next generation, which ends all older iterators. Unlike
there, branches may be read in threads of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

from torch.utils.data.datapipes.utils.common import StreamWrapper

from ....core.errors import placed
from ....core.origin import warn
from ....core.turns import ForkSafeLock
from ....core.whole import whole
from ....graph import Pipe, Traits
from ...datapipe import DataPipe
from .footprint import bytes_of, limit_of_bytes
from .running import Running

UNBOUNDED = -1
"""As ``buffer_size``: no limit."""


class Trunk(Running):
    """Deals the items of the parent out to branches, and keeps what waits for the others.

    Parameters
    ----------
    parent
        The pipe that is read once for all branches.
    count
        How many branches there are.
    buffer_size
        How many items may wait; -1 for any number.
    buffer_bytes
        How many bytes they may take; None for 1 GiB, or for any number if ``buffer_size`` is -1.
        One item of each branch may wait, whatever its size.
    """

    traits: ClassVar[Traits] = Traits()
    running = (
        "_lock",
        "_items",
        "_waiting",
        "_bytes",
        "_left",
        "_begun",
        "_ended",
        "_overflow",
        "_generation",
    )

    def __init__(
        self, parent: Pipe, count: int, buffer_size: int, buffer_bytes: int | None = None
    ) -> None:
        super().__init__()
        self.parent = parent
        self.count = count
        self.buffer_size = whole("buffer_size", buffer_size, least=UNBOUNDED)
        self.buffer_bytes = limit_of_bytes(buffer_bytes, unbounded=buffer_size == UNBOUNDED)
        if self.buffer_bytes is None:
            text = f"Unlimited buffer size is set for `{self.chained}`: a branch that is read much "
            text += "faster than another can fill the memory"
            warn(text, UserWarning)
        self.fresh()

    def fresh(self) -> None:
        """Begin a pass: nothing is read and nothing waits."""
        # A branch that waits for an item keeps the others waiting: there is one parent.
        self._lock = ForkSafeLock()
        self._generation = 0
        self._restart()

    def describe(self) -> str:
        """Return what is divided, into how many."""
        return f"{self.chained}({self.count} pipes)"

    def _restart(self) -> None:
        self._items: Iterator[Any] | None = None
        self._waiting: list[deque[tuple[Any, int]]] = [deque() for _ in range(self.count)]
        self._bytes = 0
        self._left = [False] * self.count
        self._begun = self._ended = False
        self._overflow: BufferError | None = None
        self._generation += 1

    def reset(self) -> None:
        """Begin a pass, and close the streams that nobody took."""
        with self._lock:
            self._drop()
            self._restart()

    def __iter__(self) -> Iterator[Any]:
        """Raise TypeError: items are had from the branches."""
        msg = f"what {self.chained}() divides is read through the pipes that it returned"
        raise TypeError(msg)

    def deal(self, item: Any, number: int) -> list[tuple[int, Any]]:
        """Return which branch gets what of the ``number``-th item."""
        raise NotImplementedError

    def room_taken(self, waiting: list[int]) -> int:
        """Return how much of ``buffer_size`` is taken, of how many items wait for each branch."""
        raise NotImplementedError

    def branch_length(self, branch: int) -> int:
        """Return how many items a branch has; TypeError if that is not known."""
        raise NotImplementedError

    def is_interrupted(self) -> bool:
        """Whether the parent was begun, and some branch has not come to its end."""
        return self._begun and not (self._ended and all(self._left))

    def items_of(self, branch: int) -> Iterator[Any]:
        """Yield what a branch gets."""
        generation = self._generation
        try:
            while True:
                with self._lock:
                    if generation != self._generation:
                        return
                    item, found = self._next_of(branch)
                if not found:
                    return
                yield item
        finally:
            with self._lock:
                if generation == self._generation:
                    self._left[branch] = True
                    if all(self._left):
                        self._drop()

    def _next_of(self, branch: int) -> tuple[Any, bool]:
        """Return the next item of a branch and True, or False at the end."""
        own = self._waiting[branch]
        while not own and not self._ended:
            if self._overflow is not None:
                raise self._overflow
            self._read(branch)
        if not own:
            return None, False
        item, size = own.popleft()
        self._bytes -= size
        return item, True

    def _read(self, asker: int) -> None:
        """Deal out one more item of the parent."""
        if self._items is None:
            self._items, self._begun = iter(enumerate(self.parent)), True
        following = next(self._items, None)
        if following is None:
            self._ended, self._items = True, None
            return
        number, item = following
        for branch, value in self.deal(item, number):
            # What the asker takes at once does not wait.
            size = 0 if branch == asker or self.buffer_bytes is None else bytes_of(value)
            self._waiting[branch].append((value, size))
            self._bytes += size
        waiting = [0 if b == asker else len(queue) for b, queue in enumerate(self._waiting)]
        self._overflow = self._too_far(waiting)
        if self._overflow is not None:
            raise self._overflow

    def _too_far(self, waiting: list[int]) -> BufferError | None:
        """Return an error if more waits than may; ``waiting`` items for each branch."""
        if self.buffer_size != UNBOUNDED and self.room_taken(waiting) > self.buffer_size:
            what = f"buffer size {self.buffer_size} is insufficient"
            more = "buffer_size="
        elif self.buffer_bytes is not None and self._bytes > self.buffer_bytes and max(waiting) > 1:
            what = f"{sum(waiting)} items wait that take {self._bytes} bytes"
            what += f", and buffer_bytes is {self.buffer_bytes}"
            more = "buffer_bytes="
        else:
            return None
        text = f"{self.chained}() buffer overflow, {what}: one branch is read that much further "
        text += f"than another. Read them in turn, or give a larger {more}."
        error = BufferError(text)
        placed(error, self.origin)
        return error

    def _drop(self) -> None:
        self._items = None
        for queue in self._waiting:
            while queue:
                StreamWrapper.close_streams(queue.popleft()[0])
        self._bytes = 0


class Branch(DataPipe):
    """One branch of a :class:`Trunk`.

    Parameters
    ----------
    trunk
        What all branches share.
    number
        Which branch, from 0.
    """

    traits: ClassVar[Traits] = Traits()
    # torch's iterator hook asks for this, for two methods below, and for the name of the trunk.
    _is_child_datapipe = True
    _valid_iterator_id: int | None

    def __init__(self, trunk: Trunk, number: int) -> None:
        super().__init__()
        self.main_datapipe: Any = trunk
        self.number = number

    def describe(self) -> str:
        """Return which branch of what it is."""
        return f"{self.main_datapipe.chained}(…)[{self.number}]"

    def __iter__(self) -> Iterator[Any]:
        """Yield the items of this branch."""
        return self.main_datapipe.items_of(self.number)  # type: ignore[no-any-return]

    def __len__(self) -> int:
        """Return the number of items of this branch; TypeError if that is not known."""
        return int(self.main_datapipe.branch_length(self.number))

    def _set_main_datapipe_valid_iterator_id(self) -> int:
        trunk = self.main_datapipe
        if trunk._valid_iterator_id is None:
            trunk._valid_iterator_id = 0
        elif trunk._valid_iterator_id == self._valid_iterator_id:
            # This branch has an iterator of this generation: a second one begins the next.
            trunk._valid_iterator_id += 1
            if trunk.is_interrupted():
                text = "Some child DataPipes are not exhausted when __iter__ is called. We are "
                text += "resetting the buffer and each child DataPipe will read from the start."
                warn(text, UserWarning)
            trunk.reset()
        self._valid_iterator_id = trunk._valid_iterator_id
        return int(trunk._valid_iterator_id)

    def _check_valid_iterator_id(self, iterator_id: int) -> bool:
        current: int | None = self.main_datapipe._valid_iterator_id
        return iterator_id == self._valid_iterator_id == current
