"""The names of voxpipe.dataloader2.random by table, written by tools/write_chained_forms.py."""

from voxpipe.reading_services.ranks import dist_share_seed as dist_share_seed
from voxpipe.reading_services.replica import SeedGenerator as SeedGenerator

__all__: list[str] = ['SeedGenerator', 'dist_share_seed']
