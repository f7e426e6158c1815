"""Threads that iterate over one loader at once, each on its own: one has the epoch, others know."""

import contextlib
import functools
import os
import random
import sys
import threading
import traceback

import pytest
from loaders import adapters, whole_graph
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import IteratorInvalidated, LoaderShutDown
from voxpipe.datapipes.iter import Prefetcher, ToDevice

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="starts workers by forks")
ITEMS, MOST_THREADS, ACTS_OF_EACH = 8, 3, 6
# One that does not end by then waits for ever; its stacks are printed before.
WAIT = 60.0


def share(seed):
    """Iterate, ask, save, load, set and shut down in threads; then have a whole epoch."""
    rng = random.Random(seed)
    sys.setswitchinterval(rng.choice([1e-6, 1e-4, 5e-3]))
    pipe = rng.choice([_split, whole_graph, _behind])(ITEMS)
    loader = vp.DataLoader2(pipe, adapters(rng), _service(rng), seed=seed)
    order_of = _orders(pipe, seed)
    faults = []
    draws = [random.Random(rng.random()) for _ in range(rng.randint(2, MOST_THREADS))]
    shared = [iter(loader)]
    arguments = [(loader, shared, draw, order_of, faults) for draw in draws]
    threads = [threading.Thread(target=_use, args=of, daemon=True) for of in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
    assert not faults, "\n\n".join(faults)
    if rng.random() < 0.5:
        _end_beside_others(loader, shared[0], rng)
        return
    loader.set_epoch(1)
    assert list(loader) == order_of(1)
    loader.shutdown()


def _split(items):
    return IterableWrapper(range(items)).shuffle().map(abs)


def _behind(items):
    return Prefetcher(ToDevice(_split(items), "cpu"), 2)


def _service(rng):
    workers = rng.choice([0, 1, 2])
    if not workers:
        return vp.reading_services.InProcessReadingService(prefetch_cnt=rng.choice([0, 2]))
    stay = rng.choice([None, True])
    return vp.MultiProcessingReadingService(workers, "fork", persistent_workers=stay)


def _orders(pipe, seed):
    lock, alone = threading.Lock(), vp.DataLoader2(pipe, seed=seed)

    @functools.cache
    def of(epoch):
        alone.set_epoch(epoch)
        return list(alone)

    def order_of(epoch):
        with lock:
            return of(epoch)

    return order_of


def _use(loader, shared, rng, order_of, faults):
    try:
        for _ in range(ACTS_OF_EACH):
            rng.choice(ACTS)(loader, shared, rng, order_of)
    except BaseException:
        faults.append(traceback.format_exc())


def _iterate(loader, shared, rng, order_of):
    """Take some batches of an epoch of one's own, until another thread takes over."""
    batches, taken = iter(loader), []
    if rng.random() < 0.5:
        shared[0] = batches
    most = rng.choice([1, 3, ITEMS + 1])
    number = batches._progress.position.epoch
    begun = batches._progress.position.cursor.next
    try:
        while len(taken) < most:
            taken.append(next(batches))
    except StopIteration:
        assert shared[0] is batches or begun + len(taken) == ITEMS, (begun, taken)
    except IteratorInvalidated:
        pass
    if shared[0] is not batches and batches._progress.position.epoch == number:
        assert _is_part(taken, order_of(number), begun), (number, begun, taken)


def _is_part(taken, order, begun):
    """Whether they came in order; others may have had some of them."""
    rest = iter(order[begun:])
    return all(one in rest for one in taken)


def _ask(loader, shared, rng, order_of):
    """Take a batch that another thread may wait for, too."""
    with contextlib.suppress(StopIteration, IteratorInvalidated):
        assert 0 <= next(shared[0]) < ITEMS


def _save(loader, shared, rng, order_of):
    state = loader.state_dict()
    assert 0 <= state["next_batch"] <= ITEMS
    if rng.random() < 0.3:
        loader.load_state_dict(state)


def _set(loader, shared, rng, order_of):
    loader.set_epoch(rng.randrange(3))


ACTS = [_iterate, _iterate, _iterate, _ask, _save, _set]


def _end_beside_others(loader, batches, rng):
    """Shut down while others iterate, ask and save."""
    faults = []

    def go_on():
        try:
            while True:
                if rng.random() < 0.5:
                    for _batch in loader:
                        pass
                next(batches, None)
                loader.state_dict()
        except (IteratorInvalidated, LoaderShutDown):
            if not loader._shut_down:
                go_on()
        except BaseException as error:
            faults.append(error)

    others = [threading.Thread(target=go_on, daemon=True) for _ in range(2)]
    for other in others:
        other.start()
    threading.Event().wait(rng.random() * 0.05)
    loader.shutdown()
    for other in others:
        other.join(WAIT)
    assert not any(other.is_alive() for other in others), "a deadlock"
    assert not faults, faults
    with pytest.raises(LoaderShutDown):
        iter(loader)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_right_batches_or_a_named_error(attacks):
    """No error of another kind, no batch that is not the epoch's, nobody waits for ever."""
    before = sys.getswitchinterval()
    try:
        attacks.each(share, quick=4, whole=200)
    finally:
        sys.setswitchinterval(before)
