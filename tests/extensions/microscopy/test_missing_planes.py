"""OME-TIFF of several files of which some were not copied, and files that lack planes."""

import numpy as np
import pytest
import tifffile

import voxpipe as vp
from voxpipe.core.errors import BadHeader, LikelyMistake, VolumeNotFound

HEAD = '<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="urn:uuid:{own}">'
PIXELS = (
    '<Image ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYZCT" Type="uint16" SizeX="6" '
    'SizeY="5" SizeZ="4" SizeC="1" SizeT="3"><Channel ID="Channel:0:0"/>{planes}</Pixels></Image>'
    "</OME>"
)
PLANE = (
    '<TiffData FirstZ="{z}" FirstT="{t}" IFD="{z}" PlaneCount="1"><UUID FileName="m_T{t}.ome.tif">'
    "urn:uuid:{t}</UUID></TiffData>"
)


def write_times(folder, times):
    """Write an image of three time points, a file each, and only the files of some times."""
    planes = "".join(PLANE.format(z=z, t=t) for t in range(3) for z in range(4))
    for time in times:
        text = HEAD.format(own=time) + PIXELS.format(planes=planes)
        voxels = np.full((4, 5, 6), time, np.uint16)
        path = folder / f"m_T{time}.ome.tif"
        how = {"photometric": "minisblack", "metadata": None}
        tifffile.imwrite(path, voxels, description=text, **how)


def write_part(path):
    """Write a file whose writer ended after the planes of two of three time points."""
    planes = '<TiffData IFD="0" PlaneCount="8"/>'
    text = HEAD.format(own=0) + PIXELS.format(planes=planes)
    voxels = np.arange(8 * 30, dtype=np.uint16).reshape(8, 5, 6)
    tifffile.imwrite(path, voxels, photometric="minisblack", description=text, metadata=None)
    return voxels


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_complete_times_are_cases_and_one_warning_names_the_files(tmp_path, missing):
    there = [time for time in range(3) if time != missing]
    write_times(tmp_path, there)
    text = f"incomplete-times: .* no file for 4 of 12 planes: m_T{missing}.ome.tif. Time points "
    with pytest.warns(LikelyMistake, match=f"{text}left out: {missing}. Copy the missing") as told:
        samples = [*vp.from_ome(tmp_path).open_volume()]
    assert len(told) == 1
    assert [sample["ome"]["time"] for sample in samples] == there
    assert [int(sample["image"].realize().max()) for sample in samples] == there


def test_a_complete_time_is_read_and_another_names_its_file(tmp_path):
    write_times(tmp_path, [0, 1])
    path = tmp_path / "m_T0.ome.tif"
    np.testing.assert_array_equal(vp.Volume(path, time=1).numpy(), np.full((1, 6, 5, 4), 1))
    assert [sample.case for sample in vp.from_ome(tmp_path, time=0)] == ["m_T0 t0"]
    text = r"(?s)no file for 4 of 12 planes: m_T2.ome.tif.*Copy .*complete time point.*: 0, 1"
    whole = [{}, {"time": 2}, {"time": "channels"}]
    for options in whole:
        with pytest.raises(VolumeNotFound, match=text):
            vp.Volume(path, **options).shape  # noqa: B018  reading the property opens it
    for options in whole[1:]:
        with pytest.raises(VolumeNotFound, match=text):
            [*vp.from_ome(tmp_path, **options)]


def test_a_single_file_without_some_planes_is_written_again(tmp_path):
    path = tmp_path / "a.ome.tif"
    voxels = write_part(path)
    with pytest.raises(BadHeader, match=r"holds 8 of the 12 planes .*\n  Copy or write the file"):
        vp.Volume(path).shape  # noqa: B018  reading the property opens it
    read = vp.Volume(path, time=1).numpy()[0]
    np.testing.assert_array_equal(read, voxels[4:].transpose(2, 1, 0))
    with pytest.warns(LikelyMistake, match="holds 8 of the 12 planes .* left out: 2"):
        assert [sample.case for sample in vp.from_ome(path)] == ["a t0", "a t1"]


def test_an_image_without_a_complete_time_stops_no_other(tmp_path):
    """Alone it is an error, beside others a warning."""
    text = HEAD.format(own=0) + PIXELS.format(planes='<TiffData IFD="0" PlaneCount="2"/>')
    text = text.replace('SizeT="3"', 'SizeT="1"')
    how = {"photometric": "minisblack", "description": text, "metadata": None}
    tifffile.imwrite(tmp_path / "a.ome.tif", np.zeros((2, 5, 6), np.uint16), **how)
    with pytest.raises(BadHeader, match="holds 2 of the 4 planes"):
        [*vp.from_ome(tmp_path)]
    facts = {"axes": "ZYX"}
    tifffile.imwrite(tmp_path / "b.ome.tif", np.zeros((2, 5, 6), np.uint16), metadata=facts)
    with pytest.warns(LikelyMistake, match="holds 2 of the 4 planes"):
        assert [sample.case for sample in vp.from_ome(tmp_path)] == ["b"]
