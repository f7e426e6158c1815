"""Map-style pipes."""
