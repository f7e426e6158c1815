"""What tifffile says of a damaged file, as an error: by itself it logs, and goes on with less.

A download that was cut short loses the chain of pages, for example; tifffile then gives the pages
that are left, as a whole volume of fewer planes.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ...core.errors import BadHeader
from ...core.locks import ForkSafeLock

# Complaints that change what the voxels are: the chain of pages, the series that they form, and
# tags that say how voxels lie. Broken private tags of microscopes are none of these.
_LAYOUT_TAGS = "25[6-9]|26[26]|27[03789]|284|317|32[02-5]|33[089]|347"
_SERIOUS = re.compile(
    rf"page offset|offset to page|tag list|series|circular|TiffTag ({_LAYOUT_TAGS})\b"
)
_LOGGER = "tifffile"
_LEVELS = ForkSafeLock()


class _Listener(logging.Handler):
    """Keeps what one thread is told."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._thread = threading.get_ident()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread and _SERIOUS.search(record.getMessage()):
            self.said.append(record.getMessage())


@contextmanager
def complaints_raised(name: str) -> Iterator[None]:
    """Raise what tifffile logs about the layout of a file as ``BadHeader``.

    Its other messages go where they always go.
    """
    logger, listener = logging.getLogger(_LOGGER), _Listener()
    with _LEVELS:
        before = logger.level
        # Somebody may have silenced it.
        if not logger.isEnabledFor(logging.ERROR):
            logger.setLevel(logging.ERROR)
        logger.addHandler(listener)
        try:
            yield
        finally:
            logger.removeHandler(listener)
            logger.setLevel(before)
    if listener.said:
        raise BadHeader(
            f"the tags of {name} make no sense: {listener.said[0]}.",
            do="Copy or download the file again, or convert it.",
        )
