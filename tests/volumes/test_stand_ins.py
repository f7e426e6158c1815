"""What a checkout or a download left instead of a volume is called by its name."""

import pytest

from voxpipe.core.errors import VolumeReadError
from voxpipe.volumes import Volume

POINTERS = {
    "git lfs pull": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
    "git annex get": b"/annex/objects/SHA256E-s12345--4d7a.nii.gz\n",
    "web page": b"\n<!DOCTYPE html><html><body>Not found</body></html>" + b" " * 600,
}


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "a.nrrd"])
@pytest.mark.parametrize("advice", POINTERS)
def test_what_stands_there_is_named(tmp_path, name, advice):
    (tmp_path / name).write_bytes(POINTERS[advice])

    with pytest.raises(VolumeReadError, match=f"{name} .*\n.*{advice}"):
        _ = Volume(tmp_path / name).shape
