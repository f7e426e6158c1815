"""Without workers, ``prefetch()`` at the end of a chain makes batches ahead in a thread."""

import threading

import numpy as np
import pytest

import voxpipe as vp


def chain(count=8):
    cases = [{"image": np.full((4, 4, 4), n, np.float32), "case": f"c{n}"} for n in range(count)]
    return vp.from_cases(cases).shuffle().open_volume().lazy_patch(2).batch_patches(2)


def names(loader):
    return [tuple(m["case"] for m in batch["meta"]) for batch in loader]


def helpers():
    return [t for t in threading.enumerate() if t.name == "prefetch"]


def test_batches_are_those_without_it():
    """In the same order, in every epoch."""
    with vp.DataLoader2(chain(), seed=3) as loader:
        plain = [names(loader), names(loader)]
    with vp.DataLoader2(chain().prefetch(3), seed=3) as loader:
        assert [names(loader), names(loader)] == plain


def test_they_are_made_in_a_thread_that_ends_with_the_epoch():
    """Finished or left in the middle."""
    with vp.DataLoader2(chain().prefetch(2), seed=3) as loader:
        batches = iter(loader)
        next(batches)
        assert len(helpers()) == 1
        del batches
        assert helpers() == []
        names(loader)
        assert helpers() == []


def test_what_was_made_ahead_does_not_count_as_delivered():
    """A state is resumed with exactly what is left."""
    with vp.DataLoader2(chain().prefetch(3), seed=3) as loader:
        complete = names(loader)
    with vp.DataLoader2(chain().prefetch(3), seed=3) as loader:
        batches = iter(loader)
        seen = [tuple(m["case"] for m in next(batches)["meta"])]
        state = loader.state_dict()
    with vp.DataLoader2(chain().prefetch(3)) as loader:
        loader.load_state_dict(state)
        assert seen + names(loader) == complete


def test_an_error_comes_in_its_turn():
    """With the case that it is about; the loader can begin again."""
    cases = [{"image": np.zeros((4, 4, 4))}, {"image": "missing.nii.gz", "case": "lost"}]
    pipe = vp.from_cases(cases).open_volume().lazy_patch(2).batch_patches(1).prefetch(4)

    with vp.DataLoader2(pipe, seed=1) as loader:
        for _ in range(2):
            batches = iter(loader)
            next(batches)
            with pytest.raises(vp.errors.VolumeNotFound, match="in case lost"):
                next(batches)
    assert helpers() == []


@pytest.mark.parametrize(
    "last", [lambda p: p.map(itself).prefetch(2), lambda p: p.prefetch(2)], ids=["twice", "once"]
)
def test_functions_of_the_users_run_where_their_draws_are_seeded(last):
    """In the calling thread, as the global generators are everybody's."""
    pipe = last(chain().map(itself))
    with vp.DataLoader2(pipe, seed=3) as loader:
        for _ in loader:
            assert helpers() == []


def itself(batch):
    return batch
