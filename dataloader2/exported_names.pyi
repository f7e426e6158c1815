"""The names of extensions in voxpipe.dataloader2, written by tools/write_chained_forms.py."""

from . import adapter, error, graph, linter, random, reading_service, shuffle_spec, utils
from ..extensions.bridges.lightning_data import VoxpipeDataModule

__all__: list[str] = ['VoxpipeDataModule', 'adapter', 'error', 'graph', 'linter', 'random', 'reading_service', 'shuffle_spec', 'utils']
