"""Nothing stays behind a consumer, however that ends: no folder of sockets, and no word."""

import os
import socket
import subprocess
import sys
import textwrap

import pytest

from voxpipe.reading_services.workers.script import remove_folders_of_the_dead, remove_notes
from voxpipe.reading_services.workers.worker import ORPHAN_EXIT

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no such sockets")
SCRIPT = """
    import os, signal, sys
    import voxpipe as vp
    from voxpipe.reading_services.workers.script import preload
    from multiprocessing import forkserver, get_context

    if __name__ == "__main__":
        preload(get_context("forkserver"), [])
        forkserver.ensure_running()
        print(*os.listdir(os.environ["TMPDIR"]), forkserver._forkserver._forkserver_pid, flush=True)
        sys.stdin.readline()
        {end}
"""


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_the_server_takes_its_folder_away(tmp_path, end):
    """It ends after its consumer."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT).format(end=end))
    folder = tmp_path / "t"
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        [sys.executable, str(script)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as consumer:
        made, _ = consumer.stdout.readline().split()
        assert made.startswith("pymp-")
        # The server holds the other end of this one too, so its end is the end of the output.
        consumer.stdin.write("go\n")
        consumer.stdin.flush()
        assert consumer.stdout.read() == ""

    assert os.listdir(folder) == []


def test_what_the_dead_have_left_is_taken_away(tmp_path):
    """Not where a server listens, nor with other files, nor an empty one of the last hour."""
    for name in ("pymp-dead", "pymp-alive", "pymp-other", "pymp-empty", "pymp-old", "else"):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / "pymp-old", (0, 0))
    (tmp_path / "pymp-other" / "arena").write_bytes(b"")
    heard = [_bound(tmp_path / name / "listener-a") for name in ("pymp-dead", "pymp-alive", "else")]
    for index in (2, 0):
        heard.pop(index).close()

    remove_folders_of_the_dead(str(tmp_path))

    assert sorted(os.listdir(tmp_path)) == ["else", "pymp-alive", "pymp-empty", "pymp-other"]
    heard[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        heard[0].accept()
    heard[0].close()


def _bound(path):
    one = socket.socket(socket.AF_UNIX)
    one.bind(str(path))
    one.listen()
    return one


ALONE = """
from multiprocessing import Pipe
from voxpipe.reading_services.workers import worker

worker._listen = lambda *_: None  # the thread that else notices it, perhaps later
consumers, workers = Pipe()
consumers.close()
worker.run_worker(workers, [], b"", worker.WorkerSettings(False, 1, {}, {}, None))
"""


def test_a_worker_without_a_consumer_says_nothing():
    """It ends where it would send to nobody."""
    ended = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, timeout=60)

    assert (ended.returncode, ended.stdout, ended.stderr) == (ORPHAN_EXIT, b"", b"")


def test_notes_of_one_consumer_are_removed(tmp_path):
    """Those of another consumer in the same folder, and sockets, stay."""
    for name in ("start-7-0", "start-7-12", "start-71-0", "listener-x"):
        (tmp_path / name).touch()
    remove_notes(str(tmp_path), 7)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["listener-x", "start-71-0"]
