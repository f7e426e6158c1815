"""The bound on shared memory: kept batches get slots, then copies, then a message."""

import gc
import os
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from links import STEP, Link, filled

from voxpipe.core.errors import SlotsUsedUp
from voxpipe.reading_services import memory_budget as budgets
from voxpipe.reading_services.memory_budget import SlotBudget, default_slot_bytes
from voxpipe.reading_services.transport.messages import pack, unpack
from voxpipe.reading_services.transport.slot_reader import Arrival
from voxpipe.reading_services.transport.slot_writer import SlotWriter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd_create")


def values(batches):
    """Return the value of each batch, which must be the same in all its voxels."""
    assert all(int(b["image"].min()) == int(b["image"].max()) for b in batches)
    return [int(b["image"][0]) for b in batches]


def test_kept_batches_get_slots_then_copies_then_messages():
    """Of 50 kept batches 3 stay in 5 slots; two messages, and all 50 are as they were."""
    link = Link(limit=5 * STEP, ahead=2)

    with pytest.warns(SlotsUsedUp) as said:
        kept = [link.deliver(number, size=250_000) for number in range(50)]

    assert values(kept) == list(range(50))
    assert len(link.made) <= 5
    assert link.budget.slots.batches == 3
    assert link.budget.copies.batches == 47
    first, second = (str(warning.message) for warning in said)
    assert first.startswith("batches still in use: 4 (6.3 MB in shared memory, 1.0 MB copied)")
    assert f"slot_bytes={5 * STEP}" in first
    assert second.startswith("batches still in use: 14 (6.3 MB in shared memory, 11.0 MB copied)")


def test_a_copied_batch_frees_its_slot_at_once():
    """Whoever keeps the copy, the worker has its slot back."""
    link = Link(limit=STEP, ahead=1)

    with pytest.warns(SlotsUsedUp):
        kept = link.deliver(7)

    assert link.reader.take_freed() == [0]
    link.writer.release([0])
    assert link.deliver(8)["image"][0] == 8
    assert kept["image"][0] == 7
    assert len(link.made) == 1


def test_copies_keep_what_overlapped_together():
    """Two tensors that look at the same voxels do so in a copy too."""
    link = Link(limit=STEP, ahead=1)
    (image,) = filled(link.writer, np.arange(1000))

    with pytest.warns(SlotsUsedUp):
        there, _ = link.send([image, image[10:20]])
    there[0][10] = -1

    assert there[1].tolist() == [-1, *range(11, 20)]


def test_room_that_is_given_back_is_used_again():
    """Slots serve again once batches are dropped; the copies stay what they are."""
    link = Link(limit=3 * STEP, ahead=2)
    with pytest.warns(SlotsUsedUp):
        kept = [link.deliver(number) for number in range(3)]
    del kept[0]
    gc.collect()
    link.tell_freed()

    kept.append(link.deliver(3))

    assert link.budget.slots.batches == 1
    assert values(kept) == [1, 2, 3]


def test_a_batch_that_fits_nowhere_travels_through_the_pipe():
    """The writer does not wait: it says once, in the same words, that it has no room."""
    link = Link(limit=STEP, ahead=1)

    with pytest.warns(SlotsUsedUp, match="found no room in the 2097152 bytes") as said:
        batches = [link.deliver(number, size=STEP) for number in range(3)]

    assert link.made == []
    assert values(batches) == [0, 1, 2]
    assert len({str(warning.message) for warning in said}) == 1


def test_a_writer_whose_slots_are_all_taken_takes_its_own_memory():
    """The slots of others are not touched when there is none left."""
    link = Link(limit=2 * STEP)
    kept = [link.deliver(number) for number in range(2)]

    with pytest.warns(SlotsUsedUp, match="through a pipe"):
        kept.append(link.send({"image": torch.full((9000,), 2)})[0])

    assert values(kept) == [0, 1, 2]
    assert len(link.made) == 2


def test_a_free_slot_that_is_too_small_gives_its_memory_back_at_once():
    """Its pages are gone before the next slot is made, also while the consumer has it mapped."""
    sizes = []
    copies = {}

    def announce(slot):
        copies[slot.number] = os.dup(slot.fd)

    def retire(number):
        sizes.append(os.fstat(copies[number]).st_blocks)

    writer = SlotWriter(announce, retire, 2 * STEP)
    writer.take([((STEP,), np.uint8)])[0][...] = 1
    assert os.fstat(copies[0]).st_blocks * 512 == STEP  # nobody looks into it any more

    writer.take([((2 * STEP,), np.uint8)])
    for fd in copies.values():
        os.close(fd)

    assert sizes == [0]
    assert len(copies) == 2


@given(
    limit=st.integers(3, 9),
    ahead=st.integers(1, 3),
    steps=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60),
)
def test_any_user_stays_within_the_budget(limit, ahead, steps):
    """Whatever is kept and dropped, in whatever rhythm: bounded, bit-identical, never a pipe."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlotsUsedUp)
        link = Link(limit=limit * STEP, ahead=ahead)
        flying, kept, dropped = [], {}, set()
        for number, (keeps, drops) in enumerate(steps):
            if len(flying) == ahead:
                landed, data = flying.pop(0)
                batch = unpack(data, Arrival(link.reader))
                if keeps:
                    kept[landed] = batch
                del batch
            if drops and kept:
                dropped.add(min(kept))
                del kept[min(kept)]
            link.tell_freed()
            image = filled(link.writer, np.full(1000, number, np.int32))[0]
            data, used = pack({"image": image}, link.writer)
            link.writer.note_sent(used)
            del image  # as the worker does
            flying.append((number, data))

            assert len(used) == 1 or ahead >= limit
            assert sum(slot.size for slot in link.made) <= limit * STEP
            assert values(kept.values()) == list(kept)


def test_what_an_earlier_epoch_left_is_not_there_for_the_next():
    """The budget spans all workers that the loader ever had, and leaves room for the next."""
    budget = SlotBudget(6 * STEP)
    with pytest.warns(SlotsUsedUp):
        kept = [Link(budget=budget, ahead=2).deliver(number) for number in range(6)]

    assert budget.slots.bytes == 4 * STEP
    assert budget.share(2) == STEP
    kept.clear()
    gc.collect()
    assert budget.share(2) == 3 * STEP


def test_the_default_is_an_eighth_of_what_the_process_may_use(monkeypatch):
    """Whatever that is; of 8 GiB where nobody tells."""
    monkeypatch.setattr(budgets, "usable_memory", lambda: 2**24)
    assert default_slot_bytes() == 2**21
    monkeypatch.setattr(budgets, "usable_memory", lambda: 0)
    assert default_slot_bytes() == 2**30
