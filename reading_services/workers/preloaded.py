"""Imported last by the fork server: what workers are going to share with it.

Importing this freezes the garbage collector's view of everything imported so far, so it is
for a process that does nothing but fork. A collection in a child would write into the
header of each object and copy every page of them.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
