"""A loader in the hands of Hugging Face's Trainer."""

import json

import pytest
import torch
from scenes import full_chain, same

import voxpipe as vp


@pytest.fixture(scope="module")
def transformers():
    """Import it for these tests alone: a run that only collects them does without."""
    pytest.importorskip("accelerate")
    return pytest.importorskip("transformers")


@pytest.fixture
def trainer(transformers, tmp_path):
    """Return a function that makes a trainer with a loader in the place of a data set."""

    class Trainer(transformers.Trainer):
        def __init__(self, loader, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.loader = loader

        def get_train_dataloader(self):
            return self.loader

    def make(loader, seen, *, callbacks=(), **options):
        arguments = transformers.TrainingArguments(
            str(tmp_path), report_to=[], use_cpu=True, disable_tqdm=True, **options
        )
        return Trainer(loader, Model(seen), arguments, callbacks=[*callbacks])

    return make


def loader_of(cases, service=None):
    chain = full_chain(cases, samples=4, batch=2)  # 6 batches
    return vp.DataLoader2(chain, None, service, seed=7)


class Model(torch.nn.Module):
    def __init__(self, seen):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.seen = seen

    def forward(self, **batch):
        self.seen.append({**batch})
        return {"loss": (self.scale * batch["image"]).mean()}


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_are_those_of_the_loader(cases, trainer, workers):
    """As many steps as batches, in order, with a fresh draw in the second epoch."""
    with loader_of(cases) as loader:
        expected = [*loader, *loader]
    seen = []
    with loader_of(cases, vp.MultiProcessingReadingService(workers)) as loader:
        result = trainer(loader, seen, num_train_epochs=2).train()

    assert result.global_step == len(expected) == 12
    assert same(seen, expected)
    assert not same(seen[:6], seen[6:])


@pytest.fixture
def keep_place(transformers):
    """Return a function that makes a callback, which saves a loader's state in each checkpoint."""

    class KeepPlace(transformers.TrainerCallback):
        def __init__(self, loader):
            self.loader = loader

        def on_save(self, args, state, control, **kwargs):
            folder = f"{args.output_dir}/checkpoint-{state.global_step}"
            with open(f"{folder}/loader.json", "w") as file:
                json.dump(self.loader.state_dict(), file)

    return KeepPlace


@pytest.mark.parametrize("step", [2, 6, 8, 10])
def test_a_checkpoint_goes_on_in_the_middle_of_an_epoch(cases, tmp_path, trainer, keep_place, step):
    """Or at its end, by the loader's own state and ``ignore_data_skip``: no batch is read twice."""
    with loader_of(cases) as loader:
        expected = [*loader, *loader]
    options = {"save_steps": 2, "num_train_epochs": 2, "ignore_data_skip": True}
    seen = []
    with loader_of(cases) as loader:
        trainer(loader, seen, callbacks=[keep_place(loader)], **options).train()
    seen.clear()

    with loader_of(cases) as loader:
        with open(tmp_path / f"checkpoint-{step}" / "loader.json") as file:
            loader.load_state_dict(json.load(file))
        checkpoint = str(tmp_path / f"checkpoint-{step}")
        result = trainer(loader, seen, **options).train(resume_from_checkpoint=checkpoint)

    assert same(seen, expected[step:])
    assert result.global_step == 12
