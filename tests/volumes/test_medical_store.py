"""Images of SimpleITK and nibabel; fetching. Files are read in test_every_reference.py."""

import nibabel
import numpy as np
import pytest
import SimpleITK
from medical_files import itk_image
from nifti_files import AFFINE, numbered
from reference_files import REFERENCES, collect, local, remote

from voxpipe.core import Region
from voxpipe.testing import StoreCase, StoreContract
from voxpipe.volumes import Volume

collect()


class TestItkImage(StoreContract):
    @pytest.fixture(params=["vectors", "time"])
    def case(self, request):
        match request.param:
            case "vectors":
                array = numbered((3, 5, 6, 7), np.float32)
                return StoreCase(itk_image(array), array, AFFINE)
            case _:
                array = numbered((2, 5, 6, 7))
                image = SimpleITK.JoinSeries([itk_image(part) for part in array])
                return StoreCase(image, array, AFFINE)


def test_a_plane_of_simpleitk():
    """Two axes are I and J; the third is one voxel of a millimetre."""
    array = numbered((12, 10))
    image = SimpleITK.GetImageFromArray(np.ascontiguousarray(array.T))
    image.SetOrigin((3.0, 4.0))

    volume = Volume(image)

    assert volume.affine.tolist() == [[-1, 0, 0, -3], [0, -1, 0, -4], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert volume.numpy().tolist() == array[None, :, :, None].tolist()


def test_an_image_of_simpleitk_may_go_or_change():
    """Voxels are shared, and stay what they were when the volume was made."""
    image = itk_image(numbered((5, 6, 7)))
    voxels = Volume(image).numpy()
    image += 1
    image[0, 0, 0] = 99
    del image

    assert voxels[0].tolist() == numbered((5, 6, 7)).tolist()
    assert not voxels.flags.writeable


@pytest.mark.parametrize(
    "name", ["nii, RGB24", "hdr and img", "hdr.gz and img.gz", "Analyze of SPM, moved by a .mat"]
)
def test_images_of_nibabel(name, tmp_path):
    """An image that nibabel opened is the file, and one in memory is its voxels."""
    found = REFERENCES[name](tmp_path)
    image = nibabel.load(found.path)
    memory = type(image)(np.asanyarray(image.dataobj), image.affine, image.header)

    for volume in (Volume(image), Volume(memory)):
        np.testing.assert_allclose(volume.affine, found.affine, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(volume.numpy(), found.array)
    assert Volume(image).access in ("view", "stream")
    assert Volume(image).content_key


@pytest.mark.parametrize("name", ["mha, vectors", "mha, compressed", "nhdr"])
@pytest.mark.parametrize("place", [local, remote])
def test_fetching_alone(name, place, tmp_path):
    """Mapped, decoded or behind a URL: what is fetched is the region, in the stored type."""
    case = place(name, tmp_path)

    fetched = Volume(case.source).fetch(Region((1, 2, 3), (4, 6, 5)))

    assert fetched == case.array[:, 1:4, 2:6, 3:5].nbytes
