"""Lines of one file, joined to paragraphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ....graph import Pipe, Traits
from ...datapipe import DataPipe
from ...forms import offered
from .streams import pair_of


def joined(lines: Sequence[str]) -> str:
    r"""Return lines as one text, with ends of lines in between.

    Examples
    --------
    >>> joined(["one", "two"])
    'one\ntwo'
    """
    return "\n".join(lines)


@offered("lines_to_paragraphs")
class ParagraphAggregator(DataPipe):
    """Yield ``(path, paragraph)``: lines of one file up to an empty one, joined.

    Parameters
    ----------
    parent
        Yields ``(path, line)``.
    joiner
        Makes a paragraph of a list of lines; by default ends of lines come in between.

    Raises
    ------
    SampleError
        The parent yields something else than pairs.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> lines = [("a", "one"), ("a", "two"), ("a", ""), ("a", "three"), ("b", "four")]
    >>> list(IterableWrapper(lines).lines_to_paragraphs(" ".join))
    [('a', 'one two'), ('a', 'three'), ('b', 'four')]
    """

    @property
    def traits(self) -> Traits:
        """Runs a function, if it was given one."""
        return Traits(opaque=self.joiner is not joined)

    def __init__(self, parent: Pipe, joiner: Callable[[list[Any]], Any] = joined) -> None:
        super().__init__()
        self.parent = parent
        self.joiner = joiner

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Yield the paragraphs."""
        held: list[Any] = []
        of = None
        for item in self.parent:
            path, line = pair_of(self, item)
            if held and (not line or path != of):
                yield of, self.joiner(held)
                held = []
            of = path
            if line:
                held.append(line)
        if held:
            yield of, self.joiner(held)
