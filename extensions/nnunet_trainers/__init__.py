"""Trainers for nnU-Net's commands, which search the folder in ``nnUNet_extTrainer``.

nnU-Net imports every module of this folder by itself, so it holds nothing but trainers.
"""

from pathlib import Path as _Path

__all__ = ["FOLDER"]

FOLDER = str(_Path(__file__).resolve().parent)
"""Value for ``nnUNet_extTrainer``."""
