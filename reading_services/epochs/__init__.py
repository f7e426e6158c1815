"""One pass over what a service runs: who makes which batch, and how it ends."""
