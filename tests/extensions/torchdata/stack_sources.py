"""Sources for tests of pipes: without a length, with an error, that count what is asked of them."""

from __future__ import annotations

from itertools import islice

from torch.utils.data import IterDataPipe


class NoLength(IterDataPipe):
    """Yields items, and has no length."""

    def __init__(self, items):
        super().__init__()
        self.items = items

    def __iter__(self):
        yield from self.items


class Counting(IterDataPipe):
    """Yields whole numbers, and counts how many were asked for in all passes together."""

    def __init__(self, count):
        super().__init__()
        self.count = count
        self.asked = 0

    def __iter__(self):
        for number in range(self.count):
            self.asked += 1
            yield number

    def __len__(self):
        return self.count


class Failing(IterDataPipe):
    """Yields some numbers, then raises."""

    def __init__(self, count, error):
        super().__init__()
        self.count = count
        self.error = error

    def __iter__(self):
        yield from range(self.count)
        raise self.error


class Stream:
    """An open file that notes that it was closed."""

    def __init__(self):
        self.closed = False

    def close(self):
        self.closed = True

    def __iter__(self):
        return iter(())

    def read(self):
        return b""


def first(pipe, count):
    """Return the first items of a pass that is then left."""
    return list(islice(iter(pipe), count))
