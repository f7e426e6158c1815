"""A chain of which nothing is left for workers runs in the loader's process: that is told."""

import warnings

import numpy as np
import pytest

import voxpipe as vp


def chain():
    return vp.from_cases([{"image": np.zeros((4, 4, 4))}] * 2).open_volume().lazy_patch(2)


def loader(pipe, workers, **lint):
    return vp.DataLoader2(pipe, vp.Lint(**lint), vp.MultiProcessingReadingService(workers))


@pytest.mark.parametrize(("workers", "them"), [(1, "no worker"), (2, "none of the 2 workers")])
def test_explain_says_that_no_worker_is_started(workers, them):
    """And why."""
    with vp.DataLoader2(chain(), None, vp.MultiProcessingReadingService(workers)) as it:
        assert f"{them} is started: every pipe here plans" in it.explain()


@pytest.mark.parametrize(("pipe", "workers"), [(chain(), 0), (chain().batch_patches(2), 2)])
def test_explain_says_nothing_of_it_otherwise(pipe, workers):
    """Without workers there is none to start; with a batch there is work for them."""
    with vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(workers)) as it:
        assert "is started" not in it.explain()


def test_lint_warns_once_with_the_line():
    """When the loader is made; its epochs are quiet."""
    with pytest.warns(vp.errors.LintWarning, match="idle-workers: num_workers=2") as told:
        it = loader(chain(), 2)
    with it:
        assert len(list(it)) == 2

    (one,) = told
    assert "at .lazy_patch(2)   test_idle_workers.py:" in str(one.message)
    assert one.filename == __file__


@pytest.mark.parametrize(
    ("pipe", "workers", "ignore"),
    [
        (chain(), 0, ()),
        (chain(), 2, ("idle-workers",)),
        (chain().shuffle().batch_patches(2), 2, ("one-volume-batches",)),
    ],
)
def test_lint_is_quiet_where_it_is_none(pipe, workers, ignore):
    """Without workers, where it is meant, and where they have something to do."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader(pipe, workers, ignore=ignore).shutdown()
