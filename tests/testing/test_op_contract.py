"""A contract of an op names the method that a subclass lacks."""

import pytest

from voxpipe.testing import ValueOpContract


@pytest.mark.parametrize("method", ["make", "make_nothing"])
def test_a_missing_method_is_named(method):
    """With the result that it has to return."""
    with pytest.raises(NotImplementedError, match=rf"define {method}\(self\).*: return the op"):
        getattr(ValueOpContract(), method)()
