"""The formats that voxpipe reads by itself: what the files in ``formats/`` list as ``FORMATS``.

The registry imports this when it is asked the first time.
"""

from ..first_use import list_names
from . import formats
from .registry import add_formats

add_formats(list_names(formats.__name__, formats.__path__, "FORMATS"))
