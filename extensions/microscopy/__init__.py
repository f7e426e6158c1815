"""Files of microscopes: sequences of planes, OME-TIFF, OME-Zarr, and the readers of bioio."""
