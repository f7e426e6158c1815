"""What Python packs and asks by number is what ``native/interface.h`` says."""

import inspect
import re

import numpy as np
import pytest
from checkout import ROOT

from voxpipe.core import ChunkGrid, native_library
from voxpipe.intensity import native_values as values
from voxpipe.spatial.resampling import native_resampler as resampling
from voxpipe.volumes.chunks import native_chunks as chunks

HEADER = re.sub(r"//.*", "", (ROOT / "native" / "interface.h").read_text())
CONSTANTS = {n: int(v) for n, v in re.findall(r"#define (VOXPIPE_\w+) (\d+)", HEADER)}
CODES = {"int64_t": "q", "uint64_t": "Q", "double": "d"}
JOBS = {
    "VoxpipeJob": resampling._JOB,
    "VoxpipeStep": values._STEP,
    "VoxpipeValues": values._JOB,
    "VoxpipeChunks": chunks._JOB,
    "VoxpipeCover": chunks._COVER,
}


def block(kind, name):
    """Return what stands between the braces of a struct or an enum."""
    return re.search(rf"{kind} {name} {{(.*?)}};", HEADER, re.DOTALL)[1]


def fields_of(name):
    """Return of each eight bytes of a struct the name of the field and the code of its type."""
    found = []
    for kind, field, length in re.findall(r"(\w+) (\w+)(?:\[(\w*)\])?;", block("struct", name)):
        count = int(CONSTANTS.get(length, length or 1))
        found += [(field, CODES.get(kind, kind))] * count
    return found


def numbers_of(name):
    """Return the members of an enum without their prefix, and their numbers."""
    numbers = {}
    for member, number in re.findall(r"VOXPIPE_(\w+)(?: = (\d+))?", block("enum", name)):
        numbers[member] = int(number or len(numbers))
    return numbers


def codes_of(text):
    """Return the code of each number of a format of ``struct``."""
    return "".join(code * int(count or 1) for count, code in re.findall(r"(\d*)([a-zA-Z])", text))


@pytest.mark.parametrize("name", JOBS)
def test_jobs_are_packed_as_the_structs_are(name):
    """As many numbers, each of its type, without padding."""
    assert JOBS[name].format.startswith("=")
    assert codes_of(JOBS[name].format) == "".join(code for _, code in fields_of(name))


def test_rows_of_the_resampling_job_end_at_the_fields_that_they_name():
    """So that who adds a field finds its place."""
    source = inspect.getsource(resampling)
    rows = re.findall(r'^ {4}"=?([\dqd]+)"  # (\w+)$', source, re.MULTILINE)
    fields, end = [field for field, _ in fields_of("VoxpipeJob")], 0

    for text, last in rows:
        end += len(codes_of(text))
        assert fields[end - 1] == last
        assert fields[end : end + 1] != [last]
    assert end == len(fields)


def test_tables_have_the_numbers_of_their_structs():
    """All of them are integers."""
    assert {code for name in ("VoxpipePlaces", "VoxpipeGrid") for _, code in fields_of(name)} == {
        "q"
    }
    assert len(chunks.ChunkPlaces((2,), (3,))._table) == len(fields_of("VoxpipePlaces"))
    if chunks.is_available(1):
        grid = chunks.NativeGrid(ChunkGrid((3,), (2,)))
        assert len(grid._table) == len(fields_of("VoxpipeGrid"))


def test_columns_of_chunks_are_the_fields():
    """By their names; parts of three numbers come behind them."""
    fields = [field for field, _ in fields_of("VoxpipeChunk")]
    columns = {name: getattr(chunks, name.upper(), None) for name in fields}

    assert columns.pop("first") is None  # set by native code alone
    assert columns == {name: fields.index(name) for name in columns}
    assert [field for field, _ in fields_of("VoxpipePart")] == ["out", "chunk", "length"]


def test_numbers_are_those_of_the_enums():
    """Of modes, paddings, types, paths, steps, tasks, libraries and answers."""
    stored = numbers_of("VoxpipeStored")
    assert stored.pop("PLAIN") == chunks._PLAIN
    kinds = {name.upper(): entry[0] for name, entry in chunks._LIBRARIES.items()}
    assert kinds.pop("CRC32C") == chunks._PLAIN  # it decodes nothing
    assert stored == kinds
    for name, module in (("VoxpipeTask", chunks), ("VoxpipeStepKind", values)):
        numbers = numbers_of(name)
        assert numbers == {member: getattr(module, member) for member in numbers}
    for name, table in (("Mode", resampling._MODES), ("Padding", resampling._PADDINGS)):
        assert numbers_of(f"Voxpipe{name}") == {key.upper(): code for key, code in table.items()}
    paths = ("best", *native_library.PATHS)
    assert list(numbers_of("VoxpipePath")) == [path.upper() for path in paths]
    types = numbers_of("VoxpipeType")
    assert types.pop("BF16") == types.pop("TYPES") - 1
    assert resampling._TYPES == {
        np.dtype(f"{name[0].lower()}{int(name[1:]) // 8}"): code for name, code in types.items()
    }
    status = numbers_of("VoxpipeStatus")
    assert {chunks.SUCCESS, values._OK, resampling._OK} == {status["DONE"]}
    assert status["NO_MEMORY"] == values._NO_MEMORY


def test_constants_are_those_of_the_header():
    """The version of the interface, and the most axes of chunks."""
    assert CONSTANTS == {
        "VOXPIPE_ABI": native_library.ABI,
        "VOXPIPE_CHUNK_AXES": chunks.MOST_AXES,
    }
