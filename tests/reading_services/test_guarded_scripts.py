"""What a script defines or starts only when it is run: told before, or instead of, a worker's."""

import io
import tarfile
import threading

import pytest
from torch.utils.data.datapipes.iter import FileOpener, IterableWrapper

from voxpipe.core.errors import NotPicklable
from voxpipe.dataloader2 import DataLoader2, MultiProcessingReadingService
from voxpipe.reading_services.workers.payload import is_guarded

HEAD = """
from voxpipe.datapipes.iter import IterableWrapper
from voxpipe.dataloader2 import DataLoader2, MultiProcessingReadingService
"""
UNDER_GUARD = """
if __name__ == "__main__":
    def own(number):
        return number

    DataLoader2(IterableWrapper(range(4)).map(own), None, MultiProcessingReadingService(2))
    print("made")
"""
WITHOUT_GUARD = """
def own(number):
    return number

print(list(DataLoader2(IterableWrapper(range(4)).map(own), None, MultiProcessingReadingService(2))))
"""
DEFINITIONS = """
import os
def above(): ...
class Above: ...
try:
    import json as in_try
except ImportError:
    in_handler = None
if os.name == "posix":
    def in_if(): ...
if "__main__" == __name__ and os.name:
    def below(): ...
    class Below: ...
    either, assigned = 1, 2
    def above(): ...
else:
    def imported(): ...
    def either(): ...
"""


def run(python, folder, code):
    """Run a script; return its exit status, output and errors."""
    script = folder / "script.py"
    script.write_text(HEAD + code)
    ended = python.run(script)
    return ended.returncode, ended.stdout, ended.stderr


def test_a_function_under_the_guard_is_refused_at_construction(warm_python, tmp_path):
    """With its pipe, its line and what to do, in one message."""
    code, out, said = run(warm_python, tmp_path, UNDER_GUARD)

    last = said[said.index("NotPicklable") :]
    assert (code, out) == (1, "")
    assert 'cannot import own, which is defined under if __name__ == "__main__":' in last
    assert "at .map(own)   script.py:" in last
    assert last.rstrip().endswith("Move it above that line, or use num_workers=0.")
    assert said.count("Traceback") == 1


def test_a_loop_without_a_guard_is_told_once(warm_python, tmp_path):
    """Workers end quietly, and the last line is what to do about it."""
    code, out, said = run(warm_python, tmp_path, WITHOUT_GUARD)

    assert (code, out) == (1, "")
    assert said.count("Traceback") == 1
    assert "imported the script, which began the loop again" in said
    assert said.rstrip().endswith("workers import the script.")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("above", False), ("Above", False), ("in_try", False), ("in_handler", False)),
        *(("in_if", False), ("imported", False), ("either", False), ("unknown", False)),
        *(("below", True), ("Below", True), ("Below.method", True), ("assigned", True)),
    ],
)
def test_which_names_exist_only_under_the_guard(tmp_path, name, expected):
    """Those that no import of the script defines; of others nothing is said."""
    script = tmp_path / "script.py"
    script.write_text(DEFINITIONS)

    class Thing:
        __qualname__ = name

    assert is_guarded(Thing, {"init_main_from_path": str(script)}) == expected


def test_a_script_that_cannot_be_parsed_refuses_nothing(tmp_path):
    """Its worker will say what is wrong."""
    script = tmp_path / "script.py"
    script.write_text("def (")

    assert not is_guarded(run, {"init_main_from_path": str(script)})
    assert not is_guarded(run, {"init_main_from_path": str(tmp_path / "none.py")})


def lock(number):
    return threading.Lock()


def members(folder):
    """Return a chain over the members of an archive, as streams."""
    path = folder / "a.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("s0.cls")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"1"))
    return FileOpener([str(path)], "b").load_from_tar()


def refused(pipe):
    """Return how an epoch in a worker is refused."""
    service = MultiProcessingReadingService(1)
    with DataLoader2(pipe, None, service) as loader, pytest.raises(NotPicklable) as e:
        list(loader)
    return str(e.value)


def test_streams_that_a_worker_yields_name_the_pipe_and_what_to_do(tmp_path):
    """They are open files of the worker's."""
    told = refused(members(tmp_path).webdataset())

    assert "cannot travel from the worker" in told
    assert "at .webdataset()" in told
    assert "webdataset(decode=True)" in told
    decoded = members(tmp_path).webdataset(decode=True)
    with DataLoader2(decoded, None, MultiProcessingReadingService(1)) as loader:
        assert [sample[".cls"] for sample in loader] == [1]


def test_what_a_function_returns_and_cannot_travel_names_its_pipe():
    """Also of a chain that is split."""
    told = refused(IterableWrapper(range(3)).map(lock))

    assert "at .map(lock)   test_guarded_scripts.py:" in told
