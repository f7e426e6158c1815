"""Shared-memory slots: zero copies, reuse only when nobody looks, nothing left behind."""

import gc
import os
import sys

import numpy as np
import pytest
import torch
from links import Link, filled

from voxpipe.reading_services.transport.messages import pack, unpack
from voxpipe.reading_services.transport.slot_reader import Arrival, SlotReader

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd_create")


def big(value, dtype=np.float32):
    return np.full((2, 50, 60), value, dtype)


def test_a_batch_in_a_slot_arrives_without_its_bytes():
    """The message holds places only, and the tensors show what was written."""
    link = Link()
    image, label = filled(link.writer, big(1.5), big(3, np.uint8))

    data, used = pack({"image": image, "label": label, "meta": ["a"]}, link.writer)
    batch = unpack(data, Arrival(link.reader))

    assert len(data) < 1000
    assert len(used) == 1
    assert (batch["image"] == 1.5).all()
    assert (batch["label"] == 3).all()
    assert batch["label"].dtype == torch.uint8
    assert batch["meta"] == ["a"]


def test_the_consumer_sees_the_same_memory():
    """What is written after sending shows on the other side: nothing was copied."""
    link = Link()
    (image,) = filled(link.writer, big(1.0))
    batch, _ = link.send({"image": image})

    image[0, 0, 0] = 42.0

    assert batch["image"][0, 0, 0] == 42.0


@pytest.mark.parametrize(
    "view",
    [
        lambda b: b["image"],
        lambda b: b["image"][0],
        lambda b: b["image"][:, ::7].mT,
        lambda b: b["image"].numpy()[1, 2],
        lambda b: torch.nn.functional.relu(b["image"], inplace=True).view(-1),
    ],
    ids=["tensor", "slice", "strided", "numpy", "inplace"],
)
def test_a_slot_is_busy_as_long_as_anything_looks_into_it(view):
    """A slot is handed back exactly when the last view of it is gone."""
    link = Link()
    batch, used = link.send({"image": filled(link.writer, big(1.0))[0]})
    kept = view(batch)
    del batch
    gc.collect()

    assert link.reader.take_freed() == []
    del kept
    gc.collect()
    assert link.reader.take_freed() == sorted(used)


def test_slots_are_used_again():
    """With one batch held at a time, two slots serve any number of batches."""
    link = Link()
    held = None
    for number in range(20):
        link.writer.release(link.reader.take_freed())
        batch, _ = link.send({"image": filled(link.writer, big(number))[0]})
        held = batch
        assert (held["image"] == number).all()

    assert link.writer._count == 2


def test_kept_batches_are_never_written_over():
    """Fifty batches kept by the user stay as they were."""
    link = Link()
    kept = []
    for number in range(50):
        link.writer.release(link.reader.take_freed())
        kept.append(link.send({"image": filled(link.writer, big(number))[0]})[0])

    assert [float(batch["image"].mean()) for batch in kept] == list(range(50))


def test_tensors_made_elsewhere_are_copied_in_once():
    """A user's own tensor travels through a slot too; small ones in the message."""
    link = Link()
    batch = {"image": torch.from_numpy(big(2.0)) * 2, "small": torch.arange(3), "word": "x"}

    there, used = link.send(batch)

    assert len(used) == 1
    assert (there["image"] == 4.0).all()
    assert there["small"].tolist() == [0, 1, 2]


def test_a_small_view_does_not_drag_its_storage_along():
    """A few numbers cut out of a large tensor cost a few bytes."""
    large = torch.zeros(1_000_000)

    data, _ = pack({"small": large[:3]}, None)

    assert len(data) < 1000


def test_growing_batches_do_not_pile_up_slots():
    """A free slot that has become too small is given up on both sides."""
    link = Link()
    for size in (1, 2, 3):
        array = np.zeros((size * 3 * 2**20,), np.uint8)
        batch, _ = link.send({"image": filled(link.writer, array)[0]})
        del batch
        gc.collect()
        link.writer.release(link.reader.take_freed())

    assert link.retired == [0, 1]
    assert len(link.reader._memory) == 1


def test_without_slots_batches_are_pickled():
    """Where there is no memfd everything travels in the message."""
    data, used = pack({"image": torch.from_numpy(big(2.0))}, None)

    assert used == set()
    assert (unpack(data, Arrival(SlotReader()))["image"] == 2.0).all()


def test_types_that_numpy_does_not_know_arrive():
    """bfloat16 and conjugated complex tensors travel through slots, structured arrays too."""
    link = Link()
    half = torch.arange(30_000).to(torch.bfloat16)
    turned = torch.complex(torch.ones(9000), torch.ones(9000)).conj()
    rows = np.zeros(5000, [("a", "i4"), ("b", "f8")])
    rows["b"] = 2.5

    there, used = link.send([half, half[:3], turned, rows])

    assert len(used) == 3
    assert there[0].dtype == torch.bfloat16
    assert bool((there[0] == half).all())
    assert bool((there[1] == half[:3]).all())
    assert complex(there[2][0]) == 1 - 1j
    assert there[3]["b"].sum() == 12500


def test_kept_batches_cost_no_descriptors():
    """However many batches are kept, no descriptor stays open for them."""
    link = Link()
    before = len(os.listdir("/proc/self/fd"))
    kept = [link.send({"image": filled(link.writer, big(n))[0]})[0] for n in range(40)]

    assert len(os.listdir("/proc/self/fd")) == before
    assert len(kept) == 40


@pytest.mark.parametrize("dtype", [np.uint16, np.float16, np.bool_, np.int64, np.complex64])
def test_every_type_arrives(dtype):
    """Types, shapes and empty arrays arrive as they were."""
    link = Link()
    array = np.arange(30_000).astype(dtype).reshape(3, 100, 100)

    there, _ = link.send([torch.from_numpy(array), array.T, np.zeros((0, 3), dtype)])

    assert there[0].numpy().dtype == dtype
    assert (there[0].numpy() == array).all()
    assert (there[1] == array.T).all()
    assert there[2].shape == (0, 3)
