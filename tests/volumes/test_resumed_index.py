"""``index()`` reads in threads, goes on where it was interrupted, and holds no volumes."""

import gc
import os
import warnings

import pytest
from nifti_files import numbered, write_nifti

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import BadManifest
from voxpipe.diagnosing import check_data
from voxpipe.volumes import PartialIndex, Volume, close_volumes, read_manifest

SUFFIXES = ["json", "parquet"]


@pytest.fixture(autouse=True)
def closed():
    yield
    close_volumes()


@pytest.fixture(params=SUFFIXES)
def place(request, tmp_path):
    if request.param == "parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / "in").mkdir()
    for n in range(40):
        write_nifti(tmp_path / "in" / f"p{n:02}.nii", numbered((4, 5, 6)))
    return tmp_path / f"m.{request.param}"


def opened(cases, place, **how):
    """Return how many files one run opens."""
    close_volumes()
    before = IO_COUNTERS.snapshot()
    try:
        vp.index(cases, place, **how)
    finally:
        close_volumes()
        gc.collect()
    return (IO_COUNTERS.snapshot() - before).headers


def stop_at(number):
    def progress(done, total):
        if done == number:
            raise KeyboardInterrupt

    return progress


def test_an_interrupted_run_is_resumed(place):
    """The second run opens the files of which there is no line, and one that changed."""
    cases = str(place.parent / "in")
    partial = place.with_name(f"{place.name}.partial")
    with pytest.raises(KeyboardInterrupt):
        vp.index(cases, place, progress=stop_at(15))
    lines = partial.read_bytes()
    assert lines.count(b"\n") == 15
    partial.write_bytes(lines + b'["p15", "image", {"loc')  # it was killed here
    os.utime(place.parent / "in" / "p03.nii", ns=(1, 1))

    assert not place.exists()
    assert opened(cases, place) == 40 - 15 + 1
    assert not partial.exists()
    assert opened(cases, place) == 0
    assert [e.case for e in read_manifest(place).entries] == [f"p{n:02}" for n in range(40)]
    assert read_manifest(place).case(3)[1][0].stamp.version == "1"


def test_a_case_with_a_bad_volume_is_left_out(place):
    """The counts are of what was written."""
    (place.parent / "in" / "p07.nii").write_bytes(b"nothing")
    for only_bad in (False, True):
        report = vp.index(str(place.parent / "in"), place, only_bad=only_bad)

        assert [f.case for f in report.bad] == ["p07"]
        assert (len(report.findings), report.volumes) == (1 if only_bad else 40, 40)
        assert (report.size, report.manifest) == ((39, 39), str(place))
        assert read_manifest(place).case_count == 39


def test_two_runs_at_once(place):
    """The second has a file of its own; both write the manifest."""
    first = PartialIndex(place)
    vp.index(str(place.parent / "in"), place)

    assert read_manifest(place).case_count == 40
    first.remove()
    first.close()
    assert sorted(os.listdir(place.parent)) == ["in", place.name]


@pytest.mark.parametrize("attack", [os.mkfifo, lambda path: os.symlink("victim", path)])
def test_no_other_file_is_written(place, attack):
    """Where another user put a link or a pipe."""
    (place.parent / "victim").write_text("mine")
    attack(place.with_name(f"{place.name}.partial"))

    with pytest.raises(BadManifest, match="cannot be written"):
        vp.index(str(place.parent / "in"), place)
    assert (place.parent / "victim").read_text() == "mine"


def test_of_a_bucket(place, monkeypatch, tmp_path):
    """The partial file is in the cache."""
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    url = f"memory://indexed/{place.name}"
    with pytest.raises(KeyboardInterrupt):
        vp.index(str(place.parent / "in"), url, progress=stop_at(15))

    assert opened(str(place.parent / "in"), url) == 25
    assert os.listdir(tmp_path / "cache" / "index") == []
    assert read_manifest(url, follow="anywhere").case_count == 40


def test_the_default_depends_on_the_number_of_volumes(tmp_path, monkeypatch):
    """JSON for few volumes, or without pyarrow."""
    write_nifti(tmp_path / "a.nii", numbered((4, 5, 6)))
    monkeypatch.chdir(tmp_path)

    assert vp.index(".").manifest == "manifest.json"
    monkeypatch.setattr(check_data, "_MOST_IN_JSON", 0)
    monkeypatch.setattr(check_data, "find_spec", lambda name: None)
    assert vp.index(".").manifest == "manifest.json"
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(check_data, "find_spec", lambda name: name)
    assert vp.index(".").manifest == "manifest.parquet"
    assert sorted(os.listdir()) == ["a.nii", "manifest.json", "manifest.parquet"]


def volumes_alive():
    gc.collect()
    return sum(isinstance(thing, Volume) for thing in gc.get_objects())


def test_volumes_are_not_held(place, monkeypatch):
    """Of 40 at most a few blocks are alive, in an index, and in a check of the manifest."""
    monkeypatch.setattr(check_data, "_ITEMS", 2)
    monkeypatch.setattr("voxpipe.volumes.catalog.catalog._THREADS", 2)
    alive = []

    def progress(done, total):
        alive.append(volumes_alive())

    before = volumes_alive()
    vp.index(str(place.parent / "in"), place, progress=progress, statistics=False, only_bad=True)
    report = vp.check(str(place), num_workers=1, progress=progress, only_bad=True)

    assert (report.ok, report.volumes, report.findings) == (True, 40, ())
    assert len(alive) == 82
    assert max(alive) - before < 24


def test_findings_are_in_order(place):
    """As the volumes are, whichever process is first."""
    vp.index(str(place.parent / "in"), place, statistics=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = vp.check(str(place), num_workers=3)

    assert [f.case for f in report.findings] == [f"p{n:02}" for n in range(40)]
