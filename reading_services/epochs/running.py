"""Which epochs run in this process: the last of them to end closes the volumes.

A training loop may validate between two of its batches. The inner epoch that ends must leave
open what the outer one reads.
"""

from __future__ import annotations

import os
import weakref

from ...volumes import close_volumes

# Weak: an epoch that is dropped without being closed keeps nothing open for ever.
_RUNNING: weakref.WeakSet[object] = weakref.WeakSet()
_OWNER = os.getpid()


def begin(epoch: object) -> None:
    """Note that an epoch runs, until it is ended or collected."""
    global _RUNNING, _OWNER
    if os.getpid() != _OWNER:  # a forked child runs none of its parent's
        _RUNNING, _OWNER = weakref.WeakSet(), os.getpid()
    _RUNNING.add(epoch)


def end(epoch: object) -> None:
    """Note that an epoch has ended, any number of times, and close the volumes after the last."""
    _RUNNING.discard(epoch)
    close_if_idle()


def close_if_idle() -> None:
    """Close the volumes unless an epoch runs that may read them."""
    if not _RUNNING:
        close_volumes()
