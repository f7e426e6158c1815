"""Pipes behind queues: one side asks for items, another thread or process answers.

torchdata's names, for services that were written for it. The loaders of voxpipe do not use this:
their workers answer through pipes and shared memory, see :mod:`voxpipe.reading_services`.

A client and a server share two queues. At most one request is under way, and every request is
answered: with what was asked for, or with the error that came of it. Both sides wait inside
``queue.get``, with a timeout; nothing is polled.
"""

from . import eventloop, iter, map, messages, protocol, queue

__all__ = ["eventloop", "iter", "map", "messages", "protocol", "queue"]
