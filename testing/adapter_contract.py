"""The contract of adapters, as tests.

Subclass it in a test module, with a method that makes the adapter::

    class TestMine(AdapterContract):
        def make(self) -> Adapter:
            return Mine()
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import torch

from ..adapters import Adapter
from ..dataloader2 import DataLoader2
from ..datapipes.iter import from_cases
from ..graph import Pipe, explain_graph, fingerprint, verify, walk


class AdapterContract:
    """Tests of one adapter; ``make`` returns it, ``chain`` a graph on which it acts."""

    same_batches = True
    """Whether batches stay equal bit for bit, or only their keys and shapes."""
    acts = True
    """Whether it changes, refuses or adds a pipe in ``chain``."""

    def make(self) -> Adapter:
        """Return the adapter."""
        raise NotImplementedError

    def chain(self) -> Pipe:
        """Return a graph; by default of rotated, flipped patches with gamma."""
        values = np.random.default_rng(0).integers(0, 99, (12, 12, 12), np.int16)
        cases = [{"image": values + n, "label": values // 50} for n in range(2)]
        pipe = from_cases(cases).open_volume().lazy_patch(6, samples_per_volume=3).shuffle()
        batches: Pipe = pipe.rotate(10).flip().gamma((0.8, 1.2)).batch_patches(2)
        return batches

    def batches(self, *adapters: Adapter) -> list[Any]:
        """Return the batches of an epoch, in this process."""
        with DataLoader2(self.chain(), adapters, seed=3) as loader:
            return list(loader)

    def test_the_batches_stay_what_they_are(self) -> None:
        """Without ``same_batches``, only their keys and shapes stay."""
        for batch, plain in zip(self.batches(self.make()), self.batches(), strict=True):
            assert batch.keys() == plain.keys()
            for key in (key for key, value in plain.items() if isinstance(value, torch.Tensor)):
                assert batch[key].shape == plain[key].shape
                same = not self.same_batches or torch.equal(batch[key], plain[key])
                assert same, f"{key} differs: an adapter that is there for it sets same_batches"

    def test_the_graph_that_is_given_stays_as_it_was(self) -> None:
        """Its pipes and their settings stay, and the new graph is legal."""
        pipe = self.chain()
        pipes, text, settings = list(walk(pipe)), explain_graph(pipe), fingerprint(pipe)

        verify(self.make()(pipe))

        assert all(a is b for a, b in zip(walk(pipe), pipes, strict=True))
        assert (explain_graph(pipe), fingerprint(pipe)) == (text, settings)

    def test_a_second_time_it_changes_nothing_more(self) -> None:
        """The adapter leaves its own result unchanged."""
        after = self.make()(self.chain())

        assert explain_graph(self.make()(after)) == explain_graph(after)

    def test_what_it_did_and_refused_is_named(self) -> None:
        """Each change names its rule and pipe, and is either applied or refused with a reason."""
        edit = self.make().rewrite(self.chain())
        acts = bool(edit.changes) or len(list(walk(edit.after))) != len(list(walk(self.chain())))
        assert acts == self.acts, "no rule found a pipe: match(site) looks at site.pipe"
        for change in edit.changes:
            assert change.rule
            assert change.at
            assert bool(change.became) != bool(change.reason)

    def test_it_travels(self) -> None:
        """An unpickled copy makes the same graph and has the same ``repr``."""
        adapter, pipe = self.make(), self.chain()

        there = pickle.loads(pickle.dumps(adapter))  # noqa: S301  made above

        assert repr(there) == repr(adapter)
        assert explain_graph(there(pipe)) == explain_graph(adapter(pipe))
