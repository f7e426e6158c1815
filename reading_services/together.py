"""Ranks that each run a whole graph end together: after every item they tell whether they have one.

Only for graphs that cannot be planned. Nobody knows how many items those have before they are
made, so ranks have to ask: once per item, over gloo, in the consumers' processes.
"""

from __future__ import annotations

from typing import Any

from ..core.errors import RankMissing
from .part import PAD
from .ranks import Ranks
from .reading_service import Epoch

_ENDED, _HAS, _FAILED = 0, 1, 2


class TogetherEpoch:
    """Yields the items of one rank as long as all ranks have one.

    Parameters
    ----------
    own
        This rank's items.
    ranks
        The others.
    uneven
        ``"drop"``: all end with the first that ends. ``"pad"``: those that ended repeat their
        last item until all have ended.
    """

    def __init__(self, own: Epoch, ranks: Ranks, uneven: str) -> None:
        self.last = -1
        self._own = own
        self._ranks = ranks
        self._pads = uneven == PAD
        self._kept: Any = None
        self._has_kept = False
        self._ended = False
        self._closed = False

    def __iter__(self) -> TogetherEpoch:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        try:
            return self._take()
        except BaseException:
            self.close()
            raise

    def _take(self) -> Any:
        item, word = self._own_item()
        words = self._ranks.says(word)
        failed = [str(rank) for rank, told in words.items() if told == _FAILED]
        if failed:
            raise RankMissing(
                f"rank {', '.join(failed)} failed, so rank {self._ranks.rank} ends its epoch too",
                do="Its own error says why.",
            )
        having = [rank for rank, told in words.items() if told == _HAS]
        enough = bool(having) if self._pads else len(having) == len(words)
        if not enough:
            raise StopIteration
        if word == _ENDED:
            return self._repeated()
        if self._pads:
            self._kept, self._has_kept = item, True
        self.last = self._own.last
        return item

    def _own_item(self) -> tuple[Any, int]:
        if self._ended:
            return None, _ENDED
        try:
            return next(self._own), _HAS
        except StopIteration:
            self._ended = True
            return None, _ENDED
        except Exception:
            self._ranks.says(_FAILED)  # the others would wait for their limit
            raise

    def _repeated(self) -> Any:
        if not self._has_kept:
            raise RankMissing(
                f"rank {self._ranks.rank} has no item at all to repeat",
                do='Give it a share: fewer ranks, or uneven="drop".',
            )
        self.last += 1
        return self._kept

    def close(self) -> None:
        """End this rank's pass."""
        self._closed, self._kept = True, None
        self._own.close()
