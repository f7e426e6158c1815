"""Catalogues of many volumes, read without opening them: manifests, statistics, checks."""
