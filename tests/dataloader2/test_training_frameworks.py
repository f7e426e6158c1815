"""A loader in the hands of Lightning and Accelerate, as they are installed."""

import copy
import os
import subprocess
import sys
import warnings

import pytest
import torch
from ranks import plain, run_ranks
from scenes import full_chain, same, six_batches

import voxpipe as vp
from voxpipe.datapipes.iter import IterableWrapper


def loader_of(cases, service=None):
    return vp.DataLoader2(six_batches(cases), None, service, seed=7)


@pytest.fixture(scope="module")
def whole(cases):
    with loader_of(cases) as loader:
        return list(loader), list(loader)


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, batch):
        return (self.scale * batch["image"]).mean()


def lightning_noting(seen, folder, **options):
    """Return a module that notes stage and batch of every step, and a trainer."""
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.tiny = Tiny()

        def training_step(self, batch):
            seen.append(("fit", batch))
            return self.tiny(batch)

        def validation_step(self, batch):
            seen.append(("validate", batch))
            self.log("loss", self.tiny(batch), batch_size=len(batch["meta"]))

        def test_step(self, batch):
            seen.append(("test", batch))

        def predict_step(self, batch):
            seen.append(("predict", batch))
            return batch["image"].mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )
    return Module(), trainer


def of(stage, seen):
    return [batch for name, batch in seen if name == stage]


# Lightning and torch tell of numbers of workers and of names that will go.
@pytest.mark.filterwarnings("ignore")
class TestLightning:
    @pytest.mark.parametrize("stage", ["validate", "test", "predict"])
    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_stage_takes_the_whole_epoch(self, cases, whole, tmp_path, stage, workers):
        """In order, with and without workers; predictions come back one by one."""
        seen = []
        module, trainer = lightning_noting(seen, tmp_path)
        loader = loader_of(cases, vp.MultiProcessingReadingService(workers))

        made = getattr(trainer, stage)(module, loader)
        loader.shutdown()

        assert same(of(stage, seen), whole[0])
        assert len(seen) == len(whole[0])
        if stage == "predict":
            assert made == [batch["image"].mean() for batch in whole[0]]

    def test_fit_validates_after_every_epoch(self, cases, whole, tmp_path):
        """With one loader for each; a check of sanity comes first and uses up no epoch."""
        seen = []
        module, trainer = lightning_noting(seen, tmp_path, max_epochs=2, num_sanity_val_steps=2)
        train, val = loader_of(cases), loader_of(cases)

        trainer.fit(module, train, val)
        train.shutdown()
        val.shutdown()

        assert same(of("fit", seen), [*whole[0], *whole[1]])
        assert same(of("validate", seen), [*whole[0][:2], *whole[0], *whole[1]])


def identities(batch):
    return [(item["case"], item["draws"]) for item in batch["meta"]]


@pytest.mark.filterwarnings("ignore")
def test_a_loader_that_is_cycled_repeats_nothing(cases, tmp_path):
    """As torch's: each pass draws anew, also in the epochs after the one in which it was cycled."""
    pytest.importorskip("lightning")
    from lightning.pytorch.utilities import CombinedLoader

    seen = []
    module, trainer = lightning_noting(seen, tmp_path, max_epochs=3)
    module.training_step = lambda both: (
        seen.append((identities(both["short"]), both["torch"].tolist())),
        module.tiny(both["short"]),
    )[1]
    short = vp.DataLoader2(full_chain(cases, samples=4, batch=6), seed=7)
    long = vp.DataLoader2(six_batches(cases), seed=7)
    torchs = torch.utils.data.DataLoader(torch.rand(12), batch_size=6, shuffle=True)
    both = CombinedLoader({"short": short, "long": long, "torch": torchs}, "max_size_cycle")

    trainer.fit(module, both)

    assert len(seen) == 18
    for number in (0, 1):
        assert len({str(batch[number]) for batch in seen}) == 18
    assert short.state_dict()["epoch"] in (8, 9)


@pytest.mark.filterwarnings("ignore")
def test_overfit_batches_are_the_same_in_every_epoch(cases, tmp_path):
    """A run that resumes inside an epoch or at its end has them, too."""
    seen = []
    options = {"max_epochs": 3, "overfit_batches": 2}
    module, trainer = lightning_noting(seen, tmp_path, **options)
    states = []
    module.on_train_batch_end = lambda *_: (
        states.append(tmp_path / f"{len(states)}.ckpt"),
        trainer.save_checkpoint(states[-1]),
    )

    trainer.fit(module, loader_of(cases))

    fit = [identities(batch) for batch in of("fit", seen)]
    assert fit[:2] == fit[2:4] == fit[4:]
    assert fit[0] != fit[1]
    for step, state in enumerate(states, 1):
        seen.clear()
        module, trainer = lightning_noting(seen, tmp_path, **options)
        trainer.fit(module, loader_of(cases), ckpt_path=state)
        assert [identities(batch) for batch in of("fit", seen)] == fit[step:]


OVERFITTING = """
import logging, warnings, lightning, torch, voxpipe
warnings.simplefilter("ignore")
class Module(lightning.LightningModule):
    def training_step(self, batch):
        print(int(batch), end=" ")
    def configure_optimizers(self):
        return None
loader = voxpipe.DataLoader2(voxpipe.datapipes.iter.IterableWrapper(range(90)).shuffle(), seed=1)
quiet = dict.fromkeys(["logger", "enable_progress_bar", "enable_model_summary"], False)
options = {"overfit_batches": 2, "enable_checkpointing": False, "accelerator": "cpu"}
lightning.Trainer(max_epochs=2, **options, **quiet).fit(Module(), loader)
"""


@pytest.mark.slow  # the imports of another process
def test_overfit_batches_need_no_data_module(tmp_path):
    """A process that never imports ``VoxpipeDataModule`` repeats the batches of a loader."""
    pytest.importorskip("lightning")
    command = [sys.executable, "-c", OVERFITTING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    numbers = done.stdout.split()
    assert numbers[:2] == numbers[2:], done.stderr
    assert len(set(numbers)) == 2


def test_epochs_of_frameworks_and_of_the_loader():
    """A pass is never the same again but by the same number; a place of a state is kept."""
    with vp.DataLoader2(IterableWrapper(range(6)).shuffle(), seed=7) as loader:
        epochs = [list(loader) for _ in range(7)]
        fresh = vp.DataLoader2(IterableWrapper(range(6)).shuffle(), seed=7)
        fresh.sampler.set_epoch(0)
        assert [list(fresh), list(fresh)] == epochs[:2]  # cycled
        fresh.sampler.set_epoch(1)
        assert list(fresh) == epochs[2]
        fresh.sampler.set_epoch(1)
        assert list(fresh) == epochs[2]  # a second validation of one epoch
        fresh.sampler.set_epoch(4)
        items = iter(fresh)
        first = [next(items), next(items)]
        state = fresh.state_dict()
        fresh.load_state_dict(state)
        fresh.sampler.set_epoch(0)  # Lightning counts from 0 after a resume of its own
        assert [*first, *fresh] == epochs[4]
        for has_iterator in (False, True):  # Trainer of Hugging Face, loops with Accelerate
            fresh.load_state_dict(state)
            items = iter(fresh) if has_iterator else fresh
            fresh.set_epoch(4)
            assert [*first, *items] == epochs[4]
        fresh.load_state_dict(state)
        fresh.set_epoch(5)
        assert list(fresh) == epochs[5]
        items = iter(fresh)
        next(items)
        fresh.set_epoch(6)  # a batch of epoch 6 was delivered
        assert list(fresh) == epochs[6]
        fresh.set_epoch(0)  # asked of the loader itself it is that one
        assert list(fresh) == epochs[0]


def test_skip_first_batches_is_refused_with_the_way_to_resume(cases):
    """Accelerate would make another loader of the data set, and there is none."""
    accelerate = pytest.importorskip("accelerate")

    with loader_of(cases) as loader, pytest.raises(AttributeError, match="load_state_dict"):
        accelerate.skip_first_batches(loader, 2)


def test_an_iterator_that_is_copied_is_refused(cases):
    """By name, also where a framework copies its loops."""
    with loader_of(cases) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(vp.errors.NotPicklable, match="DataLoader2Iterator cannot be"):
            copy.deepcopy(batches)
        assert next(batches)["image"].shape[0] == 2


def test_a_default_device_does_not_reach_the_loader(cases, whole):
    """The seed, the order and the batches are made where they were."""
    # set_default_device(None) of torch 2.8 leaves a state that torch itself cannot read.
    with torch.device("meta"):
        loader = vp.DataLoader2(six_batches(cases))
        loader.state_dict()
        loader.seed(7)
        batches = list(loader)
    assert same(batches, whole[0])


def test_the_size_of_a_batch_is_known_to_who_asks(cases):
    """DeepSpeed's strategy takes it from the sampler of batches."""
    with vp.DataLoader2(full_chain(cases, batch=3)) as loader:
        assert (loader.batch_sampler.batch_size, loader.batch_sampler.drop_last) == (3, False)
    with vp.DataLoader2(IterableWrapper(range(9)).batch(4, drop_last=True)) as loader:
        assert (loader.batch_sampler.batch_size, loader.batch_sampler.drop_last) == (4, True)
    with vp.DataLoader2(IterableWrapper(range(5))) as loader:
        assert loader.batch_sampler.batch_size == 1


@pytest.mark.parametrize("dispatch", [False, True])
def test_accelerate_leaves_a_loader_as_it_is(cases, whole, dispatch):
    """Whatever is asked of its own loaders: the same batches, and as many."""
    accelerate = pytest.importorskip("accelerate")
    asks = accelerate.DataLoaderConfiguration(dispatch_batches=dispatch, even_batches=False)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=asks)

    with loader_of(cases) as mine:
        loader = accelerator.prepare(mine)

        assert loader is mine
        assert len(loader) == 6
        assert same(list(loader), whole[0])


def prepared(rank, cases, service):
    """Train in one of two processes; return how many Accelerate sees, what came, and the weight."""
    from accelerate import Accelerator

    # What its launcher sets.
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ.update(own, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")  # the group is there
    accelerator = Accelerator(cpu=True)
    made = loader_of(cases, service)
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, made)
    seen = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for batch in loader:
            accelerator.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
            seen.append(batch)
    made.shutdown()
    weight = float(accelerator.unwrap_model(model).scale.detach())
    return accelerator.num_processes, plain(seen), weight, [str(w.message) for w in told]


@pytest.mark.slow  # three seconds of imports in each process
@pytest.mark.usefixtures("started_store")
class TestAccelerate:
    def test_two_processes_train_on_what_prepare_returns(self, cases, whole):
        """Each has its part of every batch, and both have the same weight in the end."""
        pytest.importorskip("accelerate")

        service = vp.DistributedReadingService(timeout=60)
        first, second = run_ranks(2, prepared, cases, service)

        assert first[0] == second[0] == 2
        parts = [a["meta"] + b["meta"] for a, b in zip(first[1], second[1], strict=True)]
        assert parts == [batch["meta"] for batch in whole[0]]
        assert first[2] == second[2] != 1.0

    def test_two_processes_without_parts_are_told_so_once(self, cases, whole):
        """Both make all batches, for which two processes are hardly started."""
        pytest.importorskip("accelerate")

        ranks = run_ranks(2, prepared, cases, None)

        for _, batches, _, told in ranks:
            assert [batch["meta"] for batch in batches] == [batch["meta"] for batch in whole[0]]
            (text,) = [text for text in told if "DistributedReadingService" in text]
            assert "each of 2 ranks makes all batches" in text
