# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # nnU-Net with its loader replaced
#
# voxpipe reads nnU-Net's plans and its raw data set, and makes the batches of its trainer without a
# preprocessed copy of the data. nnU-Net itself is not needed for this tutorial.

# %%
import json
import tempfile
from pathlib import Path

import nibabel
import scans

import voxpipe as vp

temporary = tempfile.TemporaryDirectory()
raw = Path(temporary.name) / "Dataset001_Phantom"
for folder in ("imagesTr", "labelsTr"):
    (raw / folder).mkdir(parents=True)
for number in range(4):
    for voxels, place in zip(
        scans.phantom(number),
        (f"imagesTr/ph_{number:03d}_0000.nii.gz", f"labelsTr/ph_{number:03d}.nii.gz"),
        strict=True,
    ):
        nibabel.save(nibabel.Nifti1Image(voxels, scans.AFFINE), raw / place)
description = {
    "channel_names": {"0": "CT"},
    "labels": {"background": 0, "organ": 1, "lesion": 2},
    "numTraining": 4,
    "file_ending": ".nii.gz",
}
(raw / "dataset.json").write_text(json.dumps(description))

# %% [markdown]
# ## The plans
#
# `nnUNetv2_plan_experiment` writes this file, with more entries. Its axes are z, y, x.

# %%
plans = {
    "transpose_forward": [0, 1, 2],
    "configurations": {
        "3d_fullres": {
            "batch_size": 2,
            "patch_size": [24, 48, 48],
            "spacing": [2.0, 1.0, 1.0],
            "normalization_schemes": ["CTNormalization"],
            "use_mask_for_norm": [False],
            "architecture": {"arch_kwargs": {"strides": [[1, 1, 1], [1, 2, 2], [2, 2, 2]]}},
        }
    },
    "foreground_intensity_properties_per_channel": {
        "0": {"mean": 120.0, "std": 40.0, "percentile_00_5": -20.0, "percentile_99_5": 250.0}
    },
}
preprocessed = Path(temporary.name) / "preprocessed"
preprocessed.mkdir()
(preprocessed / "nnUNetPlans.json").write_text(json.dumps(plans))
names = [f"ph_{number:03d}" for number in range(4)]
splits = [{"train": names[:3], "val": names[3:]}]
(preprocessed / "splits_final.json").write_text(json.dumps(splits))

# %% [markdown]
# ## The chain of the plans
#
# A recipe returns a chain that you could have written. Print it to edit it.

# %%
pipe = vp.recipes.nnunet(preprocessed / "nnUNetPlans.json", raw, fold=0, iterations=6)
print(pipe)

# %% [markdown]
# ## Batches of nnU-Net's trainer
#
# `label` is a list: one entry for each scale of deep supervision, the finest first.

# %%
with vp.DataLoader2(pipe, seed=1) as loader:
    print(loader.explain())
    *_, batch = loader
print("image", tuple(batch["image"].shape), "label", [tuple(one.shape) for one in batch["label"]])

# %% [markdown]
# ## Under nnU-Net's own commands
#
# With nnU-Net installed, its trainer runs with these batches (`pip install "voxpipe[nnunet]"`):
#
# ```sh
# export nnUNet_extTrainer=FOLDER  # of voxpipe.extensions.nnunet_trainers
# nnUNetv2_train 1 3d_fullres 0 -tr nnUNetTrainerVoxpipe_raw
# ```

# %%
shown = {
    "image": batch["image"].permute(0, 1, 4, 3, 2),  # nnU-Net's axes are z, y, x
    "label": batch["label"][0].permute(0, 1, 4, 3, 2),
    "meta": batch["meta"],
}
scans.save(scans.planes(shown), "nnunet")
temporary.cleanup()
