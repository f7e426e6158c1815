"""How batches travel between processes."""
