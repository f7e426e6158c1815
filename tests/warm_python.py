"""Scripts of tests as forks of one Python process that has imported torch and voxpipe.

A new interpreter spends two seconds of processor time on these imports. Scripts that test the
imports or the command line of an interpreter need a new one. All others run here: as ``__main__``,
in the main thread of a process of their own, which ends as that of any script.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

MODULES = ("torch.distributed", "voxpipe.datapipes.iter", "voxpipe.dataloader2", "nibabel")
FILES_OF_TEXT = {"-c": "<string>", "-": "<stdin>"}  # by the argument of an interpreter
LONGEST_REQUEST = 2**17
TIMEOUT = 120


class WarmPython:
    """The process that forks, and the connection to it."""

    def __init__(self):
        self._connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.settimeout(TIMEOUT)
        with other:
            command = [sys.executable, __file__, str(other.fileno()), *sys.path]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[other.fileno()]
            )

    def run(
        self, script, *arguments, cwd=None, new_session=False, one_output=False, is_piped=False
    ):
        """Run a script, a path or its text; return its status, output and errors, or one output.

        A text is that of ``python -c``, or of ``python -`` with ``is_piped``.
        """
        text = script.read_text("utf-8") if isinstance(script, Path) else script
        name = str(script) if isinstance(script, Path) else "-" if is_piped else "-c"
        request = json.dumps([name, text, arguments, str(cwd or os.getcwd()), new_session]).encode()
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            files = [output.fileno(), (output if one_output else errors).fileno()]
            socket.send_fds(self._connection, [request], files)
            pid = int(self._connection.recv(100))
            try:
                status = int(self._connection.recv(100))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self._connection.recv(100)
                raise
            for file in (output, errors):
                file.seek(0)
            texts = output.read().decode(), errors.read().decode()
        return subprocess.CompletedProcess(name, os.waitstatus_to_exitcode(status), *texts)

    def close(self):
        """End the process, which waits for its next script."""
        self._connection.close()
        self._process.wait(TIMEOUT)


def next_script(connection):
    """Fork for every request; return its script in the child, and None after the last request."""
    while True:
        request, files, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, 2)
        if not request:
            return None
        child = os.fork()
        if not child:
            connection.close()
            name, text, arguments, folder, new_session = json.loads(request)
            for number, file in enumerate(files, 1):
                os.dup2(file, number)
                os.close(file)
            if new_session:
                os.setsid()
            os.chdir(folder)
            sys.argv = [name, *arguments]
            sys.path[0] = "" if name in FILES_OF_TEXT else str(Path(name).parent)
            return name, text
        for file in files:
            os.close(file)
        connection.send(str(child).encode())
        connection.send(str(os.waitpid(child, 0)[1]).encode())


def run_as_main(name, text):
    """Run a script in the place of this module."""
    is_text = name in FILES_OF_TEXT
    code, own = compile(text, FILES_OF_TEXT.get(name, name), "exec"), globals()
    values = {"__name__": "__main__", "__builtins__": __builtins__, "__spec__": None}
    own.clear()
    own.update(values if is_text else {**values, "__file__": name})
    exec(code, own)


if __name__ == "__main__":
    sys.path[:] = ["", *sys.argv[2:]]
    for module in MODULES:
        __import__(module)
    script = next_script(socket.socket(fileno=int(sys.argv[1])))
    if script is not None:
        run_as_main(*script)
