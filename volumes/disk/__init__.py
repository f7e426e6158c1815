"""Voxels that lie uncompressed in a local file: mapped, by ``pread``, past the page cache."""
