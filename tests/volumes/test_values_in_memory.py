"""Values as tensors and arrays: types that are kept, changes that show, NumPy's protocol."""

import pickle

import nibabel
import numpy as np
import pytest
import torch
from nifti_files import numbered, write_nifti

import voxpipe as vp
from voxpipe.core import Region
from voxpipe.core.errors import UnknownFormat
from voxpipe.storage import content
from voxpipe.volumes import Volume, array_source, close_volumes

WHOLE = Region.of_shape((4, 5, 6))
KINDS = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float32,
    torch.float64,
    torch.complex64,
]


def ramp(kind):
    """Return a tensor (4, 5, 6) of small numbers that each of these types holds exactly."""
    return (torch.arange(120).reshape(4, 5, 6) % 8).to(kind)


def bits(tensor):
    """Return something that can be compared, of any type."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64).tolist()


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("large", [False, True])
def test_a_tensor_keeps_its_type(kind, large):
    """Whole, in part, loaded, after a journey small or large: what comes out is what went in."""
    tensor = ramp(kind).repeat(16, 16, 1) if large else ramp(kind)
    volume = Volume(tensor)
    token = volume.token

    packed = pickle.dumps(volume)
    for one in (volume, pickle.loads(packed)):
        assert one.data.dtype == kind
        assert bits(one.data[0]) == bits(tensor)
        for _ in range(2):  # of what is stored, and of what is loaded
            assert one[:, 1:3].data.dtype == kind
            assert bits(one[:, 1:3].data[0]) == bits(tensor[1:3])
            one.load()
    assert volume.token == token
    assert volume.probe().to_tensor().dtype == volume.probe()[:, 0].dtype == kind
    assert volume.dtype == volume.numpy().dtype == np.asarray(volume).dtype


def test_a_type_arrives_where_the_original_is_gone():
    """The name of torch's own type travels with the header."""
    packed = pickle.dumps(Volume(ramp(torch.bfloat16)))

    arrived = pickle.loads(packed)

    assert arrived.data.dtype == torch.bfloat16
    assert arrived.dtype == np.float32


def test_packed_numbers_are_refused_by_name():
    """Two numbers in a byte are none that an array could hold, nor are the codes of quantized."""
    tensor = torch.empty((2, 3, 4), dtype=torch.uint4)

    with pytest.raises(UnknownFormat, match=r"tensor of torch\.uint4.*\n.*dequantize"):
        Volume(tensor)


def test_booleans_are_booleans_wherever_they_are_stored(tmp_path):
    """An array, a file, its map and its ranges give bool; patches of a label give uint8."""
    flags = numbered((4, 5, 6)) % 3 == 0
    np.save(tmp_path / "a.npy", flags)

    for source, options in (
        (flags, {}),
        (tmp_path / "a.npy", {}),
        (tmp_path / "a.npy", {"io": "pread"}),
    ):
        volume = Volume(source, kind="label", **options)
        assert volume.dtype == volume.numpy().dtype == bool
        assert volume.data.dtype == torch.bool
        assert volume[0, 1:3].numpy().tolist() == flags[None, 1:3].tolist()
        assert volume.read(WHOLE).array.dtype == np.uint8  # for kernels
        close_volumes()
    pipe = vp.from_cases([{"image": flags, "label": flags}]).open_volume()
    batch = next(iter(pipe.lazy_patch((4, 5, 6)).batch_patches(1)))

    assert batch["label"].dtype == torch.uint8
    assert batch["image"].dtype == torch.uint8  # copied, not interpolated
    assert batch["label"][0, 0].tolist() == flags.astype(int).tolist()
    inside = vp.from_cases([{"image": flags.astype(np.int16), "mask": flags}]).open_volume()
    assert len(list(inside.lazy_patch((1, 1, 1), samples_per_volume=4, mask="mask"))) == 4


@pytest.mark.parametrize("source", ["array", "scaled", "booleans", "bfloat16"])
def test_a_change_of_loaded_data_shows(tmp_path, source):
    """Parts and arrays are those of the tensor that the user changed; patches are of the store."""
    made = {
        "array": lambda: numbered((4, 5, 6)),
        "scaled": lambda: write_nifti(tmp_path / "a.nii", numbered((4, 5, 6)), scaling=(2.0, 1.0)),
        "booleans": lambda: np.zeros((4, 5, 6), bool),
        "bfloat16": lambda: torch.zeros(4, 5, 6, dtype=torch.bfloat16),
    }
    volume = Volume(made[source](), affine=np.diag([2.0, 2, 2, 1]))
    before = volume.read(WHOLE).values().copy()
    kind = volume.dtype

    volume.data[:, 1] = 1

    assert volume[:, 1].data.tolist() == volume.data[:, 1:2].tolist()
    assert volume[:, 1].numpy().tolist() == np.ones((1, 1, 5, 6), kind).tolist()
    assert volume[:, 1].dtype == volume.dtype == kind
    assert volume[:, 1].affine[:3, 3].tolist() == [2, 0, 0]
    assert (
        volume.numpy()[:, 1].tolist()
        == np.asarray(volume)[:, 1].tolist()
        == volume.data[:, 1].tolist()
    )
    assert not volume.numpy().flags.writeable
    assert volume.read(WHOLE).values().tolist() == before.tolist()
    assert volume.unload().numpy().tolist() == before.tolist()


@pytest.mark.skipif(np.__version__ < "2", reason="NumPy 1 has no copy= of asarray()")
class TestNumPy:
    """``np.asarray(volume)``, by NumPy 2's rules."""

    def test_a_view_where_nothing_has_to_be_read(self, tmp_path):
        """An array, a mapped file and loaded data are handed out without copying."""
        array = numbered((4, 5, 6))
        for volume in (Volume(array), Volume(write_nifti(tmp_path / "a.nii", array))):
            for view in (np.asarray(volume), np.asarray(volume, copy=False)):
                assert np.shares_memory(view, volume.read(WHOLE).array)
                assert not view.flags.writeable
                assert view.tolist() == [array.tolist()]
            assert np.shares_memory(np.asarray(volume.load(), copy=False), volume.data.numpy())

    def test_a_copy_is_one(self):
        """``np.array`` may be written to, and the volume stays as it is."""
        volume = Volume(numbered((4, 5, 6)))

        copied = np.array(volume)
        copied[...] = -1

        assert volume.numpy().min() == 0
        assert np.array(volume.load(), dtype=np.int16).flags.owndata

    def test_types_are_converted(self):
        """The type that is asked for is given; that of the values needs no copy."""
        volume = Volume(numbered((4, 5, 6)))

        assert np.asarray(volume).dtype == np.int16
        assert np.asarray(volume, dtype=np.float64).tolist() == [numbered((4, 5, 6)).tolist()]
        assert np.asarray(volume, dtype=np.int16, copy=False).dtype == np.int16
        assert float(np.mean(volume)) == numbered((4, 5, 6)).mean()

    @pytest.mark.parametrize("why", ["type", "scaling", "compressed", "read"])
    def test_what_needs_new_memory_is_refused_without_copy(self, tmp_path, why):
        """NumPy's ``copy=False`` means never."""
        suffix = ".nii.gz" if why == "compressed" else ".nii"
        scaling = (2.0, 1.0) if why == "scaling" else None
        path = write_nifti(tmp_path / f"a{suffix}", numbered((4, 5, 6)), scaling=scaling)
        volume = Volume(path, io="pread" if why == "read" else "auto")
        dtype = np.float64 if why == "type" else None

        with pytest.raises(ValueError, match="copy=False forbids"):
            np.asarray(volume, dtype=dtype, copy=False)
        assert np.array(volume).flags.writeable

    def test_a_volume_in_a_batch_is_not_read(self):
        """One that was not opened as a patch travels along as it is; nothing is stacked of it."""
        volume = Volume(numbered((4, 5, 6)))
        pipe = vp.from_cases([{"image": numbered((4, 5, 6)), "atlas": volume}] * 2)

        batch = next(iter(pipe.open_volume(keys=["image"]).lazy_patch((2, 2, 2)).batch_patches(2)))

        assert [one.token for one in batch["atlas"]] == [volume.token] * 2


def in_memory(kind, array):
    """Return a case that shares the memory of an array, by how a script may hold it."""
    images = {
        "array": lambda: array,
        "by columns": lambda: array.T,
        "part": lambda: array[:, ::2, 1:],
        "tensor": lambda: torch.from_numpy(array),
        "nibabel": lambda: nibabel.Nifti1Image(array, np.eye(4)),
        "list": lambda: [array, np.zeros_like(array)],
        "volume": lambda: vp.Volume(array),
        "mapped": lambda: vp.Volume(array).with_axis_map(vp.AxisMap.missing("K", [7])),
    }
    return {"image": images[kind]()}


HELD = ["array", "by columns", "part", "tensor", "nibabel", "list", "volume", "mapped"]


@pytest.mark.parametrize("loader", [False, True])
@pytest.mark.parametrize("kind", HELD)
def test_what_is_kept_of_voxels_that_were_written_to_is_made_anew(tmp_path, kind, loader):
    """Statistics, and copies in memory and in a folder: in the next epoch they are of the new."""
    array = np.random.default_rng(0).normal(5, 2, (8, 8, 8)).astype(np.float32)
    opened = vp.from_cases([in_memory(kind, array)]).open_volume()
    coarse = opened.spacing(2.0)
    chains = [opened.normalize(), coarse.cache(memory_bytes=10**8), coarse.cache(tmp_path)]
    if loader:
        chains = [vp.DataLoader2(chain.realize().batch_patches(1)) for chain in chains]

    def largest():
        found = [next(iter(chain)) for chain in chains]
        images = [s["image"][0] if loader else s["image"].realize() for s in found]
        return [float(image[0].max()) for image in images]

    first = largest()
    assert first == largest()
    for factor in (2, 4):
        array *= 2
        normal, *kept = largest()
        assert normal == pytest.approx(first[0], rel=1e-5)
        assert kept == [n * factor for n in first[1:]]
    for chain in chains if loader else ():
        chain.shutdown()


def test_masks_of_labels_that_were_written_to_are_drawn_from_anew():
    """A patch lies where the label is now."""
    label = np.zeros((16, 16, 16), np.uint8)
    label[2, 2, 2] = 1
    case = {"image": label.astype(np.float32), "label": label}
    pipe = vp.from_cases([case]).open_volume().lazy_patch(5, mask="label")
    assert next(iter(pipe))["label"].realize().sum() == 1
    label[...] = 0
    label[12, 12, 12] = 1
    assert next(iter(pipe))["label"].realize().sum() == 1


def test_only_voxels_of_which_something_is_kept_are_looked_at(monkeypatch):
    """Once in each epoch; and digested only where they were written to."""
    looked, digested = [], []
    monkeypatch.setattr(
        array_source, "quick_key", lambda a: looked.append(a) or content.quick_key(a)
    )
    monkeypatch.setattr(
        array_source, "array_key", lambda a: digested.append(a) or content.array_key(a)
    )
    array = np.arange(2**15, dtype=np.float32).reshape(32, 32, 32)
    opened = vp.from_cases([{"image": array}] * 2).open_volume()
    for _ in range(3):
        list(opened)
    assert looked == []

    normal = opened.normalize()
    for epoch in range(1, 4):
        for sample in normal:
            sample["image"].realize()
        assert (len(looked), len(digested)) == (epoch, 1)


@pytest.mark.parametrize("shape", [(1, 3, 3, 3), (1, 40, 41, 42), (2, 128, 65, 64)])
def test_a_quick_key_tells_what_was_written(shape):
    """One number, two that change places in a row, two rows; and the last bytes."""
    array = np.random.default_rng(0).integers(0, 2**15, shape, np.int16)
    flat = array.reshape(-1)
    before = content.quick_key(array)
    half = len(flat) // 2
    for one, other in ((0, 1), (0, half), (half, len(flat) - 1)):
        flat[[one, other]] = flat[[other, one]]
        assert content.quick_key(array) != before
        flat[[one, other]] = flat[[other, one]]
        flat[one] ^= 1
        assert content.quick_key(array) != before
        flat[one] ^= 1
    assert content.quick_key(array) == before
