"""Guarantees of torchdata 0.9's stack that no other file of tests is about."""

import io
import os

import pytest
import torch
import torch.distributed as dist
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.dataloader2.random import dist_share_seed
from voxpipe.datapipes.iter import SHARDING_PRIORITIES
from voxpipe.datapipes.utils import StreamWrapper, janitor

SEED = 2**64 - 5


@pytest.fixture
def one_rank():
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_seed_is_shared_among_ranks(one_rank):
    """All 64 bits of it, of the default group and of another."""
    assert dist_share_seed(SEED) == SEED
    assert dist_share_seed(3, dist.new_group([0], backend="gloo")) == 3


def test_an_iterator_has_no_attributes_of_the_pipe():
    """It may live in a worker."""
    with vp.DataLoader2(IterableWrapper(range(3))) as loader, pytest.raises(AttributeError):
        iter(loader).iterable  # noqa: B018


def threads(item):
    return torch.get_num_threads()


@pytest.mark.parametrize("chain", [IterableWrapper, lambda n: IterableWrapper(n).sharding_filter()])
def test_a_worker_computes_with_one_thread(chain):
    """As many workers as cores do not fight for them."""
    service = vp.MultiProcessingReadingService(2, "fork")
    pipe = chain(range(4)).map(threads)
    with vp.DataLoader2(pipe, reading_service=service) as loader:
        assert list(loader) == [1] * 4


def repeated(n):
    return [n, n]


class Turns:
    """The first item is made when the fourth is, and not before: each waits for the other."""

    def __init__(self, path):
        self.path = path

    def __call__(self, n):
        if n in (0, 3):
            with open(self.path, "rb" if n == 0 else "wb"):
                pass
        return n


def test_a_slow_worker_does_not_hold_up_the_others(tmp_path):
    """Torchdata 0.9: each is asked for its next item when all others have been."""
    os.mkfifo(tmp_path / "pipe")
    pipe = IterableWrapper(range(6)).map(Turns(tmp_path / "pipe"))
    service = vp.MultiProcessingReadingService(2, "fork", worker_prefetch_cnt=2)
    with vp.DataLoader2(pipe, vp.Timeout(item=60), service) as loader:
        assert list(loader) == list(range(6))


def test_a_dispatch_can_be_paused():
    """Torchdata 0.9 does not support it."""
    pipe = IterableWrapper(range(9)).sharding_round_robin_dispatch(
        SHARDING_PRIORITIES.MULTIPROCESSING
    )
    service = vp.MultiProcessingReadingService(2, "fork")
    with vp.DataLoader2(pipe.map(abs).flatmap(repeated), reading_service=service) as loader:
        items = iter(loader)
        items.limit(7)
        parts = [list(items)]
        for _ in range(2):
            items.resume()
            parts.append(list(items))

    assert [len(part) for part in parts] == [7, 7, 4]
    assert [n for part in parts for n in part] == [n for n in range(9) for _ in range(2)]


def test_streams_of_items_are_closed():
    """Wherever they lie in an item."""
    files = [io.BytesIO(b"1"), io.BytesIO(b"2")]
    janitor({"a": StreamWrapper(files[0]), "b": [(StreamWrapper(files[1]),)]})

    assert [file.closed for file in files] == [True, True]
