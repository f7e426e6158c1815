"""Adapters: each rewrites a graph before it runs."""

from ..first_use import export as _export
from .adapter import Adapter as Adapter
from .adapter import Annotation as Annotation
from .adapter import note_of as note_of
from .fuse import FuseSpatial as FuseSpatial
from .lint import Lint as Lint
from .lint import Mistake as Mistake
from .on_error import OnError as OnError
from .profile import Profile as Profile
from .timeout import Limits as Limits
from .timeout import Timeout as Timeout
from .torchdata import CacheTimeout as CacheTimeout
from .torchdata import Shuffle as Shuffle

_export(globals())
