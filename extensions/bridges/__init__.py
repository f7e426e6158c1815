"""Bridges to MONAI, TorchIO, nnU-Net, Lightning and torch, and layouts of data sets."""
