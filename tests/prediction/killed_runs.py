"""Predictions in a process of their own, which may be killed."""

import multiprocessing
import signal


def windows_run(predict_windows, *arguments, is_killed):
    """Return how many windows a function's process ran, and sent; None if it was killed."""
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=predict_windows, args=(sender, *arguments))
    with receiver, sender:
        process.start()
        process.join(120)
        count = receiver.recv() if receiver.poll() else None
    assert process.exitcode == (-signal.SIGKILL if is_killed else 0)
    process.close()
    return count
