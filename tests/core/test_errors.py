import pickle

import pytest

from voxpipe.core import errors
from voxpipe.core.call_site import CallSite


def all_errors():
    found, todo = [], [errors.VoxpipeError]
    while todo:
        found.append(todo.pop())
        todo += found[-1].__subclasses__()
    return found


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_travels_and_tells(kind):
    """Each class pickles with its place, and its text has the four parts in order."""
    origin = CallSite("rotate(15)", "/a/train.py", 14)
    error = kind("scan.nii is gone", do="Look again.").at(origin, "case 3")

    there = pickle.loads(pickle.dumps(error))

    lines = ["scan.nii is gone", "  in case case 3", "  at .rotate(15)   train.py:14"]
    assert str(there).splitlines() == [*lines, "  Look again."]
    assert type(there) is kind


def test_the_closest_place_wins():
    """A place that is known is not overwritten further up."""
    near, far = CallSite("a()", "near.py", 1), CallSite("b()", "far.py", 2)

    assert errors.VoxpipeError("x").at(near).at(far).origin == near


def test_each_is_the_builtin_a_caller_expects():
    """Code that knows nothing of voxpipe can catch them."""
    assert issubclass(errors.VolumeNotFound, FileNotFoundError)
    assert issubclass(errors.ItemTimeout, TimeoutError)
    assert issubclass(errors.GridMismatch, ValueError)
    assert issubclass(errors.NotPicklable, TypeError)


def test_the_tree_in_the_docstring_is_the_tree():
    """The drawing in the module's docstring names every class."""
    for kind in all_errors():
        assert kind.__name__ in errors.__doc__
