"""Value ops: pure kernels, one per file."""
