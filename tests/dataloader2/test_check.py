"""``check()`` names every bad file, and never stops at the first."""

import os

import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import VolumeNotFound
from voxpipe.volumes import close_volumes, register_backend, unregister_backend


@pytest.fixture
def folder(tmp_path):
    for n in range(4):
        (tmp_path / f"p{n}").mkdir()
        voxels = np.random.default_rng(n).integers(0, 99, (20, 21, 22)).astype(np.int16)
        image = nibabel.Nifti1Image(voxels, np.eye(4))
        nibabel.save(image, tmp_path / f"p{n}" / "ct.nii.gz")
        nibabel.save(image, tmp_path / f"p{n}" / "seg.nii")
    yield tmp_path
    close_volumes()


def cases(folder):
    return vp.list_cases(f"{folder}/p*/", image="ct.nii.gz", seg="seg.nii")


def bad(report):
    return [(finding.case, finding.key, finding.error) for finding in report.bad]


def test_a_sound_data_set_is_sound(folder):
    """Every volume was looked at, and nothing is said."""
    seen = []
    report = vp.check(cases(folder), progress=lambda done, total: seen.append((done, total)))

    assert report.ok
    assert [f"{f.case}/{f.key}" for f in report.findings] == [
        f"p{n}/{key}" for n in range(4) for key in ("image", "seg")
    ]
    assert (seen[0], seen[-1]) == ((0, 8), (8, 8))


def test_every_bad_file_is_named_with_its_reason(folder):
    """A short file, no NIfTI, two grids; and inside a file only where voxels are asked for."""
    os.truncate(folder / "p0" / "seg.nii", 1000)
    (folder / "p1" / "ct.nii.gz").write_bytes(b"no gzip at all")
    raw = (folder / "p2" / "ct.nii.gz").read_bytes()
    (folder / "p2" / "ct.nii.gz").write_bytes(raw[:-2000])
    other = nibabel.Nifti1Image(np.zeros((20, 21, 9), np.int16), np.eye(4))
    nibabel.save(other, folder / "p3" / "seg.nii")

    quick, thorough = (vp.check(cases(folder), voxels=voxels) for voxels in (False, True))

    found = [("p0", "seg", "TruncatedVolume"), ("p1", "image", "BadHeader")]
    apart = [("p3", "image+seg", "GridMismatch")]
    assert bad(quick) == found + apart
    assert bad(thorough) == [*found, ("p2", "image", "TruncatedVolume"), *apart]
    assert "p0/seg: TruncatedVolume: " in str(quick)
    assert "holds 1000 bytes" in str(quick)


def test_folders_lists_and_pipes_are_taken(folder):
    """Whatever names cases."""
    as_list = [{"image": folder / "p0" / "ct.nii.gz", "case": "one"}]

    assert len(vp.check(str(folder)).findings) == 8
    assert len(vp.check(as_list, num_workers=1).findings) == 1
    assert len(vp.check(cases(folder).open_volume()).findings) == 8
    with pytest.raises(VolumeNotFound):
        vp.check(str(folder / "nothing"))


class Dies:
    """A backend that ends its process."""

    def __init__(self, request):
        os._exit(9)


class Hangs:
    """A backend that never answers: it waits for a writer that does not exist."""

    def __init__(self, request):
        reading, _ = os.pipe()
        os.read(reading, 1)


def is_deadly(request):
    return request.path is not None and request.path.name == "deadly.nii"


def is_hanging(request):
    return request.path is not None and request.path.name == "hanging.nii"


@pytest.mark.parametrize(
    ("name", "matcher", "factory", "error"),
    [
        ("deadly.nii", is_deadly, Dies, "WorkerDied"),
        ("hanging.nii", is_hanging, Hangs, "ItemTimeout"),
    ],
)
def test_a_file_that_kills_or_hangs_its_reader_costs_one_line(
    folder, name, matcher, factory, error
):
    """The worker is replaced; every other file is checked."""
    os.rename(folder / "p1" / "seg.nii", folder / "p1" / name)
    given = [
        {"case": f"p{n}", "seg": folder / f"p{n}" / (name if n == 1 else "seg.nii")}
        for n in range(4)
    ]
    register_backend("fatal", matcher, factory)
    try:
        report = vp.check(given, num_workers=1, timeout=3)
    finally:
        unregister_backend("fatal")

    assert bad(report) == [("p1", "seg", error)]
    assert len(report.findings) == 4


def test_no_cases_are_an_error():
    """Nothing that was looked at is nothing that is sound."""
    with pytest.raises(VolumeNotFound, match="no cases"):
        vp.check([])


def test_likely_labels_are_told_by_what_was_called(folder):
    """At the user's line, by the argument of that function; the report holds the keys."""
    given = vp.list_cases(f"{folder}/p*/", gt="seg.nii")
    for call in (
        lambda **labels: vp.check(given, num_workers=1, **labels),
        lambda **labels: vp.index(given, folder / "m.json", statistics=False, **labels),
    ):
        with pytest.warns(vp.errors.LikelyLabel, match=r"give labels=\('gt',\)") as told:
            report = call()
        assert report.likely_labels == ("gt",)
        assert [w.filename for w in told] == [__file__]
        assert "open_volume" not in str(told[0].message)
        assert call(labels=("gt",)).likely_labels == ()
