"""Volume, the backend registry, one file per format."""
