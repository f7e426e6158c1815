"""A worker's and the consumer's side of the slots in one process, joined as two would be."""

import numpy as np
import torch

from voxpipe.reading_services.memory_budget import SlotBudget
from voxpipe.reading_services.transport.messages import pack, unpack
from voxpipe.reading_services.transport.shared_memory import SharedMemory
from voxpipe.reading_services.transport.slot_reader import Arrival, SlotReader
from voxpipe.reading_services.transport.slot_writer import SlotWriter

STEP = 2 * 1024 * 1024  # the size of the smallest slot
UNBOUNDED = 2**62


class Link:
    """A writer and a reader that share one budget."""

    def __init__(self, limit=UNBOUNDED, ahead=0, registrar=None, budget=None):
        self.budget = budget or SlotBudget(limit)
        share = self.budget.share(1)
        self.reader = SlotReader(self.budget, share, ahead, registrar)
        self.made, self.retired = [], []
        self.writer = SlotWriter(self.announce, self.retire, share)

    def announce(self, slot):
        self.made.append(slot)
        self.reader.add(slot.number, SharedMemory(slot.fd, slot.size))

    def retire(self, number):
        self.retired.append(number)
        self.reader.retire(number)

    def tell_freed(self):
        """What the next job would tell the worker."""
        self.writer.release(self.reader.take_freed())

    def send(self, batch):
        data, used = pack(batch, self.writer)
        self.writer.note_sent(used)
        return unpack(data, Arrival(self.reader)), used

    def deliver(self, value, size=1000):
        """Send one batch of ``size`` equal numbers, as a pipe would make it."""
        self.tell_freed()
        return self.send({"image": filled(self.writer, np.full(size, value, np.int32))[0]})[0]


def filled(writer, *arrays):
    """Return tensors made in one slot, equal to ``arrays``."""
    inside = writer.take([(a.shape, a.dtype) for a in arrays])
    for place, array in zip(inside, arrays, strict=True):
        place[...] = array
    return [torch.from_numpy(place) for place in inside]
