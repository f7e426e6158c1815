"""Resampling of voxels: the NumPy reference, and the native kernel."""
