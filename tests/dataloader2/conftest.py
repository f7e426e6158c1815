"""The cases and the two epochs that most tests of loaders compare with."""

import pytest
from scenes import six_batches, write_cases

import voxpipe as vp


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Return three cases on a disk."""
    return write_cases(tmp_path_factory.mktemp("cases"))


@pytest.fixture(scope="module")
def whole(cases):
    """Return two epochs of their six batches."""
    with vp.DataLoader2(six_batches(cases), seed=7) as loader:
        return list(loader), list(loader)
