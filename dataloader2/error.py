"""The signals of a loader, under torchdata's path."""


class PauseIteration(StopIteration):
    """Raised in the place of a batch by an iterator that is paused: a ``for`` loop ends."""
