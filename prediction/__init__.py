"""Prediction of whole volumes: a model run over windows, blended out of core, brought back."""
