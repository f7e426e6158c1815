"""Recipes: what they make, what they count, and threads that never outlive a batch."""

import gc
import pickle
import threading
import weakref
from contextlib import suppress

import numpy as np
import pytest

from voxpipe.batching.collate import Collate, RealizedArray, in_threads, using_threads
from voxpipe.batching.job import BatchResult, Job, Recipe, Watch, as_tensors
from voxpipe.core import Sample
from voxpipe.core.counters import PIPE_STATS
from voxpipe.core.errors import GraphError, PatchSizeError, SampleError
from voxpipe.volumes import Volume


def test_arrays_and_numbers_are_stacked_and_the_rest_is_listed():
    """As torch's collation does it, in arrays."""
    items = [{"a": np.full(2, n, np.int16), "x": n / 2, "s": str(n)} for n in range(3)]

    (batch,) = Collate()(items)

    assert batch["a"].array.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert batch["a"].dtype == np.int16
    assert batch["x"].array.tolist() == [0.0, 0.5, 1.0]
    assert batch["s"] == ["0", "1", "2"]


def test_what_torch_cannot_hold_stays_a_list():
    """An integer beyond 64 bits has no tensor."""
    (batch,) = Collate()([{"n": 2**70}, {"n": 1}])

    assert batch["n"] == [2**70, 1]


@pytest.mark.parametrize(
    ("items", "error"),
    [
        ([{"a": 1}, {"b": 1}], PatchSizeError),
        ([{"a": np.zeros(2)}, {"a": np.zeros(3)}], PatchSizeError),
        ([3], SampleError),
    ],
)
def test_items_that_do_not_fit_are_refused(items, error):
    """Other keys, other shapes, no mapping."""
    with pytest.raises(error):
        Collate()(items)


def test_an_error_names_the_cases():
    """Whatever is raised inside a recipe knows which samples it was about."""
    job = Job(
        5, (Sample({"a": np.zeros(2)}, case="left"), Sample({"a": np.zeros(3)}, case="right"))
    )

    with pytest.raises(PatchSizeError, match="case left"):
        Recipe((Collate(),)).run(job, 0, 0)


def test_a_watch_counts_what_came_before_it():
    """Each watch has the items that passed it, under its own name."""
    recipe = Recipe((Watch("p", "samples"), Collate(), Watch("p", "batch")))

    recipe.run(Job(0, ({"a": 1}, {"a": 2})), 0, 0)
    entries = PIPE_STATS.of("p")
    PIPE_STATS.forget("p")

    assert {name: entry.items for name, entry in entries.items()} == {"samples": 2, "batch": 1}
    assert all(entry.seconds >= 0 for entry in entries.values())


def test_a_recipe_is_a_few_hundred_bytes():
    """It is sent to every worker."""
    assert len(pickle.dumps(Recipe((Collate(), Watch("profile", "batch_patches(4)"))))) < 500


def test_threads_meet():
    """Two patches are realized at the same time: each waits for the other."""
    both = threading.Barrier(2, timeout=20)

    with using_threads(2):
        assert sorted(in_threads(lambda n: (both.wait(), n)[1], [1, 2])) == [1, 2]


def test_an_error_waits_for_the_others():
    """When it is raised nobody still writes into the batch."""
    failed, ended = threading.Event(), threading.Event()

    def act(number):
        if number == 0:
            failed.set()
            raise ValueError("zero")
        assert failed.wait(20)
        ended.set()

    with using_threads(2):
        with pytest.raises(ValueError, match="zero"):
            in_threads(act, [0, 1])
        assert ended.is_set()


def test_an_error_frees_what_its_callers_hold():
    """At once, and not with the next collection of garbage, of which an epoch may see none."""

    def skipped():
        held = np.zeros(3)
        with using_threads(2), suppress(ZeroDivisionError):
            in_threads(lambda n: 1 // n, [1, 0, 2])
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        left = skipped()
        assert left() is None
    finally:
        gc.enable()


def test_counts_from_threads_are_all_there():
    """Adding to the tally from several threads loses nothing."""
    from voxpipe.core import IOCounters

    tally = IOCounters()
    with using_threads(4):
        in_threads(lambda _: [tally.count(reads=1) for _ in range(1000)], range(8))

    assert tally.reads == 8000


def test_a_realized_array_knows_its_shape():
    """It stands for a tensor of the same memory."""
    realized = RealizedArray(np.zeros((2, 3), np.float32))

    assert (realized.shape, realized.dtype) == ((2, 3), np.dtype(np.float32))


def test_what_becomes_no_batch_or_several_is_refused():
    """A batch is one item; the message says which batch it was and how many there were."""
    job = Job(3, (Sample({"a": 1}, case="left"), Sample({"a": 2}, case="right")))

    with pytest.raises(GraphError, match=r"batch 3 \(left, right\) became 2 items"):
        Recipe(()).run(job, 0, 0)


def test_the_case_of_a_volume_is_found_in_its_batch(tmp_path):
    """Of two workers that read two versions of a file, the consumer knows only its name."""
    samples = []
    for case in ("left", "right"):
        np.save(tmp_path / f"{case}.npy", np.zeros((4, 4, 4), np.uint8))
        samples.append(Sample({"image": Volume(tmp_path / f"{case}.npy")}, case=case))
    job = Job(0, tuple(samples))

    assert job.cases_with(samples[1]["image"].name) == "right"
    assert job.cases_with("unknown") == "left, right"


def test_the_batch_of_a_result_gets_tensors_too():
    """A service of one's own need not know of what failed to hand over a batch."""
    made = as_tensors(BatchResult({"a": RealizedArray(np.arange(3)), "s": ["x"]}, ()))

    assert made.batch["a"].tolist() == [0, 1, 2]
    assert made.batch["s"] == ["x"]
    assert as_tensors(BatchResult(None, (), is_empty=True)).batch is None
