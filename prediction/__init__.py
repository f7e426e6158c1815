"""Prediction of whole volumes: windows, model, blending out of core, resampling."""
