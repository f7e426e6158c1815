"""Where numbers at random come from: seeds of pipes, and the global generators."""
