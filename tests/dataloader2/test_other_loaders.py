"""The chain in loaders and frameworks of others, left and continued in the middle of an epoch."""

import copy
import json
import traceback

import pytest
import torch
from scenes import full_chain, same, six_batches
from torch.utils.data import DataLoader
from torchdata.nodes import Batcher, IterableWrapper, Loader, Prefetcher
from torchdata.stateful_dataloader import StatefulDataLoader

import voxpipe as vp
from voxpipe.core.errors import StateMismatch, TooManyFailures


# torch says this of a function that StatefulDataLoader calls.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
class TestStatefulDataLoader:
    @pytest.mark.parametrize("place", [0, 1, 3, 5, 6])
    def test_exactly_the_rest_comes(self, cases, whole, place):
        """Alone it replays what it skips, under another shuffle."""
        loader = StatefulDataLoader(vp.to_dataset(six_batches(cases), seed=7), batch_size=None)
        batches = iter(loader)
        seen = [next(batches) for _ in range(place)]
        state = json.loads(json.dumps(loader.state_dict()))

        resumed = StatefulDataLoader(vp.to_dataset(six_batches(cases)), batch_size=None)
        resumed.load_state_dict(state)

        assert same(seen + list(resumed), whole[0])
        assert same(list(resumed), whole[1])

    @pytest.mark.parametrize("context", ["forkserver"])
    def test_workers_make_their_shares_in_order(self, cases, whole, context):
        """And continue, each where it was."""

        def loader():
            data = vp.to_dataset(six_batches(cases), seed=7)
            return StatefulDataLoader(
                data, batch_size=None, num_workers=2, multiprocessing_context=context
            )

        first = loader()
        batches = iter(first)
        seen = [next(batches) for _ in range(3)]
        state = first.state_dict()
        del batches
        second = loader()
        second.load_state_dict(state)

        assert same(seen + list(second), whole[0])

    def test_a_state_of_another_chain_is_refused(self, cases):
        """With the difference."""
        loader = StatefulDataLoader(vp.to_dataset(six_batches(cases), seed=7), batch_size=None)
        next(iter(loader))
        other = StatefulDataLoader(vp.to_dataset(full_chain(cases, batch=3)), batch_size=None)
        other.load_state_dict(loader.state_dict())

        with pytest.raises(StateMismatch, match="graph"):
            list(other)

    def test_epochs_follow_each_other_and_can_be_set(self, cases, whole):
        """In torch's own loader, too."""
        data = vp.to_dataset(six_batches(cases), seed=7)
        loader = DataLoader(data, batch_size=None)

        assert same(list(loader), whole[0])
        assert same(list(loader), whole[1])
        data.set_epoch(0)
        assert same(list(loader), whole[0])

    def test_without_a_seed_torch_rules(self, cases):
        """manual_seed fixes a run, whose epochs differ."""
        runs = []
        for _ in range(2):
            torch.manual_seed(3)
            loader = DataLoader(vp.to_dataset(six_batches(cases)), batch_size=None)
            runs.append([*loader, *loader])

        assert same(*runs)
        assert not same(runs[0][:6], runs[0][6:])


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
class TestEpochsOfWorkers:
    @pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
    @pytest.mark.parametrize("context", ["fork", "forkserver"])
    @pytest.mark.parametrize("stay", [False, True], ids=["", "persistent"])
    def test_workers_follow_set_epoch(self, kind, context, stay):
        """The same, an earlier and a later epoch; then workers that stay count on."""
        chain = torch.utils.data.datapipes.iter.IterableWrapper(range(9)).shuffle()
        with vp.DataLoader2(chain, seed=7) as own:
            epochs = [list(own) for _ in range(6)]
        data = copy.deepcopy(vp.to_dataset(chain, seed=7))
        options = {"multiprocessing_context": context, "persistent_workers": stay}
        loader = kind(data, batch_size=None, num_workers=2, **options)

        for epoch in (3, 3, 0, 4):
            data.set_epoch(epoch)
            assert list(loader) == epochs[epoch]
        assert list(loader) == epochs[5 if stay else 4]
        if stay:
            data.set_epoch(2)
            batches = iter(loader)
            first = [next(batches), next(batches)]  # each worker has begun
            data.set_epoch(1)  # of the next iteration
            assert [*first, *batches] == epochs[2]
            assert list(loader) == epochs[1]


def fails(number):
    if number in (4, 5):
        raise OSError(f"no {number}")
    return number


def failing_loader(workers):
    chain = torch.utils.data.datapipes.iter.IterableWrapper(range(12)).map(fails).batch(2)
    data = vp.to_dataset(chain, vp.OnError("skip", errors=OSError), seed=7)
    context = "forkserver" if workers else None
    return DataLoader(data, batch_size=None, num_workers=workers, multiprocessing_context=context)


class TestBatchesThatFail:
    def test_in_one_process_they_are_left_out(self):
        """As in a loader of ours."""
        assert list(failing_loader(0)) == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]]

    def test_under_several_workers_they_are_an_error(self):
        """Torch takes workers in turn: the rest would come in another order."""
        batches = iter(failing_loader(2))

        assert [next(batches), next(batches)] == [[0, 1], [2, 3]]
        with pytest.raises(TooManyFailures, match="no item of batch 2 could be made") as caught:
            next(batches)
        # Left to the garbage collection torch's iterator has no queues any more by which to end
        # its workers, and waits five seconds for each.
        traceback.clear_frames(caught.tb)
        del batches


class TestNodes:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_chain_is_a_node_with_an_exact_state(self, cases, whole, workers):
        """Under nodes that make ahead, too."""

        def loader():
            service = vp.MultiProcessingReadingService(workers)
            node = vp.to_node(six_batches(cases), None, service, seed=7)
            return node, Loader(Batcher(Prefetcher(node, 2), 2, drop_last=False))

        node, first = loader()
        batches = iter(first)
        seen = next(batches)
        state = json.loads(json.dumps(first.state_dict()))
        del batches, first
        node.shutdown()
        node, second = loader()
        second.load_state_dict(state)
        rest = list(second)
        del second
        node.shutdown()

        assert same([*seen, *(b for pair in rest for b in pair)], whole[0])

    def test_a_node_is_a_source(self):
        """Each pass resets it; and the chain is a node again."""
        pipe = vp.from_node(IterableWrapper(range(4))).map(str)

        with vp.DataLoader2(pipe) as loader:
            assert list(loader) == list(loader) == ["0", "1", "2", "3"]
        assert list(Loader(vp.to_node(pipe))) == ["0", "1", "2", "3"]

    def test_what_is_no_node_is_refused(self):
        """With its class."""
        with pytest.raises(TypeError, match="got list"):
            vp.from_node([1])


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def loss(self, batch):
        return (self.scale * batch["image"]).mean()


@pytest.mark.filterwarnings("ignore")
class TestFrameworks:
    def test_accelerate_saves_and_continues_a_loader(self, cases, whole, tmp_path):
        """register_for_checkpointing() is all."""
        accelerate = pytest.importorskip("accelerate")

        def run():
            model = Tiny()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            accelerator = accelerate.Accelerator(cpu=True)
            loader = vp.DataLoader2(six_batches(cases), seed=7)
            accelerator.register_for_checkpointing(loader)
            return accelerator, loader, *accelerator.prepare(model, optimizer)

        accelerator, loader, model, optimizer = run()
        seen = []
        for batch in loader:
            accelerator.backward(model.loss(batch))
            optimizer.step()
            optimizer.zero_grad()
            seen.append(batch)
            if len(seen) == 4:
                break
        accelerator.save_state(str(tmp_path / "saved"))
        loader.shutdown()

        accelerator, loader, model, optimizer = run()
        accelerator.load_state(str(tmp_path / "saved"))
        rest = list(loader)
        loader.shutdown()

        assert same(seen + rest, whole[0])

    def test_lightning_trains_and_continues(self, cases, whole, tmp_path):
        """It sets the epoch, and keeps the loader's state in its checkpoints."""
        lightning = pytest.importorskip("lightning")
        seen = []

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.tiny = Tiny()

            def training_step(self, batch):
                seen.append(batch)
                return self.tiny.loss(batch)

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        def fit(steps, resume=None):
            every = lightning.pytorch.callbacks.ModelCheckpoint(
                tmp_path, "saved-{step}", every_n_train_steps=4, save_top_k=-1
            )
            loader = vp.DataLoader2(six_batches(cases), seed=7)
            trainer = lightning.Trainer(
                accelerator="cpu",
                max_steps=steps,
                logger=False,
                callbacks=[every],
                enable_progress_bar=False,
                enable_model_summary=False,
                default_root_dir=tmp_path,
            )
            trainer.fit(Module(), loader, ckpt_path=resume)
            loader.shutdown()

        fit(12)
        assert same(seen, [*whole[0], *whole[1]])
        seen.clear()
        fit(9, tmp_path / "saved-step=4.ckpt")
        assert same(seen, [*whole[0][4:], *whole[1][:3]])
