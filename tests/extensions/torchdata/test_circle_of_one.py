"""A circle that is closed by one thread while another tells, and in a forked child."""

import os
import threading

import pytest
import torch.distributed as dist

from voxpipe.core.errors import RankMissing
from voxpipe.datapipes import rank_barrier as circle
from voxpipe.datapipes.rank_barrier import RankBarrier


@pytest.fixture
def one():
    """The circle of a job of one rank, without a file or a port."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    made = RankBarrier(5.0, do="-")
    yield made
    made.close()
    dist.destroy_process_group()


class Watched(RankBarrier):
    """A circle in which somebody who looks whether it tells is held up right after that."""

    after_look = staticmethod(lambda: None)

    @property
    def _telling(self):
        telling = self._is_telling
        self.after_look()
        return telling

    @_telling.setter
    def _telling(self, telling):
        self._is_telling = telling


def test_whoever_closes_while_another_tells_leaves_nothing_open(one, monkeypatch):
    """The one that tells ends just as the other has seen it at it: one of the two closes."""
    inside, seen = threading.Event(), threading.Event()
    gather = dist.all_gather

    def gathered(*arguments, **options):
        inside.set()
        assert seen.wait(5)
        return gather(*arguments, **options)

    def after_look():
        seen.set()
        if threading.current_thread() is not thread:
            thread.join(0.2)  # it ends here, unless something holds it up

    monkeypatch.setattr(circle.dist, "all_gather", gathered)
    one.__class__ = Watched
    one._telling = False
    thread = threading.Thread(target=one.tell, args=(1,))
    thread.start()
    assert inside.wait(5)
    one.after_look = after_look

    one.close()
    thread.join(5)

    assert one._group is None
    with pytest.raises(RankMissing, match="has left this epoch already"):
        one.tell(1)


def test_a_forked_child_neither_parts_nor_closes(one, monkeypatch):
    """It shares the connections and the store with the rank, which goes on."""
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    assert not one.is_open
    one.part()
    one.close()
    monkeypatch.undo()

    assert one.is_open
    assert one.tell(3) == [3]
    assert not circle.job_store().check([f"{one._name}/gone/0"])
