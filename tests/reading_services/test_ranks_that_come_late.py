"""Ranks that come to the beginning of an epoch when another has given up: none begins alone."""

import itertools
import threading

import pytest
import torch.distributed as dist

from voxpipe.core.errors import RankMissing
from voxpipe.reading_services import ranks as agreeing

CLAIM = {"seed": 7, "epoch": 0}


@pytest.fixture
def pair(monkeypatch):
    """Two ranks of one job, both in this process; the first waits for no time at all."""
    store = dist.HashStore()
    monkeypatch.setattr(agreeing, "job_store", lambda: store)
    monkeypatch.setattr(agreeing, "is_started", lambda: True)
    monkeypatch.setattr(agreeing.dist, "get_world_size", lambda: 2)
    made = []
    for rank in range(2):
        monkeypatch.setattr(agreeing, "_NUMBERS", itertools.count())
        monkeypatch.setattr(agreeing.dist, "get_rank", lambda rank=rank: rank)
        made.append(agreeing.Ranks(60.0 if rank else 0.001))
    return made


def agreed_by_both(first, second):
    """What both get when they come at the same time."""
    told = []
    thread = threading.Thread(target=lambda: told.append(second.agree(CLAIM)))
    first._timeout = 60.0
    thread.start()
    told.append(first.agree(CLAIM))
    thread.join()
    return told


def test_a_rank_that_comes_when_another_has_given_up_does_not_begin_alone(pair):
    """It finds every claim in its place, and is told that nobody waits for it any more."""
    first, second = pair
    with pytest.raises(RankMissing, match=r"rank 0 waited 0.001 s .*, and rank 1 of 2 did not"):
        first.agree(CLAIM)

    with pytest.raises(RankMissing, match=r"rank 1 came late .*: rank 0 of 2 had waited"):
        second.agree(CLAIM)

    # The next beginning is the same one for both.
    assert agreed_by_both(first, second) == [CLAIM, CLAIM]


def test_a_rank_that_gives_up_when_another_has_begun_goes_on_with_it(pair, monkeypatch):
    """Between its limit and its word the other one came: one of the two decides for both."""
    first, second = pair
    found, came = agreeing.wait_for_key, []

    def wait_for_key(store, key, deadline):
        if key.endswith("/1") and not came:
            came.append(key)
            assert second.agree(CLAIM) == CLAIM  # after the last look of the first
            return None
        return found(store, key, deadline)

    monkeypatch.setattr(agreeing, "wait_for_key", wait_for_key)

    assert first.agree(CLAIM) == CLAIM
    assert agreed_by_both(first, second) == [CLAIM, CLAIM]


def test_what_was_decided_is_taken_away_with_the_claims(pair):
    """A job of many epochs does not fill the store."""
    kept = []
    for _ in range(3):
        agreed_by_both(*pair)
        kept.append(agreeing.job_store().num_keys())

    assert kept[2] == kept[1] == kept[0]
