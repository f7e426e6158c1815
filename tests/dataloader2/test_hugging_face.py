"""A loader in the hands of Hugging Face's Trainer."""

import json

import pytest
import torch
from scenes import full_chain, same

import voxpipe as vp

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")


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


class Trainer(transformers.Trainer):
    """With a loader in the place of a data set."""

    def __init__(self, loader, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loader = loader

    def get_train_dataloader(self):
        return self.loader


def arguments(folder, **options):
    return transformers.TrainingArguments(
        str(folder), report_to=[], use_cpu=True, disable_tqdm=True, **options
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_are_those_of_the_loader(cases, tmp_path, workers):
    """As many steps as batches, in order, with a fresh draw in the second epoch."""
    with loader_of(cases) as loader:
        expected = [*loader, *loader]
    seen = []
    with loader_of(cases, vp.MultiProcessingReadingService(workers)) as loader:
        trainer = Trainer(loader, Model(seen), arguments(tmp_path, num_train_epochs=2))
        result = trainer.train()

    assert result.global_step == len(expected) == 12
    assert same(seen, expected)
    assert not same(seen[:6], seen[6:])


class KeepPlace(transformers.TrainerCallback):
    """Saves the state of a loader in each checkpoint."""

    def __init__(self, loader):
        self.loader = loader

    def on_save(self, args, state, control, **kwargs):
        folder = f"{args.output_dir}/checkpoint-{state.global_step}"
        with open(f"{folder}/loader.json", "w") as file:
            json.dump(self.loader.state_dict(), file)


@pytest.mark.parametrize("step", [2, 6, 8, 10])
def test_a_checkpoint_goes_on_in_the_middle_of_an_epoch(cases, tmp_path, step):
    """Or at its end, by the loader's own state and ``ignore_data_skip``: no batch is read twice."""
    with loader_of(cases) as loader:
        expected = [*loader, *loader]
    options = {"save_steps": 2, "num_train_epochs": 2, "ignore_data_skip": True}
    seen = []
    with loader_of(cases) as loader:
        keep = KeepPlace(loader)
        Trainer(loader, Model(seen), arguments(tmp_path, **options), callbacks=[keep]).train()
    seen.clear()

    with loader_of(cases) as loader:
        with open(tmp_path / f"checkpoint-{step}" / "loader.json") as file:
            loader.load_state_dict(json.load(file))
        trainer = Trainer(loader, Model(seen), arguments(tmp_path, **options))
        result = trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))

    assert same(seen, expected[step:])
    assert result.global_step == 12
