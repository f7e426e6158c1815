"""Labels stored as real numbers: rounded where a scale or a float type is the cause, or refused."""

import nibabel
import numpy as np
import pytest
import zarr

import voxpipe as vp
from voxpipe.core.errors import BadHeader, VolumeError

SHAPE = (12, 11, 10)


def scaled(path, label, dtype=np.int16):
    """Write a label as nibabel does under a header of another type; return the path."""
    header = nibabel.Nifti1Image(np.zeros(SHAPE, dtype), np.eye(4)).header
    nibabel.save(nibabel.Nifti1Image(label.astype(float), np.eye(4), header), path)
    return str(path)


def a_label(classes):
    label = np.zeros(SHAPE, np.int64)
    for number, value in enumerate(classes):
        label.ravel()[16 * number + 8 : 16 * number + 24] = value
    return label


def of(source):
    cases = [{"image": np.zeros(SHAPE, np.float32), "label": source}]
    return vp.from_cases(cases).open_volume()


def batch_of(pipe):
    return next(iter(pipe.batch_patches(1)))["label"].numpy()


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
@pytest.mark.parametrize("classes", [(2, 3, 6), range(1, 80), (-1, 1, 4)])
def test_every_class_of_a_scaled_label_comes_back(tmp_path, dtype, classes):
    """The values that nibabel gives, rounded, in an integer type."""
    path = scaled(tmp_path / "a.nii.gz", a_label(classes), dtype)
    image = nibabel.load(path)
    assert image.dataobj.slope != 1

    found = batch_of(of(path))

    assert found.dtype == np.int32
    assert np.array_equal(found[0, 0], np.rint(image.get_fdata()))


def test_ops_find_the_classes_of_a_scaled_label(tmp_path):
    """By value: remapped, as regions, one hot, as patches about a class, as the foreground."""
    label = a_label((2, 3, 6))
    path, count = scaled(tmp_path / "a.nii", label), int((label == 3).sum())

    assert (batch_of(of(path).remap_labels({3: 9})) == 9).sum() == count
    assert batch_of(of(path).regions(((3,),))).sum() == count
    assert batch_of(of(path).one_hot((3,), unknown="drop")).sum() == count
    patches = of(path).lazy_patch(
        (3, 3, 3), mask="label", class_weights={3: 1}, samples_per_volume=4
    )
    assert all((patch == 3).any() for patch in next(iter(patches.batch_patches(4)))["label"])
    places = np.argwhere(label == 3)
    cropped = batch_of(of(path).foreground_crop("label", classes=(3,)))
    assert cropped.shape[2:] == tuple(np.ptp(places, axis=0) + 1)


def test_manifests_and_copies_have_whole_classes(tmp_path):
    """Statistics, the header of a manifest, and what convert writes."""
    path = scaled(tmp_path / "a.nii", a_label((2, 3, 6)))
    vp.index([{"label": path}], tmp_path / "m.json")
    entry = vp.from_manifest(tmp_path / "m.json").open_volume()

    assert set(np.unique(batch_of(entry))) == {0, 2, 3, 6}
    (listed,) = vp.volumes.catalog.manifest.read_manifest(tmp_path / "m.json").entries
    assert [value for value, _ in listed.statistics.classes] == [0, 2, 3, 6]
    assert vp.check([{"label": path}], voxels=True, num_workers=1).ok
    vp.convert(vp.Volume(path, kind="label"), tmp_path / "a.zarr")
    copy = vp.Volume(str(tmp_path / "a.zarr"))
    assert copy.dtype == np.int32
    assert set(np.unique(copy.numpy())) == {0, 2, 3, 6}


@pytest.mark.parametrize("scaling", [(1.5, 0), (1, 0.5), (300.7, 0)])
def test_a_scale_without_whole_numbers_is_refused_at_the_header(tmp_path, scaling):
    """No voxel tells which class it was."""
    image = nibabel.Nifti1Image(np.ones(SHAPE, np.int16), np.eye(4))
    image.header.set_slope_inter(*scaling)
    nibabel.save(image, tmp_path / "a.nii")

    with pytest.raises(BadHeader, match=r"a\.nii.*scale.*leaves no whole numbers"):
        _ = vp.Volume(str(tmp_path / "a.nii"), kind="label").dtype
    assert vp.Volume(str(tmp_path / "a.nii")).dtype == np.float32
    (finding,) = vp.check([{"label": tmp_path / "a.nii"}], num_workers=1).bad
    assert "scale" in finding.reason


def test_a_whole_scale_is_exact(tmp_path):
    """Of large identities too, which single precision does not hold."""
    image = nibabel.Nifti1Image(np.full(SHAPE, 20_001, np.int16), np.eye(4))
    image.header.set_slope_inter(1001, 1)
    nibabel.save(image, tmp_path / "a.nii")

    assert np.unique(batch_of(of(str(tmp_path / "a.nii")))).tolist() == [20_001 * 1001 + 1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_are_rounded_in_their_own_type(dtype):
    """Labels that a resampler left next to a whole number."""
    label = a_label((1, 3, 104)).astype(dtype)
    off = np.where(label == 3, np.nextafter(dtype(3), dtype(4)), label)
    off = np.where(off == 104, dtype(104.0008), off)

    found = batch_of(of(off))

    assert found.dtype == dtype
    assert np.array_equal(found[0, 0], label)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.4, 1 / 255, 1 / 65535, 2.0**24 + 2])
def test_other_floats_are_no_labels(value):
    """NaN, shares, labels divided by the largest integer, and numbers that float32 skips."""
    label = a_label((1, 2)).astype(np.float32)
    label[5, 5, 5] = value

    with pytest.raises(VolumeError, match="where labels are whole numbers"):
        batch_of(of(label))


def test_identities_beyond_double_precision_stay_apart():
    """Of uint64 and int64, by every op that looks for labels."""
    for dtype, first in ((np.uint64, 2**63 + 1), (np.int64, 2**60 + 1)):
        label = a_label((1, 2)).astype(dtype)
        label[5, 5, 5], label[6, 6, 6] = first, first + 1
        assert batch_of(of(label).regions((first,))).sum() == 1
        assert batch_of(of(label).one_hot((first,), unknown="drop")).sum() == 1
        assert (batch_of(of(label).remap_labels({first: 7})) == 7).sum() == 1


def turned(source, **how):
    """Return patches that are turned, and reach beyond the volume."""
    pipe = of(source).lazy_patch((7, 7, 7), samples_per_volume=6)
    pipe = pipe.augment(rotate=(-40, 40), **how).batch_patches(6)
    return next(iter(vp.DataLoader2(pipe, seed=3)))["label"].numpy()


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, ">i2", np.int32, np.float16, np.float64])
@pytest.mark.parametrize("how", [{"fill": 6}, {"fill": 77}, {"padding": "zeros"}])
def test_turned_labels_are_those_of_a_copy_in_integers(tmp_path, dtype, how):
    """Rounded after resampling, whichever number lies outside."""
    how = {name: {"label": value} for name, value in how.items()}
    label = a_label((1, 3, 6))
    path = tmp_path / "a.nii"
    if np.dtype(dtype).kind == "f":
        array = label.astype(dtype)
        found = turned(array, **how)
    else:
        found = turned(scaled(path, label, dtype), **how)
        array = nibabel.load(path).get_fdata()

    assert len(np.unique(found)) > 2
    assert np.array_equal(found, turned(np.rint(array).astype(np.int32), **how))


@pytest.mark.parametrize("workers", ["in_process", "threads"])
def test_turned_labels_in_chunks_read_those_of_integers(tmp_path, workers):
    """The chunks beside a turned patch are neither read nor looked at."""
    label = np.zeros((48, 48, 48), np.uint8)
    label[10:30, 20:40], label[:, :, 30:] = 2, 5
    service = {"threads": vp.ThreadReadingService(num_threads=2)}.get(workers)
    batches, chunks = [], []
    for dtype in (np.uint8, np.float32):
        store = str(tmp_path / f"{np.dtype(dtype)}.zarr")
        # One file: a file for each chunk takes a second to write.
        chunks_of_file = {"chunks": (4, 4, 4), "shards": label.shape}
        zarr.create_array(store, data=label.astype(dtype), **chunks_of_file)
        pipe = vp.from_cases([{"label": store}]).open_volume()
        pipe = pipe.lazy_patch((16, 16, 16), sampling="grid").augment(rotate=35)
        chunks.append([len(one["label"].read_plan.needed_chunks.chunks) for one in pipe])
        pipe = pipe.batch_patches(4)
        batches.append(next(iter(vp.DataLoader2(pipe, None, service, seed=3)))["label"])

    assert chunks[0] == chunks[1]
    assert np.array_equal(*batches)
    assert len(np.unique(batches[0])) == 3


def test_a_number_that_is_no_label_is_refused_in_the_patch_that_shows_it():
    """Of a patch beside it nothing is said: its voxels are labels."""
    label = a_label((1, 2)).astype(np.float32)
    label[0, 0, 0] = 0.5

    def patch(side):
        return batch_of(of(label).crop(side, (6, 6, 6)).augment(rotate=10, p=1))

    assert set(np.unique(patch((6, 5, 4)))) <= {0, 1, 2}
    with pytest.raises(VolumeError, match=r"holds 0\.5 where labels are whole numbers; 1 voxel of"):
        batch_of(of(label).augment(flip=1.0))


@pytest.mark.parametrize("dtype", ["bool", "u1", "i2", "u4", "u8", "f4"])
def test_labels_become_large_numbers(dtype):
    """In a type that torch has, exactly."""
    pipe = of(a_label((1, 0, 1)).astype(dtype)).remap_labels({1: 2**33 + 1})

    assert np.unique(batch_of(pipe)).tolist() == [0, 2**33 + 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda pipe: pipe.remap_labels({4: 2**70}), f"mapping has {2**70}, which no integer"),
        (lambda pipe: pipe.remap_labels({1: 2}, unknown=-(2**70)), "unknown has"),
        (lambda pipe: pipe.remap_labels(((1, 2), (1, 3))), "mapping has 1 twice"),
        (lambda pipe: pipe.one_hot((4, 4)), "classes has 4 twice"),
        (lambda pipe: pipe.one_hot((0, 2**64)), "no integer of 64 bits"),
        (lambda pipe: pipe.regions(((4, 4), 1)), "a region has 4 twice"),
        (lambda pipe: pipe.regions((-(2**64),)), "a region has -"),
    ],
)
def test_labels_that_cannot_be_are_refused_where_they_are_written(change, words):
    """Beyond 64 bits, or named twice."""
    with pytest.raises(ValueError, match=words):
        change(of(a_label((1, 2))))


@pytest.mark.parametrize("mapping", [{1: 2**53 + 2}, {1: -1, 2: 2**63}])
def test_labels_that_their_type_would_round_are_refused(mapping):
    """By label and type."""
    for dtype in ("f4", "u8") if -1 in mapping.values() else ("f4",):
        with pytest.raises(VolumeError, match=r"remap_labels makes \d \d+, which \w+ does"):
            batch_of(of(a_label((1, 2)).astype(dtype)).remap_labels(mapping))
