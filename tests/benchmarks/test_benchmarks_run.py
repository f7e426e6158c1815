"""The benchmarks run from end to end; what they measure is not judged here."""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec

import pytest
from checkout import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc"),
]

PEERS = ["monai_lazy", "torchio_queue", "nnunet_recipe"]
VENVS = ROOT / "build" / "peers"
"""Where throughput.py makes the peers' environments; tests make none."""
SMALL = ["--shape", "48", "48", "40", "--size", "16", "--workers"]


def run(folder, script, *arguments):
    """Run one script with its temporary files in ``folder``, as from a shell."""
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def rows(text):
    """Return the cells of each row of the table, by the first cell."""
    table = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {cells[0]: cells for cells in table}


def test_the_machine_is_described(tmp_path):
    """The description names the processor, Python and the libraries."""
    done = run(tmp_path, "machine.py")

    assert (done.returncode, done.stderr) == (0, "")
    assert all(word in done.stdout for word in ("cores", "Python", "torch", "numpy"))


def test_planning(tmp_path):
    """Planner and worker give rows with times, and leave no file."""
    done = run(tmp_path, "planning.py", "--cases", "3", "--repeats", "1")

    assert done.returncode == 0, done.stderr
    found = rows(done.stdout)
    assert float(found["the same, augment"][1]) > 0
    assert float(found["all that a worker does"][1]) > 0
    assert list(tmp_path.iterdir()) == []


def test_prediction(tmp_path):
    """An identity network gives the volume back, and leaves no file."""
    done = run(tmp_path, "prediction.py", "--size", "40", "--rounds", "1")

    assert done.returncode == 0, done.stderr
    difference = done.stdout.split("differs by ")[1].split()[0]
    assert float(difference) < 1e-3  # of values up to 200, in float32
    assert list(tmp_path.iterdir()) == []


def test_overhead(tmp_path):
    """Every loader gives a rate; the idle share and the plans are told."""
    done = run(tmp_path, "overhead.py", "--quick")

    assert done.returncode == 0, done.stderr
    found = rows(done.stdout)
    assert float(found["voxpipe, planned"][2].replace(",", "")) > 0
    assert float(found["torch DataLoader"][2].replace(",", "")) > 0
    assert "An idle loader takes" in done.stdout
    assert "Patches planned per second" in done.stdout
    assert "Seeding for a function of yours: an item takes" in done.stdout
    assert "The round of OnError on 2 ranks: an item takes" in done.stdout


@pytest.mark.parametrize("form", ["nii", "nii.gz", "zarr64", "zarr32"])
def test_throughput_of_every_format(tmp_path, form):
    """Each format gives a row with a rate and a peak, and leaves no file."""
    small = [*SMALL, "1", "--count", "2", "--seconds", "0.1", "--formats", form]

    done = run(tmp_path, "throughput.py", *small)

    assert done.returncode == 0, done.stderr
    row = rows(done.stdout)[form]
    assert row[1] == "1"
    assert float(row[2]) > 0
    assert float(row[7]) > 0
    assert ("First touch" in done.stdout) == (form == "nii.gz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_is_measured_beside_voxpipe(tmp_path, name):
    """Each of its variants gives a row with a rate, on the same files; the folder is left empty."""
    if not (VENVS / name / "installed.txt").is_file():
        pytest.skip(f"benchmarks/throughput.py --peers {name} makes its environment")
    small = [*SMALL, "2", "--count", "2", "--seconds", "0.1", "--formats", "nii"]

    done = run(tmp_path, "throughput.py", *small, "--peers", name)

    assert done.returncode == 0, done.stderr
    measured = rows(done.stdout)
    del measured["what"]
    assert measured.pop("nii")[4] == "1.00"
    assert len(measured) >= 1
    for row in measured.values():
        assert float(row[2]) > 0
        assert float(row[7]) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["nii", "nii by URL", "nii.gz", "zarr64", "zarr32"])
def test_bytes_and_requests_of_every_format(tmp_path, form):
    """No format reads less than the exact support; what is mapped has no requests."""
    small = ["--shape", "70", "60", "50", "--size", "16", "--count", "1", "--formats", form]

    done = run(tmp_path, "io.py", *small)

    assert done.returncode == 0, done.stderr
    row = rows(done.stdout)[form]
    assert float(row[2]) <= float(row[3]) <= float(row[7])
    assert (row[5] == "mapped") == (form in ("nii", "nii.gz"))
    assert form in ("nii", "nii.gz") or float(row[6]) >= 2  # image and label
    assert list(tmp_path.iterdir()) == []


def test_every_section_of_scaling(tmp_path):
    """Volume, patch, chunk, workers and cases each give their table."""
    done = run(tmp_path, "scaling.py", "--quick")

    assert done.returncode == 0, done.stderr
    assert [line.split()[1].rstrip(",") for line in done.stdout.splitlines() if "###" in line] == [
        "Volume",
        "Volume",
        "Patch",
        "Chunk",
        "Workers",
        "Cases",
    ]
    assert list(tmp_path.iterdir()) == []


def test_costs_by_the_number_of_cases(tmp_path):
    """Each row has a figure; a manifest by columns has one, or a line gives the reason."""
    done = run(tmp_path, "scaling.py", "--sections", "cases", "--quick")

    assert done.returncode == 0, done.stderr
    found = rows(done.stdout)
    for name in ("make the chain and the loader", "loader.batch(b), warm"):
        assert float(found[name][2]) > 0
    assert float(found["planning alone, jobs()"][2].replace(",", "")) > 0
    assert "20 cases from a list" in done.stdout
    assert ("20 cases from a manifest" in done.stdout) != ("left out" in done.stdout)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["nii", "zarr"])
@pytest.mark.parametrize(("limit", "status", "result"), [("1e6", 0, "PASS"), ("1", 1, "FAIL")])
def test_memory_is_compared_with_the_limit(tmp_path, form, limit, status, result):
    """All patches arrive; the exit status says whether the peak is below the limit."""
    small = [*SMALL, "1", "--patches", "8", "--formats", form, "--limit-mb", limit]

    done = run(tmp_path, "memory.py", *small)

    assert done.returncode == status, done.stderr
    row = rows(done.stdout)[f"epoch from {form}"]
    assert row[5:] == ["8", result]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("limit", "status"), [("1e6", 0), ("0", 1)])
def test_transport_is_compared_with_the_limit(tmp_path, limit, status):
    """Three ways of travelling bring the same batches; the exit status tells slow from fast."""
    small = ["--size", "16", "--batches", "3", "--limit-ms", limit]

    done = run(tmp_path, "transport.py", *small)

    assert done.returncode == status, done.stderr
    table = rows(done.stdout)
    assert {"voxpipe, slots", "torch DataLoader", "voxpipe, pipe"} <= set(table)
    assert all(float(table[name][4]) > 0 for name in table if "," in name)
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_fails_ends_with_its_status(tmp_path):
    """A benchmark does not report figures of something that broke."""
    done = run(tmp_path, "processes.py", sys.executable, "-c", "raise SystemExit(7)")

    assert (done.returncode, done.stdout) == (7, "")


def test_shared_pages_count_once(tmp_path):
    """A forked child that looks at its parent's memory adds next to nothing to the sum."""
    program = (
        "import os, time\n"
        "memory = b'x' * 200_000_000\n"
        "child = os.fork()\n"
        "time.sleep(1)\n"
        "if child: os.waitpid(child, 0)\n"
    )

    done = run(tmp_path, "processes.py", sys.executable, "-c", program)

    peak = float(done.stdout.split()[1])
    assert 200 <= peak < 250


def test_the_kernel_meets_its_peers(tmp_path):
    """Every class gives a row at a hot place and at random ones."""
    done = run(tmp_path, "kernel.py", "--quick")

    assert done.returncode == 0, done.stderr
    table = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if "|" in line][2:]
    kinds = {row[2] for row in table}
    assert {"copy", "flip", "transpose", "zoom, linear", "affine, nearest"} <= kinds
    assert {"affine, cubic", "elastic, linear", "elastic turned, linear"} <= kinds
    assert {row[3] for row in table} == {"hot", "random"}
    assert list(tmp_path.iterdir()) == []


QUICK = [["throughput.py", "--formats", "nii"], ["io.py", "--formats", "nii"], ["scaling.py"]]
QUICK += [["memory.py", "--formats", "nii"], ["transport.py"], ["kernel.py", "--only", "u1 C"]]
QUICK += [["accuracy.py"], ["forecasts.py", "--formats", "nii"]]
QUICK += [["decoded_twice.py"], ["codecs.py"]]


@pytest.mark.parametrize("command", QUICK, ids=lambda command: command[0])
def test_a_quick_run_judges_nothing(tmp_path, command):
    """Tiny sizes say nothing about the promises: a table, and no verdict."""
    done = run(tmp_path, *command, "--quick")

    assert done.returncode == 0, done.stderr
    assert len(rows(done.stdout)) > 1
    assert not any(word in done.stdout for word in ("PASS", "FAIL", "bar is met", "Not met"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["zarr_reader.py", "--rounds", "1"], ["resuming.py"]])
def test_scripts_without_a_quick_run(tmp_path, command):
    """They end well as they are, and leave no file."""
    done = run(tmp_path, *command)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("## ")
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_is_compared_with_the_disk(tmp_path):
    """A row with the rates of both, and what the client takes alone."""
    small = [*SMALL, "1", "--count", "2", "--seconds", "0.1", "--rounds", "1", "--visits", "1"]

    done = run(tmp_path, "remote.py", *small, "--formats", "zarr64", "--clients", "obstore")

    assert done.returncode == 0, done.stderr
    # So small, most is kept: the client may take 0.0 ms a patch.
    row = rows(done.stdout)["zarr64"]
    rates = [float(rate) for rate in row[2].split(", ")]
    ratio = float(row[9].split(", ")[1])
    assert min(rates) > 0
    assert 0 < ratio <= 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
def test_the_cluster_beside_its_simulation():
    """Paced actors and their simulation give a row each, and so do larger clusters."""
    # Ray refuses to put its sockets into folders with long names.
    done = run(tempfile.gettempdir(), "cluster.py", "--quick", "--sections", "simulation")

    assert done.returncode == 0, done.stderr
    found = rows(done.stdout)
    assert all(float(found[name][1]) > 0 for name in ("1", "4", "4, one killed"))
    assert int(found["100"][1]) >= 1
    assert float(found["all well"][1]) > 0
