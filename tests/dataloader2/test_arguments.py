"""Arguments that are a little wrong: one sentence each, at the call, with what is allowed."""

import copy
import pickle

import numpy as np
import pytest

import voxpipe as vp


def loader(*args, **kwargs):
    cases = [{"image": np.zeros((4, 4, 4))}]
    return vp.DataLoader2(vp.from_cases(cases).open_volume().batch_patches(1), *args, **kwargs)


def workers(**arguments):
    return vp.MultiProcessingReadingService(**arguments)


COUNT = "is a whole number of at least"
BYTES = "is a whole number of bytes, of at least"
DEFAULT = "or None for the default"
SERVICE = "reading_service=MultiProcessingReadingService(num_workers=2)"
SEED = "seed is a whole number from 0 to below 2**64"

WRONG_TYPES = [
    (lambda: workers(num_workers=1.5), f"num_workers {COUNT} 0, got 1.5"),
    (lambda: workers(num_workers=True), f"num_workers {COUNT} 0, got True"),
    (
        lambda: workers(threads_per_worker="2"),
        f"threads_per_worker {COUNT} 1, {DEFAULT}, got '2'",
    ),
    (lambda: workers(slot_bytes="1GB"), f"slot_bytes {BYTES} 0, {DEFAULT}, got '1GB'"),
    (lambda: workers(memory_bytes="1GB"), f"memory_bytes {BYTES} 1, {DEFAULT}, got '1GB'"),
    (lambda: loader(seed="a"), f"{SEED}, got 'a'"),
    (
        lambda: loader([], 2),
        f"reading_service is a reading service or None, got 2; give {SERVICE}",
    ),
    (
        lambda: loader([], vp.reading_services.InProcessReadingService),
        "a reading service is an object: write InProcessReadingService() instead of the class",
    ),
    (lambda: loader(num_workers=2), f"DataLoader2 has no num_workers; give {SERVICE}"),
    (
        lambda: loader(batch_size=2),
        "DataLoader2 has no batch_size; give .batch_patches(2) at the end of the chain",
    ),
    (lambda: loader(sed=2), "DataLoader2 has no sed; give seed=2"),
    (
        lambda: loader(colour=2),
        "DataLoader2 has no colour; it takes datapipe, datapipe_adapter_fn, reading_service, "
        "seed, fuse",
    ),
    (
        lambda: loader(generator=None),
        "DataLoader2 has no generator; give seed=...",
    ),
    *(
        (
            lambda given=given: workers(num_workers=2, **given),
            f"MultiProcessingReadingService has no {next(iter(given))}; give {stands}",
        )
        for given, stands in [
            (
                {"pin_memory": True},
                "nothing, as batches of workers are in page-locked memory once CUDA is in use",
            ),
            (
                {"batch_size": 2},
                ".batch_patches(2) or .batch(2) at the end of the chain",
            ),
            (
                {"drop_last": True},
                ".batch_patches(..., drop_last=True) or .batch(..., drop_last=True) in the chain",
            ),
            ({"shuffle": True}, ".shuffle() in the chain"),
            ({"collate_fn": len}, ".batch(...).collate(len) at the end of the chain"),
            ({"prefetch_factor": 4}, "worker_prefetch_cnt=4"),
            ({"timeout": 60}, "DataLoader2(..., [Timeout(item=60)])"),
            ({"persistant_worker": True}, "persistent_workers=True"),
        ]
    ),
    (
        lambda: vp.from_cases([{}]).to_device(None),
        'device of to_device() is "cpu", "cuda", "cuda:1" or another torch.device, got None',
    ),
    (
        lambda: loader().diagnose(step=5),
        "step is a function of a batch, e.g. one training step, or None, got 5",
    ),
    (lambda: loader().diagnose(batches=1.5), f"batches {COUNT} 1, got 1.5"),
    (
        lambda: loader().diagnose(seconds="1"),
        "each part is measured for some time in seconds, got seconds='1'",
    ),
    (
        lambda: loader().load_state_dict("x"),
        "a state is the dict that state_dict() returned, got 'x'",
    ),
]
WRONG_VALUES = [
    (lambda: workers(num_workers=-1), f"num_workers {COUNT} 0, got -1"),
    (
        lambda: workers(worker_prefetch_cnt=-1),
        f"worker_prefetch_cnt {COUNT} 0, or None for the default, got -1",
    ),
    (
        lambda: vp.reading_services.InProcessReadingService(memory_bytes=0),
        f"memory_bytes {BYTES} 1, {DEFAULT}, got 0",
    ),
    (lambda: loader(seed=-1), f"{SEED}, got -1"),
    (lambda: loader(seed=2**64), f"{SEED}, got 18446744073709551616"),
    (lambda: loader().set_epoch(-1), f"epoch {COUNT} 0, got -1"),
]


def is_refused(call, kind, text):
    with pytest.raises(kind) as e:
        call()

    assert str(e.value) == text


@pytest.mark.parametrize(("call", "text"), WRONG_TYPES, ids=[text for _, text in WRONG_TYPES])
def test_what_is_of_the_wrong_type_is_one_sentence(call, text):
    """A TypeError with the offending value and the allowed ones."""
    is_refused(call, TypeError, text)


@pytest.mark.parametrize(("call", "text"), WRONG_VALUES, ids=[text for _, text in WRONG_VALUES])
def test_what_is_out_of_range_is_one_sentence(call, text):
    """A ValueError with the offending value and the allowed ones."""
    is_refused(call, ValueError, text)


def test_numbers_of_numpy_count():
    """What indexes a list is a whole number."""
    made = workers(num_workers=np.int64(2), slot_bytes=np.uint32(2**21))

    assert (made.num_workers, made.slot_bytes) == (2, 2**21)


def test_what_a_service_does_not_have_is_told_with_what_it_has():
    """An argument that nothing stands for."""
    with pytest.raises(TypeError, match=r"has no colour; it takes num_workers, multiprocessing_"):
        workers(num_workers=2, colour=1)


def test_a_device_that_is_none_is_told_with_its_line():
    """No error of torch's, with twenty devices that are not there."""
    with pytest.raises(vp.errors.NoDevice) as e:
        vp.from_cases([{}]).to_device("gpuu")

    told = str(e.value)
    assert told.startswith("to_device('gpuu') names no device that torch has here")
    assert "test_arguments.py:" in told
    assert 'Give "cpu", "cuda", "cuda:1" or another torch.device.' in told


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("begun", [False, True])
def test_a_loader_that_is_copied_says_what_to_do(copied, begun):
    """It is made again from its chain and its state, before its first epoch and in it."""
    with loader() as made:
        iterator = iter(made)
        if begun:
            next(iterator)

        with pytest.raises(vp.errors.NotPicklable, match=r"(?s)a DataLoader2 .*load_state_dict"):
            copied(made)

        again = loader()
        again.load_state_dict(made.state_dict())
        assert len(list(again)) == (0 if begun else 1)
