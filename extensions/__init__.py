"""Parts of voxpipe that the engine does not import: each registers through entry points."""
