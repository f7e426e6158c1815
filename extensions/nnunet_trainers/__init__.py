"""Trainers for nnU-Net's commands, which finds them where ``nnUNet_extTrainer`` says.

nnU-Net imports what lies in this folder by itself, so nothing but trainers lies here.
"""

from pathlib import Path as _Path

__all__ = ["FOLDER"]

FOLDER = str(_Path(__file__).resolve().parent)
"""What ``nnUNet_extTrainer`` is to be."""
