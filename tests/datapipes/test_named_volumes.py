"""Names and credentials that a user gives to the pipes that open volumes."""

import traceback
from typing import Any

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import SampleError
from voxpipe.spatial import LABEL, Policy

SECRET = "s3cr3t-of-nobody"
CASES = [{"image": np.zeros((4, 4, 4)), "seg": np.zeros((4, 4, 4), np.uint8)}] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": ("sge",)}, r"labels= names 'sge', .* 'image', 'seg'"),
        ({"labels": "my_label"}, r"labels= names 'my_label'"),
        ({"policies": {"imege": LABEL}}, r"policies= names 'imege'"),
        ({"axis_map": {"images": vp.AxisMap.shift(0, 1)}}, r"axis_map= names 'images'"),
    ],
)
def test_a_name_that_no_sample_has_is_refused(arguments: Any, message: str) -> None:
    """A typo would interpolate labels without a word."""
    with pytest.raises(SampleError, match=message):
        next(iter(vp.from_cases(CASES).open_volume(**arguments)))


def test_names_that_are_there_are_taken() -> None:
    """The same arguments, spelt right."""
    policies = {"image": Policy("nearest")}
    sample = next(iter(vp.from_cases(CASES).open_volume(labels="seg", policies=policies)))

    assert sample["seg"].kind == "label"
    assert sample["image"].policy.mode == "nearest"


def _said(chain: Any) -> str:
    """Everything that a program shows of a chain that fails."""
    try:
        next(iter(chain()))
    except Exception as error:
        return "".join(traceback.format_exception(error)) + repr(error.args)
    raise AssertionError("nothing failed")


@pytest.mark.parametrize("position", ["list", "manifest", "open"])
def test_options_are_shown_by_nobody(position: str, tmp_path: Any) -> None:
    """Neither our message nor what torch adds of a pipe's arguments tells a credential."""
    options = {"key": "AKIA", "secret": SECRET}
    (tmp_path / "a").mkdir()
    np.save(tmp_path / "a" / "ct.npy", np.zeros((4, 4, 4)))
    url = f"{tmp_path}/*/"
    said = {
        "list": lambda: _said(lambda: vp.list_cases(url, storage_options=options, image="no.npy")),
        "manifest": lambda: _said(
            lambda: vp.from_manifest(f"{tmp_path}/none.json", storage_options=options)
        ),
        "open": lambda: _said(
            lambda: vp.list_cases(url, image="ct.npy").open_volume(
                keys=("img",), storage_options=options
            )
        ),
    }[position]()

    assert SECRET not in said
    assert "AKIA" not in said


def object_of(library: str, path: Any) -> Any:
    """Return an object of a library that holds voxels, or files of them."""
    module = pytest.importorskip(library)
    plane = np.zeros((4, 4), np.uint8)
    if library == "h5py":
        with module.File(path / "a.h5", "w") as file:
            return file
    if library == "xarray":
        return module.Dataset({"ct": (("y", "x"), plane)})
    if library == "PIL.Image":
        return module.fromarray(plane)
    if library == "tifffile":
        module.imwrite(path / "a.tif", plane)
        with module.TiffFile(path / "a.tif") as file:
            return file
    if library == "torchio":
        return module.Subject(ct=module.ScalarImage(tensor=plane[None, ..., None]))
    if library == "nibabel":
        return module.GiftiImage()
    return module.Dataset()


@pytest.mark.parametrize("key", ["image", "seg"])
@pytest.mark.parametrize("as_list", [False, True])
def test_a_word_is_a_volume_if_it_is_a_folder_and_its_key_is_usual(
    tmp_path: Any, monkeypatch: Any, key: str, as_list: bool
) -> None:
    """The folder of another key may be one of scans by sex or by split."""
    (tmp_path / "dcm").mkdir()
    monkeypatch.chdir(tmp_path)
    cases = [{key: ["dcm", "dcm"] if as_list else "dcm", "sex": "dcm"}]

    sample = next(iter(vp.from_cases(cases).open_volume()))

    assert isinstance(sample[key], vp.LazyPatch)
    assert sample["sex"] == "dcm"


@pytest.mark.parametrize("case", [{"image": "dcm"}, {"ct": "here"}])
def test_other_words_are_no_volumes(tmp_path: Any, monkeypatch: Any, case: Any) -> None:
    """The error names the ways to write a path."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SampleError, match=r"A path has a slash or a suffix, .* name it in keys="):
        next(iter(vp.from_cases([case]).open_volume()))


LIBRARIES = ["h5py", "xarray", "PIL.Image", "tifffile", "torchio", "nibabel", "pydicom"]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("is_list", [False, True])
def test_an_object_that_is_no_volume_is_refused(tmp_path: Any, library: str, is_list: bool) -> None:
    """It would reach the batch as it is; ``keys=`` leaves it in the sample."""
    thing = object_of(library, tmp_path)
    cases = [{"image": np.zeros((4, 4, 4)), "other": [thing] if is_list else thing}]
    kind = f"{library.partition('.')[0]}.{type(thing).__name__}"

    with pytest.raises(vp.errors.UnknownFormat, match=rf"{kind}\.\s+in case .*under 'other'"):
        next(iter(vp.from_cases(cases).open_volume()))
    assert "other" in next(iter(vp.from_cases(cases).open_volume(keys="image")))


@pytest.mark.parametrize("argument", [{"labels": ("tumour",)}, {"axes": {"tumour": "xyz"}},
                                      {"affine": {"tumour": np.eye(4)}}])  # fmt: skip
def test_a_named_key_that_a_later_case_does_not_open(argument: Any) -> None:
    """A later case may lack the volume, but not hold a word in its place."""
    volume = np.zeros((4, 4, 4), np.uint8)
    first, lacks = {"image": volume, "tumour": volume}, {"image": volume}

    opened = vp.from_cases([first, lacks, {**lacks, "tumour": None}]).open_volume(**argument)
    assert len(list(opened)) == 3
    with pytest.raises(SampleError, match=rf"{next(iter(argument))}= names 'tumour'"):
        list(vp.from_cases([first, {**lacks, "tumour": "none"}]).open_volume(**argument))
