"""One spatial op a file: it draws parameters and composes a plan; it moves no voxel."""
