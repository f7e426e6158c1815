"""Ranks that wait for each other look into the store of the job, and print nothing."""

from __future__ import annotations

import time

import pytest
from torch.distributed import HashStore

from voxpipe.datapipes.rank_barrier import wait_for_key


class Asked(HashStore):
    """A store that is asked: torch prints two warnings for each wait that ends without a key."""

    def __init__(self):
        super().__init__()
        self.looks = 0

    def check(self, keys):
        self.looks += 1
        if self.looks == 3:
            self.set("late", "1")
        return super().check(keys)

    def wait(self, *given):
        pytest.fail("this prints")


def test_a_key_that_comes_late_is_seen():
    """The store is asked until it is there."""
    store = Asked()

    assert wait_for_key(store, "late", time.monotonic() + 60.0) == "1"
    assert store.looks == 3


def test_a_key_that_does_not_come_is_given_up_at_the_deadline():
    """Nothing is there, and nothing was printed."""
    assert wait_for_key(Asked(), "never", time.monotonic() + 0.01) is None


def test_what_is_there_is_found_after_the_deadline_too():
    """A rank that was busy until its deadline still sees who came in time."""
    store = Asked()
    store.set("here", "1")

    assert wait_for_key(store, "here", time.monotonic() - 1.0) == "1"
