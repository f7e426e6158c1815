"""The demo's modules are imported as those of a script: from its own folder."""

import sys

from checkout import ROOT

sys.path.insert(0, str(ROOT / "examples" / "demo"))
