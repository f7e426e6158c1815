"""Adapters: each rewrites a graph before it runs."""

from typing import TYPE_CHECKING

from ..first_use import at_first_use
from ..first_use import extensions as _extensions
from .adapter import Adapter as Adapter
from .adapter import Annotation as Annotation
from .adapter import note_of as note_of
from .fuse import FuseSpatial as FuseSpatial
from .lint import Lint as Lint
from .lint import Mistake as Mistake
from .lint import register_lint_rule as register_lint_rule
from .lint import unregister_lint_rule as unregister_lint_rule
from .on_error import OnError as OnError
from .profile import Profile as Profile
from .timeout import Limits as Limits
from .timeout import Timeout as Timeout

if TYPE_CHECKING:
    from .exported_names import *  # noqa: F403
# A star import and `dir` list these, and the adapters of installed packages.
__getattr__, __dir__ = at_first_use(globals(), {}, points=_extensions("adapters"))
