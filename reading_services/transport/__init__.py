"""The transport of batches between processes."""
