"""The places where patches are cut: evenly, in a region, where a mask says."""
