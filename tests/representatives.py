"""Representatives of tests whose parameters form a product: the other combinations are slow.

``make test`` runs each value of each parameter at least once; ``make test-slow`` runs the
combinations that are left. A list of tuples in one ``parametrize`` is one parameter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest


def further_combinations(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the quick tests whose parameters other quick tests of the same function cover."""
    functions: dict[str, dict[tuple[str, ...], pytest.Item]] = defaultdict(dict)
    for item in items:
        call = getattr(item, "callspec", None)
        if call is not None and len(call._idlist) > 1 and item.get_closest_marker("slow") is None:
            functions[item.nodeid.partition("[")[0]][tuple(call._idlist)] = item
    for tests in functions.values():
        kept = representatives(tests)
        yield from (item for values, item in tests.items() if values not in kept)


def representatives(combinations: Iterable[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Return few combinations that have each value of each parameter.

    Each step takes the first of the combinations with the most values that are still missing.
    """
    missing = {combination: set(enumerate(combination)) for combination in combinations}
    found = set()
    while any(missing.values()):
        best = max(missing, key=lambda combination: len(missing[combination]))
        found.add(best)
        values = set(enumerate(best))
        missing = {combination: left - values for combination, left in missing.items()}
    return found
