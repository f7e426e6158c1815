"""The graph of pipes: walk, rewrite, verify, explain, cut. Knows no concrete pipe."""

from .cut import Cut, NoCut, cut
from .dealing import before_dealing, dealing_point
from .drawing import to_dot, to_mermaid
from .explain import explain_graph, explain_rewritten
from .fingerprint import fingerprint, fingerprint_of_pipe, is_switched_off
from .node import (
    Pipe,
    Traits,
    chained_name,
    declares_traits,
    describe,
    is_pipe,
    origin_of,
    parents_of,
    register_traits,
    traits_of,
    with_parents,
)
from .raised import item_at, raised_at, standing_at, working_at
from .rebuild import clone, rebuilt
from .rewrite import Change, Refused, Rewritten, Rule, Site, settle, sweep
from .surgery import insert_after, remove_pipe, replace_pipe
from .verify import verify
from .walk import find, is_read_twice, readers, walk

__all__ = [
    "Change",
    "Cut",
    "NoCut",
    "Pipe",
    "Refused",
    "Rewritten",
    "Rule",
    "Site",
    "Traits",
    "before_dealing",
    "chained_name",
    "clone",
    "cut",
    "dealing_point",
    "declares_traits",
    "describe",
    "explain_graph",
    "explain_rewritten",
    "find",
    "fingerprint",
    "fingerprint_of_pipe",
    "insert_after",
    "is_pipe",
    "is_read_twice",
    "is_switched_off",
    "item_at",
    "origin_of",
    "parents_of",
    "raised_at",
    "readers",
    "rebuilt",
    "register_traits",
    "remove_pipe",
    "replace_pipe",
    "settle",
    "standing_at",
    "sweep",
    "to_dot",
    "to_mermaid",
    "traits_of",
    "verify",
    "walk",
    "with_parents",
    "working_at",
]
