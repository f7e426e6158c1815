"""What is kept on this machine between runs: where, how much, and how it gets there."""
