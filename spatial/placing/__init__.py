"""Where patches are cut: evenly, in a region, where a mask says."""
