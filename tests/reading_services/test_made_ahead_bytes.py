"""Without workers too, what is made ahead is bounded in bytes as well as in number."""

import threading

import pytest
import torch
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.adapters import Limits
from voxpipe.reading_services.timeout_iterator import TimeoutIterator

SIZE = 1000


class Counted:
    """Counts the items that were made."""

    def __init__(self):
        self.made = 0
        self.has_changes = threading.Condition()

    def __iter__(self):
        for _ in range(50):
            with self.has_changes:
                self.made += 1
                self.has_changes.notify_all()
            yield torch.zeros(SIZE, dtype=torch.uint8)

    def reaches(self, count):
        with self.has_changes:
            return self.has_changes.wait_for(lambda: self.made >= count, timeout=10)


# The tensor and its object; no item is much larger.
@pytest.mark.parametrize(("items", "expected"), [(0, 1), (1, 2), (2, 3), (5, 6), (100, 6)], ids=str)
def test_so_many_and_no_more(items, expected):
    """The one that is asked for, and as many after it as are wanted and fit."""
    source = Counted()
    watched = TimeoutIterator(iter(source), Limits(), 5, None, items * (SIZE + 200))

    next(watched)
    next(watched)  # from here on the size is known

    assert source.reaches(expected + 1)
    watched.close()
    assert source.made <= expected + 2


def test_of_a_loader():
    """It takes prefetch_bytes; with nothing to spare each batch is made when it is asked for."""
    service = vp.reading_services.InProcessReadingService(prefetch_cnt=3, prefetch_bytes=0)
    with vp.DataLoader2(IterableWrapper(range(20)), None, service) as loader:
        assert list(loader) == list(range(20))

    with pytest.raises(ValueError, match="prefetch_bytes"):
        vp.reading_services.InProcessReadingService(prefetch_bytes=-1)
