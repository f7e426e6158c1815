"""Commands read and write a store whose address and keys they are given, and print neither."""

import json

import numpy as np
import pytest

pytest.importorskip("s3fs")
pytest.importorskip("zarr")

import nibabel as nib
from s3_server import S3Server

from voxpipe import check
from voxpipe.__main__ import main
from voxpipe.volumes import close_volumes

SECRET = "do-not-print-this"


@pytest.fixture
def server(tmp_path, started_clients, monkeypatch):
    root = tmp_path / "s3"
    (root / "bucket" / "c1").mkdir(parents=True)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    image = nib.Nifti1Image(np.zeros((8, 8, 8), np.int16), np.eye(4))
    nib.save(image, root / "bucket" / "c1" / "ct.nii")
    with S3Server(root, is_public=True) as running:
        running.bucket = root / "bucket"
        yield running
        close_volumes()


def as_flags(server, tmp_path):
    file = tmp_path / "store.json"
    file.write_text(json.dumps({**server.storage_options, "secret": SECRET}))
    return ["--storage-options", str(file), "--option", "key=somebody"]


@pytest.mark.parametrize(
    "command",
    [
        ["check", "s3://bucket"],
        ["check", "s3://bucket/*/", "image=ct.nii"],
        ["index", "s3://bucket", "-o", "s3://bucket/manifest.json"],
        ["convert", "s3://bucket/c1/ct.nii", "s3://bucket/out.nii.zarr"],
        ["convert", "s3://bucket/c1", "s3://bucket/all"],
    ],
)
def test_a_command_reaches_the_store_it_is_told(server, tmp_path, capsys, command):
    """Source, destination and manifest alike."""
    assert main([*command, *as_flags(server, tmp_path)]) == 0

    told = "".join(capsys.readouterr())
    assert SECRET not in told
    assert "somebody" not in told


def test_check_takes_storage_options(server):
    """For a folder, and for a list of URLs."""
    for cases in ("s3://bucket", [{"image": "s3://bucket/c1/ct.nii"}]):
        report = check(cases, num_workers=1, storage_options=server.storage_options)
        assert (report.ok, report.volumes) == (True, 1)


@pytest.mark.parametrize("flag", ["--storage-options={'secret': 'x-y-z'", "--option=x-y-z"])
def test_what_makes_no_sense_is_not_repeated(capsys, flag):
    """It may be a secret."""
    with pytest.raises(SystemExit):
        main(["check", "s3://bucket", flag])
    assert "x-y-z" not in capsys.readouterr().err
