"""The formats of the engine: those that the files in ``formats/`` list as ``FORMATS``."""

from ..first_use import list_names
from . import formats
from .registry import add_formats

add_formats(list_names(formats.__name__, formats.__path__, "FORMATS"))
