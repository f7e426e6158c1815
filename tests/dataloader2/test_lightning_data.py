"""Chains in Lightning by ``VoxpipeDataModule``: stages, checkpoints, ranks."""

import copy
import os
import pickle
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from ranks import plain, run_ranks
from scenes import same, six_batches

import voxpipe as vp

# Lightning is imported where tests need it: every process collects all tests.
pytestmark = [
    pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning"),
    # Of the logger and progress bar that these trainers do without, and of its own use of torch.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec:FutureWarning"),
]


def module_noting(seen, *, validates=False):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

        def training_step(self, batch):
            seen.append(("train", batch))
            return (self.scale * batch["image"]).mean()

        def predict_step(self, batch):
            seen.append(("predict", batch))
            return batch["image"].mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Validating(Module):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            seen.append((f"val {dataloader_idx}", batch))

    return Validating() if validates else Module()


def trainer_in(folder, **options):
    import lightning

    return lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **{"enable_checkpointing": False, "num_sanity_val_steps": 0, **options},
    )


def data_of(cases, **options):
    return vp.VoxpipeDataModule(seed=7, **options)


def of(stage, seen):
    return [batch for name, batch in seen if name == stage]


def test_stages_take_their_chains(cases, whole, tmp_path):
    """Training and two validations in turn, then prediction; loaders are closed after each."""
    seen = []
    chain = six_batches(cases)
    data = data_of(cases, train=chain, val=[chain, chain], predict=chain)

    trainer_in(tmp_path, max_epochs=2).fit(module_noting(seen, validates=True), datamodule=data)
    made = trainer_in(tmp_path).predict(module_noting(seen), datamodule=data)

    assert same(of("train", seen), [*whole[0], *whole[1]])
    assert same(of("val 0", seen), [*whole[0], *whole[1]])
    assert same(of("val 1", seen), of("val 0", seen))
    assert made == [batch["image"].mean() for batch in whole[0]]
    assert data._loaders == {}


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")  # none saves again
@pytest.mark.parametrize("workers", [0, 2])
def test_a_checkpoint_goes_on_in_the_middle_of_an_epoch(cases, whole, tmp_path, workers):
    """The very batches, meta included, that the uninterrupted run had; workers do not matter."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    seen = []
    every = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=4, save_top_k=-1)
    options = {"enable_checkpointing": True, "callbacks": [every], "max_epochs": 2}
    trainer_in(tmp_path, **options).fit(
        module_noting(seen), datamodule=data_of(cases, train=six_batches(cases))
    )
    assert same(of("train", seen), [*whole[0], *whole[1]])
    seen.clear()
    service = vp.MultiProcessingReadingService(workers)
    data = data_of(cases, train=six_batches(cases), reading_service=service)

    trainer_in(tmp_path, max_epochs=2).fit(
        module_noting(seen), datamodule=data, ckpt_path=tmp_path / "step=4.ckpt"
    )

    assert same(of("train", seen), [*whole[0][4:], *whole[1]])


def test_the_state_in_a_checkpoint_is_a_few_numbers(cases, tmp_path):
    """Of the loader: seed, epoch and next batch, as its own ``state_dict()`` has them."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    every = ModelCheckpoint(tmp_path, "saved", every_n_train_steps=4)
    trainer = trainer_in(tmp_path, enable_checkpointing=True, callbacks=[every], max_steps=4)

    trainer.fit(module_noting([]), datamodule=data_of(cases, train=six_batches(cases)))
    saved = torch.load(tmp_path / "saved.ckpt", weights_only=True)

    (state,) = saved["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    assert (state["seed"], state["epoch"]) == (7, 0)


def test_an_error_closes_the_loaders(cases, tmp_path):
    """What a step raises comes out, and no worker is left."""
    data = data_of(
        cases, train=six_batches(cases), reading_service=vp.MultiProcessingReadingService(1)
    )
    module = module_noting([])
    module.training_step = lambda batch: 1 / 0

    with pytest.raises(ZeroDivisionError):
        trainer_in(tmp_path, max_epochs=1).fit(module, datamodule=data)

    assert data._loaders == {}


@pytest.mark.slow  # the imports of another process
def test_pytorch_lightning_takes_it(cases, whole, tmp_path):
    """The same library under its other name; in a process that has imported this one alone."""
    pytest.importorskip("pytorch_lightning")
    script = f"""
import sys, pytorch_lightning, torch
sys.path[:0] = {[os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))]!r}
import voxpipe as vp
from scenes import full_chain, six_batches
class Module(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
    def training_step(self, batch):
        print(batch["meta"][0]["identity"], float(batch["image"].double().sum()))
        return (self.scale * batch["image"]).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
chain = full_chain({cases!r}, samples=4, batch=2)
data = vp.VoxpipeDataModule(chain, seed=7)
assert isinstance(data, pytorch_lightning.LightningDataModule)
assert "lightning.pytorch" not in sys.modules
trainer = pytorch_lightning.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False,
    enable_model_summary=False, enable_checkpointing=False, max_epochs=1,
    default_root_dir={str(tmp_path)!r})
trainer.fit(Module(), data)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )

    assert done.returncode == 0, done.stderr
    expected = [f"{b['meta'][0]['identity']} {float(b['image'].double().sum())}" for b in whole[0]]
    assert [line for line in done.stdout.splitlines() if line.startswith("[")] == expected


def test_it_is_pickled_and_derived_from(cases):
    """Without its loaders; a class of the user's stays one."""
    import lightning

    data = data_of(cases, train=six_batches(cases))
    loader = data.train_dataloader()
    twin = copy.deepcopy(data)
    other = pickle.loads(pickle.dumps(data))
    loader.shutdown()

    assert isinstance(twin, lightning.LightningDataModule)
    assert str(other.chains["train"]) == str(data.chains["train"])
    assert twin._loaders == other._loaders == {}
    assert isinstance(Derived(six_batches(cases)), (Derived, lightning.LightningDataModule))


class Derived(vp.VoxpipeDataModule):
    """With nothing more."""


def test_what_is_no_chain_is_refused(cases):
    """With the stage and what it got."""
    with pytest.raises(TypeError, match=r"val of VoxpipeDataModule is the last pipe .* got int"):
        vp.VoxpipeDataModule(six_batches(cases), 3)


class Trainer:
    """Of two ranks, for who asks that."""

    world_size = 2


def test_ranks_get_parts(cases):
    """A service is put behind one that divides batches; one that divides already is taken."""
    data = data_of(
        cases, train=six_batches(cases), reading_service=vp.MultiProcessingReadingService(2)
    )
    data.trainer = Trainer()
    train, val = data._service("train"), data._service("val")
    assert [one.uneven for one in (train.services[0], val.services[0])] == ["drop", "pad"]
    assert train.services[1] is data.reading_service

    own = vp.DistributedReadingService(uneven="wrap")
    data.reading_service = own
    assert data._service("train") is own


def fit_in_rank(rank, cases, folder):
    """Train in one of two processes; return what came, and the weight."""
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "WORLD_SIZE": "2"}
    os.environ.update(own, TORCHELASTIC_RUN_ID="none", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    seen = []
    module = module_noting(seen)
    trainer = trainer_in(folder, max_epochs=1, strategy="ddp", devices=2)
    trainer.fit(module, datamodule=data_of(cases, train=six_batches(cases)))
    return plain(of("train", seen)), float(module.scale.detach())


@pytest.mark.slow  # the imports of two other processes
@pytest.mark.usefixtures("started_store")
def test_two_ranks_train_on_parts_of_the_same_batches(cases, whole, tmp_path):
    """Each has its part of every batch, and both have the same weight in the end."""
    first, second = run_ranks(2, fit_in_rank, cases, str(tmp_path))

    parts = [a["meta"] + b["meta"] for a, b in zip(first[0], second[0], strict=True)]
    assert parts == [batch["meta"] for batch in whole[0]]
    assert first[1] == second[1] != 1.0
