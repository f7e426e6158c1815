"""Values of context keys: nested blocks, several keys at once, threads and their copies."""

import threading
from contextlib import suppress
from contextvars import copy_context

from voxpipe.core.context import ContextKey, holding, values_here

COLOUR, SIZE = ContextKey("red"), ContextKey(0)


def test_the_innermost_block_counts():
    """Each block restores the value around it, also after an exception."""
    with holding(COLOUR, "green"):
        with suppress(ZeroDivisionError), holding(COLOUR, "blue"):
            assert COLOUR.get() == "blue"
            raise ZeroDivisionError
        assert COLOUR.get() == "green"

    assert COLOUR.get() == "red"
    assert COLOUR not in values_here()


def test_a_block_sets_several_keys_and_keeps_the_others():
    """Keys of the outer block keep their values; the inner block returns its first value."""
    other = ContextKey(None)
    with holding(other, "kept"), holding(COLOUR, "green", {SIZE: 3}) as colour:
        assert (colour, COLOUR.get(), SIZE.get(), other.get()) == ("green", "green", 3, "kept")

    assert (COLOUR.get(), SIZE.get(), other.get()) == ("red", 0, None)


def test_keys_with_equal_defaults_differ():
    """A key is an identity: a value of one does not reach another."""
    one, other = ContextKey(0), ContextKey(0)
    with holding(one, 1):
        assert (one.get(), other.get()) == (1, 0)


def test_a_thread_has_the_values_of_its_context():
    """A new thread has the defaults; a copy of the context keeps the values of its time."""
    seen = []

    def look():
        seen.append(SIZE.get())

    with holding(SIZE, 1):
        copied = copy_context()
        with holding(SIZE, 2):
            threads = [
                threading.Thread(target=target) for target in (look, lambda: copied.run(look))
            ]
            for thread in threads:
                thread.start()
                thread.join(10)

    assert seen == [0, 1]
