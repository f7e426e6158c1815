"""Epochs that run at the same time share the volumes that are open; the last one closes them."""

import gc

import pytest
from scenes import write_cases

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.volumes import close_volumes
from voxpipe.volumes.session import SESSION


@pytest.fixture(autouse=True)
def no_volume_is_open():
    """Close what tests of other files left open: the process has one set of handles."""
    close_volumes()


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"), count=2)


def loader(cases):
    pipe = vp.from_cases(cases).open_volume().lazy_patch(4, samples_per_volume=3).batch_patches(1)
    return vp.DataLoader2(pipe, seed=1)


def headers_read(act):
    gc.collect()
    before = IO_COUNTERS.headers
    act()
    return IO_COUNTERS.headers - before


def test_validation_inside_training_opens_nothing_again(cases):
    """An inner epoch that ends leaves the volumes of the outer one open."""
    train, validate = loader(cases), loader(cases)

    def alone():
        for _ in train:
            pass

    def nested():
        for _ in train:
            for _ in validate:
                pass

    assert headers_read(nested) == headers_read(alone) > 0


def test_the_last_epoch_closes(cases):
    """Whichever it is, and also one that is dropped."""
    first, second = iter(loader(cases)), iter(loader(cases))
    next(first)
    next(second)
    assert list(first)
    assert len(SESSION.handles) > 0

    del second
    gc.collect()

    assert len(SESSION.handles) == 0


def test_an_epoch_that_ends_twice_counts_once(cases):
    """Closing again what is closed takes nothing from an epoch that still runs."""
    service = vp.reading_services.InProcessReadingService()
    work = service.distribute(vp.from_cases(cases).open_volume().batch_patches(1))
    first, second = (service.epoch(work, 1, 0) for _ in range(2))
    next(second)

    first.close()
    first.close()

    assert len(SESSION.handles) > 0
    second.close()
    assert len(SESSION.handles) == 0
