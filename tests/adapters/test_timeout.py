import functools
import threading

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.adapters import Limits, note_of
from voxpipe.core.errors import GraphError
from voxpipe.datapipes.iter import FusedSpatial
from voxpipe.graph import find


def double(x):
    return 2 * x


@pytest.mark.parametrize("bad", [{"item": 0}, {"start": -1}, {"stop": 0}])
def test_a_timeout_is_positive(bad):
    """Zero and negative seconds are refused where they are written."""
    with pytest.raises(ValueError, match="positive number of seconds"):
        vp.Timeout(**bad)


def test_limits_are_set_on_a_copy():
    """The user's pipe stays as it was; the same limits again change nothing."""
    pipe = IterableWrapper([1]).map(double)
    adapter = vp.Timeout(item=3)

    limited = adapter(pipe)

    assert note_of(limited, Limits).item == 3
    assert note_of(pipe, Limits).item == 600
    assert adapter(limited) is limited


def test_limits_survive_other_adapters():
    """Whatever is wrapped around the sink later, the limits are found."""
    pipe = vp.Profile()(vp.Timeout(item=3)(IterableWrapper([1]).map(double)))

    assert note_of(pipe, Limits).item == 3


def test_errors_pass_through_the_watched_thread():
    """With a timeout in process an error is raised as itself, and the end is an end."""
    with vp.DataLoader2(IterableWrapper([1, "a", None]).map(double), vp.Timeout(item=9)) as it:
        batches = iter(it)
        assert next(batches) == 2
        assert next(batches) == "aa"
        with pytest.raises(TypeError):
            next(batches)


def test_limits_survive_rewriting_the_sink():
    """An adapter that replaces the last pipe afterwards does not lose them."""
    import numpy as np

    pipe = vp.from_cases([{"image": np.zeros((4, 4, 4))}]).open_volume().rotate(3).flip()

    limited = vp.FuseSpatial()(vp.Timeout(item=5)(pipe))

    assert note_of(limited, Limits).item == 5


@pytest.mark.parametrize("fuse_first", [False, True])
def test_the_limit_of_a_pipe_survives_fusion(fuse_first):
    """The fused pipe may take the least time that one of its members may."""
    pipe = vp.from_cases([{"image": [[[0.0]]]}]).open_volume().rotate(3).flip().zoom(1.1)
    adapters = [vp.Timeout(9, at="flip"), vp.Timeout(5, at="rotate")]

    for adapter in (vp.FuseSpatial(), *adapters) if fuse_first else (*adapters, vp.FuseSpatial()):
        pipe = adapter(pipe)

    (fused,) = find(pipe, FusedSpatial)
    assert note_of(pipe, Limits).at(fused) == 5
    with pytest.raises(GraphError, match="there is FromCases, open_volume, rotate, flip, zoom"):
        vp.Timeout(5, at="blur")(pipe)


def slow_first(seen, item):
    """Take longer than an item may, once; the wait ends by itself, so no test sleeps for it."""
    if not seen:
        seen.append(item)
        threading.Event().wait(0.4)
    return item


def test_the_first_batch_in_process_may_take_longer():
    """``start`` counts on top of ``item``, without workers too."""
    pipe = IterableWrapper([1, 2]).map(functools.partial(slow_first, []))

    with vp.DataLoader2(pipe, vp.Timeout(item=0.2, start=20)) as loader:
        assert list(loader) == [1, 2]
