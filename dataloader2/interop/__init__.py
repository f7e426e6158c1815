"""Loaders of other libraries: torch's, torchdata's nodes, Lightning."""
