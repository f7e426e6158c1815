"""Shuffle turns shuffling on and off, on a copy."""

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper, Shuffler

import voxpipe as vp
from voxpipe.graph import find


def chain():
    return IterableWrapper(range(50)).shuffle()


def test_off_leaves_the_order():
    """And the user's own graph as it was."""
    given = chain()

    with vp.DataLoader2(given, [vp.adapters.Shuffle(enable=False)], seed=1) as loader:
        assert list(loader) == list(range(50))
    with vp.DataLoader2(given, seed=1) as loader:
        assert list(loader) != list(range(50))


def test_on_turns_on_what_was_off():
    """All of them."""
    off = vp.adapters.Shuffle(enable=False)(chain())

    with vp.DataLoader2(off, vp.adapters.Shuffle(enable=True), seed=1) as loader:
        found = list(loader)

    assert found != list(range(50))
    assert sorted(found) == list(range(50))


def test_a_graph_without_shuffle_gets_one_and_a_warning():
    """At its end: of batches, which is seldom meant."""
    with pytest.warns(UserWarning, match=r"put .shuffle\(\) where it belongs"):
        found = vp.adapters.Shuffle()(IterableWrapper(range(5)))

    assert isinstance(found, Shuffler)


def test_none_changes_nothing():
    """The very same graph comes back."""
    given = chain()

    assert vp.adapters.Shuffle(None)(given) is given


def test_what_was_done_is_told():
    """In explain()."""
    rewritten = vp.adapters.Shuffle(enable=False).rewrite(chain().map(str))

    assert [change.became for change in rewritten.changes] == ["shuffles: False"]
    assert len(find(rewritten.after, Shuffler)) == 1


def test_what_is_neither_is_refused():
    """Allowed values are named."""
    with pytest.raises(ValueError, match="True, False or None"):
        vp.adapters.Shuffle("off")
