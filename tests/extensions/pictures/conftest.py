"""Shared by the tests of pictures."""

import pytest


@pytest.fixture(autouse=True)
def closed_figures():
    """Close the figures of a test, which pyplot keeps."""
    yield
    from matplotlib import pyplot

    pyplot.close("all")
