"""What a loader says of itself."""

import json

import pytest
from scenes import full_chain
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.datapipes.utils import to_graph


def half(n):
    return n % 2


@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_delivered_is_counted(cases, workers):
    """Over epochs, under any number of workers."""
    service = vp.MultiProcessingReadingService(workers)
    chain = full_chain(cases, samples=4, batch=2)
    with vp.DataLoader2(chain, [vp.Profile()], service, seed=7) as loader:
        before = loader.stats()
        list(loader)
        batches = iter(loader)
        next(batches)
        after = loader.stats()

    assert (before.batches, before.wait, before.rate) == (0, 0.0, None)
    assert (after.epoch, after.next_batch, after.batches) == (1, 1, 7)
    assert 0 < after.longest <= after.wait
    assert after.rate == 7 / after.wait
    # Workers tell what their pipes did along with the batches.
    assert all(row["items"] > 0 for row in after.pipes)
    assert len(after.pipes) == 7
    assert json.loads(json.dumps(after.to_json()))["batches"] == 7
    assert "at batch 1 of epoch 1; 7 delivered" in str(after)
    assert str(after).splitlines()[1].endswith("ms each (median)")
    assert "batch_patches" in str(after)


def test_without_a_profile_there_are_no_pipes():
    """All else is there."""
    loader = vp.DataLoader2(IterableWrapper(range(3)))
    list(loader)

    assert loader.stats().pipes == ()
    assert loader.stats().to_json()["batches"] == 3


def test_a_loader_is_drawn_as_it_runs(cases):
    """After its adapters."""
    loader = vp.DataLoader2(full_chain(cases), [lambda pipe: pipe.prefetch(2)])

    assert "prefetch(2)" in loader.to_dot()
    assert "prefetch(2)" in loader.to_mermaid()
    assert loader.to_mermaid().count("-->") == loader.to_dot().count("->") == 7


class TestBranches:
    def chain(self):
        even, odd = IterableWrapper(range(4)).demux(2, half)
        return even.zip(odd.map(str))

    def test_branches_are_edges(self):
        """What torch puts between a demux and its readers is not drawn."""
        graphviz = pytest.importorskip("graphviz")
        drawn = to_graph(self.chain())

        assert isinstance(drawn, graphviz.Digraph)
        assert drawn.source.count("->") == 4
        assert "demux(2, half" in drawn.source
        assert to_graph(self.chain(), debug=True).source.count("->") == 6

    def test_without_the_package_it_is_named(self, monkeypatch):
        """With what needs none."""
        monkeypatch.setitem(__import__("sys").modules, "graphviz", None)

        with pytest.raises(ModuleNotFoundError, match="to_mermaid"):
            to_graph(self.chain())
