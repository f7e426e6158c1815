"""Trainers of a few epochs that note their losses, and what they wait for batches.

nnU-Net finds them by ``nnUNet_extTrainer``. What they do is said by the environment, as JSON in
``SHORT_TRAINING``: epochs, iterations, validations, seed, predict, and the file for the results.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from voxpipe.extensions.nnunet_trainers.voxpipe_trainers import (
    nnUNetTrainerVoxpipe,
    nnUNetTrainerVoxpipe_raw,
)

sys.path.append(str(Path(__file__).resolve().parents[1]))

import processes

SETTINGS = json.loads(os.environ.get("SHORT_TRAINING", "{}"))


class Timed:
    """A loader of which each batch is timed."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.waits: list[float] = []
        self.cpu = 0.0

    def __next__(self) -> Any:
        start, cpu = time.perf_counter(), time.thread_time()
        batch = next(self.loader)
        self.waits.append(time.perf_counter() - start)
        self.cpu += time.thread_time() - cpu
        return batch


class Short(nnUNetTrainer):
    """nnU-Net's trainer, for a short while."""

    def __init__(
        self,
        plans: dict[str, Any],
        configuration: str,
        fold: int,
        dataset_json: dict[str, Any],
        device: torch.device = torch.device("cpu"),  # noqa: B008  nnU-Net's signature
    ) -> None:
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.num_epochs = SETTINGS["epochs"]
        self.num_iterations_per_epoch = SETTINGS["iterations"]
        self.num_val_iterations_per_epoch = SETTINGS["validations"]

        # A large picture after each epoch takes longer than these epochs.
        self.logger.plot_progress_png = lambda folder: None

    def initialize(self) -> None:
        torch.manual_seed(SETTINGS["seed"])
        super().initialize()

    def get_dataloaders(self) -> Any:
        start = time.perf_counter()
        loaders = tuple(map(Timed, super().get_dataloaders()))
        self.first = time.perf_counter() - start
        self.started = time.perf_counter(), self._others()
        return loaders

    def _others(self) -> float:
        """Return the processor time of all processes of the tree but this one."""
        return processes.cpu_seconds(set(processes.tree(os.getpid())) - {os.getpid()})

    def on_train_end(self) -> None:
        seconds = time.perf_counter() - self.started[0]
        cpu = self._others() - self.started[1]
        timed = self.dataloader_train, self.dataloader_val
        result = {
            "seconds": seconds,
            "first": self.first,
            "waits": timed[0].waits,
            "cpu": (cpu + sum(one.cpu for one in timed)) / sum(len(one.waits) for one in timed),
            **{
                name: [float(v) for v in self.logger.get_value(name, step=None)]
                for name in ("train_losses", "val_losses", "mean_fg_dice")
            },
        }
        self.dataloader_train, self.dataloader_val = (one.loader for one in timed)
        super().on_train_end()
        Path(SETTINGS["result"]).write_text(json.dumps(result), encoding="utf-8")

    def perform_actual_validation(self, save_probabilities: bool = False) -> None:
        if SETTINGS["predict"]:
            self.inference_allowed_mirroring_axes = None  # an eighth of the time
            super().perform_actual_validation(save_probabilities)


class ShortVoxpipe(Short, nnUNetTrainerVoxpipe):
    """The same with voxpipe's batches."""

    voxpipe_seed = SETTINGS.get("seed")


class ShortVoxpipe_raw(Short, nnUNetTrainerVoxpipe_raw):  # noqa: N801  as its base
    """The same out of the raw files."""

    voxpipe_seed = SETTINGS.get("seed")
