"""Which cases there are below folders as nnU-Net, the Decathlon and others lay them out."""

import functools
import http.server
import threading

import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.__main__ import main
from voxpipe.volumes import close_volumes, find_volumes, is_volume, read_manifest


def touched(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def saved(path, shape=(4, 5, 6), dtype=np.int16):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(np.ones(shape, dtype), np.eye(4)), path)


@pytest.fixture(autouse=True)
def closed():
    yield
    close_volumes()


def keys_by_case(folder):
    """Return what is found, with paths relative to the folder."""
    return {
        case: {key: str(place)[len(str(folder)) + 1 :] for key, place in volumes.items()}
        for case, volumes in find_volumes(folder).items()
    }


def test_the_decathlon(tmp_path):
    """Images and labels of one name are a case; test images have no label."""
    touched(
        tmp_path,
        "dataset.json",
        "imagesTr/la_003.nii.gz",
        "imagesTr/._la_003.nii.gz",
        "labelsTr/la_003.nii.gz",
        "imagesTs/la_001.nii.gz",
    )

    assert keys_by_case(tmp_path) == {
        "la_003": {"image": "imagesTr/la_003.nii.gz", "label": "labelsTr/la_003.nii.gz"},
        "la_001": {"image": "imagesTs/la_001.nii.gz"},
    }


def test_nnunet_with_one_channel(tmp_path):
    """The number of the channel is no part of the case's name."""
    touched(tmp_path, "imagesTr/p1_0000.nii.gz", "labelsTr/p1.nii.gz", "imagesTs/p1_0000.nii.gz")

    assert keys_by_case(tmp_path) == {
        "Tr/p1": {"image": "imagesTr/p1_0000.nii.gz", "label": "labelsTr/p1.nii.gz"},
        "Ts/p1": {"image": "imagesTs/p1_0000.nii.gz"},
    }


def test_nnunet_with_several_channels(tmp_path):
    """Each channel has a key; several data sets below one folder stay apart."""
    names = [f"D/imagesTr/p_0{n}_000{c}.nii.gz" for n in (1, 2) for c in (0, 1)]
    touched(tmp_path, *names, "D/labelsTr/p_01.nii.gz", "D/labelsTr/p_02.nii.gz")

    assert keys_by_case(tmp_path) == {
        f"D/p_0{n}": {
            "image_0000": f"D/imagesTr/p_0{n}_0000.nii.gz",
            "image_0001": f"D/imagesTr/p_0{n}_0001.nii.gz",
            "label": f"D/labelsTr/p_0{n}.nii.gz",
        }
        for n in (1, 2)
    }


def test_four_digits_that_are_no_channel(tmp_path):
    """Where labels are called the same, digits belong to the name."""
    touched(tmp_path, "imagesTr/scan_0007.nii", "labelsTr/scan_0007.nii")

    assert keys_by_case(tmp_path) == {
        "scan_0007": {"image": "imagesTr/scan_0007.nii", "label": "labelsTr/scan_0007.nii"}
    }


def test_folders_of_many_volumes(tmp_path):
    """Names that differ by their numbers are cases, and folders beside each other are keys."""
    names = [f"scan{n:02}.nii" for n in range(12)]
    touched(tmp_path, *(f"{folder}/{name}" for folder in ("images", "masks") for name in names))

    assert keys_by_case(tmp_path) == {
        name[:-4]: {"image": f"images/{name}", "mask": f"masks/{name}"} for name in names
    }


def test_folders_of_cases_stay_cases(tmp_path):
    """However many volumes they hold, numbered or not."""
    organs = [f"rib_{n}.nii" for n in range(12)]
    touched(tmp_path, *(f"case{n}/{organ}" for n in (1, 2) for organ in organs))
    touched(tmp_path, "other/t1.nii", "other/t2.nii", "other/seg.nii")

    found = keys_by_case(tmp_path)

    assert sorted(found) == ["case1", "case2", "other"]
    assert sorted(found["case2"]) == sorted(organ[:-4] for organ in organs)
    assert sorted(found["other"]) == ["seg", "t1", "t2"]


def test_a_segmentation_beside_its_image(tmp_path):
    """In a folder of cases, as nnU-Net preprocesses them."""
    touched(tmp_path, "a.b2nd", "a_seg.b2nd", "b_seg.nii")

    assert keys_by_case(tmp_path) == {
        "a": {"image": "a.b2nd", "seg": "a_seg.b2nd"},
        "b_seg": {"image": "b_seg.nii"},
    }


def test_a_bucket_of_a_layout():
    """By URL as locally; what is hidden is nobody's data, groups included."""
    import fsspec

    system = fsspec.filesystem("memory")
    for name in ("imagesTr/a_0000.nii.gz", "labelsTr/a.nii.gz", ".old/b.zarr/zarr.json"):
        system.pipe_file(f"/laid/{name}", b"not looked at")

    found = find_volumes("memory://laid")
    system.rm("/laid", recursive=True)

    assert {case: sorted(volumes) for case, volumes in found.items()} == {"a": ["image", "label"]}


@pytest.fixture
def task(tmp_path):
    """A data set of nnU-Net with three cases, the last without its label."""
    for n in range(3):
        saved(tmp_path / f"imagesTr/p{n}_0000.nii.gz")
    for n in range(2):
        saved(tmp_path / f"labelsTr/p{n}.nii.gz", dtype=np.uint8)
    saved(tmp_path / "imagesTs/q_0000.nii.gz")
    return tmp_path


def test_a_missing_label_is_among_the_bad(task, capsys):
    """The folder, its patterns and a pipe tell it, and check the rest; test images need none."""
    by_folder = vp.check(task, num_workers=1)
    patterns = {"image": f"{task}/imagesTr/*_0000.nii.gz", "label": f"{task}/labelsTr/*.nii.gz"}
    pipe = vp.list_cases(**patterns)
    by_pipe = vp.check(pipe.open_volume(), num_workers=1)

    for report, volumes in ((by_folder, 6), (by_pipe, 5)):
        assert [(f.case, f.key, f.error) for f in report.bad] == [("p2", "label", "MissingLabel")]
        assert report.volumes == volumes
    texts = [f"{key}={pattern}" for key, pattern in patterns.items()]
    assert main(["check", *texts, "--workers", "1"]) == 1
    told = capsys.readouterr()
    assert "p2/label: MissingLabel: case p2 has no label" in told.out
    assert "5 checked, 1 bad" in told.out
    with pytest.raises(FileNotFoundError):
        list(pipe)  # the check has changed nothing


def test_an_index_of_a_layout_is_usable(task, capsys):
    """Cases by name; one that lacks its label is left out and told; the others stream."""
    report = vp.index(task, task / "m.json")

    assert [str(f).split(":")[0] for f in report.bad] == ["p2/label"]
    assert {case: [e.key for e in entries] for case, entries in _cases(task).items()} == {
        "p0": ["image", "label"],
        "p1": ["image", "label"],
        "q": ["image"],
    }
    texts = [f"image={task}/imagesTr/*_0000.nii.gz", f"label={task}/labelsTr/*.nii.gz"]
    assert main(["index", *texts, "-o", f"{task}/m.json"]) == 1
    told = capsys.readouterr()
    assert "2 cases, 4 volumes" in told.out
    assert "p2/label" in told.err
    pipe = vp.from_manifest(task / "m.json").open_volume().lazy_patch((2, 2, 2)).batch_patches(2)
    assert next(iter(pipe))["label"].shape == (2, 1, 2, 2, 2)


def _cases(folder):
    return read_manifest(folder / "m.json").cases()


def test_an_index_of_nothing_is_refused(tmp_path):
    """A pipe of no cases has no manifest."""
    with pytest.raises(FileNotFoundError):
        vp.index(tmp_path, tmp_path / "m.json")
    assert list(tmp_path.iterdir()) == []


def test_voxels_that_are_no_numbers_are_told(tmp_path):
    """NaN and infinity anywhere, and labels that are not whole; headers tell their types."""
    odd = np.ones((4, 5, 6), np.float32)
    odd[0, 0, :2], odd[1, 1, 1] = np.nan, np.inf
    soft = np.ones((4, 5, 6), np.float32)
    soft[3, 3, 3] = 0.4
    for name, voxels in (("odd", odd), ("soft", soft)):
        nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), tmp_path / f"{name}.nii")
    scaled = nibabel.Nifti1Image(np.full((4, 5, 6), 0.5), np.eye(4))
    scaled.set_data_dtype(np.int16)
    nibabel.save(scaled, tmp_path / "scaled.nii")
    cases = [
        {"case": "one", "image": tmp_path / "odd.nii", "label": tmp_path / "soft.nii"},
        {"case": "two", "image": tmp_path / "soft.nii", "label": tmp_path / "scaled.nii"},
    ]

    report = vp.check(cases, voxels=True, num_workers=1)

    assert [(f.case, f.key, f.error) for f in report.bad] == [
        ("one", "image", "NotFinite"),
        ("one", "label", "NotWhole"),
        ("two", "label", "BadHeader"),
    ]
    assert "2 voxels are NaN and 1 voxel is infinite" in str(report)
    assert "1 voxel is no whole number" in str(report)
    (header,) = vp.check(cases, num_workers=1).bad
    assert (header.key, header.error) == ("label", "BadHeader")
    assert "leaves no whole numbers" in header.reason


@pytest.mark.parametrize("command", ["check", "index"])
def test_errors_of_commands_name_no_line_of_ours(command, tmp_path, capsys):
    """Who calls a command has no script; a folder in place of a glob is told as in Python."""
    saved(tmp_path / "a" / "ct.nii")
    mistakes = {
        "Did you mean": [f"{tmp_path}", "image=ct.nii"],
        "needs one": ["image=ct.nii"],
        "no case matches": [f"{tmp_path}/*/", "image=mr.nii"],
    }

    for message, arguments in mistakes.items():
        assert main([command, *arguments]) == 1
        told = capsys.readouterr().err
        assert message in told
        assert ".py" not in told


@pytest.mark.parametrize("text", ["x" * 100_000, "a\0b", "", "free text, no path"])
def test_a_text_that_can_be_no_path_is_no_volume(text):
    """Batches ask of whatever text they hold."""
    assert not is_volume(text)


def test_keys_lose_the_name_of_their_case(tmp_path):
    """Subjects and sessions of BIDS, and of others; derivatives are cases of their own."""
    bids = [f"sub-0{n}/ses-a/anat/sub-0{n}_ses-a_T1w.nii.gz" for n in (1, 2)]
    twin = [f"derivatives/fs/sub-0{n}/anat/sub-0{n}_T1w.nii.gz" for n in (1, 2)]
    brats = [f"BraTS_00{n}/BraTS_00{n}_{key}.nii" for n in (1, 2) for key in ("flair", "seg")]
    words = [f"{name}/{name}_t1.nii" for name in ("alice", "bob")]
    touched(tmp_path, *bids, *twin, *brats, *words, "p1/p1.nii", "p1/p1_0000.nii", "p10/p1_t1.nii")

    assert {case: sorted(keys) for case, keys in keys_by_case(tmp_path).items()} == {
        **{f"sub-0{n}/ses-a/anat": ["T1w"] for n in (1, 2)},
        **{f"derivatives/fs/sub-0{n}/anat": ["T1w"] for n in (1, 2)},
        **{f"BraTS_00{n}": ["flair", "seg"] for n in (1, 2)},
        "alice": ["t1"],
        "bob": ["t1"],
        "p1": ["image", "image_0000"],
        "p10": ["p1_t1"],
    }


def test_keys_that_are_no_name_of_a_case_stay(tmp_path):
    """Folders of modalities; two volumes that would have one key; a word of one folder only."""
    names = [f"s{n}/T1/T1.nii" for n in (1, 2)] + ["x1/t2.nii", "x1/x1_t2.nii", "ct/ct_fine.nii"]
    touched(tmp_path, *names)

    assert {case: sorted(keys) for case, keys in keys_by_case(tmp_path).items()} == {
        "s1/T1": ["T1"],
        "s2/T1": ["T1"],
        "x1": ["t2", "x1_t2"],
        "ct": ["ct_fine"],
    }


def test_pictures_are_no_cases_unless_a_pattern_names_them(tmp_path):
    """Previews next to data are left out of folders and stars; ``*.png`` lists them."""
    for case in ("p1", "p2"):
        saved(tmp_path / case / "ct.nii.gz")
        touched(tmp_path, f"{case}/view.png", f"{case}/view.JPG")

    assert keys_by_case(tmp_path) == {c: {"ct": f"{c}/ct.nii.gz"} for c in ("p1", "p2")}
    assert [*find_volumes(tmp_path / "*/*")] == ["p1", "p2"]
    (cases, pictures) = (vp.list_cases(f"{tmp_path}/*/", image=n) for n in ("*", "v*.png"))
    assert [s["image"].endswith("ct.nii.gz") for s in cases] == [True, True]
    assert [s["image"].endswith("view.png") for s in pictures] == [True, True]
    with pytest.raises(vp.errors.VolumeNotFound, match="no case matches"):
        list(vp.list_cases(f"{tmp_path}/*/", image="view*"))
    (tmp_path / "p1" / "ct.nii.gz").unlink()
    with pytest.raises(vp.errors.VolumeNotFound, match="Pictures need their suffix"):
        find_volumes(tmp_path / "p1")


@pytest.fixture
def web(tmp_path, started_clients):
    """The URL of a folder, listed by the pages of Python's own server."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_cases_of_a_web_server_have_the_names_of_a_folder(tmp_path, web):
    """Without percent escapes, which stay in the URLs."""
    for case in ("my case +ü#1", "b%20c"):
        saved(tmp_path / case / "ct 1.nii.gz")

    found = find_volumes(web)
    assert {case: [*keys] for case, keys in found.items()} == {
        case: [*keys] for case, keys in find_volumes(tmp_path).items()
    }
    assert found["b%20c"]["ct 1"] == f"{web}b%2520c/ct%201.nii.gz"
    names = [
        [s.case for s in vp.list_cases(f"{p}*/", image="ct*.nii.gz")] for p in (web, f"{tmp_path}/")
    ]
    assert names[0] == names[1] == ["b%20c", "my case +ü#1"]
    (sample, _) = vp.list_cases(f"{web}*/", image="ct*.nii.gz").open_volume()
    assert sample["image"].shape == (1, 4, 5, 6)
