"""Run a function in every rank of a torch.distributed job on this machine, over gloo."""

import datetime
import gc
import multiprocessing as mp
import pickle
import traceback

import torch.distributed as dist

# A rank that does not end hangs the test, which then fails with every stack.
SECONDS = 300


def run_ranks(world, function, *args):
    """Return what ``function(rank, *args)`` returned in each of ``world`` new processes."""
    # Port 0: the system chooses one that is free, and the ranks are told.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = mp.get_context("forkserver")
    pipes = [context.Pipe(duplex=False) for _ in range(world)]
    ranks = [
        context.Process(
            target=_rank, args=(rank, world, store.port, pipes[rank][1], function, args)
        )
        for rank in range(world)
    ]
    for rank in ranks:
        rank.start()
    for _, theirs in pipes:
        theirs.close()
    try:
        told = [_told(ours) for ours, _ in pipes]
    finally:
        for (ours, _), rank in zip(pipes, ranks, strict=True):
            ours.close()
            rank.join(30)
            rank.kill()
            rank.join()
            rank.close()
        del store
        gc.collect()
    failed = [text for text, _ in told if text]
    assert not failed, "\n".join(failed)
    return [result for _, result in told]


def _told(pipe):
    assert pipe.poll(SECONDS), "a rank did not end"
    return pickle.loads(pipe.recv_bytes())


def _rank(rank, world, port, pipe, function, args):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    limit = datetime.timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    try:
        told = "", function(rank, *args)
    except BaseException:
        told = f"rank {rank}: {traceback.format_exc()}", None
    # Plain pickle: torch's own would send descriptors of a process that has ended.
    pipe.send_bytes(pickle.dumps(told))
    dist.destroy_process_group()


def plain(batches):
    """Return batches whose tensors can be pickled: as arrays."""
    return [
        {key: value if key == "meta" else value.numpy().copy() for key, value in batch.items()}
        for batch in batches
    ]
