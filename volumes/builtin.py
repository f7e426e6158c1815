"""The formats that voxpipe reads by itself: what the files in ``formats/`` list as ``FORMATS``.

The registry imports this when it is asked the first time. Files whose name begins with an
underscore import what takes long, and are not looked into.
"""

from importlib import import_module
from pkgutil import iter_modules

from . import formats
from .registry import add_formats

add_formats(
    each
    for module in iter_modules(formats.__path__, f"{formats.__name__}.")
    if not module.name.rpartition(".")[2].startswith("_")
    for each in getattr(import_module(module.name), "FORMATS", ())
)
