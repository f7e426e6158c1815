"""A user who keeps batches: bit-identical while the epoch goes on, within the budget."""

import gc
import sys
import warnings

import pytest
from scenes import full_chain, same, write_cases

import voxpipe as vp
from voxpipe.core.errors import SlotsUsedUp
from voxpipe.reading_services.transport.slot_reader import SlotReader

STEP = 2 * 1024 * 1024  # the size of the smallest slot
SAMPLES = 68  # of 3 cases, by 4: 51 batches
SIZE = 12  # batches of 28 kB: smaller ones do without slots where there is none
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd_create")


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"))


@pytest.fixture(scope="module")
def expected(cases):
    with vp.DataLoader2(full_chain(cases, SIZE, SAMPLES), seed=7) as reference:
        return [{k: v if k == "meta" else v.clone() for k, v in b.items()} for b in reference]


@pytest.fixture
def slots(monkeypatch):
    """The sizes of all slots that workers make."""
    made = []
    add = SlotReader.add

    def counted(self, number, memory):
        made.append(memory.size)
        add(self, number, memory)

    monkeypatch.setattr(SlotReader, "add", counted)
    return made


def loader(cases, workers=2, **options):
    service = vp.MultiProcessingReadingService(workers, **options)
    return vp.DataLoader2(full_chain(cases, SIZE, SAMPLES), None, service, seed=7)


@pytest.mark.parametrize(
    ("steps", "count", "messages"),
    [(0, 0, {0}), (0.5, 0, {1}), (1, 0, {1}), (2, 2, {1, 2}), (6, 6, {1}), (16, 16, {1})],
    ids=["none", "no room", "one for two", "one each", "few", "more"],
)
def test_a_list_of_all_batches_is_bit_identical(cases, expected, slots, steps, count, messages):
    """Whatever the budget, 51 kept batches are those of one process; slots stay within it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with loader(cases, slot_bytes=int(steps * STEP)) as it:
            kept = list(it)

    assert len(kept) == 51
    assert same(kept, expected)
    assert sum(slots) <= count * STEP
    told = [str(w.message) for w in said if w.category is SlotsUsedUp]
    # Copies are too small for their own message; one slot for two in flight may need the pipe.
    assert len(told) in messages
    assert [str(w.message) for w in said] == told


def test_fifty_batches_stay_in_their_slots(cases, expected, slots):
    """With room for all there is no copy and no message."""
    with loader(cases, slot_bytes=200 * STEP) as it:
        kept = list(it)

    assert same(kept, expected)
    assert 51 <= len(slots) <= 55


@pytest.mark.parametrize("order", ["plan", "as_ready"])
def test_slices_and_views_stay_as_they_are(cases, expected, slots, order):
    """A slice of one batch and a view of another hold their slots while others go round."""
    with loader(cases, workers=1, slot_bytes=8 * STEP, order=order) as it:
        batches = iter(it)
        part = next(batches)["image"][1:2, :, ::2]
        view = next(batches)["label"].flatten(1).T
        gc.collect()
        for batch in batches:
            del batch

    assert bool((part == expected[0]["image"][1:2, :, ::2]).all())
    assert bool((view == expected[1]["label"].flatten(1).T).all())
    assert len(slots) <= 5


def test_few_slots_go_round(cases, slots):
    """One worker, two batches ahead, one looked at: three slots for 51 batches."""
    with loader(cases, workers=1) as it:
        count = 0
        for batch in it:
            count += len(batch["image"])
            del batch

    assert count == 204
    assert len(slots) <= 3


def test_two_workers_need_few_slots_too(cases, slots):
    """Each has at most all undelivered batches, however uneven they run."""
    with loader(cases) as it:
        for batch in it:
            del batch

    assert len(slots) <= 2 * (2 * 2 + 1)


def test_epochs_share_the_budget(cases, expected, slots):
    """What is kept of one epoch is not there for the next, which goes on with copies."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with loader(cases, slot_bytes=10 * STEP) as it:
            first = list(it)
            in_first = len(slots)
            second = list(it)

    assert same(first, expected)
    assert [batch["meta"][0]["epoch"] for batch in second] == [1] * 51
    # 10 slots, of which room for 2 x 2 in flight is never kept.
    assert in_first <= 10
    assert len(slots) - in_first <= 4
    assert len(said) == 1


@pytest.mark.filterwarnings("ignore::voxpipe.core.errors.IdleWorkers")  # one works, as asked
def test_a_graph_that_cannot_be_split_has_the_same_bound(cases, slots):
    """Replicated graphs keep to the budget too."""
    pipe = full_chain(cases, SIZE, SAMPLES).filter(bool)
    service = vp.MultiProcessingReadingService(2, "fork", slot_bytes=6 * STEP)
    with vp.DataLoader2(pipe, None, service, seed=7) as it, pytest.warns(SlotsUsedUp):
        kept = [(batch["image"], batch["image"].clone()) for batch in it]

    assert len(kept) == 51
    assert all(bool((image == clone).all()) for image, clone in kept)
    assert sum(slots) <= 6 * STEP


def test_a_budget_is_a_number_of_bytes():
    """A negative one is refused where it is written."""
    with pytest.raises(
        ValueError,
        match=r"slot_bytes is a whole number of bytes, of at least 0, .* got -1",
    ):
        vp.MultiProcessingReadingService(2, slot_bytes=-1)
