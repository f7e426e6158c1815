"""The contract of stores of byte ranges, as tests: each client has a subclass.

::

    class TestMyStore(RangeStoreContract):
        @pytest.fixture
        def ranges(self, tmp_path):
            write(tmp_path, RANGE_OBJECTS)  # not with the code under test
            return MyRanges(tmp_path)
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from voxpipe.storage.ranges import RangeStore, ReadRange

RANGE_OBJECTS = {"a/first": bytes(range(256)), "a/b/second": b"0123456789" * 1000, "empty": b""}
"""Objects of the store in each test, by key."""


class RangeStoreContract:
    """Inherited tests; a subclass gives ``ranges``, a store that holds ``RANGE_OBJECTS``."""

    def test_whole_objects(self, ranges: RangeStore) -> None:
        """Each object is returned whole, also an empty one."""
        for key, content in RANGE_OBJECTS.items():
            assert _bytes(ranges.get(key)) == content

    def test_what_is_not_there(self, ranges: RangeStore) -> None:
        """A missing object is None, alone and among others."""
        parts = [ReadRange("a/none", 0, 4), ReadRange("a/first", 0, 4), ReadRange("a/none")]

        assert ranges.get("a/none") is None
        assert [*map(_bytes, ranges.get_ranges(parts))] == [None, b"\0\1\2\3", None]

    @pytest.mark.parametrize(
        ("start", "stop"), [(0, 1), (3, 200), (250, 400), (100, None), (-20, None), (0, None)]
    )
    def test_ranges(self, ranges: RangeStore, start: int, stop: int | None) -> None:
        """A range equals the same slice of the object; beyond the end it is shorter."""
        (answer,) = ranges.get_ranges([ReadRange("a/first", start, stop)])

        assert _bytes(answer) == RANGE_OBJECTS["a/first"][start:stop]

    def test_many_ranges(self, ranges: RangeStore) -> None:
        """Hundreds of ranges of several objects are returned in the order of the request."""
        keys = ["a/first", "a/b/second"]
        parts = [ReadRange(keys[n % 2], n, n + 7) for n in range(240)]

        answers = ranges.get_ranges(parts)

        assert [*map(_bytes, answers)] == [
            RANGE_OBJECTS[key][start:stop] for key, start, stop in parts
        ]
        assert ranges.get_ranges([]) == []

    def test_sizes(self, ranges: RangeStore) -> None:
        """Sizes are right, and a missing object is an error."""
        assert ranges.size("a/b/second") == 10_000
        with pytest.raises(FileNotFoundError):
            ranges.size("a/none")

    def test_keys(self, ranges: RangeStore) -> None:
        """Keys are listed for the root and for a prefix."""
        assert sorted(ranges.list()) == sorted(RANGE_OBJECTS)
        assert sorted(ranges.list("a/")) == ["a/b/second", "a/first"]

    def test_threads(self, ranges: RangeStore) -> None:
        """Several threads may read at the same time."""
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(ranges.get, ["a/first", "a/b/second"] * 8))

        first, second, *_ = map(_bytes, answers)
        assert first == RANGE_OBJECTS["a/first"]
        assert second == RANGE_OBJECTS["a/b/second"]
        assert len(set(map(_bytes, answers))) == 2


def _bytes(answer: Any) -> bytes | None:
    return None if answer is None else bytes(answer)
