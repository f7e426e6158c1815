"""Spatial plans, one frozen op per file, pull-back, resample."""
