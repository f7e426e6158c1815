"""Pipes behind queues: one request, one response, errors and deaths told."""

import functools
import multiprocessing
import os
import queue
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

from voxpipe.core.errors import ItemTimeout, ProtocolViolation, WorkerDied
from voxpipe.dataloader2.communication import eventloop, messages
from voxpipe.dataloader2.communication import iter as of_items
from voxpipe.dataloader2.communication import map as of_keys
from voxpipe.dataloader2.communication.protocol import (
    EmptyQueue,
    IterDataPipeQueueProtocolClient,
    IterDataPipeQueueProtocolServer,
    MapDataPipeQueueProtocolClient,
)
from voxpipe.dataloader2.communication.queue import LocalQueue, ProcessQueue, ThreadingQueue
from voxpipe.dataloader2.random import SeedGenerator
from voxpipe.dataloader2.utils import WorkerInfo

ALONE = WorkerInfo(1, 0)


@pytest.fixture(autouse=True)
def threads_of_torch():
    """A loop sets them to one, which is for processes of its own."""
    count = torch.get_num_threads()
    state = torch.get_rng_state(), np.random.get_state()
    yield
    torch.set_num_threads(count)
    torch.set_rng_state(state[0])
    np.random.set_state(state[1])


@contextmanager
def served(*pipes, reset=None, timeout=30.0, init=None):
    """Serve pipes in a thread and yield a client of each."""
    asked = [ThreadingQueue("asked") for _ in pipes]
    answered = [ThreadingQueue("answered") for _ in pipes]
    if len(pipes) == 1:
        loop = functools.partial(
            eventloop.DataPipeToQueuesLoop,
            pipes[0],
            asked[0],
            answered[0],
            "a thread",
            ALONE,
            init,
            reset,
        )
    else:
        loop = functools.partial(
            eventloop.MultipleDataPipesToQueuesLoop,
            pipes,
            asked,
            answered,
            "a thread",
            ALONE,
            None,
            reset,
        )
    thread = threading.Thread(target=loop)
    thread.start()
    clients = [
        of_items.QueueWrapper(IterDataPipeQueueProtocolClient(*pair), timeout=timeout)
        for pair in zip(asked, answered, strict=True)
    ]
    try:
        yield clients if len(pipes) > 1 else clients[0]
    finally:
        for client in clients:
            client.protocol.request_terminate()
        for client in clients:
            client.protocol.get_response_terminate(timeout=30)
        thread.join()


class TestQueues:
    @pytest.mark.parametrize("kind", [LocalQueue, ThreadingQueue])
    def test_first_in_first_out(self, kind):
        """Torchdata's hand out the last one first."""
        letters = kind()
        for letter in "abc":
            letters.put(letter)

        assert [letters.get() for _ in range(3)] == ["a", "b", "c"]

    def test_a_wait_ends(self):
        """With Empty, at once or after the timeout; a local queue never waits."""
        with pytest.raises(queue.Empty):
            ThreadingQueue().get(block=False)
        with pytest.raises(queue.Empty):
            ThreadingQueue().get(timeout=0.01)
        with pytest.raises(queue.Empty):
            LocalQueue().get()

    def test_a_getter_is_woken_by_a_putter(self):
        """It waits in the queue."""
        letters = ThreadingQueue()
        got = []
        thread = threading.Thread(target=lambda: got.append(letters.get(timeout=30)))
        thread.start()
        letters.put("a")
        thread.join()

        assert got == ["a"]

    def test_what_cannot_be_pickled_is_told_to_who_puts_it(self):
        """Multiprocessing's queue prints it in another thread, and the getter waits for ever."""
        between = ProcessQueue(multiprocessing)
        try:
            with pytest.raises((TypeError, AttributeError)):
                between.put(threading.Lock())
            between.put("a")
            assert between.get(timeout=30) == "a"
            with pytest.raises(queue.Empty):
                between.get(block=False)
        finally:
            between.close()


class TestTurns:
    def test_one_request_at_a_time(self):
        """And one response to each."""
        client = IterDataPipeQueueProtocolClient(LocalQueue(), LocalQueue())
        with pytest.raises(ProtocolViolation, match="nothing was asked"):
            client.get_response_next()
        client.request_next()
        with pytest.raises(ProtocolViolation, match="while GetNextRequest is not answered"):
            client.request_limit(3)
        with pytest.raises(EmptyQueue, match="GetNextRequest"):
            client.get_response_next()

        assert client.waiting_for_response()

    def test_a_response_answers_what_was_asked(self):
        """And nothing else."""
        asked, answered = LocalQueue(), LocalQueue()
        server = IterDataPipeQueueProtocolServer(asked, answered)
        client = IterDataPipeQueueProtocolClient(asked, answered)
        with pytest.raises(EmptyQueue):
            server.get_new_request()
        with pytest.raises(ProtocolViolation, match="nothing was asked"):
            server.response_next(1)
        client.request_next()
        server.get_new_request()
        with pytest.raises(ProtocolViolation, match="is not answered yet"):
            server.get_new_request()
        with pytest.raises(ProtocolViolation, match="PauseResponse does not answer"):
            server.response_pause()
        server.response_next(5)

        assert client.get_response_next().value == 5
        client.request_next()
        answered.put(messages.LenResponse(3))
        with pytest.raises(ProtocolViolation, match="LenResponse came in response"):
            client.get_response_next()


def half(n):
    return n % 2


def double(x):
    return 2 * x


def fail_at_two(x):
    if x == 2:
        raise KeyError("two")
    return x


class TestItems:
    def test_items_come_in_order_and_again_after_a_reset(self):
        """Each epoch is whole."""
        with served(IterableWrapper(range(5)).map(double)) as client:
            for _ in range(2):
                client.request_reset_epoch(SeedGenerator(3))
                client.get_reset_epoch_response()
                assert list(client) == [0, 2, 4, 6, 8]
                assert list(client) == []

    def test_the_seeds_of_a_reset_rule_the_order(self):
        """Of shuffles in the graph."""
        orders = []
        with served(IterableWrapper(range(20)).shuffle()) as client:
            for seed in (1, 1, 2):
                client.request_reset_epoch(SeedGenerator(seed))
                client.get_reset_epoch_response()
                orders.append(list(client))

        assert orders[0] == orders[1] != orders[2]

    def test_an_error_comes_back_as_itself_and_the_epoch_stays_failed(self):
        """With the traceback of the other side; a reset begins anew."""
        with served(IterableWrapper(range(5)).map(fail_at_two)) as client:
            items = iter(client)
            assert [next(items), next(items)] == [0, 1]
            for _ in range(2):
                with pytest.raises(KeyError, match="two") as raised:
                    next(items)
            assert "fail_at_two" in str(raised.value.__cause__)
            assert "in a thread 0" in str(raised.value.__cause__)
            client.request_reset_epoch(SeedGenerator(3))
            client.get_reset_epoch_response()
            assert next(client) == 0

    @pytest.mark.parametrize("kind", ["limit", "pause", "resume", "reset_epoch"])
    def test_errors_of_every_request_come_back(self, kind):
        """Torchdata guards GetNext alone: any other error hangs the client."""

        def fail(*arguments):
            raise OSError(5, f"in {kind}")

        seeds = (SeedGenerator(3),) if kind == "reset_epoch" else ()
        arguments = (1, fail) if kind == "limit" else (*seeds, fail)
        with served(IterableWrapper(range(5))) as client:
            getattr(client, f"request_{kind}")(*arguments)
            with pytest.raises(OSError, match=f"in {kind}") as raised:
                getattr(client, f"get_{kind}_response")()
            assert raised.value.errno == 5
            assert next(client) == 0

    def test_an_error_of_the_init_function_comes_with_the_first_request(self):
        """Whatever that is."""

        def fail(pipe):
            raise RuntimeError("no start")

        with served(IterableWrapper(range(5)), init=fail) as client:
            with pytest.raises(RuntimeError, match="no start"):
                next(client)
            client.request_reset_epoch(SeedGenerator(3))
            with pytest.raises(RuntimeError, match="no start"):
                client.get_reset_epoch_response()

    def test_an_unknown_request_is_told(self):
        """It is answered as any other."""
        with served(IterableWrapper(range(5))) as client:
            client.protocol.send(messages.LenRequest())
            with pytest.raises(ProtocolViolation, match="LenRequest"):
                client.protocol.get_response_next(block=True, timeout=30)

    def test_a_response_that_does_not_come_is_told(self):
        """After the timeout."""
        pair = ThreadingQueue(), ThreadingQueue()
        client = of_items.QueueWrapper(IterDataPipeQueueProtocolClient(*pair), timeout=0.01)

        with pytest.raises(ItemTimeout, match=r"GetNextRequest within 0\.01 s"):
            next(client)
        with pytest.raises(of_items.NotAvailable):
            client.nonblocking_next()
        pair[1].put(messages.GetNextResponse(7))
        assert client.nonblocking_next() == 7

    def test_a_limit_holds_until_resumed(self):
        """Then once more."""
        with served(IterableWrapper(range(5))) as client:
            client.request_limit(2)
            client.get_limit_response()
            parts = [list(client)]
            while parts[-1]:
                client.request_resume()
                client.get_resume_response()
                parts.append(list(client))

        assert parts == [[0, 1], [2, 3], [4], []]

    def test_paused_there_are_no_items(self):
        """None is lost."""
        with served(IterableWrapper(range(3))) as client:
            assert next(client) == 0
            client.request_pause()
            client.get_pause_response()
            assert list(client) == []
            client.request_resume()
            client.get_resume_response()
            assert list(client) == [1, 2]

    def test_pausing_reaches_every_pipe(self):
        """From the end to the source, and back."""
        called = []

        class Told(IterableWrapper):
            def pause(self):
                called.append("pause")

            def resume(self):
                called.append("resume")

        with served(Told(range(3), deepcopy=False).map(double)) as client:
            client.request_pause()
            client.get_pause_response()
            client.request_resume()
            client.get_resume_response()

        assert called == ["pause", "resume"]

    def test_ended_in_the_middle_of_a_request(self):
        """The response that is under way is passed over."""
        with served(IterableWrapper(range(3))) as client:
            client.protocol.request_next()


class TestBranches:
    def test_branches_of_a_demux_are_reset_together(self):
        """Each client has its own queues; items are those of one pass."""
        even, odd = IterableWrapper(range(6)).demux(2, half)
        with served(even, odd) as (a, b):
            for _ in range(2):
                for client in (a, b):
                    client.request_reset_epoch(SeedGenerator(3))
                for client in (a, b):
                    client.get_reset_epoch_response()
                assert (list(a), list(b)) == ([0, 2, 4], [1, 3, 5])

    def test_an_error_of_what_is_done_once_goes_to_all(self):
        """Each asked for it."""

        def fail(pipe):
            raise ValueError("no reset")

        even, odd = IterableWrapper(range(6)).demux(2, half)
        with served(even, odd) as clients:
            for client in clients:
                client.request_reset_epoch(SeedGenerator(3), fail)
            for client in clients:
                with pytest.raises(ValueError, match="no reset"):
                    client.get_reset_epoch_response()

    def test_nobody_waits_for_a_client_that_has_ended(self):
        """The others are told."""
        even, odd = IterableWrapper(range(6)).demux(2, half)
        with served(even, odd) as (a, b):
            a.request_reset_epoch(SeedGenerator(3))
            b.protocol.request_terminate()
            with pytest.raises(ProtocolViolation, match="another client"):
                a.get_reset_epoch_response()
            b.protocol.request_served()


class TestKeys:
    def test_items_and_length_are_asked_for(self):
        """By key; errors come back, and the pipe stays usable."""
        pair = ThreadingQueue(), ThreadingQueue()
        loop = (SequenceWrapper([5, 6, 7]), *pair, "a thread", ALONE)
        thread = threading.Thread(target=eventloop.DataPipeToQueuesLoop, args=loop)
        thread.start()
        client = of_keys.QueueWrapperForMap(MapDataPipeQueueProtocolClient(*pair), timeout=30)
        try:
            assert (len(client), client[1], client[2]) == (3, 6, 7)
            with pytest.raises(IndexError):
                client[9]
            with pytest.raises(TypeError):
                client["a"]
            assert client[0] == 5
        finally:
            client.protocol.request_terminate()
            client.protocol.get_response_terminate(timeout=30)
            thread.join()


def exit_at_two(x):
    if x == 2:
        os._exit(3)
    return x


def interrupt_at_two(x):
    if x == 2:
        raise KeyboardInterrupt
    return x


def hold_a_lock(x):
    return threading.Lock() if x == 1 else x


@contextmanager
def process_of(pipe):
    context = multiprocessing.get_context("fork")
    process, asked, answered = eventloop.CreateProcessForDataPipeline(
        context, pipe, "a worker", ALONE
    )
    process.start()
    client = of_items.QueueWrapper(IterDataPipeQueueProtocolClient(asked, answered), timeout=60)
    try:
        yield client
    finally:
        if process.is_alive():
            client.protocol.request_terminate()
        process.join(30)
        asked.close()
        answered.close()
        process.close()


class TestProcess:
    def test_items_of_another_process(self):
        """And what cannot be pickled is told; the next item comes."""
        with process_of(IterableWrapper(range(4)).map(hold_a_lock)) as client:
            assert next(client) == 0
            with pytest.raises((TypeError, AttributeError, RuntimeError)):
                next(client)
            assert list(client) == [2, 3]

    @pytest.mark.parametrize("function", [exit_at_two, interrupt_at_two])
    def test_the_end_of_a_process_is_told(self, function):
        """At once, not after the timeout."""
        with process_of(IterableWrapper(range(4)).map(function)) as client:
            assert [next(client), next(client)] == [0, 1]
            with pytest.raises(WorkerDied, match=r"exit status 3|KeyboardInterrupt"):
                next(client)
