"""Tensors as volumes: no copy, their device and type; and tensors of volumes elsewhere."""

import pickle

import nibabel
import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.core.errors import UnknownFormat

AFFINE = np.diag([2.0, 3, 4, 1])
HERE = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU"))]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.uint8, torch.float16])
def test_memory_is_shared(dtype):
    """Values and parts are views of the tensor."""
    tensor = torch.arange(24).reshape(1, 2, 3, 4).to(dtype)
    volume = vp.Volume(tensor, affine=AFFINE)

    assert np.shares_memory(volume.numpy(), tensor.numpy())
    part = volume[:, 1, ::2, 1:3]
    assert np.shares_memory(part.numpy(), tensor.numpy())
    assert (part.numpy() == tensor[:, 1:2, ::2, 1:3].numpy()).all()
    assert (volume[..., ::-1].numpy() == tensor.flip(3).numpy()).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_types_of_torch_are_kept(dtype, monkeypatch):
    """Opening converts nothing, a read its region alone, and tensors have the type."""
    tensor = torch.arange(24).reshape(2, 3, 4).to(dtype)
    before, sizes = torch.Tensor.float, []
    monkeypatch.setattr(torch.Tensor, "float", lambda t: sizes.append(t.numel()) or before(t))
    volume = vp.Volume(tensor)
    opening = sum(sizes)
    patch = next(iter(vp.from_cases([{"image": volume}]).open_volume().lazy_patch(2)))

    assert opening <= 1
    assert patch["image"].realize().shape == (1, 2, 2, 2)
    assert sum(sizes) - opening == 8
    assert volume.data.dtype == dtype
    assert torch.equal(volume.data.float()[0], before(tensor))
    assert volume[0, 1].data.dtype == dtype
    assert volume.data.data_ptr() != tensor.data_ptr()  # users may change it
    assert (pickle.loads(pickle.dumps(volume)).numpy() == volume.numpy()).all()


def test_larger_tensors_travel_in_a_file():
    """Workers get the values, and the copy in this process the tensor itself."""
    tensor = torch.arange(20**3, dtype=torch.bfloat16).reshape(20, 20, 20)
    pipe = vp.from_cases([{"image": vp.Volume(tensor)}]).open_volume().lazy_patch(20)
    loader = vp.DataLoader2(
        pipe.batch_patches(1), None, vp.MultiProcessingReadingService(num_workers=1)
    )
    (batch,) = loader
    loader.shutdown()

    assert torch.equal(batch["image"][0, 0].float(), tensor.float())


def test_a_tensor_without_values_is_refused():
    """By the name of its device."""
    with pytest.raises(UnknownFormat, match=r"is_meta.*\n.*device meta"):
        vp.Volume(torch.zeros(2, 2, 2, device="meta"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_it_stays_on_its_device():
    """Until a read, which copies its region alone."""
    tensor = torch.arange(24.0, device="cuda").reshape(2, 3, 4)
    volume = vp.Volume(tensor)

    assert volume.data.is_cuda
    assert (volume[0, 1].numpy() == tensor[1].cpu().numpy()).all()


@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("made", ["array", "file", "tensor"])
def test_tensors_of_a_volume_come_to_a_device_and_type(made, device, tmp_path):
    """Nothing is read before; parts and NumPy's values follow; patches keep the stored type."""
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    nibabel.save(nibabel.Nifti1Image(array, AFFINE), tmp_path / "a.nii")
    things = {"array": array, "file": str(tmp_path / "a.nii"), "tensor": torch.from_numpy(array)}
    volume = vp.Volume(things[made], affine=AFFINE)

    moved = volume.to(device, torch.float16)

    assert not moved.is_loaded
    assert (moved.data.dtype, moved.data.device.type) == (torch.float16, device)
    part = volume.to(torch.bfloat16)[0, 1, :2]
    assert part.data.dtype == torch.bfloat16
    assert part.data.flatten().tolist() == array[1, :2].flatten().tolist()
    assert moved.numpy().dtype == np.float16
    assert np.asarray(volume.to(torch.float64)).dtype == np.float64
    assert (volume.data.dtype, volume.dtype, moved.dtype) == (torch.int16, np.int16, np.int16)
    assert np.allclose(moved.affine, AFFINE)


def test_changed_voxels_are_moved_too():
    """Those of ``data``; the first volume stays as it is."""
    volume = vp.Volume(np.zeros((2, 2, 2), np.int16))
    volume.data[0, 0, 0, 0] = 7

    moved = volume.to(torch.float32)

    assert moved.data[0, 0, 0, 0] == 7
    assert volume.data.dtype == torch.int16


def test_devices_and_types_that_do_not_exist_are_refused():
    """At once, and not by the first read."""
    volume = vp.Volume(np.zeros((2, 2, 2), np.int16))
    for wrong in ("nowhere", "float16", np.float32):
        with pytest.raises((RuntimeError, TypeError, AttributeError)):
            volume.to(wrong)


@pytest.mark.parametrize("made", ["array", "nii", "nii.gz", "zarr", "list", "reader"])
def test_the_backend_has_the_given_affine(made, tmp_path):
    """``dataobj`` of nibabel: values by index; the affine is that of the volume."""
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    path = str(tmp_path / f"a.{made}")
    options = {}
    if made.startswith("nii"):
        nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), path)
    elif made == "zarr":
        vp.convert(vp.Volume(array), path := str(tmp_path / "a.nii.zarr"))
    elif made == "reader":
        np.save(path := str(tmp_path / "a.npy"), array)
        options["reader"] = lambda place: (np.load(place), np.eye(4))
    source = {"array": array, "list": [array]}.get(made, path)
    volume = vp.Volume(source, affine=AFFINE, **options)

    assert volume.dataobj.shape == volume.shape
    assert np.allclose(volume.dataobj.affine, AFFINE)
    assert volume.dataobj[0, 1, 1:3, 2].flatten().tolist() == array[1, 1:3, 2].tolist()


def test_the_backend_is_an_array():
    """NumPy reads all values of it, as of nibabel's."""
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)

    assert np.asarray(vp.Volume(array).dataobj).tolist() == array[None].tolist()
    assert np.asarray(vp.Volume(array).dataobj, np.float32).dtype == np.float32
    assert vp.Volume(array).to(dtype=torch.float16).data.dtype is torch.float16
