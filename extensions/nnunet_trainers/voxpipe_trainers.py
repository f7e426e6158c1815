"""nnU-Net's trainer with voxpipe's loaders in the place of its own, and nothing else replaced.

``nnUNetv2_train DATASET 3d_fullres 0 -tr nnUNetTrainerVoxpipe``; docs/recipes.md says how. nnU-Net
imports this file by its place, outside of any package: so voxpipe has its full name here.
"""

from __future__ import annotations

from typing import Any

from nnunetv2.paths import nnUNet_raw
from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.default_n_proc_DA import get_allowed_n_proc_DA

from voxpipe.core.errors import NotOffered
from voxpipe.extensions.bridges.nnunet_loaders import (
    Batches,
    augmentation_of,
    preprocessed_patches,
    raw_chains,
    seeds_of,
    with_targets,
)
from voxpipe.extensions.recipes import nnunet_augmentation


class nnUNetTrainerVoxpipe(nnUNetTrainer):  # type: ignore[misc]  # noqa: N801  nnU-Net's way
    """nnU-Net's trainer with voxpipe's batches of nnU-Net's preprocessed cases.

    Cases and places are drawn by nnU-Net's own loader; reading, augmentation and workers are ours.
    Combine it with another trainer that leaves the loaders alone:
    ``class Mine(nnUNetTrainerVoxpipe, nnUNetTrainer_250epochs): pass``.
    """

    voxpipe_seed: int | None = None
    """Seed of all draws; by default another one in each run, which is logged."""

    def voxpipe_augmentation(self, pipe: Any, **options: Any) -> Any:
        """Return a chain of training patches, augmented; the place of ``get_training_transforms``.

        Parameters
        ----------
        pipe
            A chain of patches that are normalized.
        **options
            Of ``vp.recipes.nnunet_augmentation``, as nnU-Net chooses them.
        """
        return nnunet_augmentation(pipe, **options)

    def voxpipe_patches(self) -> tuple[Any, Any]:
        """Return the chains of patches for training and for validation, not augmented."""
        size = self.configuration_manager.patch_size
        share = self.oversample_foreground_percent
        chains = []
        for dataset in self.get_tr_and_val_datasets():
            # A rotated patch takes its corners from the volume, so it is drawn without a margin.
            drawer = nnUNetDataLoader(
                dataset,
                self.batch_size,
                size,
                size,
                self.label_manager,
                oversample_foreground_percent=share,
                probabilistic_oversampling=self.probabilistic_oversampling,
            )
            chains.append(preprocessed_patches(drawer, self))
        return chains[0], chains[1]

    def get_dataloaders(self) -> tuple[Batches, Batches]:
        """Return endless batches for training and for validation."""
        for name in ("get_training_transforms", "get_validation_transforms"):
            if getattr(type(self), name) is not getattr(nnUNetTrainer, name):
                msg = f"{type(self).__name__} has {name}() of its own, which voxpipe does not run"
                raise NotOffered(msg, do="Override voxpipe_augmentation() instead.")
        options = augmentation_of(self)
        training, validation = self.voxpipe_patches()
        chains = (
            with_targets(self.voxpipe_augmentation(training, **options), self, augment=True),
            with_targets(validation, self, augment=False),
        )
        seed, seeds = seeds_of(self.voxpipe_seed, self.local_rank)
        self.print_to_log_file(f"voxpipe: seed {seed}")
        count = get_allowed_n_proc_DA()
        counts = (count, max(1, count // 2) if count else 0)  # as nnU-Net divides them
        forms = {
            "is_plane": len(self.configuration_manager.patch_size) == 2,
            "has_regions": self.label_manager.has_regions,
        }
        loaders = [Batches(*each, **forms) for each in zip(chains, counts, seeds, strict=True)]
        for loader in loaders:  # errors of the data are raised now
            next(loader)
        return loaders[0], loaders[1]

    def on_train_end(self) -> None:
        """End training as nnU-Net does, and the workers."""
        super().on_train_end()
        for loader in (self.dataloader_train, self.dataloader_val):
            loader.close()


class nnUNetTrainerVoxpipe_raw(nnUNetTrainerVoxpipe):  # noqa: N801  nnU-Net's way
    """The same out of the raw files: resampled in the one interpolation of each patch.

    nnU-Net's own validation at the end still reads its preprocessed cases.
    """

    def voxpipe_patches(self) -> tuple[Any, Any]:
        """Return the chains of patches for training and for validation, not augmented."""
        return raw_chains(self, str(nnUNet_raw))
