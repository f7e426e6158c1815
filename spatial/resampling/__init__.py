"""From voxels to voxels: what sampling means, in NumPy, and the kernel that does the same."""
